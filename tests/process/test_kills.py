"""kill -9 at any moment, of anybody: the run goes on, and ends with the model of an unbroken one.

Bit for bit where everything is exact (plain, and Paillier with own gradients: integers all the way). With
CKKS every opening carries a flood. How far two runs may then be apart follows from the recursion of
tests/protocols/error_bounds.py: B <- (1 + eta L sqrt(1 + K)) B + eta e at each local step. Where nothing is
revealed, deaths come at chosen places, so that every stage of a run has one.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from math import sqrt
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from securefed.audit.recorded import read_run
from securefed.audit.report import audit
from tests.process.parties import NOTARY, PATIENT, Fleet, reached
from tests.process.test_processes import aligned_ids, predicts, simulated
from tests.protocols.error_bounds import opening_error

Make = Callable[..., Fleet]
TWO = {"shop": 3, "bank": 2}
FOUR = {"a": 2, "b": 1, "c": 2, "d": 2}
OPEN: dict[str, Any] = {
    "reveal": "own-gradient",
    "batch_size": 30,
    "learning_rate": 0.1,
    "l2": 0.01,
}


def torment(made: Fleet, kills: int, seed: int) -> None:
    """Kill somebody after `kills` random rounds of the run, and start it again each time.

    Every kill waits for an event of its victim, so that it finds the run at the same place on any machine.
    """
    chance = random.Random(seed)
    rounds = int(made.run["rounds"])
    moments = sorted(chance.sample(range(1, rounds - 1), kills))
    made.start_all("party", "--resume")
    early = chance.choice(made.everybody)  # once before there is anything to go on from
    made.until(early, lambda events: any(each["event"] == "listening" for each in events))
    made.kill(early)
    made.start(early, "party", "--resume")
    for moment in moments:
        victim = chance.choice(made.everybody)
        made.until(victim, reached(moment))
        assert made.processes[victim].poll() is None, f"over before the kill:\n{made.log(victim)}"
        made.kill(victim)
        made.start(victim, "party", "--resume")
    made.all_good()


def check(made: Fleet) -> None:
    """What a run that was killed leaves: whole results and transcripts that agree."""
    for name in made.everybody:
        result = made.result(name)
        assert f"rounds={result['rounds']}," in result["settings"]["stopping"]
        assert {peer["transcripts"] for peer in result["peers"].values()} == {"agree"}
        assert not (made.run_folder(name) / f"checkpoints-{name}.sfc").exists()
        assert "Traceback" not in made.log(name)
        if made.run["scheme"] != "plain":
            report = audit(*read_run(made.run_folder(name)))
            assert set(report.failed) <= {"score-ledger"}, report.to_text()
    assert made.result(made.people.label_party)["interruptions"] >= 1


@pytest.mark.slow
@pytest.mark.nightly
def test_ten_kills_and_the_same_paillier_model_bit_for_bit(fleet: Make) -> None:
    settings = {**OPEN, "rounds": 36}
    made = fleet(TWO, scheme="paillier", **settings)
    torment(made, 10, seed=1)
    check(made)
    expected = simulated(made, scheme="paillier", **settings)
    for name in TWO:
        assert np.array_equal(made.shard(name)["parameters"], expected[name]["parameters"])


@pytest.mark.slow
def test_a_kill_after_the_last_write_is_no_fault_of_the_next_start(fleet: Make) -> None:
    """The checkpoints are gone and the exit code was never given: a supervisor starts the party again."""
    made = fleet(TWO, scheme="plain", **OPEN, rounds=5)
    for name in TWO:
        made.mortal(name, ("securefed.cli.party:_report", 1))
    made.start_all("party", "--resume")
    made.revive()
    assert [made.deaths(name) for name in TWO] == [1, 1]
    for name in TWO:
        assert "this run is finished, and nothing is left to do" in made.log(name)
        assert made.result(name)["peers"].popitem()[1]["transcripts"] == "agree"
    made.settings("bank", l2=0.5)  # another run under the same name
    made.start("bank", "party", "--resume")
    assert made.processes["bank"].wait(PATIENT) == 2
    assert "holds a finished run" in made.log("bank").splitlines()[-1]


@pytest.mark.slow
def test_a_party_that_is_done_needs_nobody_for_a_damaged_record(fleet: Make) -> None:
    made = fleet(TWO, scheme="plain", **OPEN, rounds=5)
    for name in TWO:
        made.settings(name, {"wait": 5})
    made.mortal("bank", ("securefed.cli.party:write_run", 1))
    made.start_all("party", "--resume")
    made.processes["bank"].wait(PATIENT)
    path = made.run_folder("bank") / "checkpoints-bank.sfc"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    made.processes["shop"].wait(PATIENT)  # it waits for the bank for a while, and is content
    made.start("bank", "party", "--resume")
    made.all_good()
    assert "is set aside" in made.log("bank")


@pytest.mark.slow
def test_four_parties_and_a_key_holder_with_adam_in_plain(fleet: Make) -> None:
    settings = {**OPEN, "rounds": 200, "optimiser": "adam", "learning_rate": 0.02}
    made = fleet(FOUR, scheme="plain", **settings)
    torment(made, 4, seed=2)
    check(made)
    expected = simulated(made, **settings)
    for name in FOUR:
        assert np.array_equal(made.shard(name)["parameters"], expected[name]["parameters"])
    assert made.result(NOTARY)["rounds"] == 200


def columns(made: Fleet) -> list[NDArray[np.float64]]:
    """Everybody's prepared rows in common, in the agreed order, the label party's with its intercept."""
    people = made.people
    row_of = {id_: row for row, id_ in enumerate(people.ids)}
    rows = [row_of[id_] for id_ in aligned_ids(made)]
    blocks = []
    for name in people.columns:
        known = people.part(name)[people.known[name]]
        blocks.append((people.part(name)[rows] - known.mean(axis=0)) / known.std(axis=0))
    blocks[-1] = np.hstack([blocks[-1], np.ones((len(rows), 1))])
    return blocks


def drift(made: Fleet, error: float) -> float:
    """B after the run, with gradients off by `error` at each local step."""
    joined, size = np.hstack(columns(made)), int(made.run["batch_size"])
    # A batch's part of the curvature is at most that of all rows, S to n.
    smoothness = 0.25 * float(np.linalg.norm(joined, 2)) ** 2 / size + float(made.run["l2"])
    eta, steps, distance = float(made.run["learning_rate"]), int(made.run["local_steps"]), 0.0
    for _ in range(int(made.run["rounds"]) * steps):
        distance = (1 + eta * smoothness * sqrt(1 + len(TWO))) * distance + eta * error + 1e-12
    return distance


def distance(made: Fleet, expected: dict[str, Any]) -> float:
    parts = [made.shard(name)[key] - expected[name][key] for name in made.parties for key in ("parameters",)]
    return float(np.linalg.norm(np.concatenate(parts)))


# Runs that reveal nothing: every attempt makes a new pass and new products, and only the shares go on

PASS = "securefed.protocols.blind.linear:run_pass"
PREPARE = "securefed.protocols.blind.linear:prepare_all"
ROUND = "securefed.protocols.blind.linear:BlindParty._round"
EVALUATION = "securefed.protocols.blind.linear:score_rows"
END = "securefed.protocols.blind.linear:BlindParty._end"
SHARD = "securefed.process.party_run:save_shard"
MARK = "securefed.process.recording:RunRecorder.write"
BLIND: dict[str, Any] = {"reveal": "nothing", "release": True, "rounds": 9, "l2": 0.01, "score_precision": 5}
"""With so few bits there is one stage. Targets of a second one follow from scores, and so from their blur."""


def same_blind_model(made: Fleet) -> None:
    """As unbroken runs give it. Released parameters are blurred by 2**-14 of a step's size; shares are cut at
    2**-34 in each of a few rounds, which is nothing beside that.
    """
    expected = simulated(made, scheme="ckks", **BLIND)
    for name in made.parties:
        found, other = made.shard(name), expected[name]
        bound = 2 * 2.0**-13 * float(np.abs(found["root"]).sum(axis=1).max())
        assert np.allclose(found["parameters"], other["parameters"], rtol=0.0, atol=bound)
        assert 0.0 < bound < 1e-2, "a bound that says something"


@pytest.mark.slow
def test_a_blind_run_of_two_survives_deaths_in_every_stage(fleet: Make) -> None:
    made = fleet(TWO, scheme="ckks", **BLIND)
    made.mortal("bank", (PASS, 1), (EVALUATION, 1), (SHARD, 1))
    made.mortal("shop", (ROUND, 3), (END, 1))
    made.start_all("party", "--resume")
    made.revive()
    assert (made.deaths("bank"), made.deaths("shop")) == (3, 2)
    check(made)
    same_blind_model(made)
    predicts(made, least=0.7)


@pytest.mark.slow
def test_a_blind_run_with_a_helper_survives_the_deaths_of_anybody(fleet: Make) -> None:
    """The helper's shares of the model are in its checkpoints; the others may lag any number of rounds."""
    made = fleet(FOUR, people={"rows": 90}, scheme="ckks", **BLIND)
    made.mortal(NOTARY, (PREPARE, 1), (ROUND, 3), (EVALUATION, 1), (SHARD, 1))
    made.mortal("a", (ROUND, 2))
    made.mortal("d", (MARK, 8))
    made.start_all("party", "--resume")
    made.revive()
    assert [made.deaths(name) for name in (NOTARY, "a", "d")] == [4, 1, 1]
    check(made)
    same_blind_model(made)
    assert "phi.d" in made.shard(NOTARY) and "parameters" not in made.shard(NOTARY)
    predicts(made, least=0.7)


@pytest.mark.slow
def test_a_helper_without_its_checkpoints_is_noticed(fleet: Make) -> None:
    made = fleet({"a": 2, "b": 2, "c": 2}, scheme="ckks", **BLIND)
    made.mortal(NOTARY, (ROUND, 5))
    made.start_all("party", "--resume")
    made.processes[NOTARY].wait(PATIENT)
    (made.run_folder(NOTARY) / f"checkpoints-{NOTARY}.sfc").unlink()
    made.start(NOTARY, "party", "--resume")
    assert set(made.finish().values()) == {2}
    for name in made.everybody:
        assert f"{NOTARY} has no checkpoint that fits" in made.log(name).strip().split("\n")[-1]


@pytest.mark.slow
def test_a_ckks_model_is_the_same_within_the_flood(fleet: Make) -> None:
    settings = {**OPEN, "rounds": 10, "local_steps": 2}
    made = fleet(TWO, scheme="ckks", **settings)
    torment(made, 3, seed=4)
    check(made)
    expected = simulated(made, scheme="plain", **settings)
    blocks, size = columns(made), int(settings["batch_size"])
    squares = 0.0
    for block in blocks:
        opened = opening_error(
            "ckks",
            rows=size,
            terms=1,
            factor=float(np.abs(block).max()),
            total=16.5 * size,
            bound=16.5,
            columns=1,
            outputs=block.shape[1],
        )
        squares += block.shape[1] * (opened / size) ** 2
    bound = drift(made, sqrt(squares))
    assert distance(made, expected) <= bound
    assert bound < 0.1, "a bound that says something"


ANSWER = "securefed.protocols.blind.scoring:_tell"
"""Booked in the score ledger, and not yet answered."""


def booked(made: Fleet, name: str) -> list[int]:
    """How many people each record of a party's score ledger names."""
    with closing(sqlite3.connect(made.folder / name / "score-ledger.bin")) as database:
        return [count for (count,) in database.execute("SELECT COUNT(*) FROM told GROUP BY question")]


@pytest.mark.slow
def test_a_kill_between_booking_and_answer_is_booked_once_and_stops_nobody(fleet: Make) -> None:
    """The shop has one column of few values: its ledger allows two scorings of a person."""
    made = fleet({"shop": 1, "bank": 2}, scheme="ckks", reveal="nothing", rounds=3, l2=0.01)
    for name in TWO:
        made.settings(name, {"score_ledger": "refuse"})
    made.mortal("shop", (ANSWER, 1), (ANSWER, 1), (ANSWER, 1))
    made.start_all("party", "--resume")
    made.revive()
    assert made.deaths("shop") == 3
    check(made)
    assert sorted(booked(made, "shop")) == [10] * 4 + [11] * 6  # five folds, in both stages once


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reveal", "columns", "killed"),
    [
        ("nothing", {"shop": 2, "clinic": 2, "bank": 2}, "clinic"),
        ("own-gradient", {"shop": 2, "bank": 2}, "bank"),
    ],
)
def test_a_kill_before_a_later_question_is_stored_books_nothing_twice(
    reveal: str, columns: dict[str, int], killed: str, fleet: Make
) -> None:
    """One party is killed before it has stored the question of the second evaluation. The run goes on from an
    earlier round and asks another question then, so nobody may have booked this one.
    """
    evaluations = {"rounds": 3, "evaluate_every": 1, "holdout": 0.3, "refit": False}
    made = fleet(columns, scheme="ckks", reveal=reveal, l2=0.01, **evaluations)
    made.mortal(killed, ("securefed.process.recording:RunRecorder.on_scoring", 2))
    made.start_all("party", "--resume")
    made.revive()
    assert made.deaths(killed) == 1
    assert [len(booked(made, name)) for name in list(columns)[:-1]] == [3] * (len(columns) - 1)


@pytest.mark.slow
def test_a_kill_soon_after_a_fold_was_scored_asks_nothing_anew(fleet: Make) -> None:
    """The label party and the helper go on without the clinic, further than checkpoints are kept one by one,
    up to the next evaluation.
    """
    made = fleet({"shop": 2, "clinic": 2, "bank": 2}, scheme="ckks", reveal="nothing", rounds=30, l2=0.01)
    made.mortal("clinic", ("securefed.process.recording:RunRecorder.on_round", 21))
    made.start_all("party", "--resume")
    made.revive()
    assert made.deaths("clinic") == 1
    check(made)
    assert [len(booked(made, name)) for name in ("shop", "clinic")] == [10, 10]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objective", "killed", "place"),
    [("linear", "shop", ANSWER), ("transfer", "bank", "securefed.protocols.blind.scoring:opened")],
)
def test_a_kill_in_a_prediction_books_its_people_once(
    objective: str, killed: str, place: str, fleet: Make
) -> None:
    made = fleet(TWO, scheme="ckks", reveal="nothing", rounds=3, objective=objective)
    made.start_all("party")
    made.all_good()
    before = booked(made, "shop")
    made.mortal(killed, (place, 1))
    for name in TWO:
        made.start(name, "predict", "--rows", str(made.folder / name / "data.csv"))
    made.processes[killed].wait(PATIENT)
    assert made.deaths(killed) == 1
    made.start(killed, "predict", "--rows", str(made.folder / killed / "data.csv"))
    made.all_good()
    assert (made.run_folder("bank") / "scores.csv").exists()
    assert len(booked(made, "shop")) == len(before) + 1


@pytest.mark.slow
def test_a_blind_run_goes_on_two_rounds_before_its_end(fleet: Make) -> None:
    """With these columns replies are larger then than any of a whole run (test_message_sizes.py)."""
    columns = {"shop": 2, "bank": 2}
    made = fleet(columns, scheme="ckks", reveal="nothing", rounds=12, refit=False, holdout=0.2, l2=0.01)
    made.mortal("shop", ("securefed.process.recording:RunRecorder.on_round", 11))
    made.start_all("party", "--resume")
    made.revive()
    assert made.deaths("shop") == 1
    check(made)
