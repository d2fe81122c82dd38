"""One mask for two openings, or two openings of one ciphertext."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from securefed.crypto import FixedPoint, KeyHolder
from securefed.crypto.wire import Frame, Kind
from securefed.errors import CryptoError, MaskError, OpeningRefused
from tests.audit.naive import paillier as naive
from tests.audit.views import paillier_factors, paillier_wire

FIXED = FixedPoint(bound=1.0, fraction_bits=24)


def difference_of_openings(first: int, second: int, n: int) -> int:
    """The key-holder has two opened integers. Under one mask it gets the exact difference of values."""
    return (second - first + n // 2) % n - n // 2


def test_difference_of_two_openings(naive_paillier: naive.Key, paillier: KeyHolder) -> None:
    values = [secrets.randbits(24) for _ in range(2)]
    ciphertexts = (naive_paillier.encrypt(values[0]), naive_paillier.encrypt(values[1]))
    first, second = (naive_paillier.decrypt(c) for c in naive.masked_twice(naive_paillier.n, ciphertexts))
    assert difference_of_openings(first, second, naive_paillier.n) == values[1] - values[0]

    p, q = paillier_factors(paillier)
    encrypted = paillier.encrypt([0.25], FIXED)
    seen = [paillier.open(encrypted.mask()[0]).to_bytes() for _ in range(8)]
    integers = [paillier_wire(paillier, blob, Kind.OPENED)[0] for blob in seen]
    pairs = [(a, b) for i, a in enumerate(integers) for b in integers[:i]]
    # All values are the same: under one mask the difference would be 0. By chance it is below 2^1900 never.
    assert min(abs(difference_of_openings(a, b, p * q)) for a, b in pairs).bit_length() > 1900


def again(masked: bytes) -> list[tuple[str, bytes]]:
    """One masked block, as it is and in other clothes: the same ciphertexts under another header."""
    frame = Frame.from_bytes(masked, Kind.MASKED)
    clothes = [("as it is", masked)]
    for column in (1, 2):
        clothes.append((f"as a matrix {column}", replace(frame, shape=(frame.shape[0], column)).to_bytes()))
    clothes.append(("as a longer vector", replace(frame, shape=(frame.shape[0] + 1,)).to_bytes()))
    for place in range(4):
        a, b, c, d = (number + (i == place) for i, number in enumerate(frame.numbers))
        clothes.append((f"number {place}", replace(frame, numbers=(a, b, c, d)).to_bytes()))
    return clothes


@pytest.mark.parametrize("scheme", ["paillier", "ckks"])
def test_a_ciphertext_is_opened_once_whatever_its_header_says(
    scheme: str, request: pytest.FixtureRequest
) -> None:
    """The requester sends a block again to get a second reply, with another flood."""
    holder: KeyHolder = request.getfixturevalue(scheme)
    masked, _ = holder.encrypt([0.25, 0.5], FIXED).mask()
    blob = masked.to_bytes()
    holder.open(holder.public.load_masked(blob))
    opened = []
    for name, frame in again(blob):
        try:
            holder.open(holder.public.load_masked(frame))
        except CryptoError:
            continue
        opened.append(name)
    assert opened == []


def parts(masked: bytes, width: int, order: Sequence[int]) -> bytes:
    frame = Frame.from_bytes(masked, Kind.MASKED)
    pieces = [frame.payload[i * width : (i + 1) * width] for i in order]
    return replace(frame, payload=b"".join(pieces)).to_bytes()


def test_a_ciphertext_is_opened_once_in_whatever_company(paillier: KeyHolder) -> None:
    """The same for one ciphertext of a block: alone, in another order, or twice in one block."""
    masked, _ = (np.ones((80, 2)) * 0.3 @ paillier.encrypt([0.25, 0.5], FIXED)).mask()
    assert masked.ciphertexts >= 3
    blob, width = masked.to_bytes(), 512
    with pytest.raises(OpeningRefused):
        paillier.open(paillier.public.load_masked(parts(blob, width, [0, 1, 1])))
    paillier.open(masked)
    for order in ([0], [2, 1, 0], [1, 2]):
        with pytest.raises(OpeningRefused):
            paillier.open(paillier.public.load_masked(parts(blob, width, order)))


@pytest.mark.parametrize("scheme", ["paillier", "ckks"])
def test_a_mask_is_used_once_and_for_its_own_answer(scheme: str, request: pytest.FixtureRequest) -> None:
    holder: KeyHolder = request.getfixturevalue(scheme)
    encrypted = holder.encrypt([0.25], FIXED)
    (first, mask), (second, other) = encrypted.mask(), encrypted.mask()
    with pytest.raises(MaskError):
        other.remove(holder.open(first))
    opened = holder.open(second)
    with pytest.raises(MaskError):  # tried once, with whatever: gone
        other.remove(opened)
    with pytest.raises(MaskError):
        other.disclose()
    mask.disclose()
    with pytest.raises(MaskError):
        mask.remove(opened)
