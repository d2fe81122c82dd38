"""Default models, which nobody can read: how good they are, what is kept of them, and what they refuse."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import r2_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from securefed import Blind, DataError, GeneralisedLinear, Labels, Party, Plain, SettingError, Simulation
from securefed.protocols.blind.scoring import ModelPart
from tests.api.cases import parties, plain, raw

pytestmark = pytest.mark.filterwarnings("ignore")
Array = NDArray[np.float64]
BLUR = 2.0**-11
"""Half a step of a score: what each party that is scored adds at most."""
SAME = 2.0**-20
"""Between two answers to one question: replies are rounded anew each time, the blur is the same."""


def split(table: Array, labels: NDArray[Any] | None, count: int, **options: Any) -> list[Party]:
    """Columns as they are, in no order; the last party has the labels."""
    groups = np.array_split(np.random.default_rng(0).permutation(table.shape[1]), count)
    made = [Party(f"p{k}", table[:, group]) for k, group in enumerate(groups[:-1])]
    return [*made, Party(f"p{count - 1}", table[:, groups[-1]], labels=labels, **options)]


# Beside scikit-learn on the joined table.


@pytest.mark.parametrize("count", [2, 3, 5])
def test_two_classes_of_a_raw_table(count: int) -> None:
    table, labels = load_breast_cancer(return_X_y=True)
    train, test = np.arange(400), np.arange(400, 569)
    model = GeneralisedLinear(simulation=Simulation(engine="serial")).fit(
        split(table[train], labels[train], count)
    )
    joined = make_pipeline(StandardScaler(), LogisticRegression()).fit(table[train], labels[train])
    expected = roc_auc_score(labels[test], joined.decision_function(table[test]))
    new = split(table[test], None, count)
    assert roc_auc_score(labels[test], model.decision_function(new)) > expected - 0.005
    # A row is 0.006. The blur is drawn anew each time, and moves the answers of one or two rows.
    assert np.mean(model.predict(new) == labels[test]) > joined.score(table[test], labels[test]) - 0.03
    held = model.result_.holdout
    assert held is not None and held.value > 0.97 and held.rows == 400
    assert set(model.shards_) == {*(f"p{k}" for k in range(count)), *(["helper"] if count > 2 else [])}
    assert model.holders_ == {} and model.result_.ledger == []


@pytest.mark.parametrize("count", [3, *(pytest.param(count, marks=pytest.mark.slow) for count in (2, 5))])
def test_three_classes_of_a_raw_table(count: int) -> None:
    table, labels = load_wine(return_X_y=True)
    model = GeneralisedLinear(simulation=Simulation(engine="serial")).fit(
        split(table[::2], labels[::2], count)
    )
    joined = make_pipeline(StandardScaler(), LogisticRegression()).fit(table[::2], labels[::2])
    assert not hasattr(model, "models_")
    assert (
        model.score(split(table[1::2], labels[1::2], count)) > joined.score(table[1::2], labels[1::2]) - 0.02
    )


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_several_targets_in_units_of_their_own(count: int) -> None:
    table, target = load_diabetes(return_X_y=True, scaled=False)
    targets = np.column_stack([1e6 + 1e4 * target, table[:, 0] - table[:, 3]])
    model = GeneralisedLinear("linear", simulation=Simulation(engine="serial")).fit(
        split(table[:300], targets[:300], count)
    )
    joined = make_pipeline(StandardScaler(), LinearRegression()).fit(table[:300], targets[:300])
    found = model.predict(split(table[300:], None, count))
    expected = joined.predict(table[300:])
    for column in range(2):
        truth = targets[300:, column]
        assert r2_score(truth, found[:, column]) > r2_score(truth, expected[:, column]) - 0.02


# Beside the same rounds in the clear.


def twins(given: list[Party], **settings: Any) -> tuple[GeneralisedLinear, GeneralisedLinear]:
    """The same run blind and in plain, on all rows."""
    common: dict[str, Any] = {"rounds": 6, "holdout": 0.0, **settings}
    blind = GeneralisedLinear(simulation=Simulation(engine="serial"), **common).fit(given)
    twin = GeneralisedLinear(protection=Plain(like="blind", allow_determined=True), **common).fit(given)
    return blind, twin


@cache
def without_wishes() -> tuple[Array, dict[str, int]]:
    table, labels = load_breast_cancer(return_X_y=True)
    model = GeneralisedLinear(rounds=6, holdout=0.0, simulation=Simulation(engine="serial")).fit(
        split(table[:200], labels[:200], 3)
    )
    return model.decision_function(split(table[200:250], None, 3)), model.result_.bytes(None)


@pytest.mark.parametrize(
    "wishes",
    [{"class_weight": "balanced"}, {"weights": True}, {"offset": True}],
    ids=["class weight", "weights", "offset"],
)
def test_wishes_of_the_label_party(wishes: dict[str, Any]) -> None:
    table, labels = load_breast_cancer(return_X_y=True)
    rng = np.random.default_rng(1)
    rows = {"weights": rng.uniform(0.5, 2.0, size=200), "offset": rng.normal(size=200)}
    given = {name: rows[name] for name in rows if wishes.get(name)}
    wanted = Labels(**{name: value for name, value in wishes.items() if name not in rows})
    blind, twin = twins(split(table[:200], labels[:200], 3, **given), labels=wanted)
    offset = {"offset": np.zeros(50)} if "offset" in given else {}
    new = split(table[200:250], None, 3, **offset)
    found = blind.decision_function(new)
    # Joint scores count in units of the own fit's residuals, a few times larger.
    assert np.abs(found - twin.decision_function(new)).max() < 10 * BLUR
    # The wish makes a difference, and nothing that was sent tells of it.
    scores, sizes = without_wishes()
    assert np.abs(found - scores).max() > 0.05
    assert blind.result_.bytes(None) == sizes


def test_counts_by_their_logarithm() -> None:
    rng = np.random.default_rng(0)
    table = rng.normal(size=(300, 6))
    counts = rng.poisson(np.exp(0.5 + table @ rng.uniform(-0.4, 0.4, size=6))).astype(float)
    blind, twin = twins(
        split(table, counts, 2), loss="linear", labels=Labels(family="poisson"), holdout=0.2, refit=False
    )
    new = split(rng.normal(size=(40, 6)), None, 2)
    found, expected = blind.predict(new), twin.predict(new)
    assert np.abs(np.log(found) - np.log(expected)).max() < 0.01 and found.min() > 0.0


@pytest.mark.parametrize(
    ("scheme", "count"),
    [("ckks", 2), ("ckks", 3), ("paillier", 2), pytest.param("paillier", 3, marks=pytest.mark.slow)],
)
def test_a_saved_model_gives_the_same_answers(scheme: str, count: int, tmp_path: Path) -> None:
    """Shares in every file, the helper's too, and no keys to look after."""
    settings: dict[str, Any] = {"rounds": 2, "learning_rate": 0.1}
    model = raw(
        protection=Blind(scheme=scheme, key_bits=2048), simulation=Simulation(engine="serial"), **settings
    ).fit(parties(count, rows=8))
    expected = plain(protection=Plain(like="blind", allow_determined=True), **settings).fit(
        parties(count, rows=8)
    )
    new = parties(count, rows=4, seed=2, labels=False)
    scores = model.decision_function(new)
    assert 2.0**-16 < np.abs(scores - expected.decision_function(new)).max() < (count - 1) * BLUR + 1e-6
    model.save(tmp_path)
    names = [*model.parties_, *(["helper"] if count > 2 else [])]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"shard-{name}.npz" for name in names)
    again = GeneralisedLinear.load(tmp_path, protection=Blind(scheme=scheme, key_bits=2048))
    assert np.abs(again.decision_function(new) - scores).max() < SAME  # the same question
    told = {name: guard.total_bits for name, guard in again.score_guards_.items()}
    assert told == dict.fromkeys(model.parties_[:-1], 4 * 16)


def test_the_files_of_a_blind_model_say_what_all_know_and_shares(tmp_path: Path) -> None:
    model = raw(rounds=2, simulation=Simulation(engine="serial")).fit(parties(3))
    model.save(tmp_path)
    arrays = {}
    for name in (*model.parties_, "helper"):
        with np.load(tmp_path / f"shard-{name}.npz", allow_pickle=False) as found:
            arrays[name] = {key: found[key] for key in found.files}
    notes = [json.loads(str(each["public"])) for each in arrays.values()]
    assert all(note == notes[0] for note in notes)
    assert notes[0]["blind"] == {
        "names": ["p0", "p1", "p2"],
        "sizes": [2, 2, 3],
        "helper": "helper",
        "outputs": 1,
        "precision": 10,
    }
    phi = {name: {key for key in each if key.startswith("phi.")} for name, each in arrays.items()}
    assert phi == {
        "p0": {"phi.p0"},
        "p1": {"phi.p1"},
        "p2": {"phi.p0", "phi.p1", "phi.p2"},
        "helper": {"phi.p2"},
    }
    assert ["root" in each for each in arrays.values()] == [True, True, True, False]
    for damage, said in (
        ({"phi.p0": np.zeros(3, np.uint8)}, "bytes given"),
        ({"phi.p0": np.full(32, 255, np.uint8)}, "a bit is set"),
        ({"key": None}, "key"),
    ):
        changed = {**arrays["p0"], **damage}
        with (tmp_path / "shard-p0.npz").open("wb") as stream:
            np.savez(stream, **{key: value for key, value in changed.items() if value is not None})
        with pytest.raises(DataError, match=rf"the shard of p0: does not hold .*{said}"):
            GeneralisedLinear.load(tmp_path)


# What is released, and what is refused.


@pytest.mark.parametrize(
    ("scheme", "count"), [("ckks", 2), ("ckks", 3), pytest.param("paillier", 2, marks=pytest.mark.slow)]
)
def test_released_parameters_are_right_to_four_digits(scheme: str, count: int) -> None:
    given: dict[str, Any] = {"rounds": 4, "learning_rate": "auto"}
    model = raw(
        protection=Blind(scheme=scheme, release=True, key_bits=2048),
        simulation=Simulation(engine="serial"),
        **given,
    ).fit(parties(count))
    twin = plain(protection=Plain(like="blind", allow_determined=True), **given).fit(parties(count))
    for name in model.parties_:
        assert not isinstance(model.shards_[name], ModelPart)
        found, expected = model.shards_[name].parameters, twin.shards_[name].parameters
        assert 0.0 < np.abs(found - expected).max() < 1e-3
    assert "helper" not in model.shards_


def test_a_release_of_many_parameters_takes_trust() -> None:
    table = np.random.default_rng(0).normal(size=(60, 90))
    given = split(table, (table[:, 0] > 0).astype(int), 2)
    with pytest.raises(SettingError, match="release: 45 parameters of p0 would show it 1080 bits"):
        raw(rounds=1, protection=Blind(release=True)).fit(given)
    assert raw(rounds=1, protection=Blind(release="trusted")).fit(given).coef_["p0"]


def test_a_release_is_a_flag_or_takes_trust() -> None:
    with pytest.raises(SettingError, match="release must be True or False, not 'all'"):
        Blind(release="all")


def test_a_blind_run_takes_no_keys_and_its_helpers_name_is_taken() -> None:
    own = raw(rounds=1, refit=False, protection=Plain(like="own-gradient", allow_determined=True))
    holders = own.fit(parties()).holders_
    with pytest.raises(SettingError, match="keys: a blind run makes its own; leave keys out"):
        raw(rounds=1).fit(parties(), keys=holders)
    named = [Party("helper", party.features) if party.name == "p0" else party for party in parties(3)]
    with pytest.raises(SettingError, match="names have to differ"):
        raw(rounds=1).fit(named)


@pytest.mark.parametrize("count", [2, 3])
def test_a_fit_that_fails_leaves_the_model_that_was_there(count: int) -> None:
    model = raw(rounds=2, simulation=Simulation(engine="serial")).fit(parties(count))
    new = parties(count, rows=5, seed=2, labels=False)
    before = model.decision_function(new)
    other = parties(count, seed=1)
    other[0] = Party("p0", np.zeros_like(other[0].features))
    with pytest.raises(DataError, match="p0: every column is constant"):
        model.fit(other)
    assert np.abs(model.decision_function(new) - before).max() < SAME
