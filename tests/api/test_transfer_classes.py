"""TransferLearner with three classes and more: all in one blind run, or one run a class in the open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_wine

from bench.transfer_quality import digits_by_halves
from securefed import DataError, FedSGD, Monitoring, Party, Plain, TransferLearner
from securefed.labels.several import ClassModels
from securefed.protocols.losses import get_loss
from tests.protocols.told import told

pytestmark = pytest.mark.filterwarnings("ignore")
NAMES = np.array(["barolo", "grignolino", "barbera"])
WINE, KINDS = load_wine(return_X_y=True)


def wine(labels: Any = NAMES[KINDS], shared: int = 90) -> tuple[list[Party], list[Party]]:
    """A has three measurements and the kind of most bottles, B four others; and B's other bottles."""
    order, ids = np.random.default_rng(0).permutation(len(WINE)), np.arange(len(WINE)).astype(str)
    known, own, new = order[:130], order[130 - shared : 150], order[130:]
    bank = Party("bank", WINE[known][:, :3], labels=labels[known], ids=ids[known])
    shop = Party("shop", WINE[own][:, 9:], ids=ids[own])
    others = [
        Party("shop", WINE[new][:, 9:], ids=ids[new]),
        Party("bank", WINE[new][::-1, :3], labels=NAMES[KINDS[new]][::-1], ids=ids[new][::-1]),
    ]
    return [shop, bank], others


def with_gaps() -> NDArray[Any]:
    labels = NAMES[KINDS].astype(object)
    labels[::7] = None
    return labels


@pytest.fixture(scope="module")
def blind() -> tuple[TransferLearner, list[Party]]:
    given, others = wine(with_gaps())
    return TransferLearner(algorithm=FedSGD(), rounds=1, holdout=0.4).fit(given), others


@pytest.mark.slow
def test_one_blind_run_has_all_classes(blind: tuple[TransferLearner, list[Party]], tmp_path: Path) -> None:
    model, others = blind
    assert model.classes_.tolist() == ["barbera", "barolo", "grignolino"]
    shares = model.predict_proba(others[0])
    assert shares.shape == (48, 3) and np.allclose(shares.sum(axis=1), 1.0)
    assert model.decision_function(others[0]).shape == (48, 3)
    assert (model.predict(others[0]) == model.classes_[np.argmax(shares, axis=1)]).all()
    assert model.score(others) > 0.9
    # Nothing opened, and two questions to the ledger (held-out people, others), of 3 x (10 + 6) bits each.
    assert model.result_.protected and not model.result_.ledger
    assert set(told(model.score_guards_["shop"]).values()) == {(1, 48)}
    held = model.result_.holdout
    assert held is not None and held.metric == "accuracy" and held.value > 0.8 > held.alone
    assert np.sum(held.confusion) == held.rows and 20 < held.rows < 36  # of 36 some have no label
    model.save(tmp_path)
    again = TransferLearner.load(tmp_path)
    assert np.allclose(again.predict_proba(others[0]), shares, atol=1e-3)


@pytest.mark.slow
def test_two_classes_take_as_many_messages(blind: tuple[TransferLearner, list[Party]]) -> None:
    given, _ = wine(KINDS == 1)
    binary = TransferLearner(algorithm=FedSGD(), rounds=1, holdout=0.4).fit(given)
    assert binary.result_.messages(None) == blind[0].result_.messages(None)
    assert binary.result_.holdout is not None and binary.result_.holdout.metric == "AUC"
    assert binary._label_model.calibration is not None


def test_ten_digits_by_halves_are_learnt_as_well_as_by_who_has_the_labels() -> None:
    """Default settings, 300 of 1,500 people shared. B's half alone says less than the whole: a logistic
    regression of B's columns with A's labels is what there is.
    """
    halves = digits_by_halves(0)
    usual = halves.baselines
    assert halves.learnt() > max(0.83, usual["B's half, 300 labels"] - 0.02)
    assert usual["both halves, 300 labels"] > 0.9 > usual["B's half, 300 labels"]  # what half of them lack


def test_in_the_open_there_is_one_run_a_class() -> None:
    settings: dict[str, Any] = {"protection": Plain(allow_determined=True), "rounds": 20, "holdout": 0.4}
    given, others = wine(with_gaps())
    model = TransferLearner(4, algorithm=FedSGD(), learning_rate=0.1, **settings).fit(given)
    assert len(model.models_) == 3
    assert model.score(others) > 0.85 and model.predict_proba(others).shape == (48, 3)
    assert model.result_.holdout is not None and model.confusion_.sum() == model.result_.holdout.rows


def test_labels_that_are_no_classes_are_refused() -> None:
    def refused(labels: Any, match: str) -> None:
        with pytest.raises(DataError, match=match):
            TransferLearner().fit(wine(labels)[0])

    refused(np.full(178, "red"), "labels have 1 classes .* nothing to learn")
    refused(WINE[:, 0], "bank: labels are numbers such as .* whole numbers")
    refused(np.arange(178), "labels have 130 classes .* in 130 rows")
    gone = NAMES[KINDS].astype(object)
    gone[:] = None
    refused(gone, "labels have 0 classes")
    side, _ = ClassModels.with_gaps(NAMES, "bank", get_loss("logistic"))
    with pytest.raises(DataError, match="labels chianti given, the classes are barbera, barolo, grignolino"):
        side.beside(np.array(["chianti", "barolo"]), np.zeros((2, 3)), "bank", None, "half")


@pytest.mark.slow
def test_a_class_that_no_shared_person_has_is_never_answered() -> None:
    """A knows it all the same; and evaluations say which rows they cannot be made on."""
    given, others = wine()
    ids = set(np.asarray(given[0].ids)) & set(np.asarray(given[1].ids))
    bank = given[1]
    labels = np.where(
        [who in ids and each == "barolo" for who, each in zip(bank.ids, bank.labels, strict=True)],
        "barbera",
        np.asarray(bank.labels),
    )
    assert "barolo" in labels
    bank = bank.relabelled(labels)
    with pytest.warns(UserWarning, match="nobody shared with shop to learn from has the label barolo"):
        model = TransferLearner(algorithm=FedSGD(), rounds=1).fit([given[0], bank])
    assert len(model.classes_) == 3 and "barolo" not in model.predict(others[0])
    with pytest.raises(DataError, match="rows to evaluate on lack a class"):
        TransferLearner(monitoring=Monitoring(evaluate_every=1)).fit([given[0], bank])
