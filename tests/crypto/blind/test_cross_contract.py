"""One suite that every implementation of `cross` passes, at real parameters."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest

from securefed.crypto import shares
from securefed.crypto.blind.interface import NONCE_BYTES, CrossKey, Product
from securefed.errors import BadKey, FormatError
from tests.crypto.blind.cross_cases import CASES, Case, begin, cross, distance, limbs, operand, whole

pytestmark = pytest.mark.parametrize("case", CASES, ids=lambda case: case.scheme.name)

SHAPES = {
    "one number": (1, 1, 1),
    "one left column": (300, 1, 7),
    "one right column": (70, 5, 1),
    "one row": (1, 12, 9),
    "a pass": (100, 51, 20),
    "columns slightly above a power of two": (40, 33, 3),
    "more rows than a ciphertext has": (1500, 3, 2),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_shares_of_floats_add_up(case: Case, shape: tuple[int, int, int]) -> None:
    inner, left, right = shape
    rng, product = np.random.default_rng(1), Product(inner, left, right, 50, 26)
    u, v = whole(rng, 50, inner, left), whole(rng, 26, inner, right)
    first, second = cross(case.scheme, product, u, v)
    assert first.shape == second.shape == (shares.LIMBS, left, right)
    assert distance(shares.add(first, second), u, v).max() <= case.bound(product, 2.0**26)


def test_shares_of_long_numbers_add_up(case: Case) -> None:
    """Of 66 and of 72 bits, as scores need them."""
    rng, product = np.random.default_rng(2), Product(30, 6, 4, 66, 72)
    u, v = limbs(rng, 66, 30, 6), limbs(rng, 72, 30, 4)
    total = shares.add(*cross(case.scheme, product, u, v))
    assert distance(total, u, v).max() <= case.bound(product, 2.0**71)


def test_shares_of_uniform_numbers_add_up(case: Case) -> None:
    product = Product(21, 5, 13)
    u, v = shares.uniform(21, 5), shares.uniform(21, 13)
    total = shares.add(*cross(case.scheme, product, u, v))
    assert distance(total, u, v).max() <= case.bound(product, None)


def test_several_blocks_add_up(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*case.block)
    rng, product = np.random.default_rng(3), case.several
    u, v = whole(rng, 20, product.inner, product.left), whole(rng, 10, product.inner, product.right)
    key, evaluation = begin(case.scheme, product)
    places = key.lengths.blocks(product)
    assert [first for first, _ in places] == [0, *(last for _, last in places[:-1])]
    assert places[-1][1] == product.inner
    assert len(places) > 1
    for block in reversed(range(len(places))):
        evaluation.add({block: key.encrypt(product, [block], operand(u))[0]}, operand(v))
    reply, second = evaluation.finish()
    total = shares.add(key.read(product, reply), second)
    error = np.abs(shares.to_floats(total, 0) - u.T @ v)  # below 2**53, so floats are exact
    assert error.max() <= case.bound(product, 2.0**10)


def test_zeros_take_the_same_messages(case: Case) -> None:
    """Nothing is skipped: sizes do not tell zeros from other numbers."""
    product, sizes = Product(20, 4, 3, 20, 20), set()
    for u, v in [(np.zeros((20, 4)), np.zeros((20, 3))), (np.ones((20, 4)), np.ones((20, 3)))]:
        key, evaluation = begin(case.scheme, product)
        messages = key.encrypt(product, [0], operand(u))
        evaluation.add({0: messages[0]}, operand(v))
        sizes.add((len(messages[0]), len(evaluation.finish()[0])))
    assert len(sizes) == 1


def test_each_share_alone_is_uniform(case: Case) -> None:
    """Chi-square on the highest 6 bits of every limb.

    With d degrees of freedom it is above d + 2 sqrt(d x) + 2 x with a chance below exp(-x) (Laurent and
    Massart): x = 24 is one false alarm in 10**10.
    """
    product, degrees, x = Product(3, 40, 60, 10, 10), 63, 24.0
    most = degrees + 2 * math.sqrt(degrees * x) + 2 * x
    for share in cross(case.scheme, product, np.ones((3, 40)), np.ones((3, 60))):
        for limb in share:
            counts = np.bincount(limb.reshape(-1) >> (shares.LIMB_BITS - 6), minlength=64)
            due = limb.size / 64
            assert float(((counts - due) ** 2).sum() / due) < most


def test_masks_are_fresh(case: Case) -> None:
    product = Product(2, 2, 2, 10, 10)
    seconds = [cross(case.scheme, product, np.ones((2, 2)), np.ones((2, 2)))[1] for _ in range(2)]
    assert not np.array_equal(seconds[0], seconds[1])


@pytest.mark.parametrize("change", [lambda m: m[:-1], lambda m: m + b"\0", lambda m: b""])
def test_a_block_of_another_length_is_refused_and_does_not_count(case: Case, change: object) -> None:
    product, one = Product(4, 2, 2, 10, 10), np.ones((4, 2))
    key, evaluation = begin(case.scheme, product)
    (message,) = key.encrypt(product, [0], operand(one))
    with pytest.raises(FormatError, match="bytes given"):
        evaluation.add({0: change(message)}, operand(one))  # type: ignore[operator]
    evaluation.add({0: message}, operand(one))
    reply, second = evaluation.finish()
    total = shares.add(key.read(product, reply), second)
    assert distance(total, one, one).max() <= case.bound(product, 1.0)


def test_a_block_counts_once(case: Case) -> None:
    product, one = Product(4, 2, 2, 10, 10), np.ones((4, 2))
    key, evaluation = begin(case.scheme, product)
    (message,) = key.encrypt(product, [0], operand(one))
    evaluation.add({0: message}, operand(one))
    with pytest.raises(FormatError, match="block 0 is not due"):
        evaluation.add({0: message}, operand(one))
    with pytest.raises(FormatError, match="block 7 is not due"):
        evaluation.add({7: message}, operand(one))


def test_a_missing_block_is_noticed(case: Case) -> None:
    _, evaluation = begin(case.scheme, Product(4, 2, 2, 10, 10))
    with pytest.raises(FormatError, match="1 blocks of the product have not come"):
        evaluation.finish()


def test_a_product_is_answered_once(case: Case) -> None:
    product, one = Product(4, 2, 2, 10, 10), np.ones((4, 2))
    key, evaluation = begin(case.scheme, product)
    evaluation.add({0: key.encrypt(product, [0], operand(one))[0]}, operand(one))
    evaluation.finish()
    with pytest.raises(FormatError, match="answered before"):
        evaluation.finish()


def test_a_reply_to_another_product_is_refused(case: Case) -> None:
    product, one = Product(4, 2, 2, 10, 10), np.ones((4, 2))
    key, evaluation = begin(case.scheme, product)
    evaluation.add({0: key.encrypt(product, [0], operand(one))[0]}, operand(one))
    reply, _ = evaluation.finish()
    with pytest.raises(FormatError, match="bytes given"):
        key.read(Product(4, 3, 2, 10, 10), reply)


def test_a_kept_key_reads_and_encrypts(case: Case) -> None:
    product, rng = Product(4, 2, 2, 10, 10), np.random.default_rng(4)
    u, v = whole(rng, 10, 4, 2), whole(rng, 10, 4, 2)
    key, evaluation = begin(case.scheme, product)
    kept = case.scheme.load_key(key.to_bytes())
    evaluation.add({0: kept.encrypt(product, [0], operand(u))[0]}, operand(v))
    reply, second = evaluation.finish()
    for each in (key, kept):
        assert distance(shares.add(each.read(product, reply), second), u, v).max() <= (
            case.bound(product, 2.0**10)
        )


def test_repeatable_encryption_depends_on_the_rows_the_product_and_the_block(case: Case) -> None:
    product, u = Product(4, 2, 2, 20, 10), np.arange(8.0).reshape(4, 2)
    key = case.scheme.generate()

    def encrypted(rows: np.ndarray, product: Product = product, key: CrossKey = key) -> bytes:
        return key.encrypt(product, [0], operand(rows), repeatable=True)[0]

    assert encrypted(u) == encrypted(u.copy()) == encrypted(u, key=case.scheme.load_key(key.to_bytes()))
    other = u.copy()
    other[3, 1] += 1
    assert encrypted(other) != encrypted(u)
    if case.scheme.name == "clear":
        return  # there is no randomness in it
    assert encrypted(u, key=case.scheme.generate()) != encrypted(u)
    assert encrypted(u, product=Product(4, 2, 1, 20, 10)) != encrypted(u)
    first, second = key.encrypt(product, [0, 0], operand(u))
    assert len({first, second, encrypted(u)}) == 3


def test_equal_blocks_are_encrypted_differently(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where encryption is repeatable: else equal rows in two blocks would show."""
    if case.scheme.name == "clear":
        return
    monkeypatch.setattr(*case.block)
    product, key = case.several, case.scheme.generate()
    rows = np.ones((product.inner, product.left))
    first, second = key.encrypt(product, [0, 1], operand(rows), repeatable=True)
    assert len(first) == len(second)
    assert first != second
    assert key.encrypt(product, [1], operand(rows), repeatable=True) == [second]


def test_repeatable_messages_add_up(case: Case) -> None:
    product, one = Product(4, 2, 2, 10, 10), np.ones((4, 2))
    key, evaluation = begin(case.scheme, product)
    evaluation.add({0: key.encrypt(product, [0], operand(one), repeatable=True)[0]}, operand(one))
    reply, second = evaluation.finish()
    assert distance(shares.add(key.read(product, reply), second), one, one).max() <= case.bound(product, 1.0)


def test_an_erased_key_does_nothing_any_more(case: Case) -> None:
    product, one = Product(4, 2, 2, 10, 10), np.ones((4, 2))
    key, evaluation = begin(case.scheme, product)
    evaluation.add({0: key.encrypt(product, [0], operand(one))[0]}, operand(one))
    reply, _ = evaluation.finish()
    key.erase()
    for use in (
        lambda: key.public(os.urandom(NONCE_BYTES)),
        lambda: key.encrypt(product, [0], operand(one)),
        lambda: key.read(product, reply),
        key.to_bytes,
    ):
        with pytest.raises(BadKey, match="erased"):
            use()
    key.erase()


def test_a_public_key_for_another_nonce_or_length_is_refused(case: Case) -> None:
    data = case.scheme.generate().public(bytes(NONCE_BYTES))
    for wrong in (data[:-1], data + b"\0"):
        with pytest.raises(BadKey):
            case.scheme.load_public(wrong, bytes(NONCE_BYTES))
    with pytest.raises(BadKey):
        case.scheme.load_public(data, bytes(NONCE_BYTES - 1))


def test_the_multiplier_has_nothing_that_reads(case: Case) -> None:
    nonce = bytes(NONCE_BYTES)
    public = case.scheme.load_public(case.scheme.generate().public(nonce), nonce)
    for thing in (public, public.evaluate(Product(1, 1, 1))):
        assert not [name for name in dir(thing) if "read" in name or "decrypt" in name or "secret" in name]
