"""The Python API in the manner of scikit-learn: an estimator for each objective."""

from __future__ import annotations

from securefed.api.estimators import GeneralisedLinear, MultiClass, TransferLearner
from securefed.api.sklearn import VerticalClassifier, VerticalRegressor

__all__ = ["GeneralisedLinear", "MultiClass", "TransferLearner", "VerticalClassifier", "VerticalRegressor"]
