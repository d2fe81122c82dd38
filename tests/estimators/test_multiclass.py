"""Three classes and more, of any kind, beside scikit-learn on the joined table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits, load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from securefed import DataError, GeneralisedLinear, MultiClass, Party, VerticalClassifier

pytestmark = pytest.mark.filterwarnings("ignore")


def plain(**settings: Any) -> GeneralisedLinear:
    return GeneralisedLinear(scheme="plain", loss_form="taylor", allow_determined=True, **settings)


def parties(table: Any, labels: Any, count: int) -> list[Party]:
    groups = np.array_split(np.arange(table.shape[1]), count)
    last = count - 1
    return [Party(f"p{k}", table[:, g], labels if k == last else None) for k, g in enumerate(groups)]


@pytest.mark.parametrize("count", [2, 3, 5])
def test_wine_is_as_good_as_the_joined_table(count: int) -> None:
    table, target = load_wine(return_X_y=True)
    labels = np.array(["barolo", "grignolino", "barbera"])[target]
    train, test = train_test_split(np.arange(len(labels)), test_size=0.3, stratify=labels, random_state=0)
    model = MultiClass(plain()).fit(parties(table[train], labels[train], count))
    assert model.classes_.tolist() == ["barbera", "barolo", "grignolino"]
    joined = make_pipeline(StandardScaler(), LogisticRegression()).fit(table[train], labels[train])
    found = model.score(parties(table[test], labels[test], count))
    assert found > joined.score(table[test], labels[test]) - 0.02
    shares = model.predict_proba(parties(table[test], None, count))
    assert shares.shape == (len(test), 3) and np.allclose(shares.sum(axis=1), 1.0)
    assert model.holdout_ is not None and model.holdout_.metric == "accuracy"
    assert model.confusion_ is not None and model.confusion_.sum() == model.holdout_.rows
    assert set(model.results_) == set(model.classes_.tolist())


@pytest.mark.slow
def test_held_out_scores_of_all_classes_make_ten_classes_better() -> None:
    table, labels = load_digits(return_X_y=True)
    train, test = train_test_split(np.arange(len(labels)), test_size=0.3, stratify=labels, random_state=0)
    model = MultiClass(plain()).fit(parties(table[train], labels[train], 2))
    new = parties(table[test], None, 2)
    joint = np.mean(model.predict(new) == labels[test])
    each = np.mean(model.classes_[np.argmax(model.decision_function(new), axis=1)] == labels[test])
    assert joint > 0.94 and joint > each
    assert model.holdout_ is not None and abs(model.holdout_.value - joint) < 0.05


def test_two_classes_are_one_model_and_one_class_is_none() -> None:
    table, target = load_wine(return_X_y=True)
    model = MultiClass(plain(rounds=2)).fit(parties(table, target > 0, 2))
    assert len(model.models_) == 1 and model.holdout_ is model.models_[0].result_.holdout
    with pytest.raises(DataError, match="labels have 1 class"):
        MultiClass(plain()).fit(parties(table, np.zeros(len(table)), 2))


def test_the_adapter_takes_several_classes() -> None:
    table, target = load_wine(return_X_y=True)
    model = VerticalClassifier({"a": range(6), "b": range(6, 13)}, estimator=plain())
    assert cross_val_score(model, table, target, cv=3).mean() > 0.95


@pytest.mark.slow
def test_an_encrypted_run_has_the_same_answers() -> None:
    table, target = load_wine(return_X_y=True)
    made = parties(table[::2], target[::2], 2)
    hidden = MultiClass(GeneralisedLinear(score_ledger="off")).fit(made)
    twin = MultiClass(plain()).fit(made)
    new = parties(table[1::2], None, 2)
    assert np.mean(hidden.predict(new) == twin.predict(new)) > 0.97
