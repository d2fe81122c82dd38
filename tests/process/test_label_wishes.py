"""What a label party may want of its rows, between processes: several classes, counts with an exposure."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from securefed.assembly import assembly_of
from securefed.assembly.base import PartyData
from securefed.assembly.build import build
from securefed.audit.recorded import read_run
from securefed.audit.report import audit
from securefed.errors import DataError, SettingError
from securefed.labels.metrics import METRICS
from securefed.labels.quality import HeldOutMeans
from securefed.process.checkpoints import ResumeState
from securefed.process.own_data import agreement_of, check_labels
from securefed.protocols.loop import PartyContext
from securefed.settings.party import DataSettings
from securefed.settings.run import RunSettings
from tests.process.parties import Fleet

Make = Callable[..., Fleet]
TWO = {"shop": 12, "bank": 3}


def relabel(made: Fleet, columns: Mapping[str, Any], **of_data: str) -> None:
    """Other columns in the place of the label party's, by person; and lines of its [data]."""
    folder = made.folder / made.people.label_party
    with (folder / "data.csv").open() as file:
        rows = list(csv.DictReader(file))
    place = {id_: row for row, id_ in enumerate(made.people.ids)}
    for row in rows:
        row.update({name: values[place[row["id"]]] for name, values in columns.items()})
    with (folder / "data.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    more = "\n".join(["[data]", *(f'{key} = "{value}"' for key, value in of_data.items())])
    path = folder / "party.toml"
    path.write_text(path.read_text().replace("[data]", more))


def scored(made: Fleet) -> dict[str, dict[str, str]]:
    made.processes.clear()
    for name in made.everybody:
        made.start(name, "predict", "--rows", str(made.folder / name / "data.csv"))
    made.all_good()
    with (made.run_folder(made.people.label_party) / "scores.csv").open() as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def assert_sound(made: Any, kinds: Any, least: float) -> None:
    """All claims hold at both parties, and a prediction names the classes right so often."""
    for name in TWO:
        audited = audit(*read_run(made.run_folder(name)))
        assert set(audited.failed) <= {"score-ledger"}, audited.to_text()  # a fleet's ledgers never refuse
    found = scored(made)
    assert {"score low", "probability mid", "predicted"} <= set(next(iter(found.values())))
    truth = dict(zip(made.people.ids, kinds.tolist(), strict=True))
    assert np.mean([row["predicted"] == truth[id_] for id_, row in found.items()]) > least


@pytest.mark.slow
def test_three_classes_train_and_predict(fleet: Make) -> None:
    made = fleet(TWO, people={"rows": 150}, rounds=3, classes=3)
    table, words = made.people.table, np.array(["low", "mid", "top"])
    margins = np.column_stack([table[:, 0], table[:, 12], np.full(150, 0.4)])
    kinds = words[np.argmax(margins, axis=1)]
    relabel(made, {"label": kinds})
    made.start_all()
    made.all_good()
    held = made.result("bank")["holdout"]
    assert held["metric"] == "accuracy" and held["value"] > 0.6
    seen = held["confusion"]
    assert seen["classes"] == words.tolist() and np.sum(seen["counts"]) == held["rows"]
    assert np.trace(seen["counts"]) == round(held["value"] * held["rows"])
    assert ">predicted mid<" in (made.run_folder("bank") / "report.html").read_text()
    assert made.result("shop")["holdout"] is None
    assert_sound(made, kinds, 0.75)


@pytest.mark.slow
def test_a_transfer_model_of_three_classes_trains_and_predicts(fleet: Make) -> None:
    """Some labels are missing; nothing is opened but three scores of the held-out people, and of those asked
    for.
    """
    settings = {"objective": "transfer", "rounds": 1, "local_steps": 2, "classes": 3, "holdout": 0.4}
    made = fleet(TWO, people={"rows": 150}, **settings)
    table, words = made.people.table, np.array(["low", "mid", "top"])
    kinds = words[np.argmax(np.column_stack([table[:, 0], table[:, 1], np.full(150, 0.4)]), axis=1)]
    relabel(made, {"label": np.where(np.arange(150) % 9, kinds, "")})
    made.start_all()
    made.all_good()
    held = made.result("bank")["holdout"]
    assert held["metric"] == "accuracy" and held["value"] > 0.6 > held["alone"] and held["rows"] < 57
    assert held["confusion"]["classes"] == words.tolist()
    assert np.sum(held["confusion"]["counts"]) == held["rows"]
    assert made.result("shop")["holdout"] is None and made.result("bank")["ledger"] == []
    assert_sound(made, kinds, 0.7)


@pytest.mark.slow
def test_counts_with_an_exposure_train_and_predict(fleet: Make) -> None:
    made = fleet(TWO, people={"rows": 400}, rounds=4, loss="linear")
    rng, table = np.random.default_rng(0), made.people.table
    exposure = rng.uniform(0.2, 2.0, 400)
    counts = rng.poisson(exposure * np.exp(0.7 * table[:, 0] + 0.5 * table[:, 12]))
    log = np.log(exposure).round(6)
    relabel(made, {"label": counts, "bank2": log}, offset="bank2", family="poisson")
    made.start_all()
    made.all_good()
    held = made.result("bank")["holdout"]
    assert held["metric"] == "D2" and held["value"] > held["alone"] + 0.1
    mean = dict(zip(made.people.ids, exposure * np.exp(0.7 * table[:, 0] + 0.5 * table[:, 12]), strict=True))
    pairs = np.array([(float(row["score"]), mean[id_]) for id_, row in scored(made).items()])
    assert np.corrcoef(np.log(pairs).T)[0, 1] > 0.95


def agreed(**run: Any) -> RunSettings:
    return RunSettings.of({"name": "trial", "parties": ["shop", "bank"], **run})


def test_an_automatic_penalty_follows_from_what_parties_say_of_themselves() -> None:
    shared = agreed(protection={"kind": "plain"})
    wide = {"shop": ResumeState(60, columns=60), "bank": ResumeState(61, columns=60)}
    assert agreement_of(shared, wide, 1000).l2 == 0.05
    liar = {"shop": ResumeState(2, columns=10**6), "bank": ResumeState(3, columns=2)}
    assert agreement_of(shared, liar, 1000).l2 == 0.001


def test_scores_of_counts_are_around_one_rate_and_compared_with_the_own_fit() -> None:
    """Rows that are measured are compared by own fits without them."""
    rng = np.random.default_rng(0)
    features, offset = rng.normal(size=(100, 2)), rng.normal(size=100)
    counts = rng.poisson(np.exp(features[:, 0] + offset)).astype(np.float64)
    shared = agreed(loss="linear", protection={"kind": "plain"})
    wishes = DataSettings(file="a.csv", label="y", offset="o", family="poisson").wishes
    targets, side = check_labels(counts, "bank", shared, wishes)
    data = PartyData(features=features, targets=targets, labels=side, offset=offset)
    alignment = np.arange(100), np.ones(100, dtype=np.bool_)
    standings = {"shop": ResumeState(2), "bank": ResumeState(3)}
    agreement = agreement_of(shared, standings, 100)
    model = assembly_of(shared.settings).party_model("bank", shared.parties, 2, 0)
    assembly = assembly_of(shared.settings)
    _, measured = build(assembly, agreement, "bank", data, *alignment, model, PartyContext())
    assert measured is not None and isinstance(measured.quality, HeldOutMeans)
    quality, explained = measured.quality, METRICS["D2"].function
    assert side.link is not None and quality.offset is not None
    assert explained(quality.answers(side.link.constant + quality.offset)) == pytest.approx(0.0, abs=1e-6)
    assert explained(quality.answers(quality.alone)) > 0.2
    assert -0.1 < quality(np.zeros(100)) < 0.0  # one rate, each row's by the others


def test_automatic_rounds_are_a_number_to_everybody() -> None:
    assert agreed(rounds="auto").settings.rounds == agreed().settings.rounds == 24
    assert agreed(rounds=7).settings.rounds == 7


def test_what_labels_do_not_have_is_refused() -> None:
    with pytest.raises(DataError, match=r"bank: labels have 2 classes \(a, b\), classes = 3 was agreed"):
        check_labels(np.array(["a", "b"] * 9), "bank", agreed(classes=3))
    with pytest.raises(SettingError, match="classes: 3 given; more than 2 take a loss of classes, and"):
        agreed(classes=3, protection={"kind": "own-gradient"})
    with pytest.raises(SettingError, match="are the label party's, and no label is named"):
        DataSettings(file="a.csv", class_weight="balanced")
    with pytest.raises(SettingError, match="weight, offset and class_weight need two classes"):
        wishes = DataSettings(file="a.csv", label="y", class_weight="balanced").wishes
        check_labels(np.array(["a", "b", "c"] * 9), "bank", agreed(classes=3), wishes)
