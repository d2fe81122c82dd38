"""Blind transfer learning, two parties: nobody sees a gradient, a representation or even its own map.

W_A and W_B, and all that is computed of them, are shared between the two (securefed.crypto.shares): each
party has numbers that are uniform by themselves. Products go through hidden arrays, each party under its own
key or both under that of a key-holder party C (securefed.protocols.shared_products), so what travels are
ciphertexts of a key that the receiver lacks, and entries under masks that it lacks. Everything else is the
same with C and without. securefed.protocols.transfer_algebra has the objective and the steps.

    once         K and c, the only numbers that take both parties' rows
    each round   trip 1: K'W_A, K W_B, Phi, G W_B      trip 2: W_B Phi, K'W_A Phi, |Phi|^2, S, W_B'c
                 trip 3: what Q steps make of W        then two trips a local step, and one to end
    scores       v = W_B Phi; A hides its share of it, so that B has [[v]] under A's key (or under C's, who
                 refreshes it), and scores rows as in securefed.protocols.blind_scores: A learns the scores,
                 blurred by B, and nobody more

A trip is what both send for its products and the answers, a message for each product, and takes one wait.
Nothing is opened but scores, so the ledger stays empty. FedBCD-s gives B its turn, then A.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from functools import partial
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from securefed.crypto.errors import RangeError, ShapeError
from securefed.crypto.hidden import HiddenArray, Range, Wide, slack_for, to_integers
from securefed.crypto.shares import SHARE_BITS, from_bytes, reduced, to_bytes, truncated
from securefed.errors import DataError, SettingError
from securefed.protocols.agreement import Agreement
from securefed.protocols.blind_algebra import BlindPlan
from securefed.protocols.blind_scores import BlindScorer, blind_scores
from securefed.protocols.channel import Channel
from securefed.protocols.keyring import Keyring
from securefed.protocols.loop import PartyLoop, State, Surroundings, checkpoint_array
from securefed.protocols.prediction_run import BlindShard
from securefed.protocols.refresh import hiding
from securefed.protocols.shared_products import (
    MATRIX_FRACTION,
    Factor,
    Product,
    Shape,
    exchange,
    hand_over,
    hidden_here,
    together,
)
from securefed.protocols.transfer_algebra import VALUE_BITS, OwnMaps, TransferPlan, TransferRows
from securefed.protocols.transfer_key_holder import SETUP_STEPS, lift_of, ready
from securefed.transport import Link

__all__ = ["BlindTransferParty"]

Array = NDArray[np.float64]
Move = Generator[list[Product], list[Wide], None]
"""Local steps: yields the products that it wants, gets this party's shares of them."""


class BlindTransferParty(PartyLoop):
    """A (with labels) or B of a blind transfer run."""

    def __init__(
        self,
        agreement: Agreement,
        plan: TransferPlan,
        scoring: BlindPlan,
        rows: TransferRows,
        around: Surroundings,
        *,
        seed: int,
    ) -> None:
        super().__init__(agreement, around)
        self._plan, self._scoring, self._rows = plan, scoring, rows
        self._is_a = rows.labels is not None
        self._peer = agreement.names[not self._is_a]
        self._slack = slack_for(plan.entries(agreement))
        start = to_integers(rows.start(plan, seed), VALUE_BITS)
        none = _zeros(plan.size_b if self._is_a else plan.size_a, plan.width)
        # At the start each map is its party's own: the other's share of it is 0.
        self.share_a: Wide = reduced(start) if self._is_a else none
        self.share_b: Wide = none if self._is_a else reduced(start)
        self._own: dict[tuple[object, ...], Factor] = {}
        """This party's matrices, by name and rate."""
        self.lifted: HiddenArray
        """The part of the finished model that scores rows."""

    # Products

    def _by(self, a: bool, rows: int, share: Wide, matrix: Callable[[], Array], *name: object) -> Product:
        """A product by a matrix that A alone (or B alone) knows, of something shared; kept by its name."""
        shape = Shape(rows, share.shape[0], share.shape[1], "a" if a else "b")
        if a != self._is_a:
            return Product(shape, None, share, True)
        if name not in self._own:
            self._own[name] = _factor(matrix())
        return Product(shape, self._own[name], share, False)

    def _of(self, left: Wide | Factor, right: Wide) -> Product:
        """A product of two shared matrices."""
        factor = left if isinstance(left, Factor) else Factor.shared(left)
        rows, inner = factor.integers.shape
        return Product(Shape(rows, inner, right.shape[1]), factor, right, True)

    def _phi(self) -> Product:
        """q'W_A; `_blocked` is then Phi."""
        return self._by(True, self._plan.outputs, self.share_a, lambda: self._rows.pull.T, "q")

    def _blocked(self, share: Wide) -> Wide:
        """(outputs, width), with 0 away from each output's own columns."""
        return share * self._plan.blocks

    def _own_columns(self, share: Wide) -> Wide:
        """(1, width): each output's own columns."""
        found: Wide = self._blocked(share).sum(axis=0, keepdims=True)
        return found

    async def _trip(self, link: Link, keys: Keyring, t: int, products: list[Product]) -> list[Wide]:
        """This party's shares of the products, at the scale of values."""
        found = await exchange(link, keys, self._peer, products, self._slack, t, self._step)
        self._step += len(products)
        cuts = [VALUE_BITS if product.shape.wide else MATRIX_FRACTION for product in products]
        return [self._cut(share, cut) for share, cut in zip(found, cuts, strict=True)]

    def _cut(self, share: Wide, bits: int) -> Wide:
        return truncated(share, bits, first=self._is_a)

    # The beginning

    async def _begin(self, link: Link, keys: Keyring) -> None:
        await ready(link, self._agreement, keys, self._plan, self._slack)
        k, c = await self._cross(link, keys)
        self._k, self._kt, self._c = Factor.shared(k), Factor.shared(k.T), c

    async def _cross(self, link: Link, keys: Keyring) -> tuple[Wide, Wide]:
        """Shares of K and c."""
        plan, rows = self._plan, self._rows
        products: list[Product] = []
        first, *more = plan.setup()
        a_hides = not more
        labels = None
        if self._is_a:
            labels = to_integers(rows.targets().reshape(plan.rows, -1), VALUE_BITS)
        if self._is_a == a_hides:
            columns = to_integers(rows.shared, VALUE_BITS)
            held = columns if labels is None or more else np.hstack([columns, labels])
            products.append(Product(first, None, reduced(held), True))
        else:
            products.append(Product(first, self._per_row(), None, False))
        for shape in more:
            products.append(
                Product(shape, self._per_row(), None, False)
                if labels is None
                else Product(shape, None, reduced(labels), True)
            )
        found = [
            self._cut(share, plan.row_bits)
            for share in await exchange(link, keys, self._peer, products, self._slack, 0, 0)
        ]
        self._step = len(products)
        if a_hides:
            columns, told = np.hsplit(found[0], [plan.size_a])
            return columns.T, told
        return found[0], found[1]

    def _per_row(self) -> Factor:
        """F'/n."""
        return _factor(self._rows.shared.T / self._plan.rows, self._plan.row_bits)

    # A round

    async def _round(self, link: Link, keys: Keyring, t: int) -> None:
        self._step = SETUP_STEPS
        eta = self._agreement.learning_rate(t)
        self._own = {name: kept for name, kept in self._own.items() if len(name) == 1 or name[1] == eta}
        for active in self._agreement.turns:
            moves = [
                self._steps_of_a(eta) if name == self._agreement.label_party else self._steps_of_b(eta)
                for name in active
            ]
            wanted = [next(move) for move in moves]
            while any(wanted):
                found = await self._trip(link, keys, t, [each for part in wanted for each in part])
                pairs = zip(moves, wanted, strict=True)
                wanted = [_go_on(move, [found.pop(0) for _ in part]) for move, part in pairs]

    def _steps_of_b(self, eta: float) -> Move:
        """Q local steps of B on a Phi that stays; yields the products of each trip."""
        w, size, steps = self.share_b, self._plan.size_b, self._plan.local_steps
        own = OwnMaps(self._rows, self._plan, eta)
        phi, u = yield [self._phi(), self._of(self._kt, self.share_a)]
        phi = self._blocked(phi)
        (found,) = yield [self._of(np.vstack([w, u, phi.sum(axis=0, keepdims=True)]), phi.T)]
        v, u_phi, rho = np.vsplit(found, [size, 2 * size])
        rho = np.diag(rho[0])
        base, constants = yield [
            self._by(False, size, np.vstack([w, u]), lambda: own.base(steps), "base", eta),
            self._by(False, 2 * size, np.vstack([u_phi, v, self._c]), own.constants, "constants", eta),
        ]
        n_t, n_c = np.vsplit(constants, 2)
        z = _zeros(size, self._plan.outputs)
        for left in reversed(range(steps)):
            (found,) = yield [self._by(False, 3 * size, np.vstack([z, v]), own.step, "step", eta)]
            z, v, felt = np.vsplit(found, 3)
            x = reduced(n_c + felt)
            z = reduced(z + x)
            if left:
                (found,) = yield [self._of(x, rho)]
                v = reduced(v + n_t + found)
        (found,) = yield [self._of(z, phi)]
        self.share_b = reduced(base + found)

    def _steps_of_a(self, eta: float) -> Move:
        """Q local steps of A on a W_B that stays."""
        w, size, steps = self.share_a, self._plan.size_a, self._plan.local_steps
        w_b, size_b, width = self.share_b, self._plan.size_b, self._plan.width
        blocks = self._plan.blocks
        own = OwnMaps(self._rows, self._plan, eta)
        phi, u, g_w = yield [
            self._phi(),
            self._of(self._k, w_b),
            self._by(False, size_b, w_b, lambda: self._rows.labelled_gram, "G"),
        ]
        (found,) = yield [self._of(w_b.T, np.hstack([g_w, self._c]))]
        s, e = np.hsplit(found, [width])
        s, e = s * (blocks.T @ blocks), (e * blocks.T).sum(axis=1, keepdims=True)
        rows = size + (steps - 1) * len(blocks)
        (found,) = yield [self._by(True, rows, np.vstack([w, u]), own.bases, "bases", eta)]
        base, *phis = np.vsplit(found, range(size, rows, len(blocks)))
        gs, now = _zeros(steps, width), self._own_columns(phi).T
        for step in range(steps):
            (found,) = yield [self._of(s, now)]
            gs[step] = self._cut(reduced(found - 2 * e), 2)[:, 0]
            if step + 1 < steps:
                weights = partial(own.weights, step + 1)
                (found,) = yield [self._by(True, len(blocks), gs.copy(), weights, "weights", eta, step)]
                now = reduced(self._own_columns(phis[step] - found)).T
        pushed = np.vstack([blocks * g for g in gs])
        (found,) = yield [self._by(True, size, pushed, lambda: own.pushes, "pushes", eta)]
        self.share_a = reduced(base - found)

    # Scores

    async def _lift(self, link: Link, keys: Keyring, t: int) -> HiddenArray:
        """v, at B under A's key or the key-holder party's, as blind scores take it; at A a part that is 0."""
        key, own, peer = hiding(keys), keys.own, self._peer
        (phi,) = await self._trip(link, keys, t, [self._phi()])
        (v,) = await self._trip(link, keys, t, [self._of(self.share_b, self._blocked(phi).T)])
        step, lift, lifted = self._step, lift_of(key), self._scoring.lifted(key)
        none = (1, self._plan.outputs)
        self._step += 1
        if own is None:
            if not self._is_a:
                return await hidden_here(link, keys, peer, v, lifted, lift, self._slack, t, step)
            hand_over(link, keys, peer, v, t, step)
            return key.hidden_zeros(none, lifted)
        channel, wide = Channel(link, peer, t, step), Range(VALUE_BITS + lift, SHARE_BITS + lift)
        if self._is_a:
            with link.activity("encrypt"):
                hidden = own.conceal(v << lift, wide)
            channel.send("share", hidden)
            return key.hidden_zeros(none, lifted)
        load = partial(key.load_array, shape=v.shape, range_=wide)
        checks = ("shape", "scale", "ciphertexts")
        array = await channel.take("share", load, *checks, activity="unmask")
        with link.activity("unmask"):
            return array.add_plain(together(v) << lift, lifted)

    @property
    def model(self) -> bytes:
        """A name for the maps as they are now."""
        return sha256(to_bytes(self.share_a) + to_bytes(self.share_b)).digest()

    def scorer(self) -> BlindScorer:
        """This party's part of the finished model."""
        return BlindScorer(self._scoring, self.lifted, self.model)

    def shard(self) -> BlindShard:
        """The same to keep: ciphertexts under the key-holder's key."""
        return BlindShard(self._scoring, self.lifted.to_bytes(), self.lifted.shape[0], self.model)

    async def _scores(self, link: Link, keys: Keyring, rows: Array | None, t: int) -> Array | None:
        if rows is None:
            raise SettingError("evaluation: no rows to evaluate on")
        scorer = BlindScorer(self._scoring, await self._lift(link, keys, t), self.model)
        return await blind_scores(link, self._agreement, keys, scorer, rows, t, self.guard)

    async def _end(self, link: Link, keys: Keyring) -> None:
        link.phase = "release"
        self._step = SETUP_STEPS
        self.lifted = await self._lift(link, keys, self._agreement.stopping.rounds)

    # Checkpoints

    def _model_state(self) -> State:
        return {
            name: np.frombuffer(to_bytes(share), dtype=np.uint8)
            for name, share in (("share_a", self.share_a), ("share_b", self.share_b))
        }

    def _restore_model(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        plan = self._plan
        self.share_a = _restored(state, "share_a", plan.size_a, plan.width)
        self.share_b = _restored(state, "share_b", plan.size_b, plan.width)


def _zeros(rows: int, columns: int) -> Wide:
    return np.zeros((rows, columns), dtype=np.int64).astype(object)


def _go_on(move: Move, found: list[Wide]) -> list[Product]:
    """What it wants next; nothing once it is done."""
    try:
        return move.send(found)
    except StopIteration:
        return []


def _factor(values: Array, fraction_bits: int = MATRIX_FRACTION) -> Factor:
    try:
        return Factor.own(values, fraction_bits)
    except RangeError as error:
        raise DataError(f"a party's columns make its steps too large ({error}); standardise them") from None


def _restored(state: Mapping[str, NDArray[np.generic]], name: str, *shape: int) -> Wide:
    try:
        stored = np.asarray(checkpoint_array(state, name), dtype=np.uint8)
        return from_bytes(stored.tobytes(), (shape[0], shape[1]))
    except ShapeError as error:
        raise DataError(f"checkpoint: {error}") from None
