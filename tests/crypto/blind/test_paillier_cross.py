"""`cross` under Paillier: slots, products, what each side sees, and what is refused."""

from __future__ import annotations

import pickle
import secrets
from collections.abc import Callable, Iterable
from typing import TypeVar

import gmpy2
import numpy as np
import pytest
from gmpy2 import mpz
from numpy.typing import NDArray

from securefed.crypto import shares
from securefed.crypto.blind import paillier as module
from securefed.crypto.blind.interface import (
    NONCE_BYTES,
    CrossKey,
    CrossPublic,
    Evaluation,
    Operand,
    Product,
    limbs_of,
)
from securefed.crypto.blind.paillier import KEY_BITS, PAILLIER, PaillierCrossKey, Slots, paillier_scheme
from securefed.crypto.paillier import keys
from securefed.crypto.paillier.keys import (
    PaillierPublicKey,
    PaillierSecretKey,
    challenges,
    prove,
    roots_needed,
    verify,
)
from securefed.crypto.paillier.primes import PrimePair
from securefed.crypto.randomness import uniform_many_below
from securefed.crypto.scheme import SERIAL, Mapper
from securefed.crypto.shares import Floats, Share
from securefed.crypto.wire import Frame, Kind, fingerprint
from securefed.errors import BadCiphertext, BadKey, CapacityError, FormatError, RangeError, ShapeError
from tests.crypto.blind.paillier_case import PAILLIER_SMALL, SMALL_BITS

NONCE = bytes(range(NONCE_BYTES))
MODULUS = 1 << shares.WIDTH
T = TypeVar("T")
R = TypeVar("R")


class Pickling:
    """Three workers, each of which gets what a pickle carries."""

    workers = 3

    @property
    def local(self) -> Mapper:
        return self

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        return [function(pickle.loads(pickle.dumps(item))) for item in items]  # noqa: S301


@pytest.fixture(scope="module")
def key() -> CrossKey:
    return PAILLIER_SMALL.generate()


@pytest.fixture(scope="module")
def public(key: CrossKey) -> CrossPublic:
    return PAILLIER_SMALL.load_public(key.public(NONCE), NONCE)


def rows_of(factor: Floats | Share) -> Operand:
    """A whole factor as an operand."""
    if factor.dtype == np.int64:
        return lambda first, last: factor[:, first:last]
    return lambda first, last: factor[first:last]


def limbs(factor: Floats | Share) -> Share:
    return limbs_of(factor)


def evaluated(
    key: CrossKey, public: CrossPublic, product: Product, left: Floats | Share, right: Floats | Share
) -> Evaluation:
    numbers = range(len(key.lengths.blocks(product)))
    evaluation = public.evaluate(product)
    for number, block in zip(numbers, key.encrypt(product, numbers, rows_of(left)), strict=True):
        evaluation.add({number: block}, rows_of(right))
    return evaluation


def errors(first: Share, second: Share, left: Floats | Share, right: Floats | Share) -> list[int]:
    """The sum of the shares less U'V, entry by entry, nearest to 0."""
    exact = shares.matmul(limbs(left).transpose(0, 2, 1), limbs(right))
    off = shares.to_integers(shares.subtract(shares.add(first, second), exact))
    return [x - MODULUS if 2 * x >= MODULUS else x for x in off]


def whole(rng: np.random.Generator, bits: int, *shape: int) -> Floats:
    """Whole numbers up to 2**bits in magnitude, the largest of either sign among them."""
    values = np.rint(rng.uniform(-1, 1, shape) * 2.0**bits)
    values.flat[0], values.flat[-1] = 2.0**bits, -(2.0**bits)
    return values


# Products


@pytest.mark.parametrize(
    ("inner", "left", "right", "left_bits", "right_bits"),
    [(1, 1, 1, 1, 1), (7, 3, 2, 40, 20), (60, 9, 5, 34, 26), (9, 1, 4, 50, 50), (5, 7, 1, 12, 50)],
)
def test_sums_of_narrow_factors_are_exact(
    key: CrossKey,
    public: CrossPublic,
    inner: int,
    left: int,
    right: int,
    left_bits: int,
    right_bits: int,
) -> None:
    """All but 2**-34 of them, or 2**-2 for 50 and 50 bits, where one unit is allowed."""
    rng = np.random.default_rng(inner)
    product = Product(inner, left, right, left_bits, right_bits)
    u, v = whole(rng, left_bits, inner, left), whole(rng, right_bits, inner, right)
    reply, second = evaluated(key, public, product, u, v).finish()
    off = errors(key.read(product, reply), second, u, v)
    assert set(off) <= ({0, 1} if left_bits + right_bits == 100 else {0})


@pytest.mark.parametrize("shape", [(1, 1, 1), (4, 3, 5), (21, 2, 3)])
def test_sums_of_uniform_factors_are_one_unit_off_at_most(
    key: CrossKey, public: CrossPublic, shape: tuple[int, int, int]
) -> None:
    inner, left, right = shape
    product, u, v = Product(*shape), shares.uniform(inner, left), shares.uniform(inner, right)
    reply, second = evaluated(key, public, product, u, v).finish()
    off = errors(key.read(product, reply), second, u, v)
    assert set(off) <= {0, 1} and off[0] == 0


@pytest.mark.parametrize("bits", [30, 80, 102, 103, 104, 105])
def test_limbs_of_every_size(key: CrossKey, public: CrossPublic, bits: int) -> None:
    """The largest of either sign, and both forms of a factor in one product."""
    rng = np.random.default_rng(bits)
    edge = [(1 << bits) - 1, -(1 << bits) + 1, 0, 1, -1, 1 << (bits - 1)]
    wide = np.stack([shares.from_integer(x) for x in edge], axis=1).reshape(shares.LIMBS, 6, 1)
    narrow = whole(rng, 20, 6, 2)
    for product, u, v in (
        (Product(6, 1, 2, bits, 20), wide, narrow),
        (Product(6, 2, 1, 20, bits), narrow, wide),
        (Product(6, 1, 1, bits, bits), wide, wide),
    ):
        reply, second = evaluated(key, public, product, u, v).finish()
        assert set(errors(key.read(product, reply), second, u, v)) <= {0, 1}


def test_blocks_in_any_order_and_number_and_mapper(
    key: CrossKey, public: CrossPublic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK_BYTES", 512)
    monkeypatch.setattr(keys, "WORTH_TABLES_ELSEWHERE", 2)
    rng = np.random.default_rng(3)
    product, u, v = Product(23, 2, 3, 30, 30), whole(rng, 30, 23, 2), whole(rng, 30, 23, 3)
    assert key.lengths.blocks(product) == public.lengths.blocks(product)
    assert [last - first for first, last in key.lengths.blocks(product)] == [4, 4, 4, 4, 4, 3]
    order = [4, 0, 5, 1, 2, 3]
    blocks = dict(zip(order, key.encrypt(product, order, rows_of(u), Pickling()), strict=True))
    evaluation = public.evaluate(product)
    for some in ([5, 0], [], [3], [1, 4, 2]):
        mapper = Pickling() if len(some) == 3 else SERIAL
        evaluation.add({number: blocks[number] for number in some}, rows_of(v), mapper)
    reply, second = evaluation.finish()
    assert set(errors(key.read(product, reply), second, u, v)) == {0}


def test_a_zero_factor_takes_the_same_bytes(key: CrossKey, public: CrossPublic) -> None:
    product, u = Product(5, 2, 2, 30, 30), np.ones((5, 2))
    replies = [evaluated(key, public, product, u, v).finish() for v in (np.zeros((5, 2)), u)]
    assert len(replies[0][0]) == len(replies[1][0])
    assert set(errors(key.read(product, replies[0][0]), replies[0][1], u, np.zeros((5, 2)))) == {0}


@pytest.mark.slow
def test_real_sizes() -> None:
    rng = np.random.default_rng(4)
    key = PAILLIER.generate()
    public = PAILLIER.load_public(key.public(NONCE), NONCE)
    product, u, v = Product(12, 2, 30, 34, 26), whole(rng, 34, 12, 2), whole(rng, 26, 12, 30)
    reply, second = evaluated(key, public, product, u, v).finish()
    assert len(reply) == 3 * 2 * KEY_BITS // 8 and key.lengths.blocks(product) == [(0, 12)]
    assert set(errors(key.read(product, reply), second, u, v)) == {0}


# Slots


def test_slots_follow_from_public_sizes() -> None:
    uniform = Slots.of(Product(21, 24, 21), 3072)
    assert uniform == Slots(24, 21, 214, 215, 14)
    assert (uniform.groups, uniform.columns, uniform.outputs, uniform.replies) == (2, 12, 1, 42)
    narrow = Slots.of(Product(500, 11, 10, 34, 26), 3072)
    assert narrow == Slots(11, 10, 69, 105, 28)
    assert (narrow.groups, narrow.columns, narrow.outputs, narrow.replies) == (1, 11, 2, 5)
    single = Slots.of(Product(500, 1, 30, 34, 26), 3072)
    assert (single.groups, single.columns, single.outputs, single.replies) == (1, 1, 28, 2)
    with pytest.raises(CapacityError, match="at least 256 are needed"):
        Slots.of(Product(21, 1, 1), 255)


@pytest.mark.parametrize(("left", "right"), [(1, 1), (1, 9), (4, 3), (5, 2), (9, 1), (7, 7), (2, 5)])
def test_every_entry_has_a_place_of_its_own(left: int, right: int) -> None:
    slots = Slots.of(Product(3, left, right, 20, 20), 512)
    assert slots.columns * slots.outputs <= slots.room == 4
    sums = [[100 * i + j + 1 for j in range(right)] for i in range(left)]
    replies = []
    for first in range(0, left, slots.columns):
        for start in range(0, right, slots.outputs):
            chunk = range(start, min(start + slots.outputs, right))
            columns = [sums[i] if i < left else [0] * right for i in range(first, first + slots.columns)]
            replies.append(slots.pack([column[j] for j in chunk for column in columns]))
    assert len(replies) == slots.replies
    assert slots.cut(replies) == [x for line in sums for x in line]


@pytest.mark.parametrize(
    "product", [Product(21, 3, 2), Product(3, 5, 1, 40, 63), Product(1, 7, 1, 50, 52), Product(9, 9, 1, 8, 8)]
)
def test_shares_of_slots_by_brute_force(product: Product) -> None:
    """S or S + 1 for every mask that does not wrap, and as often S + 1 as the bound says."""
    n = int(PrimePair.generate(1024).n)
    slots = Slots.of(product, 1024)
    most, count = (1 << slots.offset_bits) - 1, min(slots.room, product.left)
    one = Slots(count, 1, slots.offset_bits, slots.width, slots.room)
    assert one.replies == 1 and 1 << (one.width * one.room) <= n >> 40
    edges = [[most] * count, [-most] * count, [0] * count, [most, -most] * count, [-most, most] * count]
    drawn = [
        [x % (2 * most + 1) - most for x in (secrets.randbits(300) for _ in range(count))] for _ in range(60)
    ]
    off = total = 0
    for sums in [numbers[:count] for numbers in edges] + drawn:
        packed = int(one.pack(sums) + one.offset)
        assert 0 <= packed < 1 << (one.width * one.room)
        steps = [1 << (one.width * j) for j in range(1, count)]
        special = [0, 1, n - packed - 1, *(s - 1 for s in steps), *steps]
        for mask in special + [int(m) for m in uniform_many_below(n - packed, 40)]:
            z = mpz((packed + mask) % n)
            pairs = zip(one.cut([z]), one.multiplier_share([mpz(mask)]), sums, strict=True)
            errors = [(a + b - exact) % MODULUS for a, b, exact in pairs]
            assert set(errors) <= {0, 1} and errors[0] == 0
            if mask not in special:
                off, total = off + sum(errors), total + len(errors) - 1
    bound = total * 2.0 ** (one.offset_bits + 1 - one.width)
    assert off <= bound + 8 * (total * 0.25) ** 0.5  # eight deviations


def test_a_wrap_is_as_rare_as_the_spare_bits_say() -> None:
    """The mask that wraps exists; there are fewer than n / 2**40 of them."""
    n = int(PrimePair.generate(512).n)
    slots = Slots.of(Product(5, 2, 1), 512)
    packed = int(slots.pack([1 << 200, -5]) + slots.offset)
    assert packed < n >> 40
    mask = n - packed
    pairs = zip(slots.cut([mpz(0)]), slots.multiplier_share([mpz(mask)]), strict=True)
    assert [(a + b) % MODULUS for a, b in pairs] != [(1 << 200) % MODULUS, -5 % MODULUS]


# What each side sees


def chi_square(values: NDArray[np.int64], cells: int) -> float:
    counts = np.bincount(values, minlength=cells)
    expected = len(values) / cells
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("bits", [(30, 30), (105, 105)])
def test_each_share_alone_looks_uniform(key: CrossKey, public: CrossPublic, bits: tuple[int, int]) -> None:
    """16 cells: chi-square passes 120 with a probability below 10**-17. The sums themselves are constant."""
    product = Product(1, 30, 30, *bits)
    u, v = np.full((1, 30), 3.0), np.full((1, 30), -7.0)
    reply, second = evaluated(key, public, product, u, v).finish()
    first = key.read(product, reply)
    for share in (first, second):
        for limb in range(shares.LIMBS):
            for shift in (0, shares.LIMB_BITS - 4):
                assert chi_square((share[limb].ravel() >> shift) & 15, 16) < 120


def test_the_reply_is_a_uniform_unit_whatever_was_sent() -> None:
    """All units mod n**2 of a toy key come out equally often, for a ciphertext that the encryptor chose."""
    p, q = mpz(11), mpz(7)
    n, square = p * q, (p * q) ** 2
    chosen = mpz(5)
    replies = {
        int(chosen * (1 + n * m) * gmpy2.powmod(r, n, square) % square)
        for m in range(n)
        for r in range(1, n)
        if gmpy2.gcd(r, n) == 1
    }
    assert len(replies) == n * (p - 1) * (q - 1)


def test_the_same_product_twice_has_nothing_in_common(key: CrossKey, public: CrossPublic) -> None:
    product, u, v = Product(2, 1, 1, 8, 8), np.ones((2, 1)), np.ones((2, 1))
    blocks = key.encrypt(product, [0], rows_of(u))
    assert blocks != key.encrypt(product, [0], rows_of(u))
    seen = []
    for _ in range(2):
        evaluation = public.evaluate(product)
        evaluation.add({0: blocks[0]}, rows_of(v))
        seen.append(evaluation.finish())
    assert seen[0][0] != seen[1][0] and not np.array_equal(seen[0][1], seen[1][1])


# What is refused


def test_the_default_key_has_3072_bits_and_small_ones_are_refused(key: CrossKey) -> None:
    assert KEY_BITS == 3072 and PAILLIER.name == PAILLIER_SMALL.name == "paillier"
    with pytest.raises(BadKey, match="2048 to 8192"):
        paillier_scheme(1024)
    with pytest.raises(BadKey, match="a modulus of 512 bits given"):
        PAILLIER.load_public(key.public(NONCE), NONCE)
    with pytest.raises(BadKey, match="2048 to 8192"):
        PaillierCrossKey(PaillierSecretKey(PrimePair.generate(64)))


def framed(n: int, roots: Iterable[int]) -> bytes:
    """A public key as anybody can write it, of any n."""
    size = (n.bit_length() + 7) // 8
    payload = n.to_bytes(size, "big") + b"".join(int(root).to_bytes(size, "big") for root in roots)
    parameters = fingerprint(b"paillier", b"g = n + 1", n.bit_length().to_bytes(4, "little"))
    mark = fingerprint(b"paillier", n.to_bytes(size, "big"))
    frame = Frame(Kind.PUBLIC_KEY, "paillier", parameters, mark, payload, (), (size, 0, 0, 0))
    return frame.to_bytes()


def prime(bits: int) -> int:
    return int(PrimePair.generate(2 * bits).p.p)


def common_factor() -> int:
    """n = p q with p dividing q - 1, so that n-th powers are not a permutation."""
    p, k = prime(128), 1 << 128
    while not gmpy2.is_prime(2 * k * p + 1):
        k += 1
    return p * (2 * k * p + 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: prime(128) ** 2 * prime(256), "proof is wrong"),
        (common_factor, "proof is wrong"),
        (lambda: 2 * prime(511), "small factor"),
        (lambda: 3 * prime(510), "small factor"),
        (lambda: prime(256) ** 2, "perfect power"),
        (lambda: prime(512), "n is prime"),
        (lambda: 13 * 17, "bits given"),
    ],
    ids=["square", "common", "even", "three", "power", "prime", "tiny"],
)
def test_bad_moduli_are_refused(make: Callable[[], int], message: str) -> None:
    n = make()
    with pytest.raises(BadKey, match=message) as refused:
        PAILLIER_SMALL.load_public(framed(n, [1] * roots_needed(n.bit_length())), NONCE)
    assert "\n" not in str(refused.value)


def test_the_proof_is_for_one_nonce(key: CrossKey) -> None:
    other = bytes(NONCE_BYTES)
    data = key.public(NONCE)
    PAILLIER_SMALL.load_public(data, NONCE)
    with pytest.raises(BadKey, match="proof is wrong"):
        PAILLIER_SMALL.load_public(data, other)
    with pytest.raises(BadKey, match="32 are due"):
        PAILLIER_SMALL.load_public(data, b"short")
    with pytest.raises(BadKey, match="32 are due"):
        key.public(b"short")


def test_a_context_changes_every_challenge() -> None:
    primes = PrimePair.generate(256)
    n, p, q = primes.n, primes.p.p, primes.q.p
    assert set(challenges(n)).isdisjoint(challenges(n, b"a")) and challenges(n, b"a") != challenges(n, b"b")
    verify(n, prove(p, q, b"a"), b"a")
    for context in (b"", b"b"):
        with pytest.raises(BadKey):
            verify(n, prove(p, q, b"a"), context)


@pytest.mark.parametrize("harm", [lambda d: b"", lambda d: d[:-1], lambda d: d + b"\0", lambda d: d[:50] + d])
def test_damaged_keys_are_refused(key: CrossKey, harm: Callable[[bytes], bytes]) -> None:
    with pytest.raises(BadKey, match="public key: "):
        PAILLIER_SMALL.load_public(harm(key.public(NONCE)), NONCE)


def modulus_of(key: CrossKey) -> PaillierPublicKey:
    assert isinstance(key, PaillierCrossKey)
    return key._side


def test_bad_ciphertexts_are_refused_and_nothing_is_counted(key: CrossKey, public: CrossPublic) -> None:
    product, u, v = Product(4, 1, 1, 8, 8), np.arange(4.0).reshape(4, 1), np.ones((4, 1))
    (good,) = key.encrypt(product, [0], rows_of(u))
    side, evaluation = modulus_of(key), public.evaluate(product)
    assert isinstance(key, PaillierCrossKey)
    size = side.ciphertext_bytes

    def with_second(number: int) -> bytes:
        return good[:size] + int(number).to_bytes(size, "big") + good[2 * size :]

    p, n = int(key._secret._primes.p.p), int(side.n)
    for number, message in (
        (0, "not between 0 and"),
        (n * n, "not between 0 and"),
        (p, "factor in common"),
        (p * 12345, "factor in common"),
        (n, "factor in common"),
    ):
        with pytest.raises(BadCiphertext, match=f"ciphertext 1 of 4 .*{message}") as refused:
            evaluation.add({0: with_second(number)}, rows_of(v))
        assert "\n" not in str(refused.value)
    for wrong in (b"", good[:-1], good + b"\0", good[:-size], good + good[:size]):
        with pytest.raises(FormatError, match=r"block 0: .* bytes given"):
            evaluation.add({0: wrong}, rows_of(v))
    evaluation.add({0: good}, rows_of(v))
    reply, second = evaluation.finish()
    assert errors(key.read(product, reply), second, u, v) == [0]


def test_bad_replies_are_refused(key: CrossKey, public: CrossPublic) -> None:
    product = Product(1, 1, 1, 8, 8)
    reply, _ = evaluated(key, public, product, np.ones((1, 1)), np.ones((1, 1))).finish()
    with pytest.raises(FormatError):
        key.read(product, reply + reply)
    with pytest.raises(BadCiphertext):
        key.read(product, bytes(len(reply)))


def test_every_block_counts_once(key: CrossKey, public: CrossPublic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_BYTES", 128)
    product, u, v = Product(3, 1, 1, 8, 8), np.ones((3, 1)), np.ones((3, 1))
    first, second, third = key.encrypt(product, [0, 1, 2], rows_of(u))
    evaluation = public.evaluate(product)
    with pytest.raises(FormatError, match="3 blocks of the product have not come"):
        evaluation.finish()
    evaluation.add({1: second}, rows_of(v))
    for block in (1, 3, -1):
        with pytest.raises(FormatError, match="not due"):
            evaluation.add({0: first, block: second}, rows_of(v))
    with pytest.raises(FormatError, match="2 blocks of the product have not come"):
        evaluation.finish()
    evaluation.add({0: first, 2: third}, rows_of(v))
    reply, share = evaluation.finish()
    assert errors(key.read(product, reply), share, u, v) == [0]
    with pytest.raises(FormatError, match="answered before"):
        evaluation.finish()
    with pytest.raises(FormatError, match="not due"):
        evaluation.add({0: first}, rows_of(v))


def test_factors_of_another_shape_or_size_are_refused(key: CrossKey, public: CrossPublic) -> None:
    product = Product(2, 1, 1, 8, 8)
    for wrong, error in (
        (np.ones((2, 2)), ShapeError),
        (np.ones((1, 1)), ShapeError),
        (np.full((2, 1), 257.0), RangeError),
        (np.full((2, 1), -257.0), RangeError),
        (np.full((2, 1), np.nan), RangeError),
        (np.full((2, 1), np.inf), RangeError),
        (np.full((2, 1), 2.0**51), RangeError),
        (shares.uniform(2, 2), ShapeError),
        (np.ones((shares.LIMBS, 2, 1), dtype=np.int64), RangeError),
    ):
        with pytest.raises(error):
            key.encrypt(product, [0], rows_of(wrong))
        (block,) = key.encrypt(product, [0], rows_of(np.ones((2, 1))))
        evaluation = public.evaluate(product)
        with pytest.raises(error):
            evaluation.add({0: block}, rows_of(wrong))
        with pytest.raises(FormatError, match="have not come"):
            evaluation.finish()


def test_an_erased_key_does_nothing_more() -> None:
    key = PAILLIER_SMALL.generate()
    public = PAILLIER_SMALL.load_public(key.public(NONCE), NONCE)
    assert isinstance(key, PaillierCrossKey)
    primes = {int(key._secret._primes.p.p), int(key._secret._primes.q.p)}
    assert not any(str(prime) in repr(key._secret) for prime in primes)
    product, ones = Product(1, 1, 1, 8, 8), np.ones((1, 1))
    reply, _ = evaluated(key, public, product, ones, ones).finish()
    key.erase()
    key.erase()
    for use in (
        lambda: key.public(NONCE),
        lambda: key.encrypt(product, [0], rows_of(ones)),
        lambda: key.read(product, reply),
        lambda: key.to_bytes(),
    ):
        with pytest.raises(BadKey, match="erased"):
            use()
    left = [value for value in vars(key).values() if value is not None]
    assert primes.isdisjoint(int(value) for value in left if isinstance(value, mpz | int))


def test_a_kept_key_reads_what_was_made_for_it(key: CrossKey, public: CrossPublic) -> None:
    kept = PAILLIER_SMALL.load_key(key.to_bytes())
    product, u, v = Product(2, 2, 2, 8, 8), np.ones((2, 2)), np.full((2, 2), -3.0)
    reply, second = evaluated(key, public, product, u, v).finish()
    assert set(errors(kept.read(product, reply), second, u, v)) == {0}
    assert kept.public(NONCE) == key.public(NONCE)
    with pytest.raises(FormatError):
        PAILLIER_SMALL.load_key(key.to_bytes()[:-1])
    with pytest.raises(BadKey, match="2048 to 8192"):
        PAILLIER.load_key(key.to_bytes())


def test_two_keys_differ() -> None:
    first, second = (modulus_of(PAILLIER_SMALL.generate()) for _ in range(2))
    assert first.n != second.n and first.bits == second.bits == SMALL_BITS
