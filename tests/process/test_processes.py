"""Real parties: one process each, over mutual TLS on loopback."""

from __future__ import annotations

import csv
import json
import shutil
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from bench.fleet import run_table
from securefed import GeneralisedLinear, Party, Simulation
from securefed.audit.recorded import read_run
from securefed.audit.report import audit
from securefed.audit.verify import verify
from securefed.cli import main
from securefed.protocols.own_gradient.ledger import LedgerWarning
from securefed.settings.run import RunSettings
from tests.data.fitting import apply, fit
from tests.process.parties import NOTARY, PASSPHRASE, Fleet, reached

TWO = {"shop": 3, "bank": 2}
FOUR = {"a": 2, "b": 1, "c": 2, "d": 2}
OPEN = {
    "reveal": "own-gradient",
    "batch_size": 30,
    "rounds": 3,
    "learning_rate": 0.1,
    "l2": 0.01,
}
Make = Callable[..., Fleet]


def simulated(fleet: Fleet, **settings: Any) -> dict[str, Any]:
    """The same run in one process, on the rows in common in the agreed order."""
    people, names = fleet.people, fleet.parties
    order = aligned_ids(fleet)
    row_of = {id_: row for row, id_ in enumerate(people.ids)}
    rows = [row_of[id_] for id_ in order]
    parties = []
    for name in names:
        # Standardised on all rows that the party has, as the command does.
        table = people.part(name)
        columns, _ = fit({str(i): table[people.known[name], i] for i in range(table.shape[1])})
        numbers, _ = apply(columns, {str(i): table[rows, i] for i in range(table.shape[1])})
        labels = people.labels[rows] if name == people.label_party else None
        parties.append(Party(name, numbers, labels=labels))
    third = {} if len(names) == 2 else {"key_holder": NOTARY}
    table = run_table({"name": "trial", "parties": names, **third, "scheme": "plain", **settings})
    run = vars(RunSettings.of(table).settings)
    model = GeneralisedLinear(
        **{**run, "standardise": False, "simulation": Simulation(engine="serial", progress=False)}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LedgerWarning)
        model.fit(parties)
    return {name: shard.to_arrays() for name, shard in model.shards_.items()}


def aligned_ids(fleet: Fleet) -> list[str]:
    """Everybody's common ids in the agreed order, by SHA-256."""
    from hashlib import sha256

    return sorted(fleet.people.common, key=lambda id_: sha256(id_.encode()).digest())


@pytest.mark.slow
def test_two_parties_train_what_a_simulation_trains_and_predict(fleet: Make) -> None:
    made = fleet(TWO, scheme="paillier", **OPEN)
    made.start_all()
    made.all_good()
    expected = simulated(made, scheme="paillier", **OPEN)
    for name in TWO:
        found = made.shard(name)
        assert np.array_equal(found["parameters"], expected[name]["parameters"])  # exact: bit for bit
        result = made.result(name)
        assert result["rounds"] == 3 and result["protected"] and result["interruptions"] == 0
        assert result["rows"] == len(made.people.common)
        assert [peer["transcripts"] for peer in result["peers"].values()] == ["agree"]
        folder = made.run_folder(name)
        # The ledgers of a fleet never refuse, and the audit says so.
        assert set(audit(*read_run(folder)).failed) <= {"score-ledger"}
        plots = "<svg" in (folder / "report.html").read_text()
        assert plots == (name == "bank"), "plots are for the label party"
        assert not list(folder.glob("checkpoints-*"))
        shards = [path.name for path in folder.glob("shard-*")]
        assert shards == [f"shard-{name}.npz"], "a party keeps its own part only"
        timing = json.loads((folder / "timing.json").read_text())
        total = timing["computation_seconds"] + timing["communication_seconds"]
        assert total == pytest.approx(timing["total_seconds"])
        assert set(timing["parties"]) == set(TWO) and len(timing["rounds"]) == 3
    predicts(made)


def predicts(made: Fleet, least: float = 0.8) -> None:
    """A joint prediction on the rows of the training."""
    made.processes.clear()
    for name in made.everybody:
        rows = [] if name == NOTARY else ["--rows", str(made.folder / name / "data.csv")]
        made.start(name, "predict", *rows)
    made.all_good()
    folder = made.run_folder(made.people.label_party)
    with (folder / "scores.csv").open() as file:
        scores = {row["id"]: row for row in csv.DictReader(file)}
    assert set(scores) == made.people.common
    labels = dict(zip(made.people.ids, made.people.labels.tolist(), strict=True))
    assert roc_auc_score([labels[i] for i in scores], [float(r["score"]) for r in scores.values()]) > least
    together = made.folder / "verified"
    together.mkdir(exist_ok=True)
    shutil.copy(folder / "scores.csv", together)
    for name in made.everybody:
        for file in (f"prediction-{name}.jsonl", f"prediction-signatures-{name}.json"):
            shutil.copy(made.run_folder(name) / file, together)
    assert {verdict for verdict, _, _ in verify(together)} == {"pass"}
    said = made.log(made.people.label_party)
    assert " rows with labels" in said and "lift " in said
    for row in scores.values():
        assert row["predicted"] == ("1" if float(row["probability"]) > 0.5 else "0")
    in_order = sorted(scores.values(), key=lambda row: float(row["score"]))
    rising = [float(row["probability"]) for row in in_order]
    assert rising == sorted(rising) and 0 < rising[0] < rising[-1] < 1
    for other in made.parties[:-1]:
        assert not (made.run_folder(other) / "scores.csv").exists()
        recorded = (made.run_folder(other) / f"prediction-{other}.jsonl").read_text()
        assert '"kind":"score' in recorded or '"kind":"margin"' in recorded


@pytest.mark.slow
def test_a_peer_with_other_settings_is_named_with_both_values(fleet: Make) -> None:
    made = fleet(TWO, scheme="plain", **OPEN)
    made.settings("shop", local_steps=7)
    made.start_all()
    assert set(made.finish().values()) == {2}
    for name in TWO:
        (line,) = [line for line in made.log(name).splitlines() if "local_steps" in line]
        assert "20" in line and "7" in line and "shop" in line and "bank" in line
        assert "Traceback" not in made.log(name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch_size": 500}, "at most the "),
        ({"batch_size": 2}, "which determines them"),
    ],
)
def test_what_cannot_be_run_is_said_by_everybody(change: dict[str, Any], words: str, fleet: Make) -> None:
    """Known only once the common rows are counted; then all know it, and nobody says that another left."""
    made = fleet({"a": 3, "b": 3, "c": 3}, scheme="plain", **{**OPEN, **change})
    made.start_all()
    assert set(made.finish().values()) == {2}, {name: made.log(name) for name in made.everybody}
    for name in made.everybody:
        last = made.log(name).strip().split("\n")[-1]
        assert "batch_size: " in last and words in last and "Traceback" not in made.log(name)


@pytest.mark.slow
def test_that_no_id_is_in_common_is_said_by_everybody(fleet: Make) -> None:
    made = fleet({"a": 3, "b": 3, "c": 3}, scheme="plain", **OPEN)
    file = made.folder / "a" / "data.csv"
    head, *rows = file.read_text().splitlines()
    file.write_text(
        "\n".join([head, *(f"X-{place}{row[row.index(',') :]}" for place, row in enumerate(rows))])
    )
    made.start_all()
    assert set(made.finish().values()) == {2}, {name: made.log(name) for name in made.everybody}
    for name in made.everybody:
        last = made.log(name).strip().split("\n")[-1]
        assert "have no id in common: do all name the same kind of id" in last and "X-" not in last


@pytest.mark.slow
def test_four_parties_and_a_key_holder_survive_the_kill_of_one(fleet: Make) -> None:
    """Plain, so that it is quick; the parameters are those of an unbroken run, bit for bit."""
    made = fleet(FOUR, scheme="plain", **{**OPEN, "rounds": 40})
    made.start_all("party", "--resume")
    made.until("b", reached(3))
    made.kill("b")
    made.start("b", "party", "--resume")
    made.all_good()
    expected = simulated(made, **{**OPEN, "rounds": 40})
    for name in FOUR:
        assert np.array_equal(made.shard(name)["parameters"], expected[name]["parameters"])
        assert made.result(name)["interruptions"] == 1
        assert {peer["transcripts"] for peer in made.result(name)["peers"].values()} == {"agree"}
    assert made.result(NOTARY)["rounds"] == 40


CASES = {
    "two, blind": (TWO, {"scheme": "paillier", "key_bits": 2048, "rounds": 3}),
    "two, released": (TWO, {"release": True, "rounds": 3}),
    "two, plain, in turns": (TWO, {"scheme": "plain", "order": "sequential", **OPEN}),
    "four, ckks": (FOUR, {"scheme": "ckks", **OPEN}),
    "two, networks": (
        TWO,
        {"scheme": "ckks", **OPEN, "local_model": "network", "hidden": [2], "local_steps": 2, "rounds": 12},
    ),
    "transfer, ckks": (
        TWO,
        {
            "scheme": "ckks",
            "objective": "transfer",
            "reveal": "own-gradient",
            "hidden": 4,
            "rounds": 12,
            "learning_rate": 0.1,
        },
    ),
    "transfer, blind": (TWO, {"scheme": "ckks", "objective": "transfer", "rounds": 2, "local_steps": 2}),
    "two, watched": (TWO, {"scheme": "plain", **OPEN, "evaluate_every": 1, "holdout": 0.3, "target": 0.6}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_every_scheme_trains_and_predicts_over_the_network(case: str, fleet: Make) -> None:
    """What travels is bytes to the network: each protocol once, each scheme more than once
    (tests/protocols/test_encrypted.py has all of schedules, objectives and schemes in one process).
    """
    columns, settings = CASES[case]
    made = fleet(columns, people={"rows": 80}, **settings)
    made.start_all()
    made.all_good()
    for name in made.everybody:
        result = made.result(name)
        assert {peer["transcripts"] for peer in result["peers"].values()} == {"agree"}
        report = audit(*read_run(made.run_folder(name)))
        assert set(report.failed) <= {"score-ledger"} or settings.get("scheme") == "plain", report.to_text()
        if case == "two, watched" and name == "bank":
            assert result["reason"] == "target" and result["metric"] >= 0.6
    if "released" in case or "blind" not in case:
        expected = {"parameters"}
        assert expected & set(made.shard(made.people.label_party))
    else:
        assert "phi.shop" in made.shard(made.people.label_party)
    predicts(made, least=0.0 if "transfer" in case else 0.7)


@pytest.mark.slow
def test_four_parties_and_a_helper_train_blind_and_predict(
    fleet: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Afterwards a helper without its part, and a part of an earlier version, are named in one line."""
    made = fleet(FOUR, people={"rows": 90}, rounds=3, order="sequential")
    made.start_all()
    made.all_good()
    held = made.result("d")["holdout"]["rows"]
    for name in made.everybody:
        result, scored = made.result(name), name not in ("d", NOTARY)
        assert {peer["transcripts"] for peer in result["peers"].values()} == {"agree"}
        report = audit(*read_run(made.run_folder(name)))
        assert set(report.failed) <= {"score-ledger"}, report.to_text()
        assert result["score_bits"] == (16 * held if scored else None)
        text = (made.run_folder(name) / f"transcript-{name}.jsonl").read_text()
        assert not {word for word in ("scorings", "column_bits", "score_bits", "total_bits") if word in text}
        assert not list((made.folder / name).glob("he-*.skf"))
    assert "phi.d" in made.shard(NOTARY)
    predicts(made, least=0.7)
    monkeypatch.setenv("SECUREFED_PASSPHRASE", PASSPHRASE)
    shard = made.run_folder(NOTARY) / f"shard-{NOTARY}.npz"
    shard.unlink()
    assert main(["predict", str(made.folder / NOTARY / "party.toml")]) == 2
    assert "no model shard there; train first" in capsys.readouterr().err
    old = {"theta": np.zeros(3), "public": np.array(json.dumps(OLD))}
    np.savez(made.run_folder("a") / "shard-a.npz", allow_pickle=False, **old)
    file = str(made.folder / "a" / "party.toml")
    assert main(["predict", file, "--rows", str(made.folder / "a" / "data.csv")]) == 2
    assert "written by securefed of an earlier release" in capsys.readouterr().err


OLD = {"parties": list(FOUR), "instance": "0" * 16, "estimator": "generalised-linear"}
