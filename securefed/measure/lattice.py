"""What operations on hidden arrays take under RLWE on this machine: measured at the shapes of the run.

Each shape is measured when it is first met, with real keys. Rows beyond `MOST_ROWS` and columns beyond
`MOST_COLUMNS` are measured at that many, and count in proportion.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from securefed.crypto import load_public_key
from securefed.crypto.hidden import HiddenArray, PlainMatrix, Range, Result, Wide
from securefed.crypto.rlwe import generate_secret_key
from securefed.crypto.rlwe.arrays import RlweArray, RlweSum
from securefed.crypto.rlwe.packing import Packing, operand_length
from securefed.crypto.rlwe.products import WORTH_SHARING, kept_encodings
from securefed.crypto.scheme import SecretKey
from securefed.engine.local import cores
from securefed.errors import SettingError
from securefed.measure.meter import Operation
from securefed.measure.stopwatch import timed

__all__ = ["RlweCosts"]

MOST_ROWS = 1 << 15
MOST_COLUMNS = 8
VALUES = Range(30, 50)
"""Of the arrays that are measured: like those of a run, and of no influence on times."""
SLACK = 40
BITS = 30
"""Of multipliers."""
STRIDES = (4, 2)
REPEATS = 3
EFFICIENCY = 0.85
"""Of a worker process, beside work in this one."""

MEASURED = {
    **dict.fromkeys(("multiply", "flatten"), "_products"),
    **dict.fromkeys(("key", "switching", "load switching"), "_keys"),
    **dict.fromkeys(("read", "open"), "_openings"),
    **dict.fromkeys(("add sums", "sum plus", "rerandomise", "sum bytes", "load sum"), "_sums"),
    **dict.fromkeys(
        ("zeros", "load array", "array plus", "array bytes", "prepare", "unfold", "conceal"), "_arrays"
    ),
    **dict.fromkeys(("pack", "unmask"), ""),
}
"""Operations, and what measures them."""


class RlweCosts:
    """Seconds for each operation at each shape."""

    def __init__(self, workers: int = 1) -> None:
        self._workers = workers
        self._secret = generate_secret_key()
        self._public = self._secret.public
        self._known: dict[Operation, float] = {}

    def seconds(self, operation: Operation) -> float:
        if operation.name not in MEASURED:
            raise SettingError(f"plan: nobody has measured what {operation.name!r} takes under RLWE")
        rows, inner = min(operation.shape[0], MOST_ROWS), min(operation.inner, MOST_ROWS)
        columns = min(operation.shape[1], MOST_COLUMNS)
        scale = operation.shape[0] / max(1, rows) * (operation.inner / inner if inner else 1.0)
        scale *= operation.shape[1] / max(1, columns)
        if operation.name.endswith("switching"):
            scale = operation.ciphertexts / len(STRIDES)
        again = operation.again and self._kept(operation)
        met = replace(
            operation,
            shape=(rows, columns),
            ciphertexts=0,
            inner=inner,
            matrix=None,
            rough=operation.matrix is not None and operation.matrix.rough,
            again=again,
            width=0,
        )
        if met not in self._known:
            self._measure(met)
        return (scale or 1.0) * self._known[met] / self._spread(operation)

    def _spread(self, operation: Operation) -> float:
        """By how much other processes shorten a product."""
        if self._workers == 1 or operation.name != "multiply" or self._encodings(operation) < WORTH_SHARING:
            return 1.0
        return max(1.0, EFFICIENCY * min(self._workers, cores()))

    def _kept(self, operation: Operation) -> bool:
        """Whether what was encoded for a product fits into memory until the next one."""
        ring = self._public.ring
        each = len(ring.data_primes) * ring.degree * 8
        return self._encodings(operation) * each <= kept_encodings.limit

    def _encodings(self, operation: Operation) -> int:
        """Plaintexts that a product takes."""
        degree = self._public.ring.degree
        length = operand_length(operation.inner, operation.blocks, degree)
        units = sum(b.units(length) for b in Packing(*operation.size, degree).blocks)
        return units * -(-operation.inner // length)

    def _measure(self, operation: Operation) -> None:
        if operation.name in ("pack", "unmask"):
            self._known[operation] = 0.0  # sums are packed by the product; masks are subtracted
        else:
            getattr(self, MEASURED[operation.name])(operation)

    def _keys(self, operation: Operation) -> None:
        public, secret = self._public, self._secret
        key, switching = public.to_bytes(), secret.switching(STRIDES)
        self._known[Operation("key")] = timed(lambda: load_public_key(key))
        self._known[Operation("switching")] = timed(lambda: secret.switching(STRIDES), 2)
        reader = load_public_key(key)
        self._known[Operation("load switching")] = timed(
            lambda: reader.load_switching(switching, STRIDES),  # type: ignore[attr-defined]
            2,
        )

    def _arrays(self, operation: Operation) -> None:
        """Operands of one shape. What is put off is what the first time takes longer than the second."""
        public, secret, shape, blocks = self._public, self._secret, operation.size, operation.blocks
        integers = _integers(shape)
        blob = secret.conceal(integers, VALUES, blocks).to_bytes()

        def load() -> RlweArray:
            return public.load_array(blob, shape, VALUES, blocks)

        def conceal() -> RlweArray:
            return secret.conceal(integers, VALUES, blocks)

        def add(array: RlweArray) -> RlweArray:
            return array.add_plain(integers, VALUES)

        first_sum, plus = _first_and_second(load, add)
        first_written, written = _first_and_second(conceal, RlweArray.to_bytes)
        unfolded, folded = _first_and_second(lambda: add(load()), RlweArray.to_bytes)
        found = {
            "zeros": timed(lambda: public.hidden_zeros(shape, VALUES, blocks)),
            "load array": timed(load),
            "array plus": plus,
            "array bytes": written,
            "prepare": max(0.0, first_sum - plus),
            "unfold": max(0.0, unfolded - folded),
            "conceal": timed(conceal) + max(0.0, first_written - written),
        }
        for name, seconds in found.items():
            self._known[replace(operation, name=name)] = seconds

    def _products(self, operation: Operation) -> None:
        """Of an operand that was used before: encoded anew, and with encodings that were kept."""
        (rows, columns), inner, blocks = operation.size, operation.inner, operation.blocks
        array = self._secret.conceal(_integers((inner, columns)), VALUES, blocks)
        self._allow(Result(rows, columns, inner, blocks), Result(1, columns, inner, blocks))
        if operation.name == "flatten":
            array.packed()
            self._known[operation] = timed(array.packed, 2)
            return
        values = np.random.default_rng(0).uniform(-1, 1, (rows, inner))
        matrix = PlainMatrix(values, BITS, BITS + 1, keep=True, rough=operation.rough)
        _multiply(array, PlainMatrix(values[:1], BITS, BITS + 1))
        self._known[replace(operation, again=False)] = timed(lambda: _multiply(array, matrix), 1)
        self._known[replace(operation, again=True)] = timed(lambda: _multiply(array, matrix), 2)

    def _sums(self, operation: Operation) -> None:
        sums, shape = self._sum(operation.size), operation.size
        integers, sent = _integers(shape), sums.rerandomise()
        blob = sent.to_bytes()
        measured: dict[str, Callable[[], object]] = {
            "add sums": lambda: sums + sums,
            "sum plus": lambda: sums.add_plain(integers),
            "rerandomise": lambda: sums.rerandomise().repeated(),  # looked at before it is sent
            "sum bytes": sent.to_bytes,
            "load sum": lambda: self._public.load_sum(blob, shape, sums.range, sums.slack),
        }
        for name, work in measured.items():
            self._known[replace(operation, name=name)] = timed(work)

    def _openings(self, operation: Operation) -> None:
        """Each block once: a key-holder opens none twice."""
        sums, public, shape = self._sum(operation.size), self._public, operation.size
        blobs = [sums.hide()[0].to_bytes() for _ in range(REPEATS)]
        blocks = [public.load_block(blob, shape, sums.range, sums.slack) for blob in blobs]
        opener: SecretKey = self._secret
        masked = [public.load_masked(sums.mask()[0].to_bytes()) for _ in range(REPEATS)]
        found = {
            "read": timed(lambda: self._secret.read(blocks.pop()), REPEATS),
            "open": timed(lambda: opener.open(masked.pop()), REPEATS),
        }
        for name, seconds in found.items():
            self._known[replace(operation, name=name)] = seconds

    def _sum(self, shape: tuple[int, int]) -> RlweSum:
        """Results of that shape, from the smallest operand."""
        self._allow(Result(*shape, 1))
        array = self._secret.conceal(_integers((1, shape[1])), VALUES, 1)
        sums = _multiply(array, PlainMatrix(np.ones((shape[0], 1)), BITS, BITS + 1))
        return sums.within(sums.range, SLACK)

    def _allow(self, *results: Result) -> None:
        """The switching keys for products."""
        strides = {*self._public.strides, *self._public.strides_for(results)}
        if strides != set(self._public.strides):
            due = tuple(sorted(strides, reverse=True))
            self._public.load_switching(self._secret.switching(due), due)


def _multiply(array: HiddenArray, matrix: PlainMatrix) -> RlweSum:
    found = matrix @ array
    if not isinstance(found, RlweSum):
        raise TypeError(f"a product of RLWE arrays gave {type(found).__name__}")
    return found


def _first_and_second(
    make: Callable[[], RlweArray], work: Callable[[RlweArray], object]
) -> tuple[float, float]:
    """What work on a new array takes, and what it takes again."""
    arrays = [make() for _ in range(REPEATS)]
    first, second = iter(arrays), iter(arrays)
    return timed(lambda: work(next(first)), REPEATS), timed(lambda: work(next(second)), REPEATS)


def _integers(shape: tuple[int, int]) -> Wide:
    return np.full(shape, 1 << (VALUES.bits - 1), dtype=object)
