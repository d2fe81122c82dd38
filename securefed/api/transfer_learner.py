"""Federated transfer learning, two parties (securefed.protocols.own_gradient.sides has the objective).

bank = Party("bank", X_bank, labels=y, ids=...)       # A: labels for some of its rows
shop = Party("shop", X_shop, ids=...)                 # B: no labels; shares some people with A
model = TransferLearner().fit([shop, bank])           # nobody sees anything of the other's, nor of the model
model.decision_function(Party("shop", X_new))         # scores of B's people, learnt by A alone
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from securefed.api.federated import Federated
from securefed.api.party import Party, check_parties
from securefed.api.predictor import parameters
from securefed.assembly import Assembly, TransferAssembly
from securefed.errors import DataError
from securefed.settings.objectives import ObjectiveSettings, TransferSettings

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
        self, settings: ObjectiveSettings, parties: Sequence[Party], *, again: bool
    ) -> tuple[list[Party], dict[str, Places]]:
        """Both parties with all their rows; common are those of the people they share."""
        if len(parties) != 2:
            raise DataError(f"parties: {len(parties)} given, transfer learning takes 2")
        if settings.blind:
            parties = [each.with_transform("auto") if each.transform is None else each for each in parties]
        return super()._align(settings, parties, again=again)

    def _to_score(self, parties: Any) -> list[Party]:
        """B's rows."""
        b_name = self.parties_[0]
        listed = [parties] if isinstance(parties, Party) else check_parties(parties)
        chosen = [party for party in listed if party.name == b_name]
        if len(chosen) != 1:
            named = ", ".join(party.name for party in listed)
            raise DataError(f"parties: {named} given, rows of {b_name} are needed")
        return [chosen[0].transformed(self.transforms_.get(b_name))]

    @property
    def _answered(self) -> list[str]:
        return self.parties_[::-1]  # in B's order, as for `predict`: the score ledger counts a question once
