"""The score ledger: what scores have told of whom, when it warns, when it refuses; it forgets nothing."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from securefed import GeneralisedLinear, Party
from securefed.errors import DataError, SettingError
from securefed.protocols.blur import ScoreGuard
from securefed.protocols.recipe import LinearRecipe
from securefed.protocols.schedules import FedSGD
from securefed.protocols.score_ledger import (
    ScoreLedger,
    ScoreRefusal,
    ScoreWarning,
    allowed_scorings,
    read_records,
    whole_records,
)
from tests.protocols.federation import Keys

KEY = bytes(range(32))
PEOPLE = [b"ann", b"bob", b"cem"]
BITS = 100.0
"""Of the columns: four scorings of 12 bits are below half of it."""


def ask(ledger: ScoreLedger, question: bytes, people: list[bytes] | None = None, **other: Any) -> Any:
    given = {"precision_bits": 10, "column_bits": BITS, **other}
    return ledger.book("shop", PEOPLE if people is None else people, question, **given)


@pytest.mark.parametrize(
    ("column_bits", "precision", "allowed"),
    [
        (100.0, 10, 4),
        (127.1, 10, 5),
        (96.0, 10, 4),
        (95.9, 10, 3),
        (10.0, 10, 1),
        (0.0, 10, 1),
        (100.0, 3, 10),
    ],
)
def test_what_is_allowed(column_bits: float, precision: int, allowed: int) -> None:
    assert allowed_scorings(column_bits, precision) == allowed


@pytest.mark.filterwarnings("always::securefed.protocols.score_ledger.ScoreWarning")
def test_it_warns_and_then_refuses_in_one_line() -> None:
    ledger = ScoreLedger(KEY)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ask(ledger, b"1").verdict == "below the line"
        assert ask(ledger, b"2").verdict == "below the line"
    with pytest.warns(ScoreWarning, match="scored 3 times, 36 bits of the 100 .* at most 4 are allowed"):
        assert ask(ledger, b"3").verdict == "near"
    assert ask(ledger, b"4").scorings == 4
    with pytest.raises(ScoreRefusal) as caught:
        ask(ledger, b"5")
    line = str(caught.value)
    assert "\n" not in line
    for words in ("shop: a score was asked for", "5 times, 60 bits of the 100", "at most 4 at 2**-10"):
        assert words in line
    # What was refused was not told.
    assert ask(ledger, b"4").scorings == 4


def test_room_for_two_more_models_is_what_booking_them_would_find() -> None:
    for booked, mode in ((0, "refuse"), (2, "refuse"), (3, "refuse"), (4, "warn")):
        ledger = ScoreLedger(KEY, mode)
        for number in range(booked):
            ask(ledger, bytes([number]), [b"bob"])
        assert ledger.room(2, 10, BITS) == (booked <= 2 or mode == "warn")
    assert not ScoreLedger(KEY).room(2, 10, BITS, outputs=3)
    guard = ScoreGuard(KEY, column_bits=47.9)
    assert not LinearRecipe(scheme="ckks").room(guard) and LinearRecipe(scheme="plain").room(guard)
    guard.column_bits = 48.0
    assert LinearRecipe(scheme="ckks").room(guard) and not LinearRecipe(scheme="ckks").room(guard, 2)


@pytest.mark.parametrize("columns", [2, 12])
def test_default_settings_train_and_predict_whatever_the_columns_hold(columns: int) -> None:
    """Held-out people are scored by one model where columns are few, by a refit one where there is room."""
    rng = np.random.default_rng(0)
    shop, bank = rng.integers(0, 60, size=(100, columns)), rng.normal(size=(100, 2))
    labels = (shop[:, 0] > 30).astype(int)
    given = [Party("shop", shop), Party("bank", bank, labels=labels)]
    model = GeneralisedLinear(rounds=3).fit(given)
    assert ("aside=20" in model.result_.settings["batches"]) == (columns == 12)
    assert model.decision_function(given).shape == (100,)


def test_the_same_question_costs_nothing_and_new_people_are_counted() -> None:
    ledger = ScoreLedger(KEY)
    for _ in range(20):
        state = ask(ledger, b"model")
    assert (state.scorings, state.bits) == (1, 12)
    assert ask(ledger, b"model", [*PEOPLE, b"dee"]).scorings == 1
    assert ask(ledger, b"other", [b"dee"]).scorings == 2
    assert ask(ledger, b"model", [b"ann", b"ann"]).scorings == 1


def test_every_output_of_a_model_tells_as_much() -> None:
    ledger = ScoreLedger(KEY)
    assert ask(ledger, b"1", outputs=4).bits == 48
    with pytest.raises(ScoreRefusal, match=r"scored 2 times, 96 bits of the 100 .* at most 1 at"):
        ask(ledger, b"2", outputs=4)
    assert allowed_scorings(100.0, 10, 2) == 2


def test_coarser_scores_tell_less() -> None:
    ledger = ScoreLedger(KEY)
    for number in range(8):
        state = ask(ledger, bytes([number]), precision_bits=4)
    assert (state.scorings, state.bits) == (8, 48)
    with pytest.raises(ScoreRefusal):
        ask(ledger, b"once more", precision_bits=4)


def test_one_scoring_of_a_few_columns_is_silent_and_the_last() -> None:
    ledger = ScoreLedger(KEY)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ask(ledger, b"1", column_bits=23.0).verdict == "near"
    with pytest.raises(ScoreRefusal, match=r"scored 2 times, 24 bits of the 23 .* at most 1 at"):
        ask(ledger, b"2", column_bits=23.0)


@pytest.mark.filterwarnings("always::securefed.protocols.score_ledger.ScoreWarning")
def test_one_scoring_of_few_values_is_answered_with_a_warning_and_no_second() -> None:
    ledger = ScoreLedger(KEY)
    with pytest.warns(ScoreWarning, match="12 bits of the 6 .* scores show patterns of its columns"):
        assert ask(ledger, b"1", column_bits=5.6).verdict == "shown"
    with pytest.raises(ScoreRefusal):
        ask(ledger, b"2", column_bits=5.6)


@pytest.mark.filterwarnings("always::securefed.protocols.score_ledger.ScoreWarning")
def test_to_warn_or_not_to_count_takes_a_word() -> None:
    ledger = ScoreLedger(KEY, "warn")
    with pytest.warns(ScoreWarning, match="columns can be found from scores"):
        for number in range(9):
            state = ask(ledger, bytes([number]))
    assert (state.scorings, state.verdict) == (9, "past")
    ledger = ScoreLedger(KEY, "off")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(9):
            state = ask(ledger, bytes([number]))
    assert state.to_dict()["verdict"] == "not counted"
    with pytest.raises(SettingError, match=r"score_ledger must be one of .* not 'never'"):
        ScoreLedger(KEY, "never")


def test_a_training_that_plans_too_many_evaluations_is_refused_before_it_begins() -> None:
    ledger = ScoreLedger(KEY)
    ledger.expect("shop", PEOPLE, 4, 10, BITS)
    ask(ledger, b"1")
    with pytest.raises(ScoreRefusal, match="4 evaluations are planned, and a person would be scored 5 times"):
        ledger.expect("shop", PEOPLE, 4, 10, BITS)
    ledger.expect("shop", [b"dee"], 4, 10, BITS)
    ledger.expect("shop", PEOPLE, 0, 10, 1.0)


def test_records_say_nothing_without_the_key_and_survive() -> None:
    ledger = ScoreLedger(KEY)
    ask(ledger, b"model")
    ask(ledger, b"another model", [b"ann"])
    data = ledger.to_bytes()
    assert not any(word in data for word in (*PEOPLE, b"model"))
    assert [(bits, len(people)) for _, bits, people in read_records(data)] == [(12, 3), (12, 1)]
    again = ScoreLedger(KEY)
    again.restore(data)
    assert ask(again, b"model").scorings == 2  # ann, who was asked for twice
    assert again.to_bytes() == data
    stranger = ScoreLedger(bytes(32))
    stranger.restore(data)
    assert ask(stranger, b"a third", [b"ann"]).scorings == 1


def test_a_record_that_was_cut_off_is_none_and_a_damaged_one_is_found() -> None:
    ledger = ScoreLedger(KEY)
    ask(ledger, b"1")
    first = len(ledger.to_bytes())
    ask(ledger, b"2")
    data = ledger.to_bytes()
    for length in range(first, len(data)):
        assert whole_records(data[:length]) == first
    for place in (0, 4, 5, 30, first - 1):
        damaged = bytearray(data)
        damaged[place] ^= 1
        with pytest.raises(DataError, match="score ledger: damaged at byte 0"):
            list(read_records(bytes(damaged)))


def test_people_are_known_by_their_ids_whatever_becomes_of_their_columns() -> None:
    rows = np.random.default_rng(1).normal(size=(3, 2))
    guard = ScoreGuard(KEY, column_bits=BITS)
    guard.know(rows, PEOPLE)
    guard.know(2 * rows, PEOPLE)
    size = {"precision_bits": 10, "fraction_bits": 76}
    assert guard.noise(rows, b"model", **size)[1]["scored"]["scorings"] == 1
    assert guard.noise(2 * rows, b"retrained", **size)[1]["scored"]["scorings"] == 2
    assert guard.noise(3 * rows, b"again", **size)[1]["scored"]["scorings"] == 1  # rows that nobody named


def parties(count: int, seed: int = 0, labels: bool = True) -> list[Party]:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(count, 7))
    truth = (features.sum(axis=1) > 0).astype(int)
    ids = np.arange(count)
    return [
        Party("shop", features[:, :5], ids=ids),
        Party("bank", features[:, 5:], ids=ids, labels=truth if labels else None),
    ]


def learner(keys: Keys, **settings: Any) -> tuple[GeneralisedLinear, dict[str, Any]]:
    given = {
        "scheme": "ckks",
        "reveal": "own-gradient",
        "algorithm": FedSGD(),
        "engine": "serial",
        **settings,
    }
    return GeneralisedLinear(**given), {"shop": keys.holder("ckks", 0), "bank": keys.holder("ckks", 1)}


def test_an_estimator_refuses_before_it_trains_and_says_how_to_go_on(keys: Keys) -> None:
    """64 rows: five columns of six bits hold 30, which allows one scoring."""
    model, holders = learner(keys, rounds=4, evaluate_every=1)
    with pytest.raises(
        ScoreRefusal, match=r"shop: 4 evaluations are planned.* of the 30 .*score_ledger='warn'"
    ):
        model.fit(parties(64), keys=holders)
    seldom, _ = learner(keys, rounds=4, evaluate_every=4)
    assert len(seldom.fit(parties(64), keys=holders).result_.history) == 1
    coarse, _ = learner(keys, rounds=4, evaluate_every=1, score_precision=1)
    assert len(coarse.fit(parties(64), keys=holders).result_.history) == 4
    explicit, _ = learner(keys, rounds=4, evaluate_every=1, score_ledger="warn")
    assert len(explicit.fit(parties(64), keys=holders).result_.history) == 4
    with pytest.raises(SettingError, match=r"score_ledger must be one of .* not 'no'"):
        learner(keys, score_ledger="no")[0].fit(parties(64), keys=holders)


@pytest.mark.parametrize(
    ("scheme", "kind"), [pytest.param("paillier", "paillier", marks=pytest.mark.slow), ("ckks", "rlwe")]
)
def test_the_holdout_and_predictions_of_one_blind_model_are_one_question(
    scheme: str, kind: str, keys: Keys
) -> None:
    """A party of few columns answers both, and as often as one likes."""
    model = GeneralisedLinear(scheme=scheme, rounds=1, holdout=0.5, engine="serial")
    model.fit(parties(64), keys={name: keys.holder(kind, i) for i, name in enumerate(("shop", "bank"))})
    assert model.result_.holdout is not None
    scores = model.decision_function(parties(64, labels=False))
    again = model.decision_function(parties(64, labels=False))
    assert np.abs(scores - again).max() < 2.0**-10  # RLWE floods each opening
    assert len(set(scores.tolist())) == 64


@pytest.mark.slow
def test_retrained_models_count_and_saved_ones_go_on_counting(keys: Keys, tmp_path: Any) -> None:
    model, holders = learner(keys, rounds=1)
    new = parties(8, seed=3, labels=False)
    model.fit(parties(64), keys=holders)
    scores = model.decision_function(new)
    for _ in range(3):
        assert np.abs(model.decision_function(new) - scores).max() < 2.0**-16  # the same question
    model.save(tmp_path)
    again = GeneralisedLinear.load(tmp_path, keys=holders, scheme="ckks", engine="serial")
    assert np.abs(again.decision_function(new) - scores).max() < 2.0**-16
    kept = model.score_guards_
    model.set_params(seed=1, batch_size=32).fit(parties(64), keys=holders)
    model.score_guards_ = kept
    with pytest.raises(ScoreRefusal, match="scored 2 times"):
        model.decision_function(new)
    again.shards_["shop"].parameters = 1.01 * again.shards_["shop"].parameters
    with pytest.raises(ScoreRefusal, match="scored 2 times"):
        again.decision_function(new)
