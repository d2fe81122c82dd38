"""A metric from outside the package."""

from __future__ import annotations

import numpy as np

from securefed.labels.metrics import Answers, Metric, register


def youden(answers: Answers) -> float:
    """Sensitivity + specificity - 1, at a probability of a half."""
    hit, positive = np.asarray(answers.predictions) > 0, answers.truth > 0
    return float(hit[positive].mean() - hit[~positive].mean())


YOUDEN = Metric("Youden", ("two classes",), ("scores", "predictions"), youden)
register(YOUDEN)
