"""One column of a party's table, and the numbers that it becomes: fitted on the party's own training rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from securefed.data.column_types import all_forms, type_with
from securefed.data.readings import IMPUTES, POLICY, UNKNOWNS, Policy
from securefed.declare import check_choice
from securefed.errors import DataError

Array = NDArray[np.float64]

MOST_CATEGORIES = 256
"""A column with more different words than this is an id or a text, not a category."""
FEW = 12
"""A number with at most so many different values is taken as categories too."""
KNOTS, DEGREE = 4, 2
RARE_ROWS, RARE_SHARE = 10, 0.005
"""Categories with fewer rows than either are put together."""
REST = "\x00rest"
"""The name of rare categories together; no file has it."""
KEPT: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("name", "kind", "common", "impute", "unknown", "given", "part"), str),
    **dict.fromkeys(("levels", "put_together"), lambda texts: tuple(map(str, texts))),
    **dict.fromkeys(("linear", "missing"), bool),
    **dict.fromkeys(("fill", "newest"), float),
    "knots": lambda numbers: np.array(numbers, dtype=np.float64),
}
"""What a file has of a column, and how it is read."""


@dataclass(frozen=True, eq=False)
class Column:
    name: str
    kind: str
    """"number" or "words"."""
    levels: tuple[str, ...] = ()
    """One-hot, in this order; REST last if there are rare ones."""
    linear: bool = True
    knots: Array = field(default_factory=lambda: np.zeros(0))
    missing: bool = False
    """Missing numbers were there in training: they have an indicator."""
    fill: float = 0.0
    common: str = ""
    """The most frequent word, in place of a missing one."""
    impute: str = "refuse"
    unknown: str = "ignore"
    put_together: tuple[str, ...] = ()
    """The rare words, where unknown ones are refused."""
    given: str = ""
    """The source's column, where one column became several."""
    part: str = ""
    """The part of the source's value that this column has, such as the year of a date."""
    newest: float = 0.0
    """What the part is measured from: the newest date of the training rows."""

    @property
    def origin(self) -> str:
        return self.given or self.name

    @property
    def taken(self) -> str:
        """The type of the source's column (securefed.data.column_types)."""
        return type_with(self.part).name if self.part else self.kind

    @property
    def names(self) -> list[str]:
        """The names of the numbers that it becomes."""
        names = [self.name] if self.linear and self.kind == "number" else []
        names += [
            f"{self.name}~{i + 1}" for i in range(len(self.knots) + DEGREE - 2 if len(self.knots) else 0)
        ]
        names += [f"{self.name}={'(rare)' if level == REST else level}" for level in self.levels]
        return names + ([f"{self.name}?"] if self.missing else [])

    def numbers(self, values: NDArray[Any], owner: str) -> tuple[Array, int]:
        """Its part of the table, and how many values were not known in training."""
        if self.part and (cut := type_with(self.part).part) is not None:
            values = cut(values, self.part, self.newest)
        number = self.kind == "number"
        gone = _gone(values)
        if gone.any() and self.impute == "refuse":
            raise DataError(gaps(owner, self.origin, gone))
        filled = np.where(gone, self.fill if number else self.common, values)
        parts, unknown = list[Array](), 0
        if number and self.linear:
            parts.append(filled[:, None])
        if len(self.knots):
            parts.append(_spline(filled, self.knots))
        if self.levels:
            hot, unknown = self._one_hot(_words(filled), owner)
            parts.append(hot)
        if self.missing:
            parts.append(gone.astype(np.float64)[:, None])
        elif number and self.impute == "indicator":
            unknown += int(gone.sum())
        return np.hstack(parts), unknown

    def _one_hot(self, words: list[str], owner: str) -> tuple[Array, int]:
        place = {level: i for i, level in enumerate(self.levels)}
        if self.unknown == "refuse":
            strange = sorted(set(words) - place.keys() - set(self.put_together))
            if strange:
                few = ", ".join(map(repr, strange[:3])) + (" ..." if len(strange) > 3 else "")
                raise DataError(f"{owner}: column {self.origin!r} has {few}, which training did not have")
        rest = place.get(REST, -1)
        places = np.array([place.get(each, rest) for each in words])
        hot = (places[:, None] == np.arange(len(self.levels))).astype(np.float64)
        return hot, int((places < 0).sum())

    @classmethod
    def of(
        cls,
        name: str,
        values: NDArray[Any],
        transform: str,
        *,
        one_hot: bool,
        owner: str,
        policy: Policy = POLICY,
        **origin: Any,
    ) -> Self:
        """Fit a column of the training rows. `origin`: the part of the source's column that it is."""
        source = origin.get("given", name)
        way = policy.way(source, transform)
        number, gone = values.dtype.kind == "f", _gone(values)
        if gone.all() or (number and np.isinf(values).any()) or (gone.any() and way == "refuse"):
            raise DataError(gaps(owner, source, gone))
        known, fill = values[~gone], 0.0 if number else ""
        if number and way in ("median", "indicator"):
            fill = float(np.median(known))
        elif way in ("median", "most-frequent"):
            different, counts = np.unique(known, return_counts=True)
            fill = different[counts.argmax()].item()
        kept = {"impute": way, "unknown": policy.unknown, "fill" if number else "common": fill, **origin}

        def levels() -> dict[str, Any]:
            return _levels(source, _words(np.where(gone, fill, values)), transform, owner, policy)

        if not number:
            return cls(name, "words", **levels(), **kept)
        kept["missing"] = way == "indicator" and bool(gone.any())
        distinct = np.unique(known)
        if not one_hot and (transform == "none" or len(distinct) <= 2):
            return cls(name, "number", **kept)
        if one_hot or len(distinct) <= FEW:
            return cls(name, "number", linear=not one_hot, **levels(), **kept)
        knots = np.unique(np.quantile(known, np.linspace(0.0, 1.0, KNOTS)))
        if len(knots) < 3:  # most rows have one value; what matters is the rest
            knots = np.unique([known.min(), *np.quantile(distinct, [0.5]), known.max()])
        return cls(name, "number", knots=knots, **kept)

    def to_dict(self) -> dict[str, Any]:
        return vars(self) | {"knots": self.knots.tolist()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        if values.keys() != KEPT.keys():
            raise ValueError(f"{', '.join(values)} given, {', '.join(KEPT)} are due")
        column = cls(**{name: kind(values[name]) for name, kind in KEPT.items()})
        check_choice("kind", column.kind, ("number", "words"))
        check_choice("impute", column.impute, IMPUTES)
        check_choice("unknown", column.unknown, UNKNOWNS)
        check_choice("part", column.part, ("", *chain.from_iterable(all_forms().values())))
        if len(column.knots) and (len(column.knots) < 2 or not (np.diff(column.knots) > 0).all()):
            raise ValueError(f"knots of {column.name} do not rise")
        return column


def _gone(values: NDArray[Any]) -> NDArray[np.bool_]:
    gone: NDArray[np.bool_] = ~np.isfinite(values) if values.dtype.kind == "f" else values == ""
    return gone


def _words(values: NDArray[Any]) -> list[str]:
    """Values as categories; whole numbers without a point, so that 3 and 3.0 are one."""
    if values.dtype.kind != "f":
        return [str(each) for each in values.tolist()]
    return [str(int(each)) if each == int(each) else repr(each) for each in values.tolist()]


def gaps(owner: str, name: str, gone: NDArray[np.bool_]) -> str:
    if gone.all():
        return f"{owner}: column {name!r} has no values at all; drop it"
    return (
        f"{owner}: {int(gone.sum())} of {len(gone)} values of column {name!r} are missing or infinite, the "
        f"first in row {int(np.flatnonzero(gone)[0]) + 1}; fill or drop them, or say impute = 'median', "
        "'most-frequent' or 'indicator'"
    )


def _levels(name: str, words: list[str], transform: str, owner: str, policy: Policy) -> dict[str, Any]:
    """The levels of a column of categories, and the rare words where unknown ones are refused."""
    levels, counts = np.unique(words, return_counts=True)
    kept, rare = levels, policy.rare
    if transform == "auto" or rare is not None:
        kept = levels[counts >= (max(RARE_ROWS, RARE_SHARE * len(words)) if rare is None else rare)]
        kept = kept if len(kept) else levels[np.argsort(-counts)[:1]]
    if len(kept) > MOST_CATEGORIES:
        raise DataError(
            f"{owner}: column {name!r} has {len(levels)} different words, at most {MOST_CATEGORIES} can be "
            "one-hot encoded; drop it, make it the id, or say rare = N: words of fewer rows are put together"
        )
    rest = np.setdiff1d(levels, kept).tolist()
    together = tuple(rest) if policy.unknown == "refuse" else ()
    return {"levels": (*kept.tolist(), *([REST] if rest else [])), "put_together": together}


def _spline(values: Array, knots: Array) -> Array:
    """Return B-splines, constant beyond the knots: all but one of a basis, which a constant replaces."""
    from sklearn.preprocessing import SplineTransformer

    basis = SplineTransformer(
        degree=DEGREE, knots=knots[:, None], extrapolation="constant", include_bias=False
    )
    with np.errstate(all="ignore"):  # knots may be neighbours among the floats
        spline: Array = np.nan_to_num(basis.fit(knots[:, None]).transform(values[:, None]))
    return spline
