"""The generalised linear estimator (equation 2): K parties, logistic, linear or squared-hinge loss.

model = GeneralisedLinear(algorithm=FedBCD(local_steps=20))
model.fit([Party("shop", X1), Party("bank", X2, labels=y)])
model.predict_proba([Party("shop", X1_new), Party("bank", X2_new)])
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from securefed.api.federated import Federated
from securefed.api.party import Fitted, Party, align, label_party
from securefed.api.simulated import Keys, parameters
from securefed.assembly import Assembly, LinearAssembly, Trained
from securefed.assembly.base import Model
from securefed.assembly.build import PartyData
from securefed.crypto import KeyHolder, protects
from securefed.errors import SettingError
from securefed.labels.label_model import LabelModel
from securefed.models import LinearModel
from securefed.protocols.agreement import Agreement
from securefed.protocols.blind.linear import BlindParty
from securefed.protocols.loop import PartyLoop
from securefed.protocols.scoring.blur import ScoreGuard
from securefed.settings.objectives import LinearSettings, ObjectiveSettings

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Start:
    """What a fit leaves to the next one (`warm_start`): where to begin, under which keys.

    A blind model begins with the shares that the last one ended with: nobody learns more of them than of a
    start at 0. Held-out rows have to stay unseen from fit to fit, or what is measured on them is worth
    nothing. `held`: how many rows the fit held out, by `seed`.
    """

    agreement: Agreement
    holdout: int
    seed: int
    holders: Mapping[str, KeyHolder]
    states: Mapping[str, Mapping[str, NDArray[np.generic]]]
    """Of blind parties: as in a checkpoint."""

    def check(self, agreement: Agreement, holdout: int, seed: int) -> None:
        """SettingError where another fit cannot begin here."""
        before = _facts(self.agreement)
        for word, fact in _facts(agreement).items():
            if fact != before[word]:
                raise SettingError(f"warm_start: {word} {fact} given, the fit before had {before[word]}")
        if self.agreement.release and protects(agreement.scheme):
            raise SettingError(
                "warm_start: the fit before released its parameters; the difference of two released models is"
                " a gradient, and release=True is allowed in the last fit only"
            )
        if holdout and self.agreement.batches.holdout_rows:
            raise SettingError(
                "warm_start: the fit before learnt from the rows that it held out (refit);"
                " warm_start=True from the first fit on, or holdout=0, is allowed"
            )
        rows, known = agreement.common_rows, self.agreement.common_rows
        if holdout and (rows, holdout, seed) != (known, self.holdout, self.seed):
            raise SettingError(
                f"warm_start: {holdout} of {rows} rows would be held out by seed {seed},"
                f" {self.holdout} of {known} by seed {self.seed} were, and others learnt from;"
                " the same, or holdout=0, is allowed"
            )


def _facts(agreement: Agreement) -> dict[str, object]:
    details = dict(agreement.details)
    return {
        "parties": ", ".join(agreement.names),
        "parameters": ", ".join(str(member.parameters) for member in agreement.members),
        "outputs": agreement.width,
        "scheme": agreement.scheme,
        "reveal": agreement.reveal,
        "loss": details["loss"],
    }


class GeneralisedLinear(Federated):
    """Vertical federated (logistic, linear, squared-hinge) regression of two parties or more.

    Labels are of two classes or more, numbers, or (blind) several columns of numbers. Three classes and more
    are trained each against the rest: all in one blind run, else in one run a class.
    """

    assembly: ClassVar[type[Assembly[Any]]] = LinearAssembly

    @parameters(LinearSettings)
    def __init__(self, *first: Any, **named: Any) -> None:
        super().__init__(*first, **named)

    def _settings(self, parties: int = 2) -> LinearSettings:
        settings: LinearSettings = super()._settings(parties)
        return replace(settings, refit=False) if settings.warm_start else settings

    def _earlier(self) -> Start | None:
        """Where a fit begins, if not at 0."""
        settings = self._settings()
        if not settings.warm_start:
            return None
        if protects(settings.scheme) and not settings.blind:
            raise SettingError(
                "warm_start: it takes Blind() or Plain(); openings of gradients are counted by the run, and a"
                " further run would be more of the same"
            )
        if hasattr(self, "shards_") and not hasattr(self, "_start"):
            raise SettingError(
                "warm_start: a model that was loaded has nothing to begin with; a fit with warm_start=False"
                " comes first"
            )
        return getattr(self, "_start", None)

    def _align(
        self, assembly: Assembly[Any], parties: Sequence[Party]
    ) -> tuple[list[Party], dict[str, NDArray[np.intp]]]:
        if self._earlier() is None:
            return super()._align(assembly, parties)
        # Columns are prepared as in the fit before.
        last = label_party(parties).name
        ordered = self._match(align(parties, last), self.parties_)
        return ordered, {party.name: np.arange(party.rows, dtype=np.intp) for party in ordered}

    def _guards(
        self, settings: ObjectiveSettings, names: Sequence[str], trained_on: Sequence[Party] | None = None
    ) -> dict[str, ScoreGuard]:
        """A further model of the same people is a further question about them."""
        return super()._guards(settings, names, None if self._earlier() is not None else trained_on)

    def _agreement(
        self,
        assembly: Assembly[Any],
        models: Mapping[str, Model],
        common: int,
        holdout: int,
        seen: Mapping[str, PartyData] | None,
    ) -> Agreement:
        agreement = super()._agreement(assembly, models, common, holdout, seen)
        earlier, seed = self._earlier(), assembly.settings.seed
        if earlier is not None:
            earlier.check(agreement, holdout, seed)
            if assembly.settings.blind:
                agreement = replace(agreement, details=(*agreement.details, ("warm_start", True)))
            else:
                for name, model in models.items():
                    model.parameters = self.shards_[name].parameters
        self._held = holdout, seed
        return agreement

    def _keys(
        self, settings: ObjectiveSettings, agreement: Agreement, keys: Keys | None
    ) -> dict[str, KeyHolder]:
        earlier = self._earlier()
        return super()._keys(settings, agreement, keys or (None if earlier is None else earlier.holders))

    def _begin(self, trained: Mapping[str, Trained]) -> None:
        earlier = self._earlier()
        for name, each in trained.items():
            if earlier is not None and name in earlier.states:
                each.program.start_from(earlier.states[name])

    def _collect(self, assembly: Assembly[Any], agreement: Agreement, trained: Mapping[str, Trained]) -> None:
        super()._collect(assembly, agreement, trained)
        blind = trained if assembly.settings.blind else {}
        states = {name: {**each.program.state(), **_root(each.program)} for name, each in blind.items()}
        self._start = Start(agreement, *self._held, self._holders, states)

    @property
    def coef_(self) -> dict[Any, Any]:
        """Each party's own coefficients by column, in the columns' own units, where they are known.

        They are on the scale of scores. From three classes on there are some for each class, by its name.
        """
        self._fitted()
        if hasattr(self, "models_"):
            return {name: model.coef_ for name, model in self._by_class()}
        return coefficients(self.shards_, self.transforms_, self._label_model)

    @property
    def intercept_(self) -> Any:
        """The number to which all coefficients are added; from three classes on one for each, by its name."""
        self._fitted()
        if hasattr(self, "models_"):
            return {name: model.intercept_ for name, model in self._by_class()}
        return intercept(self.shards_, self.transforms_, self._label_model)

    @property
    def log_odds_(self) -> Any:
        """Intercept and coefficients of the log odds of the second class, as a logistic regression has: the
        held-out rows say what a score is worth. From three classes on there is such a pair for each class, by
        its name, as a multinomial logistic regression has.
        """
        self._fitted()
        if not hasattr(self, "models_"):
            pair = intercept(self.shards_, self.transforms_, self._label_model, "log_odds_"), self.coef_
            slope, offset = self._label_model.log_odds
            return _mixed([pair], [slope], offset)
        pairs = [(model.intercept_, model.coef_) for model in self.models_]
        slopes, offsets = self._label_model.log_odds
        columns = zip(self.classes_.tolist(), slopes.T, offsets, strict=True)
        return {name: _mixed(pairs, slope, float(offset)) for name, slope, offset in columns}

    def _by_class(self) -> list[tuple[Any, GeneralisedLinear]]:
        return list(zip(self.classes_.tolist(), self.models_, strict=True))


def _mixed(pairs: Sequence[tuple[float, Any]], slopes: Any, offset: float) -> tuple[float, Any]:
    """The sum of scores times slopes, and the offset, as an intercept and coefficients."""
    total, weights = offset, dict[str, dict[str, float]]()
    for slope, (start, parties) in zip(slopes, pairs, strict=True):
        total += float(slope) * start
        for party, columns in parties.items():
            own = weights.setdefault(party, dict.fromkeys(columns, 0.0))
            for column, weight in columns.items():
                own[column] += float(slope) * weight
    return total, weights


def _root(party: PartyLoop) -> dict[str, Array]:
    """The basis of a blind party's parameters, for a warm start."""
    return {"root": party.part.root} if isinstance(party, BlindParty) and party.part.root is not None else {}


# Coefficients, where each party knows its own: Blind(release=True), OwnGradient() and Plain()


def coefficients(
    shards: Mapping[str, Any], fitted: Mapping[str, Fitted], labels: LabelModel, attribute: str = "coef_"
) -> dict[str, dict[str, float]]:
    """Return each party's own coefficients by column, in the columns' own units.

    `asked`: the attribute that an error names.
    """
    by_column = {}
    for name, model in known_models(shards, attribute).items():
        columns = fitted[name].columns
        weights = _parameters(name, model, shards, labels)[: model.columns] / columns.scale * labels.scale
        by_column[name] = dict(zip(columns.names, weights.tolist(), strict=True))
    return by_column


def intercept(
    shards: Mapping[str, Any], fitted: Mapping[str, Fitted], labels: LabelModel, attribute: str = "intercept_"
) -> float:
    """Return the number to which all coefficients are added."""
    total = labels.mean
    for name, weights in coefficients(shards, fitted, labels, attribute).items():
        total -= float(np.dot(list(weights.values()), fitted[name].columns.mean))
    for name, model in known_models(shards, attribute).items():
        total += labels.scale * float(_parameters(name, model, shards, labels)[model.columns :].sum())
    return total


def _parameters(name: str, model: LinearModel, shards: Mapping[str, Any], labels: LabelModel) -> Array:
    """Of the model; at the label party, the last, with those of its own fit where there is one."""
    if labels.own is None:
        return model.parameters
    parameters = labels.own.step * model.parameters
    if name == list(shards)[-1]:
        if len(parameters) == model.columns:  # without an intercept of the joint fit
            parameters = np.append(parameters, 0.0)
        parameters = parameters + labels.own.coefficients
    return parameters


def known_models(shards: Mapping[str, Any], attribute: str) -> dict[str, LinearModel]:
    """Return every party's linear model. AttributeError, in the name of `asked`, where one is hidden."""
    for name, shard in shards.items():
        if not isinstance(shard, LinearModel):
            raise AttributeError(
                f"{attribute}: {name} does not know its parameters;"
                " protection=Blind(release=True) opens them to it"
            )
    return dict(shards)


def MultiClass(estimator: Any = None) -> Any:  # the name of the class that it was
    """Return the estimator; it takes labels of two classes or more. Deprecated."""
    warnings.warn(
        "MultiClass will go with the next version; GeneralisedLinear and TransferLearner take three classes"
        " and more by themselves",
        DeprecationWarning,
        stacklevel=2,
    )
    return GeneralisedLinear() if estimator is None else clone(estimator)
