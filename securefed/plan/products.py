"""An encrypted product that encrypts nothing, for rehearsing blind runs, and what a real one costs.

The stand-in replaces a CrossScheme. Messages have exactly the length of the real ones (`Lengths`), and a
`Meter` adds the cost of every operation to the clock. Only the first rows of a factor are computed, and their
time is scaled to all rows. Shares are meaningless numbers.

`ProductCosts` measures small real products of the same numbers on this machine. Larger ones count in
proportion to their bytes.

No user can choose this scheme: it is in no registry. A real run would refuse its keys.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import thread_time
from typing import TypeVar

import numpy as np

from securefed.crypto.blind.interface import (
    NONCE_BYTES,
    CrossKey,
    CrossPublic,
    CrossScheme,
    Evaluation,
    Lengths,
    Operand,
    Product,
)
from securefed.crypto.scheme import Mapper
from securefed.crypto.shares import LIMBS, Share, from_integers
from securefed.engine.processes import cores
from securefed.errors import BadKey, SettingError

SAMPLE_ROWS = 1024
"""Computed rows of a factor."""
ROWS, LEFT, RIGHT = 256, 16, 4
"""The smallest product that is measured, unless the run has smaller ones."""
LONG_ENOUGH = 0.1
"""Seconds from which a measured product is large enough."""
FLOAT_BITS = 51
"""Larger numbers do not fit a float."""
SHARED_SECONDS = 0.25
"""Work that takes longer is shared by the workers."""
EFFICIENCY = 0.85
"""Efficiency of a worker process, relative to work in this one."""
T = TypeVar("T")
R = TypeVar("R")


class ProductCosts:
    """Costs of a scheme on this machine, by processor time, which ignores other load."""

    def __init__(self, scheme: CrossScheme, workers: int = 1) -> None:
        self._workers, nonce = workers, os.urandom(NONCE_BYTES)
        times = [thread_time()]
        key = self._key = scheme.generate()
        self._lengths = key.lengths
        times.append(thread_time())
        blob = key.public(nonce)
        times.append(thread_time())
        self._public = scheme.load_public(blob, nonce)
        times.append(thread_time())
        self._known: dict[Product, dict[str, float]] = {}
        # Tables for a key's first encryptions count with the key.
        rows = _factor(Product(2 * ROWS, 1, 1), 1)
        first, again = (_timed(lambda: key.encrypt(Product(2 * ROWS, 1, 1), [0], rows)) for _ in range(2))
        generate, public, load = np.diff(times).tolist()
        tables = max(0.0, first - again)
        self._keys = {"generate": generate + tables, "public": public, "load public": load}

    def seconds(self, name: str, product: Product | None = None, rows: int = 0) -> float:
        """Return the seconds of an operation; `rows`: inner rows of the factor.

        `name`: generate, public, load public; encrypt, multiply, respond, read.
        """
        if product is None:
            return self._keys[name]
        amount = self._amount(name, product, rows)
        seconds = self._unit_costs(product)[name] * amount
        return shared(seconds, self._workers) if seconds > SHARED_SECONDS else seconds

    def _amount(self, name: str, product: Product, rows: int) -> float:
        """Return what the time of an operation is proportional to."""
        if name == "encrypt":
            return self._lengths.block(product, rows)
        if name == "multiply":
            return self._lengths.block(product, rows) * product.right
        return self._lengths.reply(product)

    def _unit_costs(self, product: Product) -> dict[str, float]:
        """Return seconds per amount, from the smallest product that takes long enough."""
        inner, left, right = (_power_of_two(n) for n in (product.inner, product.left, product.right))
        factor = 1
        while True:
            small = replace(
                product,
                inner=min(inner, ROWS * factor**2),
                left=min(left, LEFT * factor),
                right=min(right, RIGHT * factor),
            )
            if small not in self._known:
                self._known[small] = self._measure(small)
            whole = (small.inner, small.left, small.right) == (inner, left, right)
            if whole or self._known[small]["in all"] > LONG_ENOUGH:
                return self._known[small]
            factor *= 2

    def _measure(self, product: Product) -> dict[str, float]:
        """Measure a product with all rows and with a quarter of them.

        The multiplier's work has a part that grows with the rows and a part that every reply takes.
        """
        all_, few = self._run(product), self._run(replace(product, inner=max(1, product.inner // 4)))
        encrypt, multiply, read = all_
        grows = max(0.0, multiply - few[1]) * 4 / 3 if product.inner > 1 else 0.0
        amount = {
            name: self._amount(name, product, product.inner) for name in ("encrypt", "multiply", "read")
        }
        return {
            "encrypt": encrypt / amount["encrypt"],
            "multiply": grows / amount["multiply"],
            "respond": max(0.0, multiply - grows) / amount["read"],
            "read": read / amount["read"],
            "in all": sum(all_),
        }

    def _run(self, product: Product) -> tuple[float, float, float]:
        """Return the seconds of encrypting, of multiplying with the answer, and of reading it."""
        left, right = _factor(product, product.left), _factor(product, product.right)
        numbers = range(len(self._key.blocks(product)))
        times = [thread_time()]
        blocks = self._key.encrypt(product, numbers, left)
        times.append(thread_time())
        evaluation = self._public.evaluate(product)
        evaluation.add(dict(zip(numbers, blocks, strict=True)), right)
        reply, _ = evaluation.finish()
        times.append(thread_time())
        self._key.read(product, reply)
        times.append(thread_time())
        encrypt, multiply, read = np.diff(times).tolist()
        return encrypt, multiply, read


def shared(seconds: float, workers: int) -> float:
    """Return the time of work that so many processes share."""
    processes = min(workers, cores())
    return seconds / (EFFICIENCY * processes) if processes > 1 else seconds


def _timed(work: Callable[[], object]) -> float:
    begin = thread_time()
    work()
    return thread_time() - begin


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _factor(product: Product, columns: int) -> Operand:
    """Return random rows. Times do not depend on how large their numbers are."""
    integers = np.random.default_rng(0).integers(-(1 << 24), 1 << 24, (product.inner, columns))
    if min(product.left_bits, product.right_bits) <= FLOAT_BITS:
        floats = integers.astype(np.float64)
        return lambda first, last: floats[first:last]
    limbs = from_integers(integers)
    return lambda first, last: np.ascontiguousarray(limbs[:, first:last])


@dataclass
class Meter:
    """A clock that adds the cost of operations to the time that really passes."""

    timer: Callable[[], float]
    costs: ProductCosts | None = None
    _ahead: float = 0.0

    def now(self) -> float:
        return self.timer() + self._ahead

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the clock for work that a real run does not do."""
        begin = self.timer()
        try:
            yield
        finally:
            self._ahead -= self.timer() - begin

    def note(self, name: str, product: Product | None = None, rows: int = 0) -> None:
        """Count an operation."""
        if self.costs is None:
            raise SettingError(f"plan: nobody has measured what {name!r} takes")
        with self.stopped():  # it may be measured only now
            seconds = self.costs.seconds(name, product, rows)
        self._ahead += seconds

    def scaled(self, work: Callable[[], T], factor: float) -> T:
        """Do a part of some work, whose whole takes `factor` times as long."""
        begin = self.timer()
        done = work()
        self._ahead += (factor - 1.0) * (self.timer() - begin)
        return done

    def part_of(self, operand: Operand, rows: int) -> None:
        """Compute some rows of a factor, and count the time of all."""
        some = min(rows, SAMPLE_ROWS)
        self.scaled(lambda: operand(0, some), rows / some)

    def share(self, product: Product) -> Share:
        with self.stopped():
            return np.ones((LIMBS, product.left, product.right), dtype=np.int64)


@dataclass(frozen=True)
class CountedWorkers:
    """A mapper that works in this process. On the clock its workers share the pieces."""

    workers: int
    meter: Meter

    @property
    def local(self) -> Mapper:
        return self

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        pieces = list(items)
        share = shared(1.0, min(self.workers, len(pieces)))
        return self.meter.scaled(lambda: [function(piece) for piece in pieces], share)


class CountingKey(CrossKey, CrossPublic):
    """Both halves of a key."""

    def __init__(self, lengths: Lengths, meter: Meter) -> None:
        self.lengths, self._meter = lengths, meter

    def public(self, nonce: bytes) -> bytes:
        self._meter.note("public")
        return _blank(self.lengths.public)

    def _encrypt(
        self, product: Product, blocks: Sequence[int], operand: Operand, mapper: Mapper, repeatable: bool
    ) -> list[bytes]:
        every = self.blocks(product)
        rows = [every[block][1] - every[block][0] for block in blocks]
        self._meter.part_of(operand, sum(rows))
        self._meter.note("encrypt", product, sum(rows))
        return [_blank(self.lengths.block(product, count)) for count in rows]

    def _read(self, product: Product, reply: bytes) -> Share:
        self._meter.note("read", product)
        return self._meter.share(product)

    def evaluate(self, product: Product, seed: bytes | None = None) -> Evaluation:
        return CountingEvaluation(product, self.lengths, self._meter)

    def to_bytes(self) -> bytes:
        return b""

    def erase(self) -> None:
        return


class CountingEvaluation(Evaluation):
    def __init__(self, product: Product, lengths: Lengths, meter: Meter) -> None:
        super().__init__(product, lengths)
        self._meter = meter

    def _multiply(self, blocks: Mapping[int, bytes], operand: Operand, mapper: Mapper) -> None:
        rows = sum(self._due[block][1] - self._due[block][0] for block in blocks)
        self._meter.part_of(operand, rows)
        self._meter.note("multiply", self._product, rows)

    def _reply(self) -> tuple[bytes, Share]:
        self._meter.note("respond", self._product)
        return _blank(self._lengths.reply(self._product)), self._meter.share(self._product)


def _blank(size: int) -> bytes:
    """Return bytes that no real key, block or reply has."""
    return b"\xff" * size


def counting_scheme(lengths: Lengths, meter: Meter) -> CrossScheme:
    """Return the stand-in for a scheme with messages of these lengths. `meter` records operations."""
    key = CountingKey(lengths, meter)

    def generate() -> CrossKey:
        meter.note("generate")
        return key

    def load_public(data: bytes, nonce: bytes) -> CrossPublic:
        if len(nonce) != NONCE_BYTES or len(data) != lengths.public:
            raise BadKey(f"public key: {len(data)} bytes given, {lengths.public} are due")
        meter.note("load public")
        return key

    return CrossScheme("counting", generate, load_public, lambda data: key)
