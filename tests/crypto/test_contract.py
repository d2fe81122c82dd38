"""One suite that every scheme passes: the interface of securefed.crypto.scheme, at real parameters.

Paillier has to agree exactly with integer arithmetic on the rounded inputs, plain with numpy, CKKS within
a bound derived from its noise and flooding.
"""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass

import numpy as np
import pytest

from securefed.crypto import FixedPoint, KeyHolder, fixed, generate, load_key, load_public_key, save_key
from securefed.crypto.ckks.arrays import CkksEncrypted
from securefed.crypto.fixed import Multipliers
from securefed.crypto.paillier import arrays
from securefed.crypto.paillier.arrays import PaillierEncrypted
from securefed.crypto.scheme import Encrypted, Masked, Opened, PublicKey
from securefed.crypto.wire import HEADER
from securefed.errors import (
    BadKey,
    CryptoError,
    FormatError,
    MaskError,
    OpeningRefused,
    RangeError,
    ShapeError,
    WrongKey,
)
from tests.crypto.quantising import quantise

FIXED = FixedPoint(bound=4.0, fraction_bits=32)


@dataclass
class Case:
    name: str
    holder: KeyHolder
    public: PublicKey
    other: KeyHolder

    def open(self, encrypted: Encrypted) -> np.ndarray:
        """The whole path of an opening, over bytes."""
        masked, mask = encrypted.mask()
        reply = self.holder.open(self.public.load_masked(masked.to_bytes()))
        return mask.remove(self.public.load_opened(reply.to_bytes()))

    def value_error(self, bound: float = FIXED.bound) -> float:
        """Bound on the error of one opened entry that was not multiplied."""
        # CKKS: flooding at 2**78.8 times sqrt(8192) returned coefficients over a data scale of at least
        # 2**72, eight sigma.
        return {"paillier": 2.0**-33, "plain": 0.0, "ckks": bound * 2.0**-16}[self.name]

    def round(self, values: np.ndarray) -> np.ndarray:
        return np.rint(values * FIXED.scale) / FIXED.scale if self.name == "paillier" else values

    def products(self, multipliers: np.ndarray, values: np.ndarray) -> np.ndarray:
        """The sums of products that the scheme has to deliver: exact for Paillier and plain."""
        if self.name == "paillier":
            integers, exponent = quantise(multipliers)
            encoded = FIXED.encode(values).astype(object)
            sums = integers.astype(object) @ encoded
            scale = 2 ** (FIXED.fraction_bits + exponent)
            return np.vectorize(lambda s: float(s) / scale, otypes=[float])(sums)
        return multipliers @ values

    def product_error(self, multipliers: np.ndarray, rows: int) -> float:
        largest = float(np.abs(multipliers).max())
        if self.name == "paillier":
            return 2.0**-50 * rows * largest * FIXED.bound  # rounding of the final float64 only
        if self.name == "plain":
            return 2.0**-45 * rows * largest * FIXED.bound
        return 2.0**-20 * rows * largest * FIXED.bound


@pytest.fixture(scope="module", params=["plain", "paillier", "ckks"])
def case(request: pytest.FixtureRequest) -> Case:
    name = request.param
    holder = generate(name, key_bits=2048)
    return Case(name, holder, load_public_key(holder.public.to_bytes()), generate(name, key_bits=2048))


def numbers(*shape: int, seed: int = 0, bound: float = 4.0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-bound, bound, shape)


@pytest.mark.parametrize("shape", [(1,), (7,), (5, 3), (2, 32)])
def test_what_anybody_or_the_owner_encrypts_opens_to_the_value(case: Case, shape: tuple[int, ...]) -> None:
    values = numbers(*shape)
    for encryptor in (case.public, case.holder):
        opened = case.open(case.public.load(encryptor.encrypt(values, FIXED).to_bytes(), shape))
        assert opened.shape == shape
        assert np.abs(opened - values).max() <= case.value_error()


def test_the_boundary_of_the_range_is_inside(case: Case) -> None:
    values = np.array([FIXED.bound, -FIXED.bound, 0.0, 2.0**-32])
    opened = case.open(case.public.encrypt(values, FIXED))
    assert np.abs(opened - values).max() <= case.value_error()


def test_sums_of_encrypted_and_plain(case: Case) -> None:
    a, b, c = numbers(6, 2, seed=1), numbers(6, 2, seed=2), numbers(6, 2, seed=3)
    total = case.public.encrypt(a, FIXED) + case.holder.encrypt(b, FIXED) + c
    assert np.abs(case.open(total) - (a + b + c)).max() <= 3 * case.value_error()


@pytest.mark.parametrize(("rows", "outputs"), [(1, 1), (5, 3), (64, 9), (300, 2)])
def test_matrix_times_encrypted_vector(case: Case, rows: int, outputs: int) -> None:
    values, matrix = numbers(rows, seed=4), numbers(outputs, rows, seed=5, bound=20.0)
    result = matrix @ case.holder.encrypt(values, FIXED)
    assert result.shape == (outputs,)
    error = np.abs(case.open(result) - case.products(matrix, values)).max()
    assert error <= case.product_error(matrix, rows)


def test_contraction_uses_its_own_matrix_for_each_column(case: Case) -> None:
    values, multipliers = numbers(40, 3, seed=6), numbers(3, 5, 40, seed=7, bound=0.3)
    opened = case.open(case.holder.encrypt(values, FIXED).contract(multipliers))
    assert opened.shape == (5, 3)
    expected = np.einsum("jai,ij->aj", multipliers, values)
    rounding = 40 * FIXED.bound * np.abs(multipliers).max() * 2.0**-23
    assert np.abs(opened - expected).max() <= case.product_error(multipliers, 40) + rounding


class Bands(Multipliers):
    """Few of many: output a takes every 100th row from a on, by what depends on the column too."""

    shape = (4, 25, 640)

    def __init__(self) -> None:
        self.most = 0
        """Entries of the largest block so far."""

    def block(self, columns: slice, outputs: slice) -> np.ndarray:
        j, a, i = np.ogrid[: self.shape[0], : self.shape[1], : self.shape[2]]
        j, a = j[columns], a[:, outputs]
        self.most = max(self.most, j.size * a.size * i.size)
        return np.where((i - a) % 100 == 0, (j + 3 * a + i) % 7 - 3.0, 0.0)


def test_multipliers_in_blocks_are_the_same_and_never_held_as_a_whole(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (fixed, arrays):
        monkeypatch.setattr(module, "BLOCK_ENTRIES", 1 << 12)
    bands, values = Bands(), numbers(640, 4, seed=9)
    encrypted, whole = case.holder.encrypt(values, FIXED), np.asarray(Bands())
    tracemalloc.start()
    try:
        result = encrypted.contract(bands)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert bands.most <= whole.size // 2
    if isinstance(result, PaillierEncrypted):  # whose powers take more room than these multipliers
        again = encrypted.contract(whole)
        assert result.integers == again.integers and result.extent == again.extent
    else:
        assert isinstance(result, CkksEncrypted) or peak < 0.75 * whole.nbytes
        expected = np.einsum("jai,ij->aj", whole, values)
        assert np.abs(case.open(result) - expected).max() <= case.product_error(whole, 640)


def test_sum_over_rows(case: Case) -> None:
    values = numbers(50, 4, seed=8)
    opened = case.open(np.ones((1, 50)) @ case.holder.encrypt(values, FIXED))
    expected = case.round(values).sum(axis=0, keepdims=True)
    assert np.abs(opened - expected).max() <= case.product_error(np.ones(1), 50)


def test_zero_multipliers_give_zero(case: Case) -> None:
    opened = case.open(np.zeros((3, 8)) @ case.holder.encrypt(numbers(8), FIXED))
    assert np.abs(opened).max() <= case.product_error(np.ones(1), 8)


def test_a_sum_of_products_and_a_plain_array(case: Case) -> None:
    values, matrix, extra = numbers(30, seed=1), numbers(4, 30, seed=2), numbers(4, seed=3)
    opened = case.open((matrix @ case.holder.encrypt(values, FIXED)) + extra)
    assert (
        np.abs(opened - (matrix @ values + extra)).max()
        <= 2 * case.product_error(matrix, 30) + 30 * 16 * 2.0**-23
    )


def test_a_result_for_the_key_holder_itself(case: Case) -> None:
    values, matrix = numbers(32, seed=4), numbers(9, 32, seed=5)
    masked, mask = (matrix @ case.public.load(case.holder.encrypt(values, FIXED).to_bytes())).mask()
    result = case.holder.receive(case.public.load_masked(masked.to_bytes()), mask.disclose())
    assert np.abs(result - matrix @ values).max() <= 2 * case.product_error(matrix, 32) + 32 * 16 * 2.0**-23


def test_a_mask_is_used_once(case: Case) -> None:
    masked, mask = case.public.encrypt(numbers(3), FIXED).mask()
    opened = case.holder.open(masked)
    mask.remove(opened)
    with pytest.raises(MaskError, match="used already"):
        mask.remove(opened)
    with pytest.raises(MaskError, match="used already"):
        mask.disclose()


def test_a_key_holder_opens_a_ciphertext_once_and_only_masked_ones_of_its_key(case: Case) -> None:
    encrypted = case.public.encrypt(numbers(3), FIXED)
    masked, _ = encrypted.mask()
    before = case.holder.openings
    case.holder.open(case.public.load_masked(masked.to_bytes()))
    assert case.holder.openings == before + 1
    with pytest.raises(OpeningRefused, match="opened before"):
        case.holder.open(case.public.load_masked(masked.to_bytes()))
    with pytest.raises(OpeningRefused, match="only masked"):
        case.holder.open(encrypted)  # type: ignore[arg-type]
    with pytest.raises(WrongKey):
        case.other.open(masked)


def test_bad_values_are_refused_by_name(case: Case) -> None:
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(RangeError, match="finite"):
            case.public.encrypt(np.array([1.0, bad]), FIXED)
    with pytest.raises(RangeError, match="at most 4 was declared"):
        case.holder.encrypt(np.array([4.001]), FIXED)
    for empty in (np.zeros(0), np.zeros((0, 3)), np.zeros((3, 0))):
        with pytest.raises(ShapeError, match="empty"):
            case.public.encrypt(empty, FIXED)
    with pytest.raises(ShapeError, match="dimensions"):
        case.public.encrypt(np.zeros((2, 2, 2)), FIXED)
    encrypted = case.public.encrypt(numbers(4), FIXED)
    with pytest.raises(ShapeError):
        np.ones((2, 3)) @ encrypted
    with pytest.raises(ShapeError):
        encrypted + np.ones(3)
    with pytest.raises(RangeError):
        encrypted + np.full(4, 4.5)
    with pytest.raises(RangeError, match="finite"):
        np.array([[1.0, np.nan, 1.0, 1.0]]) @ encrypted
    with pytest.raises(WrongKey):
        encrypted + case.other.encrypt(numbers(4), FIXED)


def test_damaged_bytes_are_refused(case: Case) -> None:
    encrypted = case.public.encrypt(numbers(4), FIXED)
    masked, _ = encrypted.mask()
    opened = case.holder.open(masked)
    readers = [
        (case.public.load, encrypted.to_bytes()),
        (case.public.load_masked, masked.to_bytes()),
        (case.public.load_opened, opened.to_bytes()),
        (load_public_key, case.public.to_bytes()),
    ]
    random = np.random.default_rng(0)
    for read, blob in readers:
        places = [*random.integers(0, len(blob), 20), *range(0, HEADER.size, 7)]
        for place in places:
            flipped = bytearray(blob)
            flipped[place] ^= 1 << int(random.integers(8))
            with pytest.raises(CryptoError):
                read(bytes(flipped))
        for cut in (0, 3, HEADER.size - 1, HEADER.size, len(blob) // 2, len(blob) - 1):
            with pytest.raises(FormatError):
                read(blob[:cut])
        with pytest.raises(FormatError):
            read(blob + b"\0")


def test_frames_of_another_kind_key_or_shape_are_refused(case: Case) -> None:
    encrypted = case.public.encrypt(numbers(4), FIXED)
    masked, mask = encrypted.mask()
    with pytest.raises(FormatError, match="kind masked given, encrypted expected"):
        case.public.load(masked.to_bytes())
    with pytest.raises(WrongKey):
        case.other.public.load(encrypted.to_bytes())
    with pytest.raises(ShapeError, match=r"\(4,\) given, \(5,\) expected"):
        case.public.load(encrypted.to_bytes(), (5,))
    other, _ = case.public.encrypt(numbers(5), FIXED).mask()
    with pytest.raises(CryptoError):
        mask.remove(case.holder.open(other))


def test_the_key_survives_a_key_file(case: Case, tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "key"
    save_key(path, case.holder, "correct horse")
    again = load_key(path, "correct horse")
    masked, mask = case.public.encrypt(numbers(3), FIXED).mask()
    assert np.abs(mask.remove(again.open(masked)) - numbers(3)).max() <= case.value_error()
    assert again.public.key_id == case.public.key_id


def reachable(root: object, depth: int = 6) -> list[object]:
    """Every object that attribute access and containers lead to from `root`."""
    seen: dict[int, object] = {}
    frontier = [root]
    for _ in range(depth):
        following: list[object] = []
        for item in frontier:
            if id(item) in seen or isinstance(
                item, type | int | float | str | bytes | np.ndarray | type(None)
            ):
                continue
            seen[id(item)] = item
            following.extend(vars(item).values() if hasattr(item, "__dict__") else ())
            following.extend(item.values() if isinstance(item, dict) else ())
            following.extend(item if isinstance(item, list | tuple | set) else ())
        frontier = following
    return list(seen.values())


def test_nothing_without_the_secret_key_can_decrypt(case: Case) -> None:
    encrypted = case.public.load(case.public.encrypt(numbers(3), FIXED).to_bytes())
    masked, mask = encrypted.mask()
    opened = case.holder.open(masked)
    for holder_of_nothing in (case.public, encrypted, masked, mask, opened):
        names = {n.lower() for o in reachable(holder_of_nothing) for n in dir(o)}
        assert not {n for n in names if "decrypt" in n or "secret" in n}, holder_of_nothing
        kinds = {type(o).__name__ for o in reachable(holder_of_nothing)}
        assert not {k for k in kinds if "Secret" in k or "Decrypt" in k or "KeyHolder" in k}
    assert not any(hasattr(case.public, name) for name in ("open", "receive"))


def test_secrets_are_not_shown(case: Case) -> None:
    secret = case.holder._secret
    blob = secret.to_bytes()
    for thing in (case.holder, secret, case.public):
        assert blob[HEADER.size :].hex()[:16] not in repr(thing)
        assert "object at" not in repr(thing)


def test_types_are_told_apart(case: Case) -> None:
    masked, _ = case.public.encrypt(numbers(3), FIXED).mask()
    assert isinstance(masked, Masked)
    assert not isinstance(masked, Encrypted | Opened)


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(BadKey, match="'rot13' given, one of paillier, ckks, plain is allowed"):
        generate("rot13")
