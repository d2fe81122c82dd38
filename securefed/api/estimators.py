"""The estimators: an objective each."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from securefed.api.federated import Federated, parameters
from securefed.api.party import Party, check_parties
from securefed.assembly import Assembly, LinearAssembly, TransferAssembly
from securefed.errors import DataError
from securefed.models import LinearModel
from securefed.settings.objectives import LinearSettings, TransferSettings

Array = NDArray[np.float64]


class GeneralisedLinear(Federated):
    """Vertical federated (logistic, linear, squared-hinge) regression of two parties or more.

    Labels are of two classes or more, numbers, or (blind) several columns of numbers. Three classes and more
    are trained each against the rest: all in one blind run, else in one run a class.
    """

    assembly: ClassVar[type[Assembly[Any]]] = LinearAssembly

    @parameters(LinearSettings)
    def __init__(self, *first: Any, **named: Any) -> None:
        super().__init__(*first, **named)

    @property
    def coef_(self) -> dict[Any, Any]:
        """Each party's own coefficients by column, in the columns' own units, where they are known.

        They are on the scale of scores; of counts they are effects on the logarithm, at the mean of all rows.
        From three classes on there are some for each class, by its name.
        """
        names, rows = self._terms("coef_")
        coefficients: dict[Any, Any] = self._by_class([_by_party(names, row) for row in rows])
        return coefficients

    @property
    def intercept_(self) -> Any:
        """The number to which all coefficients are added; from three classes on one for each, by its name."""
        _, rows = self._terms("intercept_")
        return self._by_class(rows[:, 0].tolist())

    @property
    def log_odds_(self) -> Any:
        """Intercept and coefficients of the log odds of the second class, as a logistic regression has: the
        held-out rows say what a score is worth. From three classes on there is such a pair for each class, by
        its name, as a multinomial logistic regression has.
        """
        names, rows = self._terms("log_odds_")
        slopes, offsets = (np.atleast_1d(each) for each in self._label_model.log_odds)
        rows = slopes.reshape(len(rows), -1).T @ rows
        rows[:, 0] += offsets
        return self._by_class([(float(row[0]), _by_party(names, row)) for row in rows])

    def _terms(self, attribute: str) -> tuple[list[tuple[str, str]], Array]:
        """Party and column of every coefficient; and the intercept and the coefficients, a row a model."""
        self._fitted()
        rows = [each._own_units(attribute) for each in getattr(self, "models_", [self])]
        names = [(name, column) for name in self.shards_ for column in self.transforms_[name].names]
        return names, np.array(rows)

    def _own_units(self, attribute: str) -> Array:
        """The intercept, and all parties' coefficients, in the columns' own units.

        The parties know them with Blind(release=True), OwnGradient() and Plain().
        """
        labels, weights = self._label_model, list[Array]()
        scale, total = labels.scale, labels.mean
        if labels.link is not None:
            scale, total = scale * labels.link.slope, total + scale * labels.link.constant
        for name, model in self.shards_.items():
            if not isinstance(model, LinearModel):
                raise AttributeError(
                    f"{attribute}: {name} does not know its parameters;"
                    " protection=Blind(release=True) opens them to it"
                )
            columns, intercept = self.transforms_[name], float(model.parameters[model.columns :].sum())
            slopes = scale * model.parameters[: model.columns] / columns.scale
            total += scale * intercept - float(slopes @ columns.mean)
            weights.append(slopes)
        return np.concatenate([[total], *weights])

    def _by_class(self, values: Sequence[Any]) -> Any:
        """The values by class, where there is one model a class."""
        several = hasattr(self, "models_")
        return dict(zip(self.classes_.tolist(), values, strict=True)) if several else values[0]


def _by_party(names: Sequence[tuple[str, str]], row: Array) -> dict[str, dict[str, float]]:
    """The coefficients after a row's intercept, by party and column."""
    parties: dict[str, dict[str, float]] = {}
    for (party, column), weight in zip(names, row[1:].tolist(), strict=True):
        parties.setdefault(party, {})[column] = weight
    return parties


class TransferLearner(Federated):
    """Transfer learning from a party with labels (A) to one without (B), over the people they share.

    In a blind run linear maps are trained over features that each party fixes by itself; they stay hidden
    throughout. A party without `transform` gets "auto" there: splines for numbers, one-hot for categories,
    fitted on all of its own rows. Random features come on top. With own gradients hidden layers are trained,
    the paper's way, and from its gradients B finds A's labels.

    Labels are of two classes or more, missing for some people. Three and more are trained each against the
    rest: all in one blind run, else in one run a class.
    """

    assembly: ClassVar[type[Assembly[Any]]] = TransferAssembly

    @parameters(TransferSettings)
    def __init__(self, *first: Any, **named: Any) -> None:
        super().__init__(*first, **named)

    def _to_score(self, parties: Any) -> list[Party]:
        """B's rows."""
        b_name = self.parties_[0]
        listed = [parties] if isinstance(parties, Party) else check_parties(parties)
        chosen = [party for party in listed if party.name == b_name]
        if len(chosen) != 1:
            named = ", ".join(party.name for party in listed)
            raise DataError(f"parties: {named} given, rows of {b_name} are needed")
        return chosen


def MultiClass(estimator: Any = None) -> Any:  # the name of the class that it was
    """Return the estimator; it takes labels of two classes or more. Deprecated."""
    warnings.warn(
        "MultiClass will go with the next version; GeneralisedLinear and TransferLearner take three classes"
        " and more by themselves",
        DeprecationWarning,
        stacklevel=2,
    )
    return GeneralisedLinear() if estimator is None else clone(estimator)
