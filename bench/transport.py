"""How fast messages of 64 MiB get from one process to another: our carrier beside a bare grpcio unary call.

Both over mutual TLS on loopback, in turns, in one run: the payload goes to a second process and a few bytes
come back. The bare call is what grpcio does with one large message and no limit on its size; the same without
TLS is beside it. `with transcript` adds what a link does with every message wherever it runs: its SHA-256 and
a look at its contents, at both ends. Small messages to and fro say how many round trips a second there are,
since every round of a training is made of them; transcripts are kept, as in a run.

`python -m bench.transport` is the second process; it is started by the first.
"""

from __future__ import annotations

import argparse
import json
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from bench import machine
from bench.ports import free_ports
from securefed.transport import Link, Message, Transcript
from securefed.transport.network import Certificate, Endpoint, Identity, Peer
from securefed.transport.network.core import grpc

MIB = 1 << 20
BAR = 0.8
TRIPS_BAR = 500
TRIPS, SMALL = 1000, 200
"""Round trips of messages of so many bytes."""
KINDS = ("block", "silent-block", "taken", "ping", "pong")
METHOD = "/bench.Bare/Take"
HOST = "127.0.0.1"
WARM = 50


@dataclass(frozen=True)
class Row:
    """One way to move the payload. `ratio` is the rate over that of the bare call."""

    way: str
    mib: int
    seconds: float
    mib_per_s: float
    ratio: float
    bar: float | None

    @property
    def verdict(self) -> str:
        return "" if self.bar is None else "pass" if self.ratio >= self.bar else "MISSED"


class Silent(Transcript):
    """A transcript that takes no note, so that the carrier is measured alone."""

    def message(self, event: str, message: Message, phase: str, *_: object, **__: object) -> None:
        return None


async def receiver(link: Link) -> None:
    """Take blocks of both kinds and say so, until an empty one."""
    transcript, silent = link.transcript, Silent(link.name)
    for turn in range(sys.maxsize):
        link.transcript = silent
        block = await link.receive("silent-block", "sender", round=turn)
        link.send("sender", "taken", b"", round=turn)
        link.transcript = transcript
        if not block:
            break
        await link.receive("block", "sender", round=turn)
        link.send("sender", "taken", b"", round=turn)
    for turn in range(TRIPS + WARM):
        link.send("sender", "pong", await link.receive("ping", "sender", round=turn), round=turn)


def sender(
    bare: Mapping[str, Callable[..., bytes]], payload: bytes, repeats: int, taken: dict[str, list[float]]
) -> Callable[[Link], Any]:
    async def program(link: Link) -> None:
        transcript, silent = link.transcript, Silent(link.name)
        for turn in range(repeats + 1):
            times: dict[str, float] = {}
            for way, call in bare.items():
                begin = perf_counter()
                call(payload, wait_for_ready=True)
                times[way] = perf_counter() - begin
            for way, kind, notes in (
                ("carrier", "silent-block", silent),
                ("with transcript", "block", transcript),
            ):
                link.transcript = notes
                begin = perf_counter()
                link.send("receiver", kind, payload, round=turn)
                await link.receive("taken", "receiver", round=turn)
                times[way] = perf_counter() - begin
            if turn:  # the first one warms up
                for way, spent in times.items():
                    taken.setdefault(way, []).append(spent)
        link.transcript = silent
        link.send("receiver", "silent-block", b"", round=repeats + 1)
        await link.receive("taken", "receiver", round=repeats + 1)
        link.transcript = transcript
        small = secrets.token_bytes(SMALL)
        for turn in range(TRIPS + WARM):
            if turn == WARM:
                begin = perf_counter()
            link.send("receiver", "ping", small, round=turn)
            await link.receive("pong", "receiver", round=turn)
        taken["trips"] = [perf_counter() - begin]

    return program


def measure(mib: int, repeats: int) -> tuple[list[Row], float]:
    """Start the second process, move the payload in turns, and compare; and small round trips a second."""
    identity, other = Identity.generate("sender"), Identity.generate("receiver")
    ports = free_ports(4)
    payload = secrets.token_bytes(mib * MIB)
    taken: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        other.save(folder)
        (Path(folder) / "peer.pem").write_bytes(identity.certificate.pem)
        (Path(folder) / "settings.json").write_text(json.dumps({"mib": mib}))
        command = [sys.executable, "-m", "bench.transport", folder, *map(str, ports)]
        child = subprocess.Popen(command, cwd=Path(__file__).parent.parent)
        options = [*NO_LIMIT, ("grpc.ssl_target_name_override", "receiver")]
        trust = grpc.ssl_channel_credentials(
            other.certificate.pem, identity.key_pem(), identity.certificate.pem
        )
        try:
            with (
                grpc.secure_channel(f"{HOST}:{ports[2]}", trust, options) as channel,
                grpc.insecure_channel(f"{HOST}:{ports[3]}", NO_LIMIT) as plain,
            ):
                bare = {
                    "bare unary call": channel.unary_unary(METHOD),
                    "same, without TLS": plain.unary_unary(METHOD),
                }
                peers = {"receiver": Peer(f"{HOST}:{ports[1]}", other.certificate)}
                program = sender(bare, payload, repeats, taken)
                with Endpoint(identity, listen=f"{HOST}:{ports[0]}", peers=peers) as endpoint:
                    endpoint.run(program, run="bench", kinds=KINDS, settings={"mib": mib})
        finally:
            child.terminate()
            child.wait()
    base, trips = median(taken["bare unary call"]), TRIPS / taken.pop("trips")[0]
    rows = [
        Row(
            way,
            mib,
            round(spent := median(times), 4),
            round(mib / spent, 1),
            round(base / spent, 3),
            BAR if way == "carrier" else None,
        )
        for way, times in taken.items()
    ]
    return rows, trips


NO_LIMIT = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def second_process(folder: str, ours: int, theirs: int, bare: int, plain: int) -> None:
    identity = Identity.load(folder)
    certificate = Certificate.read(Path(folder) / "peer.pem")
    handler = grpc.unary_unary_rpc_method_handler(lambda data, _: len(data).to_bytes(8, "big"))
    server = grpc.server(ThreadPoolExecutor(2), options=NO_LIMIT)
    _, service, method = METHOD.split("/")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    pair = (identity.key_pem(), identity.certificate.pem)
    credentials = grpc.ssl_server_credentials([pair], certificate.pem, require_client_auth=True)
    server.add_secure_port(f"{HOST}:{bare}", credentials)
    server.add_insecure_port(f"{HOST}:{plain}")
    server.start()
    mib = json.loads((Path(folder) / "settings.json").read_text())["mib"]
    peers = {"sender": Peer(f"{HOST}:{ours}", certificate)}
    with Endpoint(identity, listen=f"{HOST}:{theirs}", peers=peers) as endpoint:
        endpoint.run(receiver, run="bench", kinds=KINDS, settings={"mib": mib})
    server.stop(None).wait()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mib", type=int, default=64, help="size of a message; default %(default)s")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when the bar is missed")


def run(args: argparse.Namespace) -> int:
    facts = machine.describe(("grpcio", "cryptography"))
    for name, fact in facts.items():
        print(f"{name:<13}{fact}")
    rows, trips = measure(args.mib, 3 if args.quick else 9)
    print(f"\n{'way':<18}{'MiB':>6}{'seconds':>10}{'MiB/s':>9}{'ratio':>8}{'bar':>6}  verdict")
    for row in rows:
        bar = "" if row.bar is None else f"{row.bar:g}"
        figures = f"{row.mib:>6}{row.seconds:>10.3f}{row.mib_per_s:>9.0f}{row.ratio:>8.2f}{bar:>6}"
        print(f"{row.way:<18}{figures}  {row.verdict}".rstrip())
    print(f"\n{trips:.0f} round trips a second of {SMALL} bytes; bar {TRIPS_BAR}")
    found = bars(rows, trips)
    if args.json is not None:
        table = {"machine": facts, "rows": [asdict(row) for row in rows], "trips": trips, "bars": found}
        args.json.write_text(json.dumps(table, indent=2) + "\n")
    return 1 if args.strict and not all(bar["met"] for bar in found) else 0


def bars(rows: Sequence[Row], trips: float) -> list[dict[str, Any]]:
    ratio = next(row.ratio for row in rows if row.way == "carrier")
    return [
        {
            "name": "large messages",
            "value": ratio,
            "bar": BAR,
            "better": "more",
            "met": ratio >= BAR,
            "note": "rate over that of a bare unary call",
        },
        {
            "name": "small round trips a second",
            "value": round(trips, 1),
            "bar": TRIPS_BAR,
            "better": "more",
            "met": trips >= TRIPS_BAR,
            "note": "two processes, mutual TLS on loopback",
        },
    ]


if __name__ == "__main__":
    second_process(sys.argv[1], *map(int, sys.argv[2:]))
