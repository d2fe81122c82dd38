"""Where evaluations are watched the best model is kept, not the last; also where nobody can see it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from securefed import FedBCD, GeneralisedLinear, Party
from securefed.protocols.schedules import LearningRate
from tests.api.cases import columns, parties
from tests.flat import estimator

pytestmark = pytest.mark.filterwarnings("ignore")


class Away(LearningRate):
    """Three good rounds, and then steps in the wrong direction, so that the best is not the last."""

    def __call__(self, t: int) -> float:
        return 0.3 if t < 3 else 1e-3 if t < 5 else 3.0

    def __repr__(self) -> str:
        return "Away()"


@pytest.mark.parametrize("settings", [{"scheme": "plain", "loss_form": "taylor"}, {"score_ledger": "off"}])
@pytest.mark.slow
def test_the_best_model_is_kept(settings: dict[str, Any]) -> None:
    made, new = parties(rows=60), parties(rows=60, seed=3)
    model = estimator(
        GeneralisedLinear,
        algorithm=FedBCD(1),
        rounds=9,
        target=1.1,
        learning_rate=Away(),
        allow_unstable=True,
        allow_determined=True,
        standardise=False,
        **settings,
    )
    model.fit(made, validation=new)
    history = dict(model.result_.history)
    assert len(history) == 9 and model.result_.rounds == 9
    blocks, labels = columns(rows=60, seed=3)
    scores = model.decision_function([Party("p0", blocks[0]), Party("p1", blocks[1])])
    found = roc_auc_score(labels, scores)
    assert found == pytest.approx(max(history.values()), abs=0.01)
    held = model.result_.holdout
    assert held is not None and held.value == pytest.approx(max(history.values()))
    assert np.isfinite(scores).all()
