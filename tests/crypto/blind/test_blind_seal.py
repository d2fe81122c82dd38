"""SEAL with the same ring and primes: each side reads what the other encrypts."""

from __future__ import annotations

import numpy as np
import pytest
import tenseal.sealapi as seal

from securefed.crypto.blind.interface import Product
from securefed.crypto.blind.layout import layout
from securefed.crypto.blind.rlwe import encrypted_block
from securefed.crypto.lattice.ring import DEGREE, PRIMES, RING, multiply, reduce, spectrum
from securefed.crypto.randomness import SEED_BYTES, key_stream, ternary
from tests.crypto.blind.cross_cases import whole
from tests.crypto.blind.integer_ring import MODULUS, WIDTH, centred, combined
from tests.crypto.seal_peer import Peer, canonical, read

SEED = bytes(range(32))
LARGEST_ERROR = 21
"""SEAL draws errors from the same centred binomial of 42 bits, or cuts normals at 19.2."""


@pytest.fixture(scope="module")
def peer() -> Peer:
    return Peer()


def test_seal_decrypts_what_ours_encrypts(peer: Peer) -> None:
    product, secret = Product(4, 1024, 1, 50, 10), ternary(key_stream(SEED), DEGREE)
    u = whole(np.random.default_rng(0), 50, 4, 1024)
    plan = layout(product)
    (panel,) = [each for each in plan.panels if each.first == 0]
    message = encrypted_block(key_stream(SEED, b"encrypt"), secret, plan, u)
    chunk = plan.chunks(4)[0]
    assert chunk.total == panel.ciphertexts(4)
    heads = RING.from_bytes(message[SEED_BYTES : SEED_BYTES + chunk.size], (chunk.total, DEGREE))
    bodies = []
    for index in range(5):
        values = RING.expand(message[:SEED_BYTES], chunk.label, index, chunk.total * DEGREE)
        result = RING.y_domain(index, panel.rows).interpolate(values.reshape(panel.rows, -1))
        bodies.append(result.reshape(panel.rows, chunk.total, panel.span)[:, 0].reshape(DEGREE))
    pair = np.stack([canonical(heads[:, 0]), canonical(np.stack(bodies))])
    plain = seal.Plaintext()
    seal.Decryptor(peer.context, peer.secret_key(secret)).decrypt(peer.ciphertext(peer.to_ntt(pair)), plain)
    words = read(plain.dyn_array()).reshape(1, 5, DEGREE)
    numbers = combined(peer.from_ntt(words)[0].astype(int).tolist())
    for row in range(panel.rows):
        for entry in range(panel.span):
            value = int(u[row, entry]) if row < 4 and entry < panel.width else 0
            due = (2 * MODULUS * value + (1 << WIDTH)) // (2 << WIDTH)
            assert abs(centred(numbers[row * panel.span + entry] - due)) <= 22


def test_ours_decrypts_what_seal_encrypts(peer: Peer) -> None:
    secret = ternary(key_stream(SEED, b"another"), DEGREE)
    rng = np.random.default_rng(1)
    numbers = [int(x) * 2**50 + int(y) for x, y in rng.integers(0, 2**50, (DEGREE, 2))]
    residues = np.array([[number % prime for number in numbers] for prime in PRIMES], dtype=np.uint64)
    encryptor = seal.Encryptor(peer.context, peer.secret_key(secret))
    sent = seal.Ciphertext()
    encryptor.encrypt_symmetric(peer.plaintext(peer.to_ntt(residues[None])[0]), sent)
    heads, bodies = peer.from_ntt(peer.read(sent)).astype(np.float64)
    result = np.stack(
        [
            reduce(heads[index] + multiply(bodies[index][None], spectrum(secret))[0], prime)
            for index, prime in enumerate(PRIMES)
        ]
    )
    opened = combined(result.astype(int).tolist())
    errors = [centred(x - y) for x, y in zip(opened, numbers, strict=True)]
    assert max(map(abs, errors)) <= LARGEST_ERROR
    assert any(errors)
