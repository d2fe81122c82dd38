"""What users get wrong: one line that names it, and says what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from securefed import (
    Blind,
    DataError,
    FedBCD,
    GeneralisedLinear,
    Monitoring,
    OwnGradient,
    Party,
    Plain,
    SecurefedError,
    SettingError,
    Simulation,
    TransferLearner,
)
from securefed.crypto import generate
from securefed.models import HiddenLayer
from tests.api.cases import columns, parties, plain


def one_line(error: pytest.ExceptionInfo[BaseException], named: str) -> None:
    line = str(error.value)
    assert named in line
    assert "\n" not in line
    assert len(line) < 250


COMMON: list[tuple[Callable[[], dict[str, Any]], str]] = [
    (lambda: {"protection": Blind(scheme="rsa")}, "scheme must be one of 'ckks', 'paillier', not 'rsa'"),
    (lambda: {"protection": Blind(scheme=None)}, "scheme"),
    (lambda: {"algorithm": "FedBCD"}, "algorithm: 'FedBCD' given"),
    (lambda: {"algorithm": FedBCD}, "algorithm"),
    (lambda: {"l2": -0.1}, "l2 must be a finite number of at least 0, not -0.1"),
    (lambda: {"l2": "a"}, "l2"),
    (lambda: {"learning_rate": 0}, "learning_rate"),
    (lambda: {"learning_rate": float("nan")}, "learning_rate"),
    (lambda: {"learning_rate": "fast"}, "learning_rate"),
    (lambda: {"protection": Plain(optimiser="adamw")}, "optimiser must be one of 'sgd', 'adam', not 'adamw'"),
    (lambda: {"protection": Plain(batch_size=-1)}, "batch_size"),
    (lambda: {"protection": Plain(batch_size=31)}, "batch_size: 31 given, at most the 30 rows are allowed"),
    (lambda: {"protection": Plain(batch_size=2.5)}, "batch_size"),
    (lambda: {"rounds": 0}, "rounds must be an integer of at least 1, not 0"),
    (lambda: {"monitoring": Monitoring(target="high")}, "target"),
    (lambda: {"monitoring": Monitoring(patience=0)}, "patience"),
    (lambda: {"monitoring": Monitoring(evaluate_every=-1)}, "evaluate_every"),
    (lambda: {"monitoring": Monitoring(target=0.8, evaluate_every=0)}, "evaluate_every: 0 given"),
    (lambda: {"protection": Plain(fixed_batches="yes")}, "fixed_batches must be True or False, not 'yes'"),
    (lambda: {"protection": Plain(allow_determined=1)}, "allow_determined must be True or False, not 1"),
    (lambda: {"protection": Blind(key_bits=1024)}, "key_bits must be an integer from 2048"),
    (lambda: {"protection": Blind(key_bits="big")}, "key_bits"),
    (lambda: {"simulation": Simulation(network="dialup")}, "network: 'dialup' given"),
    (lambda: {"simulation": Simulation(network=5)}, "network"),
    (lambda: {"simulation": Simulation(network="1e6")}, "network"),
    (lambda: {"simulation": Simulation(network="-1,0")}, "bandwidth"),
    (lambda: {"simulation": Simulation(engine="threads")}, "engine"),
    (lambda: {"simulation": Simulation(engine=0)}, "engine"),
    (lambda: {"seed": -1}, "seed"),
    (lambda: {"seed": None}, "seed"),
    (lambda: {"simulation": Simulation(progress="yes")}, "progress must be True or False, not 'yes'"),
]
LINEAR: list[tuple[Callable[[], dict[str, Any]], str]] = [
    (lambda: {"rounds": None}, "rounds"),
    (lambda: {"loss": "hinge"}, "loss must be one of"),
    (
        lambda: {"protection": Plain(local_model="tree")},
        "local_model must be one of 'linear', 'network', not 'tree'",
    ),
    (lambda: {"protection": Plain(local_model={"p7": "linear"})}, "local_model: p7 given"),
    (lambda: {"protection": Plain(local_model={"p0": "tree"})}, "local_model of 'p0' must be one of"),
    (lambda: {"protection": Plain(local_model={"p0": 3})}, "local_model of 'p0': int given; 'linear'"),
    (lambda: {"protection": Plain(local_model=3)}, "local_model: int given"),
    (lambda: {"protection": Plain(local_model={"p0": HiddenLayer(2, 3)})}, "HiddenLayer given"),
    (lambda: {"protection": Plain(local_model="network", hidden=())}, "hidden"),
    (lambda: {"protection": Plain(local_model="network", hidden=4)}, "hidden"),
    (lambda: {"protection": Plain(local_model="network", hidden=(0,))}, "hidden"),
    (lambda: {"protection": Plain(local_model="network", activation="gelu")}, "activation must be one of"),
    (lambda: {"fit_intercept": "no"}, "fit_intercept"),
    (
        lambda: {"protection": Plain(exchange="ring")},
        "exchange must be one of 'star', 'pairwise', not 'ring'",
    ),
    (lambda: {"protection": Plain(margin_bound=0)}, "margin_bound"),
    (lambda: {"protection": Plain(margin_bound=float("inf"))}, "margin_bound"),
    (lambda: {"protection": Blind(release="yes")}, "release"),
]
TRANSFER: list[tuple[Callable[[], dict[str, Any]], str]] = [
    (lambda: {"hidden": 0}, "hidden must be an integer from 1 to 4096, not 0"),
    (lambda: {"hidden": (32,)}, "hidden"),
    (lambda: {"protection": Plain(activation="gelu")}, "activation must be one of"),
    (lambda: {"gamma": -1}, "gamma"),
    (lambda: {"protection": Plain(activation_bound=0)}, "activation_bound"),
]


@pytest.mark.parametrize(("settings", "named"), COMMON + LINEAR)
def test_settings_of_the_linear_estimator(settings: Callable[[], dict[str, Any]], named: str) -> None:
    with pytest.raises(SettingError) as caught:
        plain(**settings()).fit(parties())
    one_line(caught, named)


@pytest.mark.parametrize(("settings", "named"), COMMON + TRANSFER)
def test_settings_of_the_transfer_estimator(settings: Callable[[], dict[str, Any]], named: str) -> None:
    usual = {"protection": Plain(), "rounds": 1, "hidden": 2}
    with pytest.raises(SettingError) as caught:
        TransferLearner(**{**usual, **settings()}).fit(parties())
    one_line(caught, named)


# Data.

BLOCKS, LABELS = columns()


def labelled(labels: Any, features: Any = BLOCKS[1], **options: Any) -> Party:
    return Party("bank", features, labels=labels, **options)


def some(labels: Any, value: Any) -> list[Any]:
    """The labels with one of them replaced."""
    return [value, *np.asarray(labels).tolist()[1:]]


SHOP = Party("shop", BLOCKS[0])
FITS: dict[str, tuple[Callable[[], Any], str]] = {
    "one party": (lambda: [labelled(LABELS)], "parties: 1 given, at least 2 are needed"),
    "no party": (lambda: [], "parties: 0 given"),
    "not parties": (lambda: BLOCKS, "parties: a ndarray given, Party(...) is allowed"),
    "a party by itself": (lambda: labelled(LABELS), "parties"),
    "nothing": (lambda: None, "parties"),
    "two of one name": (lambda: [Party("bank", BLOCKS[0]), labelled(LABELS)], "names have to differ"),
    "nobody has labels": (
        lambda: [SHOP, Party("bank", BLOCKS[1])],
        "labels: exactly one party has to have them, nobody does",
    ),
    "two have labels": (
        lambda: [Party("shop", BLOCKS[0], labels=LABELS), labelled(LABELS)],
        "labels: exactly one party has to have them, shop, bank does",
    ),
    "unequal rows": (lambda: [Party("shop", BLOCKS[0][1:]), labelled(LABELS)], "need equally many rows"),
    "ids at one": (
        lambda: [Party("shop", BLOCKS[0], ids=range(30)), labelled(LABELS)],
        "ids: bank has none while others have",
    ),
    "no id in common": (
        lambda: [Party("shop", BLOCKS[0], ids=range(30)), labelled(LABELS, ids=range(50, 80))],
        "have no id in common",
    ),
    "ids of two types": (
        lambda: [
            Party("shop", BLOCKS[0], ids=range(30)),
            labelled(LABELS, ids=[f"x{i}" for i in range(30)]),
        ],
        "have no id in common",
    ),
    "one class": (
        lambda: [SHOP, labelled(np.ones(30))],
        "bank: labels have 1 classes (1.0), two are allowed",
    ),
    "many classes": (lambda: [SHOP, labelled(range(30))], "bank: labels have 30 classes"),
}
MISSING: dict[str, tuple[Callable[[], Any], str]] = {
    "a label is NaN": (lambda: [SHOP, labelled(some(LABELS, np.nan))], "bank: 1 of 30 labels are missing"),
    "a label is None": (lambda: [SHOP, labelled(some(LABELS, None))], "bank: 1 of 30 labels are missing"),
}


@pytest.mark.parametrize("case", FITS | MISSING)
def test_data_of_the_linear_estimator(case: str) -> None:
    make, named = (FITS | MISSING)[case]
    with pytest.raises(DataError) as caught:
        plain().fit(make())
    one_line(caught, named)


@pytest.mark.parametrize("case", [c for c in FITS if c not in ("unequal rows", "one party", "no party")])
def test_data_of_the_transfer_estimator(case: str) -> None:
    make, named = FITS[case]
    with pytest.raises(DataError) as caught:
        TransferLearner(2, rounds=1, protection=Plain(allow_determined=True)).fit(make())
    one_line(caught, named)


TRANSFER_FITS: dict[str, tuple[Callable[[], Any], str]] = {
    "three parties": (lambda: [SHOP, Party("x", BLOCKS[0]), labelled(LABELS)], "parties: 3 given, transfer"),
    "unequal rows": (
        lambda: [Party("shop", BLOCKS[0][1:]), labelled(LABELS)],
        "pass ids to align them",
    ),
    "all shared people unlabelled": (
        lambda: [
            Party("shop", BLOCKS[0][:5], ids=range(5)),
            labelled([None] * 5 + LABELS.tolist()[5:], ids=range(30)),
        ],
        "bank: none of the 5 people shared with shop has a label",
    ),
    "no labels at all": (lambda: [SHOP, labelled([None] * 30)], "bank: labels have 0 classes"),
}


@pytest.mark.parametrize("case", TRANSFER_FITS)
def test_people_of_the_transfer_estimator(case: str) -> None:
    make, named = TRANSFER_FITS[case]
    with pytest.raises(DataError) as caught:
        TransferLearner(2, rounds=1, protection=Plain()).fit(make())
    one_line(caught, named)


def test_numbers_of_the_linear_loss() -> None:
    for labels, named in (
        (some(LABELS, "x"), "bank: labels must be numbers"),
        (some(LABELS, np.nan), "bank: labels must be finite"),
        (some(LABELS, 1e6), "bank: labels up to 1e+06 given, at most margin_bound=64 is allowed"),
    ):
        with pytest.raises(DataError) as caught:
            plain(loss="linear").fit([SHOP, labelled(labels)])
        one_line(caught, named)


# Prediction and scoring.


BANK = Party("bank", BLOCKS[1])
PREDICTIONS: dict[str, tuple[Callable[[], Any], str]] = {
    "a party is missing": (lambda: [SHOP], "parties: bank is missing"),
    "an unknown party": (lambda: [SHOP, Party("x", BLOCKS[1])], "parties: bank is missing, x is not in"),
    "a party too many": (lambda: [SHOP, BANK, Party("x", BLOCKS[1])], "parties: x is not in the model"),
    "fewer columns": (
        lambda: [SHOP, Party("bank", BLOCKS[1][:, 1:])],
        "bank: 2 columns given, the model has 3",
    ),
    "more columns": (
        lambda: [Party("shop", np.hstack(BLOCKS)), BANK],
        "shop: 6 columns given, the model has 3",
    ),
    "unequal rows": (lambda: [SHOP, Party("bank", BLOCKS[1][1:])], "need equally many rows"),
    "ids at one": (lambda: [SHOP, Party("bank", BLOCKS[1], ids=range(30))], "ids: shop has none"),
    "not parties": (lambda: BLOCKS, "parties: a ndarray given"),
    "a party by itself": (lambda: SHOP, "parties"),
    "two of one name": (lambda: [SHOP, SHOP, BANK], "names have to differ"),
}


@pytest.mark.parametrize("case", PREDICTIONS)
@pytest.mark.parametrize("method", ["predict", "predict_proba", "decision_function", "score"])
def test_predictions_that_do_not_fit(case: str, method: str) -> None:
    model = plain(rounds=1).fit([SHOP, labelled(LABELS)])
    make, named = PREDICTIONS[case]
    given = make()
    if method == "score" and isinstance(given, list) and all(isinstance(p, Party) for p in given):
        given = [
            Party(p.name, p.features, labels=LABELS[: p.rows], ids=p.ids) if p.name != "shop" else p
            for p in given
        ]
        if not any(p.labels is not None for p in given):
            named = "parties"
        elif sum(p.labels is not None for p in given) > 1:
            named = ""
    with pytest.raises(DataError) as caught:
        getattr(model, method)(given)
    one_line(caught, named)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (BANK, "parties: bank given, rows of shop are needed"),
        ([BANK], "rows of shop are needed"),
        ([SHOP, SHOP], "parties"),
        (Party("shop", BLOCKS[0][:, 1:]), "shop: 2 columns given, the model has 3"),
        (BLOCKS[0], "parties: a ndarray given"),
        (None, "parties"),
    ],
)
def test_transfer_predictions_that_do_not_fit(given: Any, named: str) -> None:
    model = TransferLearner(2, rounds=1, protection=Plain(allow_determined=True)).fit(
        [SHOP, labelled(LABELS)]
    )
    with pytest.raises(DataError) as caught:
        model.predict(given)
    one_line(caught, named)


@pytest.mark.parametrize("estimator", [GeneralisedLinear, TransferLearner])
@pytest.mark.parametrize("method", ["predict", "predict_proba", "decision_function", "score", "save"])
def test_an_estimator_that_is_not_fitted_says_so(estimator: Any, method: str, tmp_path: Any) -> None:
    with pytest.raises(DataError, match=f"this {estimator.__name__} is not fitted; call fit or load first"):
        getattr(estimator(), method)(tmp_path if method == "save" else [SHOP, labelled(LABELS)])


@pytest.mark.parametrize("estimator", [GeneralisedLinear, TransferLearner])
def test_an_estimator_that_is_not_fitted_may_be_looked_at(estimator: Any) -> None:
    model = estimator()
    assert {"fit", "predict"} <= set(dir(model))
    for name in ("coef_", "intercept_", "log_odds_", "classes_", "holders_", "confusion_"):
        assert not hasattr(model, name)
    with pytest.raises(NotFittedError, match="not fitted"):
        _ = model.holders_


def test_labels_to_score_against_have_to_be_there() -> None:
    model = plain(rounds=1).fit([SHOP, labelled(LABELS)])
    for parties_, named in (
        ([SHOP, BANK], "labels: exactly one party"),
        ([SHOP, labelled(some(LABELS, np.nan))], "bank: 1 of 30 labels are missing"),
        ([SHOP, labelled(some(LABELS, None))], "bank: 1 of 30 labels are missing"),
    ):
        with pytest.raises(DataError) as caught:
            model.score(parties_)
        one_line(caught, named)
    other = TransferLearner(2, rounds=1, protection=Plain(allow_determined=True)).fit(
        [SHOP, labelled(LABELS)]
    )
    with pytest.raises(DataError, match="bank: 1 of 30 labels are missing"):
        other.score([SHOP, labelled(some(LABELS, None))])


def test_keys_that_do_not_fit() -> None:
    model = GeneralisedLinear(rounds=1, protection=OwnGradient())
    plain_key = generate("plain")
    for keys, named in (
        ({"shop": plain_key}, "keys: shop has"),
        ({"nobody": plain_key}, "keys: 'nobody' given, only shop, bank hold keys in this run"),
        ({"shop": "secret"}, "keys: shop has 'secret', a ckks key-holder is allowed"),
    ):
        with pytest.raises(SettingError) as caught:
            model.fit([SHOP, labelled(LABELS)], keys=keys)  # type: ignore[arg-type]
        one_line(caught, named)


def test_a_party_may_not_be_called_like_the_key_holder() -> None:
    made = [Party("key-holder", BLOCKS[0]), SHOP, labelled(LABELS)]
    with pytest.raises(SecurefedError) as caught:
        plain().fit(made)
    one_line(caught, "key-holder")


def test_a_bound_that_is_too_small_is_named() -> None:
    with pytest.raises(DataError) as caught:
        plain(learning_rate=1.0, protection=Plain(margin_bound=0.01)).fit([SHOP, labelled(LABELS)])
    one_line(caught, "a score part reached")
