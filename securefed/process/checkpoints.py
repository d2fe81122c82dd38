"""To go on after an interruption: what a party keeps after each round, and what all parties conclude from it.

One file has all checkpoints of a run. The first record is the alignment: which of the party's rows are
common, in the agreed order. Then each round has one: parameters (shares in blind training), optimiser,
counters, sums, and what this round took. A record is on disk before the next round begins. `kept_rounds` says
which rounds count. When the file has doubled it is replaced by one with the rounds that count. Each record is
AES-256-GCM under a random key that lies beside the party's other keys. The file's header is authenticated
with each, so that a record of another party, run, start of the run or minor release is refused.

    magic 4 b"SFCP" | format 1 | header length 2 | header JSON | records
    record: length 8 | round 4 | whether an evaluation follows 1 | nonce 12 | ciphertext and tag
    encrypted: length 8 | JSON of facts and of the arrays' names, types and shapes | the arrays' bytes

Each party tells all others, in its hello, how many numbers its model has and which rounds it has checkpoints
of. Nothing of that is secret. From the same statements everybody draws the same conclusion (`decide`,
docs/operations.md). An *instance* is one start of a run from the beginning; the label party chooses its name.
In lockstep a kill cannot leave two parties more than a round apart: the next exchange needs all of them. With
a helper the other parties may be any number of rounds behind.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from secrets import token_bytes, token_hex
from typing import Any, Self

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from securefed.declare import Declared, choice, declared, flag, integer, optional, setting, word_or
from securefed.errors import DataError, SettingError
from securefed.files import (
    check_release,
    make_folder,
    minor_version,
    storage_error,
    write_atomically,
)
from securefed.protocols.schedules import Reason
from securefed.transport.message import Malformed

MAGIC = b"SFCP"
FORMAT = 5
PREFIX = struct.Struct(">4sBH")
HEAD = struct.Struct(">QI?")
LENGTH = struct.Struct(">Q")
NONCE, TAG = 12, 16
LEAST_GROWTH = 1 << 18
"""Bytes that a file grows by before it is written again."""
KEPT = 3
"""Rounds that are kept. Two would do: nobody can be more than one round ahead."""
KEPT_APART = 16
"""The same where parties may be further apart: the last so many rounds, and some older ones."""
ALIGNMENT = 0
"""The alignment's place among the rounds."""
POINTS = "points"
"""Names what each round took, in a checkpoint. A point begins with the number of its round, from 0."""
REMEDY = "put the file back from a backup, or start all parties with --restart"

ArrayMapping = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True, eq=False, repr=False)
class Checkpoint:
    """Arrays, and facts that JSON can hold."""

    arrays: ArrayMapping
    meta: Mapping[str, Any]

    def to_bytes(self) -> bytes:
        if odd := [name for name, array in self.arrays.items() if array.dtype.kind in "OV"]:
            raise TypeError(f"a checkpoint holds numbers and text, and {', '.join(odd)} are neither")
        forms = [[name, array.dtype.str, array.shape] for name, array in self.arrays.items()]
        front = json.dumps([dict(self.meta), forms], allow_nan=False).encode()
        return b"".join([LENGTH.pack(len(front)), front, *(each.tobytes() for each in self.arrays.values())])

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse what `to_bytes` made. Only the party's own bytes get here: they are authenticated."""
        place = LENGTH.size + LENGTH.unpack_from(data)[0]
        meta, forms = json.loads(data[LENGTH.size : place])
        arrays = {}
        for name, dtype, shape in forms:
            arrays[name] = np.ndarray(shape, dtype, data, place).copy()
            place += arrays[name].nbytes
        return cls(arrays, meta)


def kept_rounds(rounds: Iterable[int], *, lockstep: bool = True, questions: Iterable[int] = ()) -> set[int]:
    """Return which of these rounds stay on disk.

    Without lockstep: the last KEPT_APART ones, and for every power of two the last KEPT multiples of it. Two
    parties that are d rounds apart then have a round in common that is at most 2 d before the earlier one:
    the last multiple of the power of two from d on.

    `questions`: rounds that are followed by an evaluation. All parties store one before anybody answers, so
    the last two stay: nobody goes back behind scores that were told.
    """
    numbers = sorted(rounds)
    if lockstep or not numbers:
        return set(numbers[-KEPT:])
    evaluated = sorted(set(questions) & set(numbers))[-2:]
    kept, step = {*numbers[-KEPT_APART:], *evaluated}, 1
    while step <= numbers[-1]:
        kept.update([each for each in numbers if each % step == 0][-KEPT:])
        step *= 2
    return kept


@dataclass(frozen=True)
class Record:
    """A part of the file, from its head to the end of its ciphertext."""

    round: int
    question: bool
    data: bytes


class CheckpointStore:
    """One party's checkpoints of one run. `lockstep`: no party can be more than a round ahead of another."""

    def __init__(self, path: Path, key: bytes, *, party: str, run: str, lockstep: bool = True) -> None:
        self._path, self._cipher = path, AESGCM(key)
        self._party, self._run, self._lockstep = party, run, lockstep
        self._front, self._most = b"", 0
        """The header of the file, and the size that it is written again at, once that is known."""

    @property
    def aligned(self) -> bool:
        return self._path.exists()

    def write_alignment(self, checkpoint: Checkpoint) -> None:
        """A new beginning: what was there before belongs to another instance of the run."""
        header = {"party": self._party, "run": self._run, "release": minor_version(), "file": token_hex(16)}
        text = json.dumps(header, sort_keys=True).encode()
        self._front = PREFIX.pack(MAGIC, FORMAT, len(text)) + text
        make_folder(self._path.parent, private=True)
        self._replace([self._sealed(ALIGNMENT, checkpoint, False)])

    def read_alignment(self) -> Checkpoint:
        return self._opened(self._read()[0])

    def write(self, round_: int, checkpoint: Checkpoint, *, question: bool = False) -> None:
        """After `round_` rounds. `question`: an evaluation follows, see `kept_rounds`."""
        if not self._most:
            self._read()
            self._most = self._path.stat().st_size + LEAST_GROWTH
        size = self._append(self._sealed(round_, checkpoint, question))
        if size > self._most:
            self._shorten(self._read())

    def go_back(self, round_: int) -> None:
        """Forget the rounds after `round_`.

        They happen again with other random numbers. A party that keeps the old ones and is killed would go on
        from a share that the others' new shares do not fit.
        """
        if max(self.rounds(), default=0) > round_:
            self._shorten([record for record in self._read() if record.round <= round_])

    def _shorten(self, records: list[Record]) -> None:
        """Replace the file by one with those of these records that count, and what each round took."""
        first = self._opened(records[0])
        begun = Checkpoint(first.arrays, {**first.meta, POINTS: self._points(records)})
        kept = (record.data for record in self._kept(records).values())
        self._replace([self._sealed(ALIGNMENT, begun, False), *kept])

    def rounds(self) -> list[int]:
        """Rounds that the run can go on after, ascending."""
        return sorted(self._kept(self._read())) if self.aligned else []

    def read(self, round_: int) -> Checkpoint:
        """Return the checkpoint after `round_` rounds, with the points of all rounds up to there."""
        records = self._read()
        kept = self._kept(records)
        if round_ not in kept:
            raise DataError(f"{self._path}: no checkpoint of round {round_}; {REMEDY}")
        checkpoint = self._opened(kept[round_])
        points = [point for point in self._points(records) if point[0] < round_]
        return Checkpoint(checkpoint.arrays, {**checkpoint.meta, POINTS: points})

    def set_aside_damage(self) -> Path | None:
        """Drop what cannot be read, if something can; return the name that the file is kept under.

        The run then goes on from an older round that all parties have.
        """
        sound = []
        for record in self._read():
            with suppress(DataError):
                self._opened(record)
                sound.append(record.data)
        whole = self._path.read_bytes()
        if not sound or len(whole) == len(self._front) + sum(map(len, sound)):
            return None  # if none is good, it is the key, and nothing is touched
        damaged = self._damaged
        write_atomically(damaged, whole)
        self._replace(sound)
        return damaged

    def clear(self) -> None:
        self._most = 0
        for path in (self._path, self._damaged):
            path.unlink(missing_ok=True)

    def _kept(self, records: Iterable[Record]) -> dict[int, Record]:
        """Return the rounds that count. A run that went back has written later ones again."""
        there: dict[int, Record] = {}
        for record in records:
            there = {number: each for number, each in there.items() if number < record.round}
            there[record.round] = record
        there.pop(ALIGNMENT, None)
        questions = [number for number, record in there.items() if record.question]
        kept = kept_rounds(there, lockstep=self._lockstep, questions=questions)
        return {number: record for number, record in there.items() if number in kept}

    def _points(self, records: Iterable[Record]) -> list[list[Any]]:
        """Return what each round took. The last record of a round counts."""
        points: dict[int, list[Any]] = {}
        for record in records:
            points |= {point[0]: point for point in self._opened(record).meta.get(POINTS, ())}
        return [points[number] for number in sorted(points)]

    # The file

    @property
    def _damaged(self) -> Path:
        return self._path.with_name(f"{self._path.name}.damaged")

    def _replace(self, records: Iterable[bytes]) -> None:
        data = b"".join([self._front, *records])
        write_atomically(self._path, data)
        self._most = 2 * len(data) + LEAST_GROWTH

    def _append(self, record: bytes) -> int:
        """Write a record to disk; return the size of the file."""
        try:
            with self._path.open("ab") as file:
                file.write(record)
                file.flush()
                os.fdatasync(file.fileno())
                return file.tell()
        except OSError as error:
            raise storage_error(self._path, error) from None

    def _read(self) -> list[Record]:
        """Return the whole records of the file. The first one is the alignment."""
        try:
            blob = self._path.read_bytes()
        except OSError as error:
            raise DataError(f"{self._path}: cannot be read ({error.strerror}); {REMEDY}") from None
        self._front = self._checked_front(blob)
        records, place = [], len(self._front)
        while place + HEAD.size <= len(blob):
            size, round_, question = HEAD.unpack_from(blob, place)
            if place + HEAD.size + size > len(blob):
                break
            records.append(Record(round_, question, blob[place : place + HEAD.size + size]))
            place += HEAD.size + size
        if not records or records[0].round != ALIGNMENT:
            raise DataError(f"{self._path}: damaged; {REMEDY}")
        return records

    def _checked_front(self, blob: bytes) -> bytes:
        """Return the header. One of another party, run, format or minor release is refused."""
        remedy = "finish the run with that release, or start all parties with --restart"
        try:
            magic, number, size = PREFIX.unpack_from(blob)
            header = json.loads(blob[PREFIX.size : PREFIX.size + size])
            owner, wrote = (magic, header["party"], header["run"]), header["release"]
        except (struct.error, ValueError, KeyError, TypeError):
            owner = None
        if owner != (MAGIC, self._party, self._run):
            text = f"not checkpoints of {self._party} in run {self._run!r}"
            raise DataError(f"{self._path}: {text}; {REMEDY}")
        if number != FORMAT:
            text = f"checkpoints of format {number}, this release reads {FORMAT}"
            raise DataError(f"{self._path}: {text}; {remedy}")
        check_release(f"{self._path}: the checkpoint", wrote, remedy)
        return blob[: PREFIX.size + size]

    def _sealed(self, round_: int, checkpoint: Checkpoint, question: bool) -> bytes:
        nonce, content = token_bytes(NONCE), checkpoint.to_bytes()
        head = HEAD.pack(NONCE + len(content) + TAG, round_, question)
        return head + nonce + self._cipher.encrypt(nonce, content, self._front + head)

    def _opened(self, record: Record) -> Checkpoint:
        head, rest = record.data[: HEAD.size], record.data[HEAD.size :]
        try:
            content = self._cipher.decrypt(rest[:NONCE], rest[NONCE:], self._front + head)
        except (InvalidTag, ValueError):
            where = f"{self._path}: round {record.round}"
            raise DataError(f"{where} is damaged, or under another checkpoint-key.skf; {REMEDY}") from None
        return Checkpoint.from_bytes(content)


TOKEN = re.compile(r"[0-9a-f]{16}")
MOST_ROUNDS = 100
"""Rounds that a statement may name."""
REASONS = ("target", "rounds", "no progress")
count = integer(least=0, most=(1 << 31) - 1)


def _token(name: str, value: Any) -> str:
    if not isinstance(value, str) or not TOKEN.fullmatch(value):
        raise SettingError(f"{name} must be 16 hexadecimal digits")
    return value


def _rounds(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or len(value) >= MOST_ROUNDS:
        raise SettingError(f"{name} must be a list of fewer than {MOST_ROUNDS} rounds")
    return tuple(count(name, each) for each in value)


@dataclass(frozen=True, repr=False)
class ResumeState(Declared):
    """One party's statement."""

    parameters: int = setting(0, count, "Numbers of its model; 0 for a party without data.")
    is_linear: bool = setting(True, flag, "Whether its model is linear.")
    rows: int = setting(0, count, "Where alignment is by row its rows; else the rows in common, once known.")
    instance: str | None = setting(None, optional(_token), "The start of the run that it has checkpoints of.")
    rounds: tuple[int, ...] = setting((), _rounds, "After how many rounds it has a checkpoint.")
    ended: Reason | None = setting(
        None, optional(choice(REASONS)), "Why the training was over at the last of them (label party)."
    )
    proposal: str = setting(
        "", word_or("", _token), "The name of a new start, if there is to be one (label party)."
    )
    columns: int = setting(0, count, "Columns of its linear model, as they count in an automatic penalty.")

    def to_facts(self) -> dict[str, Any]:
        return {**asdict(self), "rounds": list(self.rounds)}

    @classmethod
    def from_facts(cls, peer: str, facts: Mapping[str, Any]) -> Self:
        """What a peer said, checked."""
        try:
            return cls(**{name: facts[name] for name in declared(cls)})
        except (KeyError, SettingError):
            raise Malformed(
                f"{peer} said of itself what no party says; all parties need the same release"
            ) from None


@dataclass(frozen=True)
class ResumePlan:
    """What all parties do now."""

    instance: str
    start: int | None
    """Go on after this many rounds; None: align and start anew."""
    rows: int
    """In common, where that is known."""
    ended: Reason | None
    """The training was over after `start` rounds; only its end has to be repeated."""


def decide(
    states: Mapping[str, ResumeState], label_party: str, alignment: str, *, lockstep: bool = True
) -> ResumePlan:
    """Draw the conclusion. `states`: of all parties with data, and of the helper if there is one."""
    if alignment == "rows":
        counts = {name: state.rows for name, state in states.items() if state.parameters}
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{name} has {count}" for name, count in counts.items())
            raise SettingError(
                f"alignment: 'rows' needs equally many rows at all parties: {listed}; or use 'psi', with ids"
            )
    last = states[label_party]
    instances = {state.instance for state in states.values()}
    common = set.intersection(*(set(state.rounds) for state in states.values()))
    ahead = {name: max(state.rounds, default=0) for name, state in states.items()}
    far = max(ahead, key=lambda name: ahead[name])
    near = not lockstep or ahead[far] <= 1
    if len(instances) == 1 and last.instance and common and (max(common) > 0 or near):
        start = max(common)
        ended = last.ended if start == ahead[label_party] else None
        return ResumePlan(last.instance, start, last.rows, ended)
    if ahead[far] > 1:
        behind = ", ".join(name for name in states if not set(states[name].rounds) & {ahead[far]})
        raise SettingError(
            f"{far} has {ahead[far]} rounds of this run and {behind or 'another party'} has no checkpoint "
            "that fits; put its checkpoints back, or start all parties with --restart"
        )
    return ResumePlan(last.proposal, None, last.rows, None)
