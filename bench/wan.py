"""Real parties over slow lines: private intersection, default training and prediction, each to its end.

Two `securefed party` processes whose only way to each other is a relay that shapes both directions: a rate
that all connections share, and a latency for every byte. Nothing is set for the line: patience, pieces and
everything else have their defaults.

    seconds          from the start of the processes to the end of the last
    longest silence  between two lines of progress that differ, at the party that said least
    interruptions    attempts that began again; the bar is none
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench import machine
from bench.chaos_parties import COMMAND, Fleet, Scene
from bench.fleet import ROOT
from securefed.errors import SettingError

HOST = "127.0.0.1"
PIECE = 4096
SILENCE = 60.0
"""Seconds without a word that a user has to bear at most."""


@dataclass(frozen=True)
class Profile:
    """A line: bits a second in each direction, seconds one way; and the rounds of a training over it."""

    name: str
    rate: float
    latency: float
    rounds: int


PROFILES = (
    Profile("10 Mbit/s, 50 ms", 10e6, 0.025, 24),
    Profile("1 Mbit/s, 300 ms", 1e6, 0.150, 24),
    Profile("100 kbit/s", 100e3, 0.010, 3),
)
SCENE = Scene("wan", 2, {"alignment": "psi", "scheme": "ckks"}, rows=400, columns=5, patience=120, wait=600)


class Way:
    """One direction of a line: what is sent waits for its turn, then travels."""

    def __init__(self, profile: Profile) -> None:
        self._rate, self._latency = profile.rate / 8, profile.latency
        self.free = 0.0
        self.bytes = 0

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        landing = asyncio.create_task(self._land(under_way, writer))
        clock = asyncio.get_running_loop().time
        while data := await reader.read(PIECE):
            self.bytes += len(data)
            self.free = max(self.free, clock()) + len(data) / self._rate
            under_way.put_nowait((self.free + self._latency, data))
            await asyncio.sleep(self.free - clock())
        under_way.put_nowait((0.0, b""))
        await landing

    async def _land(
        self, under_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        while True:
            due, data = await under_way.get()
            if not data:
                writer.close()
                return
            await asyncio.sleep(due - asyncio.get_running_loop().time())
            writer.write(data)
            await writer.drain()


class Line:
    """Between two parties: a port for each of them at which it finds the other."""

    def __init__(self, profile: Profile) -> None:
        self.ways = (Way(profile), Way(profile))
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def port(self, target: int, direction: int) -> int:
        """Where the party finds the other, which listens at `target`."""
        return asyncio.run_coroutine_threadsafe(self._open(target, direction), self._loop).result()

    async def _open(self, target: int, direction: int) -> int:
        there, back = self.ways[direction], self.ways[1 - direction]

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                inner_reader, inner_writer = await asyncio.open_connection(HOST, target, limit=PIECE)
            except OSError:
                writer.close()
                return
            ends = (there.carry(reader, inner_writer), back.carry(inner_reader, writer))
            await asyncio.gather(*ends, return_exceptions=True)

        server = await asyncio.start_server(relay, HOST, 0, limit=PIECE)
        return int(server.sockets[0].getsockname()[1])


@dataclass(frozen=True)
class Said:
    """What a process said, and when."""

    code: int
    seconds: float
    lines: list[tuple[float, str]]

    @property
    def silence(self) -> float:
        """The longest time between two lines that differ."""
        moments, last = [0.0], ""
        for moment, line in self.lines:
            if line != last:
                moments.append(moment)
                last = line
        return max(b - a for a, b in zip(moments, [*moments[1:], self.seconds], strict=True))


@dataclass(frozen=True)
class Row:
    """One command of both parties over one line."""

    line: str
    command: str
    seconds: float
    sent_mb: float
    longest_silence: float
    interruptions: int
    ended: bool
    note: str = ""


def together(fleet: Fleet, words: dict[str, list[str]]) -> dict[str, Said]:
    """The same command at all parties at the same time."""
    begun = time.monotonic()
    processes = {
        name: subprocess.Popen(
            [*COMMAND, *more], cwd=ROOT, env=fleet.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for name, more in words.items()
    }  # fmt: skip
    heard: dict[str, Said] = {}

    def listen(name: str, process: subprocess.Popen[str]) -> None:
        lines = [(time.monotonic() - begun, line.strip()) for line in process.stdout or ()]
        heard[name] = Said(process.wait(), time.monotonic() - begun, lines)

    threads = [threading.Thread(target=listen, args=pair) for pair in processes.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return heard


def measure(profile: Profile, folder: Path, seed: int) -> list[Row]:
    line = Line(profile)
    scene = replace(SCENE, run={**SCENE.run, "rounds": profile.rounds})
    fleet = Fleet(scene, folder, seed, relay=lambda pair, port: line.port(port, scene.names.index(pair[0])))
    try:
        files = {name: str(folder / name / "party.toml") for name in scene.names}
        train = _row(profile, "party", line, together(fleet, {n: ["party", f] for n, f in files.items()}))
        rows = [replace(train, note=_quality(fleet))] if train.ended else [train]
        if train.ended:
            new = {name: fleet.new_rows(name, 100) for name in scene.names}
            words = {name: ["predict", file, "--rows", str(new[name])] for name, file in files.items()}
            rows.append(_row(profile, "predict", line, together(fleet, words)))
        return rows
    finally:
        fleet.close()


def _row(profile: Profile, command: str, line: Line, heard: dict[str, Said]) -> Row:
    sent, failed = sum(way.bytes for way in line.ways), [s for s in heard.values() if s.code]
    for way in line.ways:
        way.bytes = 0
    again = sum("going back" in text for said in heard.values() for _, text in said.lines)
    why = failed[0].lines[-1][1] if failed and failed[0].lines else ""
    return Row(
        profile.name,
        command,
        round(max(said.seconds for said in heard.values()), 1),
        round(sent / 1e6, 2),
        round(max(said.silence for said in heard.values()), 1),
        again,
        not failed,
        why,
    )


def _quality(fleet: Fleet) -> str:
    found = fleet.result(fleet.scene.names[-1])["holdout"]
    return f"held-out {found['metric']} {found['value']:.3f}" if found else ""


def bars(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """As the other commands' bars."""
    found = (
        ("commands that did not end", float(sum(not row.ended for row in rows)), 0.0),
        ("interruptions", float(sum(row.interruptions for row in rows)), 0.0),
        ("longest silence, s", max(row.longest_silence for row in rows), SILENCE),
    )
    return [
        {"name": name, "value": value, "bar": bar, "better": "less", "met": value <= bar, "note": ""}
        for name, value, bar in found
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--line", action="append", metavar="NAME", help="only this one; may be repeated")


def chosen(args: argparse.Namespace) -> list[Profile]:
    known = {profile.name: profile for profile in PROFILES}
    names = args.line or [profile.name for profile in PROFILES][: 1 if args.quick else None]
    for name in names:
        if name not in known:
            raise SettingError(f"line: {name!r} given, {', '.join(known)} are allowed")
    return [replace(known[name], rounds=2) if args.quick else known[name] for name in names]


def run(args: argparse.Namespace) -> int:
    facts, rows = machine.describe(()), []
    print(f"{'line':<20}{'command':<10}{'seconds':>9}{'sent MB':>9}{'silence s':>11}{'again':>7}  end")
    for profile in chosen(args):
        with tempfile.TemporaryDirectory(prefix="securefed-wan-") as folder:
            for row in measure(profile, Path(folder), args.seed):
                rows.append(row)
                print(
                    f"{row.line:<20}{row.command:<10}{row.seconds:>9.1f}{row.sent_mb:>9.2f}"
                    f"{row.longest_silence:>11.1f}{row.interruptions:>7}  {'yes' if row.ended else 'NO'}"
                    f"  {row.note}",
                    flush=True,
                )
    found = bars(rows)
    for bar in found:
        print(f"{bar['name']:<28}{bar['value']:>8g}  bar {bar['bar']:g}  {'met' if bar['met'] else 'MISSED'}")
    if args.json is not None:
        written = {"machine": facts, "rows": [asdict(row) for row in rows], "bars": found}
        args.json.write_text(json.dumps(written, indent=2) + "\n")
    return 0 if all(bar["met"] for bar in found) else 1
