"""What a fit leaves to the next one of the same estimator (`warm_start`): where to begin, under which keys.

A blind model begins with the shares that the last one ended with: nobody learns more of them than of a start
at 0. Held-out rows have to stay unseen from fit to fit, or what is measured on them is worth nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import KeyHolder, protects
from securefed.errors import SettingError
from securefed.protocols.agreement import Agreement

__all__ = ["Start"]


@dataclass(frozen=True, eq=False)
class Start:
    """The end of a fit. `held`: how many rows it held out, by `seed`."""

    agreement: Agreement
    held: int
    seed: int
    holders: Mapping[str, KeyHolder]
    states: Mapping[str, Mapping[str, NDArray[np.generic]]]
    """Of blind parties: as in a checkpoint."""

    def check(self, agreement: Agreement, held: int, seed: int) -> None:
        """SettingError where another fit cannot begin here."""
        before = _facts(self.agreement)
        for word, given in _facts(agreement).items():
            if given != before[word]:
                raise SettingError(f"warm_start: {word} {given} given, the fit before had {before[word]}")
        if self.agreement.release and protects(agreement.scheme):
            raise SettingError(
                "warm_start: the fit before released its parameters; the difference of two released models is"
                " a gradient, and release=True is allowed in the last fit only"
            )
        if held and self.agreement.batches.holdout_rows:
            raise SettingError(
                "warm_start: the fit before learnt from the rows that it held out (refit);"
                " warm_start=True from the first fit on, or holdout=0, is allowed"
            )
        rows, known = agreement.common_rows, self.agreement.common_rows
        if held and (rows, held, seed) != (known, self.held, self.seed):
            raise SettingError(
                f"warm_start: {held} of {rows} rows would be held out by seed {seed}, {self.held} of {known}"
                f" by seed {self.seed} were, and others learnt from; the same, or holdout=0, is allowed"
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
