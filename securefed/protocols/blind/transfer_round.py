"""A round of blind transfer learning on shares, as trips of products between the two holders.

protocols.blind.transfer_algebra has the objective, the steps and all names. Everything here is a share of
one holder; all sizes are public. B's Q local steps and A's:

    trip    B                                           A
    1       K'W_A; Phi c, sigma = Phi^2/4               K W_B and W_B'c; G W_B
    2       coefficients of W_B; powers of sigma        base of W_A and Phi_1 to Phi_Q; S = W_B'G W_B
    3       powers of sigma                             Phi_j S/4; w_i S/4
    4...    W_B                                         g_1 to g_(Q-1), one a trip; then W_A and Phi

With FedBCD-p both move at once and share every trip; with FedBCD-s B's trips come first. Phi goes on from
round to round: A's last product gives it.

Values have `VALUE_BITS` fraction bits. A product is truncated before it enters another one. Shares of a
product are random, so they may be truncated; maps at the start are known to one party and are not.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    """W_A: (5, d_A, outputs)."""
    b: Share
    phi: Share
    """Phi of every output: (5, 1, outputs)."""

    @classmethod
    def zeros(cls, plan: TransferPlan) -> Maps:
        return cls(
            shares.zeros(plan.size_a, plan.outputs),
            shares.zeros(plan.size_b, plan.outputs),
            shares.zeros(1, plan.outputs),
        )


def fixed_matrices(plan: TransferPlan) -> dict[Name, FixedMatrix]:
    """Return all matrices that stay the same: K with c' below it, its transpose, and parties' own."""
    da, db, c, steps = plan.size_a, plan.size_b, plan.outputs, plan.local_steps
    matrices: dict[Name, FixedMatrix] = {
        ("K",): FixedMatrix(da + c, db, "both", SHARE_BITS),
        ("K'",): FixedMatrix(db, da, "both", SHARE_BITS),
        ("G",): FixedMatrix(db, db, "second", OWN_BITS),
        ("bases",): FixedMatrix(da + steps * c, 2 * da, "first", A_BITS),
        ("pushes",): FixedMatrix(da + c, steps * c, "first", A_BITS),
    }
    for place, size in enumerate(plan.chunks):
        matrices["chunk", place] = FixedMatrix((size + 1) * db, (4 if place else 3) * db, "second", OWN_BITS)
    if steps > 1:
        matrices["weights",] = FixedMatrix((steps - 1) * c, c, "first", A_BITS)
    return matrices


def count_products(
    plan: TransferPlan, matrices: dict[Name, FixedMatrix], rounds: int, scorings: int
) -> Count:
    """Count what so many rounds and scorings take."""
    total, labels = Count(matrices), shares.zeros(plan.size_b, plan.outputs)
    for move, times in ((TransferRound.moves, rounds), (TransferRound.score_map, scorings)):
        each = Count(matrices)
        trip_sizes(move(TransferRound(plan, each, labels, first=True), Maps.zeros(plan)))
        if times:
            total.add(each, times)
    return total


class TransferRound:
    """The products of one round at one holder, as moves. Shares are (5, rows, outputs); in pairs they are by
    output: (5, outputs, rows, columns).
    """

    def __init__(self, plan: TransferPlan, products: Products, labels: Share, *, first: bool) -> None:
        """`labels`: this holder's share of c, (5, d_B, outputs)."""
        self._plan, self._products, self._labels, self._first = plan, products, labels, first

    def _cut(self, share: Share, bits: int = MATRIX_BITS) -> Share:
        return shares.truncate(share, bits, first=self._first)

    def _times(self, name: Name, values: Share, bits: int = MATRIX_BITS) -> Move:
        """Multiply by a fixed matrix with so many fraction bits."""
        (product,) = yield [self._products.times(name, values)]
        return self._cut(product, bits)

    def _scaled(self, values: Share, phi: Share) -> Move:
        """Multiply columns, of at most 1 + d_B rows, by the Phi of their output."""
        pair = self._products.pair(Shape(1 + self._plan.size_b, 1, 1), self._plan.outputs)
        yield [pair.open([(0, _by_output(values))], [(0, _by_output(phi))])]
        return _together(pair.product(slice(0, values.shape[1])))

    # A round

    def moves(self, maps: Maps) -> Move:
        """All local steps of a round; returns the new maps."""
        a, b, phi = maps.a, maps.b, maps.phi
        if self._plan.sequential:
            b = yield from self._steps_of_b(a, b, phi)
            a, phi = yield from self._steps_of_a(a, b, phi)
        else:
            both = self._steps_of_b(a, b, phi), self._steps_of_a(a, b, phi)
            b, (a, phi) = yield from side_by_side(*both)
        return Maps(a, b, phi)

    def score_map(self, maps: Maps) -> Move:
        """v = W_B Phi: (5, d_B, outputs)."""
        scaled = yield from self._scaled(maps.b, maps.phi)
        return self._cut(scaled)

    # B

    def _steps_of_b(self, a: Share, b: Share, phi: Share) -> Move:
        plan, size = self._plan, self._plan.size_b
        aligned, scaled = yield from side_by_side(
            self._times(("K'",), a), self._scaled(np.concatenate([phi, self._labels], axis=1), phi)
        )
        sigma, pushed = self._cut(scaled[:, :1], QUARTER), self._cut(scaled[:, 1:])
        fixed = np.concatenate([b, aligned, pushed], axis=1)
        parts, powers = yield from side_by_side(
            self._times(("chunk", 0), fixed, OWN_FRACTION), self._powers(sigma)
        )
        for place, steps in enumerate(plan.chunks):
            if place:
                inputs = np.concatenate([b, fixed], axis=1)
                parts = yield from self._times(("chunk", place), inputs, OWN_FRACTION)
            pair = self._products.pair(Shape(size, steps, 1), plan.outputs)
            coefficients = parts[:, size:].reshape(LIMBS, steps, size, plan.outputs).transpose(0, 3, 2, 1)
            yield [pair.open([(0, coefficients)], [(0, powers[:, :, :steps])])]
            b = shares.add(parts[:, :size], _together(self._cut(pair.product())))
        return b

    def _powers(self, sigma: Share) -> Move:
        """sigma, its square and so on, as many as the chunks take, by doubling: (5, outputs, count, 1)."""
        powers, most = _by_output(sigma), max(self._plan.chunks)
        levels = (most - 1).bit_length()
        if not levels:
            return powers
        # Left: sigma^m. Right: sigma to sigma^m.
        pair = self._products.pair(Shape(levels, 1, 2 ** (levels - 1)), self._plan.outputs)
        for level in range(levels):
            m = 2**level
            new = m // 2, _transposed(powers[:, :, m // 2 :])
            yield [pair.open([(level, powers[:, :, m - 1 :])], [new])]
            more = self._cut(pair.product(slice(level, level + 1), slice(0, m)))
            powers = np.concatenate([powers, _transposed(more)], axis=2)
        return powers[:, :, :most]

    # A

    def _steps_of_a(self, a: Share, b: Share, phi: Share) -> Move:
        plan, products = self._plan, self._products
        size, c, steps = plan.size_a, plan.outputs, plan.local_steps
        product, weighed = yield from side_by_side(
            self._times(("K",), b), self._times(("G",), b, OWN_FRACTION)
        )
        aligned, labels = product[:, :size], _by_output(_own_rows(product[:, size:]))
        square = products.pair(Shape(1, plan.size_b, 1), c)
        product, _ = yield [
            products.times(("bases",), np.concatenate([a, aligned], axis=1)),
            square.open([(0, _transposed(_by_output(b)))], [(0, _by_output(weighed))]),
        ]
        product = self._cut(product)
        base, later = product[:, :size], _own_rows(product[:, size:])
        s = self._cut(square.product(), QUARTER)
        # Left: Phi_0 to Phi_(Q-1) without the g, then g_0 to g_(Q-2). Right: S/4, then w_i S/4.
        pair = products.pair(Shape(2 * steps - 1, 1, steps), c)
        phis = np.concatenate([phi, later[:, :-1]], axis=1)
        requests: list[Request] = [pair.open([(0, _by_output(phis))], [(0, s)])]
        if steps > 1:
            requests.append(products.times(("weights",), s.reshape(LIMBS, c, 1)))
        _, *weighted = yield requests
        pulled = shares.subtract(
            pair.product(slice(0, steps), slice(0, 1)), shares.shift_left(labels, MATRIX_BITS - 1)
        )
        gs = [self._cut(pulled[:, :, :1])]
        for step in range(1, steps):
            right: list[tuple[int, Share]] = []
            if step == 1:
                squares = self._cut(weighted[0]).reshape(LIMBS, steps - 1, c, 1)
                right = [(1, squares.transpose(0, 2, 3, 1))]
            yield [pair.open([(steps + step - 1, gs[-1])], right)]
            pushed = [
                pair.product(slice(steps + i, steps + i + 1), slice(step - i, step - i + 1))
                for i in range(step)
            ]
            gs.append(self._cut(shares.subtract(pulled[:, :, step : step + 1], shares.add(*pushed))))
        # Each output's g stand in its own rows, with 0 in those of the others.
        blocked = shares.zeros(steps, c, c)
        for place in range(c):
            blocked[:, :, place, place] = np.concatenate(gs, axis=2)[:, place, :, 0]
        product = yield from self._times(("pushes",), blocked.reshape(LIMBS, steps * c, c))
        phi = shares.subtract(later[:, -1:], _own_rows(product[:, size:]))
        return shares.subtract(base, product[:, :size]), phi


def _by_output(columns: Share) -> Share:
    """(5, rows, outputs) -> (5, outputs, rows, 1)."""
    return np.ascontiguousarray(columns.transpose(0, 2, 1))[..., None]


def _together(values: Share) -> Share:
    """(5, outputs, rows, 1) -> (5, rows, outputs)."""
    return np.ascontiguousarray(values[..., 0].transpose(0, 2, 1))


def _own_rows(values: Share) -> Share:
    """(5, count outputs, outputs), a row for each output -> (5, count, outputs): each output's own rows."""
    outputs = values.shape[2]
    return np.diagonal(values.reshape(LIMBS, -1, outputs, outputs), axis1=2, axis2=3).copy()


def _transposed(blocks: Share) -> Share:
    return np.ascontiguousarray(blocks.transpose(0, 1, 3, 2))
