"""Lines between parties: everything arrives, in order, and silence is counted as a user would."""

from __future__ import annotations

import argparse
import asyncio
import socket
import threading

import pytest

from bench.wan import PROFILES, Line, Profile, Row, Said, bars, chosen
from securefed.errors import SettingError


def test_a_line_carries_everything_in_order_both_ways() -> None:
    sent = bytes(range(256)) * 400

    def echo(server: socket.socket) -> None:
        end, _ = server.accept()
        with end:
            while data := end.recv(1 << 16):
                end.sendall(data)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=echo, args=(server,), daemon=True).start()
        line = Line(Profile("quick", 1e12, 0.0, 1))
        with socket.create_connection(("127.0.0.1", line.port(server.getsockname()[1], 0))) as end:
            writing = threading.Thread(target=end.sendall, args=(sent,))
            writing.start()
            back = b""
            while len(back) < len(sent):
                back += end.recv(1 << 16)
            writing.join()
    assert back == sent
    assert [way.bytes for way in line.ways] == [len(sent), len(sent)]


def test_connections_share_the_rate() -> None:
    """A piece leaves when all before it have left, whichever connection they came on."""

    async def turns() -> list[float]:
        way = Line(Profile("slow", 8e9, 0.0, 1)).ways[0]
        readers = [asyncio.StreamReader() for _ in range(2)]
        ends = []
        for reader in readers:
            reader.feed_data(bytes(4096))
            reader.feed_eof()
        for reader in readers:
            await way.carry(reader, Closed())  # type: ignore[arg-type]
            ends.append(way.free)
        return ends

    first, second = asyncio.run(turns())
    assert second - first >= 4096 / 1e9


class Closed:
    def write(self, data: bytes) -> None: ...
    def close(self) -> None: ...
    async def drain(self) -> None: ...


def test_lines_that_say_the_same_again_are_silence() -> None:
    lines = [(1.0, "waiting"), (5.0, "waiting"), (9.0, "12 kB of 40"), (11.0, "done")]
    assert Said(0, 12.0, lines).silence == 8.0


def test_bars() -> None:
    fine = Row("a", "party", 10.0, 1.0, 20.0, 0, True)
    assert all(bar["met"] for bar in bars([fine]))
    bad = Row("a", "predict", 10.0, 1.0, 90.0, 2, False)
    assert not any(bar["met"] for bar in bars([fine, bad]))


def test_which_lines() -> None:
    every = chosen(argparse.Namespace(line=None, quick=False))
    assert every == list(PROFILES)
    with pytest.raises(SettingError, match="'dial-up' given"):
        chosen(argparse.Namespace(line=["dial-up"], quick=False))
