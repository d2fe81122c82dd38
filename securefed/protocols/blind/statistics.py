"""Shares of the statistics that a linear model needs, at the two holders: one encrypted pass over the rows.

With the Taylor loss a round of FedBCD reads the rows only through

    M = (b/n) Z'Z + l2 (n_s/n) blockdiag(P_k)        c = -(a/n) Z'y,        Z_k = X_k P_k^(1/2),

with P_k party k's own matrix of Q local steps (securefed.protocols.steps), made from its own columns before
the pass, and n all rows in common. Z'Z and Z'y are summed over the n_s rows of a *system*: the training rows,
or all of them. The pass is made for each fold of rows; a system is a sum of folds.

The first holder is the label party L. The second one is the other party of two, or a helper S without data.
docs/protocols.md has a table of the blocks of M. Each share is uniform by itself. Holders add folds first and
truncate afterwards.

A number x with F fraction bits is round(x 2**F) modulo 2**105, as two shares. Truncating shares locally is
wrong with probability |x| 2**F / 2**105 a number. `wrap_bound` adds that up over a run, from public sizes
only: a refusal that depended on data would tell something about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2, sqrt

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import shares
from securefed.crypto.blind.interface import Operand, Product
from securefed.crypto.shares import LIMBS, WIDTH, Share
from securefed.data.storage import BLOCK_ROWS
from securefed.errors import SettingError
from securefed.protocols.blind.cross import At, CrossTools
from securefed.transport import Link

MATRIX_BITS = 35
"""Fraction bits of shared matrices."""
VALUE_BITS = 35
"""Fraction bits of shared vectors: parameters and gradients."""
PRODUCT_BITS = MATRIX_BITS + VALUE_BITS
SCALAR_BITS = 30
"""Fraction bits of public factors."""
ROW_BITS = 60
"""Fraction bits of a row that is scored."""
SCORE_BITS = ROW_BITS + VALUE_BITS
"""Fraction bits of a score before it is opened."""
RANGE_BITS = 6
"""m: a score is opened modulo 2**m, so it has to lie within 2**(m - 1) of 0."""
SHARE_BITS = WIDTH - MATRIX_BITS
"""A truncated share of a matrix is at most 2**SHARE_BITS in magnitude."""
MODEL_BITS = 72
"""Shares of a finished model are cut to so many bits, which keeps the noise of scores small."""
MOST_WRAPS = 2.0**-19
GRADIENT_BOUND = 2.0
"""On |M v - c| in every round, for labels of root mean square 2: |c| is at most |a| / sqrt(b) times theirs,
and accelerated rounds multiply it by a polynomial of M that is at most 1 on its spectrum."""


def feature_bits(rows: int) -> int:
    """Fraction bits of a multiplier's features in the pass: rounding and noise count alike."""
    return round((64.0 - log2(max(rows, 1))) / 2.0)


def wrap_bound(
    sizes: Sequence[int], rounds: int, outputs: int, turns: int = 1, systems: int = 1, models: int = 1
) -> float:
    """Bound the probability that any truncation of a run wraps; `sizes`: columns of each party.

    Every system has matrices of its own. `models` are told.
    """
    columns, parties = sum(sizes), len(sizes)
    # Entries of a cross block add up to sqrt(d_i d_j) times its Frobenius norm, at most sqrt(min)/K.
    passed = sum(
        sqrt(a * b * min(a, b)) / parties for i, a in enumerate(sizes) for b in sizes[i + 1 :]
    ) + sqrt(columns)
    moved = rounds * turns * outputs * sqrt(columns) * GRADIENT_BOUND
    moved += moved * 4.0 * 2.0 ** (SCALAR_BITS + VALUE_BITS - PRODUCT_BITS)
    told = outputs * columns * 2.0 ** (VALUE_BITS - MODEL_BITS + WIDTH - PRODUCT_BITS)
    return (systems * passed + moved + models * told) * 2.0 ** (PRODUCT_BITS - WIDTH)


def check_wraps(bound: float, rounds: int, columns: int, outputs: int) -> None:
    """Refuse a run whose shares wrap with a probability of up to `bound`, if that is too much."""
    if bound > MOST_WRAPS:
        raise SettingError(
            f"rounds: {rounds} rounds with {columns} columns and {outputs} outputs go wrong with a"
            f" probability of up to 2**{ceil(log2(bound))}, at most 2**{ceil(log2(MOST_WRAPS))} is allowed;"
            " use fewer rounds, columns or outputs"
        )


Array = NDArray[np.float64]
Rows = NDArray[np.intp]
LEFT_BITS = 51
"""Of what is encrypted: a float64 holds it exactly."""
KEY_STEP, PART_STEP = 0, 1
"""Steps of the messages of the pass: keys, parts of shares; products follow."""


@dataclass(frozen=True)
class Parties:
    """Names and numbers of parameters. The label party and a second holder share all numbers."""

    names: tuple[str, ...]
    """The parties with data, the label party last."""
    sizes: tuple[int, ...]
    helper: str | None
    """The second holder of more than two parties; it has no data."""
    outputs: int

    @property
    def label_party(self) -> str:
        return self.names[-1]

    @property
    def second(self) -> str:
        """The second holder: the other party of two, or the helper."""
        return self.names[0] if self.helper is None else self.helper

    @property
    def holders(self) -> tuple[str, str]:
        return self.label_party, self.second

    @property
    def columns(self) -> int:
        return sum(self.sizes)

    def peer(self, name: str) -> str:
        """Return the other holder."""
        return self.holders[name == self.label_party]

    def size(self, name: str) -> int:
        return self.sizes[self.names.index(name)]

    def block(self, name: str) -> slice:
        """Return the places of a party's parameters among all."""
        place = self.names.index(name)
        start = sum(self.sizes[:place])
        return slice(start, start + self.sizes[place])


@dataclass(frozen=True)
class PassPlan(Parties):
    """What is public about a pass."""

    rows: int
    """n: all rows in common that are learnt from."""
    folds: tuple[int, ...]
    """Rows of each fold."""
    systems: tuple[tuple[int, ...], ...]
    """The folds of each system."""
    label_weight: float
    margin_weight: float
    l2: float
    only_targets: bool = False
    """The pass is for c alone, with other targets. M stays."""

    def pairs(self) -> list[tuple[str, str]]:
        """(encryptor, multiplier) of every cross block: the label party first, then in order."""
        others = self.names[:-1]
        inner = [(first, second) for i, first in enumerate(others) for second in others[i + 1 :]]
        inner = [] if self.only_targets else inner
        return [(self.label_party, name) for name in others] + inner

    def product(self, encryptor: str, multiplier: str, fold: int) -> Product:
        """The label party's targets go with its columns."""
        left = 0 if self.only_targets else self.size(encryptor)
        left += self.outputs if encryptor == self.label_party else 0
        bits = min(LEFT_BITS, feature_bits(self.rows) + 16)
        return Product(self.folds[fold], left, self.size(multiplier), LEFT_BITS, bits, digit_bits=bits + 1)

    def learnt(self, system: int) -> int:
        """Rows of a system."""
        return sum(self.folds[fold] for fold in self.systems[system])


class PassColumns:
    """A party's own columns, their step matrix, and its targets if it has the labels."""

    def __init__(
        self, plan: PassPlan, features: Array, root: Array, folds: Sequence[Rows], targets: Array | None
    ) -> None:
        self._plan, self._features, self.root, self._folds = plan, features, root, folds
        self._targets: Array | None = None
        if targets is not None:
            self.aim(targets)
        self._grams: dict[int, Array] = {}

    def aim(self, targets: Array) -> None:
        """Take other targets, for all rows."""
        self._targets = targets.reshape(len(targets), -1)

    def left(self, fold: int, *, only_targets: bool = False) -> Operand:
        """Return what is encrypted: (b/n) Z and, at the label party, -(a/n) y, at the scale of products."""
        plan, size = self._plan, 0 if only_targets else len(self.root)
        scale = 2.0 ** (PRODUCT_BITS - feature_bits(plan.rows)) / plan.rows
        root = self.root[:, :size] * (plan.margin_weight * scale)
        outputs = 0 if self._targets is None else self._targets.shape[1]

        def operand(first: int, last: int) -> Array:
            rows = self._folds[fold][first:last]
            whole = np.empty((len(rows), size + outputs))
            np.matmul(self._features[rows], root, out=whole[:, :size])
            if self._targets is not None:
                whole[:, size:] = self._targets[rows] * (-plan.label_weight * scale)
            return whole

        return operand

    def right(self, fold: int) -> Operand:
        """Return what encrypted rows are multiplied by: Z."""
        root = self.root * 2.0 ** feature_bits(self._plan.rows)

        def operand(first: int, last: int) -> Array:
            whole: Array = self._features[self._folds[fold][first:last]] @ root
            return np.rint(whole, out=whole)

        return operand

    def own_block(self, system: int) -> Array:
        """(b/n) Z'Z + l2 (n_s/n) P of a system."""
        plan = self._plan
        gram = sum(self._gram(fold) for fold in plan.systems[system])
        penalty = plan.l2 * plan.learnt(system) / plan.rows
        block: Array = self.root.T @ (plan.margin_weight / plan.rows * gram) @ self.root
        block = block + penalty * (self.root.T @ self.root)
        return (block + block.T) / 2.0

    def own_target(self, fold: int) -> Array:
        """-(a/n) Z'y of a fold, at the label party."""
        if self._targets is None:
            raise SettingError("statistics: this party has no labels")
        total = np.zeros((len(self.root), self._targets.shape[1]))
        for rows in _blocks(self._folds[fold]):
            total += self._features[rows].T @ self._targets[rows]
        target: Array = (-self._plan.label_weight / self._plan.rows) * (self.root.T @ total)
        return target

    def _gram(self, fold: int) -> Array:
        if fold not in self._grams:
            size = len(self.root)
            total = np.zeros((size, size))
            for rows in _blocks(self._folds[fold]):
                block = self._features[rows]
                total += block.T @ block
            self._grams[fold] = total
        return self._grams[fold]


def _blocks(rows: Rows) -> list[Rows]:
    return [rows[start : start + BLOCK_ROWS] for start in range(0, len(rows), BLOCK_ROWS)]


class Statistics:
    """A holder's shares of M and c, by system."""

    def __init__(self, plan: PassPlan, *, first: bool) -> None:
        self._plan, self._first = plan, first
        self._own: list[tuple[slice, list[Share]]] = []
        """The holder's own diagonal block, in the clear, with the fraction bits of matrices."""
        self._blocks: dict[tuple[str, str], list[Share]] = {}
        """Shares of other blocks by pair, with the fraction bits of products."""
        self._targets: dict[str, list[Share]] = {}
        """c_k by party, likewise."""

    def keep_own(self, name: str, columns: PassColumns) -> None:
        """Take the holder's own blocks."""
        plan = self._plan
        if not plan.only_targets:
            blocks = [columns.own_block(system) for system in range(len(plan.systems))]
            self._own.append((plan.block(name), [shares.from_floats(block, MATRIX_BITS) for block in blocks]))
        if name == plan.label_party:
            targets = [columns.own_target(fold) for fold in range(len(plan.folds))]
            self._targets[name] = self._summed([shares.from_floats(each, PRODUCT_BITS) for each in targets])

    def _summed(self, folds: list[Share]) -> list[Share]:
        return [shares.add(*(folds[fold] for fold in system)) for system in self._plan.systems]

    def add_product(self, pair: tuple[str, str], folds: list[Share]) -> None:
        """Add a share of a cross block. A product with the label party has the targets in its last rows."""
        size, totals = 0 if self._plan.only_targets else self._plan.size(pair[0]), self._summed(folds)
        self.add_block(pair, [total[:, :size] for total in totals])
        if pair[0] == self._plan.label_party:
            self._targets[pair[1]] = [total[:, size:].transpose(0, 2, 1) for total in totals]

    def add_block(self, pair: tuple[str, str], systems: list[Share]) -> None:
        if pair in self._blocks:
            systems = [shares.add(*both) for both in zip(self._blocks[pair], systems, strict=True)]
        self._blocks[pair] = systems

    def matrix(self, system: int) -> Share:
        """Return this holder's share of M: (5, d, d)."""
        plan = self._plan
        matrix = shares.zeros(plan.columns, plan.columns)
        for at, blocks in self._own:
            matrix[:, at, at] = blocks[system]
        for (left, right), blocks in self._blocks.items():
            block = shares.truncate(blocks[system], PRODUCT_BITS - MATRIX_BITS, first=self._first)
            rows, columns = plan.block(left), plan.block(right)
            matrix[:, columns, rows] = block.transpose(0, 2, 1)
            matrix[:, rows, columns] = block
        return matrix

    def vector(self, system: int) -> Share:
        """Return this holder's share of c, with the fraction bits of products: (5, d, outputs)."""
        plan = self._plan
        vector = shares.zeros(plan.columns, plan.outputs)
        for name, systems in self._targets.items():
            vector[:, plan.block(name)] = systems[system]
        return vector


async def run_pass(
    tools: CrossTools, plan: PassPlan, columns: PassColumns | None, t: int = 0
) -> Statistics | None:
    """Take one party's part of a pass before round t. Holders get their statistics, other parties None. A
    helper has no columns.
    """
    link, label_party = tools.link, plan.label_party
    holds = link.name in plan.holders
    statistics = Statistics(plan, first=link.name == label_party)
    if columns is not None:
        products = await pass_products(tools, plan, columns, t)
        if holds:
            statistics.keep_own(link.name, columns)
        elif not plan.only_targets:
            blocks = [columns.own_block(system) for system in range(len(plan.systems))]
            split_parts(link, plan, [shares.from_floats(block, PRODUCT_BITS) for block in blocks])
        for pair, folds in products.items():
            if holds:
                statistics.add_product(pair, folds)
            elif pair[0] == label_party:
                send_parts(link, plan.second, folds, t)
            else:
                split_parts(link, plan, folds)
    if not holds:
        return None
    for name in plan.names[:-1] if plan.helper is not None else ():
        if not plan.only_targets:
            square = (plan.size(name), plan.size(name))
            statistics.add_block((name, name), await take_parts(link, name, [square] * len(plan.systems)))
        for pair in plan.pairs():
            if name in pair and not (link.name == pair[0] == label_party):
                due = [plan.product(*pair, fold) for fold in range(len(plan.folds))]
                parts = await take_parts(link, name, [(each.left, each.right) for each in due], t)
                statistics.add_product(pair, parts)
    return statistics


async def pass_products(
    tools: CrossTools, plan: PassPlan, columns: PassColumns, t: int = 0
) -> dict[tuple[str, str], list[Share]]:
    """Return this party's shares of every product that it takes part in, by fold. Keys end here."""
    products: dict[tuple[str, str], list[Share]] = {}
    me, steps = tools.link.name, [At(PART_STEP + 1 + fold, t) for fold in range(len(plan.folds))]
    for encryptor in dict.fromkeys(left for left, _ in plan.pairs()):
        multipliers = [right for left, right in plan.pairs() if left == encryptor]
        if me == encryptor:
            own = await tools.encryptor(multipliers, at=At(KEY_STEP, t))
            for fold, at in enumerate(steps):
                for name in multipliers:
                    product = plan.product(encryptor, name, fold)
                    operand = columns.left(fold, only_targets=plan.only_targets)
                    await own.send(name, product, operand, at=at)
                for name in multipliers:
                    share = await own.read(name, plan.product(encryptor, name, fold), at=at)
                    products.setdefault((encryptor, name), []).append(share)
            own.key.erase()
        elif me in multipliers:
            theirs = await tools.multiplier(encryptor, at=At(KEY_STEP, t))
            products[encryptor, me] = [
                await theirs.multiply(plan.product(encryptor, me, fold), columns.right(fold), at=at)
                for fold, at in enumerate(steps)
            ]
    return products


# With a helper: parts of shares for the two holders


def split_parts(link: Link, plan: PassPlan, whole: list[Share]) -> None:
    """Send a uniform part to the label party, and the rest to the helper."""
    parts = [shares.uniform(*share.shape[1:]) for share in whole]
    send_parts(link, plan.label_party, parts)
    send_parts(link, plan.second, [shares.subtract(*both) for both in zip(whole, parts, strict=True)])


def send_parts(link: Link, peer: str, parts: list[Share], t: int = 0) -> None:
    for part in parts:
        link.send(peer, "part", shares.to_bytes(part), round=t, step=PART_STEP)


async def take_parts(link: Link, peer: str, shapes: Sequence[tuple[int, ...]], t: int = 0) -> list[Share]:
    return [
        shares.from_bytes(await link.receive("part", peer, round=t, step=PART_STEP), (LIMBS, *shape))
        for shape in shapes
    ]
