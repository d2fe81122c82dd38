"""Slots that pass through the key-holder: no carry, no wrap, masks of the right size, divergence found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securefed.crypto import KeyHolder, generate
from securefed.crypto.errors import CryptoError, Diverged, FormatError, OpeningRefused, ShapeError, WrongKey
from securefed.crypto.paillier import PaillierEncrypted, PaillierPublicKey
from securefed.crypto.paillier.extent import Extent
from securefed.crypto.paillier.slots import SLACK, HiddenSlots, PaillierSlots, add_integers, bits_of

FRACTION = 20
BOUND = 2.0


@pytest.fixture(scope="module")
def holder() -> KeyHolder:
    return generate("paillier", key_bits=2048)


def encrypted(holder: KeyHolder, integers: list[int], bits: int = 40) -> PaillierEncrypted:
    result: PaillierEncrypted = holder.encrypt_integers(integers, Extent(FRACTION, 1 << bits, 2.0**20))
    return result


def public(holder: KeyHolder) -> PaillierPublicKey:
    key = holder.public
    assert isinstance(key, PaillierPublicKey)
    return key


def read(holder: KeyHolder, hidden: HiddenSlots) -> list[int]:
    return holder.open_slots(HiddenSlots.from_bytes(public(holder), hidden.to_bytes()))


LIMIT = 1 << bits_of(BOUND, FRACTION)


@settings(max_examples=10)
@given(values=st.lists(st.integers(-LIMIT + 1, LIMIT - 1), min_size=1, max_size=60))
def test_what_the_key_holder_reads_is_value_plus_mask(holder: KeyHolder, values: list[int]) -> None:
    hidden, masks = PaillierSlots.pack(encrypted(holder, values), BOUND).hide()
    assert [slot - mask for slot, mask in zip(read(holder, hidden), masks, strict=True)] == values


def test_the_corners_neither_wrap_nor_carry(holder: KeyHolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Largest and smallest values beside each other, under the smallest and the largest masks."""
    values = [LIMIT - 1, -LIMIT + 1] * 30
    top = (1 << (bits_of(BOUND, FRACTION) + SLACK)) - 1
    for extreme in (0, top):
        with monkeypatch.context() as patch:
            patch.setattr("securefed.crypto.paillier.slots.uniform_bits", lambda bits, e=extreme: e)
            hidden, masks = PaillierSlots.pack(encrypted(holder, values), BOUND).hide()
        assert set(masks) == {extreme}
        assert read(holder, hidden) == [value + extreme for value in values]


def test_a_shift_is_off_by_one_unit_at_most(holder: KeyHolder) -> None:
    rng = np.random.default_rng(0)
    values = [int(v) for v in rng.integers(-LIMIT + 1, LIMIT, 200)]
    hidden, masks = PaillierSlots.pack(encrypted(holder, values), BOUND).hide()
    shift = 12
    for slot, mask, value in zip(read(holder, hidden), masks, values, strict=True):
        assert (slot >> shift) - (mask >> shift) - (value >> shift) in (0, 1)


def test_masks_are_forty_bits_wider_than_the_range_and_never_the_same(holder: KeyHolder) -> None:
    slots = PaillierSlots.pack(encrypted(holder, [0] * 300), BOUND)
    first, second = slots.hide()[1], slots.hide()[1]
    assert len({*first, *second}) == 600
    width = bits_of(BOUND, FRACTION) + SLACK
    assert all(0 <= mask < 1 << width for mask in first)
    # The top bit is a fair coin: 300 flips, false alarm below 1e-6.
    assert 105 < sum(mask >> (width - 1) for mask in first) < 195


def test_values_far_out_of_range_are_found(holder: KeyHolder) -> None:
    """Beyond the slack the key-holder sees a slot that nobody honest makes; nothing wraps silently."""
    for value in (LIMIT << (SLACK + 1), -(LIMIT << (SLACK + 1))):
        wide = encrypted(holder, [0, value, 0], bits=SLACK + 30)
        hidden, _ = PaillierSlots.pack(wide, BOUND).hide()
        with pytest.raises(Diverged, match="learning_rate"):
            read(holder, hidden)


def test_values_within_the_slack_of_their_range_still_come_out_right(holder: KeyHolder) -> None:
    """Out of range by 20 bits: hidden by 20 bits less, and exact."""
    value = LIMIT << 20
    values = [value, -LIMIT + 1] * 10
    hidden, masks = PaillierSlots.pack(encrypted(holder, values, bits=SLACK + 30), BOUND).hide()
    try:
        slots = read(holder, hidden)
    except Diverged:  # a mask near its end pushes such a value over it: found, also right
        return
    assert [slot - mask for slot, mask in zip(slots, masks, strict=True)] == values


def test_blocks_add_up_with_each_other_and_with_plain_integers(holder: KeyHolder) -> None:
    a, b = [3, -4, 5] * 9, [10, 20, -30] * 9
    reach = 60
    first, second = (PaillierSlots.pack(encrypted(holder, v), BOUND, reach) for v in (a, b))
    sent = PaillierSlots.from_bytes(public(holder), second.rerandomise().to_bytes(), first)
    hidden, masks = (first + sent).add_plain([7] * 27).hide()
    found = [slot - mask for slot, mask in zip(read(holder, hidden), masks, strict=True)]
    assert found == [x + y + 7 for x, y in zip(a, b, strict=True)]


def test_a_uniform_mask_opens_slots_for_the_requester(holder: KeyHolder) -> None:
    values = [1 << FRACTION, -(1 << FRACTION), 3] * 12
    masked, mask = PaillierSlots.pack(encrypted(holder, values), BOUND).mask()
    opened = holder.open(holder.public.load_masked(masked.to_bytes()))
    found = mask.remove(holder.public.load_opened(opened.to_bytes()))
    np.testing.assert_array_equal(found, np.array(values) / 2.0**FRACTION)


def test_integers_are_added_at_the_arrays_own_scale(holder: KeyHolder) -> None:
    total = add_integers(encrypted(holder, [5, 6]), [-2, 1 << 50], Extent(FRACTION, 1 << 60, 2.0**40))
    masked, mask = total.mask()
    found = mask.remove(holder.open(masked))
    np.testing.assert_array_equal(found, np.array([3, 6 + (1 << 50)]) / 2.0**FRACTION)


def test_hostile_slots_are_refused(holder: KeyHolder) -> None:
    slots = PaillierSlots.pack(encrypted(holder, [1, 2, 3]), BOUND)
    hidden, _ = slots.hide()
    blob = hidden.to_bytes()
    other = generate("paillier", key_bits=2048)
    with pytest.raises(WrongKey):
        HiddenSlots.from_bytes(public(other), blob)
    with pytest.raises(FormatError, match="kind"):
        PaillierSlots.from_bytes(public(holder), blob)
    with pytest.raises(ShapeError):
        PaillierSlots.from_bytes(
            public(holder), PaillierSlots.pack(encrypted(holder, [1, 2]), BOUND).to_bytes(), slots
        )
    for cut in (0, 10, len(blob) - 1):
        with pytest.raises(CryptoError):
            HiddenSlots.from_bytes(public(holder), blob[:cut])
    with pytest.raises(FormatError, match="not a block of slots"):
        HiddenSlots.from_bytes(public(holder), encrypted(holder, [1]).mask()[0].to_bytes())
    with pytest.raises(OpeningRefused):
        holder.open(hidden)
    with pytest.raises(OpeningRefused):
        holder.open_slots(encrypted(holder, [1]).mask()[0])
    holder.open_slots(hidden)
    with pytest.raises(OpeningRefused, match="before"):
        holder.open_slots(HiddenSlots.from_bytes(public(holder), blob))


@pytest.mark.parametrize("scheme", ["ckks", "plain"])
def test_other_schemes_have_no_such_slots(scheme: str) -> None:
    secret = generate(scheme)._secret
    with pytest.raises(CryptoError, match=scheme):
        secret.open_slots(None)
    with pytest.raises(CryptoError, match=scheme):
        secret.encrypt_integers([1], None)
