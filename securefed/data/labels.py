"""Labels as the objectives take them (some may be missing, of any type), and how well they are predicted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.errors import DataError

__all__ = ["accuracy", "auc", "binary_labels", "check_known", "missing_labels"]

Array = NDArray[np.float64]


def missing_labels(labels: NDArray[Any]) -> NDArray[np.bool_]:
    """Where a label is None, NaN or another value that does not equal itself (pandas has several)."""

    def missing(value: Any) -> bool:
        same = value == value
        return value is None or not isinstance(same, bool | np.bool_) or not same

    if labels.dtype.kind in "biuUS":
        return np.zeros(len(labels), dtype=np.bool_)
    if labels.dtype.kind == "f":
        return np.asarray(np.isnan(labels), dtype=np.bool_)
    return np.array([missing(value) for value in labels.tolist()])


def check_known(labels: NDArray[Any], party: str) -> None:
    """DataError where labels are missing."""
    missing = missing_labels(labels)
    if missing.any():
        raise DataError(f"{party}: {int(missing.sum())} of {len(labels)} labels are missing")


def binary_labels(
    labels: NDArray[Any], party: str, *, allow_missing: bool, classes: NDArray[Any] | None = None
) -> tuple[Array, NDArray[Any]]:
    """Labels as -1, +1 (NaN where missing) and the two classes in sorted order.

    `classes`: those of training, for labels of other rows.
    """
    if labels.ndim != 1:
        raise DataError(f"{party}: labels of {labels.shape[1]} columns given, classes are one column")
    if not allow_missing:
        check_known(labels, party)
    missing = missing_labels(labels)
    known = np.array([value for value, gone in zip(labels.tolist(), missing, strict=True) if not gone])
    found = np.unique(known)
    few = ", ".join(str(value) for value in found[:5]) + (", ..." if len(found) > 5 else "")
    if classes is None:
        if len(found) != 2:
            raise DataError(
                f"{party}: labels have {len(found)} classes ({few}), two are allowed{_kinds(found)}"
            )
        classes = found
    elif not set(found.tolist()) <= set(classes.tolist()):
        due = ", ".join(str(value) for value in classes)
        raise DataError(f"{party}: labels {few} given for validation, the classes are {due}")
    signs = np.full(len(labels), np.nan)
    signs[~missing] = np.where(known == classes[1], 1.0, -1.0)
    return signs, classes


def _kinds(found: NDArray[Any]) -> str:
    """What labels may be, where they are not two classes."""
    if len(found) < 2:
        return "; with one class there is nothing to learn"
    if found.dtype.kind in "iuf":
        return (
            "; numbers that are to be predicted as numbers take loss = 'linear', and several classes "
            f"the default loss in Python, or classes = {len(found)} in [run]"
        )
    return f"; several classes take classes = {len(found)} in [run]"


def accuracy(labels: NDArray[Any], predicted: NDArray[Any], party: str) -> float:
    """The share of right predictions. Labels may be of any type, also in an array of objects."""
    check_known(labels, party)
    pairs = zip(labels.tolist(), predicted.tolist(), strict=True)
    return float(np.mean([label == guess for label, guess in pairs]))


def auc(signs: Array) -> Callable[[Array], float]:
    """The metric of binary objectives: area under the ROC curve."""
    if len(np.unique(signs)) < 2:
        raise DataError("evaluation: the labels of the rows to evaluate on are all of one class")

    def metric(scores: Array) -> float:
        # The other party decides how many scores it sends.
        if scores.shape != signs.shape:
            raise DataError(f"evaluation: scores of shape {scores.shape} given for {len(signs)} labels")
        from sklearn.metrics import roc_auc_score

        return float(roc_auc_score(signs, scores))

    return metric
