"""From settings to programs: what a run is made of, the same for a simulation and for parties in processes
of their own.

A recipe holds the settings that all parties share. With it, and with what the others say about themselves
in public (`Member`), each party builds the agreement and its own program; nobody needs anybody else's data
for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from securefed.checks import check_choice, check_flag, check_integer, check_number
from securefed.crypto import SCHEMES, cross_scheme, protects, schemes_that
from securefed.crypto.blind.interface import CrossScheme
from securefed.data.storage import new_table, row_blocks
from securefed.errors import DataError, SettingError
from securefed.models import LinearModel, LocalModel, NetworkModel
from securefed.protocols.agreement import Agreement, Member, encoded_bits
from securefed.protocols.blind.linear import BlindHelper, BlindParty
from securefed.protocols.loop import EvaluationRows, Outcome, PartyContext
from securefed.protocols.losses import Loss, get_loss
from securefed.protocols.optimisers import SGD, get_optimiser
from securefed.protocols.own_gradient.sides import LinearSide
from securefed.protocols.own_gradient.training import DataParty, KeyHolderParty
from securefed.protocols.schedules import (
    Algorithm,
    Automatic,
    Batches,
    Constant,
    FedBCD,
    FedSGD,
    LearningRate,
    Stopping,
    as_learning_rate,
)
from securefed.protocols.scoring.blur import MOST_PRECISION, PRECISION
from securefed.protocols.steps import OwnSteps
from securefed.transport import Link

__all__ = ["HELPER", "KEY_HOLDER", "REVEALS", "LinearRecipe", "PartyContext", "PartyProgram", "Recipe"]

Array = NDArray[np.float64]
KEY_HOLDER = "key-holder"
HELPER = "helper"
"""The party without data of a simulated run: it holds the key, or the second shares of a blind run."""
REVEALS = ("nothing", "own-gradient")
STEPS, LINEAR_STEPS = FedBCD(local_steps=5), FedBCD(local_steps=20)
"""Local steps by default; linear models open once, however many there are."""
LEAST_PENALTY = 1e-4
"""Of l2="auto": with more rows a penalty changes no prediction, but without one parameters have no bound."""
REFIT_SHARE = 3
"""One round in so many is left for learning from the held-out rows too."""
NETWORK_RATE, ADAM_RATE = 0.5, 0.01
"""What learning_rate="auto" is where no curvature says it: for networks, and for Adam."""


class PartyProgram(Protocol):
    """A party of a training run."""

    async def run(self, link: Link) -> Outcome: ...


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings that both objectives have."""

    objective: ClassVar[str]
    """Its name in securefed.protocols.objectives."""
    automatic_penalty: ClassVar[bool] = False
    """Whether l2 may be "auto"."""

    scheme: str
    algorithm: Algorithm = STEPS
    l2: Any = 0.0
    """A number, or "auto" where `automatic_penalty` says so."""
    learning_rate: str | float | LearningRate = "auto"
    optimiser: Any = "sgd"
    batch_size: int | None = None
    fixed_batches: bool = False
    rounds: int = 30
    target: float | None = None
    patience: int | None = None
    evaluate_every: int | None = None
    score_precision: int = PRECISION
    allow_determined: bool = False
    allow_unstable: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("scheme", self.scheme, SCHEMES)
        check_integer("seed", self.seed, least=0)
        if self.l2 != "auto" or not self.automatic_penalty:
            check_number("l2", self.l2, least=0.0)
        check_integer("score_precision", self.score_precision, least=0, most=MOST_PRECISION)
        check_flag("allow_determined", self.allow_determined)
        check_flag("allow_unstable", self.allow_unstable)
        check_flag("fixed_batches", self.fixed_batches)
        if not isinstance(self.algorithm, FedSGD | FedBCD):
            raise SettingError(f"algorithm: {self.algorithm!r} given, FedSGD(...) or FedBCD(...) is allowed")
        if self.batch_size is not None:
            check_integer("batch_size", self.batch_size, least=1)
        get_optimiser(self.optimiser)
        as_learning_rate(self.learning_rate)
        self.stopping()

    @property
    def blind(self) -> bool:
        """Nothing is revealed."""
        return False

    @property
    def loss_function(self) -> Loss:
        """What labels and scores are about."""
        return get_loss("logistic")

    def stopping(self) -> Stopping:
        return Stopping(self.rounds, self.target, self.patience)

    def evaluations(self) -> int:
        """evaluate_every; where it is not given, 1 if something has to be watched."""
        if self.evaluate_every is not None:
            return self.evaluate_every
        return int(self.target is not None or self.patience is not None)

    def batches(self, rows: int) -> Batches:
        if self.batch_size is not None and self.batch_size > rows:
            raise SettingError(f"batch_size: {self.batch_size} given, at most the {rows} rows are allowed")
        return Batches(rows, self.batch_size, self.seed, self.fixed_batches)


@dataclass(frozen=True, kw_only=True)
class LinearRecipe(Recipe):
    """The generalised linear objective (equation 2)."""

    objective: ClassVar[str] = "linear"
    automatic_penalty: ClassVar[bool] = True

    algorithm: Algorithm = LINEAR_STEPS
    l2: Any = "auto"
    rounds: int = 24
    loss: str = "logistic"
    reveal: str = "nothing"
    release: bool | str = False
    """True, False, or "trusted": all parties trust each other, so that a release has no limit."""
    local_model: str | Mapping[str, str | LocalModel] = "linear"
    hidden: Sequence[int] = (16,)
    activation: str = "tanh"
    fit_intercept: bool = True
    exchange: str = "star"
    loss_form: str = "auto"
    margin_bound: float = 64.0
    dp_noise: float = 0.0
    key_bits: int = 3072
    refit: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        get_loss(self.loss)
        check_choice("reveal", self.reveal, REVEALS)
        check_choice("loss_form", self.loss_form, ("auto", "exact", "taylor"))
        check_choice("exchange", self.exchange, ("star", "pairwise"))
        check_flag("fit_intercept", self.fit_intercept)
        if self.release != "trusted":
            check_flag("release", self.release)
        check_flag("refit", self.refit)
        check_number("margin_bound", self.margin_bound, above=0.0)
        check_number("dp_noise", self.dp_noise, least=0.0)
        if self.loss_form == "exact" and protects(self.scheme):
            allowed = schemes_that(lambda entry: not entry.protects)
            raise SettingError(f"loss_form: 'exact' takes scheme {allowed}, {self.scheme!r} given")
        if self.blind:
            self._check_blind()

    def _check_blind(self) -> None:
        """What blind training cannot do is refused with the word that says so openly."""
        remedy = "; reveal='own-gradient' takes it, and shows each party its own gradients"
        if SCHEMES[self.scheme].blind is None:
            allowed = schemes_that(lambda entry: entry.blind)
            raise SettingError(f"reveal: 'nothing' takes scheme {allowed}, {self.scheme!r} given{remedy}")
        words = [self.local_model] if isinstance(self.local_model, str) else list(self.local_model.values())
        if any(word != "linear" and not isinstance(word, LinearModel) for word in words):
            raise SettingError(f"reveal: 'nothing' takes linear models, {self.local_model!r} given{remedy}")
        if type(get_optimiser(self.optimiser)).__name__ != "SGD":
            raise SettingError(f"reveal: 'nothing' takes optimiser 'sgd', {self.optimiser!r} given{remedy}")
        if self.exchange != "star":
            raise SettingError(f"reveal: 'nothing' takes exchange 'star', {self.exchange!r} given{remedy}")
        if self.batch_size is not None:
            raise SettingError(
                f"batch_size: {self.batch_size} given; rounds of reveal='nothing' read no rows, and batches"
                f" save nothing{remedy}"
            )

    @property
    def weighs_rare_classes(self) -> bool:
        """Whether, by default, a rare class of two weighs more (`class_weight="auto"`)."""
        taylor = self.reveal == "nothing" and not self.exact
        return taylor and self.loss == "logistic" and not self.dp_noise

    @property
    def blind(self) -> bool:
        return self.reveal == "nothing" and protects(self.scheme)

    @property
    def exact(self) -> bool:
        return not protects(self.scheme) and self.loss_form != "taylor"

    @property
    def loss_function(self) -> Loss:
        return get_loss(self.loss)

    def model(self, name: str, columns: int, *, last: bool, index: int) -> LocalModel:
        """A party's local model before training. Only the label party has an intercept.

        A model of the user's own is where training starts; the user's object stays as it is.
        """
        words = self.local_model
        chosen = words if isinstance(words, str) else words.get(name, "linear")
        if not isinstance(chosen, str):
            return deepcopy(chosen)
        check_choice("local_model", chosen, ("linear", "network"))
        if chosen == "linear":
            return LinearModel(columns, bias=bool(last and self.fit_intercept))
        return NetworkModel(columns, self.hidden, self.activation, seed=self.seed * 1000 + index)

    def member(self, name: str, model: LocalModel) -> Member:
        """A party as the others know it."""
        return Member(name, model.size, model.is_linear)

    def refit_rounds(self, members: tuple[Member, ...]) -> int:
        """The last rounds of a run, which learn from the held-out rows too, once these have been measured.

        None where gradients are opened (every round shows more of them), where evaluations look at the rows
        again, with batches, and where steps are given or models are not linear.
        """
        automatic = isinstance(as_learning_rate(self.learning_rate), Automatic) and self._by_gradient
        linear = all(member.is_linear for member in members)
        watched = self.evaluations() > 0
        if (
            not (self.refit and self.reveal == "nothing" and automatic and linear)
            or watched
            or self.batch_size
        ):
            return 0
        return self.rounds // REFIT_SHARE

    def agreement(self, members: tuple[Member, ...], rows: int, outputs: int = 1, held: int = 0) -> Agreement:
        """`members` in the order of turns, the label party last; `outputs`: columns of the labels; `held`:
        rows that are held out of `rows` in common.

        Where the last rounds learn from them too (`batches.holdout_rows`),
        programs take all rows, else the others.
        """
        names = {member.name for member in members}
        if not isinstance(self.local_model, str) and not set(self.local_model) <= names:
            unknown = ", ".join(sorted(set(self.local_model) - names))
            raise SettingError(f"local_model: {unknown} given, the parties are {', '.join(sorted(names))}")
        again = self.refit_rounds(members) if held else 0
        if again:
            batches = Batches(rows, None, self.seed, False, held, self.rounds - again)
        else:
            batches = self.batches(rows - held)
        return Agreement(
            objective=self.objective,
            scheme=self.scheme,
            members=members,
            algorithm=self.algorithm,
            learning_rate=self._rate(members, batches),
            batches=batches,
            stopping=self.stopping(),
            width=outputs,
            holdout=held,
            exchange=self.exchange,  # type: ignore[arg-type]  # checked above
            key_holder=None if len(members) == 2 else HELPER if self.blind else KEY_HOLDER,
            evaluate_every=self.evaluations(),
            score_precision=self.score_precision,
            exact=self.exact,
            allow_determined=self.allow_determined,
            value_bits=0 if self.blind or self.exact else self._value_bits(),
            dp_noise=self.dp_noise,
            label_change=2.0 * abs(self.loss_function.label_weight) if self.loss_function.binary else 0.0,
            reveal="nothing" if self.blind else "own-gradient",
            release=bool(self.release) and self.blind,
            trusted=self.release == "trusted" and self.blind,
            details=(
                ("loss", self.loss),
                ("l2", self.penalty(rows)),
                ("margin_bound", self.margin_bound),
            ),
        )

    def penalty(self, rows: int) -> float:
        """l2; "auto" weighs the penalty like one row, as scikit-learn's C = 1 does."""
        return max(LEAST_PENALTY, 1.0 / rows) if self.l2 == "auto" else float(self.l2)

    def _value_bits(self) -> int:
        """Of a contribution or a score with its noise, whichever is larger."""
        loss = self.loss_function
        labels = 1.0 if loss.binary else self.margin_bound
        residual = loss.margin_weight * self.margin_bound + abs(loss.label_weight) * labels
        return encoded_bits(max(self.margin_bound + 1.0, residual))

    @property
    def _by_gradient(self) -> bool:
        """Steps along the gradient itself: what the theory of steps is about."""
        return isinstance(get_optimiser(self.optimiser), SGD)

    def _rate(self, members: tuple[Member, ...], batches: Batches) -> LearningRate:
        """As given; "auto" is each party's own step where all models are linear."""
        given = as_learning_rate(self.learning_rate)
        if not isinstance(given, Automatic):
            return given
        if not self._by_gradient:
            return Constant(ADAM_RATE)
        if not all(member.is_linear for member in members):
            return Constant(NETWORK_RATE)
        share = batches.effective_size / batches.rows
        plain_rounds = self.exact or self.dp_noise > 0.0 or self.algorithm.order != "parallel"
        return Automatic(share, share == 1.0 and not plain_rounds, batches.holdout_until or None)

    def steps(self, agreement: Agreement, columns: Array) -> OwnSteps:
        """How a party with a linear model moves; `columns` with the intercept's."""
        return OwnSteps(
            agreement, self.loss_function, columns, l2=agreement.l2, allow_unstable=self.allow_unstable
        )

    def cross_scheme(self) -> CrossScheme:
        """The encrypted product of a blind run."""
        return cross_scheme(self.scheme, key_bits=self.key_bits)

    def augmented(self, features: Array, *, last: bool) -> Array:
        """The columns with the label party's intercept, a column of ones."""
        if last and self.fit_intercept:
            made = new_table(len(features), features.shape[1] + 1)
            for block in row_blocks(len(features)):
                made[block, :-1], made[block, -1] = features[block], 1.0
            return made
        return features

    def party(
        self,
        agreement: Agreement,
        name: str,
        model: LocalModel,
        features: Array,
        targets: Array | None,
        context: PartyContext,
    ) -> DataParty | BlindParty:
        """One party's program."""
        last = name == agreement.label_party
        if last and targets is None:
            raise DataError(f"{name}: the label party has no labels")
        columns = self.augmented(features, last=last)
        steps: OwnSteps | None = None
        if model.is_linear and self._by_gradient:
            steps = self.steps(agreement, columns)
        if self.blind and not columns.any():
            raise DataError(f"{name}: every column is constant, which tells nothing; leave the party out")
        context = context.guarding(name, features)
        if self.blind and steps is not None:
            evaluation = context.evaluation
            if evaluation is not None and evaluation.features is not None:
                evaluation = EvaluationRows(self.augmented(evaluation.features, last=last), evaluation.metric)
            return BlindParty(
                agreement,
                self.loss_function,
                columns,
                targets,
                replace(context, evaluation=evaluation),
                self.cross_scheme(),
                steps=steps,
            )
        side = LinearSide(
            model,
            features,
            targets,
            self.loss_function,
            l2=agreement.l2,
            exact=self.exact,
            margin_bound=self.margin_bound,
            overlap=1 if steps is None else steps.overlap,
        )
        return DataParty(
            agreement,
            side,
            get_optimiser(self.optimiser),
            context,
            steps=steps if steps is not None and steps.automatic else None,
        )

    def key_holder(self, agreement: Agreement, context: PartyContext) -> KeyHolderParty | BlindHelper:
        """The program of the party without data."""
        if self.blind:
            return BlindHelper(agreement, self.loss_function, context, self.cross_scheme())
        return KeyHolderParty(agreement, context)
