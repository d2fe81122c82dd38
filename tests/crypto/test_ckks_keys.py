"""Keys: that they are SEAL's, that they come back, and that public things cannot open."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
import tenseal.sealapi as seal

from securefed.crypto import load_public_key
from securefed.crypto.ckks.arrays import CkksEncrypted
from securefed.crypto.ckks.keys import (
    ELEMENTS,
    PARTS,
    CkksPublicKey,
    CkksSecretKey,
    automorphism,
    generate_secret_key,
    public_parts,
)
from securefed.crypto.ckks.layout import GALOIS_STRIDES, RING, SLOTS, seal_order
from securefed.crypto.lattice.seal_ring import (
    PRIMES,
    _header,
    _load,
    centred,
    engine,
    from_ntt,
    from_pieces,
    read,
    to_ntt,
)
from securefed.crypto.randomness import secret_bytes, ternary
from securefed.crypto.wire import Frame, Kind
from tests.crypto.ckks_cases import ONE, Desk, numbers


@pytest.fixture(scope="module")
def desk() -> Desk:
    return Desk.fresh()


def seal_secret(secret: CkksSecretKey) -> Any:
    """The key as an object of SEAL's: for the tests alone."""
    words = to_ntt(from_pieces(secret._secret[None], 0, primes=len(PRIMES)))[0]
    array = _header(8 + words.nbytes) + struct.pack("<Q", words.size) + words.tobytes()
    body = engine().key_id + struct.pack("<Qd", words.size, 1.0) + array
    return _load(seal.SecretKey(), [_header(len(body)) + body], engine().context)


def test_seal_opens_what_we_encrypt(desk: Desk) -> None:
    """An independent implementation with the same key: SEAL's decryptor and decoder."""
    values = numbers(SLOTS)
    order, _ = seal_order()
    decryptor = seal.Decryptor(engine().context, seal_secret(desk.secret))
    for encryptor in (desk.public, desk.holder):
        encrypted = encryptor.encrypt(values, ONE)
        assert isinstance(encrypted, CkksEncrypted)
        plain = seal.Plaintext()
        decryptor.decrypt(encrypted._seal[0], plain)
        plain.scale = 2.0**76
        assert np.abs(np.array(engine().encoder.decode_double(plain)) - values[order]).max() < 1e-12


def test_we_open_what_seal_encrypts(desk: Desk) -> None:
    values = numbers(SLOTS)
    order, _ = seal_order()
    plain, block = seal.Plaintext(), seal.Ciphertext()
    engine().encoder.encode(values[order].tolist(), 2.0**76, plain)
    plain.scale = 1.0
    seal.Encryptor(engine().context, desk.public._key).encrypt(plain, block)
    encrypted = desk.public.encrypt(values, ONE)
    assert isinstance(encrypted, CkksEncrypted)
    theirs = CkksEncrypted(desk.public, encrypted.form, ciphertexts=[block])
    assert np.abs(desk.open(theirs) - values).max() < 1e-6


def test_seal_takes_the_galois_keys_for_its_own(desk: Desk) -> None:
    """Every automorphism, by SEAL with our keys, against the polynomial turned by hand."""
    encrypted = desk.holder.encrypt(numbers(SLOTS), ONE)
    assert isinstance(encrypted, CkksEncrypted)
    decryptor = seal.Decryptor(engine().context, seal_secret(desk.secret))
    assert all(desk.public.galois.has_key(element) for element in ELEMENTS)

    def phase(block: Any) -> np.ndarray:
        plain = seal.Plaintext()
        decryptor.decrypt(block, plain)
        return centred(from_ntt(read(plain.dyn_array()).reshape(1, 2, RING))[0])

    before = phase(encrypted._seal[0])
    exponents = np.arange(RING)
    for element in ELEMENTS:
        turned = seal.Ciphertext()
        engine().evaluator.apply_galois(encrypted._seal[0], element, desk.public.galois, turned)
        expected = np.empty(RING)
        places = exponents * element % (2 * RING)
        expected[places % RING] = np.where(places < RING, before, -before)
        difference = np.abs(phase(turned) - expected).max()
        assert difference < 2.0**26  # float64 cannot hold 2^76 to better than 2^23


def test_automorphisms_keep_and_negate_as_merging_needs() -> None:
    for stride, element in zip(GALOIS_STRIDES, ELEMENTS, strict=True):
        polynomial = np.arange(1, RING + 1)
        turned = automorphism(polynomial, element)
        assert (turned[::stride] == polynomial[::stride]).all()
        assert (turned[stride // 2 :: stride] == -polynomial[stride // 2 :: stride]).all()


def test_keys_come_back(desk: Desk) -> None:
    desk.secret.open(desk.public.encrypt(numbers(2), ONE).mask()[0])
    blob = desk.secret.to_bytes()
    again = CkksSecretKey.from_frame(Frame.from_bytes(blob, Kind.SECRET_KEY))
    assert again.to_bytes() == blob
    assert again.replies == desk.secret.replies > 0
    assert again.public.key_id == desk.public.key_id
    masked, mask = desk.public.encrypt(numbers(9), ONE).mask()
    assert np.abs(mask.remove(again.open(masked)) - numbers(9)).max() < 1e-6
    public = load_public_key(desk.public.to_bytes())
    assert public.to_bytes() == desk.public.to_bytes()
    assert public.key_id == desk.public.key_id


def test_every_key_is_another(desk: Desk) -> None:
    other = generate_secret_key()
    assert other.public.key_id != desk.public.key_id
    agreeing = np.count_nonzero(other._secret == desk.secret._secret)
    assert abs(agreeing - RING / 3) < 8 * np.sqrt(RING * 2 / 9)


def test_parts_of_a_key() -> None:
    seed, parts = public_parts(ternary(secret_bytes(), RING).astype(np.int64))
    assert len(seed) == 32
    assert parts.shape == (PARTS, 3, RING) == (21, 3, RING)
    assert (parts < np.array(PRIMES, dtype=np.uint64)[:, None]).all()


def test_public_things_lead_to_no_secret(desk: Desk) -> None:
    """By attributes, containers, closures and bound methods."""
    encrypted = desk.public.load(desk.holder.encrypt(numbers(5), ONE).to_bytes())
    masked, mask = encrypted.mask()
    opened = desk.holder.open(masked)
    key = desk.secret._secret.astype(np.int8).tobytes()
    for thing in (desk.holder.public, desk.public, encrypted, masked, mask, opened):
        for item in reach(thing):
            assert not isinstance(item, seal.SecretKey | seal.Decryptor | seal.Encryptor | CkksSecretKey)
            if isinstance(item, np.ndarray) and item.dtype.kind == "i":
                assert item.astype(np.int8).tobytes() != key
        assert not hasattr(thing, "receive") and not hasattr(thing, "decrypt")
    assert isinstance(desk.public, CkksPublicKey)


def reach(root: object) -> list[object]:
    seen: dict[int, object] = {}
    waiting = [root]
    while waiting:
        item = waiting.pop()
        if id(item) in seen or isinstance(item, type | str | bytes | int | float):
            continue
        seen[id(item)] = item
        waiting.extend(vars(item).values() if hasattr(item, "__dict__") else ())
        waiting.extend(item.values() if isinstance(item, dict) else ())
        waiting.extend(item if isinstance(item, list | tuple | set) else ())
        waiting.extend(c.cell_contents for c in getattr(item, "__closure__", None) or ())
        waiting.append(getattr(item, "__self__", None))
    return list(seen.values())


def test_the_secret_is_in_no_representation(desk: Desk) -> None:
    for thing in (desk.secret, desk.public, desk.holder, desk.holder.encrypt([0.5], ONE)):
        assert "[" not in repr(thing) and "array" not in repr(thing)
