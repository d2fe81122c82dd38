"""Shares: sums, truncation, digits; and products by way of hidden arrays, every kind of keys that hides."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from securefed.crypto import KeyHolder
from securefed.crypto.errors import FormatError, ShapeError, WrongKey
from securefed.crypto.hidden import HidingKey, PlainMatrix, concealed, to_integers
from securefed.crypto.shares import (
    DIGIT_BITS,
    DIGITS,
    SHARE_BITS,
    centred,
    digits,
    multiples,
    read_share,
    reduced,
    scaled_back,
    scaled_up,
    split,
    truncated,
    write_share,
)
from securefed.crypto.wire import Kind
from securefed.protocols.shared_products import Factor, Shape
from tests.protocols.federation import KEYS

SLACK = 50


def values(*shape: int, seed: int = 0) -> Any:
    return to_integers(np.random.default_rng(seed).normal(size=shape), 32)


def test_shares_add_up_and_each_is_uniform() -> None:
    x = values(500, 2)
    one, two = split(x)
    assert (centred(one + two) == x).all()
    for share in (one, two):
        high = (share >> (SHARE_BITS - 1)).astype(float)  # 1000 fair coins: five standard deviations
        assert abs(high.mean() - 0.5) < 5 * 0.5 / np.sqrt(1000)


def test_truncation_is_local_and_off_by_a_unit_at_most() -> None:
    x = values(300, 1) << 28
    one, two = split(x)
    cut = centred(truncated(one, 28, first=True) + truncated(two, 28, first=False))
    assert max(abs(int(v)) for v in (cut - (x >> 28)).ravel()) <= 1


def test_digits_times_multiples_are_the_product() -> None:
    a, b = split(values(3, 4))[0], split(values(4, 2, seed=1))[0]
    found = digits(a).astype(np.int64).astype(object) @ multiples(b)
    assert (reduced(found - a @ b) == 0).all()
    assert DIGITS * DIGIT_BITS > SHARE_BITS and np.abs(digits(a)).max() <= 2 ** (DIGIT_BITS - 1)


@pytest.mark.parametrize("kind", ["paillier", "rlwe"])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("owner", [True, False])
def test_a_product_with_the_other_partys_share(kind: str, wide: bool, owner: bool) -> None:
    """k hides its share, p multiplies: the two results add up to the product, and the key-holder, who is k or
    a third party, reads no value.
    """
    k: KeyHolder = KEYS.holder(kind, 0)
    public: Any = k.public
    x = split(values(5, 2))[0]
    left = split(values(4, 5, seed=1))[0] if wide else None
    factor = Factor.own(np.random.default_rng(2).normal(size=(4, 5))) if left is None else Factor.shared(left)
    shape = Shape(4, 5, 2, "both" if wide else "a")
    strides = public.strides_for([shape.result])
    if strides:
        public.load_switching(k.switching(strides), strides)
    assert isinstance(public, HidingKey)
    held = multiples(x) if wide else x
    range_, slack = shape.range(public), shape.slack(public, SLACK)
    array = (k.conceal if owner else partial(concealed, public))(scaled_up(public, held), range_)
    assert array.origin == "fresh" and not array.repeated()
    block, masks = (factor.matrix @ array).within(range_, slack).lend()
    seen = k.read(block)
    total = centred(scaled_back(public, seen) + scaled_back(public, -masks))
    due = centred(factor.integers @ x)
    # Noise below a unit, and each share is rounded once; a public key's noise is sqrt(5) / 4 more.
    assert max(abs(int(v)) for v in (total - due).ravel()) <= 2 + (not owner)
    # What k reads is nowhere near the product: it is under masks wider than all of it.
    assert min(abs(int(v)).bit_length() for v in (seen - factor.integers @ x).ravel()) > 128


def test_a_share_on_its_way_from_a_key_holder_party_is_what_was_agreed() -> None:
    public, other = (KEYS.holder("rlwe", place).public for place in (0, 1))
    share = split(values(3, 2))[0]
    blob = write_share(public, share)
    assert (read_share(public, blob, (3, 2)) == share).all()
    assert write_share(public, share) != blob  # so that no hash of it answers a guess
    with pytest.raises(ShapeError, match=r"\(3, 2\) given, \(2, 3\) expected"):
        read_share(public, blob, (2, 3))
    with pytest.raises(WrongKey):
        read_share(other, blob, (3, 2))
    with pytest.raises(FormatError, match="damaged"):
        read_share(public, blob[:-1] + bytes([blob[-1] ^ 1]), (3, 2))
    short = public.frame(Kind.OPENED, bytes(14 + 16), (3, 2)).to_bytes()
    with pytest.raises(ShapeError, match="14 bytes of shares given"):
        read_share(public, short, (3, 2))


def test_a_share_that_is_multiplied_by_too_much_is_refused() -> None:
    with pytest.raises(ValueError, match="below"):
        Factor.own(np.full((1, 1), 2.0**11))
    assert PlainMatrix(digits(values(2, 2)), 0, DIGIT_BITS).values.shape == (2, 6)
