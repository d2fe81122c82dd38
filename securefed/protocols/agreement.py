"""The facts about each objective, and the public settings that all parties agree on before the first round.

Every public fact follows from the agreement: batches, turns, due messages, openings, the final ledger.
Settings check values one by one, the agreement that they fit each other. No other code compares an
objective's name: it asks the entry here (docs/extending.md).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from math import ceil
from typing import Any, Literal

from securefed.crypto import SCHEMES, protects
from securefed.declare import check_choice
from securefed.errors import SettingError
from securefed.protocols.schedules import Algorithm, Batches, LearningRate, Stopping
from securefed.protocols.scoring.blur import PRECISION
from securefed.protocols.scoring.score_ledger import RANGE_BITS
from securefed.transport.network.codec import MOST_PARTIES


@dataclass(frozen=True, kw_only=True)
class Objective:
    """Facts about one objective. `columns` is the agreement's width."""

    opened_by_label_party: str
    """The other parties' secrets that the label party opens sums of."""
    opened_by_others: str
    unknowns: Callable[[int, int], int]
    """(rows of a batch, columns): secrets that stay fixed between two exchanges."""
    more_rows: Callable[[int], int] = lambda columns: 0
    """(columns): rows of a party's encrypted matrix besides those of the batch."""
    wide: bool = False
    """The exchanged matrix has `columns` columns. Otherwise it has one per model output."""
    parties: int | None = None
    """The exact number of parties. None: two or more."""
    same_people: bool = True
    """Every party has all rows, and every row has a label. Otherwise parties share only some people, some of
    whom have labels, and prediction needs no columns of the label party."""
    given_away: str = ""
    """One line on what own gradients show by design and a user may not expect."""

    def block(self, label_party: bool) -> str:
        """Return the name of the secrets that a party opens sums of."""
        return self.opened_by_label_party if label_party else self.opened_by_others

    def check_parties(self, name: str, count: int) -> None:
        if self.parties is not None and count != self.parties:
            raise SettingError(f"parties: {count} given, the {name} objective takes exactly {self.parties}")
        if count > MOST_PARTIES:
            raise SettingError(f"parties: {count} given, at most {MOST_PARTIES} are allowed")


OBJECTIVES: dict[str, Objective] = {
    "linear": Objective(
        opened_by_label_party="residuals of a batch",
        opened_by_others="residuals of a batch",
        unknowns=lambda rows, columns: rows,
    ),
    "transfer": Objective(
        opened_by_label_party="u and its outer products",
        opened_by_others="C and M of the label party",
        unknowns=lambda rows, columns: rows * columns + columns * (columns + 1) // 2,
        more_rows=lambda columns: columns,
        wide=True,
        parties=2,
        same_people=False,
        given_away="protection=OwnGradient(): each party sees the gradients of its own hidden layer, and "
        "from them the one without labels finds the labels of the people they share; protection=Blind() "
        "shows neither anything",
    ),
}
"""The default is first."""


def get_objective(name: str) -> Objective:
    return OBJECTIVES[check_choice("objective", name, OBJECTIVES)]


def register(name: str, objective: Objective) -> None:
    """Add an objective (docs/extending.md)."""
    if name in OBJECTIVES:
        raise SettingError(f"objective: {name!r} given, and there is one of that name")
    OBJECTIVES[name] = objective


class TrustWarning(UserWarning):
    """A mode in which the peers must be trusted not to cheat."""


def trust_lines(scheme: str, reveal: str, objective: str) -> list[str]:
    """Return every line that an operator must read before a run in this mode.

    With own gradients a party cannot see whether a request is an honest sum of products. Under CKKS one with
    a crafted c1 shows twenty coefficients of the key in each opened number. Paillier's requests show values.
    """
    if reveal != "own-gradient" or not protects(scheme):
        return []
    return [line for line in (SCHEMES[scheme].trust, get_objective(objective).given_away) if line]


def halved_precision(precision: int) -> int:
    """Return the precision at which two scores show as many bits as one does; below 0 there is none."""
    return (precision - RANGE_BITS) // 2


FRACTION_BITS = 32
"""Fraction bits of contributions and scores."""


def encoded_bits(bound: float) -> int:
    """Return the bits of the integers that encode values up to `bound`."""
    return FRACTION_BITS + ceil(bound).bit_length()


@dataclass(frozen=True)
class Member:
    """A party as the others know it."""

    name: str
    parameters: int
    """Parameters of its model. It opens as many sums at a local step."""
    is_linear: bool
    """Whether its model is linear: then one opening serves all local steps of a round."""
    columns: int = 0
    """The columns that count in an automatic penalty, of a linear model."""


def check_key_holder(name: str | None, parties: int) -> None:
    """Raise SettingError where so many parties with data have one and should not, or the other way."""
    if (name is None) != (parties == 2):
        raise SettingError(
            f"key_holder: {name!r} given for {parties} parties; two need none, and more need a party "
            "without data (a helper, or the holder of the key where own gradients are revealed)"
        )


@dataclass(frozen=True)
class Agreement:
    """The public settings of a run. `members` are in the order of their turns, the label party last."""

    objective: str
    scheme: str
    members: tuple[Member, ...]
    algorithm: Algorithm
    learning_rate: LearningRate
    batches: Batches
    stopping: Stopping
    width: int = 1
    """Columns of the exchanged matrix: the model's outputs, or h where transfer learning opens gradients."""
    exchange: Literal["star", "pairwise"] = "star"
    key_holder: str | None = None
    """The party without data of more than two: it holds the key, or second shares in a blind run."""
    evaluate_every: int = 0
    holdout: int = 0
    """Held-out rows. The label party scores them at least once, at the end."""
    score_precision: int = PRECISION
    """Bits after the point that an opened score shows. The scored parties blur the bits below."""
    exact: bool = False
    allow_determined: bool = False
    value_bits: int = 0
    """Bits of the largest encoded contribution; 0 for no bound. It limits what a key-holder opens."""
    reveal: Literal["own-gradient", "nothing"] = "own-gradient"
    """What training shows a party: its own aggregated gradients, or nothing (blind training)."""
    release: bool = False
    """Blind training: open each party's own parameters to that party at the end."""
    trusted: bool = False
    """All parties trust each other: a release may show more bits than its limit."""
    details: tuple[tuple[str, Any], ...] = ()
    """Further settings that must be equal at all parties (loss, gamma, l2, ...), by name."""

    def __post_init__(self) -> None:
        names = self.names
        if len(names) < 2:
            raise SettingError(f"parties: {len(names)} given, at least 2 are needed")
        if len({*names, self.key_holder}) != len(names) + 1:
            raise SettingError(
                f"parties: names have to differ, {', '.join(names)} and {self.key_holder} given"
            )
        get_objective(self.objective).check_parties(self.objective, len(names))
        check_key_holder(self.key_holder, len(names))
        check_choice("scheme", self.scheme, SCHEMES)
        if self.reveal == "nothing" and not all(m.is_linear for m in self.members):
            raise SettingError("reveal: 'nothing' takes linear local models; 'own-gradient' takes all")
        if self.reveal == "nothing" and SCHEMES[self.scheme].blind is None:
            allowed = " or ".join(repr(name) for name, entry in SCHEMES.items() if entry.blind)
            raise SettingError(f"reveal: 'nothing' takes scheme {allowed}, {self.scheme!r} given")

    @property
    def emulates_blind(self) -> bool:
        """Whether the run trains in the clear what a blind one trains."""
        return dict(self.details).get("like") == "blind"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(m.name for m in self.members)

    def member(self, name: str) -> Member:
        return next(m for m in self.members if m.name == name)

    @property
    def label_party(self) -> str:
        return self.members[-1].name

    @property
    def everybody(self) -> tuple[str, ...]:
        return self.names if self.key_holder is None else (*self.names, self.key_holder)

    @property
    def others(self) -> list[str]:
        return [name for name in self.everybody if name != self.label_party]

    @property
    def mutual(self) -> bool:
        """Whether two parties hold keys for each other."""
        return self.key_holder is None

    @property
    def blurs(self) -> bool:
        """Whether scores are blurred. A plain run protects nothing, and its results say so."""
        return protects(self.scheme)

    @property
    def turns(self) -> list[tuple[str, ...]]:
        """The groups of parties that make local steps together: all, or one by one (FedBCD-s)."""
        return [self.names] if self.algorithm.order == "parallel" else [(name,) for name in self.names]

    @property
    def outputs(self) -> int:
        """Scores per row."""
        wide = get_objective(self.objective).wide and self.reveal != "nothing"
        return 1 if wide else self.width

    @property
    def watched(self) -> bool:
        """Whether the label party may stop the run early. It then sends a verdict after each round."""
        return self.stopping.target is not None or self.stopping.patience is not None

    def opens_at(self, name: str, step: int) -> bool:
        if self.exact:
            return False
        return step == 0 or not self.member(name).is_linear

    def evaluates_after(self, round_: int) -> bool:
        due, batches = round_ + 1 == self.stopping.rounds, self.batches
        if batches.holdout_rows:  # later rounds may learn from the fold
            due = batches.ends_models(round_)
        last = self.holdout > 0 and due
        return last or (self.evaluate_every > 0 and (round_ + 1) % self.evaluate_every == 0)

    def scored_after(self, round_: int) -> dict[int, slice]:
        """Return which of the rows to measure with are scored after the round, by fold."""
        sizes, folds = self.batches.fold_sizes, self.batches.left_out(round_)
        if len(sizes) == 1 or not folds:
            return {0: slice(0, self.holdout or self.batches.rows)}
        return {fold: slice(sum(sizes[:fold]), sum(sizes[: fold + 1])) for fold in folds}

    @property
    def training_precision(self) -> int:
        """Bits after the point of a score in training. Two stages show no more than one `score_precision`."""
        return self.score_precision if self.batches.stages == 1 else halved_precision(self.score_precision)

    @property
    def common_rows(self) -> int:
        """Rows that the parties have in common, held-out rows included."""
        return self.batches.rows + (0 if self.batches.holdout_rows else self.holdout)

    @property
    def l2(self) -> float:
        """Weight of the penalty l2/2 |theta|^2."""
        return float(dict(self.details).get("l2", 0.0))

    @property
    def scores_rows(self) -> bool:
        """Whether any rows are scored during training or at its end."""
        return self.evaluate_every > 0 or self.holdout > 0

    def evaluations_from(self, round_: int) -> int:
        """Count how often a row is scored from that round on, without early stopping."""
        evaluations = sum(map(self.evaluates_after, range(round_, self.stopping.rounds)))
        return evaluations if self.batches.folds == 1 else min(1, evaluations)

    @property
    def encrypted_shape(self) -> tuple[int, ...]:
        """The shape of a party's encrypted matrix during a round."""
        objective = get_objective(self.objective)
        rows = self.batches.effective_size + objective.more_rows(self.width)
        return (rows, self.width) if objective.wide or self.width > 1 else (rows,)

    def unknowns(self) -> int:
        return get_objective(self.objective).unknowns(self.batches.effective_size, self.width)

    def to_dict(self) -> dict[str, Any]:
        """Return all settings by name, for reports and for comparison with a peer's."""
        same = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in ("members", "algorithm", "details")
        }
        algorithm = self.algorithm
        return {
            **same,
            "parties": [[m.name, m.parameters, m.is_linear] for m in self.members],
            "algorithm": algorithm.name,
            "local_steps": algorithm.local_steps,
            "order": algorithm.order,
            "proximal": algorithm.proximal,
            "learning_rate": repr(self.learning_rate),
            "batches": repr(self.batches),
            "stopping": repr(self.stopping),
            **dict(self.details),
        }

    def digest(self) -> str:
        text = json.dumps(self.to_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()
