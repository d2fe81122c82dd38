"""To go on after an interruption: what a party keeps after each round, and what all parties conclude from it.

    alignment.sfc   once: which of the party's rows are common, in the agreed order
    round-<n>.sfc   after round n: parameters (shares in blind training), optimiser, counters, sums, and what
                    each round took

The last few rounds are kept, since parties may be a round apart when one of them dies; all go back to the
last one that every party has. Where parties may be further apart, older rounds are kept too, the fewer the
older they are (`kept_rounds`). A file appears whole or not at all. Each is AES-256-GCM under a random key
that lies beside the party's other keys, under its passphrase; the header is authenticated, so that a file
of another party, run, round or minor release is refused. So is one of another instance than the alignment's.

    magic 4 b"SFCP" | format 1 | header length 2 | header JSON | nonce 12 | ciphertext and tag
    encrypted: length 8 | JSON of facts and of the arrays' names, types and shapes | the arrays' bytes

Each party tells all others, in its hello, how many numbers its model has and which rounds it has checkpoints
of. Nothing of that is secret. From the same statements everybody draws the same conclusion:

    all have a round of the same instance in common    go on after the latest such round
    nobody has got beyond the first round              start anew; at most one round is lost
    else                                               refuse: somebody has lost its checkpoints

An *instance* is one start of a run from the beginning; the label party chooses its name. In lockstep a kill
cannot leave two parties more than a round apart: the next exchange needs all of them. With a helper the other
parties may be any number of rounds behind, and round 0 may be the latest that all have.
"""

from __future__ import annotations

import json
import re
import secrets
import struct
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from securefed.data.ids import ID_SHAPES
from securefed.errors import DataError, SettingError
from securefed.files import (
    check_release,
    make_folder,
    minor_version,
    storage_error,
    write_atomically,
)
from securefed.protocols.schedules import Reason
from securefed.transport.network import Malformed

MAGIC = b"SFCP"
FORMAT = 4
PREFIX = struct.Struct(">4sBH")
LENGTH = struct.Struct(">Q")
NONCE = 12
KEPT = 3
"""Rounds that are kept. Two would do: nobody can be more than one round ahead."""
KEPT_APART = 16
"""The same where parties may be further apart: the last so many rounds, and some older ones."""
NAME = re.compile(r"round-(\d{1,9})\.sfc")
ALIGNMENT = "alignment.sfc"
REMEDY = "put the file back from a backup, or start all parties with --restart"

Arrays = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Arrays, and facts that JSON can hold."""

    arrays: Arrays
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

    def __repr__(self) -> str:
        return f"<checkpoint of {len(self.arrays)} arrays>"


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


class CheckpointStore:
    """One party's checkpoints of one run. `lockstep`: no party can be more than a round ahead of another."""

    def __init__(self, folder: Path, key: bytes, *, party: str, run: str, lockstep: bool = True) -> None:
        self._folder, self._cipher = folder, AESGCM(key)
        self._party, self._run, self._lockstep = party, run, lockstep

    def rounds(self) -> list[int]:
        """Rounds that are there, ascending."""
        if not self._folder.is_dir():
            return []
        names = (NAME.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted(int(match.group(1)) for match in names if match)

    @property
    def aligned(self) -> bool:
        return (self._folder / ALIGNMENT).exists()

    def write_alignment(self, checkpoint: Checkpoint) -> None:
        """A new beginning: what was there before belongs to another instance of the run."""
        self.clear()
        self._write(ALIGNMENT, -1, checkpoint)

    def read_alignment(self) -> Checkpoint:
        return self._read(ALIGNMENT, -1)

    def write(self, round_: int, checkpoint: Checkpoint, questions: Iterable[int] = ()) -> None:
        """After `round_` rounds. Older ones go once the new one is on disk; so do later ones, which a run
        that went back will write again. `questions`: see `kept_rounds`.
        """
        self._write(f"round-{round_}.sfc", round_, checkpoint)
        there = self.rounds()
        earlier = (number for number in there if number <= round_)
        keep = kept_rounds(earlier, lockstep=self._lockstep, questions=questions)
        for number in there:
            if number not in keep:
                (self._folder / f"round-{number}.sfc").unlink(missing_ok=True)

    def read(self, round_: int) -> Checkpoint:
        """Of the instance that the alignment is of."""
        name = f"round-{round_}.sfc"
        checkpoint = self._read(name, round_)
        if self.aligned and checkpoint.meta.get("instance") != self.read_alignment().meta.get("instance"):
            raise DataError(
                f"{self._folder / name}: from an earlier start of the run; start all parties with --restart"
            )
        return checkpoint

    def set_aside_damaged(self) -> list[Path]:
        """Rename the newest checkpoints that cannot be read, if an older one can; their new names.

        The run then goes on from an older round that all parties have.
        """
        damaged: list[int] = []
        for number in reversed(self.rounds()):
            try:
                self.read(number)
            except DataError:
                damaged.append(number)
            else:
                break
        else:
            return []  # none is good: it is the key, or the folder, and nothing is touched
        renamed = []
        for number in damaged:
            path = self._folder / f"round-{number}.sfc"
            renamed.append(path.rename(path.with_name(f"{path.name}.damaged")))
        return renamed

    def clear(self) -> None:
        """The alignment first: without it nothing here is a run that could go on, whenever a kill comes."""
        for name in (ALIGNMENT, *(f"round-{number}.sfc" for number in self.rounds())):
            (self._folder / name).unlink(missing_ok=True)

    def _header(self, round_: int) -> bytes:
        place = {"party": self._party, "run": self._run, "round": round_}
        return json.dumps({**place, "release": minor_version()}, sort_keys=True).encode()

    def _write(self, name: str, round_: int, checkpoint: Checkpoint) -> None:
        header, nonce = self._header(round_), secrets.token_bytes(NONCE)
        front = PREFIX.pack(MAGIC, FORMAT, len(header)) + header
        sealed = self._cipher.encrypt(nonce, checkpoint.to_bytes(), front)
        if not self._folder.is_dir():
            make_folder(self._folder, private=True)
        write_atomically(self._folder / name, front + nonce + sealed)

    def _read(self, name: str, round_: int) -> Checkpoint:
        path = self._folder / name
        try:
            blob = path.read_bytes()
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror}); {REMEDY}") from None
        header = self._header(round_)
        front = PREFIX.pack(MAGIC, FORMAT, len(header)) + header
        if blob[: len(front)] != front:
            _check_writer(path, blob)
            raise DataError(f"{path}: not a checkpoint of {self._party} in run {self._run!r}; {REMEDY}")
        nonce, sealed = blob[len(front) : len(front) + NONCE], blob[len(front) + NONCE :]
        try:
            data = self._cipher.decrypt(nonce, sealed, front)
        except (InvalidTag, ValueError):
            raise DataError(f"{path}: damaged, or under another checkpoint-key.skf; {REMEDY}") from None
        return Checkpoint.from_bytes(data)


def _check_writer(path: Path, blob: bytes) -> None:
    """Refuse a checkpoint of another format or minor release, by what its first bytes say."""
    remedy = "finish the run with that release, or start all parties with --restart"
    if len(blob) < PREFIX.size or blob[: len(MAGIC)] != MAGIC:
        return
    _, number, size = PREFIX.unpack_from(blob)
    if number != FORMAT:
        raise DataError(f"{path}: a checkpoint of format {number}, this release reads {FORMAT}; {remedy}")
    try:
        wrote = json.loads(blob[PREFIX.size : PREFIX.size + size])["release"]
    except (ValueError, KeyError, TypeError):
        return
    check_release(f"{path}: the checkpoint", wrote, remedy)


def remove_folder(folder: Path) -> None:
    """Checkpoints of a run that is over. The alignment first, as in `CheckpointStore.clear`: what is left of
    a finished run when this is interrupted must not look like one that has just begun.
    """
    if folder.is_dir():
        try:
            (folder / ALIGNMENT).unlink(missing_ok=True)
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()
        except OSError as error:
            raise storage_error(folder, error) from None


TOKEN = re.compile(r"[0-9a-f]{16}")
MOST_NUMBERS = 1 << 31
REASONS = ("target", "rounds", "no progress")


@dataclass(frozen=True)
class ResumeState:
    """One party's statement."""

    parameters: int
    """Numbers of its model; 0 for a party without data."""
    is_linear: bool = True
    rows: int = 0
    """Its rows, where alignment is by row; else the rows in common, once they are known."""
    instance: str | None = None
    rounds: tuple[int, ...] = ()
    """After how many rounds it has a checkpoint."""
    ended: Reason | None = None
    """Why the training was over at the last of them (label party)."""
    proposal: str = ""
    """The name of a new instance, if there has to be one (label party)."""
    ids: str = ""
    """Of what shape its ids are, where it has any."""

    def to_facts(self) -> dict[str, Any]:
        return {**asdict(self), "rounds": list(self.rounds)}

    @classmethod
    def from_facts(cls, peer: str, facts: Mapping[str, Any]) -> Self:
        """What a peer said, checked."""

        def number(value: object) -> bool:
            return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_NUMBERS

        rounds = facts.get("rounds")
        sound = (
            {field.name for field in fields(cls)} <= facts.keys()
            and number(facts.get("parameters"))
            and number(facts.get("rows"))
            and isinstance(facts.get("is_linear"), bool)
            and _token(facts.get("instance"), None)
            and _token(facts.get("proposal"), "")
            and facts.get("ids") in ("", *ID_SHAPES)
            and facts.get("ended") in (None, *REASONS)
            and isinstance(rounds, list)
            and len(rounds) < 100
            and all(map(number, rounds))
        )
        if not sound or not isinstance(rounds, list):
            raise Malformed(f"{peer} said of itself what no party says; all parties need the same release")
        known = {field.name: facts[field.name] for field in fields(cls)}
        return cls(**{**known, "rounds": tuple(rounds)})


def _token(value: object, none: object) -> bool:
    return value == none or (isinstance(value, str) and TOKEN.fullmatch(value) is not None)


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
