"""Blind transfer learning, two parties: nobody sees a gradient, a representation or even its own map.

    setup       the pass: shares of K = F_A'F_B/n and c = F_B'(w y)/n, the only numbers that take both
                parties' rows. Then all products of all rounds are prepared (correlations)
    round t     trips of differences (transfer_round): new shares of W_A, W_B and Phi
    progress    label party -> B, where a helper holds the second shares: a round is over
    scores      v = W_B Phi is shared; rows of B's are scored as those of a linear model (scoring). The label
                party has no columns in a score: it brings one column that is 0

The holders of shares are A, which has the labels, and B; or A and a helper S without data. With a helper B
sends its share of the pass to S, and splits its own matrices, and its map at the start, between A and S.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import shares
from securefed.crypto.blind.interface import CrossScheme
from securefed.crypto.shares import WIDTH, Share
from securefed.errors import DataError, FormatError, SettingError
from securefed.protocols.agreement import Agreement
from securefed.protocols.blind.correlations import Name, run_moves
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
    send_parts,
    split_parts,
    take_parts,
)
from securefed.protocols.blind.transfer_algebra import OwnMaps, TransferPlan, TransferRows
from securefed.protocols.blind.transfer_round import (
    LARGEST,
    OWN_OF_A,
    OWN_OF_B,
    Maps,
    TransferRound,
    b_fraction,
    count_products,
    fixed_matrices,
)
from securefed.protocols.loop import PartyContext
from securefed.transport import Link

Array = NDArray[np.float64]
SCORE_TRIP = 1 << 16
"""Step of the differences for scores: beyond those of a round."""
COUNT_BYTES = 4
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
        int(details["hidden"]),
        agreement.batches.rows,
        details["gamma"],
        agreement.l2,
        algorithm.proximal,
        algorithm.local_steps,
        algorithm.order != "parallel",
        details["steps"] == "own",
        agreement.outputs,
    )


def transfer_pass(agreement: Agreement) -> PassPlan:
    """What is public about the pass: F_A'F_B/n with the targets beside F_A."""
    (b, a), n, outputs = agreement.members, agreement.batches.rows, agreement.outputs
    sizes, helper = (b.parameters, a.parameters), agreement.key_holder
    return PassPlan(agreement.names, sizes, helper, outputs, n, (n,), ((0,),), -1.0, 1.0, 0.0)


def transfer_wrap_bound(plan: TransferPlan, rounds: int, *, helper: bool = False) -> float:
    """Bound the probability that any truncation of a run wraps (securefed.protocols.blind.statistics)."""
    a, b = sqrt(plan.size_a), sqrt(plan.size_b)
    passed = MEAN_CORRELATION * plan.size_a * plan.size_b
    # The coefficients of a chunk: binomials in the worst direction, which a column has a small part in.
    grown = sum(sqrt(2.0) ** steps for steps in plan.chunks)
    small = 5.0 * plan.local_steps
    by_b = 2.0 ** (b_fraction(helper=helper) - MATRIX_BITS) * (2.0 + grown) * b
    moved = rounds * plan.width * MAP_NORM * (3.0 * a + 4.0 * b + by_b + small)
    told = plan.outputs * plan.size_b * 2.0 ** (VALUE_BITS - MODEL_BITS + WIDTH - PRODUCT_BITS)
    return (passed + moved + told) * 2.0 ** (PRODUCT_BITS - WIDTH)


class BlindTransferParty(BlindLoop):
    """A, which has the labels, or B. Without `rows` it is a helper: it has shares, and no columns, no key and
    no output.
    """

    def __init__(
        self,
        agreement: Agreement,
        rows: TransferRows | None,
        context: PartyContext,
        scheme: CrossScheme,
        *,
        seed: int = 0,
    ) -> None:
        # B's columns with the ones, and one column of the label party that is 0
        super().__init__(agreement, (agreement.members[0].parameters, 1), context, scheme)
        plan, rounds = transfer_plan(agreement), agreement.stopping.rounds
        self._plan, self._rows, self._helped = plan, rows, agreement.key_holder is not None
        self._is_a = rows is not None and rows.labels is not None
        bound = transfer_wrap_bound(plan, rounds, helper=self._helped)
        check_wraps(bound, rounds, plan.size_a + plan.size_b, plan.outputs)
        self._pass = transfer_pass(agreement)
        self._rates = [agreement.learning_rate(t) for t in range(rounds)]
        self._fixed = fixed_matrices(plan, self._rates, helper=self._helped)
        self.maps = Maps.zeros(plan)
        """This party's shares of the model; zeros at a party that holds none."""
        self._labels: Share
        """This holder's share of c."""
        self._start: Share
        """This party's own map at the start. The other holder's share of it is 0."""
        if rows is None:
            return
        start = rows.start(plan, seed)
        self._start = shares.from_floats(start, VALUE_BITS)
        if self._is_a:
            phi = np.einsum("dk,dkh->kh", rows.pull, start.reshape(-1, plan.outputs, plan.hidden))
            self.maps = Maps(self._start, self.maps.b, shares.from_floats(phi[:, None], VALUE_BITS))
        elif not self._helped:
            self.maps = Maps(self.maps.a, self._start, self.maps.phi)

    # Setup

    async def _begin(self, link: Link) -> None:
        own = {} if self._rows is None else self._own_matrices(self._rows)
        joint = await self._cross(link)
        if not self._is_holder(link.name):
            more = [] if self.first_round else [self._start]
            return split_parts(link, self._pass, [*own.values(), *more])
        if self._helped:
            await self._take_matrices(link, own)
        first, size = self._is_first(link.name), self._plan.size_a
        with link.activity("rounds"):
            joint = shares.truncate(joint, PRODUCT_BITS - MATRIX_BITS, first=first)
            own["K",], own["K'",] = joint, _transposed(joint[:, :size])
            self._labels = _transposed(joint[:, size:])
        scorings = self._agreement.evaluations_from(self.first_round) + 1
        rates = self._rates[self.first_round : self.last_round]
        count = count_products(self._plan, self._fixed, rates, scorings)
        await self._prepare(link, self._fixed, own, count)

    def _own_matrices(self, rows: TransferRows) -> dict[Name, Share]:
        """Return the matrices that this party knows."""
        kinds = OWN_OF_A if self._is_a else OWN_OF_B
        fraction = MATRIX_BITS if self._is_a else b_fraction(helper=self._helped)
        maps = {rate: OwnMaps(rows, self._plan, rate) for rate in dict.fromkeys(self._rates)}
        matrices: dict[Name, Share] = {}
        for name in self._fixed:
            if name[0] not in kinds:
                continue
            values = rows.labelled_gram if name[0] == "G" else maps[name[1]].matrix(name[0], *name[2:])
            largest = float(np.abs(values).max())
            if not largest < LARGEST:
                raise DataError(
                    f"learning_rate: steps with these columns have a factor of {largest:.3g}, less than"
                    f" {LARGEST:g} is allowed; standardise the columns or take a smaller learning rate"
                )
            matrices[name] = shares.from_floats(values, fraction)
        return matrices

    async def _cross(self, link: Link) -> Share:
        """Return a share of K with c' below it, with the fraction bits of products."""
        rows, plan = self._rows, self._pass
        if rows is None:
            product = plan.product(*plan.pairs()[0], 0)
            return await self._take_part(link, product.left, product.right)
        targets = rows.targets() if self._is_a else None
        root, folds = np.eye(plan.size(link.name)), [np.arange(plan.rows)]
        columns = PassColumns(plan, rows.shared, root, folds, targets)
        ((share,),) = (await pass_products(self._tools(link), plan, columns)).values()
        if not self._is_holder(link.name):
            send_parts(link, plan.second, [share])
        return share

    async def _take_part(self, link: Link, *shape: int) -> Share:
        (part,) = await take_parts(link, self._pass.names[0], [shape])
        return part

    async def _take_matrices(self, link: Link, own: dict[Name, Share]) -> None:
        """With a helper: take a holder's shares of B's matrices and, in the first round, of its map."""
        for name, matrix in self._fixed.items():
            if name[0] in OWN_OF_B:
                own[name] = await self._take_part(link, matrix.rows, matrix.inner)
        if not self.first_round:
            start = await self._take_part(link, self._plan.size_b, self._plan.width)
            self.maps = Maps(self.maps.a, start, self.maps.phi)

    # A round

    async def _round(self, link: Link, t: int) -> None:
        if self._is_holder(link.name):
            moves = self._steps(link, t).moves(self.maps)
            self.maps = await run_moves(link, self._pass.peer(link.name), moves, At(0, t))
        await self._tell_progress(link, t)

    def _steps(self, link: Link, t: int) -> TransferRound:
        rate, first = self._agreement.learning_rate(t), self._is_first(link.name)
        return TransferRound(self._plan, self._products, self._labels, rate, first=first, helper=self._helped)

    # Scores, and the end of the run

    async def _blocks(self, link: Link, t: int, fold: int) -> dict[str, Share]:
        """Return a holder's shares of v, and of the label party's column, which is 0."""
        b, a = self._agreement.names
        moves = self._steps(link, t).score_map(self.maps)
        v = await run_moves(link, self._pass.peer(link.name), moves, At(SCORE_TRIP, t))
        return {b: cut(v, first=self._is_first(link.name)), a: shares.zeros(1, self._plan.outputs)}

    async def _rows_to_score(self, link: Link, rows: Array | None, t: int, fold: int) -> int:
        """Return how many rows are scored. The label party tells the helper, which knows neither."""
        label_party, helper = self._pass.label_party, self._pass.helper
        if link.name == helper:
            message = await link.receive("row-count", label_party, round=t)
            if len(message) != COUNT_BYTES:
                raise FormatError(f"row-count: {len(message)} bytes given, {COUNT_BYTES} are due")
            return int.from_bytes(message, "little")
        count = 0 if rows is None else len(rows)
        if link.name == label_party and helper is not None:
            link.send(helper, "row-count", count.to_bytes(COUNT_BYTES, "little"), round=t)
        return count

    def _root(self) -> Array | None:
        return None if self._rows is None else np.eye(self._score_plan.size(self._pass.names[self._is_a]))

    # Checkpoints

    def _shares(self) -> dict[str, Share]:
        return {"share_a": self.maps.a, "share_b": self.maps.b, "share_phi": self.maps.phi}

    def _take_shares(self, restored: Mapping[str, Share]) -> None:
        self.maps = Maps(restored["share_a"], restored["share_b"], restored["share_phi"])

    def start_from(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        raise SettingError("warm_start: a blind transfer run does not start from another one's model")


def _transposed(share: Share) -> Share:
    return np.ascontiguousarray(share.transpose(0, 2, 1))
