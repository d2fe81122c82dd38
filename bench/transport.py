"""How fast messages of 64 MiB get from one process to another: our carrier beside a bare TLS connection.

Both over mutual TLS on loopback, in turns, in one run: the payload goes to a second process and a few bytes
come back. The bare connection sends the payload in one go and reads it into memory of the right size, which
no receiver can do with a message that it does not trust. `with transcript` adds what a link does with every
message wherever it runs: its SHA-256 and a look at its contents, at both ends. Small messages to and fro say
how many round trips a second there are, since every round of a training is made of them; transcripts are
kept, as in a run.

`python -m bench.transport` is the second process; it is started by the first.
"""

from __future__ import annotations

import argparse
import json
import secrets
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from bench import machine
from bench.ports import free_ports
from securefed.transport.identity import Certificate, Identity, Peer
from securefed.transport.link import Link
from securefed.transport.message import Message
from securefed.transport.network.calls import contexts
from securefed.transport.network.endpoint import Endpoint
from securefed.transport.transcript import Transcript

MIB = 1 << 20
BAR = 0.4
TRIPS_BAR = 500
TRIPS, SMALL = 1000, 200
"""Round trips of messages of so many bytes."""
KINDS = ("block", "silent-block", "taken", "ping", "pong")
HOST = "127.0.0.1"
PASSPHRASE = "keys of one bench"  # noqa: S105
WARM = 50


@dataclass(frozen=True)
class Row:
    """One way to move the payload. `ratio` is the rate over that of the bare connection."""

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
    bare: ssl.SSLSocket, payload: bytes, repeats: int, taken: dict[str, list[float]]
) -> Callable[[Link], Any]:
    async def program(link: Link) -> None:
        transcript, silent = link.transcript, Silent(link.name)
        for turn in range(repeats + 1):
            times: dict[str, float] = {}
            begin = perf_counter()
            bare.sendall(payload)
            bare.recv(1)
            times["bare TLS"] = perf_counter() - begin
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
    ports = free_ports(3)
    payload = secrets.token_bytes(mib * MIB)
    taken: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        other.save(folder, PASSPHRASE)
        (Path(folder) / "peer.pem").write_bytes(identity.certificate.pem)
        (Path(folder) / "settings.json").write_text(json.dumps({"mib": mib}))
        command = [sys.executable, "-m", "bench.transport", folder, *map(str, ports)]
        listener = socket.create_server((HOST, ports[2]))
        child = subprocess.Popen(command, cwd=Path(__file__).parent.parent)
        peers = {"receiver": Peer(f"{HOST}:{ports[1]}", other.certificate)}
        server, _ = contexts(identity, peers)
        try:
            with server.wrap_socket(listener.accept()[0], server_side=True) as bare:
                program = sender(bare, payload, repeats, taken)
                with Endpoint(identity, listen=f"{HOST}:{ports[0]}", peers=peers) as endpoint:
                    endpoint.run(program, run="bench", kinds=KINDS, settings={"mib": mib})
        finally:
            child.terminate()
            child.wait()
            listener.close()
    base, trips = median(taken["bare TLS"]), TRIPS / taken.pop("trips")[0]
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


def second_process(folder: str, ours: int, theirs: int, bare: int) -> None:
    identity = Identity.load(folder, PASSPHRASE)
    mib = json.loads((Path(folder) / "settings.json").read_text())["mib"]
    peers = {"sender": Peer(f"{HOST}:{ours}", Certificate.read(Path(folder) / "peer.pem"))}
    plain = socket.create_connection((HOST, bare))
    connection = contexts(identity, peers)[1]["sender"].wrap_socket(plain)
    threading.Thread(target=take, args=(connection, mib * MIB), daemon=True).start()
    with Endpoint(identity, listen=f"{HOST}:{theirs}", peers=peers) as endpoint:
        endpoint.run(receiver, run="bench", kinds=KINDS, settings={"mib": mib})


def take(connection: ssl.SSLSocket, size: int) -> None:
    """Read payloads of that size until the other end closes, and answer each with a byte."""
    data, count = memoryview(bytearray(size)), 0
    while arrived := connection.recv_into(data[count:]):
        count += arrived
        if count == size:
            connection.sendall(b"1")
            count = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mib", type=int, default=64, help="size of a message; default %(default)s")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when the bar is missed")


def run(args: argparse.Namespace) -> int:
    facts = machine.describe(("cryptography",))
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
            "note": "rate over that of a bare TLS connection",
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
