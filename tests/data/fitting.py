"""Tables in memory, fitted and prepared as those of a party are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from securefed.data.column_types import column_type
from securefed.data.columns import FittedColumns, prepare, prepared
from securefed.data.readings import POLICY, Policy
from securefed.data.rows import Fields, Rows

Table = Mapping[str, NDArray[Any]]


def rows_of(table: Table, policy: Policy = POLICY) -> Rows:
    kinds = {name: column_type(values).name for name, values in table.items()}
    return Rows("table", Fields(table, len(next(iter(table.values()))), kinds), policy)


def fit(table: Table, policy: Policy = POLICY, **ways: Any) -> tuple[FittedColumns, NDArray[Any]]:
    return prepare(rows_of(table, policy), list(table), **ways)


def apply(columns: FittedColumns, table: Table) -> tuple[NDArray[Any], dict[str, int]]:
    return prepared(columns, rows_of(table))
