"""Keys: that SEAL reads what they encrypt, that they come back, and that public things cannot open."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import tenseal.sealapi as seal

from securefed.crypto import load_public_key
from securefed.crypto.ckks.arrays import CkksEncrypted
from securefed.crypto.ckks.form import DATA_BITS, SWITCH_DEVIATION
from securefed.crypto.ckks.keys import (
    ELEMENTS,
    PARTS,
    CkksPublicKey,
    CkksSecretKey,
    generate_secret_key,
    public_payload,
)
from securefed.crypto.ckks.layout import GALOIS_STRIDES, SLOTS, RowLayout, turned
from securefed.crypto.lattice.ring import DEGREE, PRIMES, RING
from securefed.crypto.randomness import key_stream, ternary
from securefed.crypto.wire import Frame, Kind
from tests.crypto.blind.integer_ring import centred, combined
from tests.crypto.ckks_cases import ONE, Desk, numbers
from tests.crypto.seal_peer import Peer, canonical, read


@pytest.fixture(scope="module")
def desk() -> Desk:
    return Desk.fresh()


def phase(secret: CkksSecretKey, ciphertext: np.ndarray) -> np.ndarray:
    """c0 + c1 s of one ciphertext, (5, 2, N), in numbers."""
    return RING.centred(RING.reduced(ciphertext[:, 0] + secret._times(ciphertext[:, 1:])[:, 0]))


def test_seal_opens_what_we_encrypt(desk: Desk) -> None:
    """An independent implementation with the same key."""
    values, peer = numbers(SLOTS), Peer()
    decryptor = seal.Decryptor(peer.context, peer.secret_key(desk.secret._secret))
    expected = RowLayout((SLOTS,)).polynomials(values)[0]
    for encryptor, error in ((desk.public, 2000), (desk.holder, 22)):
        encrypted = encryptor.encrypt(values, ONE)
        assert isinstance(encrypted, CkksEncrypted)
        pair = np.stack([canonical(part) for part in np.moveaxis(encrypted.residues[:, :, 0], 1, 0)])
        plain = seal.Plaintext()
        decryptor.decrypt(peer.ciphertext(peer.to_ntt(pair)), plain)
        words = peer.from_ntt(read(plain.dyn_array()).reshape(1, 5, DEGREE))[0]
        opened = [centred(number) for number in combined(words.astype(int).tolist())]
        due = [round(float(x) * 2**DATA_BITS) for x in expected]
        assert 0 < max(abs(a - b) for a, b in zip(opened, due, strict=True)) <= error


def test_galois_keys_turn_what_is_encrypted(desk: Desk) -> None:
    encrypted = desk.holder.encrypt(np.zeros(SLOTS), ONE)
    assert isinstance(encrypted, CkksEncrypted)
    block = encrypted.residues[:, :, 0].copy()
    block[:, 0] += RING.whole(np.random.default_rng(0).integers(-(2**50), 2**50, DEGREE), 0)
    before = phase(desk.secret, RING.reduced(block))
    for stride, element in zip(GALOIS_STRIDES, ELEMENTS, strict=True):
        result = phase(desk.secret, RING.reduced(desk.public.apply_galois(block, stride)))
        difference = result - turned(before, element)
        assert 0.5 * SWITCH_DEVIATION < difference.std() < 1.5 * SWITCH_DEVIATION
        assert np.abs(difference).max() < 7 * SWITCH_DEVIATION


def test_automorphisms_keep_and_negate_as_merging_needs() -> None:
    for stride, element in zip(GALOIS_STRIDES, ELEMENTS, strict=True):
        polynomial = np.arange(1.0, DEGREE + 1)
        image = turned(polynomial, element)
        assert (image[::stride] == polynomial[::stride]).all()
        assert (image[stride // 2 :: stride] == -polynomial[stride // 2 :: stride]).all()


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
    assert abs(agreeing - DEGREE / 3) < 8 * np.sqrt(DEGREE * 2 / 9)


def test_parts_of_a_key() -> None:
    """A known answer: hashed once, and it has to stay, since key files have the seed alone."""
    source = key_stream(bytes(range(32)))
    payload = public_payload(ternary(source, DEGREE), source)
    parts = RING.from_bytes(payload[32:], (PARTS, DEGREE))
    assert parts.shape == (5, 46, DEGREE)
    assert (np.abs(parts) <= (np.array(PRIMES)[:, None, None] - 1) / 2).all()
    assert hashlib.sha256(payload).hexdigest()[:16] == KNOWN_PUBLIC
    assert CkksSecretKey(bytes(range(32))).public.payload == payload


KNOWN_PUBLIC = "9b8e2e634c550470"


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
