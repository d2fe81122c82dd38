"""The recipe of the transfer objective: see assembly.recipe and protocols.own_gradient.transfer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from securefed.assembly.recipe import REVEALS, PartyContext, Recipe
from securefed.checks import check_choice, check_integer, check_number
from securefed.crypto import cross_scheme, protects
from securefed.crypto.blind.interface import CrossScheme
from securefed.errors import SettingError
from securefed.models import ACTIVATIONS, HiddenLayer
from securefed.protocols.agreement import Agreement, Member, encoded_bits
from securefed.protocols.blind.transfer import BlindTransferHelper, BlindTransferParty
from securefed.protocols.blind.transfer_algebra import TransferPlan, TransferRows, with_ones
from securefed.protocols.loop import EvaluationRows
from securefed.protocols.optimisers import get_optimiser
from securefed.protocols.own_gradient.training import DataParty
from securefed.protocols.own_gradient.transfer import TransferSide
from securefed.protocols.schedules import Automatic, Constant, as_learning_rate
from securefed.protocols.scoring.scorers import TransferScorer

__all__ = ["TransferRecipe"]

Array = NDArray[np.float64]
TRANSFER_RATE = 0.01
"""What learning_rate="auto" is here: Adam's usual one; hidden layers have no curvature to go by."""


@dataclass(frozen=True, kw_only=True)
class TransferRecipe(Recipe):
    """Federated transfer learning between two parties."""

    objective: ClassVar[str] = "transfer"

    optimiser: Any = "adam"
    reveal: str = "nothing"
    rounds: Any = None
    """None: 10 where nothing is revealed, else 30."""
    l2: Any = None
    """None: 0.05 where nothing is revealed, else 1e-5."""
    hidden: int | None = None
    """Width of the representation; None: 1 where nothing is revealed (transfer_algebra says why), else 32."""
    activation: str = "sigmoid"
    gamma: float | None = None
    """None: 0.005 where nothing is revealed, else 0.05 / 32."""
    activation_bound: float = 64.0
    key_bits: int = 3072
    """Of Paillier keys in a blind run."""

    def __post_init__(self) -> None:
        for name, (blind, open_) in {"rounds": (10, 30), "l2": (0.05, 1e-5)}.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, blind if self.blind else open_)
        super().__post_init__()
        check_choice("reveal", self.reveal, REVEALS)
        check_integer("hidden", self.width, least=1, most=4096)
        check_choice("activation", self.activation, ACTIVATIONS)
        check_number("gamma", self.pull, least=0.0)
        check_number("activation_bound", self.activation_bound, above=0.0)
        if self.blind and self.batch_size is not None:
            raise SettingError(
                f"batch_size: {self.batch_size} given; reveal='nothing' takes all shared rows at once"
                " (its cost does not depend on them), reveal='own-gradient' takes batches"
            )

    @property
    def blind(self) -> bool:
        return self.reveal == "nothing" and protects(self.scheme)

    @property
    def width(self) -> int:
        """h."""
        return self.hidden if self.hidden is not None else 1 if self.blind else 32

    @property
    def pull(self) -> float:
        """gamma."""
        return self.gamma if self.gamma is not None else 0.005 if self.blind else 0.05 / 32

    def layer(self, columns: int, index: int) -> HiddenLayer:
        """A party's hidden layer before training; index 0 is B, 1 is A."""
        return HiddenLayer(columns, self.width, self.activation, seed=self.seed * 1000 + index)

    def member(self, name: str, layer: HiddenLayer) -> Member:
        return Member(name, layer.size, False)

    def agreement(
        self, members: tuple[Member, ...], overlap: int, outputs: int = 1, held: int = 0
    ) -> Agreement:
        """B first, then A, which has the labels. `outputs`: classes, where there are more than two; `held`:
        shared people besides the `overlap`, who are held out.
        """
        rate = as_learning_rate(self.learning_rate)
        if isinstance(rate, Automatic):
            rate = Constant(1.0 if self.blind else TRANSFER_RATE)
        return Agreement(
            objective=self.objective,
            scheme=self.scheme,
            members=members,
            algorithm=self.algorithm,
            learning_rate=rate,
            batches=self.batches(overlap),
            stopping=self.stopping(),
            width=outputs if self.blind else self.width,
            evaluate_every=self.evaluations(),
            holdout=held,
            score_precision=self.score_precision,
            allow_determined=self.allow_determined,
            value_bits=0 if self.blind else self._value_bits(overlap),
            reveal="nothing" if self.blind else "own-gradient",
            details=(
                ("activation", self.activation),
                ("gamma", self.pull),
                ("l2", self.l2),
                *self._more_details(),
            ),
        )

    @property
    def _own_steps(self) -> bool:
        """Whether rates are parts of each party's largest step."""
        return isinstance(as_learning_rate(self.learning_rate), Automatic)

    def _more_details(self) -> list[tuple[str, Any]]:
        """Whatever else both have to know, with hidden layers or without."""
        if not self.blind:
            return [("activation_bound", self.activation_bound)]
        return [("hidden", self.width), ("steps", "own" if self._own_steps else "given")]

    def _value_bits(self, overlap: int) -> int:
        """Of the largest number that either party sends (TransferSide.fixed)."""
        u = self.activation_bound
        return encoded_bits(2.0 * max(u * (0.5 + 2.0 * self.pull), sqrt(overlap) * u * u, 1.0))

    def side(
        self,
        layer: HiddenLayer,
        features: Array,
        overlap: NDArray[np.intp],
        labelled: NDArray[np.bool_],
        labels: Array | None,
    ) -> TransferSide:
        return TransferSide(
            layer,
            features,
            overlap,
            labelled,
            labels,
            gamma=self.pull,
            l2=self.l2,
            activation_bound=self.activation_bound,
        )

    # Blind: linear maps over fixed features, which nobody sees

    def blind_member(self, name: str, columns: int) -> Member:
        """`columns`: of the party's features; a column of ones comes on top."""
        return Member(name, columns + 1, True)

    def blind_plan(self, agreement: Agreement) -> TransferPlan:
        b, a = agreement.members
        algorithm = agreement.algorithm
        return TransferPlan(
            a.parameters,
            b.parameters,
            self.width,
            agreement.batches.rows,
            self.pull,
            self.l2,
            algorithm.proximal,
            algorithm.local_steps,
            algorithm.order != "parallel",
            self._own_steps,
            agreement.width,
        )

    def cross_scheme(self) -> CrossScheme:
        """The encrypted product of a blind run."""
        return cross_scheme(self.scheme, key_bits=self.key_bits)

    def blind_party(
        self,
        agreement: Agreement,
        features: Array,
        overlap: NDArray[np.intp],
        labelled: NDArray[np.bool_],
        labels: Array | None,
        context: PartyContext,
        scheme: CrossScheme | None = None,
    ) -> BlindTransferParty:
        """One party's program; A is the one with labels. `scheme`: the recipe's own if None."""
        name, evaluation = agreement.names[labels is not None], context.evaluation
        if evaluation is not None and evaluation.features is not None:
            seen = self.scored(evaluation.features, label_party=labels is not None)
            evaluation = EvaluationRows(seen, evaluation.metric)
        plan, rows = self.blind_plan(agreement), TransferRows(with_ones(features), overlap, labelled, labels)
        if not (plan.own_steps or self.allow_unstable):
            rows.check_rate(agreement.learning_rate(0), plan, name)
        return BlindTransferParty(
            agreement,
            plan,
            rows,
            replace(context.guarding(name, features), evaluation=evaluation),
            scheme or self.cross_scheme(),
            seed=self.seed * 1000 + (labels is not None),
        )

    def key_holder(
        self, agreement: Agreement, context: PartyContext, scheme: CrossScheme | None = None
    ) -> BlindTransferHelper:
        """The program of the party without data."""
        self.check_key_holder(agreement.key_holder)
        return BlindTransferHelper(
            agreement, self.blind_plan(agreement), context, scheme or self.cross_scheme()
        )

    def check_key_holder(self, name: str | None) -> None:
        if name is not None and not self.blind:
            raise SettingError(
                f"key_holder: {name!r} given; transfer learning has one where reveal is 'nothing' and the"
                " scheme protects, else two parties hold keys for each other"
            )

    @staticmethod
    def scored(features: Array, *, label_party: bool) -> Array:
        """What stands for rows in a score: B's columns and ones; of A's nothing but their number."""
        return np.zeros((len(features), 1)) if label_party else with_ones(features)

    def party(self, agreement: Agreement, side: TransferSide, context: PartyContext) -> DataParty:
        """One party's program."""
        return DataParty(agreement, side, get_optimiser(self.optimiser), context)

    def scorer(
        self, layer: HiddenLayer, phi: Array | None, sealed: dict[bytes, bytes] | None = None
    ) -> TransferScorer:
        bound = self.activation_bound if layer.activation == "relu" else 1.0
        return TransferScorer(layer, phi, bound, sealed={} if sealed is None else sealed)
