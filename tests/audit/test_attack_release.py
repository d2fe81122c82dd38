"""A party that asks to open its parameters, or scores, and sends single values of others instead.

A Paillier plaintext holds some twenty parameters. A key-holder that looks at shapes alone takes one for each
of them, and as many residuals as fit into every one, which are the labels.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import numpy as np
import pytest

from securefed.crypto import KeyHolder
from securefed.crypto.errors import ShapeError
from securefed.crypto.hidden import Range, to_integers
from securefed.crypto.paillier import PaillierMasked, PaillierOpened
from securefed.crypto.paillier.hidden import PaillierArray
from securefed.protocols.agreement import Agreement, Member
from securefed.protocols.blind_algebra import BlindPlan
from securefed.protocols.blind_scores import serve_blind_scores, serve_release
from securefed.protocols.losses import get_loss
from securefed.protocols.messages import KINDS
from securefed.protocols.schedules import Batches, Constant, FedSGD, Stopping
from securefed.transport import Link, get_network, run_local
from tests.audit.test_attack_opening_layout import COLUMNS, ROWS, crafted, unpacked

Served = Callable[[Link, Agreement, BlindPlan, KeyHolder], Awaitable[None]]
PLAN = BlindPlan(get_loss("logistic"), 2, 2 * COLUMNS, 0.01, 8.0, 8.0, 16.0)
KIND = {"opening": "opening-request", "score-opening": "score-request"}


def agreed() -> Agreement:
    members = (Member("p0", COLUMNS, True), Member("p1", COLUMNS, True))
    settings = (FedSGD(), Constant(0.25), Batches(ROWS, None, 1), Stopping(1))
    return Agreement("linear", "paillier", members, *settings, key_holder="C", reveal="nothing", release=True)


async def by_shape(link: Link, agreement: Agreement, plan: BlindPlan, holder: KeyHolder) -> None:
    """Naive: as many numbers as there are parameters, in whatever they come."""
    masked = holder.public.load_masked(await link.receive("opening-request", "p1", round=1))
    assert masked.shape == (COLUMNS, 1)
    link.send("p1", "opening", holder.open(masked).to_bytes(), round=1)


async def released(link: Link, agreement: Agreement, plan: BlindPlan, holder: KeyHolder) -> None:
    await serve_release(link, agreement, plan, holder, "p1", 1)


async def scored(link: Link, agreement: Agreement, plan: BlindPlan, holder: KeyHolder) -> None:
    await serve_blind_scores(link, agreement, holder, 1, plan)


def attack(holder: KeyHolder, labels: np.ndarray, serve: Served, kind: str, ciphertexts: int) -> list[int]:
    """What p1 reads of hidden residuals that were refreshed for it."""
    residuals = holder.conceal(to_integers(-0.5 * labels[:, None], 32), Range(32, 38))
    assert isinstance(residuals, PaillierArray)

    async def cheat(link: Link) -> list[int]:
        link.phase = "release" if kind == "opening" else "evaluation"
        packed, masks = crafted(residuals._encrypted, ciphertexts)
        masked = PaillierMasked(packed.public, (COLUMNS, 1), packed._ciphertexts)
        link.send("C", KIND[kind], masked.to_bytes(), round=1)
        opened = masked.public.load_opened(await link.receive(kind, "C", round=1))
        assert isinstance(opened, PaillierOpened)
        return unpacked(masked, opened.integers(), masks)

    async def key_holder(link: Link) -> None:
        link.phase = "release" if kind == "opening" else "evaluation"
        await serve(link, agreed(), PLAN, holder)

    done = run_local({"p1": cheat, "C": key_holder}, run="r", kinds=KINDS, network=get_network("lan"))
    found: list[int] = done.outcomes["p1"]
    return found


def test_a_request_of_more_ciphertexts_than_parameters_take_is_refused(paillier: KeyHolder) -> None:
    labels = np.random.default_rng(5).choice([-1.0, 1.0], ROWS)
    found = attack(paillier, labels, by_shape, "opening", COLUMNS)
    np.testing.assert_array_equal(np.sign(found), -labels)  # every label, from a release of six numbers
    for serve, kind in ((released, "opening"), (scored, "score-opening")):
        with pytest.raises(ShapeError, match="6 ciphertexts for 6 x 1 numbers, as agreed they take 1"):
            attack(paillier, labels, serve, kind, COLUMNS)


def test_what_a_release_still_opens(paillier: KeyHolder) -> None:
    """Open, and said so (docs/threat-model.md): what stands in the one plaintext that is due."""
    labels = np.random.default_rng(5).choice([-1.0, 1.0], ROWS)
    found = np.sign(attack(paillier, labels, released, "opening", 1))
    fit = len(found)
    np.testing.assert_array_equal(found, -labels[:fit])
    assert fit == (paillier.public.bits - 2) // 40 < ROWS  # type: ignore[attr-defined]
