"""Altered transcripts for `securefed audit` and `securefed verify`: any file gives a verdict.

Each alteration changes, drops, repeats or swaps lines, values and bytes of the transcripts of an honest run.
The chain of hashes is made to fit again half of the time, so that the claims behind it are reached too.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from securefed.transport.transcript import FIELDS, Entry, Transcript, canonical

VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**63, 10**30, 10**400, 1.5, float("inf"), float("nan"), "", "x" * 50, "\x1b[31m",
    [], {}, [[]], [1, 2], {"a": 1}, "plain", "ckks", "nothing", ["a", "b"],
)  # fmt: skip
Lines = list[Any]


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from _places(inner, (*path, key))


def _change(line: Any, chance: random.Random) -> None:
    """Change or drop one value somewhere in a line."""
    places = list(_places(line))
    if not places:
        return
    *path, last = chance.choice(places)
    for key in path:
        line = line[key]
    if chance.random() < 0.25:
        del line[last]
    else:
        line[last] = copy.deepcopy(chance.choice(VALUES))


def alter(lines: Lines, chance: random.Random) -> Lines:
    """Return the lines of a transcript with one to four alterations."""
    lines = copy.deepcopy(lines)
    for _ in range(chance.choice((1, 1, 2, 4))):
        if not lines:
            break
        early = chance.random() < 0.5  # the header and the agreement are read by everything
        place, other = (
            chance.randrange(min(3, len(lines)) if early else len(lines)),
            chance.randrange(len(lines)),
        )
        kind = chance.random()
        if kind < 0.1:
            del lines[place]
        elif kind < 0.15:
            lines.insert(place, copy.deepcopy(lines[other]))
        elif kind < 0.2:
            lines[place], lines[other] = lines[other], lines[place]
        else:
            _change(lines[place], chance)
    return _chained(lines) if chance.random() < 0.5 else lines


def _chained(lines: Lines) -> Lines:
    """Make the chain fit, as somebody would who alters a transcript with care."""
    try:
        made = Transcript(lines[0]["party"], lines[0]["run"])
        for line in lines[1:]:
            if line.keys() == FIELDS.keys():
                made._append(Entry(**{**line, "chain": ""}))
        rows = [{**vars(entry)} for entry in made.entries]
        return [lines[0], *rows, {"end": len(rows), "chain": made.head}]
    except (TypeError, ValueError, KeyError, AttributeError, IndexError):
        return lines


def write_altered(folder: Path, honest: dict[str, bytes], chance: random.Random) -> None:
    """Write transcripts, one of them altered; now and then bytes are altered, and not values."""
    victim = chance.choice(sorted(honest))
    for name, data in honest.items():
        if name == victim and chance.random() < 0.15:
            blob = bytearray(data)
            for _ in range(chance.randrange(1, 5)):
                blob[chance.randrange(len(blob))] = chance.randrange(256)
            data = bytes(blob[: chance.randrange(len(blob))]) if chance.random() < 0.3 else bytes(blob)
        elif name == victim:
            lines = alter([json.loads(line) for line in data.splitlines()], chance)
            data = b"".join(canonical(line) + b"\n" for line in lines)
        (folder / name).write_bytes(data)
