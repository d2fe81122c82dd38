"""Products of shared matrices that were prepared beforehand, many of them in one exchange of differences.

The two holders share numbers x = x_1 + x_2. Two kinds of products are prepared:

    constant    a matrix M that stays the same, times columns that change. For each column a random r_h at
                each holder and shares K_h of M_1 r_2 + M_2 r_1; then a holder sends v_h - r_h and computes
                M_h (v_h + the other's difference) + K_h. Where one holder knows M, the other's share is 0:
                half of the preparation and one of the two messages fall away.
    pair        two matrices that both change. A triple (R, T, R T) of shared random numbers; then a holder
                sends x_h - R_h and y_h - T_h, and x y = D E + D T + R E + R T with D = x - R, E = y - T.
                Rows of x and columns of y may be opened one after the other, each once; any row serves with
                any column.

All products of a trip share one message each way. A random number masks one number and serves once. It comes
from the operating system, and no checkpoint holds it. What travels is uniform. A wrong difference tells its
sender nothing: it shifts v, as another input would.

`Count` has the same methods and computes nothing: with it a program finds out what it has to prepare.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, Protocol

import numpy as np

from securefed.crypto import shares
from securefed.crypto.blind.interface import CrossScheme, Operand, Product
from securefed.crypto.errors import MaskError
from securefed.crypto.scheme import Mapper
from securefed.crypto.shares import LIMBS, WIDTH, Floats, Share
from securefed.protocols.blind.cross import Encryptor, Multiplier, operand_of
from securefed.transport import Link

__all__ = [
    "ConstantMatrix",
    "Correlations",
    "Count",
    "Move",
    "Name",
    "Pair",
    "Products",
    "Request",
    "Shape",
    "prepare_all",
    "prepared_products",
    "side_by_side",
    "trip",
    "trip_sizes",
]

GROUP_COLUMNS = 4096
"""Triples are made together as long as their right factor has no more columns."""
AHEAD = 4
"""Encrypted factors that may be under way before the first reply is read."""
SMALL_BLOCKS = 4
"""Blocks of a factor that is sent ahead: it takes no acknowledgement."""

Name = tuple[Any, ...]
"""Of a constant; it starts with the kind."""


@dataclass(frozen=True)
class ConstantMatrix:
    """The public facts about a matrix that stays the same."""

    rows: int
    inner: int
    known_to: Literal["first", "second", "both"]
    """Which holder knows it; both: it is shared."""
    bits: int = WIDTH
    """The size of an entry of a share, with its sign."""

    def knows(self, *, first: bool) -> bool:
        """Whether that holder has a share of the matrix. The other one masks its columns then."""
        return self.known_to in ("both", "first" if first else "second")


@dataclass(frozen=True)
class Shape:
    """The sizes of a pair: (rows, inner) times (inner, columns)."""

    rows: int
    inner: int
    columns: int


class Request(ABC):
    """One product of a trip, or the opening of factors."""

    outgoing: Share
    """The differences that this holder sends: (5, count)."""
    incoming: int
    """How many the other holder sends."""

    @abstractmethod
    def take(self, theirs: Share) -> Share:
        """This holder's share of the product, from the other's differences."""


Move = Generator[list[Request], list[Share], Any]
"""A program in trips: it yields the requests of each and gets this holder's shares of the products."""


def side_by_side(*moves: Move) -> Move:
    """Run programs at the same time, so that their trips are shared. Returns what each returns."""
    wanted: list[list[Request] | None] = []
    returned: list[Any] = [None] * len(moves)

    def advance(place: int, products: list[Share] | None) -> list[Request] | None:
        try:
            return next(moves[place]) if products is None else moves[place].send(products)
        except StopIteration as end:
            returned[place] = end.value
            return None

    wanted = [advance(place, None) for place in range(len(moves))]
    while any(part is not None for part in wanted):
        products = yield [request for part in wanted if part is not None for request in part]
        rest = iter(products)
        wanted = [
            None if part is None else advance(place, [next(rest) for _ in part])
            for place, part in enumerate(wanted)
        ]
    return returned


async def trip(link: Link, peer: str, requests: Sequence[Request], *, round: int, step: int) -> list[Share]:
    """Exchange the differences of all requests; return this holder's shares of the products."""
    whole = np.concatenate([request.outgoing for request in requests], axis=1)
    if whole.shape[1]:
        link.send(peer, "difference", shares.to_bytes(whole), round=round, step=step)
    due = sum(request.incoming for request in requests)
    theirs = shares.zeros(0)
    if due:
        arrived = await link.receive("difference", peer, round=round, step=step)
        theirs = shares.from_bytes(arrived, (LIMBS, due))
    products, start = [], 0
    with link.activity("rounds"):
        for request in requests:
            products.append(request.take(theirs[:, start : start + request.incoming]))
            start += request.incoming
    return products


class Products(Protocol):
    """What a program asks for: prepared products, or their number."""

    def times(self, name: Name, vectors: Share) -> Request:
        """A named constant times shared columns (5, inner, count)."""

    def pair(self, shape: Shape, count: int) -> Pair:
        """`count` triples of that shape that have not been used."""


# Constants


class Times(Request):
    """A constant times changing columns."""

    def __init__(self, constant: PreparedConstant, vectors: Share, at: slice) -> None:
        self._constant, self._vectors, self._at = constant, vectors, at
        self.outgoing = shares.zeros(0)
        if constant.random is not None:
            difference = shares.subtract(vectors, constant.random[:, :, at])
            self.outgoing = difference.reshape(LIMBS, -1)
        self.incoming = 0 if constant.share is None else vectors.shape[1] * vectors.shape[2]

    def take(self, theirs: Share) -> Share:
        constant, prepared = self._constant, self._constant.products[:, :, self._at]
        if constant.share is None:
            return prepared.copy()
        whole = shares.add(self._vectors, theirs.reshape(self._vectors.shape))
        return shares.add(shares.matmul(constant.share, whole), prepared)


class PreparedConstant:
    """One holder's side of a constant."""

    def __init__(self, share: Share | None, random: Share | None, products: Share) -> None:
        self.share: Floats | None = None if share is None else share.astype(np.float64)
        """None: the other holder knows the matrix."""
        self.random, self.products = random, products
        """Random columns, None where this holder alone knows the matrix; and shares of all their products."""
        self._used = 0

    def times(self, vectors: Share) -> Times:
        count, left = vectors.shape[2], self.products.shape[2] - self._used
        if count > left:
            raise MaskError(f"{count} prepared columns are needed, {left} are left")
        at = slice(self._used, self._used + count)
        self._used += count
        return Times(self, vectors, at)


# Pairs

Places = Sequence[tuple[int, Share]]
"""(first row or column, values): the values of some rows or columns of a factor."""


class Opening(Request):
    """Some rows and columns of a pair's factors."""

    def __init__(self, pair: Pair, pieces: list[tuple[Share, tuple[slice, ...], Share]]) -> None:
        """`pieces`: where differences are collected, the place there, and this holder's."""
        self._pair, self._pieces = pair, pieces
        self.outgoing = np.concatenate([own.reshape(LIMBS, -1) for _, _, own in pieces], axis=1)
        self.incoming = self.outgoing.shape[1]

    def take(self, theirs: Share) -> Share:
        start = 0
        for opened, place, own in self._pieces:
            count = own[0].size
            other = theirs[:, start : start + count].reshape(own.shape)
            opened[place] = shares.add(own, other)
            start += count
        return shares.zeros(0)


class Pair:
    """Several products of two changing matrices of the same shape: factors (5, count, rows, inner) and
    (5, count, inner, columns).
    """

    def __init__(self, left: Share, right: Share, products: Share, *, first: bool) -> None:
        """`left`, `right`: this holder's shares of the random factors; `products`: of their products."""
        self._left, self._right, self._products, self._first = left, right, products, first
        self._opened = np.zeros_like(left), np.zeros_like(right)
        self._rows, self._columns = set[int](), set[int]()

    def open(self, left: Places = (), right: Places = ()) -> Opening:
        """Open rows of the left factor and columns of the right one, each once."""
        pieces: list[tuple[Share, tuple[slice, ...], Share]] = []
        every = slice(None)
        for start, values in left:
            at = self._once(self._rows, start, values.shape[2], self._left.shape[2])
            rows = (every, every, at)
            pieces.append((self._opened[0], rows, shares.subtract(values, self._left[rows])))
        for start, values in right:
            at = self._once(self._columns, start, values.shape[3], self._right.shape[3])
            columns = (every, every, every, at)
            pieces.append((self._opened[1], columns, shares.subtract(values, self._right[columns])))
        return Opening(self, pieces)

    @staticmethod
    def _once(used: set[int], start: int, count: int, most: int) -> slice:
        places = set(range(start, start + count))
        if places & used or start + count > most:
            raise MaskError("a random number of a triple would serve twice")
        used |= places
        return slice(start, start + count)

    def product(self, rows: slice = slice(None), columns: slice = slice(None)) -> Share:
        """This holder's share of those rows times those columns, once they are open."""
        left, right = self._left[:, :, rows], self._right[:, :, :, columns]
        d, e = self._opened[0][:, :, rows], self._opened[1][:, :, :, columns]
        # D E + D T = D (E + T): the first holder adds the part that both know.
        other = shares.add(right, e) if self._first else right
        products = [
            shares.add(shares.matmul(d[:, i], other[:, i]), shares.matmul(left[:, i], e[:, i]))
            for i in range(left.shape[1])
        ]
        return shares.add(np.stack(products, axis=1), self._products[:, :, rows, columns])


class Correlations:
    """One holder's prepared products."""

    def __init__(
        self, constants: Mapping[Name, PreparedConstant], triples: Mapping[Shape, Pair3], *, first: bool
    ) -> None:
        self._constants, self._triples, self._first = dict(constants), dict(triples), first
        self._used: Counter[Shape] = Counter()

    def times(self, name: Name, vectors: Share) -> Request:
        return self._constants[name].times(vectors)

    def pair(self, shape: Shape, count: int) -> Pair:
        left, right, products = self._triples[shape]
        start = self._used[shape]
        if start + count > left.shape[1]:
            raise MaskError(f"{count} triples are needed, {left.shape[1] - start} are left")
        self._used[shape] += count
        at = slice(start, start + count)
        return Pair(left[:, at], right[:, at], products[:, at], first=self._first)


Pair3 = tuple[Share, Share, Share]
"""All triples of a shape: R, T, R T, each (5, count, ...)."""


# Counting


class Blank(Request):
    """A product of which only the shape is known."""

    def __init__(self, constant: ConstantMatrix, columns: int) -> None:
        self._shape, self.outgoing, self.incoming = (constant.rows, columns), shares.zeros(0), 0
        numbers = constant.inner * columns
        self.sizes = (numbers * constant.knows(first=False), numbers * constant.knows(first=True))
        """The differences that the first holder sends, and the second one."""

    def take(self, theirs: Share) -> Share:
        return shares.zeros(*self._shape)


class Count:
    """The products that a program asks for."""

    def __init__(self, constants: Mapping[Name, ConstantMatrix]) -> None:
        self._constants = constants
        self.columns: Counter[Name] = Counter()
        self.triples: Counter[Shape] = Counter()

    def add(self, other: Count, times: int) -> None:
        """What another program asks for, so many times."""
        for name, columns in other.columns.items():
            self.columns[name] += times * columns
        for shape, count in other.triples.items():
            self.triples[shape] += times * count

    def times(self, name: Name, vectors: Share) -> Request:
        self.columns[name] += vectors.shape[2]
        return Blank(self._constants[name], vectors.shape[2])

    def pair(self, shape: Shape, count: int) -> Pair:
        self.triples[shape] += count
        return Pair(
            shares.zeros(count, shape.rows, shape.inner),
            shares.zeros(count, shape.inner, shape.columns),
            shares.zeros(count, shape.rows, shape.columns),
            first=True,
        )


def trip_sizes(move: Move) -> list[tuple[int, int]]:
    """Run a program to its end with zeros. Return how many numbers the two holders send in each trip."""
    sizes: list[tuple[int, int]] = []
    try:
        wanted = next(move)
        while True:
            each = [r.sizes if isinstance(r, Blank) else (r.outgoing.shape[1], r.incoming) for r in wanted]
            sizes.append((sum(first for first, _ in each), sum(second for _, second in each)))
            wanted = move.send([request.take(shares.zeros(request.incoming)) for request in wanted])
    except StopIteration:
        return sizes


# Preparation

Job = tuple[Product, Operand]
"""An encrypted product, and this holder's factor of it."""


def prepared_products(constants: Mapping[Name, ConstantMatrix], count: Count) -> list[Product]:
    """List the encrypted products that prepare all that was counted, as both holders make them."""
    products = []
    for names in _same(constants, count):
        constant, columns = constants[names[0]], sum(count.columns[name] for name in names)
        products += _constant_products(constant, len(names), columns)
    for shape, total in count.triples.items():
        for at in _groups(shape, total):
            products += _triple_products(shape, at.stop - at.start)
    return products


async def prepare_all(
    link: Link,
    peer: str,
    constants: Mapping[Name, ConstantMatrix],
    own: Mapping[Name, Share],
    count: Count,
    scheme: CrossScheme,
    mapper: Mapper,
    *,
    first: bool,
    step: int,
    draw: Callable[..., Share] = shares.uniform,
) -> Correlations:
    """Prepare all products that were counted.

    Parameters
    ----------
    constants: every matrix by name, as both holders know it.
    own: this holder's shares (5, rows, inner); a matrix that the other one knows is not among them.
    """
    factors: list[Share] = []
    randoms: dict[Name, Share | None] = {}
    for names in _same(constants, count):
        for name in names:
            drawn = constants[name].knows(first=not first)
            randoms[name] = draw(constants[name].inner, count.columns[name]) if drawn else None
        factors += _constant_factors(constants[names[0]], names, own, randoms, first=first)
    triples = {
        shape: (draw(total, shape.rows, shape.inner), draw(total, shape.inner, shape.columns))
        for shape, total in count.triples.items()
    }
    for shape, (left, right) in triples.items():
        factors += _triple_factors(shape, left, right, first=first)
    jobs = list(zip(prepared_products(constants, count), map(operand_of, factors), strict=True))
    encrypted = iter(await _products(link, peer, jobs, scheme, mapper, first=first, step=step))
    ready = {}
    for names in _same(constants, count):
        constant, sizes = constants[names[0]], [count.columns[name] for name in names]
        products = shares.zeros(constant.rows, sum(sizes))
        if constant.knows(first=False):
            products = shares.add(products, next(encrypted).transpose(0, 2, 1))
        if constant.knows(first=True):
            products = shares.add(products, next(encrypted))
        parts = np.split(products, np.cumsum(sizes)[:-1], axis=2)
        for name, part in zip(names, parts, strict=True):
            ready[name] = PreparedConstant(own.get(name), randoms[name], part)
    read = {shape: _read_triples(shape, *both, encrypted) for shape, both in triples.items()}
    return Correlations(ready, read, first=first)


def _same(constants: Mapping[Name, ConstantMatrix], count: Count) -> list[list[Name]]:
    """Shared matrices of the same shape, one after the other, are prepared together.

    They stand side by side, and their random columns in a block-diagonal matrix beside them. So the sum over
    all inner rows gives each matrix times its own columns, and ciphertexts are fuller.
    """
    groups: list[list[Name]] = []
    for constant, names in groupby(count.columns, key=lambda name: constants[name]):
        together = list(names)
        groups += [together] if constant.known_to == "both" else [[name] for name in together]
    return groups


def _constant_products(constant: ConstantMatrix, matrices: int, columns: int) -> list[Product]:
    """(M_2 r_1)' and M_1 r_2, as far as there are such shares."""
    inner, rows, bits = matrices * constant.inner, constant.rows, constant.bits
    forth = [Product(inner, columns, rows, WIDTH, bits)] if constant.knows(first=False) else []
    return forth + ([Product(inner, rows, columns, bits, WIDTH)] if constant.knows(first=True) else [])


def _constant_factors(
    constant: ConstantMatrix,
    names: Sequence[Name],
    own: Mapping[Name, Share],
    randoms: Mapping[Name, Share | None],
    *,
    first: bool,
) -> list[Share]:
    """This holder's factors of those: its shares of the matrices, or its random columns."""
    factors = []
    for owner_first in (False, True):
        if not constant.knows(first=owner_first):
            continue
        if owner_first == first:
            beside = np.concatenate([own[name] for name in names], axis=2)
            factors.append(beside.transpose(0, 2, 1))
        else:
            drawn = [random for name in names if (random := randoms[name]) is not None]
            factors.append(_block_diagonal(drawn))
    return factors


def _block_diagonal(blocks: Sequence[Share]) -> Share:
    """(5, inner, columns) each -> (5, inner of all, columns of all), with 0 away from the blocks."""
    inner, columns = (sum(each.shape[axis] for each in blocks) for axis in (1, 2))
    whole = shares.zeros(inner, columns)
    row = column = 0
    for each in blocks:
        whole[:, row : row + each.shape[1], column : column + each.shape[2]] = each
        row, column = row + each.shape[1], column + each.shape[2]
    return whole


def _groups(shape: Shape, count: int) -> list[slice]:
    size = max(1, GROUP_COLUMNS // max(shape.rows, shape.columns))
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def _triple_products(shape: Shape, count: int) -> list[Product]:
    """R_1 T_2 and (R_2 T_1)', some triples a product: the multiplier's factor is block diagonal."""
    inner = count * shape.inner
    return [
        Product(inner, shape.rows, count * shape.columns),
        Product(inner, shape.columns, count * shape.rows),
    ]


def _triple_factors(shape: Shape, left: Share, right: Share, *, first: bool) -> list[Share]:
    """This holder's factors of those."""
    factors: list[Share] = []
    for at in _groups(shape, left.shape[1]):
        rows = np.ascontiguousarray(left[:, at].transpose(0, 1, 3, 2))
        columns, inner = right[:, at], rows.shape[1] * shape.inner
        for part in (rows, columns) if first else (columns, rows):
            blocks = part.transpose(1, 0, 2, 3)
            factors.append(part.reshape(LIMBS, inner, -1) if first else _block_diagonal(list(blocks)))
    return factors


def _read_triples(shape: Shape, left: Share, right: Share, encrypted: Any) -> Pair3:
    """This holder's shares of R T."""
    products = []
    for at in _groups(shape, left.shape[1]):
        some_left, some_right = left[:, at], right[:, at]
        count = some_left.shape[1]
        forth = next(encrypted).reshape(LIMBS, shape.rows, count, shape.columns).transpose(0, 2, 1, 3)
        back = next(encrypted).reshape(LIMBS, shape.columns, count, shape.rows).transpose(0, 2, 3, 1)
        own = [shares.matmul(some_left[:, i], some_right[:, i]) for i in range(count)]
        products.append(shares.add(np.stack(own, axis=1), forth, back))
    return left, right, np.concatenate(products, axis=1)


async def _products(
    link: Link, peer: str, jobs: Sequence[Job], scheme: CrossScheme, mapper: Mapper, *, first: bool, step: int
) -> list[Share]:
    """This holder's shares of encrypted products, in order. The key ends with them."""
    if not first:
        theirs = await Multiplier.begin(link, scheme, peer, mapper, step=step)
        return [await theirs.multiply(product, operand, step=step) for product, operand in jobs]
    own = await Encryptor.begin(link, scheme, [peer], mapper, step=step)
    products: list[Share] = []
    waiting: list[Product] = []

    async def read(most: int) -> None:
        while len(waiting) > most:
            products.append(await own.read(peer, waiting.pop(0), step=step))

    for product, operand in jobs:
        small = len(own.key.blocks(product)) <= SMALL_BLOCKS
        if not small:
            await read(0)
        await own.send(peer, product, operand, step=step)
        waiting.append(product)
        await read(AHEAD if small else 0)
    await read(0)
    own.end()
    return products
