"""The lattice scheme from end to end against Python integers; known answers; mappers; refusals."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np
import pytest

from securefed.crypto import shares
from securefed.crypto.blind import layout as layouts
from securefed.crypto.blind.evaluation import PAIRS
from securefed.crypto.blind.interface import Product
from securefed.crypto.blind.layout import layout
from securefed.crypto.blind.rlwe import RLWE, RlweEvaluation, RlweKey, encrypted_block, public_polynomials
from securefed.crypto.lattice.ring import PRIMES
from securefed.crypto.randomness import SEED_BYTES, key_stream, normals, ternary
from securefed.crypto.scheme import Mapper, Serial
from securefed.crypto.shares import uniform_from
from securefed.engine import Processes
from securefed.errors import BadKey, FormatError, RangeError, ShapeError
from tests.crypto.blind.cross_cases import operand, whole
from tests.crypto.blind.integer_ring import (
    DEGREE,
    MODULUS,
    WIDTH,
    centred,
    combined,
    expanded,
    multiplied,
    unpacked,
)

T = TypeVar("T")
R = TypeVar("R")
SEED, NONCE = bytes(range(32)), bytes(range(1, 33))
SMALL = Product(20, 5, 3, 30, 20)


def example() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return whole(rng, 30, 20, 5), whole(rng, 20, 20, 3)


def answered() -> tuple[bytes, bytes, bytes, shares.Share]:
    """A public key, a block, the reply and the multiplier's share, all from fixed key streams."""
    u, v = example()
    secret = ternary(key_stream(SEED), DEGREE)
    message = encrypted_block(key_stream(SEED, b"encrypt"), secret, layout(SMALL), u)
    public = public_polynomials(secret, NONCE, key_stream(SEED, b"public"))
    running = RLWE.load_public(public, NONCE).evaluate(SMALL)
    assert isinstance(running, RlweEvaluation)
    running._source = key_stream(SEED, b"finish")
    running.add({0: message}, operand(v))
    return public, message, *running.finish()


def naive_random(seed: bytes, span: int, count: int) -> list[list[int]]:
    """c1 of each ciphertext modulo q: expanded at the roots of Y**t = -1, then interpolated."""
    rows, per_prime = DEGREE // span, []
    for index, prime in enumerate(PRIMES):
        values = expanded(seed, b"c1\0\0\0\0", index, count * DEGREE)
        generator = next(g for g in range(2, 99) if pow(g, (prime - 1) // 2, prime) != 1)
        root = pow(generator, (prime - 1) // (2 * rows), prime)
        share = pow(rows, -1, prime)
        table = [
            [pow(root, -(2 * h + 1) * s, prime) * share % prime for h in range(rows)] for s in range(rows)
        ]
        cells = np.array(values, dtype=object).reshape(rows, count * span)
        result = np.array(table, dtype=object) @ cells % prime
        per_prime.append(result.reshape(rows, count, span).transpose(1, 0, 2).reshape(count, DEGREE))
    return [combined([each[u].tolist() for each in per_prime]) for u in range(count)]


def naive_residues(data: bytes, shape: tuple[int, int]) -> list[list[int]]:
    """Polynomials modulo q of packed residues, (5, count, 4096)."""
    flat = np.array(unpacked(data, 5 * shape[0] * shape[1]), dtype=object).reshape(5, *shape)
    for index, prime in enumerate(PRIMES):
        flat[index] = (flat[index] - (prime - 1) // 2) % prime
    return [combined([each[u].tolist() for each in flat]) for u in range(shape[0])]


def naive_bodies(data: bytes) -> list[int]:
    """4096 numbers of 71 bits: three limbs each, then the lowest byte of each."""
    limbs, lowest = unpacked(data[: 8 * DEGREE], 3 * DEGREE), data[8 * DEGREE :]
    return [
        lowest[i] + sum(limbs[limb * DEGREE + i] << (8 + 21 * limb) for limb in range(3))
        for i in range(DEGREE)
    ]


def test_everything_in_python_integers() -> None:
    """Encrypt, multiply, re-randomise, switch, mask and read, each step by its definition."""
    u, v = example()
    plan = layout(SMALL)
    (panel,) = plan.panels
    count = panel.ciphertexts(20)
    s = ternary(key_stream(SEED), DEGREE).tolist()
    public, message, reply, share = answered()

    # The message: c0 + c1 s is round(q U / 2**105) at its places, but for errors of at most 21.
    randoms = naive_random(message[:SEED_BYTES], panel.span, count)
    heads = naive_residues(message[SEED_BYTES:], (count, DEGREE))
    for number in range(count):
        plain = [x + y for x, y in zip(heads[number], multiplied(randoms[number], s), strict=True)]
        for row in range(panel.rows):
            for entry in range(panel.span):
                at = number * panel.rows + row
                value = int(u[at, entry]) if at < 20 and entry < 5 else 0
                due = (2 * MODULUS * value + (1 << WIDTH)) // (2 << WIDTH)
                assert abs(centred(plain[row * panel.span + entry] - due)) <= 21

    # The products, with V's columns at their places.
    bodies = [[0] * DEGREE for _ in range(panel.responses)]
    tops = [[0] * DEGREE for _ in range(panel.responses)]
    for number in range(count):
        for column in range(3):
            factor = [0] * (2 * DEGREE)
            for row in range(min(panel.rows, 20 - number * panel.rows)):
                power = (column % panel.group) * panel.width - row * panel.span
                factor[power % (2 * DEGREE)] += int(v[number * panel.rows + row, column])
            folded = [x - y for x, y in zip(factor[:DEGREE], factor[DEGREE:], strict=True)]
            place = column // panel.group
            for into, parts in ((bodies, randoms), (tops, heads)):
                product = multiplied(parts[number], folded)
                into[place] = [x + y for x, y in zip(into[place], product, strict=True)]

    # Re-randomisation by the same normals.
    source = key_stream(SEED, b"finish")
    drawn = normals(source, (PAIRS + 1) * panel.responses * DEGREE)
    drawn = drawn.reshape(PAIRS + 1, panel.responses, DEGREE).astype(int)
    keys = naive_residues(public, (PAIRS, DEGREE))
    nonce = [expanded(NONCE, b"nonce", index, PAIRS * DEGREE) for index in range(5)]
    for place in range(panel.responses):
        bodies[place] = [x + y for x, y in zip(bodies[place], drawn[0, place].tolist(), strict=True)]
        for pair in range(PAIRS):
            a = combined([each[pair * DEGREE : (pair + 1) * DEGREE] for each in nonce])
            x = drawn[pair + 1, place].tolist()
            for into, known in ((bodies, a), (tops, keys[pair])):
                into[place] = [p + q for p, q in zip(into[place], multiplied(known, x), strict=True)]
    mask = shares.to_integers(uniform_from(source, 5, 3))

    # The reply, bit for bit but for what rounding leaves open.
    size = 9 * DEGREE
    different = 0
    switched = []
    for place in range(panel.responses):
        own = naive_bodies(reply[place * size : (place + 1) * size])
        dues = [(2 * (x % MODULUS) * 2**71 + MODULUS) // (2 * MODULUS) % 2**71 for x in bodies[place]]
        gaps = [abs(centred(x - y, 2**71)) for x, y in zip(own, dues, strict=True)]
        assert max(gaps) <= 1
        different += sum(gaps)
        switched.append([x << 34 for x in own])
    # Rounding to 84 bits first moves one coefficient in 2**13 across the middle.
    assert different <= 4
    entries = unpacked(reply[panel.responses * size :], 75)
    sent = [sum(entries[15 * limb + i] << (21 * limb) for limb in range(5)) for i in range(15)]
    for entry in range(15):
        i, j = divmod(entry, 3)
        place, at = j // panel.group, (j % panel.group) * panel.width + i
        due = (2 * (tops[place][at] % MODULUS) * 2**WIDTH + MODULUS) // (2 * MODULUS)
        assert centred(sent[entry] - due - mask[entry], 2**WIDTH) == 0
        assert shares.to_integers(share)[entry] == -mask[entry] % 2**WIDTH

    # Reading.
    key = RlweKey(SEED)
    result = shares.to_integers(key.read(SMALL, reply))
    for entry in range(15):
        i, j = divmod(entry, 3)
        place, at = j // panel.group, (j % panel.group) * panel.width + i
        product = multiplied(switched[place], s, 2**WIDTH)
        assert result[entry] == (sent[entry] + product[at]) % 2**WIDTH


def test_known_answers() -> None:
    """Of the bytes that the test above compares with integers."""
    result = [hashlib.sha256(data).hexdigest()[:16] for data in answered()[:3]]
    assert result == ["54f0d9768ea901f7", "e65536cfaffbc32a", "e5daf1f94e86d6e8"]
    assert hashlib.sha256(RlweKey(SEED).public(NONCE)).hexdigest()[:16] == "94b44d1c567e5dc7"


def test_the_same_nonce_gets_the_same_public_key() -> None:
    """Fresh errors for the same polynomials could be averaged away."""
    key = RLWE.generate()
    assert key.public(NONCE) == key.public(NONCE)
    assert key.public(NONCE) != key.public(SEED)
    assert RLWE.generate().public(NONCE) != key.public(NONCE)


def test_encryptions_of_the_same_rows_differ() -> None:
    u, _ = example()
    key = RLWE.generate()
    first, second = key.encrypt(SMALL, [0, 0], operand(u))
    assert first[:SEED_BYTES] != second[:SEED_BYTES]
    assert first != second


def test_a_kept_key_has_32_bytes() -> None:
    key = RLWE.generate()
    assert len(key.to_bytes()) == SEED_BYTES
    assert RLWE.load_key(key.to_bytes()).public(NONCE) == key.public(NONCE)
    for wrong in (b"", key.to_bytes()[:-1], key.to_bytes() + b"\0"):
        with pytest.raises(BadKey, match="secret key"):
            RLWE.load_key(wrong)


def test_work_with_the_secret_key_stays_with_the_local_mapper() -> None:
    """Other pieces carry public numbers and the multiplier's own rows."""

    class Watched(Serial):
        def __init__(self, pieces_seen: list[object]) -> None:
            self.pieces_seen, self.near = pieces_seen, []  # type: list[object], list[object]

        @property
        def local(self) -> Mapper:
            return Watched(self.near)

        def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
            pieces = list(items)
            self.pieces_seen.extend(pieces)
            return [function(piece) for piece in pieces]

    u, v = example()
    mapper, key = Watched([]), RlweKey(SEED)
    messages = key.encrypt(SMALL, [0, 0], operand(u), mapper)
    assert (len(mapper.pieces_seen), len(mapper.near)) == (0, 2)
    evaluation = RLWE.load_public(key.public(NONCE), NONCE).evaluate(SMALL)
    evaluation.add({0: messages[0]}, operand(v), mapper)
    carried = pickle.dumps(mapper.pieces_seen)
    assert key._secret.tobytes() not in carried
    assert SEED not in carried


def test_sums_do_not_depend_on_the_mapper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "BLOCK_BYTES", 60_000)
    product = Product(200, 51, 2, 20, 10)
    rng = np.random.default_rng(5)
    u, v = whole(rng, 20, 200, 51), whole(rng, 10, 200, 2)
    key = RLWE.generate()
    public = RLWE.load_public(key.public(NONCE), NONCE)
    numbers = range(len(key.lengths.blocks(product)))
    assert len(numbers) > 2
    with Processes(2) as workers:
        messages = dict(zip(numbers, key.encrypt(product, numbers, operand(u), workers), strict=True))
        parallel, serial = public.evaluate(product, SEED), public.evaluate(product, SEED)
        parallel.add(messages, operand(v), workers)
    serial.add(messages, operand(v))
    assert parallel.finish()[0] == serial.finish()[0]


def test_a_residue_that_is_too_large_is_refused_and_does_not_count() -> None:
    u, v = example()
    key = RLWE.generate()
    evaluation = RLWE.load_public(key.public(NONCE), NONCE).evaluate(SMALL)
    (message,) = key.encrypt(SMALL, [0], operand(u))
    for wrong, words in ((b"\xff" * 8, "a bit is set"), (b"\xff" * 7 + b"\x7f", "is allowed")):
        damaged = message[:SEED_BYTES] + wrong + message[SEED_BYTES + 8 :]
        with pytest.raises(FormatError, match=words):
            evaluation.add({0: damaged}, operand(v))
    evaluation.add({0: message}, operand(v))
    evaluation.finish()


def test_a_public_key_with_a_residue_that_is_too_large_is_refused() -> None:
    data = RLWE.generate().public(NONCE)
    with pytest.raises(BadKey, match="public key: a residue is 2097151"):
        RLWE.load_public(b"\xff" * 7 + b"\x7f" + data[8:], NONCE)


@pytest.mark.parametrize("product", [SMALL, Product(20, 5, 3)], ids=["narrow", "digits"])
@pytest.mark.parametrize("wrong", [2.0**53, np.inf, np.nan])
def test_floats_out_of_range_are_refused(product: Product, wrong: float) -> None:
    u, v = example()
    key = RLWE.generate()
    evaluation = RLWE.load_public(key.public(NONCE), NONCE).evaluate(product)
    (message,) = key.encrypt(product, [0], operand(u))
    u[3, 2], v[7, 1] = wrong, wrong * 2.0**60
    with pytest.raises(RangeError, match="left factor"):
        key.encrypt(product, [0], operand(u))
    with pytest.raises(RangeError, match="right factor"):
        evaluation.add({0: message}, operand(v))


def test_long_numbers_out_of_range_are_refused() -> None:
    product = Product(2, 1, 1, 60, 72)
    key = RLWE.generate()
    evaluation = RLWE.load_public(key.public(NONCE), NONCE).evaluate(product)
    (message,) = key.encrypt(product, [0], lambda first, last: np.ones((2, 1)))
    long = np.zeros((5, 2, 1), dtype=np.int64)
    long[4] = 1
    with pytest.raises(RangeError, match="right factor"):
        evaluation.add({0: message}, operand(long))


def test_factors_of_another_shape_are_refused() -> None:
    key = RLWE.generate()
    with pytest.raises(ShapeError, match="left factor: rows 0 to 20 have shape"):
        key.encrypt(SMALL, [0], lambda first, last: np.ones((last - first, 4)))


def test_a_key_does_not_show_itself() -> None:
    key = RlweKey(SEED)
    assert repr(key) == "<rlwe key>"
    secret = key._secret
    key.erase()
    assert not secret.any()
    assert repr(key) == "<rlwe key (erased)>"
