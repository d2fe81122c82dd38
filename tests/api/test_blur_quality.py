"""What blurred scores cost: nothing that a metric sees."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler

from securefed import GeneralisedLinear, OwnGradient, Party, Plain
from securefed.data.columns import column_bits
from securefed.protocols.scoring.score_ledger import allowed_scorings

FEATURES, LABELS = load_breast_cancer(return_X_y=True)
ROWS = StandardScaler().fit_transform(FEATURES)
TRAINED, NEW = np.arange(398), np.arange(398, 569)


def parties(rows: np.ndarray, *, labelled: bool) -> list[Party]:
    labels = LABELS[rows] if labelled else None
    return [Party("shop", ROWS[rows, :15]), Party("bank", ROWS[rows, 15:], labels=labels)]


@pytest.mark.parametrize("precision", [8, 10])
@pytest.mark.parametrize("scheme", ["ckks", pytest.param("paillier", marks=pytest.mark.slow)])
def test_area_and_accuracy_on_breast_cancer_stay_the_same(
    scheme: str, precision: int, tmp_path: Path
) -> None:
    plain = GeneralisedLinear(rounds=6, protection=Plain(like="blind")).fit(parties(TRAINED, labelled=True))
    exact = plain.decision_function(parties(NEW, labelled=False))
    plain.save(tmp_path)
    model = GeneralisedLinear.load(
        tmp_path, protection=OwnGradient(scheme=scheme, key_bits=2048, score_precision=precision)
    )
    blurred = model.decision_function(parties(NEW, labelled=False))
    assert model._label_model.link is not None
    step = model._label_model.link.step
    # The blur, and the noise of CKKS: its deviation is 2^-17 a score, measured at 24 bits of precision.
    # One of 171 scores is beyond eight deviations with a chance below 1e-12.
    most = step * (2.0 ** -(precision + 1) + 2.0**-14)
    assert step * 2.0 ** -(precision + 3) < np.abs(blurred - exact).max() <= most
    # Only scores that are nearer to each other, or to 0, than their blur can change places.
    positive = LABELS[NEW] > 0
    near = np.mean(np.abs(np.subtract.outer(exact[positive], exact[~positive])) <= 2 * most)
    areas = [roc_auc_score(LABELS[NEW], scores) for scores in (exact, blurred)]
    assert areas[0] > 0.9 and abs(areas[0] - areas[1]) <= near < 2e-3
    unsure = np.mean(np.abs(exact) <= most)
    right = [np.mean((scores > 0) == LABELS[NEW]) for scores in (exact, blurred)]
    assert abs(right[0] - right[1]) <= unsure < 0.02


def test_fifteen_columns_of_398_people_bear_three_scorings() -> None:
    """At 10 bits three scorings are allowed, at 5 bits five."""
    held = column_bits(ROWS[TRAINED, :15])
    assert round(held) == 127
    assert allowed_scorings(held, 10) == 3
    assert allowed_scorings(held, 5) == 5
