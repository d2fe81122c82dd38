"""Hostile bytes: a right checksum around a wrong content is refused by name, before any arithmetic."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securefed.crypto import load_public_key
from securefed.crypto.ckks.keys import CkksPublicKey, CkksSecretKey
from securefed.crypto.ckks.layout import PARAMETERS
from securefed.crypto.lattice.ring import DEGREE, PRIMES
from securefed.crypto.wire import Frame, Kind
from securefed.errors import (
    BadKey,
    CapacityError,
    CryptoError,
    FormatError,
    ShapeError,
    WrongKey,
)
from tests.crypto.ckks_cases import ONE, Desk, numbers


@pytest.fixture(scope="module")
def desk() -> Desk:
    return Desk.fresh()


@pytest.fixture(scope="module")
def frames(desk: Desk) -> dict[Kind, Frame]:
    """One honest frame of each kind."""
    encrypted = desk.public.encrypt(numbers(5, 3), ONE)
    masked, _ = encrypted.contract(numbers(3, 2, 5)).mask()
    opened = desk.holder.open(masked)
    blobs = {
        Kind.PUBLIC_KEY: desk.public.to_bytes(),
        Kind.SECRET_KEY: desk.secret.to_bytes(),
        Kind.ENCRYPTED: encrypted.to_bytes(),
        Kind.MASKED: masked.to_bytes(),
        Kind.OPENED: opened.to_bytes(),
    }
    return {kind: Frame.from_bytes(blob, kind) for kind, blob in blobs.items()}


def reader(desk: Desk, kind: Kind) -> Callable[[bytes], Any]:
    return {
        Kind.PUBLIC_KEY: load_public_key,
        Kind.SECRET_KEY: lambda blob: CkksSecretKey.from_frame(Frame.from_bytes(blob, Kind.SECRET_KEY)),
        Kind.ENCRYPTED: desk.public.load,
        Kind.MASKED: desk.public.load_masked,
        Kind.OPENED: desk.public.load_opened,
    }[kind]


ARRAYS = (Kind.ENCRYPTED, Kind.MASKED, Kind.OPENED)
HEADS = {Kind.ENCRYPTED: 16, Kind.MASKED: 0, Kind.OPENED: 16, Kind.PUBLIC_KEY: 32}


def with_word(payload: bytes, place: int, word: int) -> bytes:
    return payload[:place] + struct.pack("<Q", word) + payload[place + 8 :]


@pytest.mark.parametrize("kind", HEADS)
def test_honest_frames_are_read(desk: Desk, frames: dict[Kind, Frame], kind: Kind) -> None:
    blob = frames[kind].to_bytes()
    assert reader(desk, kind)(blob).to_bytes() == blob


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("word", [PRIMES[0], (1 << 21) - 1, (1 << 63) - 1, (1 << 64) - 1])
def test_residues_that_are_not_below_the_prime(
    desk: Desk, frames: dict[Kind, Frame], kind: Kind, word: int
) -> None:
    frame = frames[kind]
    error = BadKey if kind is Kind.PUBLIC_KEY else FormatError
    bad = replace(frame, payload=with_word(frame.payload, HEADS[kind], word))
    if kind is Kind.PUBLIC_KEY:  # its own fingerprint is looked at later
        bad = replace(bad, key=frame.key)
    with pytest.raises(error, match=r"a residue is .* less than .* is allowed|a bit is set"):
        reader(desk, kind)(bad.to_bytes())


@pytest.mark.parametrize("kind", [*HEADS, Kind.SECRET_KEY])
@pytest.mark.parametrize("change", [-8, -1, 1, 8, 8 * DEGREE])
def test_payloads_of_another_length(desk: Desk, frames: dict[Kind, Frame], kind: Kind, change: int) -> None:
    frame = frames[kind]
    payload = frame.payload[:change] if change < 0 else frame.payload + bytes(change)
    with pytest.raises((FormatError, BadKey), match="bytes"):
        reader(desk, kind)(replace(frame, payload=payload).to_bytes())


@pytest.mark.parametrize("kind", ARRAYS)
def test_another_parameter_set_key_or_scheme(desk: Desk, frames: dict[Kind, Frame], kind: Kind) -> None:
    frame = frames[kind]
    for bad, words in (
        (replace(frame, parameters=bytes(16)), "parameter set"),
        (replace(frame, key=bytes(16)), "key"),
        (replace(frame, scheme="paillier"), "paillier frame"),
    ):
        with pytest.raises(WrongKey, match=words):
            reader(desk, kind)(bad.to_bytes())


@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0), (1 << 29,), (1 << 20, 1 << 20)])
def test_empty_and_absurd_shapes(
    desk: Desk, frames: dict[Kind, Frame], kind: Kind, shape: tuple[int, ...]
) -> None:
    with pytest.raises(ShapeError):
        reader(desk, kind)(replace(frames[kind], shape=shape).to_bytes())


@pytest.mark.parametrize("kind", ARRAYS)
def test_more_columns_than_slots(desk: Desk, frames: dict[Kind, Frame], kind: Kind) -> None:
    with pytest.raises(CapacityError, match="columns"):
        reader(desk, kind)(replace(frames[kind], shape=(2, 5000)).to_bytes())


@pytest.mark.parametrize(
    "numbers_given",
    [(0, 26, 1, 3), (1, 61, 1, 3), (1, 26, 0, 3), (1, 26, 1, 14), (1, 26, 1, -1), (1, 26, 1, 1)],
)
def test_masked_blocks_with_impossible_numbers(
    desk: Desk, frames: dict[Kind, Frame], numbers_given: tuple[int, int, int, int]
) -> None:
    with pytest.raises(FormatError):
        desk.public.load_masked(replace(frames[Kind.MASKED], numbers=numbers_given).to_bytes())


def test_a_masked_block_that_asks_for_more_than_its_sums(desk: Desk, frames: dict[Kind, Frame]) -> None:
    """A requester that wants every coefficient has to say so in the shape, and the record keeps the shape."""
    frame = frames[Kind.MASKED]
    assert frame.shape == (2, 3)
    widest = replace(frame, numbers=(1, 26, 1, 12), payload=bytes(2 * 8 * 5 * DEGREE // 3))
    with pytest.raises(FormatError, match=r"layout 12 is not one of an array of shape \(2, 3\)"):
        desk.public.load_masked(widest.to_bytes())


@pytest.mark.parametrize(
    "head",
    [
        (float("nan"), 74.0),
        (float("inf"), 74.0),
        (0.0, 74.0),
        (-1.0, 74.0),
        (1.0, 103.5),
        (1.0, float("nan")),
        (1.0, -3.0),
    ],
)
def test_encrypted_arrays_with_impossible_numbers(
    desk: Desk, frames: dict[Kind, Frame], head: tuple[float, float]
) -> None:
    frame = frames[Kind.ENCRYPTED]
    bad = replace(frame, payload=struct.pack("<dd", *head) + frame.payload[16:])
    with pytest.raises(FormatError):
        desk.public.load(bad.to_bytes())
    for numbers_given in ((4000, 1, 0, 0), (74, 1, 0, 2), (74, 1, 0, -1)):
        with pytest.raises(FormatError, match="scale"):
            desk.public.load(replace(frame, numbers=numbers_given).to_bytes())


def test_public_keys_that_are_not_what_they_say(desk: Desk, frames: dict[Kind, Frame]) -> None:
    frame = frames[Kind.PUBLIC_KEY]
    changed = replace(frame, payload=b"\1" + frame.payload[1:])
    with pytest.raises(WrongKey):
        load_public_key(changed.to_bytes())
    with pytest.raises(WrongKey, match="parameter set"):
        load_public_key(replace(frame, parameters=bytes(16)).to_bytes())


def test_secret_keys_that_are_not_what_they_say(desk: Desk, frames: dict[Kind, Frame]) -> None:
    frame = frames[Kind.SECRET_KEY]
    read = reader(desk, Kind.SECRET_KEY)
    with pytest.raises(WrongKey, match="key"):
        read(replace(frame, payload=frame.payload[:8] + bytes(32)).to_bytes())
    with pytest.raises(WrongKey):
        read(replace(frame, key=bytes(16)).to_bytes())


@settings(max_examples=150)
@given(data=st.data())
def test_no_frame_leads_to_any_other_error(
    desk: Desk, frames: dict[Kind, Frame], data: st.DataObject
) -> None:
    """Whatever the fields are, the parsers read the frame or raise one of the crypto layer's errors."""
    kind = data.draw(st.sampled_from(ARRAYS))
    frame = frames[kind]
    number = st.one_of(st.integers(-(2**31), 2**31 - 1), st.integers(-2, 80))
    size = st.one_of(st.integers(0, 2**32 - 1), st.integers(0, 9))
    fields: dict[str, Any] = {
        "numbers": data.draw(st.tuples(number, number, number, number) | st.just(frame.numbers)),
        "shape": data.draw(st.lists(size, max_size=2).map(tuple) | st.just(frame.shape)),
    }
    payload = frame.payload
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(0, 40) | st.integers(0, len(payload) - 1))
        payload = payload[:place] + data.draw(st.binary(min_size=1, max_size=9)) + payload[place + 4 :]
    cut = data.draw(st.sampled_from([None, 0, 1, 16, 23, 24, 1000, -1]))
    blob = replace(frame, payload=payload[:cut], **fields).to_bytes()
    with suppress(CryptoError):
        reader(desk, kind)(blob)


@settings(max_examples=60)
@given(st.binary(max_size=300))
def test_garbage_is_no_frame(desk: Desk, blob: bytes) -> None:
    for read in (desk.public.load, desk.public.load_masked, desk.public.load_opened, load_public_key):
        with pytest.raises(FormatError):
            read(blob)


def test_the_parameter_hash_is_pinned() -> None:
    """It changes when the name or a prime does: then peers of two versions refuse each other."""
    assert CkksPublicKey.parameters == PARAMETERS
    assert PARAMETERS.hex() == KNOWN_PARAMETERS


KNOWN_PARAMETERS = "2580aeaabd7d25c477482f561997d370"
