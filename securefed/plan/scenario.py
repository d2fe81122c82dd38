"""A planned run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.assembly import Assembly, assembly_of
from securefed.assembly.base import Model, TrainingRows
from securefed.crypto import cross_scheme, key_kind
from securefed.crypto.blind.interface import CrossScheme
from securefed.protocols.agreement import Agreement
from securefed.protocols.loop import PartyContext, PartyLoop
from securefed.protocols.schedules import FedBCD, FedSGD
from securefed.settings.objectives import ObjectiveSettings

__all__ = ["Scenario"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Scenario:
    """A planned run: settings, and the columns of each party (label party last)."""

    settings: ObjectiveSettings
    columns: Mapping[str, int]
    rows: int
    """Common rows, held-out ones included."""
    key_bits: int = 3072
    key_holder: str = "key-holder"
    outputs: int = 1
    """Columns of the labels, in blind runs."""
    third: bool = False
    """Two parties have a third one without data, where nothing is revealed."""
    holdout_rows: int = 0
    """Held-out rows."""
    scheme: CrossScheme | None = None
    """The encrypted product of a blind run, instead of the settings' one."""

    @property
    def assembly(self) -> Assembly[Any]:
        return assembly_of(self.settings, self.scheme)

    @cached_property
    def agreement(self) -> Agreement:
        names = list(self.columns)
        models = [(name, self._model(name)) for name in names]
        members = tuple(self.assembly.member(name, model) for name, model in models)
        agreement = self.assembly.agreement(members, self.rows, self.outputs, self.holdout_rows)
        with_holder = len(names) > 2 or (self.third and self.blind)
        return replace(agreement, key_holder=self.key_holder if with_holder else None)

    def _model(self, name: str) -> Model:
        names = list(self.columns)
        last, place = name == names[-1], names.index(name)
        return self.assembly.model(name, self.columns[name], last=last, index=place)

    def program(self, name: str, features: Array, labels: Array | None, context: PartyContext) -> PartyLoop:
        """Return a party's program. In transfer learning all rows are shared and labelled."""
        data = TrainingRows.whole(features, labels)
        return self.assembly.program(self.agreement, name, self._model(name), data, context)

    def key_holder_program(self, context: PartyContext) -> PartyLoop:
        return self.assembly.key_holder(self.agreement, context)

    @property
    def blind(self) -> bool:
        return self.settings.blind

    @property
    def cost_kind(self) -> str:
        """The kind of work to calibrate (securefed.plan.calibration)."""
        scheme = self.agreement.scheme
        return key_kind(scheme, self.agreement.reveal) or cross_scheme(scheme).name

    def with_steps(self, local_steps: int) -> Scenario:
        """Return the scenario with another Q."""
        order, proximal = self.settings.algorithm.order, self.settings.algorithm.proximal
        chosen: FedBCD | FedSGD = FedBCD(local_steps, order, proximal)
        if local_steps == 1 and order == "parallel":
            chosen = FedSGD(proximal)
        return replace(self, settings=replace(self.settings, algorithm=chosen))
