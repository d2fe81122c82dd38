"""Blind transfer learning, two parties: nobody sees a gradient, a representation or even its own map.

    setup       the pass: shares of K = F_A'F_B/n and c = F_B'(w y)/n, the only numbers that take both
                parties' rows. Then all products of all rounds are prepared (correlations)
    round t     trips of differences (transfer_round): new shares of W_A, W_B and Phi
    progress    label party -> B, where a helper holds the second shares: a round is over
    scores      v = W_B Phi is shared; rows of B's are scored as those of a linear model (scoring). The label
                party has no columns in a score: it brings one column that is 0

The holders of shares are A, which has the labels, and B; or A and a helper S without data. With a helper B
draws g uniformly for each of its own matrices and for its map at the start: A gets g, S gets the rest.

    B -> S      part: B's share of the pass
    B -> A, S   part: the two shares of B's matrices and map

The model and its checkpoints are shares that are uniform by themselves. At the start of a run W_A and Phi are
A's own, and so is W_B B's. Each attempt at a run makes a pass and correlations of its own, under new keys;
only the maps go on from a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import shares
from securefed.crypto.blind.interface import CrossScheme
from securefed.crypto.errors import FormatError
from securefed.crypto.shares import WIDTH, Share
from securefed.errors import DataError, SettingError
from securefed.protocols.agreement import Agreement
from securefed.protocols.blind.correlations import Move, Name, trip
from securefed.protocols.blind.loop import BlindLoop
from securefed.protocols.blind.precision import (
    MATRIX_BITS,
    MODEL_BITS,
    PRODUCT_BITS,
    VALUE_BITS,
    check_wraps,
)
from securefed.protocols.blind.scoring import ScorePlan, cut
from securefed.protocols.blind.statistics import (
    Columns,
    PassPlan,
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
    constants_of,
    count_products,
)
from securefed.protocols.loop import PartyContext
from securefed.transport import Link

__all__ = ["BlindTransferHelper", "BlindTransferParty", "transfer_score_plan", "transfer_wrap_bound"]

Array = NDArray[np.float64]
SCORE_TRIP = 1 << 16
"""Step of the differences for scores: beyond those of a round."""
COUNT_BYTES = 4
MAP_NORM = 2.0
"""On the norm of a column of a product in a round. All truncated numbers of a run together stay below a
quarter of the bound that this makes (tests/protocols/test_transfer_blind.py)."""
MEAN_CORRELATION = 0.25
"""On the mean entry of K: columns have a mean square of about 1."""


def transfer_score_plan(agreement: Agreement) -> ScorePlan:
    """What is public about scores: B's columns with the ones, and one column of the label party that is 0."""
    return ScorePlan(
        agreement.names,
        (agreement.members[0].parameters, 1),
        agreement.key_holder,
        agreement.outputs,
        agreement.score_precision,
    )


def transfer_pass(plan: TransferPlan, names: tuple[str, ...], helper: str | None) -> PassPlan:
    """What is public about the pass: F_A'F_B/n with the targets beside F_A."""
    return PassPlan(
        names,
        (plan.size_b, plan.size_a),
        helper,
        plan.outputs,
        plan.rows,
        (plan.rows,),
        ((0,),),
        label_weight=-1.0,
        margin_weight=1.0,
        l2=0.0,
    )


def transfer_wrap_bound(plan: TransferPlan, rounds: int, *, helper: bool = False) -> float:
    """Bound the probability that any truncation of a run wraps (securefed.protocols.blind.precision)."""
    a, b = sqrt(plan.size_a), sqrt(plan.size_b)
    passed = MEAN_CORRELATION * plan.size_a * plan.size_b
    # The coefficients of a chunk: binomials in the worst direction, which a column has a small part in.
    grown = sum(sqrt(2.0) ** steps for steps in plan.chunks)
    small = 5.0 * plan.local_steps
    by_b = 2.0 ** (b_fraction(helper=helper) - MATRIX_BITS) * (2.0 + grown) * b
    moved = rounds * plan.width * MAP_NORM * (3.0 * a + 4.0 * b + by_b + small)
    told = plan.outputs * plan.size_b * 2.0 ** (VALUE_BITS - MODEL_BITS + WIDTH - PRODUCT_BITS)
    return (passed + moved + told) * 2.0 ** (PRODUCT_BITS - WIDTH)


class TransferLoop(BlindLoop):
    """What parties with and without data have in common."""

    def __init__(
        self, agreement: Agreement, plan: TransferPlan, context: PartyContext, scheme: CrossScheme
    ) -> None:
        super().__init__(agreement, transfer_score_plan(agreement), context, scheme)
        self._plan, rounds, helper = plan, agreement.stopping.rounds, agreement.key_holder
        bound = transfer_wrap_bound(plan, rounds, helper=helper is not None)
        check_wraps(bound, rounds, plan.size_a + plan.size_b, plan.outputs)
        self._pass = transfer_pass(plan, agreement.names, helper)
        self._rates = tuple(dict.fromkeys(agreement.learning_rate(t) for t in range(rounds)))
        self._constants = constants_of(plan, self._rates, helper=helper is not None)
        self.maps = Maps.zeros(plan)
        """This party's shares of the model; zeros at a party that holds none."""
        self._told: Share
        """This holder's share of c."""

    # Setup

    async def _begin(self, link: Link) -> None:
        own = self._own_matrices()
        joint = await self._cross(link)
        if self._agreement.key_holder is not None:
            await self._split_matrices(link, own)
        if joint is None:
            return
        first, size = self._is_first(link.name), self._plan.size_a
        with link.activity("rounds"):
            joint = shares.truncate(joint, PRODUCT_BITS - MATRIX_BITS, first=first)
            own["K",], own["K'",] = joint, _transposed(joint[:, :size])
            self._told = _transposed(joint[:, size:])
        agreement = self._agreement
        left = range(self.first_round, self.last_round)
        count = count_products(
            self._plan,
            self._constants,
            [agreement.learning_rate(t) for t in left],
            agreement.evaluations_from(self.first_round) + 1,
        )
        await self._prepare(link, self._constants, own, count)

    def _own_matrices(self) -> dict[Name, Share]:
        """The matrices that this party knows."""
        return {}

    async def _cross(self, link: Link) -> Share | None:
        """A holder's share of K with c' below it, with the fraction bits of products."""
        product = self._pass.product(*self._pass.pairs()[0], 0)
        return await self._take_part(link, product.left, product.right)

    async def _take_part(self, link: Link, *shape: int) -> Share:
        (part,) = await take_parts(link, self._pass.names[0], [shape])
        return part

    async def _split_matrices(self, link: Link, own: dict[Name, Share]) -> None:
        """With a helper: a holder takes its shares of B's matrices and, in the first round, of its map."""
        for name, constant in self._constants.items():
            if name[0] in OWN_OF_B:
                own[name] = await self._take_part(link, constant.rows, constant.inner)
        if not self.first_round:
            start = await self._take_part(link, self._plan.size_b, self._plan.width)
            self.maps = Maps(self.maps.a, start, self.maps.phi)

    # A round

    async def _round(self, link: Link, t: int) -> None:
        if self._is_holder(link.name):
            self.maps = await self._move(link, self._steps(link, t).moves(self.maps), t, 0)
        await self._tell_progress(link, t)

    def _steps(self, link: Link, t: int) -> TransferRound:
        rate = self._agreement.learning_rate(t)
        return TransferRound(
            self._plan,
            self._products,
            self._told,
            rate,
            first=self._is_first(link.name),
            helper=self._agreement.key_holder is not None,
        )

    async def _move(self, link: Link, move: Move, t: int, step: int) -> Any:
        """Run a program to its end, each trip a step; return what it returns."""
        peer = self._pass.peer(link.name)
        try:
            wanted = next(move)
            while True:
                products = await trip(link, peer, wanted, round=t, step=step)
                step += 1
                with link.activity("rounds"):
                    wanted = move.send(products)
        except StopIteration as end:
            return end.value

    # Scores, and the end of the run

    async def _blocks(self, link: Link, t: int) -> dict[str, Share]:
        """A holder's shares of v, and of the label party's column, which is 0."""
        b, a = self._agreement.names
        v = await self._move(link, self._steps(link, t).score_map(self.maps), t, SCORE_TRIP)
        return {b: cut(v, first=self._is_first(link.name)), a: shares.zeros(1, self._plan.outputs)}

    async def _rows_to_score(self, link: Link, rows: Array | None, t: int) -> int:
        """How many rows are scored. The label party tells the helper, which knows neither."""
        label_party, helper = self._pass.label_party, self._pass.helper
        if link.name == helper:
            told = await link.receive("row-count", label_party, round=t)
            if len(told) != COUNT_BYTES:
                raise FormatError(f"row-count: {len(told)} bytes given, {COUNT_BYTES} are due")
            return int.from_bytes(told, "little")
        count = 0 if rows is None else len(rows)
        if link.name == label_party and helper is not None:
            link.send(helper, "row-count", count.to_bytes(COUNT_BYTES, "little"), round=t)
        return count

    # Checkpoints

    def _shares(self) -> dict[str, Share]:
        return {"share_a": self.maps.a, "share_b": self.maps.b, "share_phi": self.maps.phi}

    def _take_shares(self, restored: Mapping[str, Share]) -> None:
        self.maps = Maps(restored["share_a"], restored["share_b"], restored["share_phi"])

    def start_from(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        raise SettingError("warm_start: a blind transfer run does not start from another one's model")


class BlindTransferParty(TransferLoop):
    """A, which has the labels, or B."""

    def __init__(
        self,
        agreement: Agreement,
        plan: TransferPlan,
        rows: TransferRows,
        context: PartyContext,
        scheme: CrossScheme,
        *,
        seed: int,
    ) -> None:
        super().__init__(agreement, plan, context, scheme)
        self._rows, self._is_a = rows, rows.labels is not None
        start = rows.start(plan, seed)
        self._start = shares.from_floats(start, VALUE_BITS)
        # Each map is its party's own at the start: the other's share of it is 0.
        if self._is_a:
            phi = np.einsum("dk,dkh->kh", rows.pull, start.reshape(-1, plan.outputs, plan.hidden))
            self.maps = Maps(self._start, self.maps.b, shares.from_floats(phi[:, None], VALUE_BITS))
        elif agreement.key_holder is None:
            self.maps = Maps(self.maps.a, self._start, self.maps.phi)

    # Setup

    def _own_matrices(self) -> dict[Name, Share]:
        kinds = OWN_OF_A if self._is_a else OWN_OF_B
        own = {rate: OwnMaps(self._rows, self._plan, rate) for rate in self._rates}
        helper = self._agreement.key_holder is not None
        fraction = MATRIX_BITS if self._is_a else b_fraction(helper=helper)
        matrices: dict[Name, Share] = {}
        for name, constant in self._constants.items():
            if name[0] not in kinds:
                continue
            values = self._matrix(name, own)
            if values.shape != (constant.rows, constant.inner):
                raise DataError(f"{name[0]}: {values.shape} numbers, {constant} is due")
            largest = float(np.abs(values).max())
            if not largest < LARGEST:
                raise DataError(
                    f"learning_rate: steps with these columns have a factor of {largest:.3g}, less than"
                    f" {LARGEST:g} is allowed; standardise the columns or take a smaller learning rate"
                )
            matrices[name] = shares.from_floats(values, fraction)
        return matrices

    def _matrix(self, name: Name, own: Mapping[float, OwnMaps]) -> Array:
        kind, *rest = name
        if kind == "G":
            return self._rows.labelled_gram
        maps = own[rest[0]]
        if kind == "base":
            return maps.base(self._plan.local_steps)
        if kind == "chunk":
            place, chunks = int(rest[1]), self._plan.chunks
            return maps.chunk(chunks[place], start=place == 0, end=place == len(chunks) - 1)
        return {"bases": maps.bases, "pushes": maps.pushes, "weights": maps.weights}[str(kind)]()

    async def _cross(self, link: Link) -> Share | None:
        rows, plan = self._rows, self._pass
        targets = rows.targets().reshape(plan.rows, -1) if self._is_a else None
        columns = Columns(plan, rows.shared, np.eye(plan.size(link.name)), [np.arange(plan.rows)], targets)
        ((share,),) = (await pass_products(link, plan, columns, self._scheme, self._mapper)).values()
        if self._is_holder(link.name):
            return share
        send_parts(link, plan.second, [share])
        return None

    async def _split_matrices(self, link: Link, own: dict[Name, Share]) -> None:
        if self._is_holder(link.name):
            await super()._split_matrices(link, own)
        else:
            split_parts(link, self._pass, [*own.values(), *([] if self.first_round else [self._start])])

    def _root(self) -> Array:
        return np.eye(self._score_plan.size(self._pass.names[self._is_a]))


class BlindTransferHelper(TransferLoop):
    """The second holder where there is a helper: shares, and no columns, no key and no output."""


def _transposed(share: Share) -> Share:
    return np.ascontiguousarray(share.transpose(0, 2, 1))
