"""Shares of the statistics that a linear model needs, at the two holders: one encrypted pass over the rows.

With the Taylor loss a round of FedBCD reads the rows only through

    M = (b/n) Z'Z + l2 (n_s/n) blockdiag(P_k)        c = -(a/n) Z'y,        Z_k = X_k P_k^(1/2),

with P_k party k's own matrix of Q local steps (securefed.protocols.steps), made from its own columns before
the pass, and n all rows in common. Z'Z and Z'y are summed over the n_s rows of a *system*: the training rows,
or all of them. The pass is made for each fold of rows; a system is a sum of folds.

docs/protocols.md has a table of the blocks of M, and says how numbers become shares. Holders add folds first
and truncate afterwards. `wrap_bound` bounds how likely a truncation goes wrong, from public sizes only: a
refusal that depended on data would tell something about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from securefed.transport.link import Link

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
"""Bound on |M v - c| in every round, for labels of root mean square 2. |c| is at most |a| / sqrt(b) times
theirs, and accelerated rounds multiply it by a polynomial of M that is at most 1 on its spectrum."""


def feature_bits(rows: int) -> int:
    """Fraction bits of a multiplier's features in the pass: rounding and noise count alike."""
    return round((64.0 - log2(max(rows, 1))) / 2.0)


def wrap_bound(
    sizes: Sequence[int], rounds: int, outputs: int, turns: int = 1, systems: int = 1, models: int = 1
) -> float:
    """Bound the probability that any truncation of a run wraps; `sizes`: columns of each party.

    Every system has matrices of its own. `models`: finished models, whose shares are cut.
    """
    columns, parties = sum(sizes), len(sizes)
    # Entries of a cross block add up to sqrt(d_i d_j) times its Frobenius norm, at most sqrt(min)/K.
    passed = sum(
        sqrt(a * b * min(a, b)) / parties for i, a in enumerate(sizes) for b in sizes[i + 1 :]
    ) + sqrt(columns)
    moved = rounds * turns * outputs * sqrt(columns) * GRADIENT_BOUND
    moved += moved * 4.0 * 2.0 ** (SCALAR_BITS + VALUE_BITS - PRODUCT_BITS)
    final = outputs * columns * 2.0 ** (VALUE_BITS - MODEL_BITS + WIDTH - PRODUCT_BITS)
    return (systems * passed + moved + models * final) * 2.0 ** (PRODUCT_BITS - WIDTH)


def check_wraps(bound: float, rounds: int, columns: int, outputs: int) -> None:
    """Refuse a run whose shares wrap with a probability of up to `bound`, if that is too much."""
    if bound > MOST_WRAPS:
        raise SettingError(
            f"rounds: {rounds} rounds with {columns} columns and {outputs} outputs go wrong with a"
            f" probability of up to 2**{ceil(log2(bound))}, at most 2**{ceil(log2(MOST_WRAPS))} is allowed;"
            " use fewer rounds, columns or outputs"
        )


Array = NDArray[np.float64]
Places = NDArray[np.intp]
LEFT_BITS = 51
"""Bits of the encrypted factor; float64 holds them exactly."""
Pair = tuple[str, str]
"""Two parties whose columns are multiplied; the first one encrypts."""
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

    def pairs(self) -> list[Pair]:
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

    def parts(self, name: str, holder: str) -> list[Pair]:
        """Return the blocks of which a party without shares sends a part to a holder, in order: its own, and
        those with other parties. The label party has the other share of what it encrypted.
        """
        own = [] if self.only_targets else [(name, name)]
        pairs = [pair for pair in own + self.pairs() if name in pair]
        return [pair for pair in pairs if not pair[0] == holder == self.label_party]


class PassColumns:
    """A party's own columns, their step matrix, and its targets if it has the labels."""

    def __init__(
        self, plan: PassPlan, features: Array, root: Array, folds: Sequence[Places], targets: Array | None
    ) -> None:
        self._plan, self._features, self.root, self._folds = plan, features, root, folds
        self._targets: Array | None = None
        if targets is not None:
            self.aim(targets)

    def aim(self, targets: Array) -> None:
        """Take other targets, for all rows."""
        self._targets = targets.reshape(len(targets), -1)

    def left(self, plan: PassPlan, fold: int) -> Operand:
        """Return what is encrypted: (b/n) Z and, at the label party, -(a/n) y, at the scale of products."""
        size = 0 if plan.only_targets else len(self.root)
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

    def own(self, plan: PassPlan, fold: int, *, shared: bool) -> Share:
        """Return (b/n) Z'Z + l2 (n_f/n) P of a fold, and at the label party -(a/n) y'Z below it.

        `shared`: it will be split between the holders. A holder's own block stays in the clear, and has the
        fraction bits of matrices already.
        """
        root, parts = self.root, list[Share]()
        blocks = [self._folds[fold][at : at + BLOCK_ROWS] for at in range(0, plan.folds[fold], BLOCK_ROWS)]
        if not plan.only_targets:
            gram = sum(self._features[rows].T @ self._features[rows] for rows in blocks)
            penalty = plan.l2 * plan.folds[fold] / plan.rows
            block = root.T @ (plan.margin_weight / plan.rows * gram + penalty * np.eye(len(root))) @ root
            bits = PRODUCT_BITS if shared else MATRIX_BITS
            parts.append(shares.from_floats((block + block.T) / 2.0, bits))
        if self._targets is not None:
            total = sum(self._targets[rows].T @ self._features[rows] for rows in blocks)
            parts.append(shares.from_floats((-plan.label_weight / plan.rows) * (total @ root), PRODUCT_BITS))
        return np.concatenate(parts, axis=1)


@dataclass(frozen=True, eq=False)
class Statistics:
    """A holder's shares of M and c, by system."""

    plan: PassPlan
    blocks: Mapping[Pair, list[Share]]
    """Shares of the products of two parties, by fold. Those with the label party have c' in the last rows."""
    first: bool

    def _summed(self, pair: Pair, system: int) -> Share:
        return shares.add(*(self.blocks[pair][fold] for fold in self.plan.systems[system]))

    def matrix(self, system: int) -> Share:
        """Return this holder's share of M: (5, d, d)."""
        plan = self.plan
        matrix = shares.zeros(plan.columns, plan.columns)
        for left, right in self.blocks:
            block = self._summed((left, right), system)[:, : plan.size(left)]
            if left != right or left not in plan.holders:
                block = shares.truncate(block, PRODUCT_BITS - MATRIX_BITS, first=self.first)
            rows, columns = plan.block(left), plan.block(right)
            matrix[:, columns, rows] = block.transpose(0, 2, 1)
            matrix[:, rows, columns] = block
        return matrix

    def vectors(self) -> list[Share]:
        """Return this holder's shares of c, with the fraction bits of products: (5, d, outputs) each."""
        plan = self.plan
        vectors = [shares.zeros(plan.columns, plan.outputs) for _ in plan.systems]
        for left, right in self.blocks:
            for system, vector in enumerate(vectors if left == plan.label_party else ()):
                targets = self._summed((left, right), system)[:, -plan.outputs :]
                vector[:, plan.block(right)] = targets.transpose(0, 2, 1)
        return vectors


async def run_pass(
    tools: CrossTools, plan: PassPlan, columns: PassColumns | None, t: int = 0
) -> Statistics | None:
    """Take one party's part of a pass before round t. Holders get their statistics, other parties None. A
    helper has no columns.
    """
    link, me, label_party = tools.link, tools.link.name, plan.label_party
    blocks: dict[Pair, list[Share]] = {}
    holds, folds = me in plan.holders, range(len(plan.folds))
    if columns is not None:
        if me == label_party or not plan.only_targets:
            blocks[me, me] = [columns.own(plan, fold, shared=not holds) for fold in folds]
        blocks |= await pass_products(tools, plan, columns, t)
    if not holds:
        for pair, parts in blocks.items():
            if pair[0] == label_party:
                send_parts(link, plan.second, parts, t)
            else:
                split_parts(link, plan, parts, t)
        return None
    for name in plan.names[:-1] if plan.helper is not None else ():
        for pair in plan.parts(name, me):
            due = [plan.product(*pair, fold) for fold in folds]
            parts = await _take_parts(link, name, [(LIMBS, each.left, each.right) for each in due], t)
            before = blocks.get(pair)
            blocks[pair] = parts if before is None else [*map(shares.add, before, parts)]
    return Statistics(plan, blocks, first=me == label_party)


def split_parts(link: Link, plan: PassPlan, whole: list[Share], t: int) -> None:
    """Send a uniform part to the label party, and the rest to the helper."""
    parts = [shares.uniform(*share.shape[1:]) for share in whole]
    send_parts(link, plan.label_party, parts, t)
    send_parts(link, plan.second, [*map(shares.subtract, whole, parts)], t)


def send_parts(link: Link, peer: str, parts: list[Share], t: int) -> None:
    for part in parts:
        link.send(peer, "part", shares.to_bytes(part), round=t, step=PART_STEP)


async def _take_parts(link: Link, peer: str, shapes: Sequence[tuple[int, ...]], t: int) -> list[Share]:
    messages = [await link.receive("part", peer, round=t, step=PART_STEP) for _ in shapes]
    return [*map(shares.from_bytes, messages, shapes)]


async def pass_products(
    tools: CrossTools, plan: PassPlan, columns: PassColumns, t: int = 0
) -> dict[Pair, list[Share]]:
    """Return this party's shares of every product that it takes part in, by fold. Keys end here."""
    products: dict[Pair, list[Share]] = {}
    me, steps = tools.link.name, [At(PART_STEP + 1 + fold, t) for fold in range(len(plan.folds))]
    for encryptor in dict.fromkeys(left for left, _ in plan.pairs()):
        multipliers = [right for left, right in plan.pairs() if left == encryptor]
        if me == encryptor:
            own = await tools.encryptor(multipliers, at=At(KEY_STEP, t))
            for fold, at in enumerate(steps):
                for name in multipliers:
                    product = plan.product(encryptor, name, fold)
                    await own.send(name, product, columns.left(plan, fold), at=at)
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
