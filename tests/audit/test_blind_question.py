"""The hash that a helper sends of a question: what the label party and a party can test with it together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from research.attacks.blind_cheats import people, score_run
from securefed.assembly.base import HELPER
from securefed.crypto import shares
from securefed.crypto.shares import LIMBS
from securefed.protocols.blind.scoring import SCORE_STEP, _hash
from securefed.protocols.blind.statistics import MODEL_BITS
from securefed.protocols.scoring.score_ledger import ScoreGuard, ScoreRefusal
from securefed.transport.link import Link

WINDOW = 1 << 10
"""Guesses to either side; scores tell the rest."""


def test_a_question_does_not_confirm_guesses_at_the_helpers_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """{L, k}: the label party knows its share of its one parameter, and from scores the parameter to some
    digits. The rest is a few bits, and the hash of the helper's share says which of them are right.
    """
    sent: dict[str, list[bytes]] = {"operand": [], "question": []}
    send = Link.send

    def sending(self: Link, receiver: str, kind: str, blob: bytes, **more: Any) -> None:
        scoring = self.phase == "evaluation" and more.get("step", 0) >= SCORE_STEP
        if scoring and (kind, receiver) in (("operand", HELPER), ("question", "p0")):
            sent[kind].append(blob)
        send(self, receiver, kind, blob, **more)

    monkeypatch.setattr(Link, "send", sending)
    columns, labels = people(24, (2, 2, 1))
    done = score_run(columns, labels, rounds=1)
    blocks = [done.shares_at[0][name]["L"] for name in ("L", HELPER)]
    own, theirs = (shares.to_integers(block)[0] for block in blocks)
    rough = (own + theirs) % (1 << shares.WIDTH) - 77  # what scores told
    found = []
    for guess in range(rough - WINDOW, rough + WINDOW):
        share = (guess - own) % (1 << MODEL_BITS) - (1 << MODEL_BITS)
        block = shares.from_integer(share % (1 << shares.WIDTH)).reshape(LIMBS, 1, 1)
        if _hash([*sent["operand"], shares.to_bytes(block)]) == sent["question"][0]:
            found.append(guess)
    assert found == []


def test_a_person_that_a_question_names_twice_is_refused() -> None:
    """Each place has a blur of its own, so that eight scores of one person would average."""
    rows = np.repeat(np.random.default_rng(0).normal(size=(1, 3)), 8, axis=0)
    guard = ScoreGuard(party="p0", column_bits=1e6)
    guard.know(rows[:1], [b"person 0"])
    with pytest.raises(ScoreRefusal, match="twice"):
        guard.noises(rows, b"question", 1, precision_bits=10, fraction_bits=95, placed=True)
