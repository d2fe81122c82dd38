"""Products under RLWE in parts: the same numbers wherever and in whatever pieces they are made."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from securefed.crypto.hidden import PART_ENTRIES, PlainMatrix, Range, Result, to_integers
from securefed.crypto.rlwe import packing, products
from securefed.crypto.rlwe.arrays import RlweArray
from securefed.crypto.rlwe.keys import RlweSecretKey, generate_secret_key
from securefed.crypto.scheme import SERIAL
from securefed.engine import Processes

VALUES = Range(40, 50)


@pytest.fixture(scope="module")
def secret() -> RlweSecretKey:
    made = generate_secret_key()
    shapes = [Result(9000, 1, 20), Result(6, 2, 9000), Result(20, 2, 20)]
    strides = made.public.strides_for(shapes)
    made.public.load_switching(made.switching(strides), strides)
    return made


@pytest.fixture(scope="module")
def pool() -> Iterator[Processes]:
    with Processes(2) as engine:
        yield engine


def matrices(rng: np.random.Generator) -> dict[str, tuple[PlainMatrix, np.ndarray, int]]:
    """Of a tall and a wide form, the matrix itself, and the columns of the operand."""
    columns = rng.uniform(-1, 1, (9000, 20))
    columns[:, 3] = 0
    left = rng.uniform(-1, 1, (6, 20))
    return {
        "tall": (PlainMatrix(columns, 20, 21, weight=0.5), 0.5 * columns, 1),
        "turned": (PlainMatrix(columns, 20, 21, weight=0.5, rough=True), 0.5 * columns, 1),
        "wide": (PlainMatrix(columns, 20, 24, left=left, weight=0.1), 0.1 * left @ columns.T, 2),
        "wide, turned": (
            PlainMatrix(columns, 20, 24, left=left, weight=0.1, rough=True),
            0.1 * left @ columns.T,
            2,
        ),
    }


@pytest.mark.parametrize("form", ["tall", "turned", "wide", "wide, turned"])
def test_processes_give_the_same_ciphertexts(
    secret: RlweSecretKey, pool: Processes, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "WORTH_SHARING", 1)
    monkeypatch.setattr(packing, "WORTH_NOISE", 0)
    turned: list[int] = []
    real = products.Terms.turned
    monkeypatch.setattr(products.Terms, "turned", lambda *given: turned.append(given[2]) or real(*given))
    rng = np.random.default_rng(0)
    matrix, whole, outputs = matrices(rng)[form]
    values = rng.uniform(-1, 1, (whole.shape[1], outputs))
    array = secret.conceal(to_integers(values, VALUES.fraction_bits), VALUES, 1)
    public = secret.public
    here = (matrix @ array).words  # type: ignore[attr-defined]
    public.mapper = pool
    asked: list[int] = []
    monkeypatch.setattr(
        pool, "map", lambda do, jobs: asked.append(len(jobs)) or Processes.map(pool, do, jobs)
    )
    try:
        there = matrix @ array
    finally:
        public.mapper = SERIAL
    assert asked and asked[0] > 1
    assert (max(turned) > 1) == matrix.rough
    assert all((a == b).all() for a, b in zip(here, there.words, strict=True))  # type: ignore[attr-defined]
    block, masks = there.within(Range(60, 80), 40).hide()
    found = np.ldexp((secret.read(block) - masks).astype(np.float64), -60)
    exact = np.ldexp(np.rint(np.ldexp(whole, 20)), -20) @ values
    assert np.abs(found - exact).max() < 2.0 ** (43 - 60)  # what noise may be at this scale


def test_zeros_from_other_processes_are_all_different_and_zero(
    secret: RlweSecretKey, pool: Processes
) -> None:
    """Workers are forks of one process: none may repeat another's randomness."""
    public, range_ = secret.public, Range(0, 40)
    public.mapper = pool
    try:
        found = [public.zeros(6), public.zeros(6)]
    finally:
        public.mapper = SERIAL
    array = RlweArray(public, (8192 * 6, 2), range_, 6, held=[item for items in found for item in items])
    assert array.repeated() == 0
    _, c1 = array._words()
    phase = secret._times_secret(c1)
    noise = public.ring.add(array._words()[0], phase)
    assert max(public.ring.most_bits(each) for each in noise) < 16


def test_a_product_of_columns_is_never_whole(secret: RlweSecretKey, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = PlainMatrix.part

    def part(self: PlainMatrix, rows: slice, columns: slice) -> np.ndarray:
        found = real(self, rows, columns)
        seen.append(found.size)
        return found

    monkeypatch.setattr(PlainMatrix, "part", part)
    columns = np.random.default_rng(0).uniform(-1, 1, (1 << 17, 20))
    PlainMatrix(columns, 20, 24, left=np.eye(20))
    assert not seen  # rows of these lengths cannot give more than is allowed
    PlainMatrix(columns, 20, 21, left=np.eye(20))
    assert sum(seen) == columns.size
    assert max(seen) <= PART_ENTRIES < columns.size


def test_encodings_are_kept_within_one_budget(secret: RlweSecretKey, monkeypatch: pytest.MonkeyPatch) -> None:
    each = 3 * 8192 * 8
    monkeypatch.setattr(products, "kept_encodings", budget := products.KeptEncodings(3 * each))
    rng = np.random.default_rng(0)
    array = secret.conceal(to_integers(rng.uniform(-1, 1, (4, 1)), 40), VALUES, 4)
    kept = [PlainMatrix(rng.uniform(-1, 1, (5, 4)), 20, 21, keep=True) for _ in range(2)]
    for matrix in kept:  # four encodings each: none of them fits
        _ = matrix @ array
    assert budget.spent == 0
    budget.limit = 6 * each
    for matrix in kept:
        _ = matrix @ array
    assert [bool(matrix.encodings) for matrix in kept] == [True, False]
    assert budget.spent == 4 * each
    kept.clear()
    del matrix
    assert budget.spent == 0
