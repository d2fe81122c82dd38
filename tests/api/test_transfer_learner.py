"""TransferLearner: what it learns, predicts and says about itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score

from securefed import Blind, FedBCD, FedSGD, Monitoring, OwnGradient, Party, Plain, TransferLearner
from securefed.errors import SettingError
from securefed.protocols.agreement import TrustWarning
from securefed.protocols.blind.scoring import ModelPart
from securefed.protocols.own_gradient.ledger import LedgerRefusal
from tests.api.cases import columns
from tests.protocols import reference
from tests.protocols.federation import Keys

Array = NDArray[np.float64]
BLOCKS, LABELS = columns(rows=40)


def learner(**settings: Any) -> TransferLearner:
    return TransferLearner(
        **{
            "hidden": 3,
            "protection": Plain(allow_determined=True),
            "rounds": 3,
            "learning_rate": 0.05,
            "standardise": False,
        }
        | settings
    )


def people(labels: Any = LABELS) -> list[Party]:
    """A knows 40 people, B 25; twenty of them are the same, in another order."""
    order = np.random.default_rng(1).permutation(25) + 20
    shop = Party("shop", BLOCKS[0][order % 40], ids=[f"id-{i}" for i in order])
    bank = Party("bank", BLOCKS[1], labels=labels, ids=[f"id-{i}" for i in range(40)])
    return [shop, bank]


def test_parameters_can_be_read_set_and_cloned() -> None:
    model = TransferLearner(8, algorithm=FedBCD(3), gamma=0.1)
    assert clone(model).get_params() == model.get_params()
    assert model.set_params(hidden=4).hidden == 4
    assert not hasattr(clone(learner().fit(people())), "shards_")


@pytest.mark.parametrize("activation", ["sigmoid", "tanh", "relu"])
def test_training_is_that_of_the_reference(activation: str) -> None:
    """From the same start, over the shared people in A's order."""
    start = learner(
        rounds=1,
        learning_rate=1e-12,
        protection=Plain(optimiser="sgd", activation=activation, allow_determined=True),
    ).fit(people())
    model = learner(
        algorithm=FedBCD(2), protection=Plain(optimiser="sgd", activation=activation, allow_determined=True)
    ).fit(people())
    shop, bank = people()
    known = {str(value): row for row, value in enumerate(shop.ids.tolist())}
    shared = [row for row, value in enumerate(bank.ids.tolist()) if str(value) in known]
    problem = reference.TransferProblem(
        bank.features,
        shop.features,
        np.array(shared),
        np.array([known[f"id-{row}"] for row in shared]),
        np.where(LABELS > 0, 1.0, -1.0),
        3,
        activation,
        0.05 / 32,
        1e-5,
    )
    expected = reference.block_descent(
        [start.shards_[name].parameters for name in ("shop", "bank")],
        problem.gradient,
        rounds=3,
        local_steps=2,
        sequential=False,
        proximal=0.0,
        eta=lambda t: 0.05,
        batch=lambda t: np.arange(len(shared)),
    )
    for name, theta in zip(("shop", "bank"), expected, strict=True):
        assert np.abs(model.shards_[name].parameters - theta).max() < 1e-9
    scores = problem.scores(expected[0], expected[1], shop.features)
    assert np.abs(model.decision_function(shop) - scores).max() < 1e-9


def test_predictions() -> None:
    model = learner(rounds=20).fit(people())
    shop, bank = people()
    scores = model.decision_function(shop)
    assert scores.shape == (25,)
    assert np.array_equal(model.predict(shop), (scores > 0).astype(int))
    assert np.abs(model.predict_proba(shop)[1] - 1 / (1 + np.exp(-scores))).max() < 1e-12
    assert np.array_equal(model.predict([shop, bank]), model.predict(shop))
    known = dict(zip(bank.ids.tolist(), LABELS, strict=True))
    right = [known[i] == p for i, p in zip(shop.ids.tolist(), model.predict(shop), strict=True) if i in known]
    assert model.score([shop, bank]) == np.mean(right)


@pytest.mark.parametrize("scheme", [pytest.param("paillier", marks=pytest.mark.slow), "ckks"])
def test_an_encrypted_model_is_the_plain_one(scheme: str, keys: Keys) -> None:
    """To what the rounding of an opening makes of Adam's first steps (see protocols/test_encrypted.py)."""
    settings: dict[str, Any] = {"rounds": 2, "algorithm": FedBCD(2), "hidden": 2}
    options: dict[str, Any] = {"optimiser": "sgd", "allow_determined": True}
    shared = [Party("shop", BLOCKS[0][:8]), Party("bank", BLOCKS[1][:8], labels=LABELS[:8])]
    plain = learner(**settings, protection=Plain(**options)).fit(shared)
    holders = {"shop": keys.holder(scheme, 0), "bank": keys.holder(scheme, 1)}
    with pytest.warns(TrustWarning, match="finds the labels"):
        model = learner(**settings, protection=OwnGradient(scheme=scheme, **options)).fit(
            shared, keys=holders
        )
    for name in ("shop", "bank"):
        distance = np.abs(model.shards_[name].parameters - plain.shards_[name].parameters).max()
        assert 0 < distance < 1e-5
    new = Party("shop", BLOCKS[0][8:14])
    assert np.abs(model.decision_function(new) - plain.decision_function(new)).max() < 2.0**-11 + 1e-4
    assert model.result_.protected


@pytest.mark.parametrize("gap", [None, np.nan])
def test_labels_may_be_missing(gap: Any) -> None:
    some = [gap if i % 3 == 0 else int(label) for i, label in enumerate(LABELS)]
    model = learner().fit(people(some))
    assert model.classes_.tolist() == [0, 1]
    words = [None if i % 3 == 0 else ("bad", "good")[int(label)] for i, label in enumerate(LABELS)]
    named = learner().fit(people(words))
    assert named.classes_.tolist() == ["bad", "good"]
    shop, _ = people()
    assert np.array_equal(model.decision_function(shop), named.decision_function(shop))
    assert set(named.predict(shop)) <= {"bad", "good"}


def test_without_ids_all_rows_are_shared() -> None:
    shop, bank = Party("shop", BLOCKS[0]), Party("bank", BLOCKS[1], labels=LABELS)
    one = learner().fit([shop, bank])
    two = learner().fit([bank, shop])
    assert one.parties_ == two.parties_ == ["shop", "bank"]
    assert np.array_equal(one.shards_["shop"].parameters, two.shards_["shop"].parameters)


def test_evaluation_looks_at_shared_labelled_people() -> None:
    some = [None if i < 25 else int(label) for i, label in enumerate(LABELS)]
    shop, bank = people(some)
    model = learner(monitoring=Monitoring(evaluate_every=1)).fit([shop, bank])
    known = {value: label for value, label in zip(bank.ids.tolist(), some, strict=True) if label is not None}
    rows = [row for row, value in enumerate(shop.ids.tolist()) if value in known]
    labels = [known[shop.ids[row]] for row in rows]
    scores = model.decision_function(Party("shop", shop.features[rows]))
    assert model.result_.metric == pytest.approx(roc_auc_score(labels, scores))


def test_training_stops_at_a_target() -> None:
    result = learner(rounds=100, monitoring=Monitoring(target=0.6)).fit(people()).result_
    assert result.reason == "target"
    assert result.metric is not None and result.metric >= 0.6
    assert len(result.history) == result.rounds


def test_the_ledger_is_asked() -> None:
    with pytest.raises(LedgerRefusal):
        learner(algorithm=FedBCD(50), protection=Plain()).fit(people())
    fine = learner(algorithm=FedSGD(), protection=Plain()).fit(people()).result_
    assert not fine.determined
    assert learner(algorithm=FedBCD(50), rounds=1).fit(people()).result_.determined


def test_batches_and_a_single_row() -> None:
    model = learner(protection=Plain(batch_size=8, allow_determined=True)).fit(people())
    assert model.predict(Party("shop", BLOCKS[0][:1])).shape == (1,)
    assert model.result_.rounds == 3


def test_a_seed_gives_the_same_model_again_and_another_one_another() -> None:
    one, two, three = (learner(seed=seed).fit(people()) for seed in (1, 1, 2))
    assert np.array_equal(one.shards_["shop"].parameters, two.shards_["shop"].parameters)
    assert not np.allclose(one.shards_["shop"].parameters, three.shards_["shop"].parameters)


@pytest.fixture(scope="module")
def blind() -> tuple[TransferLearner, list[Party]]:
    """Tumours: A has five measurements and the diagnosis, B five others; 120 patients are shared."""
    table, labels = load_breast_cancer(return_X_y=True)
    names = np.arange(len(table)).astype(str)
    bank = Party("bank", table[:160, :5], labels=labels[:160], ids=names[:160])
    shop = Party("shop", table[40:200, 20:25], ids=names[40:200])
    made = TransferLearner(
        algorithm=FedSGD(),
        rounds=1,
        protection=Blind(),
        monitoring=Monitoring(evaluate_every=1),
    )
    model = made.fit([shop, bank])
    assert not model.holders_ and set(model.shards_) == {"shop", "bank"}
    return model, [
        Party("shop", table[300:500, 20:25]),
        Party("bank", table[300:500, :5], labels=labels[300:500]),
    ]


@pytest.mark.slow
def test_by_default_nothing_is_revealed_and_it_learns(blind: tuple[TransferLearner, list[Party]]) -> None:
    model, others = blind
    scores = model.decision_function(others[0])
    assert roc_auc_score(np.asarray(others[1].labels), scores) > 0.95
    assert model.result_.protected and not model.result_.determined
    assert {type(part) for part in model.shards_.values()} == {ModelPart}
    assert set(model.predict(others[0])) <= {0, 1}
    assert model.result_.settings["reveal"] == "nothing"


@pytest.mark.slow
def test_a_blind_model_is_saved_and_takes_no_keys(
    blind: tuple[TransferLearner, list[Party]], tmp_path: Path, keys: Keys
) -> None:
    model, others = blind
    model.save(tmp_path)
    with pytest.raises(SettingError, match="leave keys out"):
        TransferLearner.load(tmp_path, keys={"shop": keys.holder("ckks")})
    loaded = TransferLearner.load(tmp_path)
    few = Party("shop", others[0].features[:20])
    # Each row is blurred by its content and the model's name, so the same question gets the same answer.
    assert np.abs(loaded.decision_function(few) - model.decision_function(few)).max() < 2.0**-9
