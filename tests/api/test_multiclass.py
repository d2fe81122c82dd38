"""Three classes and more, of any kind, beside scikit-learn on the joined table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits, load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from securefed import Blind, DataError, GeneralisedLinear, Party, Plain, SettingError, VerticalClassifier
from tests.protocols.told import told

pytestmark = pytest.mark.filterwarnings("ignore")


def plain(**settings: Any) -> GeneralisedLinear:
    return GeneralisedLinear(protection=Plain(like="blind", allow_determined=True), **settings)


def parties(table: Any, labels: Any, count: int) -> list[Party]:
    groups = np.array_split(np.arange(table.shape[1]), count)
    last = count - 1
    return [Party(f"p{k}", table[:, g], labels if k == last else None) for k, g in enumerate(groups)]


@pytest.mark.parametrize("count", [2, *(pytest.param(each, marks=pytest.mark.slow) for each in (3, 5))])
def test_wine_is_as_good_as_the_joined_table(count: int) -> None:
    table, target = load_wine(return_X_y=True)
    labels = np.array(["barolo", "grignolino", "barbera"])[target]
    train, test = train_test_split(np.arange(len(labels)), test_size=0.3, stratify=labels, random_state=0)
    model = plain().fit(parties(table[train], labels[train], count))
    assert model.classes_.tolist() == ["barbera", "barolo", "grignolino"]
    joined = make_pipeline(StandardScaler(), LogisticRegression()).fit(table[train], labels[train])
    found = model.score(parties(table[test], labels[test], count))
    assert found > joined.score(table[test], labels[test]) - 0.02
    shares = model.predict_proba(parties(table[test], None, count))
    assert shares.shape == (len(test), 3) and np.allclose(shares.sum(axis=1), 1.0)
    assert model.result_.holdout is not None and model.result_.holdout.metric == "accuracy"
    assert model.confusion_ is not None and model.confusion_.sum() == model.result_.holdout.rows
    told = json.loads(json.dumps(model.result_.holdout.to_dict()))["confusion"]
    assert told == {"classes": model.classes_.tolist(), "counts": model.confusion_.tolist()}
    assert np.trace(told["counts"]) == round(model.result_.holdout.value * model.result_.holdout.rows)
    assert len(model.models_) == len(model.classes_)


@pytest.mark.slow
def test_held_out_scores_of_all_classes_make_ten_classes_better() -> None:
    table, labels = load_digits(return_X_y=True)
    train, test = train_test_split(np.arange(len(labels)), test_size=0.3, stratify=labels, random_state=0)
    model = plain().fit(parties(table[train], labels[train], 2))
    new = parties(table[test], None, 2)
    joint = np.mean(model.predict(new) == labels[test])
    each = np.mean(model.classes_[np.argmax(model.decision_function(new), axis=1)] == labels[test])
    assert joint > 0.94 and joint > each
    assert model.result_.holdout is not None and abs(model.result_.holdout.value - joint) < 0.05


def test_two_classes_are_one_run_and_one_class_is_none() -> None:
    table, target = load_wine(return_X_y=True)
    model = plain(rounds=2).fit(parties(table, target > 0, 2))
    assert not hasattr(model, "models_")
    with pytest.raises(DataError, match="labels have 1 class"):
        plain().fit(parties(table, np.zeros(len(table)), 2))


@pytest.mark.slow
def test_the_adapter_takes_several_classes() -> None:
    table, target = load_wine(return_X_y=True)
    model = VerticalClassifier({"a": range(6), "b": range(6, 13)}, estimator=plain())
    assert cross_val_score(model, table, target, cv=3).mean() > 0.95


def test_a_blind_run_has_all_classes_and_as_many_messages_as_for_two() -> None:
    table, target = load_wine(return_X_y=True)
    table, target = table[::2], target[::2]
    together = GeneralisedLinear(rounds=3, holdout=0.0).fit(parties(table, target, 2))
    assert not hasattr(together, "models_")
    alone = GeneralisedLinear(rounds=3, holdout=0.0).fit(parties(table, target == 1, 2))
    assert alone.result_.messages(None) == together.result_.messages(None)
    new, apart = parties(table[:9], None, 2), plain(rounds=3, holdout=0.0).fit(parties(table, target, 2))
    assert len(apart.models_) == 3
    assert np.abs(apart.decision_function(new) - together.decision_function(new)).max() < 2.0**-8


def test_released_parameters_take_one_run_a_class() -> None:
    table, target = load_wine(return_X_y=True)
    model = GeneralisedLinear(rounds=2, protection=Blind(release=True)).fit(parties(table, target, 2))
    assert len(model.models_) == 3 and all(each.coef_["p0"] for each in model.models_)
    assert model.result_.holdout is not None and model.result_.holdout.metric == "accuracy"


def test_an_encrypted_run_has_the_same_answers_also_from_its_files(tmp_path: Path) -> None:
    table, target = load_wine(return_X_y=True)
    made, new = parties(table[::2], target[::2], 3), parties(table[1::2], None, 3)
    hidden, twin = GeneralisedLinear(rounds=6).fit(made), plain(rounds=6).fit(made)
    shares = hidden.predict_proba(new)
    # In plain each class has a second stage of its own.
    assert np.mean(np.argmax(shares, axis=1) == np.argmax(twin.predict_proba(new), axis=1)) > 0.93
    one, other = hidden.result_.holdout, twin.result_.holdout
    assert one is not None and other is not None
    assert one.alone == other.alone and one.rows == other.rows
    hidden.save(tmp_path)
    again = GeneralisedLinear.load(tmp_path)
    # The same question, the same answer: a score for each class, 10 + 6 bits, booked once.
    assert np.allclose(again.predict_proba(new), shares, atol=1e-5) and again.classes_.tolist() == [0, 1, 2]
    people = told(again.score_guards_["p0"]).values()
    assert set(people) == {(1, 48)}
    with pytest.raises(SettingError, match=r"save: .* call models_\[k\]\.save"):
        twin.save(tmp_path)
