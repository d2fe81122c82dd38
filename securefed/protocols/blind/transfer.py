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
from math import ceil, log2, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.crypto.blind import shares
from securefed.crypto.blind.interface import CrossScheme
from securefed.crypto.blind.shares import LIMBS, WIDTH, Share
from securefed.crypto.errors import FormatError
from securefed.errors import DataError, SettingError
from securefed.protocols.agreement import Agreement
from securefed.protocols.blind.correlations import (
    Correlations,
    Move,
    Name,
    prepare_all,
    trip,
)
from securefed.protocols.blind.cross import Encryptor, Multiplier
from securefed.protocols.blind.precision import (
    MATRIX_BITS,
    MODEL_BITS,
    MOST_WRAPS,
    PRODUCT_BITS,
    VALUE_BITS,
)
from securefed.protocols.blind.scoring import (
    QUESTION_SEED,
    ModelPart,
    ScorePlan,
    cut,
    introduce,
    score_rows,
    score_secret,
    seal,
)
from securefed.protocols.blind.statistics import Columns, PassPlan
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
from securefed.protocols.loop import PartyContext, PartyLoop, State, checkpoint_array, part_of
from securefed.transport import Link

__all__ = ["BlindTransferHelper", "BlindTransferParty", "transfer_score_plan", "transfer_wrap_bound"]

Array = NDArray[np.float64]
KEY_STEP, PART_STEP, PASS_STEP = 0, 1, 2
PREPARE_STEP = 1 << 16
"""Step of the messages that prepare products."""
BLOCK = "scored."
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
        plan.rows,
        (plan.rows,),
        ((0,),),
        plan.outputs,
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


class TransferLoop(PartyLoop):
    """What parties with and without data have in common."""

    def __init__(
        self, agreement: Agreement, plan: TransferPlan, context: PartyContext, scheme: CrossScheme
    ) -> None:
        super().__init__(agreement, context)
        self._plan, self._score_plan, self._scheme = plan, transfer_score_plan(agreement), scheme
        rounds = agreement.stopping.rounds
        bound = transfer_wrap_bound(plan, rounds, helper=agreement.key_holder is not None)
        if bound > MOST_WRAPS:
            raise SettingError(
                f"rounds: {rounds} rounds with {plan.size_a} and {plan.size_b} columns and {plan.outputs}"
                f" outputs go wrong with a probability of up to 2**{ceil(log2(bound))}, at most"
                f" 2**{ceil(log2(MOST_WRAPS))} is allowed; use fewer rounds, columns or outputs"
            )
        b, a = agreement.names
        helper = agreement.key_holder
        self._holders = (a, b if helper is None else helper)
        self._pass = transfer_pass(plan, agreement.names, helper)
        self._rates = tuple(dict.fromkeys(agreement.learning_rate(t) for t in range(rounds)))
        self._constants = constants_of(plan, self._rates, helper=helper is not None)
        self.maps = Maps.zeros(plan)
        """This party's shares of the model; zeros at a party that holds none."""
        self._products: Correlations
        self._told: Share
        """This holder's share of c."""
        self._score_keys: Encryptor | Multiplier | None = None
        self._score_secret: bytes | None = None
        self._scored_blocks: dict[str, Share] | None = None
        """Shares that the next scores are made of, by party."""
        self.part: ModelPart
        """This party's part of the finished model."""

    def _is_holder(self, name: str) -> bool:
        return name in self._holders

    def _is_first(self, name: str) -> bool:
        return name == self._holders[0]

    def _peer(self, name: str) -> str:
        return self._holders[self._is_first(name)]

    # Setup

    async def _begin(self, link: Link) -> None:
        held = self._own_matrices()
        joint = await self._cross(link)
        if self._agreement.key_holder is not None:
            await self._split_matrices(link, held)
        if joint is None:
            return
        first, size = self._is_first(link.name), self._plan.size_a
        with link.activity("rounds"):
            joint = shares.truncate(joint, PRODUCT_BITS - MATRIX_BITS, first=first)
            held["K",], held["K'",] = joint, _transposed(joint[:, :size])
            self._told = _transposed(joint[:, size:])
        agreement = self._agreement
        left = range(self.first_round, self.last_round)
        count = count_products(
            self._plan,
            self._constants,
            [agreement.learning_rate(t) for t in left],
            agreement.evaluations_from(self.first_round) + 1,
        )
        self._products = await prepare_all(
            link,
            self._peer(link.name),
            self._constants,
            held,
            count,
            self._scheme,
            self._mapper,
            first=first,
            step=PREPARE_STEP,
        )

    def _own_matrices(self) -> dict[Name, Share]:
        """The matrices that this party knows."""
        return {}

    async def _cross(self, link: Link) -> Share | None:
        """A holder's share of K with c' below it, with the fraction bits of products."""
        product = self._pass.product(self._holders[0], self._agreement.names[0], 0)
        return await self._take_part(link, product.left, product.right)

    async def _take_part(self, link: Link, *shape: int) -> Share:
        arrived = await link.receive("part", self._agreement.names[0], step=PART_STEP)
        return shares.from_bytes(arrived, (LIMBS, *shape))

    async def _split_matrices(self, link: Link, held: dict[Name, Share]) -> None:
        """With a helper: a holder takes its shares of B's matrices and, in the first round, of its map."""
        for name, constant in self._constants.items():
            if name[0] in OWN_OF_B:
                held[name] = await self._take_part(link, constant.rows, constant.inner)
        if not self.first_round:
            own = await self._take_part(link, self._plan.size_b, self._plan.width)
            self.maps = Maps(self.maps.a, own, self.maps.phi)

    # A round

    async def _round(self, link: Link, t: int) -> None:
        label_party, b = self._holders[0], self._agreement.names[0]
        if self._is_holder(link.name):
            self.maps = await self._move(link, self._steps(link, t).moves(self.maps), t, 0)
        if self._is_holder(b):
            return
        if link.name == label_party:
            link.send(b, "progress", b"\1", round=t)
        elif link.name == b:
            await link.receive("progress", label_party, round=t)

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
        peer = self._peer(link.name)
        try:
            wanted = next(move)
            while True:
                found = await trip(link, peer, wanted, round=t, step=step)
                step += 1
                with link.activity("rounds"):
                    wanted = move.send(found)
        except StopIteration as end:
            return end.value

    # Scores, and the end of the run

    async def _blocks(self, link: Link, t: int) -> dict[str, Share]:
        """A holder's shares of v, and of the label party's column, which is 0."""
        if not self._is_holder(link.name):
            return {}
        b, a = self._agreement.names
        v = await self._move(link, self._steps(link, t).score_map(self.maps), t, SCORE_TRIP)
        return {b: cut(v, first=self._is_first(link.name)), a: shares.zeros(1, self._plan.outputs)}

    async def _model(self, link: Link, t: int) -> tuple[ModelPart, Encryptor | Multiplier]:
        await self._fix_question(link, t)
        plan, secret, blocks = self._score_plan, self._own_secret(link), self._scored_blocks
        self._scored_blocks = None
        if self._score_keys is None:
            self._score_keys = await introduce(link, plan, self._scheme, self._mapper, secret, t)
        part = await seal(link, plan, self._score_keys, blocks or {}, secret, t)
        return part, self._score_keys

    async def _fix_question(self, link: Link, t: int) -> None:
        """Compute the shares that scores are made of once: doing it again would round them otherwise."""
        self._own_secret(link)
        if self._scored_blocks is None:
            self._scored_blocks = await self._blocks(link, t)

    def _own_secret(self, link: Link) -> bytes:
        if self._score_secret is None:
            self._score_secret = score_secret(link, self._score_plan, self._scheme)
        return self._score_secret

    def _question_state(self) -> State:
        blocks = {
            f"{BLOCK}{name}": np.frombuffer(shares.to_bytes(block), np.uint8)
            for name, block in (self._scored_blocks or {}).items()
        }
        return {QUESTION_SEED: np.frombuffer(self._score_secret or b"", np.uint8), **blocks}

    def _restore_question(self, state: State) -> None:
        self._score_secret = checkpoint_array(state, QUESTION_SEED).tobytes()
        plan = self._score_plan
        self._scored_blocks = {
            name: shares.from_bytes(block.tobytes(), (LIMBS, plan.size(name), plan.outputs))
            for name, block in part_of(state, BLOCK).items()
        }

    async def _scores(self, link: Link, rows: Array | None, t: int) -> Array | None:
        count = await self._rows_to_score(link, rows, t)
        part, keys = await self._model(link, t)
        scores = await score_rows(link, part, keys, rows, count, self.guard, t)
        if scores is None:
            return None
        return scores[:, 0] if scores.shape[1] == 1 else scores

    async def _rows_to_score(self, link: Link, rows: Array | None, t: int) -> int:
        """How many rows are scored. The label party tells the helper, which knows neither."""
        label_party, helper = self._holders[0], self._agreement.key_holder
        if link.name == helper:
            told = await link.receive("row-count", label_party, round=t)
            if len(told) != COUNT_BYTES:
                raise FormatError(f"row-count: {len(told)} bytes given, {COUNT_BYTES} are due")
            return int.from_bytes(told, "little")
        if rows is None:
            raise SettingError("evaluation: no rows to evaluate on")
        if link.name == label_party and helper is not None:
            link.send(helper, "row-count", len(rows).to_bytes(COUNT_BYTES, "little"), round=t)
        return len(rows)

    async def _end(self, link: Link) -> None:
        link.phase = "release"
        self.part, _ = await self._model(link, self._agreement.stopping.rounds)

    # Checkpoints

    def _model_state(self) -> State:
        maps = {"share_a": self.maps.a, "share_b": self.maps.b, "share_phi": self.maps.phi}
        return {name: np.frombuffer(shares.to_bytes(share), np.uint8) for name, share in maps.items()}

    def _restore_model(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        none = Maps.zeros(self._plan)
        self.maps = Maps(
            _restored(state, "share_a", none.a.shape),
            _restored(state, "share_b", none.b.shape),
            _restored(state, "share_phi", none.phi.shape),
        )

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
        found: dict[Name, Share] = {}
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
            found[name] = shares.from_floats(values, fraction)
        return found

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
        a, b = self._holders[0], self._agreement.names[0]
        targets = rows.targets().reshape(plan.rows, -1) if self._is_a else None
        columns = Columns(plan, rows.shared, np.eye(plan.size(link.name)), [np.arange(plan.rows)], targets)
        product = plan.product(a, b, 0)
        if self._is_a:
            own = await Encryptor.begin(link, self._scheme, [b], self._mapper, step=KEY_STEP)
            await own.send(b, product, columns.left(0), step=PASS_STEP)
            share = await own.read(b, product, step=PASS_STEP)
            own.end()
            return share
        theirs = await Multiplier.begin(link, self._scheme, a, self._mapper, step=KEY_STEP)
        share = await theirs.multiply(product, columns.right(0), step=PASS_STEP)
        if self._is_holder(link.name):
            return share
        link.send(self._holders[1], "part", shares.to_bytes(share), step=PART_STEP)
        return None

    async def _split_matrices(self, link: Link, held: dict[Name, Share]) -> None:
        if self._is_holder(link.name):
            await super()._split_matrices(link, held)
            return
        whole = list(held.values()) + ([] if self.first_round else [self._start])
        for share in whole:
            part = shares.uniform(*share.shape[1:])
            for peer, piece in zip(self._holders, (part, shares.subtract(share, part)), strict=True):
                link.send(peer, "part", shares.to_bytes(piece), step=PART_STEP)

    async def _model(self, link: Link, t: int) -> tuple[ModelPart, Encryptor | Multiplier]:
        part, keys = await super()._model(link, t)
        part.root = np.eye(self._score_plan.size(link.name))
        return part, keys


class BlindTransferHelper(TransferLoop):
    """The second holder where there is a helper: shares, and no columns, no key and no output."""


def _transposed(share: Share) -> Share:
    return np.ascontiguousarray(share.transpose(0, 2, 1))


def _restored(state: Mapping[str, NDArray[np.generic]], name: str, shape: tuple[int, ...]) -> Share:
    stored = np.asarray(checkpoint_array(state, name), dtype=np.uint8)
    try:
        return shares.from_bytes(stored.tobytes(), shape)
    except FormatError as error:
        raise DataError(f"checkpoint: {name}: {error}") from None
