"""Calls or one bidirectional stream: what grpcio gives with each, bare, between two processes, mutual TLS.

Small messages to and fro (round trips a second), and 64 MiB in pieces of several sizes, on a client stream
and on a bidirectional one. docs/architecture.md, "Between processes", says why calls are used.

`python -m bench.streams` is the second process; it is started by the first.
"""

from __future__ import annotations

import argparse
import json
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from time import perf_counter
from typing import Any

from bench import machine
from bench.fleet import ROOT
from bench.ports import free_ports
from securefed.transport.network import Certificate, Identity
from securefed.transport.network.core import grpc

SERVICE, HOST = "bench.Streams", "127.0.0.1"
NO_LIMIT = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
TRIPS, MIB = 600, 1 << 20
PIECES = (64 << 10, 256 << 10, MIB, 3 * MIB)
MORE, LAST = b"\x00", b"\x01"
"""The first byte of a piece: only the last of a message is answered."""


@dataclass(frozen=True)
class Row:
    """What was moved; `calls` by unary calls or a client stream, `stream` by a bidirectional one."""

    what: str
    calls: float
    stream: float


class Both:
    """The calling end of a bidirectional stream."""

    def __init__(self, method: Callable[[Iterator[bytes]], Iterator[bytes]]) -> None:
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._answers = method(iter(self._queue.get, None))

    def send(self, pieces: list[bytes]) -> None:
        for piece in pieces:
            self._queue.put(piece)
        next(self._answers)

    def close(self) -> None:
        self._queue.put(None)


def measure(repeats: int) -> list[Row]:
    """Start the second process, and try both ways in turns."""
    own, other = Identity.generate("caller"), Identity.generate("called")
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as folder:
        other.save(folder)
        (Path(folder) / "peer.pem").write_bytes(own.certificate.pem)
        child = subprocess.Popen([sys.executable, "-m", "bench.streams", folder, str(port)], cwd=ROOT)
        trust = grpc.ssl_channel_credentials(other.certificate.pem, own.key_pem(), own.certificate.pem)
        options = [*NO_LIMIT, ("grpc.ssl_target_name_override", "called")]
        try:
            with grpc.secure_channel(f"{HOST}:{port}", trust, options) as channel:
                channel.unary_unary(f"/{SERVICE}/Whole")(LAST, wait_for_ready=True)
                return _rows(channel, repeats)
        finally:
            child.terminate()
            child.wait()


def _rows(channel: Any, repeats: int) -> list[Row]:
    whole = channel.unary_unary(f"/{SERVICE}/Whole")
    pieces, both = channel.stream_unary(f"/{SERVICE}/Pieces"), channel.stream_stream(f"/{SERVICE}/Both")
    small, large = LAST + secrets.token_bytes(200), secrets.token_bytes(64 * MIB)

    def trips(work: Callable[[], object]) -> float:
        begin = perf_counter()
        for _ in range(TRIPS):
            work()
        return TRIPS / (perf_counter() - begin)

    def rate(work: Callable[[], object]) -> float:
        begin = perf_counter()
        work()
        return 64 / (perf_counter() - begin)

    stream = Both(both)
    found = [(trips(lambda: whole(small)), trips(lambda: stream.send([small]))) for _ in range(repeats)]
    rows = [_row("round trips a second", found)]
    for size in PIECES:
        cut = [MORE + large[start : start + size] for start in range(0, len(large), size)]
        found = []
        for _ in range(repeats):
            found.append((rate(partial(pieces, iter(cut))), rate(partial(stream.send, [*cut, LAST]))))
        rows.append(_row(f"MiB/s in pieces of {size >> 10} KiB", found))
    stream.close()
    return rows


def _row(what: str, found: list[tuple[float, float]]) -> Row:
    calls, both = zip(*found, strict=True)
    return Row(what, round(median(calls), 1), round(median(both), 1))


def second_process(folder: str, port: int) -> None:
    identity, peer = Identity.load(folder), Certificate.read(Path(folder) / "peer.pem")
    handlers = {
        "Whole": grpc.unary_unary_rpc_method_handler(lambda _, __: LAST),
        "Pieces": grpc.stream_unary_rpc_method_handler(lambda pieces, _: sum(map(len, pieces)).to_bytes(8)),
        "Both": grpc.stream_stream_rpc_method_handler(
            lambda pieces, _: (LAST for piece in pieces if piece[:1] == LAST)
        ),
    }
    server = grpc.server(ThreadPoolExecutor(4), options=NO_LIMIT)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    pair = (identity.key_pem(), identity.certificate.pem)
    server.add_secure_port(
        f"{HOST}:{port}", grpc.ssl_server_credentials([pair], peer.pem, require_client_auth=True)
    )
    server.start()
    server.wait_for_termination()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Only what all commands have."""


def run(args: argparse.Namespace) -> int:
    facts = machine.describe(("grpcio",))
    rows = measure(1 if args.quick else 5)
    print(f"{'':<30}{'calls':>10}{'stream':>10}")
    for row in rows:
        print(f"{row.what:<30}{row.calls:>10.0f}{row.stream:>10.0f}")
    if args.json is not None:
        table = {"machine": facts, "rows": [asdict(row) for row in rows], "bars": []}
        args.json.write_text(json.dumps(table, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    second_process(sys.argv[1], int(sys.argv[2]))
