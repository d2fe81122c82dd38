"""`securefed plan` beside measured runs: how far off is it?

For each protocol the run is forecast as the command does it. Then it is run in this process, every party on
its own clock (securefed.transport.message), over the same network. Both are seconds of computation and
communication on the critical path, for the same number of rounds, by the processor's clock where a party has
one worker. Bytes have to agree to the last one; times within a factor of 1.5.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np

from bench import machine
from securefed import Blind, FedBCD, GeneralisedLinear, OwnGradient, Party, Simulation, TransferLearner
from securefed.api import federated
from securefed.assembly import LinearAssembly, TransferAssembly
from securefed.assembly.base import HELPER, KEY_HOLDER
from securefed.crypto import SCHEMES, generate
from securefed.engine import get_engine
from securefed.plan.planner import RoundsModel, estimates
from securefed.plan.rehearsal import Scenario
from securefed.protocols.agreement import TrustWarning
from securefed.protocols.own_gradient.ledger import LedgerWarning
from securefed.protocols.schedules import held_out
from securefed.settings import LinearSettings, TransferSettings
from securefed.transport.link import run_local

BAR = 1.5
TWO = {"shop": 20, "bank": 10}
FOUR = {"shop": 8, "mill": 8, "farm": 8, "bank": 8}
WIDE = {"shop": 150, "bank": 149}
BLIND, BLIND_PAILLIER = Blind(), Blind(scheme="paillier")
OPEN, CKKS = OwnGradient(scheme="paillier"), OwnGradient()


@dataclass(frozen=True)
class Case:
    title: str
    columns: dict[str, int]
    protection: Blind | OwnGradient
    rounds: int
    local_steps: int = 5
    transfer: bool = False
    holdout: float = 0.0
    hidden: int | None = None


CASES = (
    Case("ckks, reveals nothing", TWO, BLIND, 24),
    Case("ckks, reveals nothing", TWO, BLIND, 24, holdout=0.2),
    Case("ckks, reveals nothing", WIDE, BLIND, 24),
    Case("paillier, reveals nothing", TWO, BLIND_PAILLIER, 3),
    Case("paillier, own gradients", TWO, OPEN, 4),
    Case("ckks, own gradients", TWO, CKKS, 20),
    Case("ckks, reveals nothing", FOUR, BLIND, 24),
    Case("paillier, reveals nothing", FOUR, BLIND_PAILLIER, 3),
    Case("paillier, own gradients", FOUR, OPEN, 4),
    Case("ckks, own gradients", FOUR, CKKS, 20),
    Case("paillier, transfer", TWO, OPEN, 2, transfer=True, hidden=4),
    Case("ckks, transfer", TWO, CKKS, 4, transfer=True, hidden=16),
    Case("ckks, blind transfer", TWO, BLIND, 3, transfer=True),
)


@dataclass(frozen=True)
class Row:
    """Seconds of a whole run, and bytes."""

    protocol: str
    parties: int
    rounds: int
    planned_bytes: int
    measured_bytes: int
    planned_computation: float
    measured_computation: float
    planned_communication: float
    measured_communication: float
    ratio: float
    bar: float

    @property
    def verdict(self) -> str:
        good = 1 / self.bar <= self.ratio <= self.bar and self.planned_bytes == self.measured_bytes
        return "pass" if good else "MISSED"


def measure(case: Case, *, rows: int, batch: int, key_bits: int, network: str, engine: str, seed: int) -> Row:
    """Forecast it, and run it."""
    protection, blind = replace(case.protection, key_bits=key_bits), isinstance(case.protection, Blind)
    if isinstance(protection, OwnGradient):
        size = None if case.transfer else batch
        protection = replace(protection, batch_size=size, allow_determined=case.transfer)
    settings: dict[str, Any] = {"protection": protection, "rounds": case.rounds, "seed": seed}
    settings["algorithm"] = FedBCD(case.local_steps)
    rows = batch if case.transfer else rows
    assembly: LinearAssembly | TransferAssembly
    if case.transfer:
        settings["hidden"] = case.hidden
        assembly = TransferAssembly(TransferSettings(**settings))
    else:
        settings["holdout"] = case.holdout
        assembly = LinearAssembly(LinearSettings(**settings))
    columns = {name: assembly.columns(count) for name, count in case.columns.items()}
    held = len(held_out(rows, case.holdout, seed)[1])
    scenario = Scenario(
        assembly.settings, columns, rows, key_bits, HELPER if blind else KEY_HOLDER, holdout_rows=held
    )
    with get_engine(engine, assembly.settings.scheme) as mapper:
        rounds = RoundsModel.through(case.rounds, case.local_steps)
        planned = estimates(scenario, None, network, rounds, mapper.workers)[0]
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(rows, sum(case.columns.values()))).clip(-4, 4)
    labels = features @ rng.normal(size=features.shape[1]) > 0
    places = np.cumsum([0, *case.columns.values()])
    parties = [
        Party(
            name,
            features[:, places[k] : places[k + 1]],
            labels=labels if k == len(case.columns) - 1 else None,
            ids=range(rows) if case.transfer else None,
            transform="none",  # as many columns as there are
        )
        for k, name in enumerate(case.columns)
    ]
    keys: dict[str, Any] = {}
    if not blind:
        holders = list(case.columns) if len(case.columns) == 2 else [KEY_HOLDER]
        kind_of_keys = SCHEMES[assembly.settings.scheme].opens
        keys = {"keys": {name: generate(kind_of_keys, key_bits=key_bits) for name in holders}}
    kind: Any = TransferLearner if case.transfer else GeneralisedLinear
    model = kind(**settings, simulation=Simulation(network=network, engine=engine, progress=False))
    timer = time.thread_time if engine == "serial" else time.perf_counter
    with warnings.catch_warnings(), patch.object(federated, "run_local", partial(run_local, timer=timer)):
        warnings.simplefilter("ignore", LedgerWarning)
        warnings.simplefilter("ignore", TrustWarning)
        model.fit(parties, **keys)
    result = model.result_
    sent = sum(result.bytes(None).values())
    return Row(
        case.title,
        len(case.columns),
        result.rounds,
        planned.total_bytes,
        int(sent),
        round(planned.total_computation, 3),
        round(result.computation, 3),
        round(planned.total_communication, 3),
        round(result.communication, 3),
        round(planned.total / (result.computation + result.communication), 3),
        BAR,
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--network", default="lan", help="profile of the clock; default %(default)s")
    parser.add_argument("--engine", default="serial", help="of every party; default %(default)s")
    parser.add_argument("--key-bits", type=int, default=3072, help="of Paillier keys; default %(default)s")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when the bar is missed")


def run(args: argparse.Namespace) -> int:
    facts = machine.describe(("gmpy2", "tenseal", "numpy"))
    facts["load"] = " ".join(f"{value:.1f}" for value in os.getloadavg())
    for name, fact in facts.items():
        print(f"{name:<13}{fact}")
    print(f"\nseconds of the whole run, as planned and as measured; network {args.network}")
    print(
        f"{'protocol':<27}{'parties':>8}{'rounds':>7}{'bytes':>12}{'comp plan':>11}{'comp':>8}"
        f"{'comm plan':>11}{'comm':>8}{'ratio':>7}{'bar':>5}  verdict"
    )
    rows = []
    for case in CASES:
        row = measure(
            case,
            rows=400,
            batch=32 if args.quick else 128,
            key_bits=args.key_bits,
            network=args.network,
            engine=args.engine,
            seed=args.seed,
        )
        rows.append(row)
        exact = "" if row.planned_bytes == row.measured_bytes else f" (planned {row.planned_bytes:,})"
        print(
            f"{row.protocol:<27}{row.parties:>8}{row.rounds:>7}{row.measured_bytes:>12,}"
            f"{row.planned_computation:>11.2f}{row.measured_computation:>8.2f}"
            f"{row.planned_communication:>11.3f}{row.measured_communication:>8.3f}"
            f"{row.ratio:>7.2f}{row.bar:>5g}  {row.verdict}{exact}",
            flush=True,
        )
    if args.json is not None:
        written = {"machine": facts, "rows": [asdict(row) for row in rows]}
        args.json.write_text(json.dumps(written, indent=2) + "\n")
    return 1 if args.strict and any(row.verdict == "MISSED" for row in rows) else 0
