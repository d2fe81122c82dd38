"""`securefed demo`, end to end: processes, keys, alignment, training, prediction, table, audit, reports."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from securefed import GeneralisedLinear, Party, Plain
from securefed.audit import CLAIMS
from securefed.cli.demo import add_arguments, run_table
from securefed.cli.demo_parties import LABEL_PARTY, demo_data
from securefed.settings.run import RunSettings
from tests.process.parties import PATIENT, ROOT


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


def demo(tmp_path: Path, *words: str) -> tuple[str, dict[str, object]]:
    """What it printed, and its JSON."""
    command = [sys.executable, "-m", "securefed", "demo", "--folder", str(tmp_path / "demo")]
    command += ["--json", str(tmp_path / "demo.json"), *words]
    environment = {k: v for k, v in os.environ.items() if k != "SECUREFED_PASSPHRASE"}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=environment | {"PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        check=False,
        timeout=3 * PATIENT,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads((tmp_path / "demo.json").read_text())


@pytest.mark.parametrize(
    ("words", "kind", "scheme"),
    [
        ((), "blind", "ckks"),
        (("--protection", "own-gradient", "--scheme", "paillier"), "own-gradient", "paillier"),
        (("--reveal", "own-gradient"), "own-gradient", "ckks"),
        (("--reveal", "nothing"), "blind", "ckks"),
        (("--protection", "plain"), "plain", "plain"),
    ],
)
def test_protection_is_chosen_by_its_name(words: tuple[str, ...], kind: str, scheme: str) -> None:
    """`--reveal` is the old name; --help does not have it."""
    protection = run_table(arguments(*words), ["lab", "clinic"])["protection"]
    assert (protection["kind"], protection["scheme"]) == (kind, scheme)
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert "--reveal" not in parser.format_help() and "--protection" in parser.format_help()


@pytest.mark.slow
def test_it_shows_the_whole_way_in_plain(tmp_path: Path) -> None:
    text, facts = demo(tmp_path, "--protection", "plain", "--rounds", "6")
    assert "NOT PROTECTED" in text
    promised = {"auc", "auc_central", "auc_alone", "protected", "wall_seconds", "total_seconds"}
    assert promised | {"computation_seconds", "communication_seconds", "holdout", "bytes"} <= facts.keys()
    assert facts["auc"] > facts["auc_alone"] - 0.02 and facts["auc_central"] > 0.98  # type: ignore[operator]
    # Six rounds, of which the first four are made for each of five folds.
    assert facts["rounds"] == 22 and facts["new_people"] == 171
    assert set(facts["saw"]) == {"lab", "clinic"}  # type: ignore[call-overload]
    for name, report in facts["reports"].items():  # type: ignore[attr-defined]
        page = Path(report).read_text()
        assert page.count("<svg") == 2 * (name == "clinic")
        assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
        assert "<script" not in page
    for line in (
        "AUC on 171 new people",
        "rounds",
        "time",
        "sent",
        "What each party saw",
        "  lab     everything",
        "  clinic  171 scores of new people",
        "audit",
        "report",
    ):
        assert line in text
    shards = sorted(p.name for p in (tmp_path / "demo").rglob("shard-*.npz"))
    assert shards == ["shard-clinic.npz", "shard-lab.npz"]


@pytest.mark.filterwarnings(
    "ignore::securefed.protocols.own_gradient.ledger.LedgerWarning"
)  # plain opens what blind does not
@pytest.mark.parametrize("parties", [2, 3, 5])
def test_its_settings_are_right_for_any_number_of_parties(parties: int) -> None:
    """The demonstration's own settings on its own data, with the same arithmetic unencrypted in this
    process, beside a model of the joined table.
    """
    made = demo_data(parties, 0)
    table = run_table(arguments("--parties", str(parties)), list(made.columns))
    chosen_settings = RunSettings.of(table).settings
    settings = {each.name: getattr(chosen_settings, each.name) for each in fields(chosen_settings)}
    model = GeneralisedLinear(**{**settings, "protection": Plain(like="blind")})

    def rows(name: str, places: NDArray[np.intp], known: bool) -> Party:
        labels = made.labels[places] if known and name == LABEL_PARTY else None
        numbers = made.table[places][:, made.columns[name]]
        return Party(name, numbers, labels, ids=np.array(made.ids)[places])

    model.fit([rows(name, made.train[name], True) for name in list(made.columns)])
    scores = model.decision_function([rows(name, made.new, False) for name in list(made.columns)])
    auc = roc_auc_score(made.labels[made.new], scores)
    central, alone = made.baselines("linear")
    assert auc > central - 0.01
    assert alone is not None and auc > alone


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--objective", "transfer", "--rounds", "1"),
        pytest.param(("--parties", "4"), marks=pytest.mark.nightly),
        pytest.param(("--objective", "transfer"), marks=pytest.mark.nightly),
        pytest.param(("--protection", "own-gradient"), marks=pytest.mark.nightly),
    ],
)
def test_every_way_of_it_is_encrypted_and_good(words: tuple[str, ...], tmp_path: Path) -> None:
    text, facts = demo(tmp_path, *words)
    verdict = facts["audit"]["verdict"]  # type: ignore[index]
    assert facts["protected"] and " checks passed, 0 failed, " in verdict
    if "transfer" not in words:
        assert verdict.startswith(f"{len(CLAIMS)} checks passed, 0 failed, 0 skipped.")
    assert f"{verdict}\n" in text  # all of it, with what it leaves out
    assert facts["auc"] > 0.9  # type: ignore[operator]
    if not words:
        assert facts["auc"] > facts["auc_central"] - 0.01  # type: ignore[operator]
        assert facts["auc"] > facts["auc_alone"]  # type: ignore[operator]
        assert facts["saw"]["lab"] == "only ciphertexts and random shares"  # type: ignore[index]
        told = facts["saw"]["clinic"]  # type: ignore[index]
        assert "706 scores of held-out people, in 2 evaluations; otherwise only ciphertexts" in told
        assert facts["bytes"] < 10_000_000  # type: ignore[operator]
    if "--parties" in words:
        assert "notary  only ciphertexts and random shares" in text


class Screen:
    """A process at a terminal of its own."""

    def __init__(self, *words: str, cwd: Path) -> None:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm"}
        environment.pop("NO_COLOR", None)
        self.child, self._terminal = pty.fork()
        if self.child == 0:  # in the child: become the command
            os.chdir(cwd)
            os.execve(sys.executable, [sys.executable, "-m", "securefed", *words], environment)  # noqa: S606
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 110, 0, 0))
        self.text = ""

    def until(self, pattern: str) -> None:
        """Read until it is there."""
        deadline = time.monotonic() + PATIENT
        while not re.search(pattern, self.text[-5000:]):
            if time.monotonic() > deadline or not self._more():
                raise AssertionError(f"{pattern!r} does not come:\n{self.text}")

    def _more(self) -> bool:
        ready, _, _ = select.select([self._terminal], [], [], 1.0)
        if not ready:
            return True
        try:
            found = os.read(self._terminal, 65536)
        except OSError:  # the other end is closed
            return False
        self.text += found.decode(errors="replace")
        return bool(found)

    def interrupt(self) -> None:
        os.write(self._terminal, b"\x03")

    def end(self) -> int:
        """Its exit code."""
        deadline = time.monotonic() + PATIENT
        while time.monotonic() < deadline:
            self._more()
            pid, status = os.waitpid(self.child, os.WNOHANG)
            if pid:
                while self._more():
                    pass
                os.close(self._terminal)
                return os.waitstatus_to_exitcode(status)
        os.kill(self.child, signal.SIGKILL)
        raise AssertionError(f"does not end:\n{self.text}")


@pytest.mark.slow
def test_at_a_terminal_there_are_colours_and_a_line_that_renews_itself(tmp_path: Path) -> None:
    """And Ctrl-C in the middle stops all of it cleanly."""
    words = ("demo", "--protection", "plain", "--rounds", "100000", "--folder", str(tmp_path / "demo"))
    screen = Screen(*words, cwd=tmp_path)
    screen.until(r"clinic: round .*\r.*[2-9]\d/100000")
    assert "\x1b[1msecurefed demo" in screen.text  # bold
    assert re.search(
        r"\r[^\n]*clinic: round [^\n]*sent [\d.]+ [kM]?B  comp [\d.]+ m?s  comm [\d.]+ m?s",
        screen.text,
    )
    assert "left ~" in screen.text
    assert screen.text.count("\n") < 15, "one line, renewed, and not one a round"
    screen.interrupt()
    assert screen.end() == 1
    last = re.sub(r"\x1b\[\d*m", "", screen.text).strip().split("\n")[-1]
    assert last.endswith(f"stopped; what was made so far is in {tmp_path / 'demo'}")
    assert "Traceback" not in screen.text
    for name in ("lab", "clinic"):
        log = tmp_path / "demo" / name / "party.log"
        assert "stopped; round " in (log.read_text() if name == "lab" else screen.text)
