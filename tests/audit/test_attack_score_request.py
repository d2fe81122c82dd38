"""A label party of blind transfer learning that hands in something else than scores: open, and shown here.

A keeps B's columns as B encrypted them for the set-up, and has the key-holder party open one of them in the
place of scores (docs/threat-model.md).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from securefed.audit import audit
from securefed.crypto.hidden import PlainMatrix
from securefed.crypto.rlwe.arrays import RlweArray
from securefed.protocols import blind_scores
from securefed.protocols.channel import Channel
from tests.protocols.test_blind_transfer import blind, data, recipe

LIFT = 50
COLUMN_BITS, SCALE_BITS = 32, 50
"""Of a column as B hides it, and of a share under RLWE."""


def test_a_label_party_can_have_a_column_opened_as_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[str, Any] = {}
    take, open_scores = Channel.take, blind_scores.open_scores

    async def taking(self: Channel, kind: str, *more: Any, **named: Any) -> Any:
        found = await take(self, kind, *more, **named)
        if (kind, self.link.name, self.step) == ("share", "A", 0):
            kept.setdefault("columns", found)
        return found

    async def opening(link: Any, keys: Any, masked: Any, mask: Any, t: int) -> Any:
        hidden = kept["columns"]
        rows = hidden.shape[0]
        column = RlweArray(keys.public, (rows, 1), hidden.range, 1, held=[hidden._seal[0]])
        sums = PlainMatrix(np.eye(rows) * 2.0**LIFT, 0, LIFT + 2) @ column
        opened = await open_scores(link, keys, *sums.mask(), t)
        bits = sums.range.fraction_bits - LIFT - COLUMN_BITS - SCALE_BITS
        kept.setdefault("found", opened[:, 0] * 2.0**bits)
        return np.zeros((rows, 1))

    monkeypatch.setattr(Channel, "take", taking)
    monkeypatch.setattr(blind_scores, "open_scores", opening)
    settings = recipe(rounds=1, evaluate_every=1)
    done = blind(settings, data(columns=(5, 3)), metric=lambda scores: 0.5, key_holder="C")
    columns = done.parties["B"]._rows.shared
    assert np.abs(kept["found"] - columns[:, 0]).max() < 1e-7
    assert audit({name: link.transcript for name, link in done.run.links.items()}).failed == []
