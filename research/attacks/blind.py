"""Attacks on blind runs: what a party finds in messages without frames, and what crafted ones bring back.

Passive: bytes are taken for the numbers that they would be without encryption and without masks. Active: a
label party makes its public key or its operands up (docs/proofs.md has why ours hold).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import shares
from securefed.crypto.blind.evaluation import PAIRS, Rerandomiser, nonce_polynomials
from securefed.crypto.blind.interface import NONCE_BYTES, Operand, Product
from securefed.crypto.blind.layout import FINE_BITS, bodies_from_bytes, body_bytes, kept_limbs, layout
from securefed.crypto.blind.rlwe import RlweKey, RlwePublic
from securefed.crypto.lattice.ring import DEGREE, PRIMES, RING, multiply, reduce, spectrum
from securefed.crypto.randomness import SEED_BYTES
from securefed.crypto.shares import LIMBS, WIDTH, Floats, Share

Maker = Callable[[bytes, Floats], Rerandomiser]
NONCE = bytes(range(NONCE_BYTES))
WHOLE = Product(1, DEGREE, 1, 51, 51, digit_bits=52)
"""One row of 4,096 columns: a reply that is read at every coefficient."""
LIFT, PAIRS_READ, STEP = 48, 2, 24
"""Bits of the smallest error of a crafted key, above the noise of a reply; how many errors fit in q."""
COMPARED = 64


# Passive


def numbers_of(payload: bytes, count: int, fraction_bits: int = 0) -> Floats:
    """The first `count` numbers of a message, as if they were shares, and 0 where there are fewer."""
    words = len(payload) // 8
    numbers = 3 * words // LIMBS
    used = payload[: shares.size_in_bytes(numbers)]
    data = np.frombuffer(used, dtype="<u8") & np.uint64((1 << 63) - 1)
    share = shares.from_bytes(data.tobytes(), (LIMBS, numbers))[:, :count]
    values = np.zeros(count)
    values[: share.shape[1]] = shares.to_floats(share, fraction_bits)
    return values


def columns_from_cross(own: Floats, cross: Floats) -> Floats:
    """Columns that give `cross` = own' columns: of all that do, the smallest."""
    return np.asarray(np.linalg.lstsq(own.T, cross, rcond=1e-9)[0], dtype=np.float64)


# Active


def rows_of(factor: Floats | Share) -> Operand:
    """A whole factor as an operand."""
    return lambda first, last: factor[..., first:last, :]


def reply(
    product: Product, blocks: list[bytes], right: Floats | Share, keys: Floats, maker: Maker = Rerandomiser
) -> tuple[bytes, Share]:
    """The multiplier's work under any public key."""
    public = RlwePublic(NONCE, keys)
    public._rerandomiser = maker(NONCE, keys)
    work = public.evaluate(product)
    work.add(dict(enumerate(blocks)), rows_of(right))
    return work.finish()


def honest_keys(key: RlweKey) -> Floats:
    return RING.from_bytes(key.public(NONCE), (PAIRS, DEGREE))


def bodies(data: bytes) -> Share:
    """c1 of a reply with one response, at 71 bits: (4, 4096)."""
    return bodies_from_bytes(data[: body_bytes(DEGREE, FINE_BITS)], (1, DEGREE), FINE_BITS)[:, 0]


def _shifted(keys: Floats, errors: dict[int, int]) -> Floats:
    """b_i with a constant more, whose size shows in everything that is read."""
    crafted = keys.copy()
    for pair, constant in errors.items():
        for index, prime in enumerate(PRIMES):
            crafted[index, pair, 0] += constant % prime
            reduce(crafted[index], prime)
    return crafted


def _integers(residues: Floats) -> list[int]:
    """Centred numbers modulo q from residues."""
    q = RING.modulus
    factors = [q // p * pow(q // p, -1, p) for p in PRIMES]
    sums = [sum(int(r) * f for r, f in zip(each, factors, strict=True)) % q for each in residues.T]
    return [v - q if v > q // 2 else v for v in sums]


def _distance(data: bytes, right: int, seed: bytes, known: NDArray[np.int64]) -> int:
    """How far c1 is from right * a + sum of a_i x_i: the largest of some coefficients."""
    plan = layout(WHOLE)
    (panel,) = plan.panels
    residues, nonce = np.empty((len(PRIMES), DEGREE)), nonce_polynomials(NONCE)
    for index, prime in enumerate(PRIMES):
        values = RING.expand(seed, plan.chunks(1)[0].label, index, DEGREE)
        random = RING.y_domain(index, panel.rows).interpolate(values.reshape(panel.rows, -1)).reshape(-1)
        total = reduce(random * float(right % prime), prime)
        for pair, x in enumerate(known):
            factor = spectrum(x.astype(np.float64))
            total += reduce(multiply(nonce[index, pair][None].copy(), factor)[0], prime)
        residues[index] = reduce(total, prime)
    worst = 0
    for limbs, guess in zip(bodies(data)[:, :COMPARED].T, _integers(residues[:, :COMPARED]), strict=True):
        seen = sum(int(limb) << (21 * (LIMBS - kept_limbs(FINE_BITS) + i)) for i, limb in enumerate(limbs))
        far = (seen - (guess << WIDTH) // RING.modulus) % (1 << WIDTH)
        worst = max(worst, min(far, (1 << WIDTH) - far))
    return worst


def crafted_key(key: RlweKey, maker: Maker, secret: int) -> tuple[list[int], NDArray[np.int64]]:
    """Which of eight multipliers fit a reply under a key whose errors are 2**48 and more.

    The attacker also gets the multiplier's share, so that it reads every coefficient. Returns the multipliers
    that fit, and what was read of the randomness.
    """
    crafted = {i: 1 << (LIFT + STEP * i) for i in range(PAIRS_READ)}
    (block,) = key.encrypt(WHOLE, [0], rows_of(np.zeros((1, DEGREE))))
    right = np.array([[float(secret)]])
    data, share = reply(WHOLE, [block], right, _shifted(honest_keys(key), crafted), maker)
    read = shares.to_integers(shares.add(key.read(WHOLE, data), share)[:, :, 0])
    digits = np.zeros((PAIRS_READ, DEGREE), dtype=np.int64)
    for place, number in enumerate(read):
        value = ((number if number < 1 << (WIDTH - 1) else number - (1 << WIDTH)) * RING.modulus) >> WIDTH
        for i in range(PAIRS_READ):
            whole = (value + (1 << (LIFT - 1))) >> LIFT
            digit = ((whole >> (STEP * i)) + (1 << (STEP - 1))) % (1 << STEP) - (1 << (STEP - 1))
            digits[i, place] = digit
            value -= digit << (LIFT + STEP * i)
    known = digits[:1] if np.abs(digits[0]).max() <= 1 else digits
    near = 1 << (WIDTH - FINE_BITS + 4)
    guesses = range(secret - 4, secret + 4)
    fits = [guess for guess in guesses if _distance(data, guess, block[:SEED_BYTES], known) < near]
    return fits, digits


def large_operand(key: RlweKey, secret: int) -> set[int]:
    """What stands above 2**85 in the readings of U = 2**85: V, under masks that do not fill the modulus."""
    product = Product(1, 8, 1, WIDTH, 20)
    large = shares.shift_left(shares.from_integers(np.ones((1, 8), dtype=np.int64)), 85)
    (block,) = key.encrypt(product, [0], rows_of(large))
    data, _ = reply(product, [block], np.array([[float(secret)]]), honest_keys(key))
    return {number >> 85 for number in shares.to_integers(key.read(product, data)[:, :, 0])}
