"""`securefed check`: every problem in one list, and none where there is none."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from securefed.cli import main
from securefed.cli.check import PROBLEM, check_party
from tests.process.parties import PASSPHRASE, Fleet

Make = Callable[..., Fleet]


@pytest.fixture
def made(fleet: Make, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    monkeypatch.setenv("SECUREFED_PASSPHRASE", PASSPHRASE)
    return fleet({"shop": 2, "bank": 2}, scheme="plain", reveal="own-gradient", rounds=3)


def problems(made: Fleet, name: str = "bank", **given: object) -> dict[str, str]:
    file = made.folder / name / "party.toml"
    found = check_party(file, lambda: PASSPHRASE, **given)  # type: ignore[arg-type]
    return {check.about: check.text for check in found if check.verdict == PROBLEM}


@pytest.mark.slow
def test_a_party_that_is_ready(made: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report, file = tmp_path / "check.json", made.folder / "bank" / "party.toml"
    rows = ["--rows", str(made.folder / "bank" / "data.csv"), "--out", str(tmp_path / "scores.csv")]
    before = set(made.folder.rglob("*"))
    assert main(["check", str(file), "--json", str(report), *rows]) == 0
    assert set(made.folder.rglob("*")) == before
    out = capsys.readouterr().out
    assert "no problems in" in out
    assert "PROBLEM" not in out
    found = json.loads(report.read_text())
    assert found["problems"] == 0
    seen = {"settings", "data", "ids", "label", "columns", "keys", "run", "certificates", "clock", "port"}
    assert seen | {"engine", "disk", "rows", "out"} <= {check["about"] for check in found["checks"]}


def test_all_problems_at_once(made: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made.folder / "bank"
    lines = (folder / "data.csv").read_text().splitlines()
    head = lines[0].split(",")
    first, second = lines[1].split(","), lines[2].split(",")
    second[head.index("id")] = first[head.index("id")]  # the same person twice
    first[head.index("label")] = "perhaps"  # a third class
    number = next(place for place, word in enumerate(head) if word not in ("id", "label"))
    second[number] = ""  # nothing where a number has to be
    lines[1:3] = [",".join(first), ",".join(second)]
    (folder / "data.csv").write_text("\n".join(lines) + "\n")
    os.chmod(folder / "checkpoint-key.skf", 0o644)
    text = (folder / "party.toml").read_text()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        (folder / "party.toml").write_text(
            text.replace(made.address("bank"), f"127.0.0.1:{taken.getsockname()[1]}").replace(
                made.address("shop"), "shop.invalid:7001"
            )
        )
        out = str(tmp_path / "nowhere" / "scores.csv")
        code = main(["check", str(folder / "party.toml"), "--rows", str(folder / "none.csv"), "--out", out])
    assert code == 2
    found = capsys.readouterr().out
    for about in ("data", "keys", "port", "address of shop", "rows", "out"):
        assert f"PROBLEM  {about}: " in found, found
    assert found.count("PROBLEM  data: ") == 3 and "8 problems in" in found


def test_settings_do_not_hide_each_other(made: Fleet) -> None:
    file = made.folder / "bank" / "party.toml"
    text = file.read_text().replace("rounds = 3", "rounds = -3").replace('file = "data.csv"', "file = 7")
    text = text.replace("patience = 120", "patience = -1")
    file.write_text(text.replace("peers/shop.pem", "peers/none.pem"))
    found = [check.text for check in check_party(file, lambda: PASSPHRASE)]
    assert len(found) == 4, found
    for word in ("patience", "rounds", "file", "none.pem"):
        assert any(word in text for text in found)


def test_a_missing_certificate_hides_no_other_problem(made: Fleet) -> None:
    folder = made.folder / "bank"
    (folder / "peers" / "shop.pem").unlink()
    (folder / "checkpoint-key.skf").chmod(0o644)
    lines = (folder / "data.csv").read_text().splitlines()
    (folder / "data.csv").write_text("\n".join([*lines, lines[1]]) + "\n")
    with socket.create_server(("127.0.0.1", made.ports["bank"])):
        found = problems(made)
    assert set(found) == {"settings", "data", "keys", "port"}
    assert "[peers.shop]: cannot read" in found["settings"] and "shop.pem" in found["settings"]


def test_both_parties_that_share_a_certificate_are_named(made: Fleet) -> None:
    folder = made.folder / "bank"
    (folder / "peers" / "shop.pem").write_bytes((folder / "certificate.pem").read_bytes())
    text = problems(made)["certificates"]
    assert text == "peers: bank and shop have the same certificate; ask each of them for its own"
    assert main(["party", str(folder / "party.toml")]) == 2


def test_a_file_that_is_no_settings_file_is_one_problem(made: Fleet) -> None:
    file = made.folder / "bank" / "party.toml"
    file.write_text("party = [")
    (only,) = check_party(file, lambda: PASSPHRASE)
    assert "not TOML" in only.text
    assert "cannot read" in check_party(file.with_name("none.toml"), lambda: PASSPHRASE)[0].text


@pytest.mark.slow
def test_the_days_of_certificates_and_the_clock(made: Fleet) -> None:
    later = datetime.now(UTC) + timedelta(days=5000)
    assert set(problems(made, now=later)) == {"certificate of shop", "certificate of bank"}
    before = datetime.now(UTC) - timedelta(days=400)
    assert set(problems(made, now=before)) == {"clock"}
    soon = datetime.now(UTC) + timedelta(days=810)
    file = made.folder / "bank" / "party.toml"
    found = check_party(file, lambda: PASSPHRASE, now=soon)
    assert sum(check.verdict == "note" and "--renew tls" in check.text for check in found) == 2


def test_a_wrong_passphrase_is_a_problem_and_not_the_end(made: Fleet) -> None:
    found = check_party(made.folder / "bank" / "party.toml", lambda: "another passphrase")
    assert [check.about for check in found if check.verdict == PROBLEM] == ["keys"]
    assert {"data", "port", "disk"} <= {check.about for check in found}


def test_limits_and_a_full_disk_are_seen(made: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("usage", (), {"free": 1 << 20})
    monkeypatch.setattr("securefed.cli.check.shutil.disk_usage", lambda _: usage)
    monkeypatch.setattr("securefed.cli.check.resource.getrlimit", lambda _: (100, 100))
    found = problems(made)
    assert found["disk"].startswith("1 MiB free at")
    assert "at least" in found["limits"]
