"""How good a model is with default settings, beside scikit-learn on the joined table; and what says so."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, make_classification
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import brier_score_loss, f1_score, r2_score, roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from securefed import GeneralisedLinear, Labels, Party, Plain, Simulation
from securefed.errors import DataError, SettingError
from securefed.labels.calibration import Calibration, chosen_threshold
from securefed.labels.quality import HeldOut, Holdout, OwnRows, QualityWarning, compared
from securefed.protocols.schedules import held_out

Array = NDArray[np.float64]
pytestmark = pytest.mark.filterwarnings("ignore::securefed.protocols.own_gradient.ledger.LedgerWarning")


def parties(table: Array, labels: NDArray[Any] | None, groups: list[NDArray[np.intp]]) -> list[Party]:
    last = len(groups) - 1
    return [
        Party(f"p{k}", table[:, group], labels=labels if k == last else None)
        for k, group in enumerate(groups)
    ]


def emulated(loss: str = "logistic", **settings: Any) -> GeneralisedLinear:
    """Blind training's arithmetic, unencrypted, with default settings."""
    return GeneralisedLinear(loss, protection=Plain(like="blind"), **settings)


def split(columns: int, count: int) -> list[NDArray[np.intp]]:
    return np.array_split(np.random.default_rng(0).permutation(columns), count)


TABLES: dict[str, Any] = {
    "breast": lambda: load_breast_cancer(return_X_y=True),
    "odd digits": lambda: (load_digits().data, load_digits().target % 2),
    "imbalanced": lambda: make_classification(
        2000, 20, n_informative=6, n_redundant=6, weights=[0.95], class_sep=1.2, random_state=0
    ),
}


@pytest.mark.parametrize(
    ("name", "count"), [("breast", 2), ("breast", 5), ("odd digits", 3), ("imbalanced", 2), ("imbalanced", 5)]
)
def test_default_settings_are_as_good_as_the_joined_table(name: str, count: int) -> None:
    """Medians of three splits."""
    table, labels = TABLES[name]()
    groups, auc, brier = split(table.shape[1], count), [], []
    for seed in range(3):
        train, test = train_test_split(
            np.arange(len(labels)), test_size=0.3, stratify=labels, random_state=seed
        )
        model = emulated().fit(parties(table[train], labels[train], groups))
        joined = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
        joined.fit(table[train], labels[train])
        new = parties(table[test], None, groups)
        expected = joined.predict_proba(table[test])[:, 1]
        found = roc_auc_score(labels[test], model.decision_function(new))
        auc.append(found - roc_auc_score(labels[test], expected))
        likely = model.predict_proba(new)[:, 1]
        brier.append(brier_score_loss(labels[test], likely) - brier_score_loss(labels[test], expected))
        held = model.result_.holdout
        assert held is not None and held.metric == "AUC" and held.rows == len(train)
        assert seed or abs(held.value - found) < 0.06
    assert np.median(auc) > -0.01 and np.median(brier) < 0.010


@pytest.mark.parametrize("count", [2, 5])
def test_regression_in_any_unit_is_as_good_as_the_joined_table(count: int) -> None:
    table, labels = load_diabetes(return_X_y=True, scaled=False)
    labels = 1e6 + 1e4 * labels
    train, test = train_test_split(np.arange(len(labels)), test_size=0.3, random_state=0)
    groups = split(table.shape[1], count)
    model = emulated("linear").fit(parties(table[train], labels[train], groups))
    joined = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-2, 3, 20)))
    joined.fit(table[train], labels[train])
    expected = r2_score(labels[test], joined.predict(table[test]))
    new = parties(table[test], None, groups)
    found = r2_score(labels[test], model.predict(new))
    assert found > expected - 0.0125
    without = emulated("linear", refit=False).fit(parties(table[train], labels[train], groups))
    assert r2_score(labels[test], without.predict(new)) < found
    held = model.result_.holdout
    assert held is not None and held.metric == "R2" and held.chance == 0.0
    assert 1e5 < held.more["RMSE"] < 1e6


def test_an_encrypted_run_has_the_same_quality() -> None:
    table, labels = load_breast_cancer(return_X_y=True)
    train, test = np.arange(200), np.arange(200, 569)
    groups = split(30, 2)
    settings: dict[str, Any] = {"rounds": 4, "refit": False}
    model = GeneralisedLinear(simulation=Simulation(engine="serial"), **settings).fit(
        parties(table[train], labels[train], groups)
    )
    twin = emulated(**settings).fit(parties(table[train], labels[train], groups))
    new = parties(table[test], None, groups)
    # The blur is at most 2**-11. Parameters agree within 1e-6, and the longest standardised row has length 8.
    assert model._label_model.link is not None
    most = model._label_model.link.step * (2.0**-11 + 8e-6)
    assert np.abs(model.decision_function(new) - twin.decision_function(new)).max() < most
    assert model.result_.protected and model.result_.holdout is not None
    assert twin.result_.holdout is not None
    assert model.result_.holdout.value == pytest.approx(twin.result_.holdout.value, abs=0.01)


def test_the_last_rounds_of_an_encrypted_run_are_as_good_as_in_plain() -> None:
    """Steps of a blind run follow from all its rows, so that its path is another one to the same minimum. The
    targets of its second stage are made of blurred scores.
    """
    table, labels = load_breast_cancer(return_X_y=True)
    train, test = np.arange(200), np.arange(200, 569)
    groups = split(30, 2)
    new, found = parties(table[test], None, groups), []
    for made in (GeneralisedLinear(simulation=Simulation(engine="serial")), emulated()):
        found.append(made.fit(parties(table[train], labels[train], groups)).decision_function(new))
    assert np.corrcoef(*found)[0, 1] > 0.999
    assert abs(np.subtract(*(roc_auc_score(labels[test], scores) for scores in found))) < 1e-3


def test_automatic_rounds_are_more_for_more_parties() -> None:
    table, labels = TABLES["breast"]()
    made = parties(table[:100], labels[:100], split(30, 3))
    assert emulated(rounds="auto", refit=False).fit(made).result_.rounds == 30
    assert emulated(rounds="auto").fit(made).result_.rounds == 2 * 5 * 20 + 10
    assert emulated(refit=False, learning_rate=0.01).fit(made).result_.rounds == 24


def test_a_party_that_says_nothing_is_refused_by_name() -> None:
    table, labels = TABLES["breast"]()
    made = [Party("idle", np.full((100, 2), 3.0)), Party("clinic", table[:100, :5], labels=labels[:100])]
    with pytest.raises(DataError, match="idle: every column is constant"):
        GeneralisedLinear(rounds=1).fit(made)


class TestHoldout:
    def test_rows_are_set_aside_by_the_seed_and_none_of_few(self) -> None:
        train, held = held_out(100, 0.2, 3)
        assert len(held) == 20 and not set(train) & set(held) and len(train) == 80
        assert np.array_equal(held, held_out(100, 0.2, 3)[1])
        assert not np.array_equal(held, held_out(100, 0.2, 4)[1])
        assert len(held_out(40, 0.2, 0)[1]) == 0 and len(held_out(100, 0.0, 0)[1]) == 0

    def test_without_it_quality_is_said_not_to_be_measured(self) -> None:
        table, labels = TABLES["breast"]()
        model = emulated(holdout=0.0, rounds=1).fit(parties(table[:100], labels[:100], split(30, 2)))
        assert model.result_.holdout is None and "quality not measured" in str(model.result_)
        assert model.result_.to_dict()["holdout"] is None

    def test_a_joint_model_worse_than_alone_is_announced(self) -> None:
        """The other party's rows are about other people: half of the columns are noise to the label party."""
        rng = np.random.default_rng(0)
        own = rng.normal(size=(150, 2))
        labels = (own[:, 0] + 0.3 * rng.normal(size=150) > 0).astype(int)
        noise = rng.normal(size=(150, 45))
        made = [Party("shop", noise), Party("bank", own, labels=labels)]
        with pytest.warns(
            QualityWarning, match="THE JOINT MODEL IS WORSE THAN THE LABEL PARTY'S OWN COLUMNS"
        ):
            model = emulated(l2=1e-6, rounds=30).fit(made)
        held = model.result_.holdout
        assert held is not None and held.value < held.alone
        assert held.to_dict()["warning"] == held.warning

    def test_a_useless_model_is_announced(self) -> None:
        rng = np.random.default_rng(1)
        made = [
            Party("shop", rng.normal(size=(300, 3))),
            Party("bank", rng.normal(size=(300, 3)), labels=rng.integers(0, 2, 300)),
        ]
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            held = emulated().fit(made).result_.holdout
        assert held is not None
        said = any("JOINT MODEL" in str(each.message) for each in told)
        assert said == (held.warning is not None) and held.value < 0.65

    def test_held_out_rows_of_one_class_are_measured_by_accuracy(self) -> None:
        held = HeldOut(np.ones(12), binary=True)
        columns = np.random.default_rng(0).normal(size=(20, 2))
        own = OwnRows(columns, np.repeat([1.0, -1.0], 10), np.zeros((12, 2)))
        found = compared(held, np.ones(12), own)
        assert (found.metric, found.value, found.chance) == ("accuracy", 1.0, 0.5)

    def test_words(self) -> None:
        good = Holdout("AUC", 0.9, 0.8, 0.5, 400)
        assert good.warning is None and "0.9000 on 400 held-out rows" in str(good)
        assert "OWN COLUMNS" in str(Holdout("AUC", 0.8, 0.9, 0.5, 400).warning)
        assert "CHANCE" in str(Holdout("R2", -3.0, 0.1, 0.0, 400).warning)


class TestProbabilities:
    @pytest.mark.parametrize("rows", [200, 3000])
    def test_calibration_finds_the_truth(self, rows: int) -> None:
        rng = np.random.default_rng(rows)
        scores = rng.normal(size=2 * rows)
        truth = 1 / (1 + np.exp(-(3 * scores - 2)))
        targets = np.where(rng.random(2 * rows) < truth, 1.0, -1.0)
        made = Calibration.of(scores[:rows], targets[:rows])
        off = np.abs(made.probabilities(scores[rows:]) - truth[rows:])
        assert off.mean() < 0.08
        again = Calibration.from_arrays(made.to_arrays())
        assert np.array_equal(again.probabilities(scores), made.probabilities(scores))

    def test_a_curve_of_many_rows_bends_and_never_falls(self) -> None:
        rng = np.random.default_rng(1)
        scores = rng.normal(size=6000)
        rising = np.maximum(scores, -1.0)
        truth = 1 / (1 + np.exp(-(2 * rising + rising**2 - 1)))
        targets = np.where(rng.random(6000) < truth, 1.0, -1.0)
        made = Calibration.of(scores[:3000], targets[:3000])
        straight = Calibration.straight(scores[:3000], targets[:3000])
        off, more = (np.abs(each.probabilities(scores[3000:]) - truth[3000:]) for each in (made, straight))
        assert off.mean() < 0.02 < more.mean()
        wide = made.probabilities(np.linspace(-9.0, 9.0, 500))
        assert (np.diff(wide) >= 0.0).all() and np.ptp(wide) > 0.5
        again = Calibration.from_arrays(made.to_arrays())
        assert len(made.bend) and np.array_equal(again.probabilities(scores), made.probabilities(scores))

    def test_equal_scores_of_many_rows_are_the_share_of_the_class(self) -> None:
        targets = np.where(np.arange(2000) % 5 == 0, 1.0, -1.0)
        for score in (0.0, 0.1):
            found = Calibration.of(np.full(2000, score), targets).probabilities(np.array([-1.0, score, 1.0]))
            assert found == pytest.approx([0.2] * 3, abs=0.01)

    def test_scores_that_say_the_opposite_are_no_probabilities(self) -> None:
        scores = np.linspace(-1, 1, 100)
        made = Calibration.of(scores, np.where(scores > 0, -1.0, 1.0))
        assert np.allclose(made.probabilities(scores), 0.5, atol=0.01)

    def test_separated_classes_give_no_certainty(self) -> None:
        scores = np.concatenate([np.full(20, -1.0), np.full(20, 1.0)])
        found = Calibration.of(scores, np.sign(scores)).probabilities(np.array([-1.0, 1.0]))
        assert 0.001 < found[0] < 0.1 and 0.9 < found[1] < 0.999

    def test_an_imbalanced_table_is_told_from_a_constant_and_positives_are_found(self) -> None:
        table, labels = TABLES["imbalanced"]()
        groups = split(20, 3)
        made = parties(table[:1400], labels[:1400], groups)
        new = parties(table[1400:], None, groups)
        half = emulated().fit(made)
        chosen = emulated(labels=Labels(threshold="f1")).fit(made)
        base = float(np.mean(labels[:1400]))
        brier = brier_score_loss(labels[1400:], half.predict_proba(new)[:, 1])
        assert brier < brier_score_loss(labels[1400:], np.full(600, base))
        assert min(f1_score(labels[1400:], each.predict(new)) for each in (half, chosen)) > 0.5

    @pytest.mark.parametrize(
        ("wanted", "line"),
        [("accuracy", (0.3, 0.8)), ("balanced", (0.3, 0.8)), ("f1", (0.1, 0.8)), (0.2, 0.2)],
    )
    def test_thresholds_by_name(self, wanted: str | float, line: Any) -> None:
        probabilities = np.array([0.1, 0.2, 0.3, 0.8, 0.9])
        found = chosen_threshold(wanted, probabilities, np.array([-1.0, -1.0, -1.0, 1.0, 1.0]))
        assert found == line or (isinstance(line, tuple) and line[0] < found < line[1])

    def test_a_threshold_by_name_needs_held_out_rows(self) -> None:
        table, labels = TABLES["breast"]()
        made = parties(table[:100], labels[:100], split(30, 2))
        model = emulated(holdout=0.0, rounds=1, labels=Labels(threshold="f1")).fit(made)
        with pytest.raises(
            SettingError, match="threshold: 'f1' is chosen on held-out rows, and holdout is 0"
        ):
            model.predict(made)
        with pytest.raises(SettingError, match="threshold must be one of"):
            emulated(labels=Labels(threshold="best")).fit(made)

    def test_squared_hinge_has_probabilities_where_they_were_measured(self) -> None:
        table, labels = TABLES["breast"]()
        made = parties(table, labels, split(30, 2))
        model = emulated("squared_hinge").fit(made)
        assert brier_score_loss(labels, model.predict_proba(made)[:, 1]) < 0.06
        with pytest.raises(SettingError, match="held-out rows"):
            emulated("squared_hinge", holdout=0.0, rounds=1).fit(made).predict_proba(made)


def test_the_label_partys_knowledge_is_saved_with_its_shard(tmp_path: Any) -> None:
    table, labels = load_diabetes(return_X_y=True)
    made = parties(table, 1000 + labels, split(10, 2))
    model = emulated("linear", rounds=3).fit(made)
    model.save(tmp_path)
    again = GeneralisedLinear.load(tmp_path, protection=Plain())
    assert np.array_equal(again.predict(made), model.predict(made))
    with np.load(tmp_path / "shard-p0.npz") as other, np.load(tmp_path / "shard-p1.npz") as own:
        assert not any(name.startswith("label.") for name in other.files)
        assert any(name.startswith("label.") for name in own.files)


def test_malformed_calibrations_are_refused() -> None:
    with pytest.raises(DataError, match="calibration"):
        Calibration.from_arrays({"curve": np.zeros(2)})
    with pytest.raises(DataError, match="calibration"):
        Calibration.from_arrays({**Calibration(1.0, 0.0).to_arrays(), "bend": np.zeros(2)})
    with pytest.raises(DataError, match="one class"):
        Calibration.of(np.zeros(3), np.ones(3))
