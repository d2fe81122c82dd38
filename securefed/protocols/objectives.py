"""Facts about each objective that exchange, opening, ledger and alignment need, and what each mode reveals.

protocols.own_gradient.sides and transfer optimise; recipes have the settings. No other code compares an
objective's name: it asks the entry here. docs/extending.md adds an objective.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

from securefed.checks import check_choice
from securefed.crypto import SCHEMES, protects
from securefed.errors import SettingError

__all__ = [
    "OBJECTIVES",
    "Objective",
    "TrustWarning",
    "get_objective",
    "given_away",
    "needed_trust",
    "register",
    "trust_lines",
    "warn_of_trust",
]


@dataclass(frozen=True, kw_only=True)
class Objective:
    """Facts about one objective.

    `columns` is the agreement's width: the model's outputs, or the exchanged columns where gradients are
    opened.
    """

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
    """Every party has all rows, and every row has a label. The order of the rows may identify people.

    Otherwise parties share only some people, of which some have labels. Prediction then does not need the
    label party's columns.
    """
    given_away: str = ""
    """One line on what own gradients show by design and a user may not expect."""

    def block(self, label_party: bool) -> str:
        """Return the name of the secrets that a party opens sums of."""
        return self.opened_by_label_party if label_party else self.opened_by_others

    def outputs(self, columns: int, *, blind: bool) -> int:
        """Return the scores per row."""
        return 1 if self.wide and not blind else columns

    def encrypted_shape(self, rows: int, columns: int) -> tuple[int, ...]:
        """Return the shape of a party's encrypted matrix during a round."""
        total = rows + self.more_rows(columns)
        return (total, columns) if self.wide or columns > 1 else (total,)

    def check_parties(self, name: str, count: int) -> None:
        if self.parties is not None and count != self.parties:
            raise SettingError(f"parties: {count} given, the {name} objective takes exactly {self.parties}")


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
    """Return the objective of that name."""
    return OBJECTIVES[check_choice("objective", name, OBJECTIVES)]


def register(name: str, objective: Objective) -> None:
    """Add an objective (docs/extending.md)."""
    if name in OBJECTIVES:
        raise SettingError(f"objective: {name!r} given, and there is one of that name")
    OBJECTIVES[name] = objective


class TrustWarning(UserWarning):
    """A mode in which the peers must be trusted not to cheat."""


def needed_trust(scheme: str, reveal: str) -> str | None:
    """Return the warning for a mode in which a cheating peer gets the secret key, or None.

    Under CKKS with own gradients each party opens what its peers ask for. It cannot see whether a
    request is an honest sum of products. The phase of a ciphertext is linear in the key, so a request with a
    crafted c1 shows twenty coefficients of the key in each opened number. Counting requests and checking
    their layout does not stop this. Paillier's requests show values, never the key.
    """
    entry = SCHEMES.get(scheme)
    return entry.trust or None if entry is not None and reveal == "own-gradient" else None


def given_away(scheme: str, reveal: str, objective: str) -> str | None:
    """Return the line on what a mode shows by design and a user may not expect, or None."""
    if reveal != "own-gradient" or not protects(scheme):
        return None
    return get_objective(objective).given_away or None


def trust_lines(scheme: str, reveal: str, objective: str) -> list[str]:
    """Return every line that an operator must read before a run in this mode."""
    lines = (needed_trust(scheme, reveal), given_away(scheme, reveal, objective))
    return [line for line in lines if line is not None]


def warn_of_trust(scheme: str, reveal: str, objective: str) -> None:
    """Issue each of `trust_lines` as a TrustWarning."""
    for line in trust_lines(scheme, reveal, objective):
        warnings.warn(line, TrustWarning, stacklevel=3)
