"""Attacks by parties of blind runs that do not follow the protocol: each on a naive variant, and on ours.

An attack either finds what it is after or it does not, so a row has two words and no interval. The naive
variants and the cheats are those of tests/audit (test_blind_*.py), which has more of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any
from unittest.mock import patch

import numpy as np

from research.attacks.blind import crafted_key, large_operand
from research.attacks.blind_cheats import ask_again, centred, people, rows_at, score_run
from securefed.crypto import shares
from securefed.crypto.blind.evaluation import Rerandomiser
from securefed.crypto.blind.rlwe import RlweKey
from securefed.crypto.randomness import SEED_BYTES
from securefed.errors import SettingError
from securefed.protocols.blind.statistics import ROW_BITS
from securefed.protocols.scoring.score_ledger import ScoreGuard
from tests.audit.naive.blind import OneZero, narrow_uniform

SECRET = 12_345_678


@dataclass(frozen=True)
class Active:
    """One attack on both variants: whether it found what it was after."""

    attack: str
    who: str
    missing: str
    """What the naive variant lacks."""
    naive: bool
    ours: bool

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def _key() -> RlweKey:
    return RlweKey(os.urandom(SEED_BYTES))


def _crafted(naive: bool) -> bool:
    return crafted_key(_key(), OneZero if naive else Rerandomiser, SECRET)[0] == [SECRET]


def _large(naive: bool) -> bool:
    secret = SECRET % 10_000
    if not naive:
        return large_operand(_key(), secret) == {secret}
    with patch.object(shares, "uniform_from", narrow_uniform(80)):
        return large_operand(_key(), secret) == {secret}


def _other_rows(naive: bool) -> bool:
    """The label party asks about the same people with rows that differ by one: its own parameters."""
    columns, labels = people(12, (3, 2))
    done = score_run(columns, labels, evaluate_every=0)
    rows, theirs = rows_at(done, "L"), rows_at(done, "p0")
    moved = rows.copy()
    moved[:, 0] += 1.0
    noises = ScoreGuard.noises

    def by_model(self: ScoreGuard, rows: Any, context: bytes, outputs: int, **sizes: Any) -> Any:
        return noises(self, rows, b"the model" if naive else context, outputs, **sizes)

    with patch.object(ScoreGuard, "noises", by_model):
        first, second = (ask_again(done, [theirs, own]) for own in (rows, moved))
    found = [centred(b - a) / 2.0**ROW_BITS for a, b in zip(first, second, strict=True)]
    return bool(np.ptp(found) < 1e4)


def _release(naive: bool) -> bool:
    """A party without labels asks for a release of more bits than a key may bear."""
    columns, labels = people(60, (42, 1))
    try:
        score_run(columns, labels, rounds=1, evaluate_every=0, release="trusted" if naive else True)
    except SettingError:
        return False
    return True


ATTACKS: tuple[tuple[str, str, str, Callable[[bool], bool]], ...] = (
    ("multipliers from a crafted key", "label party", "one RLWE zero per reply", _crafted),
    ("multipliers above the mask", "label party", "masks of 80 bits", _large),
    ("own parameters from other rows", "label party", "blur by row and model", _other_rows),
    ("1,008 bits that may hold a key", "column holder", "a release without a limit", _release),
)


def active_attacks() -> Iterator[Active]:
    for attack, who, missing, run in ATTACKS:
        yield Active(attack, who, missing, run(True), run(False))


def active_table(rows: list[Active]) -> str:
    """Markdown."""
    lines = ["| attack on blind runs | by | naive variant | naive | ours |", "|---|---|---|---|---|"]
    word = {True: "**succeeds**", False: "fails"}
    lines += [f"| {r.attack} | {r.who} | {r.missing} | {word[r.naive]} | {word[r.ours]} |" for r in rows]
    return "\n".join(lines)
