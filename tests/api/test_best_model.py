"""Where evaluations are watched the best model is kept, not the last; also where nobody can see it."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from securefed import Blind, FedBCD, GeneralisedLinear, Monitoring, Party, Plain
from securefed.protocols.schedules import LearningRate, held_out
from securefed.settings import Protection
from tests.api.cases import columns, parties

pytestmark = pytest.mark.filterwarnings("ignore")


class Away(LearningRate):
    """Three good rounds, and then steps in the wrong direction, so that the best is not the last."""

    def __call__(self, t: int) -> float:
        return 0.3 if t < 3 else 1e-3 if t < 5 else 3.0

    def __repr__(self) -> str:
        return "Away()"


@pytest.mark.parametrize(
    "protection", [Plain(like="blind", allow_determined=True), Blind(score_ledger="off")]
)
@pytest.mark.slow
def test_the_best_model_is_kept(protection: Protection) -> None:
    model = GeneralisedLinear(
        algorithm=FedBCD(1),
        rounds=9,
        learning_rate=Away(),
        allow_unstable=True,
        standardise=False,
        holdout=0.5,
        monitoring=Monitoring(target=1.1),
        protection=protection,
    )
    model.fit(parties(rows=120))
    history = dict(model.result_.history)
    assert len(history) == 9 and model.result_.rounds == 9
    blocks, labels = columns(rows=120)
    aside = held_out(120, 0.5, 0)[1]
    labels = labels[aside]
    scores = model.decision_function([Party("p0", blocks[0][aside]), Party("p1", blocks[1][aside])])
    found = roc_auc_score(labels, scores)
    assert found == pytest.approx(max(history.values()), abs=0.01)
    held = model.result_.holdout
    assert held is not None and held.value == pytest.approx(max(history.values()))
    assert np.isfinite(scores).all()
