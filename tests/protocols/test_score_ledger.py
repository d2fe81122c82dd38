"""The score ledger: what scores have told of whom, when it warns, when it refuses; it forgets nothing."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from securefed import Blind, GeneralisedLinear, Monitoring, OwnGradient, Party, Simulation
from securefed.errors import DataError, SettingError
from securefed.protocols.schedules import FedSGD
from securefed.protocols.scoring.score_ledger import (
    ScoreGuard,
    ScoreRefusal,
    ScoreWarning,
    allowed_scorings,
    score_bits,
)
from tests.protocols.federation import Keys
from tests.protocols.told import told

KEY = bytes(range(32))
SAME = 2.0**-20
"""Replies are masked and rounded anew each time; the blur is the same, and a thousand times larger."""
PEOPLE = [b"ann", b"bob", b"cem"]
BITS = 100.0
"""Of the columns: three scorings of 16 bits are below half of it."""


def ask(ledger: ScoreGuard, question: bytes, people: list[bytes] | None = None, **other: Any) -> Any:
    given = {"precision_bits": 10, "column_bits": BITS, **other}
    return ledger.book(PEOPLE if people is None else people, question, **given)


def expect(ledger: ScoreGuard, people: list[bytes], scorings: int, *sizes: Any, scoring: bytes = b"") -> None:
    """Plan evaluations; each person has a row."""
    rows = np.array([list(person) for person in people], dtype=np.float64)
    ledger.know(rows, people)
    precision_bits, ledger.column_bits = sizes
    ledger.expect(rows, scorings, precision_bits, scoring=scoring)


@pytest.mark.parametrize(
    ("column_bits", "precision", "allowed"),
    [
        (100.0, 10, 3),
        (127.1, 10, 3),
        (128.0, 10, 4),
        (127.9, 10, 3),
        (10.0, 10, 2),
        (0.0, 10, 2),
        (100.0, 4, 5),
        (100.0, 0, 8),
    ],
)
def test_what_is_allowed(column_bits: float, precision: int, allowed: int) -> None:
    """Half of what columns hold, at p + 6 bits a score; two scorings in any case."""
    assert score_bits(precision) == precision + 6
    assert allowed_scorings(column_bits, precision) == allowed


@pytest.mark.filterwarnings("always::securefed.protocols.scoring.score_ledger.ScoreWarning")
def test_it_warns_and_then_refuses_in_one_line() -> None:
    ledger = ScoreGuard(KEY, party="shop")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ask(ledger, b"1").verdict == "below the line"
    text = "scored 2 times: 32 bits, where .* hold 100. At most 3 scorings .* a smaller score_precision"
    with pytest.warns(ScoreWarning, match=text):
        assert ask(ledger, b"2").verdict == "near"
    assert ask(ledger, b"3").scorings == 3
    with pytest.raises(ScoreRefusal) as caught:
        ask(ledger, b"4")
    line = str(caught.value)
    assert "\n" not in line
    for words in (
        "shop: a score was asked for",
        "4 times: 64 bits, where shop's columns hold 100",
        "at most 3 at 2**-10",
    ):
        assert words in line
    # What was refused was not told.
    assert ask(ledger, b"3").scorings == 3
    assert ledger.total_bits == 3 * 3 * 16


@pytest.mark.parametrize("columns", [2, 12])
def test_default_settings_train_and_predict_whatever_the_columns_hold(columns: int) -> None:
    """Everybody is scored by the model of the other folds and by the finished one. Of two columns many people
    have the same rows, in several folds: that is one scoring, and every bit of it counts.
    """
    rng = np.random.default_rng(0)
    most = 4 if columns == 2 else 60
    shop, bank = rng.integers(0, most, size=(100, columns)), rng.normal(size=(100, 2))
    labels = (shop[:, 0] > most / 2).astype(int)
    people = np.arange(100)
    given = [Party("shop", shop, ids=people), Party("bank", bank, labels=labels, ids=people)]
    model = GeneralisedLinear(rounds=3, simulation=Simulation(engine="serial")).fit(given)
    assert "holdout_rows=100" in model.result_.settings["batches"]
    assert model.decision_function(given).shape == (100,)
    ledger = model.score_guards_["shop"]
    assert {scorings for scorings, _ in told(ledger).values()} == {2}
    assert ledger.total_bits == 200 * 16 if columns == 12 else ledger.total_bits > 400 * 16
    if columns == 2:
        with pytest.raises(ScoreRefusal, match="scored 3 times"):
            model.decision_function([party.take(np.arange(50)) for party in given])


def test_a_run_that_asks_anew_at_all_its_places_is_a_second_scoring() -> None:
    """Each place counts for itself: a third question at one of them is a third scoring."""
    ledger = ScoreGuard(KEY, party="shop")
    asked = [ask(ledger, bytes([n]), scoring=b"training", place=bytes([n % 2])) for n in range(4)]
    assert [state.scorings for state in asked] == [1, 1, 2, 2] and asked[-1].bits == 4 * 16
    again = ScoreGuard(KEY, party="shop")
    again.restore(ledger.to_bytes())
    with pytest.raises(ScoreRefusal, match="scored 3 times: 80 bits"):
        ask(again, b"4", scoring=b"training", place=bytes([0]))


def test_questions_of_one_scoring_count_once_and_all_their_bits() -> None:
    ledger = ScoreGuard(KEY, party="shop")
    for number in range(5):
        state = ask(ledger, bytes([number]), scoring=b"training", place=bytes([number]))
    assert (state.scorings, state.bits, state.verdict) == (1, 80, "near")
    assert ask(ledger, bytes([0]), scoring=b"another").bits == 80  # the same question again
    again = ScoreGuard(KEY, party="shop")
    again.restore(ledger.to_bytes())
    assert ask(again, b"use").scorings == 2
    with pytest.raises(ScoreRefusal, match=r"scored 3 times: 112 bits, where .* hold 100"):
        ask(again, b"once more")


def test_a_second_question_at_a_place_is_another_scoring() -> None:
    """Bob has the row of somebody in the other fold, and is counted in both. Only in the second place a
    question is asked anew.
    """
    ledger = ScoreGuard(KEY, party="shop")
    ask(ledger, b"1", [b"ann", b"bob"], scoring=b"training", place=b"first")
    for number, expected in ((2, 1), (3, 2), (4, 3)):
        people = [b"bob", b"cem"]
        state = ask(ledger, bytes([number]), people, scoring=b"training", place=b"second", column_bits=200.0)
        assert (state.scorings, state.bits) == (expected, 16 * number)
    again = ScoreGuard(KEY, party="shop")
    again.restore(ledger.to_bytes())
    assert told(again) == told(ledger)
    with pytest.raises(ScoreRefusal, match="scored 4 times"):
        ask(again, b"5", [b"bob", b"cem"], scoring=b"training", place=b"second")
    # Before the run goes on, whoever was counted in its scoring is not counted again.
    expect(again, [b"bob"], 1, 10, 1.0, scoring=b"training")
    with pytest.raises(ScoreRefusal, match="scored 4 times"):
        expect(again, [b"bob"], 1, 10, 1.0)


def test_people_with_many_bits_of_one_scoring_do_not_stand_for_others() -> None:
    """Ann has equals in many chunks of a large table. Bob is asked for beside her."""
    ledger = ScoreGuard(KEY, party="shop")
    for number in range(20):
        ask(ledger, bytes([number]), [b"ann"], scoring=b"training", place=bytes([number]))
    for question in (b"a", b"b", b"c"):
        ask(ledger, question, [b"bob"])
    with pytest.raises(ScoreRefusal, match="scored 4 times: 64 bits"):
        ask(ledger, b"d", [b"ann", b"bob"])
    with pytest.raises(ScoreRefusal, match="scored 4 times: 64 bits"):
        expect(ledger, [b"ann", b"bob"], 1, 10, BITS)


def test_a_plan_looks_at_the_person_whom_it_brings_past_the_line() -> None:
    """Ann has many bits of one scoring; a further one of Bob is his third."""
    ledger = ScoreGuard(KEY, party="shop")
    for number in range(20):
        ask(ledger, bytes([number]), [b"ann"], scoring=b"training", place=bytes([number]))
    for question in (b"a", b"b"):
        ask(ledger, question, [b"bob"], column_bits=20.0)
    with pytest.raises(ScoreRefusal, match=r"1 evaluations are planned, .* scored 3 times: 48 bits"):
        expect(ledger, [b"ann", b"bob"], 1, 10, 20.0)


def test_the_same_question_costs_nothing_and_new_people_are_counted() -> None:
    ledger = ScoreGuard(KEY, party="shop")
    for _ in range(20):
        state = ask(ledger, b"model")
    assert (state.scorings, state.bits, ledger.total_bits) == (1, 16, 48)
    assert ask(ledger, b"model", [*PEOPLE, b"dee"]).scorings == 1
    assert ask(ledger, b"other", [b"dee"]).scorings == 2
    assert ask(ledger, b"model", [b"ann", b"ann"]).scorings == 1
    assert ledger.total_bits == 5 * 16


def test_bits_about_many_people_add_up() -> None:
    """A label party that does not follow the protocol may aim all of them at one person."""
    ledger = ScoreGuard(KEY, party="shop")
    for number in range(50):
        ask(ledger, b"model", [bytes([number])])
    assert ledger.total_bits == 50 * 16
    off = ScoreGuard(KEY, party="shop", mode="off")
    ask(off, b"model")
    assert off.total_bits == 48  # a ledger that refuses again later has counted it


def test_every_output_of_a_model_tells_as_much() -> None:
    ledger = ScoreGuard(KEY, party="shop")
    assert ask(ledger, b"1", outputs=4).bits == 64 == score_bits(10, 4)
    assert ask(ledger, b"2", outputs=4).bits == 128
    with pytest.raises(ScoreRefusal, match=r"scored 3 times: 192 bits, where .* hold 100.* at most 2 at"):
        ask(ledger, b"3", outputs=4)
    assert allowed_scorings(200.0, 10, 2) == 3


def test_coarser_scores_tell_less() -> None:
    ledger = ScoreGuard(KEY, party="shop")
    for number in range(5):
        state = ask(ledger, bytes([number]), precision_bits=4)
    assert (state.scorings, state.bits) == (5, 50)
    with pytest.raises(ScoreRefusal):
        ask(ledger, b"once more", precision_bits=4)


@pytest.mark.filterwarnings("always::securefed.protocols.scoring.score_ledger.ScoreWarning")
def test_few_columns_are_scored_twice_the_first_time_in_silence() -> None:
    ledger = ScoreGuard(KEY, party="shop")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ask(ledger, b"1", column_bits=23.0).verdict == "near"
    with pytest.warns(
        ScoreWarning, match="scored 2 times: 32 bits, where .* hold 23.*At most 2 scorings are allowed"
    ):
        ask(ledger, b"2", column_bits=23.0)
    with pytest.raises(ScoreRefusal, match=r"scored 3 times: 48 bits, where .* hold 23.* at most 2 at"):
        ask(ledger, b"3", column_bits=23.0)


@pytest.mark.filterwarnings("always::securefed.protocols.scoring.score_ledger.ScoreWarning")
def test_one_scoring_of_few_values_is_answered_with_a_warning() -> None:
    ledger = ScoreGuard(KEY, party="shop")
    with pytest.warns(ScoreWarning, match="16 bits, where .* hold 6.* patterns of these columns"):
        assert ask(ledger, b"1", column_bits=5.6).verdict == "shown"
    with pytest.warns(ScoreWarning, match="32 bits, where .* hold 6.*At most 2 scorings are allowed"):
        ask(ledger, b"2", column_bits=5.6)
    with pytest.raises(ScoreRefusal):
        ask(ledger, b"3", column_bits=5.6)


@pytest.mark.filterwarnings("always::securefed.protocols.scoring.score_ledger.ScoreWarning")
def test_not_to_refuse_takes_a_word() -> None:
    ledger = ScoreGuard(KEY, party="shop", mode="off")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(9):
            assert ask(ledger, bytes([number])).scorings == number + 1
    with pytest.raises(SettingError, match=r"score_ledger must be one of .* not 'never'"):
        ScoreGuard(KEY, party="shop", mode="never")


def test_a_training_that_plans_too_many_evaluations_is_refused_before_it_begins() -> None:
    ledger = ScoreGuard(KEY, party="shop")
    expect(ledger, PEOPLE, 3, 10, BITS)
    ask(ledger, b"1")
    with pytest.raises(ScoreRefusal, match="3 evaluations are planned, and a person would be scored 4 times"):
        expect(ledger, PEOPLE, 3, 10, BITS)
    expect(ledger, [b"dee"], 3, 10, BITS)
    expect(ledger, PEOPLE, 0, 10, 1.0)


def test_records_say_nothing_without_the_key_and_survive() -> None:
    ledger = ScoreGuard(KEY, party="shop")
    ask(ledger, b"model")
    ask(ledger, b"another model", [b"ann"])
    data = ledger.to_bytes()
    assert not any(word in data for word in (*PEOPLE, b"model"))
    again = ScoreGuard(KEY, party="shop")
    again.restore(data)
    assert again.total_bits == ledger.total_bits == 64
    assert ask(again, b"model").scorings == 2  # ann, who was asked for twice
    with pytest.raises(DataError, match="under another"):
        ScoreGuard(bytes(32)).restore(data)
    with pytest.raises(DataError, match="no score ledger, or damaged"):
        ScoreGuard(KEY, party="shop").restore(b"something else")


def test_people_are_known_by_their_ids_whatever_becomes_of_their_columns() -> None:
    rows = np.random.default_rng(1).normal(size=(3, 2))
    guard = ScoreGuard(KEY, column_bits=BITS)
    guard.know(rows, PEOPLE)
    guard.know(2 * rows, PEOPLE)
    size = {"precision_bits": 10, "fraction_bits": 76}
    for factor, model in ((1, b"model"), (2, b"retrained"), (2, b"again")):
        guard.noises(factor * rows, model, **size)
    with pytest.raises(ScoreRefusal, match="scored 4 times"):
        guard.noises(rows, b"once more", **size)
    guard.noises(3 * rows, b"once more", **size)  # rows that nobody named


def test_a_transcript_says_how_wide_the_noise_is_and_not_what_was_counted() -> None:
    guard = ScoreGuard(KEY, column_bits=BITS)
    _, facts = guard.noises(np.ones((2, 2)), b"model", precision_bits=10, fraction_bits=76)
    assert facts == {"blur": {"precision_bits": 10, "noise_bits": 66}, "ledger": "refuse"}


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
        "protection": OwnGradient(),
        "algorithm": FedSGD(),
        "simulation": Simulation(engine="serial"),
        **settings,
    }
    return GeneralisedLinear(**given), {
        "shop": keys.holder("ckks", 0),
        "bank": keys.holder("ckks", 1),
    }


def test_an_estimator_refuses_before_it_trains_and_says_how_to_go_on(keys: Keys) -> None:
    """64 rows: five columns of six bits hold 30, which allows no more than two scorings."""
    model, holders = learner(keys, rounds=4, monitoring=Monitoring(evaluate_every=1))
    with pytest.raises(
        ScoreRefusal, match=r"shop: 4 evaluations are planned.* hold 30; .*score_ledger='off'"
    ):
        model.fit(parties(64), keys=holders)
    seldom, _ = learner(keys, rounds=4, monitoring=Monitoring(evaluate_every=4))
    assert len(seldom.fit(parties(64), keys=holders).result_.history) == 1
    twice, _ = learner(keys, rounds=4, monitoring=Monitoring(evaluate_every=2))
    assert len(twice.fit(parties(64), keys=holders).result_.history) == 2
    explicit, _ = learner(
        keys, rounds=4, protection=OwnGradient(score_ledger="off"), monitoring=Monitoring(evaluate_every=1)
    )
    assert len(explicit.fit(parties(64), keys=holders).result_.history) == 4
    with pytest.raises(SettingError, match=r"score_ledger must be one of .* not 'no'"):
        learner(keys, protection=OwnGradient(score_ledger="no"))[0].fit(parties(64), keys=holders)


@pytest.mark.parametrize("scheme", [pytest.param("paillier", marks=pytest.mark.slow), "ckks"])
def test_a_blind_model_answers_the_same_question_the_same_way_and_for_nothing(scheme: str) -> None:
    """A party of few columns answers the same rows as often as one likes."""
    model = GeneralisedLinear(
        rounds=1,
        holdout=0.5,
        protection=Blind(scheme=scheme, key_bits=2048),
        simulation=Simulation(engine="serial"),
    )
    model.fit(parties(64))
    assert model.result_.holdout is not None
    ledger = model.score_guards_["shop"]
    assert ledger.total_bits == 32 * 16
    scores = model.decision_function(parties(64, labels=False))
    for _ in range(3):
        again = model.decision_function(parties(64, labels=False))
        assert np.abs(again - scores).max() < SAME
    assert len(set(scores.tolist())) == 64
    assert ledger.total_bits == (32 + 64) * 16


def test_other_rows_of_the_label_party_are_another_question() -> None:
    """With one noise for both, the difference of two answers would show the model exactly."""
    model = GeneralisedLinear(rounds=1, holdout=0.0, simulation=Simulation(engine="serial")).fit(parties(64))
    shop, bank = parties(64, labels=False)
    ledger = model.score_guards_["shop"]
    first = model.decision_function([shop, bank])
    moved = Party("bank", bank.features + 1e-12, ids=bank.ids)
    second = model.decision_function([shop, moved])
    assert ledger.total_bits == 2 * 64 * 16
    assert 2.0**-13 < np.abs(first - second).max() < 2.0**-10
    with pytest.raises(ScoreRefusal, match="scored 3 times"):
        model.decision_function([shop, Party("bank", 2.0 * bank.features, ids=bank.ids)])


def test_people_are_counted_in_the_agreed_form_of_their_ids() -> None:
    """ "ANN 1" and "ann 1" are one person where all parties agreed on "caseless"."""
    model = GeneralisedLinear(rounds=1, holdout=0.0, simulation=Simulation(engine="serial")).fit(parties(64))
    shop, bank = parties(64, labels=False)
    for number, name in enumerate(("ANN", "ann")):
        ids = [f"{name} {row}" for row in range(64)]
        model.decision_function(
            [
                Party("shop", shop.features, ids=ids, id_form="caseless"),
                Party("bank", bank.features + number, ids=ids, id_form="caseless"),
            ]
        )
    assert set(told(model.score_guards_["shop"]).values()) == {(2, 32)}


def test_other_people_in_the_same_request_are_another_question() -> None:
    """A question is all bytes that were asked with: the rows of a request belong together."""
    model = GeneralisedLinear(rounds=1, holdout=0.0, simulation=Simulation(engine="serial")).fit(parties(64))
    shop, bank = parties(64, labels=False)
    model.decision_function([shop, bank])
    few = np.arange(8)
    model.decision_function([shop.take(few), bank.take(few)])
    assert model.score_guards_["shop"].total_bits == (64 + 8) * 16


@pytest.mark.parametrize("place", [0, -1])
def test_another_ciphertext_of_the_same_model_is_another_question(place: int) -> None:
    """Nothing proves that it hides the same parameters: it is booked, and byte-identical ones are not."""
    model = GeneralisedLinear(rounds=1, holdout=0.0, simulation=Simulation(engine="serial")).fit(parties(64))
    new = parties(8, labels=False)
    model.decision_function(new)
    shard: Any = model.shards_["shop"]
    kept = list(shard.sealed)
    for number in (1, 2):
        block = bytearray(kept[0])
        block[place] ^= number
        shard.sealed = [bytes(block), *kept[1:]]
        if number == 1:
            model.decision_function(new)
        else:
            with pytest.raises(ScoreRefusal, match="scored 3 times"):
                model.decision_function(new)


@pytest.mark.slow
def test_retrained_models_count_and_saved_ones_go_on_counting(keys: Keys, tmp_path: Any) -> None:
    model, holders = learner(keys, rounds=1)
    new = parties(8, seed=3, labels=False)
    model.fit(parties(64), keys=holders)
    scores = model.decision_function(new)
    for _ in range(3):
        assert np.abs(model.decision_function(new) - scores).max() < 2.0**-16  # the same question
    model.save(tmp_path)
    again = GeneralisedLinear.load(tmp_path, simulation=Simulation(engine="serial"))
    assert np.abs(again.decision_function(new) - scores).max() < 2.0**-16
    kept, batched = model.score_guards_, replace(model.protection, batch_size=32)
    for seed in (1, 2):
        model.set_params(seed=seed, protection=batched).fit(parties(64), keys=holders)
        model.score_guards_ = kept
        if seed == 1:
            model.decision_function(new)
    with pytest.raises(ScoreRefusal, match="scored 3 times"):
        model.decision_function(new)
    shard = again.shards_["shop"]
    shard.parameters = 1.01 * shard.parameters
    again.decision_function(new)
    shard.parameters = 1.01 * shard.parameters
    with pytest.raises(ScoreRefusal, match="scored 3 times"):
        again.decision_function(new)
