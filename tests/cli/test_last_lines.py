"""The table of exit codes and last lines in docs/operations.md: every row happens as it is written there."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from securefed.cli import main, party
from securefed.engine import WorkerDied
from securefed.files import storage_error
from securefed.protocols.own_gradient.ledger import Ledger, LedgerRefusal
from securefed.transport.message import (
    PeerLeft,
    PeerLost,
    PeerRefused,
    SettingsDiffer,
    WrongCertificate,
    WrongRun,
)
from securefed.transport.network.attempt import MAKE_EQUAL
from tests.process.parties import PASSPHRASE, Fleet

Make = Callable[..., Fleet]
PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


def table() -> dict[str, tuple[int, str]]:
    """What happened, its exit code, and its last line with … for what differs from case to case."""
    text = PAGE.read_text(encoding="utf-8")
    section = text[text.index("### Last lines") :]
    section = section[: section.index("\n## ")]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    found = {}
    for row in rows:
        what, code, line = (cell.strip() for cell in row.strip("|").split("|"))
        found[what] = (int(code), line.strip("`"))
    return found


class Case:
    """A party that is ready, and what a row does to it."""

    def __init__(self, made: Fleet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.made, self.patch, self.tmp = made, monkeypatch, tmp_path
        self.folder = made.folder / "bank"
        self.file = self.folder / "party.toml"

    def party(self, *words: str) -> int:
        return main(["party", str(self.file), *words])

    def meeting(self, error: BaseException) -> int:
        """The meeting with the others ends so."""

        def run_session(*_: Any, **__: Any) -> None:
            raise error

        self.patch.setattr(party, "run_session", run_session)
        return self.party()

    def settings(self) -> int:
        self.file.write_text(self.file.read_text().replace("rounds = 3", "rounds = -3"))
        return self.party()

    def data(self) -> int:
        path = self.folder / "data.csv"
        lines = path.read_text().splitlines()
        path.write_text("\n".join([*lines, lines[1]]) + "\n")
        return self.party()

    def passphrase(self) -> int:
        self.patch.setenv("SECUREFED_PASSPHRASE", "another passphrase")
        return self.party()

    def permissions(self) -> int:
        (self.folder / "tls-key.skf").chmod(0o644)
        return self.party()

    def port(self) -> int:
        with socket.create_server(("127.0.0.1", self.made.ports["bank"])):
            return self.party("-q")

    def finished(self) -> int:
        folder = self.made.run_folder("bank")
        folder.mkdir(parents=True)
        (folder / "result.json").write_text("{}")
        return self.party()

    def differ(self) -> int:
        peers = {"shop": {"transcripts": "DIFFER", "timing": None}}
        account = SimpleNamespace(peers=peers, result=dict, timing=dict)
        self.patch.setattr(party, "_take_part", lambda *_, **__: account)
        self.patch.setattr(party, "_report", lambda *_: None)
        return self.party()

    def ledger(self) -> int:
        with pytest.raises(LedgerRefusal) as refused:
            Ledger().count("shop", "u", 9, 66, over_attempts=72)
        return self.meeting(refused.value)

    def out(self) -> int:
        return main(["check", str(self.file), "--out", str(self.tmp / "none" / "scores.csv")])


ROWS: dict[str, Callable[[Case], int]] = {
    "a setting is wrong": Case.settings,
    "the data cannot be used": Case.data,
    "the passphrase is wrong": Case.passphrase,
    "a key can be read by others": Case.permissions,
    "the port is taken": Case.port,
    "the run is finished already": Case.finished,
    "settings differ between parties": lambda case: case.meeting(
        SettingsDiffer(f"bank runs rounds=3, shop runs rounds=5; {MAKE_EQUAL}")
    ),
    "a ledger refuses": Case.ledger,
    "a peer is in another run": lambda case: case.meeting(
        WrongRun("bank is in run 'trial', shop is in run 'other'")
    ),
    "a peer is away for too long": lambda case: case.meeting(
        PeerLost("shop", "shop at h:7 (nobody listens there) could not be reached for 600 s")
    ),
    "a peer ended over something of its own": lambda case: case.meeting(
        PeerLeft("shop", "shop left the run: its data cannot be used", "DataError")
    ),
    "a peer refused what this party sent": lambda case: case.meeting(
        PeerRefused("shop refused: bank sent 'gossip'", "WrongKind")
    ),
    "somebody else answers at a peer's address": lambda case: case.meeting(
        WrongCertificate(
            "the machine at shop.example:7001 did not show shop's certificate, or that certificate has "
            "expired; ask shop for its current certificate and compare fingerprints"
        )
    ),
    "Ctrl-C or SIGTERM": lambda case: case.meeting(KeyboardInterrupt()),
    "the disk is full": lambda case: case.meeting(
        storage_error(Path("runs/trial/transcript-bank.jsonl"), OSError(28, "No space left on device"))
    ),
    "workers keep dying": lambda case: case.meeting(
        WorkerDied(
            "a worker process died 3 times over the same work: killed, or short of memory; "
            'engine = "serial" or fewer workers need less'
        )
    ),
    "transcripts differ": Case.differ,
}


def test_every_row_has_its_case() -> None:
    assert set(table()) == set(ROWS)


@pytest.mark.parametrize("what", ROWS)
def test_a_row_happens_as_it_is_written(
    what: str,
    fleet: Make,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SECUREFED_PASSPHRASE", PASSPHRASE)
    made = fleet({"shop": 2, "bank": 2}, scheme="plain", reveal="own-gradient", rounds=3)
    code, line = table()[what]
    assert ROWS[what](Case(made, monkeypatch, tmp_path)) == code
    said = capsys.readouterr().err.strip().split("\n")
    assert "Traceback" not in "\n".join(said)
    pattern = ".*".join(re.escape(part) for part in line.split("…"))
    assert re.fullmatch(pattern, said[-1]), said[-1]


def test_an_operator_reads_what_the_mode_gives_away(
    fleet: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything else happens, and for the objective of the run."""
    monkeypatch.setenv("SECUREFED_PASSPHRASE", PASSPHRASE)
    settings = {"scheme": "ckks", "reveal": "own-gradient", "rounds": 1}
    for objective in ("transfer", "linear"):
        folder = fleet({"shop": 2, "bank": 2}, objective=objective, **settings).folder / "shop"
        (folder / "data.csv").unlink()
        assert main(["party", str(folder / "party.toml")]) == 2
        said = capsys.readouterr().err
        assert "trusted not to cheat" in said
        assert ("finds the labels" in said) == (objective == "transfer")
