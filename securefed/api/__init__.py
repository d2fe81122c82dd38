"""The Python API in the manner of scikit-learn: an estimator for each objective."""

from __future__ import annotations

from securefed.api.generalised_linear import GeneralisedLinear, MultiClass
from securefed.api.sklearn import VerticalClassifier, VerticalRegressor
from securefed.api.transfer_learner import TransferLearner

__all__ = ["GeneralisedLinear", "MultiClass", "TransferLearner", "VerticalClassifier", "VerticalRegressor"]
