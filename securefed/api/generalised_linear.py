"""The generalised linear estimator (equation 2): K parties, logistic, linear or squared-hinge loss.

model = GeneralisedLinear(algorithm=FedBCD(local_steps=20))
model.fit([Party("shop", X1), Party("bank", X2, labels=y)])
model.predict_proba([Party("shop", X1_new), Party("bank", X2_new)])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from securefed.api.coefficients import coefficients, intercept, log_odds
from securefed.api.federated import Federated, Keys
from securefed.api.party import Party, align, label_party
from securefed.api.warm_start import Start
from securefed.assembly import Assembly, LinearAssembly, Trained
from securefed.assembly.base import Model
from securefed.assembly.build import PartyData
from securefed.crypto import KeyHolder, protects
from securefed.errors import SettingError
from securefed.protocols.agreement import Agreement
from securefed.protocols.blind.linear import BlindParty
from securefed.protocols.loop import PartyLoop
from securefed.protocols.scoring.blur import ScoreGuard
from securefed.settings.estimator import Local, LocalLinear
from securefed.settings.objectives import LinearSettings, ObjectiveSettings

__all__ = ["GeneralisedLinear"]

Array = NDArray[np.float64]


class GeneralisedLinear(Federated):
    """Vertical federated (logistic, linear, squared-hinge) regression of two parties or more.

    Labels are of two classes or more, numbers, or (blind) several columns of numbers. Three classes and more
    are trained each against the rest: all in one blind run, else in one run a class.
    """

    assembly: ClassVar[type[Assembly[Any]]] = LinearAssembly
    local: ClassVar[type[Local]] = LocalLinear
    positional = ("loss", "algorithm", "protection")

    def _settings(self, parties: int = 2) -> LinearSettings:
        settings: LinearSettings = super()._settings(parties)
        return replace(settings, refit=False) if self._local().warm_start else settings

    def _earlier(self) -> Start | None:
        """Where a fit begins, if not at 0."""
        settings, warm = self._settings(), self._local().warm_start
        if not warm:
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
        self, assembly: Assembly[Any], parties: Sequence[Party], local: Local
    ) -> tuple[list[Party], dict[str, NDArray[np.intp]]]:
        if self._earlier() is None:
            return super()._align(assembly, parties, local)
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
        held: int,
        seen: Mapping[str, PartyData] | None,
    ) -> Agreement:
        agreement = super()._agreement(assembly, models, common, held, seen)
        earlier, seed = self._earlier(), assembly.settings.seed
        if earlier is not None:
            earlier.check(agreement, held, seed)
            if assembly.settings.blind:
                agreement = replace(agreement, details=(*agreement.details, ("warm_start", True)))
            else:
                for name, model in models.items():
                    model.parameters = self.shards_[name].parameters
        self._held = held, seed
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
    def coef_(self) -> dict[str, dict[str, float]]:
        """Each party's own coefficients by column, in the columns' own units, where they are known."""
        self._fitted()
        return coefficients(self.shards_, self.transforms_, self._label_model)

    @property
    def intercept_(self) -> float:
        """What all coefficients are added to."""
        self._fitted()
        return intercept(self.shards_, self.transforms_, self._label_model)

    @property
    def log_odds_(self) -> tuple[float, dict[str, dict[str, float]]]:
        """Intercept and coefficients of the log odds of the second class: `coef_` is on the scale of scores,
        and the held-out rows say what a score is worth.
        """
        self._fitted()
        return log_odds(self.shards_, self.transforms_, self._label_model)


def _root(party: PartyLoop) -> dict[str, Array]:
    """The basis of a blind party's parameters, for a warm start."""
    return {"root": party.part.root} if isinstance(party, BlindParty) and party.part.root is not None else {}
