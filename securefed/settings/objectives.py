"""The settings of each objective: what all parties of a run share.

An objective from outside the package declares a class of its own and registers it (docs/extending.md).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Self

from securefed.crypto import cross_scheme
from securefed.crypto.blind.interface import CrossScheme
from securefed.declare import (
    Declared,
    accepted,
    again,
    anything,
    choice,
    declared,
    flag,
    instance,
    integer,
    number,
    optional,
    setting,
    word_or,
)
from securefed.errors import SettingError
from securefed.labels.base_model import LabelOptions, check_class_weight, check_family
from securefed.labels.calibration import check_threshold
from securefed.protocols.losses import LOSSES, Loss, get_loss
from securefed.protocols.schedules import (
    Algorithm,
    Batches,
    FedBCD,
    FedSGD,
    LearningRate,
    Stopping,
    as_learning_rate,
    automatic_rounds,
)
from securefed.protocols.steps import SGD, Optimiser, get_optimiser
from securefed.settings.protection import DEFAULTS, Blind, Plain, Protection, check_protection
from securefed.transport.message import get_network

LEAST_PENALTY = 1e-4
"""The least l2 of "auto". With more rows a penalty changes no prediction, but parameters need a bound."""
FEW_COLUMNS = 20
"""Each further column weighs half a row more in l2="auto" (docs/choosing.md)."""
MANY_COLUMNS = 50
"""Each further column of B weighs half a shared person more in blind transfer learning (docs/transfer.md)."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Monitoring(Declared):
    """What the label party measures while a run goes on, and when it stops early."""

    evaluate_every: int | None = setting(
        None,
        optional(integer(least=0)),
        "Every so many rounds the label party sees scores of the held-out rows. 0: never. Left out: every "
        "round if there is a target or patience, else never.",
        example=0,
    )
    target: float | None = setting(
        None, optional(number()), "Stop when the metric is this good.", example=0.9
    )
    patience: int | None = setting(
        None, optional(integer(least=1)), "Stop after so many evaluations without progress.", example=3
    )

    @property
    def every(self) -> int:
        """Rounds from one evaluation to the next; 0: none."""
        if self.evaluate_every is not None:
            return self.evaluate_every
        return int(self.target is not None or self.patience is not None)

    def check(self) -> None:
        if not self.every and (self.target is not None or self.patience is not None):
            raise SettingError("evaluate_every: 0 given; a target or patience needs evaluations (1 or more)")


@dataclass(frozen=True, kw_only=True, repr=False)
class Labels(Declared):
    """What the label party wants of its rows and answers. Nobody else learns of it."""

    class_weight: Any = setting(
        None,
        accepted(check_class_weight),
        'How much classes count: "balanced", or a weight for each class. Left out: all rows alike.',
        example="balanced",
    )
    family: Any = setting(
        None,
        accepted(check_family),
        'Counts and amounts by their logarithm, with loss "linear": "poisson", "gamma", or a power of the '
        "variance from 1 to 2 (Tweedie). The offset is the logarithm of the exposure.",
        example="poisson",
    )
    threshold: Any = setting(
        "half",
        lambda name, value: check_threshold(value),
        'Where `predict` draws the line: "half", a probability, or the best on held-out rows by "accuracy", '
        '"f1" or "balanced".',
    )

    def options(self, *, weighted: bool, offset: bool) -> LabelOptions:
        family = check_family(self.family)
        return LabelOptions(self.class_weight, family, weighted, offset, start=True)


@dataclass(frozen=True, kw_only=True, repr=False)
class Simulation(Declared):
    """How all parties run in this process."""

    network: Any = setting(
        "lan", accepted(get_network), "Network profile of the clock, see securefed.transport.get_network."
    )
    engine: Any = setting(
        None, anything, 'Parallel work: "processes" (one a core), "serial", a number, or "ray".'
    )
    progress: bool | None = setting(None, optional(flag), "Show a progress bar; None shows it at a terminal.")


@dataclass(frozen=True, kw_only=True, repr=False)
class ObjectiveSettings(Declared):
    """The settings that every objective has, and what follows from them."""

    objective: ClassVar[str]
    """Its name in securefed.protocols.agreement."""
    default_optimiser: ClassVar[str] = "sgd"
    aims: ClassVar[bool] = False
    """The label party may weigh rows and classes, and fit around a model of its own."""
    rounds_floor: ClassVar[float] = 0.15
    """The part of the rounds at Q = 1 that local steps do not save (securefed.plan.planner)."""
    blind_transform: ClassVar[str] = "none"
    """How a blind run prepares the columns of a party that says nothing of it."""
    free_steps: ClassVar[bool] = False
    """A blind round costs the same whatever the number of local steps is."""

    algorithm: Algorithm = setting(
        FedBCD(local_steps=5),
        instance(FedSGD, FedBCD),
        "FedSGD() or FedBCD(local_steps, order, proximal): who makes how many local steps.",
        in_file=False,
    )
    protection: Protection = setting(
        Blind(), check_protection, "Blind(...), OwnGradient(...) or Plain(...): what training reveals."
    )
    learning_rate: str | float | LearningRate = setting(
        "auto",
        accepted(as_learning_rate),
        '"auto": every party\'s own step, from its own columns, with which the Taylor loss of linear models '
        "cannot rise. Or a number, or in Python a schedule such as InverseSqrt(0.3).",
    )
    rounds: Any = setting(30, integer(least=1), "Rounds: exchanges of messages.")
    l2: Any = setting(0.0, number(least=0.0), "Weight of the penalty l2/2 |theta|^2.")
    holdout: float = setting(
        0.0,
        number(least=0.0, below=0.8),
        "Share of the common rows that is held out. At the end the label party sees their scores once, and "
        "says how good the model is. 0: quality is not measured.",
    )
    monitoring: Monitoring = setting(
        Monitoring(),
        instance(Monitoring),
        "Monitoring(evaluate_every, target, patience): evaluations, early stop.",
    )
    seed: int = setting(0, integer(least=0), "Seed of batches and held-out rows. It is public.")
    standardise: bool = setting(
        True,
        flag,
        "Whether every party gives its columns mean 0 and variance 1 by its own rows, cut at 16 from 0.",
        in_file=False,
    )
    simulation: Simulation = setting(
        Simulation(),
        instance(Simulation),
        "Simulation(network, engine, progress): the run in this process.",
        in_file=False,
    )

    def check(self) -> None:
        for name, each in declared(type(self.protection)).items():
            value = getattr(self.protection, name)
            if not each.belongs_to(self.objective) and value != each.default:
                raise SettingError(
                    f"{name}: {value!r} given, the {self.objective} objective has no such setting"
                )

    def option(self, name: str) -> Any:
        """A setting of the protection; its default where the protection does not have it."""
        return getattr(self.protection, name, DEFAULTS[name])

    @property
    def scheme(self) -> str:
        return self.protection.scheme

    @property
    def blind(self) -> bool:
        return isinstance(self.protection, Blind)

    @property
    def trains_like(self) -> str:
        """The kind of protection whose arithmetic is made, under encryption or in the clear."""
        return getattr(self.protection, "like", None) or self.protection.kind

    @property
    def loss_function(self) -> Loss:
        return get_loss("logistic")

    @property
    def optimiser(self) -> Optimiser:
        chosen = self.option("optimiser")
        return get_optimiser(self.default_optimiser if chosen is None else chosen)

    @property
    def many_classes(self) -> bool:
        """Whether one run can have more than two classes."""
        return self.blind and self.loss_function.binary and not self.option("release")

    @property
    def taylor(self) -> bool:
        """Whether scores are those of a Taylor form of the loss, which probabilities have to be fitted to."""
        return False

    @property
    def metric_name(self) -> str:
        return "AUC" if self.loss_function.binary else "R2"

    def cross_scheme(self) -> CrossScheme:
        return cross_scheme(self.scheme, key_bits=self.option("key_bits"))

    def stopping(self) -> Stopping:
        return Stopping(self.rounds, self.monitoring.target, self.monitoring.patience)

    def batches(self, rows: int) -> Batches:
        size = self.option("batch_size")
        if size is not None and size > rows:
            raise SettingError(f"batch_size: {size} given, at most the {rows} rows are allowed")
        return Batches(rows, size, self.seed, self.option("fixed_batches"))

    def for_parties(self, count: int) -> Self:
        """The settings of a run of so many parties: rounds="auto" becomes a number."""
        return self

    def for_prediction(self) -> Self:
        unused = {"batch_size", "local_model", "release"} & declared(type(self.protection)).keys()
        protection = replace(self.protection, **{name: DEFAULTS[name] for name in unused})
        return replace(self, protection=protection, monitoring=Monitoring())


@dataclass(frozen=True, repr=False)
class LinearSettings(ObjectiveSettings):
    """The generalised linear objective (equation 2)."""

    objective = "linear"
    aims = True
    free_steps = True

    loss: str = setting("logistic", choice(LOSSES), 'The loss: "logistic", "linear" or "squared_hinge".')
    _: KW_ONLY
    algorithm: Algorithm = again(ObjectiveSettings, "algorithm", default=FedBCD(local_steps=20))
    l2: Any = setting(
        "auto",
        word_or("auto", number(least=0.0)),
        'Weight of the penalty l2/2 |theta|^2. "auto" is 1/rows (scikit-learn\'s C = 1), with more than 22 '
        "columns of all parties (columns - 20) / (2 rows), and at least 1e-4.",
    )
    rounds: Any = setting(
        "auto",
        word_or("auto", integer(least=1)),
        'Rounds: exchanges of messages. "auto" is 24; with more than two parties a blind run takes more (39 '
        "for five). With refit, few held-out rows and classes a blind run trains twice: 24 become 40 "
        "(docs/choosing.md).",
    )
    holdout: float = again(
        ObjectiveSettings,
        "holdout",
        default=0.2,
        doc="Share of the common rows that is held out. The label party sees their scores once, and says how "
        "good the model is. With refit and fewer than 800 such rows, all rows are held out in turns; with "
        "classes each is scored twice. 0: quality is not measured.",
    )
    fit_intercept: bool = setting(True, flag, "Whether the label party's model has an intercept.")
    refit: bool = setting(
        True,
        flag,
        "Whether the last third of the rounds learns from the held-out rows too, once they are measured: "
        "with automatic steps, without evaluations, and where no gradients are opened.",
    )
    allow_unstable: bool = setting(
        False, flag, "Accept a learning rate that a party's own columns show to be unstable."
    )
    labels: Labels = setting(
        Labels(),
        instance(Labels),
        "Labels(class_weight, family, threshold): what the label party wants of its rows and answers.",
        in_file=False,
    )

    @property
    def exact(self) -> bool:
        """Whether the exact loss is trained, which only a run without protection can."""
        return self.trains_like == Plain.kind

    @property
    def taylor(self) -> bool:
        return not self.exact

    @property
    def loss_function(self) -> Loss:
        return get_loss(self.loss)

    @property
    def by_gradient(self) -> bool:
        """Whether steps go along the gradient itself: what the theory of steps is about."""
        return isinstance(self.optimiser, SGD)

    def for_parties(self, count: int) -> Self:
        if self.rounds != "auto":
            return self
        accelerated = self.trains_like == Blind.kind and self.learning_rate == "auto"
        return replace(self, rounds=automatic_rounds(max(2, count) if accelerated else 2))

    def penalty(self, rows: int, columns: int = 0) -> float:
        """l2; "auto" weighs the penalty like one row, as scikit-learn's C = 1 does, and for many columns like
        more. `columns`: of all parties.
        """
        weight = max(1.0, (columns - FEW_COLUMNS) / 2.0)
        return max(LEAST_PENALTY, weight / rows) if self.l2 == "auto" else float(self.l2)


@dataclass(frozen=True, repr=False)
class TransferSettings(ObjectiveSettings):
    """Federated transfer learning between two parties."""

    objective = "transfer"
    default_optimiser = "adam"
    blind_transform = "auto"
    rounds_floor = 0.04
    usual: ClassVar = {
        "rounds": (24, 30),
        "l2": (None, 1e-5),
        "hidden": (1, 32),
        "gamma": (None, 0.05 / 32),
    }
    """Defaults of a blind run, and of others."""

    hidden: Any = setting(
        None,
        optional(integer(least=1, most=4096)),
        "Width of the representation: 1 in a blind run, where more would gain nothing; else 32 if left out.",
        example=1,
    )
    _: KW_ONLY
    rounds: Any = setting(
        None,
        optional(integer(least=1)),
        "Rounds: exchanges of messages. Left out: 24 in a blind run, else 30.",
        example=24,
    )
    l2: Any = setting(
        None,
        optional(number(least=0.0)),
        "Weight of the squared parameters. Left out: in a blind run 1.25 / shared people, with three classes "
        "or more 0.25 / shared people, more with more than 60 columns of B; else 1e-5.",
        example=0.005,
    )
    gamma: Any = setting(
        None,
        optional(number(least=0.0)),
        "Weight of the squared distance between the two representations of a shared person. Left out: 0.125 "
        "in a blind run, 0.03 with three classes or more, less beyond 300 shared people; else 0.05 / 32.",
        example=0.125,
    )

    def check(self) -> None:
        super().check()
        for name, (blind, shown) in self.usual.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, blind if self.blind else shown)
        if self.blind and self.learning_rate != "auto":
            raise SettingError(f"learning_rate: {self.learning_rate!r} given, a blind run takes 'auto' here")
        if self.blind and self.hidden != 1:
            raise SettingError(f"hidden: {self.hidden} given, a blind run takes 1; more would gain nothing")

    def blind_weights(self, rows: int, outputs: int, columns: int = 0) -> tuple[float, float]:
        """Return gamma and l2 of a blind run.

        Left out, l2 weighs like five shared people, or like one where there are several classes, and like
        more where B has more than 60 `columns`. Beyond 300 shared people gamma falls: their labels say more
        than A's fit.
        """
        usual, people = (0.03, 1.0) if outputs > 1 else (0.125, 5.0)
        gamma = usual * min(1.0, 300 / rows) if self.gamma is None else self.gamma
        people *= max(1.0, (columns - MANY_COLUMNS) / 10.0)
        l2 = people * self.loss_function.margin_weight / rows if self.l2 is None else self.l2
        return float(gamma), float(l2)

    @property
    def activation(self) -> str:
        return self.option("activation") or "sigmoid"


OBJECTIVE_SETTINGS: dict[str, type[ObjectiveSettings]] = {
    "linear": LinearSettings,
    "transfer": TransferSettings,
}
"""Classes by objective, the default first."""
