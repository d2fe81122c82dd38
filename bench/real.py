"""`python -m bench table2 --real`: the parties as processes of their own, over gRPC and mutual TLS on this
machine.

Each process builds its own party from the settings, as a simulation does, and writes down what its clock
measured after each round. Beside the measured communication stands the modelled one: the same events on
the profile `loopback` (bench.replay), which is memory's speed. The difference is what gRPC, TLS and waiting
for a core add to a message. Both parties share this machine's cores, so their computation is not that of two
machines; the comparison is about communication. The setup is included on both sides.

`python -m bench.real FOLDER PARTY` is one party; the bench starts it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import machine
from bench.ports import free_ports
from bench.replay import PURPOSES, read_events, replay, write_events
from bench.runs import Spec
from bench.tasks import build
from securefed.crypto import generate
from securefed.engine import get_engine
from securefed.errors import SecurefedError
from securefed.protocols.loop import PartyContext, Round
from securefed.protocols.messages import KINDS
from securefed.protocols.own_gradient.ledger import LedgerWarning
from securefed.protocols.scoring.score_ledger import ScoreGuard
from securefed.transport.message import Path as Clock
from securefed.transport.message import get_network

HOST = "127.0.0.1"
PASSPHRASE = "keys of one bench"  # noqa: S105
ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class RealRow:
    """One run at one target. Minutes with the setup; `comm_modelled_min` is the profile's."""

    scheme: str
    network: str
    algorithm: str
    Q: int
    target_auc: float
    reached: bool
    R: int | None
    comp_min: float | None
    comm_min: float | None
    total_min: float | None
    comm_modelled_min: float | None
    bytes_exchange: int | None
    bytes_open: int | None
    messages: int | None
    auc: float


def measure(spec: Spec) -> dict[str, dict[str, Any]]:
    """Both parties' accounts of one run."""
    from securefed.transport.identity import Identity

    names = build(spec).agreement.names
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        for name in names:
            identity = Identity.generate(name)
            (where / name).mkdir()
            identity.save(where / name, PASSPHRASE)
            (where / f"{name}.pem").write_bytes(identity.certificate.pem)
        (where / "settings.json").write_text(json.dumps({"spec": spec.to_dict(), "ports": ports}))
        command = [sys.executable, "-m", "bench.real", folder]
        processes = {name: subprocess.Popen([*command, name], cwd=ROOT) for name in names}
        try:
            codes = {name: process.wait() for name, process in processes.items()}
        finally:
            for process in processes.values():
                process.kill()
        if any(codes.values()):
            raise SecurefedError(f"a party's process ended with an error: {codes}")
        return {name: json.loads((where / f"{name}.json").read_text()) for name in names}


def party(folder: Path, name: str) -> None:
    """One party: run, and write down what its clock says."""
    from securefed.transport.identity import Certificate, Identity, Peer
    from securefed.transport.network.endpoint import Endpoint

    settings = json.loads((folder / "settings.json").read_text())
    options = tuple(sorted(settings["spec"].pop("options").items()))
    spec = Spec(**settings["spec"], options=options)
    task = build(spec)
    agreement = task.agreement
    rounds: list[list[float | None]] = []

    def on_round(state: Round) -> None:
        state.link.settle()
        path = state.link.path
        rounds.append([path.computation, path.communication, state.metric])

    peers = {
        other: Peer(f"{HOST}:{port}", Certificate.read(folder / f"{other}.pem"))
        for other, port in settings["ports"].items()
        if other != name
    }
    with get_engine(spec.workers, spec.scheme) as mapper, warnings.catch_warnings():
        warnings.simplefilter("ignore", LedgerWarning)
        holder = generate(spec.scheme, key_bits=spec.key_bits)
        guard = ScoreGuard(party=name, mode="off")  # public data, looked at in every round
        context = PartyContext(holder, mapper, task.evaluation(name), on_round, guard)
        identity, listen = Identity.load(folder / name, PASSPHRASE), f"{HOST}:{settings['ports'][name]}"
        with Endpoint(identity, listen=listen, peers=peers) as endpoint:
            program = task.program(name, context)
            done = endpoint.run(program, run="bench", kinds=KINDS, settings=agreement.to_dict())
    account = {"rounds": rounds, "events": write_events({name: done.link.events})[name]}
    (folder / f"{name}.json").write_text(json.dumps(account))


def rows_of(spec: Spec, accounts: dict[str, dict[str, Any]], targets: tuple[float, ...]) -> list[RealRow]:
    """What was measured at each target, and what the model says of the same events."""
    modelled = replay(
        read_events({name: account["events"] for name, account in accounts.items()}), get_network("loopback")
    )
    clocks: list[Clock] = []
    aucs: list[float] = []
    for each in zip(*(account["rounds"] for account in accounts.values()), strict=True):
        latest = Clock()
        for computation, communication, metric in each:
            latest = latest.later(Clock(computation, communication))
            if metric is not None:
                aucs.append(metric)
        clocks.append(latest)
    sizes = [_sent(accounts, number) for number in range(len(clocks))]
    rows = []
    for target in targets:
        number = next((n for n, auc in enumerate(aucs) if auc >= target), None)
        clock = None if number is None else clocks[number]
        rows.append(
            RealRow(
                scheme=spec.scheme,
                network="loopback, measured",
                algorithm=spec.algorithm.name,
                Q=spec.local_steps,
                target_auc=target,
                reached=number is not None,
                R=None if number is None else number + 1,
                comp_min=None if clock is None else clock.computation / 60,
                comm_min=None if clock is None else clock.communication / 60,
                total_min=None if clock is None else clock.total / 60,
                comm_modelled_min=None if number is None else modelled.rounds[number].path.communication / 60,
                bytes_exchange=None if number is None else sizes[number][0],
                bytes_open=None if number is None else sizes[number][1],
                messages=None if number is None else sizes[number][2],
                auc=max(aucs) if number is None else aucs[number],
            )
        )
    return rows


def _sent(accounts: dict[str, dict[str, Any]], last: int) -> tuple[int, int, int]:
    """Bytes exchanged, bytes opened and messages up to that round, the setup's not."""
    exchanged = opened = messages = 0
    for account in accounts.values():
        for _, what, name, number, _, _, size in account["events"]:
            if what == "sent" and number <= last and PURPOSES.get(name) != "setup":
                messages += 1
                exchanged += size if PURPOSES.get(name) == "exchange" else 0
                opened += size if PURPOSES.get(name) == "steps" else 0
    return exchanged, opened, messages


def run_real(plan: Any, args: argparse.Namespace) -> int:
    """The command."""
    facts = machine.describe(("numpy", "gmpy2", "tenseal"))
    for name, fact in facts.items():
        print(f"{name:<13}{fact}")
    print(f"\n{plan.task}, {plan.scheme}, seed {plan.seeds[0]}: two processes over gRPC on {HOST}\n")
    times = ("comp. s", "comm. s measured", "comm. s modelled")
    head = ("AUC", "algorithm", "Q", "R", *times, "MB sent", "messages")
    lines = ["| " + " | ".join(head) + " |", "|---:|---|" + "---:|" * (len(head) - 2)]
    print("\n".join(lines), flush=True)
    rows: list[RealRow] = []
    for q in plan.steps:
        spec = plan.watched(q, plan.seeds[0])
        for row in rows_of(spec, measure(spec), plan.within):
            rows.append(row)
            lines.append(line(row))
            print(lines[-1], flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    name = f"table2-{plan.kind}-{plan.scheme}-real{'-quick' if plan.quick else ''}"
    (args.out / f"{name}.md").write_text("\n".join(lines) + "\n")
    report = {"machine": facts, "rows": [vars(row) for row in rows]}
    for path in (args.out / f"{name}.json", args.json):
        if path is not None:
            path.write_text(json.dumps(report, indent=2) + "\n")
    return 0


def line(row: RealRow) -> str:
    start = f"| {100 * row.target_auc:g}% | {row.algorithm} | {row.Q} "
    if row.comp_min is None or row.comm_min is None or row.comm_modelled_min is None:
        return start + "| not reached | | | | | |"
    sent = ((row.bytes_exchange or 0) + (row.bytes_open or 0)) / 1e6
    times = (60 * row.comp_min, 60 * row.comm_min, 60 * row.comm_modelled_min)
    told = " | ".join(f"{value:.4f}" for value in times)
    return start + f"| {row.R} | {told} | {sent:.2f} | {row.messages} |"


if __name__ == "__main__":
    party(Path(sys.argv[1]), sys.argv[2])
