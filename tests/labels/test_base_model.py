"""A joint model around the label party's own fit: weights, offsets, families that nobody else learns of."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge
from sklearn.metrics import mean_poisson_deviance, roc_auc_score

from securefed import GeneralisedLinear, Labels, Party, Plain
from securefed.errors import DataError, SettingError
from securefed.labels.base_model import Family, LabelOptions, OwnFit, ScoreLink
from securefed.labels.label_model import LabelModel
from securefed.protocols.losses import get_loss
from securefed.settings.objectives import Monitoring

Array = NDArray[np.float64]
RNG = np.random.default_rng(0)
COLUMNS = RNG.normal(size=(400, 3))
WEIGHTS = RNG.uniform(0.5, 3.0, size=400)
SIGNS = np.where(COLUMNS[:, 0] + RNG.normal(size=400) > 1, 1.0, -1.0)
EXPOSURE = RNG.uniform(0.1, 1.0, size=400)
COUNTS = RNG.poisson(EXPOSURE * np.exp(0.5 * COLUMNS[:, 1])).astype(np.float64)


def emulated(loss: str = "logistic", **settings: Any) -> GeneralisedLinear:
    return GeneralisedLinear(loss, **{"protection": Plain(like="blind"), **settings})


def two(shop: Array, bank: Array, labels: Any = None, **of_rows: Any) -> list[Party]:
    return [Party("shop", shop), Party("bank", bank, labels=labels, **of_rows)]


class TestTheFitItself:
    def learn(self, loss: str, targets: Array, offset: Array | None = None, **wishes: Any) -> Array:
        family = Family.of(get_loss(loss), LabelOptions(**wishes))
        weights, shift = WEIGHTS / WEIGHTS.mean(), np.zeros(400) if offset is None else offset
        return OwnFit.learn(family, COLUMNS, targets, weights, shift)[0].coefficients

    def test_it_is_scikit_learns(self) -> None:
        """The penalty is that of a row whose weight is their mean: C of 1 / mean."""
        logistic = LogisticRegression(C=1 / WEIGHTS.mean(), tol=1e-8).fit(COLUMNS, SIGNS, WEIGHTS)
        expected = [*logistic.coef_[0], *logistic.intercept_]
        assert np.allclose(self.learn("logistic", SIGNS), expected, atol=1e-4)
        ridge = Ridge(alpha=WEIGHTS.mean()).fit(COLUMNS, SIGNS, WEIGHTS)
        assert np.allclose(self.learn("linear", SIGNS), [*ridge.coef_, ridge.intercept_], atol=1e-6)

    def test_counts_with_an_exposure_are_rates_weighted_by_it(self) -> None:
        made, _ = OwnFit.learn(Family("power", 1.0), COLUMNS, COUNTS, np.ones(400), np.log(EXPOSURE))
        rates = PoissonRegressor(alpha=1 / EXPOSURE.sum(), tol=1e-8)
        rates.fit(COLUMNS, COUNTS / EXPOSURE, sample_weight=EXPOSURE)
        assert np.allclose(made.coefficients, [*rates.coef_, rates.intercept_], atol=1e-4)

    @pytest.mark.parametrize(
        ("family", "targets"),
        [(Family("classes"), SIGNS), (Family("numbers"), COUNTS), (Family("power", 1.0), COUNTS)]
        + [(Family("power", power), COUNTS + 0.5) for power in (1.5, 2.0)],
    )
    def test_what_is_added_is_the_slope_of_the_loss(self, family: Family, targets: Array) -> None:
        eta, h = COLUMNS[:, 1] / 2, 1e-5
        slope = (family.loss(eta + h, targets) - family.loss(eta - h, targets)) / (2 * h)
        added = family.working(eta, targets, WEIGHTS) - eta
        ratio = added / (-WEIGHTS * slope)
        assert np.allclose(ratio, ratio[0], rtol=1e-4) and ratio[0] > 0.0

    def test_training_rows_are_judged_by_fits_without_them(self) -> None:
        """Columns that fit every row exactly leave nothing otherwise."""
        many, noise = RNG.normal(size=(60, 50)), RNG.normal(size=60)
        made, margins = OwnFit.learn(Family("numbers"), many, noise, np.ones(60), np.zeros(60))
        assert np.mean((noise - margins) ** 2) > 5 * np.mean((noise - made.margins(many, None)) ** 2)


@pytest.fixture(scope="module")
def rare() -> tuple[Array, NDArray[np.intp]]:
    return make_classification(  # type: ignore[no-any-return]
        2000, 20, n_informative=6, n_redundant=6, weights=[0.95], class_sep=1.2, random_state=0
    )


@pytest.mark.parametrize("parties", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_balanced_classes_rank_rare_positives_better(
    rare: Any, parties: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As row-wise weights of the joined least squares would: most of what they gain is kept."""
    monkeypatch.setattr("securefed.assembly.linear.FEW_HELD_OUT", 500)  # as of many rows: trained on once
    table, labels = rare
    order = np.random.default_rng(3).permutation(20)
    groups = np.array_split(order, parties)

    def given(rows: slice, known: bool) -> list[Party]:
        last = parties - 1
        return [
            Party(f"p{k}", table[rows][:, g], labels=labels[rows] if known and k == last else None)
            for k, g in enumerate(groups)
        ]

    def auc(**settings: Any) -> float:
        model = emulated(**settings).fit(given(slice(1400), True))
        scores = model.decision_function(given(slice(1400, None), False))
        return float(roc_auc_score(labels[1400:], scores))

    centred = (table - table[:1400].mean(0)) / table[:1400].std(0)
    design = np.column_stack([centred, np.ones(2000)])
    share = labels[:1400].mean()
    weights = np.where(labels[:1400], 0.5 / share, 0.5 / (1 - share))
    gram = (design[:1400].T * weights) @ design[:1400] + 1e-3 * np.eye(21)
    weighted = design @ np.linalg.solve(gram, design[:1400].T @ (weights * (2.0 * labels[:1400] - 1)))
    equal, balanced, alike = (
        auc(labels=Labels(class_weight=each), holdout=0.4) for each in (None, "balanced", {0: 1.0, 1: 1.0})
    )
    best = float(roc_auc_score(labels[1400:], weighted[1400:]))
    assert best > equal + 0.005
    assert balanced > equal + 0.6 * (best - equal) and alike == equal


@pytest.mark.slow
def test_an_encrypted_run_is_the_same_and_nobody_else_can_tell() -> None:
    """The other party gets messages of the same kinds and sizes, with weights and without."""
    rng = np.random.default_rng(1)
    shop, bank = rng.normal(size=(120, 6)), rng.normal(size=(120, 3))
    labels = (shop[:, 0] + bank[:, 0] + 0.5 * rng.normal(size=120) > 1.3).astype(int)
    how: dict[str, Any] = {"rounds": 2}
    rows = {"weights": rng.uniform(1, 2, size=120), "offset": rng.normal(size=120)}
    wished = GeneralisedLinear(labels=Labels(class_weight="balanced"), **how).fit(
        two(shop, bank, labels, **rows)
    )
    twin = emulated(labels=Labels(class_weight="balanced"), **how).fit(two(shop, bank, labels, **rows))
    new = two(shop, bank, offset=rows["offset"])
    assert np.abs(wished.decision_function(new) - twin.decision_function(new)).max() < 0.02
    plain = GeneralisedLinear(**how).fit(two(shop, bank, labels))

    def seen(model: GeneralisedLinear) -> list[tuple[Any, ...]]:
        entries = model.result_.transcripts["shop"].entries
        return [(e.event, e.kind, e.peer, e.round, e.step, e.bytes) for e in entries]

    assert seen(wished) == seen(plain)
    assert wished.result_.settings == plain.result_.settings


@pytest.mark.parametrize(
    ("loss", "wishes"), [("logistic", {}), ("linear", {}), ("linear", {"family": "gamma"})]
)
def test_an_offset_that_all_rows_share_changes_nothing(loss: str, wishes: Any) -> None:
    """It is a constant, and takes no bits of the scores, nor is it pulled towards 0."""
    rng = np.random.default_rng(4)
    shop, bank = rng.normal(size=(300, 2)), rng.normal(size=(300, 2))
    numbers = np.exp(0.5 * shop[:, 0] + 0.5 * bank[:, 0] + 0.5 * rng.normal(size=300))
    labels = (numbers > 1).astype(int) if loss == "logistic" else numbers
    answers = []
    for offset in (0.0, 20.0):
        all_rows = np.full(300, offset)
        model = emulated(loss, labels=Labels(**wishes)).fit(two(shop, bank, labels, offset=all_rows))
        new = two(shop, bank, offset=all_rows)
        answers.append(model.predict_proba(new)[:, 1] if loss == "logistic" else model.predict(new))
    np.testing.assert_allclose(answers[0], answers[1], rtol=0.02, atol=0.01)


def test_rows_of_almost_no_weight_hardly_count() -> None:
    """Half of the people are of another kind, and weigh nothing."""
    rng = np.random.default_rng(2)
    shop, bank = rng.normal(size=(600, 2)), rng.normal(size=(600, 2))
    target = shop[:, 0] + bank[:, 0] + rng.normal(size=600)
    target[:300] += 4 * shop[:300, 0]
    weights = np.where(np.arange(600) < 300, 1e-9, 1.0)
    shuffled = rng.permutation(600)
    given = two(shop[shuffled], bank[shuffled], target[shuffled], weights=weights[shuffled])
    model = emulated("linear", holdout=0.0).fit(given)
    kept = emulated("linear", holdout=0.0).fit(two(shop, bank, target))
    assert model.coef_["shop"]["0"] < 2.0 < kept.coef_["shop"]["0"]
    assert model.coef_["bank"]["0"] == pytest.approx(1.0, abs=0.3)


def test_an_offset_is_taken_as_it_is() -> None:
    rng = np.random.default_rng(4)
    shop, bank, known = rng.normal(size=(300, 2)), rng.normal(size=(300, 2)), 100 * rng.normal(size=300)
    target = shop @ [1.0, -2.0] + bank @ [3.0, 0.5] + 7 + known
    model = emulated("linear", rounds=40).fit(two(shop, bank, target, offset=known))
    found = model.predict(two(shop, bank, offset=known))
    assert np.abs(found - target).max() < 0.2
    assert model.coef_["shop"]["1"] == pytest.approx(-2.0, abs=0.05)
    assert model.intercept_ == pytest.approx(7.0, abs=0.1)
    with pytest.raises(DataError, match="bank: no offset given, and training had one"):
        model.predict(two(shop, bank))
    with pytest.raises(DataError, match="bank: an offset given, and training had none"):
        emulated("linear", rounds=2, holdout=0.0).fit(two(shop, bank, target)).predict(
            two(shop, bank, offset=known)
        )


def test_counts_with_exposure_beat_a_linear_model_and_are_saved(tmp_path: Any) -> None:
    rng = np.random.default_rng(5)
    shop, bank, exposure = rng.normal(size=(4000, 4)), rng.normal(size=(4000, 3)), rng.uniform(0.05, 1, 4000)
    rate = np.exp(-1 + shop @ [0.5, -0.4, 0.0, 0.3] + bank @ [0.4, 0.0, -0.3])
    counts = rng.poisson(exposure * rate)
    train, test, log = slice(2000), slice(2000, None), np.log(exposure)
    model = emulated("linear", labels=Labels(family="poisson"))
    model.fit(two(shop[train], bank[train], counts[train], offset=log[train]))
    new = two(shop[test], bank[test], offset=log[test])
    untransformed = emulated("linear")
    untransformed.fit(two(shop[train], np.column_stack([bank, exposure])[train], counts[train]))
    line = untransformed.predict(two(shop[test], np.column_stack([bank, exposure])[test]))
    joined = PoissonRegressor(alpha=1e-3).fit(
        np.hstack([shop, bank])[train], (counts / exposure)[train], sample_weight=exposure[train]
    )
    best = exposure[test] * joined.predict(np.hstack([shop, bank])[test])

    def explained(means: Array) -> float:
        """Beyond one rate for all exposure."""
        null = exposure[test] * counts[test].sum() / exposure[test].sum()
        left, whole = (mean_poisson_deviance(counts[test], np.maximum(each, 1e-3)) for each in (means, null))
        return float(1.0 - left / whole)

    found = explained(model.predict(new))
    assert found > explained(line) + 0.02 and found > explained(best) - 0.02
    held = model.result_.holdout
    assert held is not None and held.metric == "D2" and held.value > held.alone + 0.05
    labelled = two(shop[test], bank[test], counts[test], offset=log[test])
    assert model.score(labelled) == pytest.approx(found, abs=1e-3)
    model.save(tmp_path)
    again = GeneralisedLinear.load(tmp_path, protection=Plain())
    assert np.array_equal(again.predict(new), model.predict(new))
    with pytest.raises(DataError, match="training had one"):
        again.predict(two(shop[test], bank[test]))


def test_counts_whose_effects_add_up_or_multiply() -> None:
    """The held-out rows bend the link: a model of the logarithm alone loses where effects add up."""
    rng = np.random.default_rng(8)
    shop, bank = rng.gamma(2.0, 1.0, (1500, 2)), rng.gamma(2.0, 1.0, (1500, 2))
    both, train, test = np.hstack([shop, bank]), slice(1000), slice(1000, None)
    sums, products = 0.1 + both @ [0.8, 0.2, 0.6, 0.4], np.exp(both @ [0.2, 0.1, 0.15, -0.2])
    for rate, lost in ((sums, -0.02), (products, 0.03)):
        counts = rng.poisson(rate).astype(np.float64)
        model = emulated("linear", labels=Labels(family="poisson"))
        model.fit(two(shop[train], bank[train], counts[train]))
        joined = PoissonRegressor(alpha=1e-3).fit(both[train], counts[train]).predict(both[test])
        found, logarithm, best = (
            mean_poisson_deviance(counts[test], each)
            for each in (model.predict(two(shop[test], bank[test])), joined, rate[test])
        )
        assert best < found < logarithm + lost
        held = model.result_.holdout
        assert held is not None and held.value > held.alone


def test_evaluations_of_counts_know_what_held_out_rows_teach() -> None:
    """Without the bend D2 would fall from round to round, and patience would stop too early."""
    rng = np.random.default_rng(0)
    both = rng.normal(size=(1500, 6))
    counts = rng.poisson(np.exp(0.6 * both[:, 0] + 0.5 * both[:, 3] - 1.0)).astype(np.float64)
    watched = Monitoring(evaluate_every=8)
    protection = Plain(like="blind", allow_determined=True)
    model = emulated("linear", protection=protection, labels=Labels(family="poisson"), monitoring=watched)
    result = model.fit(two(both[:, :3], both[:, 3:], counts)).result_
    metrics = [metric for _, metric in result.history]
    assert result.holdout is not None and metrics[-1] == pytest.approx(result.holdout.value)
    assert len(metrics) == 3 and metrics == sorted(metrics)


@pytest.mark.parametrize("steepness", [1.0, 2.0])
def test_counts_that_rise_faster_than_their_score(steepness: float) -> None:
    """Without the bend, the line and the constant are fitted anew."""
    link, rng = ScoreLink(Family("power", 1.0)), np.random.default_rng(9)
    more = rng.uniform(-0.7, 2.0, size=2000)
    counts = rng.poisson(np.exp(steepness * more**2)).astype(np.float64)
    found, _ = link.calibrated(more, None, counts)
    assert found.bend == 0.0 and found.line > 0.0
    means = found.family.mean(found.eta(more, None))
    assert means.sum() == pytest.approx(counts.sum(), rel=0.02)
    constant = mean_poisson_deviance(counts, np.full(2000, counts.mean()))
    assert mean_poisson_deviance(counts, means) < 0.5 * constant


def test_a_larger_score_is_never_a_smaller_mean() -> None:
    """Held-out counts that say the opposite give one mean for all."""
    link, more = ScoreLink(Family("power", 1.0)), RNG.normal(size=400)
    found, told = link.calibrated(more, None, RNG.poisson(np.exp(-more)).astype(np.float64))
    assert found.line == 0.0 and 0.0 <= found.bend < 0.2 and told.shape == (400,)
    assert np.all(np.diff(found.eta(np.linspace(-3.0, 9.0, 50), None)) >= 0.0)
    assert ScoreLink.take(found.to_arrays()) == found


@pytest.mark.parametrize("text", ["words", "[]", "{}", '{"family": {"kind": "tree"}}', "NaN", "power", "old"])
def test_a_malformed_link_is_named(text: str) -> None:
    whole = json.loads(str(ScoreLink(Family("power", 1.0)).to_arrays()["own"]))
    changed = {
        "NaN": {"step": float("nan")},
        "power": {"family": {"kind": "power", "power": "one"}},
        "old": {"coefficients": [1.0]},
    }
    text = json.dumps({**whole, **changed[text]}) if text in changed else text
    with pytest.raises(DataError, match=r"shard is damaged .*; restore it"):
        ScoreLink.take({"own": np.array(text)})


def test_several_classes_with_weights_are_a_run_each() -> None:
    rng = np.random.default_rng(6)
    shop, bank = rng.normal(size=(150, 3)), rng.normal(size=(150, 3))
    labels = np.array(["a", "b", "c"])[
        np.argmax(np.column_stack([shop[:, 0], bank[:, 0], 0 * bank[:, 0]]), 1)
    ]
    model = emulated(
        rounds=6,
        protection=Plain(like="blind", allow_determined=True),
        labels=Labels(class_weight="balanced"),
    )
    model.fit(two(shop, bank, labels))
    assert len(model.models_) == 3
    assert np.mean(model.predict(two(shop, bank)) == labels) > 0.75


@pytest.mark.parametrize(
    ("wishes", "settings", "of_rows", "message"),
    [
        ({"class_weight": "even"}, {}, {}, "class_weight: 'even' given, 'balanced' or a weight"),
        ({"class_weight": {0: 1.0}}, {}, {}, "class_weight: 0 given, the classes are 0 and 1"),
        ({"class_weight": {0: 1.0, 1: -1.0}}, {}, {}, "class_weight of 1"),
        (
            {"class_weight": "balanced"},
            {"loss": "linear"},
            {},
            "class_weight: the loss 'linear' has no classes",
        ),
        ({"class_weight": "balanced"}, {"protection": Plain()}, {}, "class_weight: without protection"),
        (
            {"class_weight": "balanced"},
            {"loss": "squared_hinge"},
            {},
            "class_weight: needs loss='logistic' or 'linear', not 'squared_hinge'",
        ),
        ({"family": "poisson"}, {}, {}, "family: needs loss='linear', not 'logistic'"),
        ({"family": 3.0}, {"loss": "linear"}, {}, "family: 3 given, at most 2 is allowed"),
        ({"family": "gamma"}, {"loss": "linear"}, {}, "bank: labels: zeros given, the family 'gamma'"),
        (
            {},
            {},
            {"weights": np.zeros(60)},
            "bank: weights: finite numbers of at least 0, not all 0, are allowed",
        ),
        ({}, {}, {"weights": np.ones(3)}, "bank: weights of shape"),
        ({}, {}, {"offset": ["a"] * 60}, "bank: offset have to be numbers"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(
    wishes: Any, settings: Any, of_rows: Any, message: str
) -> None:
    rng = np.random.default_rng(7)
    labels = rng.integers(0, 2, 60)
    with pytest.raises((SettingError, DataError), match=message):
        given = two(rng.normal(size=(60, 2)), rng.normal(size=(60, 2)), labels, **of_rows)
        emulated(**{"rounds": 1, "labels": Labels(**wishes), **settings}).fit(given)


def test_only_the_label_party_has_weights() -> None:
    rows = RNG.normal(size=(60, 2))
    given = [Party("shop", rows, weights=np.ones(60)), Party("bank", rows, labels=rows[:, 0])]
    with pytest.raises(DataError, match="shop: weights or an offset given, which the label party alone has"):
        emulated("linear", rounds=1).fit(given)


def test_rows_that_all_weigh_nothing_are_refused_before_the_run() -> None:
    rng = np.random.default_rng(7)
    side = LabelModel(get_loss("linear"), wishes=LabelOptions(weighted=True))
    with pytest.raises(DataError, match="bank: all rows to learn from have weight 0"):
        weights = np.array([1.0, 0.0, 0.0, 0.0])
        side.aim("bank", 64.0, rng.normal(size=(4, 2)), rng.normal(size=4), weights, None, np.arange(1, 4))
