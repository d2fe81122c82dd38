"""`python -m bench table2`: options, files, going on after a stop; quick runs from end to end."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bench.__main__ as dispatch
from bench import table2
from bench.runs import Spec, Store, make, make_all
from bench.tasks import build
from research.data import credit
from securefed.errors import DataError
from tests.data.layouts import CREDIT_COLUMNS, credit_rows, write_csv

pytestmark = pytest.mark.slow

NAMED = os.environ.get("SECUREFED_DATA")
PUBLISHED = bool(NAMED) and (Path(NAMED or "") / "UCI_Credit_Card.csv").exists()
CONTRACT = (
    *("scheme", "network", "algorithm", "Q", "target_auc", "reached", "R"),
    *("comp_min", "comm_min", "total_min", "bytes_exchange", "bytes_open", "auc"),
)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A generated table of the published layout, in which late payers default."""
    rng = np.random.default_rng(0)
    rows = credit_rows(3000)
    for row in rows:
        row[-1] = int(row[6] / 4 - row[1] / 400_000 + rng.normal() > 0.5)
    monkeypatch.setattr(credit, "_verify", lambda name, whole: None)
    return write_csv(tmp_path / "credit.csv", [CREDIT_COLUMNS, *rows])


def bench(*arguments: object) -> int:
    return dispatch.main(["table2", "--quick", "--jobs", "1", *map(str, arguments)])


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--network", "fast"], "network: 'fast' given, one of loopback, lan, wan, paper or BANDWIDTH"),
        (["--reading", "held-out", "--targets", "0.9"], "targets: (0.9,) given, below 0.78 is allowed"),
        (["--overlap", "401"], "overlap: 401 given, 2 to 400 (the labelled rows) is allowed"),
        (["--data", "/no/such.csv"], "Default-Credit: /no/such.csv does not exist"),
        (["--json", "/no/such/rows.json"], "/no/such/rows.json: there is no directory /no/such"),
    ],
)
def test_bad_settings_are_one_clear_line(
    arguments: list[str], line: str, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [] if "--data" in arguments else ["--data", table]
    assert bench("--out", tmp_path / "out", *given, *arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"bench table2: {line}")
    assert error.count("\n") == 1


def test_a_quick_table_and_its_files(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    options = ("--scheme", "plain", "--targets", "0.55,0.6", "--Q", "1,4", "--network", "1e6,0.05")
    assert bench("--data", table, "--out", out, *options, "--json", tmp_path / "rows.json") == 0
    printed = capsys.readouterr().out
    assert "**plain, network `1e6,0.05`** (1 Mbit/s, 50 ms)" in printed
    text = (out / "table2-overlap-plain-quick.md").read_text()
    assert text in printed
    report: dict[str, Any] = json.loads((tmp_path / "rows.json").read_text())
    assert report == json.loads((out / "table2-overlap-plain-quick.json").read_text())
    rows = report["rows"]
    assert len(rows) == 2 * 2  # targets, Q
    for row in rows:
        assert set(CONTRACT) <= row.keys()
        assert row["reached"]
        assert row["total_min"] == row["comp_min"] + row["comm_min"]
    assert {(row["Q"], row["algorithm"]) for row in rows} == {(1, "FedSGD"), (4, "FedBCD-p")}
    assert report["settings"]["overlap"] == 40
    for what in ("auc", "minutes"):
        for kind in ("png", "svg"):
            assert (out / f"table2-overlap-plain-quick-1e6_0_05-{what}.{kind}").stat().st_size > 5000
    stored = sorted((out / "runs").iterdir())
    assert len(stored) == 2

    # Again: nothing is run, and the table is the same.
    before = {path: path.stat().st_mtime_ns for path in stored}
    assert bench("--data", table, "--out", out, *options) == 0
    assert "1/2" not in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in stored} == before
    assert (out / "table2-overlap-plain-quick.md").read_text() == text

    # A part of the runs is gone: that part is made again.
    stored[0].unlink()
    assert bench("--data", table, "--out", out, *options) == 0
    assert "2/2 credit-overlap plain" in capsys.readouterr().out
    assert bench("--data", table, "--out", out, *options, "--fresh") == 0
    assert all(path.stat().st_mtime_ns > before[path] for path in stored)

    # A record that was tampered with is named.
    stored[1].write_text("{}")
    assert bench("--data", table, "--out", out, *options) == 2
    assert f"{stored[1]}: not a record of a run" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [("--objective", "linear"), ("--reading", "held-out")])
def test_the_other_readings_in_plain(arguments: tuple[str, str], table: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.json"
    options = ("--scheme", "plain", "--targets", "0.52", "--Q", "1,3", "--json", rows)
    assert bench("--data", table, "--out", tmp_path, *arguments, *options) == 0
    found = json.loads(rows.read_text())["rows"]
    assert [row["Q"] for row in found] == [1, 3]
    assert all(row["reached"] and row["R_paper"] is None for row in found)


def test_a_missed_bar_fails_a_strict_run(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--data", table, "--out", tmp_path, "--scheme", "plain", "--Q", "1", "--targets", "0.52")
    assert bench(*options, "--strict") == 0
    monkeypatch.setattr(table2, "bars_of", lambda *args, **more: [table2.Bar.of("fast", False, "it was not")])
    assert bench(*options, "--strict") == 1
    assert bench(*options) == 0


def small(table: Path, scheme: str, **changes: Any) -> Spec:
    options = {"data": str(table), "overlap": 12, "labelled": 60, "hidden": 3, "held_out": 50}
    given = {"local_steps": 2, "rounds": 2, "target": 0.999, "timed": True, **changes}
    return Spec("credit-overlap", scheme=scheme, **given).with_options(**options)


@pytest.mark.parametrize("scheme", ["plain", "ckks"])
def test_what_a_record_says_was_sent_is_what_its_events_sent(scheme: str, table: Path) -> None:
    record = make(small(table, scheme), build)
    assert len(record.points) == len(record.sent) == 2
    assert record.reason == "rounds"
    for number, sent in enumerate(record.sent):
        listed = [e for each in record.events.values() for e in each if e.what == "sent"]
        until = [e for e in listed if e.round <= number and e.name != "public-key"]
        sizes = {name: sum(e.size for e in until if e.name == name) for name in {e.name for e in until}}
        assert sent["bytes_exchange"] == sizes["contribution"]
        assert sent["bytes_open"] == sizes["opening-request"] + sizes["opening"]
        assert sent["messages"] == len(until)
    if scheme == "ckks":
        # 12 x 3 and 3 x 3 numbers fit a ciphertext each way; and an opening is one each.
        assert record.sent[1]["ciphertexts"] == 2 * record.sent[0]["ciphertexts"] > 0


def test_an_encrypted_run_scores_as_the_plain_one(table: Path) -> None:
    plain, encrypted = (make(small(table, scheme), build) for scheme in ("plain", "ckks"))
    for before, after in zip(plain.points, encrypted.points, strict=True):
        assert after["auc"] == before["auc"] == before["overlap_auc"]
        assert after["loss"] == pytest.approx(before["loss"], abs=1e-4)
    assert encrypted.ledger == plain.ledger


def test_a_record_survives_its_file(table: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    spec = small(table, "plain")
    assert store.find(spec) is None
    (made,) = make_all([spec, spec], store, build).values()
    assert store.find(spec) == made
    assert make_all([spec], store, lambda spec: pytest.fail("it was there"))[spec] == made
    assert Store(tmp_path / "runs", fresh=True).find(spec) is None
    half = made.to_json()[:100]
    store.path(spec).write_text(half)
    with pytest.raises(DataError, match="delete it to have it measured again"):
        store.find(spec)


def test_what_decides_a_run_decides_its_file(table: Path, tmp_path: Path) -> None:
    store, spec = Store(tmp_path), small(table, "ckks")
    changes: list[dict[str, Any]] = [
        {"local_steps": 3}, {"seed": 1}, {"rounds": 3}, {"target": None}, {"timed": False}, {"workers": 2},
    ]  # fmt: skip
    others = [small(table, "ckks", **change) for change in changes]
    others += [small(table, "paillier"), spec.with_options(hidden=4)]
    assert len({store.path(each) for each in (spec, *others)}) == 1 + len(others)
    # A key's size is nothing to CKKS, and much to Paillier.
    assert store.path(small(table, "ckks", key_bits=3072)) == store.path(spec)
    bigger = small(table, "paillier", key_bits=3072)
    assert store.path(bigger) != store.path(small(table, "paillier"))


@pytest.mark.skipif(not PUBLISHED, reason="SECUREFED_DATA does not name a folder with the published files")
@pytest.mark.parametrize("arguments", [(), ("--objective", "linear"), ("--reading", "held-out")])
def test_quick_under_encryption(arguments: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    assert dispatch.main(["table2", "--quick", "--out", str(tmp_path), "--json", str(out), *arguments]) == 0
    report = json.loads(out.read_text())
    bars = {bar["name"]: bar["verdict"] for bar in report["bars"]}
    assert bars["comp + comm = total"] == "pass"
    assert bars["as many rounds as in plain on the same seed"] == "pass"
    assert all(row["scheme"] == "ckks" for row in report["rows"])
    assert report["planner_Q"]["paper"]


@pytest.mark.skipif(not PUBLISHED, reason="SECUREFED_DATA does not name a folder with the published files")
def test_quick_with_real_parties(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows.json"
    arguments = ["--quick", "--real", "--Q", "5", "--out", str(tmp_path), "--json", str(out)]
    assert dispatch.main(["table2", *arguments]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert [row["target_auc"] for row in rows] == [0.65, 0.7]
    for row in rows:
        assert row["total_min"] == pytest.approx(row["comp_min"] + row["comm_min"])
        assert row["comm_modelled_min"] > 0
    assert "| 70% | FedBCD-p | 5 |" in capsys.readouterr().out
