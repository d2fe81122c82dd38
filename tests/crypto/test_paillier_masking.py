"""Masks and openings: a known answer, perfect hiding at toy size, and what is refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from gmpy2 import mpz
from hypothesis import given, settings
from hypothesis import strategies as st

from securefed.crypto import FixedPoint, KeyHolder
from securefed.crypto.paillier.arrays import (
    PackedLayout,
    PaillierEncrypted,
    PaillierMask,
    PaillierMasked,
    PaillierOpened,
    mask_packed,
    pack_ciphertexts,
)
from securefed.crypto.paillier.keys import PaillierPublicKey, PaillierSecretKey, generate_secret_key
from securefed.crypto.wire import Frame, Kind
from securefed.errors import (
    BadCiphertext,
    CapacityError,
    CryptoError,
    FormatError,
    MaskError,
    OpeningRefused,
    RangeError,
    ShapeError,
    WrongKey,
)
from tests.crypto.paillier_cases import key_of

P = 0xC57665EF6AE364F4555607AB86494D25
Q = 0xC27125374415D6E0F4C8B66AD09ED491
N = P * Q
FIXED = FixedPoint(bound=4.0, fraction_bits=20)


@pytest.fixture(scope="module")
def secret() -> PaillierSecretKey:
    return key_of(P, Q, allow_small=True)


@pytest.fixture(scope="module")
def public(secret: PaillierSecretKey) -> PaillierPublicKey:
    return secret.public


def masked_with(
    encrypted: PaillierEncrypted, layout: PackedLayout, number: int, residue: int
) -> tuple[PaillierMasked, PaillierMask]:
    packed = pack_ciphertexts(encrypted.public, encrypted.integers, layout)
    return mask_packed(encrypted.public, packed, layout, [mpz(number)], [mpz(residue)])


def test_masking_has_a_known_answer(secret: PaillierSecretKey) -> None:
    """Seven values of 23 bits in slots of 25: all in one plaintext, under one mask and one r**n."""
    values = np.array([0.5, -1.0, 4.0, -4.0, 0.0, 0.25, -0.125])
    encrypted = secret.encrypt(values, FIXED)
    layout = PackedLayout.of(256, (7,), encrypted.extent)
    assert (layout.width, layout.slots, layout.ciphertexts) == (25, 10, 1)
    residue, number = pow(3, N, N * N), 1234567890123456789
    masked, mask = masked_with(encrypted, layout, number, residue)
    packed = 1
    for place, ciphertext in enumerate(encrypted.integers):
        packed = packed * pow(ciphertext, 1 << (25 * place), N * N) % (N * N)
    assert masked.integers == [packed * pow(1 + N, number, N * N) * residue % (N * N)]
    plain = sum(int(v) << (25 * place) for place, v in enumerate(FIXED.encode(values)))
    reply = secret.open(masked)
    assert reply.integers == [(plain + number) % N]
    assert mask.remove(reply).tolist() == values.tolist()


@settings(deadline=None, max_examples=25)
@given(st.lists(st.floats(-4, 4), min_size=1, max_size=35), st.booleans())
def test_openings_are_exact_whatever_the_number_of_values(
    secret: PaillierSecretKey, values: list[float], tall: bool
) -> None:
    array = np.array(values).reshape(-1, 1) if tall else np.array(values)
    masked, mask = secret.encrypt(array, FIXED).mask()
    assert masked.ciphertexts == -(-len(values) // 10)
    result = mask.remove(secret.open(masked))
    assert result.shape == array.shape
    assert result.tolist() == (FIXED.encode(array) / FIXED.scale).tolist()


def test_what_the_key_holder_opens_is_uniform() -> None:
    """All masks mod a toy n, for the two values farthest apart: each opening comes exactly once."""
    secret = key_of(229, 239, allow_small=True)
    n = 229 * 239
    seen = []
    for value in (-1.0, 1.0):
        encrypted = secret.encrypt(np.array([value]), FixedPoint(1.0, 10))
        layout = PackedLayout.of(16, (1,), encrypted.extent)
        replies = []
        for number in range(n):
            masked, _ = masked_with(encrypted, layout, number, 1)
            replies.append(masked.integers[0])
        plain = secret._owner.decrypt([mpz(reply) for reply in replies])
        seen.append(Counter(int(m) for m in plain))
    assert seen[0] == seen[1] == Counter(range(n))


def test_equal_values_give_unequal_blocks_and_openings(secret: PaillierSecretKey) -> None:
    encrypted = secret.encrypt(np.ones(3), FIXED)
    blocks = [encrypted.mask()[0] for _ in range(20)]
    assert len({block.integers[0] for block in blocks}) == 20
    assert len({secret.open(block).integers[0] for block in blocks}) == 20


def test_a_masked_block_shows_shape_and_count_only(secret: PaillierSecretKey) -> None:
    """Private scales and multipliers differ; the frames of the masked results differ in ciphertexts alone."""
    rng = np.random.default_rng(3)
    encrypted = secret.encrypt(rng.uniform(-4, 4, 6), FIXED)
    frames = [
        Frame.from_bytes(
            encrypted.contract(scale * rng.normal(size=(1, 3, 6))).mask()[0].to_bytes(), Kind.MASKED
        )
        for scale in (1e-6, 1.0, 1e6)
    ]
    shown = {
        (frame.numbers, frame.shape, len(frame.payload), frame.key, frame.parameters) for frame in frames
    }
    assert len(shown) == 1 and frames[0].numbers == (0, 0, 0, 0)


def test_masks_are_used_once(secret: PaillierSecretKey) -> None:
    masked, mask = secret.encrypt(np.ones(2), FIXED).mask()
    reply = secret.open(masked)
    mask.remove(reply)
    for again in (lambda: mask.remove(reply), mask.disclose):
        with pytest.raises(MaskError, match="used already"):
            again()


def test_a_ciphertext_is_opened_once_whatever_stands_beside_it(secret: PaillierSecretKey) -> None:
    masked, _ = secret.encrypt(np.ones(24), FIXED).mask()
    (first, second, third), holder = masked.integers, KeyHolder(secret)
    holder.open(PaillierMasked(secret.public, (20,), [first, second]))
    for again in ([first, second], [second, first], [third, second], [first], [third, third]):
        with pytest.raises(OpeningRefused, match="opened before"):
            holder.open(PaillierMasked(secret.public, (20,), again))
    holder.open(PaillierMasked(secret.public, (20,), [third]))


def test_replies_that_are_not_this_masks(secret: PaillierSecretKey) -> None:
    encrypted = secret.encrypt(np.ones(12), FIXED)

    def fresh() -> tuple[PaillierMasked, object]:
        return encrypted.mask()

    masked, mask = fresh()
    other = secret.open(fresh()[0])
    with pytest.raises(MaskError, match="does not fit"):
        mask.remove(other)
    reply = secret.open(masked)
    for wrong in (
        PaillierOpened(secret.public, (3, 4), reply.integers),
        PaillierOpened(secret.public, (12,), reply.integers[:1]),
    ):
        with pytest.raises(MaskError, match="this mask is for"):
            fresh()[1].remove(wrong)
    stranger = generate_secret_key(256, allow_small=True)
    with pytest.raises(WrongKey):
        fresh()[1].remove(PaillierOpened(stranger.public, (12,), reply.integers))


@settings(deadline=None, max_examples=40)
@given(place=st.integers(0, 1), change=st.integers(1, N - 1))
def test_altered_replies_do_not_pass(secret: PaillierSecretKey, place: int, change: int) -> None:
    """A change to the opened integer is caught unless it is itself a small packed difference."""
    masked, mask = secret.encrypt(np.zeros(20), FIXED).mask()
    plaintexts = secret.open(masked).integers
    plaintexts[place] = (plaintexts[place] + change) % N
    try:
        result = mask.remove(PaillierOpened(secret.public, (20,), plaintexts))
    except MaskError:
        return
    assert np.abs(result).max() <= FIXED.bound


def test_disclosure_gives_the_value_to_the_key_holder(secret: PaillierSecretKey) -> None:
    values = np.array([[1.5, -2.0], [0.0, 4.0]])
    encrypted = secret.encrypt(values, FIXED)
    for result, expected in (
        (encrypted, values),
        (encrypted.contract(np.full((2, 1, 2), 0.1)), 0.1 * values.sum(axis=0, keepdims=True)),
    ):
        masked, mask = result.mask()
        received = KeyHolder(secret).receive(masked, mask.disclose())
        assert received.shape == expected.shape
        assert np.abs(received - expected).max() < 1e-5


def test_disclosures_that_do_not_belong(secret: PaillierSecretKey) -> None:
    encrypted = secret.encrypt(np.ones(12), FIXED)
    masked, mask = encrypted.mask()
    frame = Frame.from_bytes(mask.disclose(), Kind.DISCLOSURE)
    f, width, bits, _ = frame.numbers
    wrong: list[tuple[bytes, type[CryptoError]]] = [
        (secret.encrypt(np.ones(11), FIXED).mask()[1].disclose(), MaskError),
        (replace(frame, payload=frame.payload[:32]).to_bytes(), MaskError),
        (replace(frame, payload=frame.payload[:-1]).to_bytes(), FormatError),
        (replace(frame, payload=b"").to_bytes(), FormatError),
        (replace(frame, payload=b"\xff" * 64).to_bytes(), RangeError),
        (replace(frame, numbers=(f, width, bits, 1)).to_bytes(), FormatError),
        (replace(frame, numbers=(f, 3, bits, 0)).to_bytes(), FormatError),
        (replace(frame, numbers=(f, -width, bits, 0)).to_bytes(), FormatError),
        (replace(frame, numbers=(1 << 30, width, bits, 0)).to_bytes(), FormatError),
        (replace(frame, numbers=(f, width, 0, 0)).to_bytes(), FormatError),
        (replace(frame, numbers=(f, 400, 300, 0)).to_bytes(), FormatError),
        (replace(frame, key=bytes(16)).to_bytes(), WrongKey),
        (b"", FormatError),
        (masked.to_bytes(), FormatError),
    ]
    for disclosure, error in wrong:
        with pytest.raises(error):
            secret.receive(masked, disclosure)
    # Fits in form: found out by opening, which cannot be tried again.
    holder = KeyHolder(secret)
    with pytest.raises(MaskError):
        holder.receive(masked, encrypted.mask()[1].disclose())
    with pytest.raises(OpeningRefused):
        holder.receive(masked, frame.to_bytes())


def test_blocks_that_arrive_are_validated(secret: PaillierSecretKey, public: PaillierPublicKey) -> None:
    masked, _ = secret.encrypt(np.ones(12), FIXED).mask()
    frame = Frame.from_bytes(masked.to_bytes(), Kind.MASKED)
    width = public.ciphertext_bytes
    wrong: list[tuple[Frame, type[CryptoError]]] = [
        (replace(frame, payload=bytes(2 * width)), BadCiphertext),
        (replace(frame, payload=P.to_bytes(width, "big")), BadCiphertext),
        (replace(frame, payload=b"\xff" * width), BadCiphertext),
        (replace(frame, payload=frame.payload[:-1]), FormatError),
        (replace(frame, payload=b""), FormatError),
        (replace(frame, payload=frame.payload * 7), ShapeError),
        (replace(frame, shape=(0,)), ShapeError),
        (replace(frame, numbers=(0, 0, 0, 1)), FormatError),
    ]
    for bad, error in wrong:
        with pytest.raises(error):
            public.load_masked(bad.to_bytes())
    assert public.load_masked(frame.to_bytes()).integers == masked.integers
    reply = Frame.from_bytes(secret.open(masked).to_bytes(), Kind.OPENED)
    for bad, error in (
        (replace(reply, payload=b"\xff" * 64), RangeError),
        (replace(reply, payload=reply.payload[1:]), FormatError),
        (replace(reply, numbers=(5, 0, 0, 0)), FormatError),
        (replace(reply, payload=reply.payload * 7), ShapeError),
    ):
        with pytest.raises(error):
            public.load_opened(bad.to_bytes())


def test_the_owner_refuses_ciphertexts_that_would_give_its_primes_away(secret: PaillierSecretKey) -> None:
    """Also when they did not come through `load_masked`: decrypting 0 or a multiple of p factors n."""
    for ciphertext in (0, P, 7 * Q, N, N * N):
        with pytest.raises(BadCiphertext):
            secret.open(PaillierMasked(secret.public, (1,), [mpz(ciphertext)]))
    other = generate_secret_key(256, allow_small=True)
    with pytest.raises(WrongKey):
        KeyHolder(secret).open(other.encrypt(np.ones(1), FIXED).mask()[0])


def test_values_as_wide_as_the_plaintext_take_one_ciphertext_each() -> None:
    secret = generate_secret_key(64, allow_small=True)
    encrypted = secret.encrypt(np.array([1.0, -1.0, 0.5]), FixedPoint(1.0, 61))
    masked, mask = encrypted.mask()
    assert masked.ciphertexts == 3
    assert mask.remove(secret.open(masked)).tolist() == [1.0, -1.0, 0.5]


def test_results_beyond_float64_are_an_error(secret: PaillierSecretKey) -> None:
    encrypted = np.array([[2.0**900]]) @ secret.encrypt(np.array([4.0]), FIXED)
    assert encrypted.bound == 2.0**903  # the power of two above the multiplier
    with pytest.raises(CapacityError):
        np.array([[2.0**123]]) @ encrypted
    with pytest.raises(RangeError, match="float64"):
        PackedLayout(2048, (1,), 602, -500, 1 << 600).decode([mpz(1 << 600)], mpz(1 << 2047))


@settings(deadline=None)
@given(st.integers(-(1 << 200), 1 << 200), st.integers(-50, 300))
def test_decoding_rounds_once_and_correctly(integer: int, fraction_bits: int) -> None:
    layout = PackedLayout(2048, (1,), 202, fraction_bits, 1 << 200)
    [value] = layout.decode([mpz(integer)], mpz(1 << 2047)).tolist()
    assert value == float(Fraction(integer) / Fraction(2) ** fraction_bits)
