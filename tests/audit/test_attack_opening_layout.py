"""A requester that packs single residuals where the sums of its gradient belong.

It is to open d sums. They take few ciphertexts when they are packed; if the key-holder takes as many
ciphertexts as there are sums, each can be filled with single residuals, and the first ones are the labels.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gmpy2 import mpz

from securefed import OwnGradient
from securefed.assembly import LinearAssembly, TransferAssembly
from securefed.assembly.base import TrainingRows
from securefed.crypto import FixedPoint, KeyHolder
from securefed.crypto.paillier.arrays import PackedLayout as PaillierLayout
from securefed.crypto.paillier.arrays import PaillierEncrypted, PaillierMasked, horner, mask_packed
from securefed.crypto.randomness import uniform_many_below
from securefed.errors import ShapeError
from securefed.protocols.agreement import Agreement, Member
from securefed.protocols.own_gradient.openings import check_room, check_sums
from securefed.protocols.schedules import FedSGD
from securefed.settings import LinearSettings, TransferSettings

ROWS, COLUMNS = 120, 6
WIDTH = 40  # a residual of 32 fraction bits and a few more, with room for its sign


def agreed(scheme: str = "paillier", rows: int = ROWS, columns: int = COLUMNS, parties: int = 2) -> Agreement:
    members = tuple(Member(f"p{i}", columns, True) for i in range(parties))
    return LinearAssembly(
        LinearSettings(algorithm=FedSGD(), protection=OwnGradient(scheme=scheme))
    ).agreement(members, rows)


def crafted(residuals: PaillierEncrypted, count: int) -> tuple[PaillierMasked, list[mpz]]:
    """`count` ciphertexts, each full of single residuals as long as there are any, masked as it should be."""
    public, each = residuals.public, (residuals.public.bits - 2) // WIDTH
    groups = [residuals.integers[i : i + each] for i in range(0, count * each, each)]
    packed = [horner((public.square, WIDTH, group)) if group else mpz(1) for group in groups]
    masks = list(uniform_many_below(public.n, count))
    layout = PaillierLayout(public.bits, (COLUMNS,), WIDTH, 32, 1 << 38)
    masked, _ = mask_packed(public, packed, layout, masks, public.draw(count))
    return masked, masks


def unpacked(masked: PaillierMasked, opened: list[int], masks: list[mpz]) -> list[int]:
    n, each, found = int(masked.public.n), (masked.public.bits - 2) // WIDTH, []
    for plaintext, mask in zip(opened, masks, strict=True):
        value = (plaintext - int(mask)) % n
        value = value - n if 2 * value > n else value
        for _ in range(each):
            low = (value + (1 << (WIDTH - 1))) % (1 << WIDTH) - (1 << (WIDTH - 1))
            found.append(low)
            value = (value - low) >> WIDTH
    return found[:ROWS]


def test_one_ciphertext_for_each_sum_gives_every_label_away(paillier: KeyHolder) -> None:
    labels = np.random.default_rng(5).choice([-1.0, 1.0], ROWS)
    residuals = paillier.encrypt(-0.5 * labels, FixedPoint(17.0, 32))
    assert isinstance(residuals, PaillierEncrypted)
    arrived = paillier.public.load(residuals.to_bytes())
    assert isinstance(arrived, PaillierEncrypted)
    masked, masks = crafted(arrived, COLUMNS)
    naive = replace(agreed(), value_bits=0)
    check_sums(masked, naive, naive.members[0])  # as many numbers as were agreed, and no more looked at
    found = unpacked(masked, paillier.open(masked).integers, masks)
    np.testing.assert_array_equal(np.sign(found), -labels)

    again, _ = crafted(arrived, COLUMNS)
    with pytest.raises(ShapeError, match="6 ciphertexts to open for 6 values, as agreed they take at most 1"):
        check_sums(again, agreed(), agreed().members[0])


@pytest.mark.parametrize(
    ("rows", "columns", "parties"), [(7, 1, 2), (300, 90, 2), (5000, 200, 5), (64, 357, 10)]
)
def test_honest_sums_have_room(paillier: KeyHolder, rows: int, columns: int, parties: int) -> None:
    """As they come out of real products, and with at most one ciphertext to spare in twenty."""
    agreement = agreed(rows=rows, columns=columns, parties=parties)
    fixed = FixedPoint(0.25 * 64 + 0.5, 32)
    held = paillier.public.load(paillier.encrypt(np.zeros(3), fixed).to_bytes())
    for _ in range(parties - 1):
        held = paillier.public.load((held + paillier.encrypt(np.zeros(3), fixed)).to_bytes())
    sums = held.contract(np.ones((1, columns, 3)))
    assert isinstance(sums, PaillierEncrypted)
    grown = replace(sums.extent, magnitude=sums.extent.magnitude // 3 * rows)
    layout = PaillierLayout.of(sums.public.bits, (columns,), grown)
    honest = PaillierMasked(sums.public, (columns,), [mpz(1)] * layout.ciphertexts)
    check_sums(honest, agreement, agreement.members[0])
    more = PaillierMasked(sums.public, (columns,), [mpz(1)] * (layout.ciphertexts * 21 // 20 + 2))
    if more.ciphertexts <= columns:
        with pytest.raises(ShapeError, match="as agreed they take at most"):
            check_sums(more, agreement, agreement.members[0])


def test_scores_have_room_for_scores(paillier: KeyHolder) -> None:
    total = paillier.public.load(paillier.encrypt(np.zeros(90), FixedPoint(64.0 + 2.0**-10, 32)).to_bytes())
    masked, _ = (total + np.zeros(90)).mask()
    check_room(masked, agreed(), 0)
    assert isinstance(masked, PaillierMasked)
    single = PaillierMasked(masked.public, (90,), [mpz(1)] * 4)
    with pytest.raises(ShapeError, match="4 ciphertexts to open for 90 values"):
        check_room(single, agreed(), 0)


def test_ckks_returns_the_coefficients_of_sums_only(ckks: KeyHolder) -> None:
    """A block laid out as single rows returns half of all coefficients; its shape may be that of the sums."""
    agreement = agreed("ckks")
    rows = ckks.public.encrypt(np.zeros(COLUMNS), FixedPoint(17.0, 32))
    single, _ = rows.mask()
    naive = replace(agreement, value_bits=0)
    check_sums(single, naive, naive.members[0])
    with pytest.raises(ShapeError, match="coefficients that its 6 sums do not lie in"):
        check_sums(single, agreement, agreement.members[0])
    held = ckks.public.load(ckks.encrypt(np.zeros(ROWS), FixedPoint(17.0, 32)).to_bytes())
    honest, _ = held.contract(np.ones((1, COLUMNS, ROWS))).mask()
    check_sums(honest, agreement, agreement.members[0])


def test_transfer_learning_has_room(paillier: KeyHolder, ckks: KeyHolder) -> None:
    rows, hidden = 40, 4
    members = (Member("B", 3 * hidden, False), Member("A", 5 * hidden, False))
    for scheme, holder in (("paillier", paillier), ("ckks", ckks)):
        assembly = TransferAssembly(TransferSettings(hidden=hidden, protection=OwnGradient(scheme=scheme)))
        agreement = assembly.agreement(members, rows)
        everybody, features = np.arange(rows), np.zeros((rows, 2))
        model = assembly.model("B", 2, last=False, index=0)
        side = assembly.side(model, TrainingRows.whole(features, None))
        side.begin(everybody)
        held = holder.public.load(holder.encrypt(np.zeros(side.peer_shape()), side.fixed()).to_bytes())
        masked, _ = held.contract(np.ones((hidden, 3, rows + hidden))).mask()
        check_sums(masked, agreement, members[0])
