"""Facts about each objective that exchange, opening, ledger and alignment need, and what a mode gives away.

protocols.own_gradient.sides and transfer optimise; recipes hold the settings. No other code compares an
objective's name: it asks the entry here. docs/extending.md adds one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

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
    """`columns` is what the agreement says: the outputs of the model, or the width of what is exchanged where
    gradients are opened.
    """

    opened_by_label_party: str
    """The secrets of others that the label party opens sums of."""
    opened_by_others: str
    unknowns: Callable[[int, int], int]
    """(rows of a batch, columns): secrets that stay fixed between two exchanges."""
    more_rows: Callable[[int], int] = lambda columns: 0
    """(columns): rows of what a party holds encrypted, besides those of the batch."""
    wide: bool = False
    """What is exchanged is a matrix of so many columns; else one of as many as the model has outputs."""
    parties: int | None = None
    """Exactly so many; None: two or more."""
    same_people: bool = True
    """Everybody has all rows: the order of the rows may say who is who, and every row has a label. Else
    parties share some people, of whom some have labels, and the label party's columns are not needed to
    predict.
    """

    largest_score: float = inf
    """A blind model that gives larger ones has left its ranges."""
    given_away: str = ""
    """What own gradients show by design that a user may not expect, in a line."""

    def block(self, label_party: bool) -> str:
        return self.opened_by_label_party if label_party else self.opened_by_others

    def outputs(self, columns: int, *, blind: bool) -> int:
        """Scores of a row; where nothing is revealed, nothing of any width is exchanged."""
        return 1 if self.wide and not blind else columns

    def held(self, rows: int, columns: int) -> tuple[int, ...]:
        """The shape of what a party holds encrypted during a round."""
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
        largest_score=2.0**16,  # labels of -1 and +1 want scores of -2 and +2
        given_away="reveal='own-gradient': each party sees the gradients of its own hidden layer, and from "
        "them the one without labels finds the labels of the people they share; reveal='nothing' shows "
        "neither anything",
    ),
}
"""The default first."""


def get_objective(name: str) -> Objective:
    return OBJECTIVES[check_choice("objective", name, OBJECTIVES)]


def register(name: str, objective: Objective) -> None:
    if name in OBJECTIVES:
        raise SettingError(f"objective: {name!r} given, and there is one of that name")
    OBJECTIVES[name] = objective


class TrustWarning(UserWarning):
    """The peers have to be trusted not to cheat."""


def needed_trust(scheme: str, reveal: str) -> str | None:
    """Return the line for operators of a mode in which a cheating peer wins the secret key, or None.

    Under CKKS with `reveal="own-gradient"` each party opens what its peers ask for. It cannot see whether a
    request is an honest sum of products. The phase of a ciphertext is linear in the key, so a request with a
    crafted c1 shows twenty coefficients of the key in each opened number. Counting requests and checking
    their layout does not stop this. Paillier's requests show values, never the key.
    """
    entry = SCHEMES.get(scheme)
    return entry.trust or None if entry is not None and reveal == "own-gradient" else None


def given_away(scheme: str, reveal: str, objective: str) -> str | None:
    """Return the line on what a mode shows by design that a user may not expect, or None."""
    if reveal != "own-gradient" or not protects(scheme):
        return None
    return get_objective(objective).given_away or None


def trust_lines(scheme: str, reveal: str, objective: str) -> list[str]:
    """Return every line that an operator has to read before a run in this mode."""
    lines = (needed_trust(scheme, reveal), given_away(scheme, reveal, objective))
    return [line for line in lines if line is not None]


def warn_of_trust(scheme: str, reveal: str, objective: str) -> None:
    for line in trust_lines(scheme, reveal, objective):
        warnings.warn(line, TrustWarning, stacklevel=3)
