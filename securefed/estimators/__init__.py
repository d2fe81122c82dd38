"""The Python API in the manner of scikit-learn: an estimator for each objective."""

from __future__ import annotations

from securefed.estimators.adapters import VerticalClassifier, VerticalRegressor
from securefed.estimators.generalised_linear import GeneralisedLinear
from securefed.estimators.multiclass import MultiClass
from securefed.estimators.transfer_learner import TransferLearner

__all__ = ["GeneralisedLinear", "MultiClass", "TransferLearner", "VerticalClassifier", "VerticalRegressor"]
