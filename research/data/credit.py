"""Default-Credit: 30,000 credit card clients, their payments, and whether they defaulted.

Yeh (2016), UCI Machine Learning Repository, CC BY 4.0. Three layouts of the one table are read: the CSV
with 25 named columns, UCI's XLS file with its two header lines (X1 to X23 and Y, then names), and that file
saved as CSV. The 23 features become 33 columns: SEX, EDUCATION and MARRIAGE one-hot (13), LIMIT_BAL, AGE,
and the 18 of payments and bills.

Table 2 of the paper does not say how the data were divided or on whom the AUC was measured.
`credit_overlap` is the reading that matches its rounds, `credit_held_out` the one that measures
generalisation.
"""

from __future__ import annotations

import hashlib
import io
import struct
import zipfile
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from research.data.sources import Source
from research.data.tables import Table, as_integers, read_lines
from research.data.vertical import TransferData, VerticalData, transfer
from securefed.declare import check_choice
from securefed.errors import DataError, require

CREDIT = Source(
    "Default-Credit",
    (
        "UCI_Credit_Card.csv",
        "default of credit card clients.csv",
        "default of credit card clients.xls",
    ),
    "https://archive.ics.uci.edu/dataset/350/default+of+credit+card+clients",
    {"UCI_Credit_Card.csv": "a0f0ab49d6326671d6cd83be5c88dcf18007025fe9a53ecd699119c871176ca1"},
)
_ROWS = 30_000
_CODES = {"SEX": (1, 2), "EDUCATION": (0, 6), "MARRIAGE": (0, 3)}
_PROFILE = ("LIMIT_BAL", "AGE")
_PAYMENTS = (
    *("PAY_0", "PAY_2", "PAY_3", "PAY_4", "PAY_5", "PAY_6"),
    *(f"BILL_AMT{month}" for month in range(1, 7)),
    *(f"PAY_AMT{month}" for month in range(1, 7)),
)
_LABEL = "default payment next month"
_COLUMNS = ("ID", "LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE", *_PAYMENTS, _LABEL)
_NUMBERED = tuple(f"X{place}" for place in range(1, 24))
_VALUES = "74f2df84887b26f183075d63d1672a5a54e04dee7d01d6e824d57a4b76acdaee"
"""sha256 of the columns as 64-bit integers, one after the other."""


@dataclass(frozen=True, eq=False)
class CreditTable:
    """The clients, one-hot encoded and not standardised."""

    ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    payments: NDArray[np.float64]
    payment_names: tuple[str, ...]
    profile: NDArray[np.float64]
    profile_names: tuple[str, ...]


def read_credit(path: str | PathLike[str] | None = None, *, verify: bool = True) -> CreditTable:
    """Read all rows. `verify`: accept the 30,000 published rows only; without, any table of this layout."""
    from sklearn.preprocessing import OneHotEncoder

    table = _read(CREDIT.find(path))
    values = table.numbers(_COLUMNS)
    whole = {name: as_integers(table.name, name, values[:, i]) for i, name in enumerate(_COLUMNS)}
    for name, allowed in {**_CODES, _LABEL: (0, 1)}.items():
        as_integers(table.name, name, values[:, _COLUMNS.index(name)], allowed)
    if len(np.unique(whole["ID"])) < len(values):
        raise DataError(f"{table.name}: an ID occurs more than once")
    if verify:
        _verify(table.name, whole)
    codes = np.column_stack([whole[name] for name in _CODES])
    levels = [list(range(low, high + 1)) for low, high in _CODES.values()]
    encoder = OneHotEncoder(categories=levels, sparse_output=False, dtype=np.float64)
    names = [f"{name}_{level}" for name, all_ in zip(_CODES, levels, strict=True) for level in all_]
    profile = np.column_stack([encoder.fit_transform(codes), *(whole[name] for name in _PROFILE)])
    payments = np.column_stack([whole[name] for name in _PAYMENTS]).astype(np.float64)
    return CreditTable(whole["ID"], whole[_LABEL], payments, _PAYMENTS, profile, (*names, *_PROFILE))


def _read(path: Path) -> Table:
    lines = _read_xls(path) if path.suffix.lower() in (".xls", ".xlsx") else read_lines(path)
    first = tuple(name.strip() for name in lines[0])
    two = first[1:] == (*_NUMBERED, "Y")
    if two and len(lines) < 2:
        raise DataError(f"{path.name}: one header line, UCI's file has two")
    names = [name.strip().replace(".", " ") for name in lines[int(two)]]
    table = Table(path.name, tuple(names), lines[int(two) + 1 :], 2 + int(two))
    table.require(_COLUMNS)
    return table


def _read_xls(path: Path) -> list[list[str]]:
    """The cells of the first sheet as text."""
    xlrd = require("xlrd", extra="xls")
    # What xlrd raises on damaged files, by trial: its own two, and whatever its parsing runs into.
    damaged = (
        *(xlrd.XLRDError, xlrd.compdoc.CompDocError, zipfile.BadZipFile, struct.error),
        *(AssertionError, LookupError, ValueError, TypeError, OSError),
    )
    try:
        sheet = xlrd.open_workbook(path, logfile=io.StringIO()).sheet_by_index(0)
        lines = [[str(cell) for cell in sheet.row_values(row)] for row in range(sheet.nrows)]
    except damaged as error:
        line = str(error).split("\n")[0]
        raise DataError(
            f"{path.name}: not an XLS workbook that can be read ({line}); save it as CSV"
        ) from None
    if not lines:
        raise DataError(f"{path.name}: the first sheet is empty")
    return lines


def _verify(name: str, whole: dict[str, NDArray[np.int64]]) -> None:
    """The values, not the bytes: the three layouts hold the same table."""
    rows = len(whole["ID"])
    if rows != _ROWS:
        raise DataError(
            f"{name}: {rows} rows, the published table has {_ROWS}; verify=False takes other tables"
        )
    digest = hashlib.sha256()
    for column in _COLUMNS:
        digest.update(whole[column].astype("<i8").tobytes())
    if digest.hexdigest() != _VALUES:
        (published, checksum), *_ = CREDIT.sha256.items()
        raise DataError(
            f"{name}: its values are not the published ones (sha256 of {published}: {checksum});"
            f" get it again from {CREDIT.where}, or pass verify=False to use this one"
        )


def load_credit(
    path: str | PathLike[str] | None = None, *, label_columns: str = "payments", verify: bool = True
) -> VerticalData:
    """All rows, one-hot encoded and not standardised.

    `label_columns`: what A, who has the labels, holds: "payments" (18 columns; B the 15 of the profile) or
    "profile". `verify`: accept the 30,000 published rows only. Without, any table of this layout.
    """
    check_choice("label_columns", label_columns, ("payments", "profile"))
    table = read_credit(path, verify=verify)
    a, b = (table.payments, table.payment_names), (table.profile, table.profile_names)
    if label_columns == "profile":
        a, b = b, a
    return VerticalData(
        "Default-Credit", {"B": b[0], "A": a[0]}, {"B": b[1], "A": a[1]}, table.labels, "A", table.ids
    )


def credit_overlap(
    seed: int,
    overlap: int = 100,
    labelled: int = 1000,
    *,
    held_out: int = 7500,
    path: str | PathLike[str] | None = None,
) -> TransferData:
    """Table 2, reading "overlap": A has the labels and the payments of `labelled` class-balanced people, B
    the profiles of `overlap` of them and of others. The AUC is taken on the shared people: a training AUC,
    and to be named so.
    """
    data = load_credit(path)
    return transfer(data, overlap=overlap, labelled=labelled, held_out=held_out, seed=seed)


def credit_held_out(
    seed: int,
    overlap: int = 2000,
    labelled: int = 6000,
    held_out: int = 7500,
    *,
    path: str | PathLike[str] | None = None,
) -> TransferData:
    """Table 2, reading "held-out": the columns are swapped, since B's people are scored by B's columns and
    profiles alone say little: A has the labels and the profiles, B the payments. The AUC is taken on
    `held_out` other people.
    """
    data = load_credit(path, label_columns="profile")
    return transfer(data, overlap=overlap, labelled=labelled, held_out=held_out, seed=seed)
