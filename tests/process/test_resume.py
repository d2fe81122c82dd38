"""Going on after an interruption, in every way that it can go wrong; real processes where it matters."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from securefed.cli import main
from tests.process.parties import NOTARY, PASSPHRASE, ROOT, Fleet, reached

Make = Callable[..., Fleet]
SETTINGS = {"scheme": "plain", "reveal": "own-gradient", "rounds": 400, "batch_size": 20}


@pytest.fixture
def interrupted(fleet: Make, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """Two parties that were stopped in the middle: the bank by Ctrl-C, the shop by losing it."""
    monkeypatch.setenv("SECUREFED_PASSPHRASE", PASSPHRASE)
    made = fleet({"shop": 2, "bank": 2}, **SETTINGS)
    made.settings("shop", {"wait": 5, "patience": 30})
    made.start("bank")
    made.until("bank", bool)  # it listens, and the shop need not wait for it
    made.start("shop")
    made.until("bank", reached(5))
    made.processes["bank"].send_signal(signal.SIGINT)
    assert made.finish() == {"shop": 1, "bank": 1}
    return made


@pytest.mark.slow
def test_an_interruption_says_how_to_go_on_and_changes_are_noticed(
    interrupted: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("shop", "bank"):
        lines = interrupted.log(name).strip().split("\n")
        assert "party.toml --resume" in lines[-1] and "is kept" in lines[-1]
        assert "Traceback" not in interrupted.log(name)
    assert "stopped; round " in interrupted.log("bank")
    file = interrupted.folder / "bank" / "party.toml"

    def refused(*words: str) -> str:
        capsys.readouterr()
        assert main(["party", str(file), *words]) == 2
        (line,) = capsys.readouterr().err.strip().split("\n")
        return line

    assert "unfinished run at round" in refused()
    data = interrupted.folder / "bank" / "data.csv"
    text = data.read_text()
    data.write_text(text.replace("p0001", "p9999"))
    assert "data.csv has changed since the run began" in refused("--resume")
    data.write_text(text)
    interrupted.settings("bank", learning_rate=0.25, seed=99)
    line = refused("--resume")
    assert "learning_rate: 0.25 given, and the run began with 'auto'" in line
    assert "seed: 99 given, and the run began with" in line, "all that differs at once"
    interrupted.settings("bank")
    newest = interrupted.run_folder("bank") / "checkpoints-bank.sfc"
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    # Nothing of all that has cost anything: both go on, from the checkpoint before the damaged one.
    interrupted.run["rounds"] = 400
    for name in ("shop", "bank"):
        interrupted.settings(name)
        interrupted.start(name, "party", "--resume")
    interrupted.all_good()
    assert f"{newest.name}.damaged was damaged and is set aside" in interrupted.log("bank")
    result = interrupted.result("bank")
    assert result["rounds"] == 400 and result["interruptions"] == 1
    assert result["peers"]["shop"]["transcripts"] == "agree"
    assert "holds a finished run" in refused()
    assert main(["party", str(file), "--resume"]) == 0, "a supervisor may start it once more"
    told = capsys.readouterr()
    assert "nothing is left to do" in told.err and "rounds      400" in told.out
    interrupted.settings("bank", learning_rate=0.25)
    assert "holds a finished run" in refused("--resume")


@pytest.mark.slow
def test_lost_checkpoints_are_not_passed_over_in_silence(interrupted: Fleet) -> None:
    (interrupted.run_folder("shop") / "checkpoints-shop.sfc").unlink()
    for name in ("shop", "bank"):
        interrupted.settings(name)
        interrupted.start(name, "party", "--resume")
    assert interrupted.finish() == {"shop": 2, "bank": 2}
    for name in ("shop", "bank"):  # each says it itself, whoever sees it first
        assert "shop has no checkpoint that fits" in interrupted.log(name).strip().split("\n")[-1]
    for name in ("shop", "bank"):
        interrupted.start(name, "party", "--restart")
    interrupted.all_good()
    assert interrupted.result("bank")["interruptions"] == 0


@pytest.mark.slow
def test_a_key_holder_without_its_checkpoints_goes_on(fleet: Make) -> None:
    made = fleet({"a": 2, "b": 1, "c": 2}, **{**SETTINGS, "rounds": 60})
    made.start_all("party", "--resume")
    made.until(NOTARY, reached(5))
    made.kill(NOTARY)
    (made.run_folder(NOTARY) / f"checkpoints-{NOTARY}.sfc").unlink()
    made.start(NOTARY, "party", "--resume")
    made.all_good()
    assert made.result("c")["peers"][NOTARY]["transcripts"] == "agree"


@pytest.mark.slow
def test_a_full_disk_stops_the_run_and_loses_nothing(fleet: Make) -> None:
    """A limit on the size of files stands for the disk: the first checkpoint that is too large fails."""
    made = fleet({"shop": 2, "bank": 2}, **{**SETTINGS, "rounds": 200})
    made.start("shop")
    bank = made.folder / "bank"
    script = made.folder / "limited.py"
    script.write_text(
        "import resource, sys\n"
        "from securefed.cli import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))\n"
        f"sys.exit(main(['party', {str(bank / 'party.toml')!r}]))\n"
    )
    environment = os.environ | {"SECUREFED_PASSPHRASE": PASSPHRASE, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    last = done.stderr.strip().split("\n")[-1]
    assert "cannot write" in last and "--resume" in last and "Traceback" not in done.stderr
    made.processes["shop"].terminate()  # it would wait for the bank
    made.processes["shop"].wait(60)
    for name in ("shop", "bank"):
        made.settings(name)
        made.start(name, "party", "--resume")
    made.all_good()
    assert made.result("bank")["rounds"] == 200
