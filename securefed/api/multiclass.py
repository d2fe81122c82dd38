"""MultiClass of version 0.1: estimators handle three classes and more by themselves now."""

from __future__ import annotations

import warnings
from typing import Any

from sklearn.base import clone

from securefed.api.generalised_linear import GeneralisedLinear

__all__ = ["MultiClass"]


def MultiClass(estimator: Any = None) -> Any:  # the name of the class that it was
    """Return the estimator; it takes labels of two classes or more. Deprecated."""
    warnings.warn(
        "MultiClass will go with the next version; GeneralisedLinear and TransferLearner take three classes"
        " and more by themselves",
        DeprecationWarning,
        stacklevel=2,
    )
    return GeneralisedLinear() if estimator is None else clone(estimator)
