"""Attacks on what the two parties of the transfer objective see (securefed.protocols.own_gradient.sides).

In one exchange A's C (n x h) and M = Phi Phi'/4 are fixed, and every opening gives B sums that are linear in
them; the same for A and B's u. Over the rounds C and M change with Phi, but the labels in C do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from research.attacks.linear import solve
from research.attacks.views import OpenedSums
from securefed.models import HiddenLayer

Array = NDArray[np.float64]
CG_STEPS = 80


@dataclass(frozen=True)
class Block:
    """What one exchange's openings say about the peer's n + h rows: an estimate, and whether it is the
    only one.
    """

    rows: Array
    """(n, h): A's C, or B's u."""
    square: Array
    """(h, h): A's M, or B's sum of outer products."""
    determined: bool


def solve_block(openings: Sequence[OpenedSums], prior: float = 0.0) -> Block:
    """Least squares, column by column, over the openings of one exchange (their multipliers differ by
    step). Of all solutions the one nearest to `prior`.
    """
    first = openings[0]
    width, _, unknowns = first.multipliers.shape
    n = unknowns - width
    table = np.zeros((unknowns, width))
    determined = True
    for j in range(width):
        matrix = np.vstack([opening.multipliers[j] for opening in openings])
        guess = np.concatenate([np.full(n, prior), np.full(width, prior**2 * np.sqrt(n))])
        right = np.concatenate([opening.sums[:, j] for opening in openings])
        solved = solve(matrix, right - matrix @ guess)
        table[:, j] = guess + solved.values
        determined = determined and bool(solved.determined.all())
    return Block(table[:n], table[n:], determined)


def similarity(estimate: Array, truth: Array) -> float:
    """The cosine of two matrices, as vectors: 1 where they agree up to a positive factor."""
    size = float(np.linalg.norm(estimate) * np.linalg.norm(truth))
    return float((estimate * truth).sum() / size) if size else 0.0


def curvature_from_steps(hidden: Sequence[Array], gradients: Sequence[Array]) -> Array:
    """M from gradients of single rows at two or more local steps: their differences are M times those of u.

    FATE opens such gradients. From ours no gradient of a row is to be had.
    """
    moved = np.vstack([u - hidden[0] for u in hidden[1:]])
    changed = np.vstack([g - gradients[0] for g in gradients[1:]])
    return np.asarray(np.linalg.lstsq(moved, changed, rcond=1e-9)[0], dtype=np.float64)


@dataclass(frozen=True)
class Layer:
    """One opening as B can write it: sums = inputs' (slope * (C + hidden M))."""

    round: int
    batch: NDArray[np.intp]
    inputs: Array
    slope: Array
    hidden: Array
    sums: Array


def layers(openings: Sequence[OpenedSums], model: HiddenLayer, features: Array) -> list[Layer]:
    """B's openings with B's own layer as it was at each of them. `features`: of the shared rows."""
    replica = HiddenLayer(model.columns, model.width, model.activation, seed=0)
    layers = []
    for opening in openings:
        replica.parameters = opening.parameters
        rows = features[opening.batch]
        slope, hidden = replica.derivative(rows), replica.forward(rows)
        inputs = replica.augmented(rows)
        layers.append(Layer(opening.round, opening.batch, inputs, slope, hidden, opening.sums))
    return layers


@dataclass(frozen=True)
class Labels:
    """Labels as numbers, up to one sign for all of them, and how much of the openings they leave
    unexplained.
    """

    values: Array
    misfit: float


def labels_by_fitting(
    openings: Sequence[Layer], rows: int, *, restarts: int = 2, iterations: int = 60, seed: int = 0
) -> Labels:
    """B's attack on the labels of the shared rows, over all rounds.

    C_i = -y_i Phi / 2 + c, with c nearly the same for all rows (the alignment term), and M = Phi Phi' / 4.
    The labels and every round's Phi and c are fitted to all openings at once. Alternating least squares, in
    the labels and in the rest, does the same and gets stuck sooner. Starts from what the openings would say
    if all rows had equal slopes, then from random labels, and keeps the best fit.
    """
    generator = np.random.default_rng(seed)
    best = _fitted(openings, rows, _first_guess(openings, rows), iterations)
    for _ in range(restarts):
        fit = _fitted(openings, rows, np.sign(generator.normal(size=rows)), iterations)
        if fit.misfit < best.misfit:
            best = fit
    return best


def _first_guess(openings: Sequence[Layer], rows: int) -> Array:
    """As if slopes were the same for all rows: sums are then rank one, X'y times Phi, beside X'1."""
    guess = np.zeros(rows)
    for opening in openings:
        level = opening.inputs.sum(axis=0)
        bare = opening.sums - np.outer(level, level @ opening.sums) / float(level @ level)
        direction = np.linalg.svd(bare)[0][:, 0]
        direction_of_rows = (
            opening.inputs @ np.linalg.lstsq(opening.inputs.T @ opening.inputs, direction, rcond=1e-9)[0]
        )
        sign = np.sign(direction_of_rows @ guess[opening.batch]) or 1.0
        guess[opening.batch] += (
            sign * direction_of_rows / max(float(np.linalg.norm(direction_of_rows)), 1e-300)
        )
    length = float(np.sqrt(rows)) / max(float(np.linalg.norm(guess)), 1e-300)
    return guess * length


class _Fit:
    """Labels, and Phi and c of each round, as one vector of unknowns; residuals of all openings."""

    def __init__(self, openings: Sequence[Layer], rows: int) -> None:
        self._openings, self._rows = openings, rows
        self._width = openings[0].sums.shape[1]
        numbers = sorted({opening.round for opening in openings})
        self._place = {number: rows + 2 * self._width * i for i, number in enumerate(numbers)}
        self.size = rows + 2 * self._width * len(numbers)

    def _round(self, unknowns: Array, number: int) -> tuple[Array, Array]:
        start, width = self._place[number], self._width
        return unknowns[start : start + width], unknowns[start + width : start + 2 * width]

    def start(self, labels: Array) -> Array:
        """Phi and c by least squares for given labels."""
        unknowns = np.concatenate([labels, np.zeros(self.size - self._rows)])
        for number in self._place:
            pieces = [o for o in self._openings if o.round == number]
            along = np.vstack([o.inputs.T @ (o.slope * -0.5 * labels[o.batch, None]) for o in pieces])
            level = np.vstack([o.inputs.T @ o.slope for o in pieces])
            phi, common = self._round(unknowns, number)
            phi[:], common[:] = _two_columns(along, level, np.vstack([o.sums for o in pieces]))
        return unknowns

    def residuals(self, unknowns: Array) -> list[Array]:
        residuals = []
        for o in self._openings:
            phi, common = self._round(unknowns, o.round)
            pull = -0.5 * unknowns[o.batch] + 0.25 * (o.hidden @ phi)
            residuals.append(o.inputs.T @ (o.slope * (np.outer(pull, phi) + common)) - o.sums)
        return residuals

    def forward(self, unknowns: Array, change: Array) -> list[Array]:
        """The derivative of the residuals in a direction."""
        derivatives = []
        for o in self._openings:
            (phi, _), (d_phi, d_common) = self._round(unknowns, o.round), self._round(change, o.round)
            pull = -0.5 * unknowns[o.batch] + 0.25 * (o.hidden @ phi)
            d_pull = -0.5 * change[o.batch] + 0.25 * (o.hidden @ d_phi)
            inner = np.outer(d_pull, phi) + np.outer(pull, d_phi) + d_common
            derivatives.append(o.inputs.T @ (o.slope * inner))
        return derivatives

    def backward(self, unknowns: Array, residuals: Sequence[Array]) -> Array:
        """Its transpose."""
        total = np.zeros(self.size)
        for o, block in zip(self._openings, residuals, strict=True):
            phi, _ = self._round(unknowns, o.round)
            d_phi, d_common = self._round(total, o.round)
            pull = -0.5 * unknowns[o.batch] + 0.25 * (o.hidden @ phi)
            weights = (o.inputs @ block) * o.slope
            along = weights @ phi
            np.add.at(total, o.batch, -0.5 * along)
            d_phi += 0.25 * (o.hidden.T @ along) + weights.T @ pull
            d_common += weights.sum(axis=0)
        return total

    def diagonal(self, unknowns: Array) -> Array:
        """The squared norms of the derivative's columns, up to what Phi adds to its own pull: to scale
        steps.
        """
        total = np.zeros(self.size)
        for o in self._openings:
            phi, _ = self._round(unknowns, o.round)
            d_phi, d_common = self._round(total, o.round)
            pull = -0.5 * unknowns[o.batch] + 0.25 * (o.hidden @ phi)
            each = (o.inputs**2).sum(axis=1) * ((o.slope * phi) ** 2).sum(axis=1)
            np.add.at(total, o.batch, 0.25 * each)
            d_phi += ((o.inputs.T @ (o.slope * pull[:, None])) ** 2).sum(axis=0)
            d_common += ((o.inputs.T @ o.slope) ** 2).sum(axis=0)
        return total


def _fitted(openings: Sequence[Layer], rows: int, labels: Array, iterations: int) -> Labels:
    """Levenberg and Marquardt's method, each step by conjugate gradients."""
    fit = _Fit(openings, rows)
    unknowns, damping = fit.start(labels), 1e-2
    residuals = fit.residuals(unknowns)
    total = np.sqrt(sum(float((o.sums**2).sum()) for o in openings))
    misfit = _norm(residuals)
    for _ in range(iterations):
        step = _damped_step(fit, unknowns, residuals, damping)
        moved = fit.residuals(unknowns + step)
        after = _norm(moved)
        if after >= misfit:
            damping *= 8.0
            if damping > 1e9:
                break
            continue
        stalled = misfit - after < 1e-6 * misfit
        unknowns, residuals, misfit, damping = unknowns + step, moved, after, damping / 4.0
        if stalled:
            break
    return Labels(unknowns[:rows], misfit / max(float(total), 1e-300))


def _norm(blocks: Sequence[Array]) -> float:
    return float(np.sqrt(sum(float((block**2).sum()) for block in blocks)))


def _damped_step(fit: _Fit, unknowns: Array, residuals: Sequence[Array], damping: float) -> Array:
    """(J'J + damping D) step = -J'r with D the diagonal of J'J, by conjugate gradients scaled by D."""
    weights = fit.diagonal(unknowns)
    weights = np.maximum(weights, 1e-12 * float(weights.max()))
    left = -fit.backward(unknowns, residuals)
    scaled = left / weights
    step, direction, size = np.zeros(fit.size), scaled, float(left @ scaled)
    enough = 1e-6 * size
    for _ in range(CG_STEPS):
        if size <= enough or size == 0.0:
            break
        image = fit.backward(unknowns, fit.forward(unknowns, direction)) + damping * weights * direction
        length = size / max(float(direction @ image), 1e-300)
        step = step + length * direction
        left = left - length * image
        scaled = left / weights
        size, before = float(left @ scaled), size
        direction = scaled + size / before * direction
    return step


def _two_columns(along: Array, level: Array, sums: Array) -> tuple[Array, Array]:
    """a, b with sums ~ along * a + level * b, for each column."""
    aa, ab, bb = (along**2).sum(axis=0), (along * level).sum(axis=0), (level**2).sum(axis=0)
    sa, sb = (along * sums).sum(axis=0), (level * sums).sum(axis=0)
    size = aa * bb - ab**2
    size = np.where(size > 1e-12 * aa * bb, size, np.inf)
    return (sa * bb - ab * sb) / size, (aa * sb - ab * sa) / size
