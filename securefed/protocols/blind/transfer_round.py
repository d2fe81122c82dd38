"""A round of blind transfer learning on shares, as trips of products between the two holders.

protocols.blind.transfer_algebra has the objective, the steps and all names. Everything here is a share of
one holder; all sizes are public. B's Q local steps and A's:

    trip    B                                           A
    1       K'W_A; v = W_B Phi, sigma = |Phi|^2/4       K W_B and W_B'c; G W_B
    2       base of W_B; K'W_A Phi; powers of sigma     base of W_A and Phi_1 to Phi_Q; S = W_B'G W_B
    3       coefficients of Z                           Phi_j S/4; w_i S/4
    4...    powers, then Z Phi'                         g_1 to g_(Q-1), one a trip; then W_A and Phi

With FedBCD-p both move at once and share every trip; with FedBCD-s B's trips come first. Phi goes on from
round to round: A's last product gives it.

Values have `VALUE_BITS` fraction bits. A product is truncated before it enters another one. Shares of a
product are random, so they may be truncated; maps at the start are known to one party and are not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from securefed.crypto import shares
from securefed.crypto.shares import LIMBS, Share
from securefed.protocols.blind.correlations import (
    Count,
    FixedMatrix,
    Move,
    Name,
    Products,
    Request,
    Shape,
    side_by_side,
    trip_sizes,
)
from securefed.protocols.blind.statistics import MATRIX_BITS, SHARE_BITS
from securefed.protocols.blind.transfer_algebra import TransferPlan

OWN_OF_A, OWN_OF_B = ("bases", "pushes", "weights"), ("G", "base", "chunk")
"""Kinds of matrices that one party knows; a name starts with the kind."""
OWN_BITS = 36
"""Bits of a matrix that B multiplies by itself, with the sign: it goes in one digit."""
OWN_FRACTION = 27
"""Its fraction bits. A's matrices have `MATRIX_BITS`: the noise of encrypted products with uniform numbers
does not depend on the matrix."""
LARGEST = 2.0 ** (OWN_BITS - 1 - OWN_FRACTION)
"""Entries of a party's own matrices stay below this."""
A_BITS = OWN_BITS - OWN_FRACTION + MATRIX_BITS
"""Bits of A's matrices, with the sign."""
QUARTER = MATRIX_BITS + 2
"""Bits by which a product is truncated that is needed divided by 4."""


@dataclass(frozen=True)
class Maps:
    """One holder's shares of the model."""

    a: Share
    """W_A: (5, d_A, width)."""
    b: Share
    phi: Share
    """Phi of every output: (5, outputs, 1, h)."""

    @classmethod
    def zeros(cls, plan: TransferPlan) -> Maps:
        return cls(
            shares.zeros(plan.size_a, plan.width),
            shares.zeros(plan.size_b, plan.width),
            shares.zeros(plan.outputs, 1, plan.hidden),
        )


def fixed_matrices(plan: TransferPlan, rates: Sequence[float]) -> dict[Name, FixedMatrix]:
    """Return all matrices that stay the same: K with c' below it, its transpose, and parties' own by rate."""
    da, db, c, steps = plan.size_a, plan.size_b, plan.outputs, plan.local_steps

    def by_b(rows: int, inner: int) -> FixedMatrix:
        return FixedMatrix(rows, inner, "second", OWN_BITS)

    matrices: dict[Name, FixedMatrix] = {
        ("K",): FixedMatrix(da + c, db, "both", SHARE_BITS),
        ("K'",): FixedMatrix(db, da, "both", SHARE_BITS),
        ("G",): by_b(db, db),
    }
    for rate in dict.fromkeys(rates):
        matrices["base", rate] = by_b(db, 2 * db)
        for place, size in enumerate(plan.chunks):
            start, end = place == 0, place == len(plan.chunks) - 1
            rows, inner = (size if end else 2 * size + 1), (3 if start else 5)
            matrices["chunk", rate, place] = by_b(rows * db, inner * db)
        matrices["bases", rate] = FixedMatrix(da + steps * c, 2 * da, "first", A_BITS)
        matrices["pushes", rate] = FixedMatrix(da + c, steps * c, "first", A_BITS)
        if steps > 1:
            matrices["weights", rate] = FixedMatrix((steps - 1) * c, c, "first", A_BITS)
    return matrices


def count_products(
    plan: TransferPlan, matrices: dict[Name, FixedMatrix], rates: Sequence[float], scorings: int
) -> Count:
    """Count what rounds with these rates and so many scorings take."""
    total, labels = Count(matrices), shares.zeros(plan.size_b, plan.outputs)

    def add(rate: float, times: int, move: Callable[[TransferRound, Maps], Move]) -> None:
        each = Count(matrices)
        counting = TransferRound(plan, each, labels, rate, first=True)
        trip_sizes(move(counting, Maps.zeros(plan)))
        total.add(each, times)

    for rate, rounds in Counter(rates).items():
        add(rate, rounds, TransferRound.moves)
    add(0.0, scorings, TransferRound.score_map)
    return total


class TransferRound:
    """The products of one round at one holder. Inside, shares are by output: (5, outputs, rows, columns)."""

    def __init__(
        self, plan: TransferPlan, products: Products, labels: Share, rate: float, *, first: bool
    ) -> None:
        """`labels`: this holder's share of c, (5, d_B, outputs)."""
        self._plan, self._products, self._labels = plan, products, _by_output(labels, plan.outputs)
        self._rate, self._first = rate, first
        self._score_shape = Shape(1 + 2 * plan.size_b, plan.hidden, 1)

    def _cut(self, share: Share, bits: int = MATRIX_BITS) -> Share:
        return shares.truncate(share, bits, first=self._first)

    def _cut_by_b(self, share: Share) -> Share:
        """The same for a product by one of B's matrices."""
        return self._cut(share, OWN_FRACTION)

    def _times(self, name: Name, values: Share) -> Request:
        """Multiply the columns of all outputs by a fixed matrix."""
        request = self._products.times(name, _together(values))
        return replace(request, take=lambda theirs: _by_output(request.take(theirs), values.shape[1]))

    # A round

    def moves(self, maps: Maps) -> Move:
        """All local steps of a round; returns the new maps."""
        a, b = (_by_output(each, self._plan.outputs) for each in (maps.a, maps.b))
        if self._plan.sequential:
            b = yield from self._steps_of_b(a, b, maps.phi)
            a, phi = yield from self._steps_of_a(a, b, maps.phi)
        else:
            both = self._steps_of_b(a, b, maps.phi), self._steps_of_a(a, b, maps.phi)
            b, (a, phi) = yield from side_by_side(*both)
        return Maps(_together(a), _together(b), phi)

    def score_map(self, maps: Maps) -> Move:
        """v = W_B Phi: (5, d_B, outputs)."""
        pair = self._products.pair(self._score_shape, self._plan.outputs)
        b = _by_output(maps.b, self._plan.outputs)
        yield [pair.open([(1, b)], [(0, _transposed(maps.phi))])]
        return _together(self._cut(pair.product(slice(1, 1 + self._plan.size_b))))

    # B

    def _steps_of_b(self, a: Share, b: Share, phi: Share) -> Move:
        plan, size = self._plan, self._plan.size_b
        pair = self._products.pair(self._score_shape, plan.outputs)
        aligned, _ = yield [
            self._times(("K'",), a),
            pair.open([(0, np.concatenate([phi, b], axis=2))], [(0, _transposed(phi))]),
        ]
        aligned = self._cut(aligned)
        sigma = self._cut(pair.product(slice(0, 1)), QUARTER)
        start = self._cut(pair.product(slice(1, 1 + size)))

        def first_products() -> Move:
            base, _ = yield [
                self._times(("base", self._rate), np.concatenate([b, aligned], axis=2)),
                pair.open([(1 + size, aligned)]),
            ]
            pulled = self._cut(pair.product(slice(1 + size, None)))
            fixed = np.concatenate([start, pulled, self._labels], axis=2)
            (parts,) = yield [self._times(("chunk", self._rate, 0), fixed)]
            return self._cut_by_b(base), fixed, self._cut_by_b(parts)

        (base, fixed, parts), (phis, sigmas) = yield from side_by_side(
            first_products(), self._powers(phi, sigma)
        )
        for place, steps in enumerate(plan.chunks[:-1], 1):
            state = yield from self._summed(parts, steps, sigmas)
            inputs = np.concatenate([state, fixed], axis=2)
            (parts,) = yield [self._times(("chunk", self._rate, place), inputs)]
            parts = self._cut_by_b(parts)
        steps = plan.chunks[-1]
        last = self._products.pair(Shape(size, steps, plan.hidden), plan.outputs)
        powers = np.concatenate(phis[:steps], axis=2)
        yield [last.open([(0, _coefficients(parts, steps))], [(0, powers)])]
        return shares.add(base, self._cut(last.product()))

    def _powers(self, phi: Share, sigma: Share) -> Move:
        """sigma^k Phi and sigma^k as far as the chunks need them, by doubling: lists by k."""
        plan, h = self._plan, self._plan.hidden
        phis, sigmas = [phi], [shares.zeros(*sigma.shape[1:]), sigma]
        levels: list[int] = []
        while 2 ** len(levels) < max(plan.chunks):
            levels.append(2 ** len(levels))
        if not levels:
            return phis, sigmas
        most = levels[-1]
        # Left: sigma^m. Right: sigma^j Phi for j < m, then sigma^j for 1 <= j <= m.
        pair = self._products.pair(Shape(len(levels), 1, most * (h + 1)), plan.outputs)
        for level, m in enumerate(levels):
            low = m // 2
            new = np.concatenate(phis[low:m], axis=3), np.concatenate(sigmas[low + 1 : m + 1], axis=3)
            yield [pair.open([(level, sigmas[m])], [(low * h, new[0]), (most * h + low, new[1])])]
            row = slice(level, level + 1)
            more = self._cut(pair.product(row, slice(0, m * h)))
            phis += np.split(more, m, axis=3)
            more = self._cut(pair.product(row, slice(most * h, most * h + m)))
            sigmas += np.split(more, m, axis=3)
        return phis, sigmas

    def _summed(self, parts: Share, steps: int, sigmas: list[Share]) -> Move:
        """Z and v, one above the other, from their coefficients: (5, outputs, 2 d_B, 1)."""
        plan, size = self._plan, self._plan.size_b
        z, v = parts[:, :, : steps * size], parts[:, :, steps * size :]
        z = np.concatenate([z, shares.zeros(plan.outputs, size, 1)], axis=2)
        both = np.concatenate([_coefficients(each, steps + 1) for each in (z, v)], axis=2)
        pair = self._products.pair(Shape(2 * size, steps, 1), plan.outputs)
        powers = np.concatenate(sigmas[1 : steps + 1], axis=2)
        yield [pair.open([(0, both[..., 1:])], [(0, powers)])]
        return shares.add(both[..., :1], self._cut(pair.product()))

    # A

    def _steps_of_a(self, a: Share, b: Share, phi: Share) -> Move:
        plan, products, rate = self._plan, self._products, self._rate
        size, c, h, steps = plan.size_a, plan.outputs, plan.hidden, plan.local_steps
        product, weighed = yield [self._times(("K",), b), self._times(("G",), b)]
        product = self._cut(product)
        aligned, labels = product[:, :, :size], _own_rows(product[:, :, size:])
        square = products.pair(Shape(h, plan.size_b, h), c)
        product, _ = yield [
            self._times(("bases", rate), np.concatenate([a, aligned], axis=2)),
            square.open([(0, _transposed(b))], [(0, self._cut_by_b(weighed))]),
        ]
        product = self._cut(product)
        base, later = product[:, :, :size], _own_rows(product[:, :, size:])
        s = self._cut(square.product(), QUARTER)
        # Left: Phi_0 to Phi_(Q-1) without the g, then g_0 to g_(Q-2). Right: S/4, then w_i S/4.
        pair = products.pair(Shape(2 * steps - 1, h, steps * h), c)
        phis = np.concatenate([phi, later[:, :, :-1]], axis=2)
        requests: list[Request] = [pair.open([(0, phis)], [(0, s)])]
        if steps > 1:
            requests.append(products.times(("weights", rate), s.reshape(LIMBS, c, h * h)))
        _, *weighted = yield requests
        pulled = shares.subtract(
            pair.product(slice(0, steps), slice(0, h)), shares.shift_left(labels, MATRIX_BITS - 1)
        )
        gs = [self._cut(pulled[:, :, :1])]
        for step in range(1, steps):
            right: list[tuple[int, Share]] = []
            if step == 1:
                squares = self._cut(weighted[0]).reshape(LIMBS, steps - 1, c, h, h).transpose(0, 2, 3, 1, 4)
                right = [(h, np.ascontiguousarray(squares).reshape(LIMBS, c, h, -1))]
            yield [pair.open([(steps + step - 1, gs[-1])], right)]
            pushed = [
                pair.product(slice(steps + i, steps + i + 1), slice((step - i) * h, (step - i + 1) * h))
                for i in range(step)
            ]
            gs.append(self._cut(shares.subtract(pulled[:, :, step : step + 1], shares.add(*pushed))))
        # Each output's g stand in its own rows, with 0 in those of the others.
        blocked = shares.zeros(c, steps, c, h)
        for place in range(c):
            blocked[:, place, :, place] = np.concatenate(gs, axis=2)[:, place]
        (product,) = yield [self._times(("pushes", rate), blocked.reshape(LIMBS, c, steps * c, h))]
        product = self._cut(product)
        phi = shares.subtract(later[:, :, -1:], _own_rows(product[:, :, size:]))
        return shares.subtract(base, product[:, :, :size]), phi


def _by_output(columns: Share, outputs: int) -> Share:
    """(5, d, outputs k) -> (5, outputs, d, k)."""
    split = columns.reshape(LIMBS, columns.shape[1], outputs, -1)
    return np.ascontiguousarray(split.transpose(0, 2, 1, 3))


def _together(values: Share) -> Share:
    """(5, outputs, d, k) -> (5, d, outputs k)."""
    return np.ascontiguousarray(values.transpose(0, 2, 1, 3)).reshape(LIMBS, values.shape[2], -1)


def _own_rows(values: Share) -> Share:
    """(5, outputs, count outputs, k), a row for each output -> (5, outputs, count, k): its own rows."""
    outputs = values.shape[1]
    return np.stack([values[:, place, place::outputs] for place in range(outputs)], axis=1)


def _transposed(blocks: Share) -> Share:
    return np.ascontiguousarray(blocks.transpose(0, 1, 3, 2))


def _coefficients(parts: Share, count: int) -> Share:
    """(5, outputs, count d, 1), one power below the other -> (5, outputs, d, count)."""
    return _transposed(parts.reshape(LIMBS, parts.shape[1], count, -1))
