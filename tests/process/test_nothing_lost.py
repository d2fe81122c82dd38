"""What an operator's mistake, a kill or a full disk must not destroy."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from securefed.cli import main
from securefed.cli.init import make_party_folder
from securefed.errors import SettingError
from securefed.files import only_process
from securefed.process.checkpoints import Checkpoint, CheckpointStore
from securefed.process.keys import PartyKeys
from securefed.transport.identity import Certificate, Identity
from tests.process.parties import PASSPHRASE, ROOT, Fleet

Make = Callable[..., Fleet]
HOLD = """
import sys
from pathlib import Path
from securefed.files import only_process

with only_process(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _passphrase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECUREFED_PASSPHRASE", PASSPHRASE)


@pytest.fixture
def holder(tmp_path: Path) -> Any:
    """Start another process that holds a lock file until the test ends."""
    started: list[subprocess.Popen[str]] = []

    def hold(path: Path) -> subprocess.Popen[str]:
        path.parent.mkdir(parents=True, exist_ok=True)
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            text=True,
        )
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        return process

    yield hold
    for each in started:
        each.kill()
        each.communicate()


def test_a_lock_file_is_held_by_one_process_until_it_dies(tmp_path: Path, holder: Any) -> None:
    path = tmp_path / "runs" / ".lock-bank"
    other = holder(path)
    refused = pytest.raises(SettingError, match=rf"in use by another .* \(process {other.pid}\)")
    with refused, only_process(path):
        pass
    other.kill()
    other.wait()
    with only_process(path):
        assert path.read_text() == f"{os.getpid()}\n"


def unfinished(fleet: Make, name: str) -> tuple[Fleet, CheckpointStore]:
    """A party's folder with the alignment and one round of a run."""
    made = fleet({"shop": 2, "bank": 2}, scheme="plain", reveal="own-gradient", rounds=2)
    key = PartyKeys(made.folder / name, PASSPHRASE, None, holds=False).checkpoint_key
    path = made.run_folder(name) / f"checkpoints-{name}.sfc"
    store = CheckpointStore(path, key, party=name, run="trial")
    store.write_alignment(Checkpoint({}, {"instance": "0123456789abcdef"}))
    store.write(1, Checkpoint({}, {}))
    return made, store


@pytest.mark.parametrize("command", [["party", "--restart"], ["party", "--resume"], ["party"]])
def test_a_second_shell_is_refused_and_deletes_nothing(
    fleet: Make, holder: Any, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    made, store = unfinished(fleet, "bank")
    holder(made.run_folder("bank") / ".lock-bank")
    word, *options = command
    assert main([word, str(made.folder / "bank" / "party.toml"), *options]) == 2
    assert "is in use by another securefed process" in capsys.readouterr().err
    assert store.aligned and store.rounds() == [1]


def test_restart_deletes_nothing_before_the_port_is_open(
    fleet: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    made, store = unfinished(fleet, "bank")
    with socket.create_server(("127.0.0.1", made.ports["bank"])):
        assert main(["party", str(made.folder / "bank" / "party.toml"), "--restart"]) == 2
    assert "is in use" in capsys.readouterr().err
    assert store.aligned and store.rounds() == [1]


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


class Kills:
    """Raises at the n-th change of a file or a folder."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.left = -1
        for owner, name in ((os, "fsync"), (Path, "replace"), (Path, "rename"), (os, "link")):
            patch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise Killed
            return plain(*arguments, **named)

        return counted


@pytest.fixture
def cheap_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Derive keys from passphrases with little work: these tests derive dozens."""
    from securefed.crypto import keyfile

    monkeypatch.setattr(keyfile, "LOG2_N", keyfile.LOG2_N_TEST)


def test_a_kill_during_a_renewal_leaves_an_identity_and_the_next_one_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cheap_keys: None
) -> None:
    folder = tmp_path / "clinic"
    make_party_folder(folder, "clinic", PASSPHRASE)
    kills = Kills(monkeypatch)
    renewed = 0
    for step in range(1, 40):
        kills.left = step
        try:
            before = Certificate.read(folder / "certificate.pem")
            code = main(["init", "clinic", "--folder", str(folder), "--renew", "tls", "-q"])
        except Killed:
            kills.left = -1
            identity = Identity.load(folder, PASSPHRASE)
            assert identity.certificate == Certificate.read(folder / "certificate.pem")
            renewed += identity.certificate != before
            continue
        kills.left = -1
        assert code == 0 and step > 6, "every kill came before this"
        break
    assert renewed >= 1, "a kill between the two files is finished by whoever loads them"
    assert main(["init", "clinic", "--folder", str(folder), "--show"]) == 0


def test_a_full_disk_during_a_renewal_is_exit_code_1_and_the_identity_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cheap_keys: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 is for what a person got wrong; a supervisor does not start such a party again."""
    folder = tmp_path / "clinic"
    make_party_folder(folder, "clinic", PASSPHRASE)
    before = Certificate.read(folder / "certificate.pem")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert main(["init", "clinic", "--folder", str(folder), "--renew", "tls", "-q"]) == 1
    assert "No space left on device; free some space" in capsys.readouterr().err
    assert Identity.load(folder, PASSPHRASE).certificate == before


def test_an_init_that_was_killed_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cheap_keys: None
) -> None:
    kills = Kills(monkeypatch)
    for step in range(1, 40):
        folder = tmp_path / f"clinic-{step}"
        kills.left = step
        try:
            make_party_folder(folder, "clinic", PASSPHRASE)
        except Killed:
            kills.left = -1
            if not (folder / "party.toml").exists():  # else the party is whole
                make_party_folder(folder, "clinic", PASSPHRASE)
            assert PartyKeys(folder, PASSPHRASE, None, holds=False).identity.name == "clinic"
            continue
        assert step > 6
        break
