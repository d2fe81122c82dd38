"""Products of shared matrices that were prepared beforehand, many of them in one exchange of differences.

The two holders share numbers x = x_1 + x_2. Two kinds of products are prepared:

    fixed       a matrix M that stays the same, times columns that change. For each column a random r_h at
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

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import numpy as np

from securefed.crypto import shares
from securefed.crypto.blind.interface import Operand, Product
from securefed.crypto.shares import LIMBS, WIDTH, Floats, Share
from securefed.errors import MaskError
from securefed.protocols.blind.cross import At, CrossTools, operand_of
from securefed.transport import Link

GROUP_COLUMNS = 4096
"""Triples are made together as long as their right factor has no more columns."""
AHEAD = 4
"""Encrypted factors that may be under way before the first reply is read."""
SMALL_BLOCKS = 4
"""Blocks of a factor that is sent ahead: it takes no acknowledgement."""

Name = tuple[Any, ...]
"""Of a fixed matrix; it starts with the kind."""


@dataclass(frozen=True)
class FixedMatrix:
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


@dataclass(frozen=True)
class Request:
    """One product of a trip, or the opening of factors."""

    outgoing: Share
    """The differences that this holder sends: (5, count)."""
    incoming: int
    """How many the other holder sends."""
    take: Callable[[Share], Share]
    """Return this holder's share of the product, from the other's differences."""


# Programs in trips

Move = Generator[list[Request], list[Share], Any]
"""A program in trips: it yields the requests of each and gets this holder's shares of the products."""


def side_by_side(*moves: Move) -> Move:
    """Run programs at the same time, so that their trips are shared. Returns what each returns."""
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


async def run_moves(link: Link, peer: str, move: Move, at: At) -> Any:
    """Run a program to its end, each trip a step from `at` on; return what it returns."""
    try:
        wanted = next(move)
        while True:
            products = await trip(link, peer, wanted, at)
            at = At(at.step + 1, at.round)
            with link.activity("rounds"):
                wanted = move.send(products)
    except StopIteration as end:
        return end.value


async def trip(link: Link, peer: str, requests: Sequence[Request], at: At) -> list[Share]:
    """Exchange the differences of all requests; return this holder's shares of the products."""
    whole = np.concatenate([request.outgoing for request in requests], axis=1)
    if whole.shape[1]:
        link.send(peer, "difference", shares.to_bytes(whole), round=at.round, step=at.step)
    due = sum(request.incoming for request in requests)
    theirs = shares.zeros(0)
    if due:
        message = await link.receive("difference", peer, round=at.round, step=at.step)
        theirs = shares.from_bytes(message, (LIMBS, due))
    products, start = [], 0
    with link.activity("rounds"):
        for request in requests:
            products.append(request.take(theirs[:, start : start + request.incoming]))
            start += request.incoming
    return products


def trip_sizes(move: Move) -> list[tuple[int, int]]:
    """Run a program to its end with zeros. Return how many numbers the two holders send in each trip."""
    sizes: list[tuple[int, int]] = []
    try:
        wanted = next(move)
        while True:
            outgoing = sum(request.outgoing.shape[1] for request in wanted)
            sizes.append((outgoing, sum(request.incoming for request in wanted)))
            wanted = move.send([request.take(shares.zeros(request.incoming)) for request in wanted])
    except StopIteration:
        return sizes


# Prepared products at one holder


class PreparedMatrix:
    """One holder's side of a fixed matrix."""

    def __init__(self, share: Share | None, random: Share | None, products: Share) -> None:
        self.share: Floats | None = None if share is None else share.astype(np.float64)
        """None: the other holder knows the matrix."""
        self._random, self._products = random, products
        """Random columns, None where this holder alone knows the matrix; and shares of all their products."""
        self._used = 0

    def times(self, vectors: Share) -> Request:
        count, left = vectors.shape[2], self._products.shape[2] - self._used
        if count > left:
            raise MaskError(f"{count} prepared columns are needed, {left} are left")
        at = slice(self._used, self._used + count)
        self._used += count
        outgoing, prepared, share = shares.zeros(0), self._products[:, :, at], self.share
        if self._random is not None:
            outgoing = shares.subtract(vectors, self._random[:, :, at]).reshape(LIMBS, -1)
        if share is None:
            return Request(outgoing, 0, lambda theirs: prepared.copy())

        def take(theirs: Share) -> Share:
            whole = shares.add(vectors, theirs.reshape(vectors.shape))
            return shares.add(shares.matmul(share, whole), prepared)

        return Request(outgoing, vectors.shape[1] * count, take)


Places = Sequence[tuple[int, Share]]
"""(first row or column, values): the values of some rows or columns of a factor."""


class Pair:
    """Several products of two changing matrices of the same shape: factors (5, count, rows, inner) and
    (5, count, inner, columns).
    """

    def __init__(self, left: Share, right: Share, products: Share, *, first: bool) -> None:
        """`left`, `right`: this holder's shares of the random factors; `products`: of their products."""
        self._left, self._right, self._products, self._first = left, right, products, first
        self._opened = np.zeros_like(left), np.zeros_like(right)
        self._rows, self._columns = set[int](), set[int]()

    def open(self, left: Places = (), right: Places = ()) -> Request:
        """Open rows of the left factor and columns of the right one, each once."""
        pieces: list[tuple[Share, Share]] = []
        """Where differences are collected, and this holder's."""
        for start, values in left:
            at = self._once(self._rows, start, values.shape[2], self._left.shape[2])
            pieces.append((self._opened[0][:, :, at], shares.subtract(values, self._left[:, :, at])))
        for start, values in right:
            at = self._once(self._columns, start, values.shape[3], self._right.shape[3])
            pieces.append((self._opened[1][..., at], shares.subtract(values, self._right[..., at])))
        outgoing = np.concatenate([own.reshape(LIMBS, -1) for _, own in pieces], axis=1)

        def take(theirs: Share) -> Share:
            start = 0
            for opened, own in pieces:
                count = own[0].size
                opened[...] = shares.add(own, theirs[:, start : start + count].reshape(own.shape))
                start += count
            return shares.zeros(0)

        return Request(outgoing, outgoing.shape[1], take)

    @staticmethod
    def _once(used: set[int], start: int, count: int, most: int) -> slice:
        places = set(range(start, start + count))
        if places & used or start + count > most:
            raise MaskError("a random number of a triple would serve twice")
        used |= places
        return slice(start, start + count)

    def product(self, rows: slice = slice(None), columns: slice = slice(None)) -> Share:
        """Return this holder's share of those rows times those columns, once they are open."""
        left, right = self._left[:, :, rows], self._right[:, :, :, columns]
        d, e = self._opened[0][:, :, rows], self._opened[1][:, :, :, columns]
        # D E + D T = D (E + T): the first holder adds the part that both know.
        other = shares.add(right, e) if self._first else right
        products = [
            shares.add(shares.matmul(d[:, i], other[:, i]), shares.matmul(left[:, i], e[:, i]))
            for i in range(left.shape[1])
        ]
        return shares.add(np.stack(products, axis=1), self._products[:, :, rows, columns])


Triples = tuple[Share, Share, Share]
"""All triples of a shape: R, T, R T, each (5, count, ...)."""


class Correlations:
    """One holder's prepared products."""

    def __init__(
        self, matrices: Mapping[Name, PreparedMatrix], triples: Mapping[Shape, Triples], *, first: bool
    ) -> None:
        self._matrices, self._triples, self._first = dict(matrices), dict(triples), first
        self._used: Counter[Shape] = Counter()

    def times(self, name: Name, vectors: Share) -> Request:
        """Return the request for a fixed matrix times shared columns (5, inner, count)."""
        return self._matrices[name].times(vectors)

    def pair(self, shape: Shape, count: int) -> Pair:
        """Return `count` triples of that shape that have not been used."""
        triples, start = self._triples[shape], self._used[shape]
        left = triples[0].shape[1] - start
        if count > left:
            raise MaskError(f"{count} triples are needed, {left} are left")
        self._used[shape] += count
        return Pair(*(part[:, start : start + count] for part in triples), first=self._first)


class Count:
    """The products that a program of the first holder asks for."""

    def __init__(self, matrices: Mapping[Name, FixedMatrix]) -> None:
        self._matrices = matrices
        self.columns: Counter[Name] = Counter()
        self.triples: Counter[Shape] = Counter()

    def add(self, other: Count, times: int) -> None:
        """Add what another program asks for, so many times."""
        for name, columns in other.columns.items():
            self.columns[name] += times * columns
        for shape, count in other.triples.items():
            self.triples[shape] += times * count

    def times(self, name: Name, vectors: Share) -> Request:
        matrix, count = self._matrices[name], vectors.shape[2]
        self.columns[name] += count
        outgoing, incoming = (matrix.inner * count * matrix.knows(first=first) for first in (False, True))
        return Request(shares.zeros(outgoing), incoming, lambda theirs: shares.zeros(matrix.rows, count))

    def pair(self, shape: Shape, count: int) -> Pair:
        self.triples[shape] += count
        sizes = ((shape.rows, shape.inner), (shape.inner, shape.columns), (shape.rows, shape.columns))
        return Pair(*(shares.zeros(count, *each) for each in sizes), first=True)


Products = Correlations | Count
"""What a program asks for: prepared products, or their number."""


# Preparation


def prepared_products(matrices: Mapping[Name, FixedMatrix], count: Count) -> list[Product]:
    """List the encrypted products that prepare all that was counted, as both holders make them."""
    products = []
    for names in _together(matrices, count):
        # (M_2 r_1)' and M_1 r_2, as far as there are such shares
        matrix, columns = matrices[names[0]], sum(count.columns[name] for name in names)
        inner, rows, bits = len(names) * matrix.inner, matrix.rows, matrix.bits
        if matrix.knows(first=False):
            products.append(Product(inner, columns, rows, WIDTH, bits))
        if matrix.knows(first=True):
            products.append(Product(inner, rows, columns, bits, WIDTH))
    for shape, total in count.triples.items():
        for at in _groups(shape, total):
            # R_1 T_2 and (R_2 T_1)', some triples a product: the multiplier's factor is block diagonal
            size = at.stop - at.start
            products.append(Product(size * shape.inner, shape.rows, size * shape.columns))
            products.append(Product(size * shape.inner, shape.columns, size * shape.rows))
    return products


async def prepare_all(
    tools: CrossTools,
    peer: str,
    matrices: Mapping[Name, FixedMatrix],
    own: Mapping[Name, Share],
    count: Count,
    *,
    first: bool,
    at: At,
    draw: Callable[..., Share] = shares.uniform,
) -> Correlations:
    """Prepare all products that were counted.

    `matrices`: by name, as both holders know them. `own`: this holder's shares (5, rows, inner); a matrix
    that the other one knows is not among them.
    """
    randoms = {
        name: draw(matrices[name].inner, columns)
        for name, columns in count.columns.items()
        if matrices[name].knows(first=not first)
    }
    triples = {
        shape: (draw(total, shape.rows, shape.inner), draw(total, shape.inner, shape.columns))
        for shape, total in count.triples.items()
    }
    factors: list[Share] = []
    for names in _together(matrices, count):
        for of_first in (False, True):
            if not matrices[names[0]].knows(first=of_first):
                continue
            if of_first == first:
                factors.append(np.concatenate([own[name] for name in names], axis=2).transpose(0, 2, 1))
            else:
                factors.append(_block_diagonal([randoms[name] for name in names]))
    for shape, (left, right) in triples.items():
        factors += _triple_factors(shape, left, right, first=first)
    jobs = list(zip(prepared_products(matrices, count), map(operand_of, factors), strict=True))
    encrypted = iter(await _products(tools, peer, jobs, first=first, at=at))
    prepared = {}
    for names in _together(matrices, count):
        matrix, sizes = matrices[names[0]], [count.columns[name] for name in names]
        products = shares.zeros(matrix.rows, sum(sizes))
        if matrix.knows(first=False):
            products = shares.add(products, next(encrypted).transpose(0, 2, 1))
        if matrix.knows(first=True):
            products = shares.add(products, next(encrypted))
        for name, part in zip(names, np.split(products, np.cumsum(sizes)[:-1], axis=2), strict=True):
            prepared[name] = PreparedMatrix(own.get(name), randoms.get(name), part)
    read = {shape: _read_triples(shape, *both, encrypted) for shape, both in triples.items()}
    return Correlations(prepared, read, first=first)


def _together(matrices: Mapping[Name, FixedMatrix], count: Count) -> list[list[Name]]:
    """Group shared matrices of the same shape, one after the other, that are prepared together.

    They stand side by side, and their random columns in a block-diagonal matrix beside them. So the sum over
    all inner rows gives each matrix times its own columns, and ciphertexts are fuller.
    """
    groups: list[list[Name]] = []
    for matrix, same in groupby(count.columns, key=lambda name: matrices[name]):
        names = list(same)
        groups += [names] if matrix.known_to == "both" else [[name] for name in names]
    return groups


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


def _triple_factors(shape: Shape, left: Share, right: Share, *, first: bool) -> list[Share]:
    """Return this holder's factors of the products of triples."""
    factors: list[Share] = []
    for at in _groups(shape, left.shape[1]):
        rows = np.ascontiguousarray(left[:, at].transpose(0, 1, 3, 2))
        columns, inner = right[:, at], rows.shape[1] * shape.inner
        for part in (rows, columns) if first else (columns, rows):
            blocks = part.transpose(1, 0, 2, 3)
            factors.append(part.reshape(LIMBS, inner, -1) if first else _block_diagonal(list(blocks)))
    return factors


def _read_triples(shape: Shape, left: Share, right: Share, encrypted: Iterator[Share]) -> Triples:
    """Return this holder's shares of R, T and R T."""
    products = []
    for at in _groups(shape, left.shape[1]):
        count = at.stop - at.start
        forth = next(encrypted).reshape(LIMBS, shape.rows, count, shape.columns).transpose(0, 2, 1, 3)
        back = next(encrypted).reshape(LIMBS, shape.columns, count, shape.rows).transpose(0, 2, 3, 1)
        own = [shares.matmul(left[:, i], right[:, i]) for i in range(at.start, at.stop)]
        products.append(shares.add(np.stack(own, axis=1), forth, back))
    return left, right, np.concatenate(products, axis=1)


async def _products(
    tools: CrossTools, peer: str, jobs: Sequence[tuple[Product, Operand]], *, first: bool, at: At
) -> list[Share]:
    """Return this holder's shares of encrypted products, in order. The key ends with them."""
    if not first:
        theirs = await tools.multiplier(peer, at=at)
        return [await theirs.multiply(product, operand, at=at) for product, operand in jobs]
    own = await tools.encryptor([peer], at=at)
    products: list[Share] = []
    waiting: list[Product] = []

    async def read(most: int) -> None:
        while len(waiting) > most:
            products.append(await own.read(peer, waiting.pop(0), at=at))

    for product, operand in jobs:
        small = len(own.key.blocks(product)) <= SMALL_BLOCKS
        if not small:
            await read(0)
        await own.send(peer, product, operand, at=at)
        waiting.append(product)
        await read(AHEAD if small else 0)
    await read(0)
    own.key.erase()
    return products
