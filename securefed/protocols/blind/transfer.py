"""Blind transfer learning, two parties: nobody sees a gradient, a representation or even its own map.

    setup       the pass: shares of K = F_A'F_B/n and c = F_B'(w y)/n, the only numbers that take both
                parties' rows. Then all products of all rounds are prepared (correlations)
    round t     trips of differences (transfer_round): new shares of W_A, W_B and Phi
    scores      v = W_B Phi is shared; rows of B's are scored as those of a linear model (scoring). The label
                party has no columns in a score: it brings one column that is 0

The holders of shares are A, which has the labels, and B.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import shares
from securefed.crypto.blind.interface import CrossScheme
from securefed.crypto.shares import WIDTH, Share
from securefed.errors import DataError
from securefed.protocols.agreement import Agreement
from securefed.protocols.blind.correlations import Move, Name, run_moves
from securefed.protocols.blind.cross import At
from securefed.protocols.blind.loop import BlindLoop
from securefed.protocols.blind.scoring import cut
from securefed.protocols.blind.statistics import (
    MATRIX_BITS,
    MODEL_BITS,
    PRODUCT_BITS,
    VALUE_BITS,
    PassColumns,
    PassPlan,
    check_wraps,
    pass_products,
)
from securefed.protocols.blind.transfer_algebra import OwnMaps, TransferPlan, TransferRows
from securefed.protocols.blind.transfer_round import (
    LARGEST,
    OWN_FRACTION,
    Maps,
    TransferRound,
    count_products,
    fixed_matrices,
)
from securefed.protocols.loop import PartyContext
from securefed.transport import Link

Array = NDArray[np.float64]
SCORE_TRIP = 1 << 16
"""Step of the differences for scores: beyond those of a round."""
MAP_NORM = 2.0
"""On the norm of a column of a product in a round. All truncated numbers of a run together stay below a
quarter of the bound that this makes (tests/protocols/test_transfer_blind.py)."""
MEAN_CORRELATION = 0.25
"""On the mean entry of K: columns have a mean square of about 1."""


def transfer_plan(agreement: Agreement) -> TransferPlan:
    """Return the public sizes and weights of a run."""
    (b, a), algorithm, details = agreement.members, agreement.algorithm, dict(agreement.details)
    return TransferPlan(
        a.parameters,
        b.parameters,
        agreement.batches.rows,
        details["gamma"],
        agreement.l2,
        algorithm.proximal,
        algorithm.local_steps,
        algorithm.order != "parallel",
        agreement.outputs,
    )


def transfer_pass(agreement: Agreement) -> PassPlan:
    """What is public about the pass: F_A'F_B/n with the targets beside F_A."""
    (b, a), n, outputs = agreement.members, agreement.batches.rows, agreement.outputs
    sizes = b.parameters, a.parameters
    return PassPlan(agreement.names, sizes, None, outputs, n, (n,), ((0,),), -1.0, 1.0, 0.0)


def transfer_wrap_bound(plan: TransferPlan, rounds: int) -> float:
    """Bound the probability that any truncation of a run wraps (securefed.protocols.blind.statistics)."""
    a, b = sqrt(plan.size_a), sqrt(plan.size_b)
    passed = MEAN_CORRELATION * plan.size_a * plan.size_b
    # The coefficients of a chunk: binomials in the worst direction, which a column has a small part in.
    grown = sum(sqrt(2.0) ** steps for steps in plan.chunks)
    small = 5.0 * plan.local_steps
    by_b = 2.0 ** (OWN_FRACTION - MATRIX_BITS) * (2.0 + grown) * b
    moved = rounds * plan.outputs * MAP_NORM * (3.0 * a + 4.0 * b + by_b + small)
    told = plan.outputs * plan.size_b * 2.0 ** (VALUE_BITS - MODEL_BITS + WIDTH - PRODUCT_BITS)
    return (passed + moved + told) * 2.0 ** (PRODUCT_BITS - WIDTH)


class BlindTransferParty(BlindLoop):
    """A, which has the labels, or B."""

    def __init__(
        self, agreement: Agreement, rows: TransferRows, context: PartyContext, scheme: CrossScheme
    ) -> None:
        # B's columns with the ones, and one column of the label party that is 0
        first = rows.labels is not None
        super().__init__(agreement, (agreement.members[0].parameters, 1), context, scheme, first=first)
        plan, rounds = transfer_plan(agreement), agreement.stopping.rounds
        self._plan, self._rows = plan, rows
        check_wraps(transfer_wrap_bound(plan, rounds), rounds, plan.size_a + plan.size_b, plan.outputs)
        self._pass = transfer_pass(agreement)
        self._fixed = fixed_matrices(plan)
        self._labels: Share
        """This party's share of c."""
        self.maps = Maps.zeros(plan)
        """This party's shares of the model. At the start W_A and Phi are A's own, and W_B is 0."""
        if self._first:
            start = rows.start()
            phi = np.einsum("dk,dk->k", rows.pull, start)[None]
            own, phi = (shares.from_floats(each, VALUE_BITS) for each in (start, phi))
            self.maps = replace(self.maps, a=own, phi=phi)

    # Setup

    async def _begin(self, link: Link) -> None:
        own, size = self._own_matrices(), self._plan.size_a
        plan, targets = self._pass, self._rows.targets() if self._first else None
        root, folds = np.eye(plan.size(link.name)), [np.arange(plan.rows)]
        columns = PassColumns(plan, self._rows.shared, root, folds, targets)
        # K with c' below it
        ((joint,),) = (await pass_products(self._tools(link), plan, columns)).values()
        with link.activity("rounds"):
            joint = shares.truncate(joint, PRODUCT_BITS - MATRIX_BITS, first=self._first)
            own["K",], own["K'",] = joint, _transposed(joint[:, :size])
            self._labels = _transposed(joint[:, size:])
        scorings = self._agreement.evaluations_from(self.first_round) + 1
        rounds = self.last_round - self.first_round
        count = count_products(self._plan, self._fixed, rounds, scorings)
        await self._prepare(link, self._fixed, own, count)

    def _own_matrices(self) -> dict[Name, Share]:
        """Return the matrices that this party knows."""
        known_to, fraction = ("first", MATRIX_BITS) if self._first else ("second", OWN_FRACTION)
        maps, matrices = OwnMaps(self._rows, self._plan), dict[Name, Share]()
        for name, matrix in self._fixed.items():
            if matrix.known_to == known_to:
                values = maps.matrix(*name)
                largest = float(np.abs(values).max())
                if not largest < LARGEST:
                    raise DataError(
                        f"columns: steps with them have a factor of {largest:.3g}, less than {LARGEST:g} is"
                        " allowed; standardise the columns"
                    )
                matrices[name] = shares.from_floats(values, fraction)
        return matrices

    # A round

    def _moves(self, t: int) -> Move:
        self.maps = yield from self._steps().moves(self.maps)

    def _steps(self) -> TransferRound:
        return TransferRound(self._plan, self._products, self._labels, first=self._first)

    # Scores, and the end of the run

    async def _blocks(self, link: Link, t: int, fold: int) -> dict[str, Share]:
        """Return a holder's shares of v, and of the label party's column, which is 0."""
        b, a = self._agreement.names
        moves = self._steps().score_map(self.maps)
        v = await run_moves(link, self._pass.peer(link.name), moves, At(SCORE_TRIP, t))
        return {b: cut(v, first=self._first), a: shares.zeros(1, self._plan.outputs)}

    def _root(self) -> Array:
        return np.eye(self._score_plan.size(self._pass.names[self._first]))

    # Checkpoints

    def _shares(self) -> dict[str, Share]:
        return {"share_a": self.maps.a, "share_b": self.maps.b, "share_phi": self.maps.phi}

    def _take_shares(self, restored: Mapping[str, Share]) -> None:
        self.maps = Maps(restored["share_a"], restored["share_b"], restored["share_phi"])


def _transposed(share: Share) -> Share:
    return np.ascontiguousarray(share.transpose(0, 2, 1))
