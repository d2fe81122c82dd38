"""GeneralisedLinear: what it learns, predicts and says about itself."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler

from securefed import (
    FedBCD,
    FedSGD,
    GeneralisedLinear,
    InverseSqrt,
    Monitoring,
    OwnGradient,
    Party,
    Plain,
    SettingError,
    Simulation,
)
from securefed.engine import Processes
from securefed.models import LinearModel
from securefed.protocols.own_gradient.ledger import LedgerRefusal
from tests.api.cases import columns, parties, plain, raw
from tests.protocols.federation import Keys

Array = NDArray[np.float64]


def weights(model: GeneralisedLinear) -> Array:
    return np.concatenate([model.shards_[name].parameters for name in model.parties_])


# In the manner of scikit-learn.


def test_parameters_can_be_read_set_and_cloned() -> None:
    model = GeneralisedLinear(loss="linear", algorithm=FedBCD(7, proximal=0.1), l2=0.5)
    settings = model.get_params()
    assert settings["algorithm"] == FedBCD(7, proximal=0.1)
    assert {"loss", "protection", "learning_rate", "rounds", "seed", "simulation"} <= set(settings)
    copy = clone(model)
    assert copy is not model
    assert copy.get_params() == settings
    assert model.set_params(rounds=3, protection=Plain()) is model
    assert (model.rounds, model.protection, copy.rounds) == (3, Plain(), settings["rounds"])
    with pytest.raises(ValueError, match="Invalid parameter 'round'"):
        model.set_params(round=3)
    assert raw(**settings).get_params() == settings


def test_a_clone_is_not_fitted_and_learns_the_same() -> None:
    model = plain().fit(parties())
    copy = clone(model)
    assert not hasattr(copy, "shards_")
    assert np.array_equal(weights(copy.fit(parties())), weights(model))


def test_fit_returns_the_estimator_and_changes_no_parameter() -> None:
    mine = LinearModel(3)
    model = plain(protection=Plain(local_model={"p0": mine}, hidden=[4]))
    before = model.get_params()
    assert model.fit(parties()) is model
    assert model.get_params() == before
    assert not mine.parameters.any()  # a model that was given is a start, and stays as it was
    first = weights(model)
    assert np.array_equal(weights(model.fit(parties())), first)  # fitting again starts again


def test_a_model_of_ones_own_is_where_training_starts() -> None:
    mine = LinearModel(3)
    mine.parameters = np.array([1.0, -2.0, 0.5])
    model = plain(rounds=1, learning_rate=1e-9, l2=0.0, protection=Plain(local_model={"p0": mine})).fit(
        parties()
    )
    assert np.abs(model.shards_["p0"].parameters - mine.parameters).max() < 1e-6


@pytest.mark.slow
def test_torch_modules_train_in_plain_and_can_be_cloned() -> None:
    torch = pytest.importorskip("torch")
    from securefed.models.torch import TorchModel

    torch.manual_seed(0)
    mine = TorchModel(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)))
    start = mine.parameters
    model = plain(rounds=20, protection=Plain(local_model={"p0": mine}))
    copy = clone(model)
    assert copy.protection.local_model["p0"] is not mine
    assert copy.fit(parties()).score(parties()) > 0.8
    assert np.array_equal(mine.parameters, start)
    with pytest.raises(ValueError, match="torch modules run only in scheme"):
        plain(protection=Plain(like="blind", local_model={"p0": mine})).fit(parties())


# Predictions.


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("local", ["linear", "network"])
def test_predictions_are_those_of_the_shards(count: int, local: str) -> None:
    model = plain(protection=Plain(local_model=local, hidden=(3,))).fit(parties(count))
    blocks, labels = columns(count, 12, seed=1)
    new = parties(count, 12, seed=1, labels=False)
    margins = sum(
        model.shards_[name].forward(block) for name, block in zip(model.parties_, blocks, strict=True)
    )
    assert np.abs(model.decision_function(new) - margins).max() < 1e-12
    probabilities = model.predict_proba(new)
    assert np.abs(probabilities[:, 1] - 1 / (1 + np.exp(-margins))).max() < 1e-12
    assert np.abs(probabilities.sum(axis=1) - 1).max() < 1e-12
    assert np.array_equal(model.predict(new), (margins > 0).astype(int))
    scored = parties(count, 12, seed=1)
    assert model.score(scored) == np.mean((margins > 0).astype(int) == labels)


@pytest.mark.parametrize(
    ("scheme", "count"),
    [("ckks", 2), ("ckks", 3), ("paillier", 3), pytest.param("paillier", 2, marks=pytest.mark.slow)],
)
def test_encrypted_predictions_are_the_plain_ones(scheme: str, count: int, keys: Keys) -> None:
    """The same parameters, scored under encryption."""
    reference = plain(rounds=2, protection=Plain(like="blind")).fit(parties(count, 10))
    names = ["p0", "p1"] if count == 2 else ["key-holder"]
    model = raw(rounds=2, algorithm=FedSGD(), protection=OwnGradient(scheme=scheme))
    model.fit(parties(count, 10), keys={name: keys.holder(scheme, i) for i, name in enumerate(names)})
    for name in model.parties_:
        model.shards_[name].parameters = reference.shards_[name].parameters
    new = parties(count, 6, seed=1, labels=False)
    assert reference._label_model.link is not None
    expected = reference.decision_function(new) / reference._label_model.link.step
    # As in protocols/test_prediction.py, with margins up to 64: 2^-33 each for Paillier, 2^-23 * 64 for CKKS.
    # Each of the others blurs by up to half a step of 2^-10.
    tolerance = count * (2.0**-33 if scheme == "paillier" else 2.0**-17) + (count - 1) * 2.0**-11
    assert np.abs(model.decision_function(new) - expected).max() <= tolerance


@pytest.mark.parametrize(
    ("given", "classes"),
    [
        (["no", "yes"], ["no", "yes"]),
        ([False, True], [False, True]),
        ([-1, 1], [-1, 1]),
        ([2.5, 7.0], [2.5, 7.0]),
        (["yes", "no"], ["no", "yes"]),
        ([np.float64(0.0), np.float64(1.0)], [0.0, 1.0]),
    ],
)
def test_any_two_labels_will_do(given: list[Any], classes: list[Any]) -> None:
    blocks, labels = columns()
    named = np.array(given, dtype=object)[labels]
    model = plain(rounds=20).fit([Party("a", blocks[0]), Party("b", blocks[1], labels=named)])
    assert model.classes_.tolist() == classes
    predicted = model.predict([Party("a", blocks[0]), Party("b", blocks[1])])
    assert set(predicted.tolist()) == set(classes)
    assert np.mean(predicted == named) > 0.8
    assert model.score([Party("a", blocks[0]), Party("b", blocks[1], labels=named)]) > 0.8


def test_linear_regression() -> None:
    blocks, _ = columns()
    target = 3 * blocks[0][:, 0] - blocks[1][:, 2] + 5
    made = [Party("a", blocks[0]), Party("b", blocks[1], labels=target)]
    model = plain(loss="linear", rounds=60, learning_rate=0.1, l2=0.0).fit(made)
    assert model.score(made) > 0.99
    predicted = model.predict(made)
    assert np.corrcoef(predicted, target)[0, 1] > 0.99
    with pytest.raises(ValueError, match="predict_proba: a loss of classes has probabilities"):
        model.predict_proba(made)


def test_squared_hinge_has_classes_and_no_probabilities() -> None:
    model = plain(loss="squared_hinge", learning_rate=0.05, rounds=30).fit(parties())
    assert model.score(parties()) > 0.8
    with pytest.raises(ValueError, match="squared_hinge"):
        model.predict_proba(parties())


@pytest.mark.parametrize("order", ["given", "turned"])
def test_rows_are_aligned_by_ids(order: str) -> None:
    """Different order, people that only one party knows; predictions come in the label party's order."""
    blocks, labels = columns(2)
    generator = np.random.default_rng(3)
    people = [f"person-{i}" for i in range(30)]
    mixed = generator.permutation(30)
    first = Party("p0", blocks[0][mixed], ids=[people[i] for i in mixed])
    last = Party("p1", blocks[1][5:], labels=labels[5:], ids=people[5:])
    both = [first, last] if order == "given" else [last, first]
    model = plain().fit(both)
    expected = plain().fit([Party("p0", blocks[0][5:]), Party("p1", blocks[1][5:], labels=labels[5:])])
    assert np.array_equal(weights(model), weights(expected))
    new = [Party("p1", blocks[1][10:], ids=people[10:]), first]
    aligned = [Party("p0", blocks[0][10:]), Party("p1", blocks[1][10:])]
    assert np.array_equal(model.decision_function(new), expected.decision_function(aligned))


def test_the_label_party_may_come_first() -> None:
    blocks, labels = columns()
    one = plain().fit([Party("a", blocks[0]), Party("b", blocks[1], labels=labels)])
    two = plain().fit([Party("b", blocks[1], labels=labels), Party("a", blocks[0])])
    assert one.parties_ == two.parties_ == ["a", "b"]
    assert np.array_equal(weights(one), weights(two))


def test_a_constant_column_is_fine() -> None:
    blocks, labels = columns()
    constant = np.hstack([blocks[0], np.full((30, 1), 3.0), np.zeros((30, 1))])
    model = plain().fit([Party("a", constant), Party("b", blocks[1], labels=labels)])
    assert np.isfinite(weights(model)).all()


def test_few_rows_can_be_predicted_after_training_in_batches() -> None:
    model = plain(protection=Plain(batch_size=16)).fit(parties())
    assert model.predict(parties(rows=2, labels=False)).shape == (2,)


# Results.


def test_evaluation_watches_the_rows_of_the_training() -> None:
    train = parties()
    own = plain(rounds=3, monitoring=Monitoring(evaluate_every=1)).fit(train)
    assert [t for t, _ in own.result_.history] == [0, 1, 2]
    assert own.result_.metric == pytest.approx(roc_auc_score(columns()[1], own.decision_function(train)))


def test_training_stops_at_a_target_or_without_progress() -> None:
    found = plain(rounds=20, monitoring=Monitoring(target=0.5)).fit(parties()).result_
    assert (found.reason, found.rounds) == ("target", 1)
    stuck = plain(rounds=50, learning_rate=1e-12, monitoring=Monitoring(patience=2)).fit(parties()).result_
    assert (stuck.reason, stuck.rounds) == ("no progress", 3)


def test_a_result_says_what_it_took(keys: Keys) -> None:
    model = raw(rounds=2, algorithm=FedBCD(3), learning_rate=InverseSqrt(0.2), protection=OwnGradient())
    result = model.fit(parties(), keys={"p0": keys.holder("ckks", 0), "p1": keys.holder("ckks", 1)}).result_
    assert result.protected and result.scheme == "ckks"
    assert result.messages()["contribution"] == 4
    assert result.bytes_exchange > 0 and result.bytes_open > 0
    assert result.computation + result.communication == result.total
    told = json.loads(json.dumps(result.to_dict()))
    assert told["settings"]["learning_rate"] == "InverseSqrt(eta0=0.2)"
    assert "NOT PROTECTED" not in str(result)
    assert "NOT PROTECTED" in str(plain().fit(parties()).result_)


def test_openings_past_the_line_are_refused_unless_allowed(keys: Keys) -> None:
    small = parties(rows=3)
    with pytest.raises(LedgerRefusal):
        raw(rounds=4, protection=Plain(like="own-gradient")).fit(small)
    result = raw(rounds=4, protection=Plain(like="own-gradient", allow_determined=True)).fit(small).result_
    assert result.determined


def test_plain_is_exact_unless_told_otherwise() -> None:
    exact, taylor = plain().fit(parties()), plain(protection=Plain(like="blind")).fit(parties())
    assert exact.result_.messages()["opening"] == 0 < taylor.result_.messages()["opening"]
    assert not np.allclose(weights(exact), weights(taylor))


@pytest.mark.parametrize("engine", [pytest.param(1, marks=pytest.mark.slow), Processes(2)])
def test_engines_give_the_same_model(engine: Any, keys: Keys) -> None:
    settings = {"protection": OwnGradient(scheme="paillier"), "rounds": 2}
    given = {"p0": keys.holder("paillier", 0), "p1": keys.holder("paillier", 1)}
    serial = raw(simulation=Simulation(engine="serial"), **settings).fit(parties(rows=8), keys=given)
    other = raw(simulation=Simulation(engine=engine), **settings).fit(parties(rows=8), keys=given)
    assert np.array_equal(weights(serial), weights(other))


# Progress.


def test_there_is_no_bar_unless_at_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    plain().fit(parties())
    assert capfd.readouterr() == ("", "")


def test_there_is_a_bar_at_a_terminal(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    plain().fit(parties())
    assert "4/4" in capfd.readouterr().err
    plain(simulation=Simulation(progress=False)).fit(parties())
    assert capfd.readouterr().err == ""


def test_a_bar_shows_rounds_metric_and_time(capfd: pytest.CaptureFixture[str]) -> None:
    plain(simulation=Simulation(progress=True), monitoring=Monitoring(evaluate_every=1)).fit(parties())
    out, err = capfd.readouterr()
    assert out == ""
    for part in ("FedBCD-p", "4/4", "metric=", "comp=", "comm="):
        assert part in err


def test_a_bar_is_closed_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(LedgerRefusal):
        raw(rounds=4, protection=Plain(like="own-gradient"), simulation=Simulation(progress=True)).fit(
            parties(rows=3)
        )
    assert capfd.readouterr().err.endswith("\n")


# Against scikit-learn.


def breast_cancer() -> tuple[list[Party], list[Party], NDArray[Any], float]:
    """Two parties with 15 columns each, for training and held out; the labels of the latter; and the AUC of
    scikit-learn's logistic regression on all columns together.
    """
    features, labels = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    train, held_out = order[:400], order[400:]
    scaler = StandardScaler().fit(features[train])
    rival = LogisticRegression(max_iter=1000).fit(scaler.transform(features[train]), labels[train])
    auc = roc_auc_score(labels[held_out], rival.decision_function(scaler.transform(features[held_out])))

    scaled = scaler.transform(features)

    def made(rows: Any, target: Any) -> list[Party]:
        return [Party("lab", scaled[rows, :15]), Party("clinic", scaled[rows, 15:], labels=target)]

    return made(train, labels[train]), made(held_out, None), labels[held_out], float(auc)


@pytest.mark.parametrize(
    "settings",
    [
        {"protection": Plain()},
        {"protection": Plain(like="blind")},
        {"protection": Plain(), "algorithm": FedSGD(), "rounds": 100},
        {"protection": Plain(), "algorithm": FedBCD(5, "sequential")},
        {"protection": OwnGradient(), "rounds": 15},
    ],
    ids=["plain exact", "plain taylor", "FedSGD", "FedBCD-s", "ckks"],
)
def test_breast_cancer_is_as_good_as_with_scikit_learn(settings: dict[str, Any], keys: Keys) -> None:
    train, held_out, labels, rival = breast_cancer()
    model = raw(**{"algorithm": FedBCD(5), "rounds": 30, **settings})
    holders = {"lab": keys.holder("ckks", 0), "clinic": keys.holder("ckks", 1)}
    model.fit(train, keys=holders if settings["protection"] == OwnGradient() else None)
    assert roc_auc_score(labels, model.decision_function(held_out)) > rival - 0.005


def test_a_fit_that_fails_leaves_the_model_that_was_there() -> None:
    """Its label party had begun to count in another unit, and answered in that."""
    settings: dict[str, Any] = {"algorithm": FedBCD(3), "learning_rate": 0.2, "holdout": 0.3, "rounds": 3}
    model = GeneralisedLinear("linear", protection=Plain(like="blind"), **settings).fit(parties(rows=100))
    asked, other = parties(rows=5, seed=3), parties(rows=100, seed=1)
    before = model.predict(asked)
    other[-1] = Party(other[-1].name, other[-1].features, labels=1000.0 * np.arange(100))
    with pytest.raises(SettingError):
        model.set_params(learning_rate=1e9).fit(other)
    assert np.array_equal(model.predict(asked), before)
