"""Federated transfer learning, two parties (securefed.protocols.own_gradient.sides has the objective).

bank = Party("bank", X_bank, labels=y, ids=...)       # A: labels for some of its rows
shop = Party("shop", X_shop, ids=...)                 # B: no labels; shares some people with A
model = TransferLearner().fit([shop, bank])           # nobody sees anything of the other's, nor of the model
model.decision_function(Party("shop", X_new))         # scores of B's people, learnt by A alone
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from securefed.api.federated import Federated
from securefed.api.party import Party, align, check_parties, label_party
from securefed.api.predictor import check_columns
from securefed.api.simulated import parameters
from securefed.assembly import Assembly, TransferAssembly
from securefed.assembly.base import Model
from securefed.assembly.build import PartyData
from securefed.errors import DataError
from securefed.labels.label_model import binary_labels, check_known
from securefed.protocols.agreement import Agreement
from securefed.settings.objectives import ObjectiveSettings, TransferSettings

Array = NDArray[np.float64]
Places = NDArray[np.intp]


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

    def _align(
        self, assembly: Assembly[Any], parties: Sequence[Party]
    ) -> tuple[list[Party], dict[str, Places]]:
        """B and A with all their rows; common are those of the people they share."""
        a, b = _pair(parties)
        if assembly.settings.blind:
            a, b = (party.with_transform("auto") if party.transform is None else party for party in (a, b))
        self.transforms_ = {}
        a, self.transforms_[a.name] = a.fitted(standardise=assembly.settings.standardise)
        b, self.transforms_[b.name] = b.fitted(standardise=assembly.settings.standardise)
        rows_a, rows_b = _overlap(a, b)
        return [b, a], {b.name: rows_b, a.name: rows_a}

    def _data(
        self, settings: ObjectiveSettings, ordered: Sequence[Party], rows: Mapping[str, Places]
    ) -> tuple[dict[str, PartyData], NDArray[np.bool_]]:
        data, labelled = super()._data(settings, ordered, rows)
        b, a = (party.name for party in ordered)
        if not labelled.any():
            raise DataError(f"{a}: none of the {len(labelled)} people shared with {b} has a label")
        targets = data[a].targets
        missing = [] if targets is None else self._label_model.unseen(targets[rows[a]][labelled])
        if missing:
            names = ", ".join(map(str, missing))
            warnings.warn(f"{a}: nobody shared with {b} to learn from has the label {names}", stacklevel=4)
        return data, labelled

    def _validation(
        self,
        settings: ObjectiveSettings,
        data: Mapping[str, PartyData],
        validation: Sequence[Party],
        names: Sequence[str],
    ) -> dict[str, PartyData]:
        """B's columns and A's labels of other people."""
        a, b = _pair(validation)
        if [b.name, a.name] != list(names):
            raise DataError(f"validation: {a.name} and {b.name} given, {names[1]} and {names[0]} expected")
        a, b = align([a, b], a.name)
        b = b.transformed(self.transforms_.get(b.name))
        check_columns(b, data[b.name].features.shape[1])
        self._seen = [b]
        labels = a.known_labels()
        if self._label_model.outputs == 1:
            targets, _ = binary_labels(labels, a.name, allow_missing=False, classes=self._label_model.classes)
        else:
            check_known(labels, a.name)
            targets = self._label_model.targets(np.array(labels.tolist()), a.name, np.inf)
        none = np.zeros((b.rows, data[a.name].features.shape[1]))  # A's columns are not needed
        return {
            b.name: PartyData(features=b.features),
            a.name: PartyData(features=none, targets=targets),
        }

    def _agreement(
        self,
        assembly: Assembly[Any],
        models: Mapping[str, Model],
        common: int,
        holdout: int,
        seen: Mapping[str, PartyData] | None,
    ) -> Agreement:
        agreement = super()._agreement(assembly, models, common, holdout, None)
        if seen is None:
            return agreement
        rows = ("validation_rows", max(len(each.features) for each in seen.values()))
        return replace(agreement, details=(*agreement.details, rows))

    def _to_score(self, parties: Any) -> list[Party]:
        """B's rows."""
        b_name = self.parties_[0]
        listed = [parties] if isinstance(parties, Party) else check_parties(parties)
        chosen = [party for party in listed if party.name == b_name]
        if len(chosen) != 1:
            named = ", ".join(party.name for party in listed)
            raise DataError(f"parties: {named} given, rows of {b_name} are needed")
        return [chosen[0].transformed(self.transforms_.get(b_name))]

    def score(self, parties: Sequence[Party], metric: str | None = None) -> float:
        """Return a metric (accuracy if None) on people of B whose labels A knows."""
        self._fitted()
        a, b = _pair(parties)
        # In B's order, as for `predict`, so that the score ledger counts the same question once.
        return super().score(align([a, b], b.name), metric)

    def _to_compare(self, parties: Sequence[Party]) -> Party:
        return label_party(parties)


def _pair(parties: Sequence[Party]) -> tuple[Party, Party]:
    """A, which has labels, and B."""
    listed = check_parties(parties)
    if len(listed) != 2:
        raise DataError(f"parties: {len(listed)} given, transfer learning takes 2")
    a = label_party(listed)
    (b,) = (party for party in listed if party is not a)
    return a, b


def _overlap(a: Party, b: Party) -> tuple[Places, Places]:
    """Row numbers of the shared people at A and at B, in A's order."""
    numbered = [party.with_features(np.arange(party.rows, dtype=np.float64)[:, None]) for party in (a, b)]
    rows_a, rows_b = (party.features[:, 0].astype(np.intp) for party in align(numbered, a.name))
    return rows_a, rows_b
