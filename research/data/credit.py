"""Default-Credit as tasks: the paper's Credit-FTL, and two parties with the same people.

Table 2 of the paper does not say how the data were divided or on whom the AUC was measured.
`credit_overlap` is the reading that matches its rounds, `credit_held_out` the one that measures
generalisation. securefed.data.credit reads the file.
"""

from __future__ import annotations

from os import PathLike

from research.data.vertical import TransferData, VerticalData, transfer
from securefed.checks import check_choice
from securefed.data.credit import read_credit

__all__ = ["credit_held_out", "credit_overlap", "load_credit"]


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
