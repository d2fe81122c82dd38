"""Another release of securefed: what it refuses in one line, and what it goes on using."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from securefed import files as versions
from securefed.assembly import base as shards
from securefed.assembly.base import read_part, write_part
from securefed.audit.verify import verify
from securefed.cli import main
from securefed.errors import DataError
from securefed.process import checkpoints
from securefed.process.checkpoints import Checkpoint, CheckpointStore
from securefed.transport.transcript import Transcript
from tests.process.parties import PASSPHRASE, Fleet

PUBLIC = {"parties": ["shop", "bank"], "estimator": "linear"}
ARRAYS = {"weights": np.arange(3.0)}
KEY = bytes(32)
Upgrade = Callable[[str], None]


@pytest.fixture
def upgrade(monkeypatch: pytest.MonkeyPatch) -> Upgrade:
    """Make this process another release."""

    def to(number: str) -> None:
        for module in (versions, shards):
            monkeypatch.setattr(module, "release", lambda: number)
        monkeypatch.setattr("securefed.transport.transcript.release", lambda: number)

    return to


def store(folder: Path) -> CheckpointStore:
    return CheckpointStore(folder / "checkpoints-bank.sfc", KEY, party="bank", run="trial")


def test_a_checkpoint_of_another_minor_release_is_refused(tmp_path: Path, upgrade: Upgrade) -> None:
    upgrade("0.1.0")
    store(tmp_path).write_alignment(Checkpoint(ARRAYS, {"instance": "a"}))
    upgrade("0.1.7")
    store(tmp_path).write(4, Checkpoint(ARRAYS, {"done": True}))
    assert store(tmp_path).read(4).meta["done"], "a patch release goes on"
    upgrade("0.2.0")
    line = r"bank\.sfc: the checkpoint was written by securefed 0\.1, this is 0\.2\.0; finish the run with"
    with pytest.raises(DataError, match=line):
        store(tmp_path).read(4)


def test_a_checkpoint_of_another_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(tmp_path).write_alignment(Checkpoint(ARRAYS, {}))
    monkeypatch.setattr(checkpoints, "FORMAT", 6)
    with pytest.raises(DataError, match="checkpoints of format 5, this release reads 6; finish the run with"):
        store(tmp_path).read_alignment()


def test_a_shard_of_the_same_format_is_loaded_and_one_of_another_is_refused(
    tmp_path: Path, upgrade: Upgrade, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "shard-bank.npz"
    upgrade("0.1.0")
    write_part(path, PUBLIC, ARRAYS)
    upgrade("0.2.0")
    public, arrays = read_part(path)
    assert public["release"] == "0.1.0" and np.array_equal(arrays["weights"], ARRAYS["weights"])
    monkeypatch.setattr(shards, "FORMAT", 3)
    line = r"format 2, written by securefed 0\.1\.0; securefed 0\.2\.0 reads format 3: use that release"
    with pytest.raises(DataError, match=line):
        read_part(path)


def test_a_shard_without_a_format_is_of_an_earlier_release(tmp_path: Path) -> None:
    path = tmp_path / "shard-bank.npz"
    shards.write_arrays(path, {**ARRAYS, "public": np.array(json.dumps(PUBLIC))})
    with pytest.raises(DataError, match=r"format None, written by securefed of an earlier release; .* train"):
        read_part(path)


def test_a_transcript_of_another_minor_release_is_not_audited_and_still_verified(
    tmp_path: Path, upgrade: Upgrade, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "transcript-bank.jsonl"
    upgrade("0.1.0")
    transcript = Transcript("bank", "trial")
    transcript.note("agreed", "settings", "", 0, 0, "setup", digest="d")
    transcript.save(path)
    upgrade("0.1.3")
    assert Transcript.read(path).fault() == "" and Transcript.read(path).release == "0.1.0"
    upgrade("0.2.0")
    with pytest.raises(
        DataError, match=r"written by securefed 0\.1\.0, this is 0\.2\.0; read it with that rel"
    ):
        Transcript.read(path)
    assert main(["audit", str(tmp_path)]) == 1
    assert "NO AUDIT POSSIBLE" in capsys.readouterr().out
    assert verify(tmp_path)[0][0] == "pass", "the form of a transcript is all that signatures need"


def test_the_release_of_a_transcript_cannot_be_changed(tmp_path: Path) -> None:
    path = tmp_path / "transcript-bank.jsonl"
    transcript = Transcript("bank", "trial")
    transcript.note("agreed", "settings", "", 0, 0, "setup")
    transcript.save(path)
    head, *rest = path.read_text().splitlines()
    changed = {**json.loads(head), "release": f"{versions.minor_version()}.99"}
    path.write_text("\n".join([json.dumps(changed), *rest]) + "\n")
    assert "does not fit the chain" in Transcript.read(path).fault()
    assert verify(tmp_path)[0][0] == "FAIL"


def test_a_run_that_another_release_began_is_one_line_with_exit_code_2(
    fleet: Callable[..., Fleet],
    upgrade: Upgrade,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from securefed.process.keys import PartyKeys

    monkeypatch.setenv("SECUREFED_PASSPHRASE", PASSPHRASE)
    parties = fleet({"shop": 2, "bank": 2}, scheme="plain", reveal="own-gradient", rounds=3)
    folder = parties.folder / "bank"
    keys = PartyKeys(folder, PASSPHRASE, None, holds=False)
    beginning = CheckpointStore(
        parties.run_folder("bank") / "checkpoints-bank.sfc", keys.checkpoint_key, party="bank", run="trial"
    )
    upgrade("9.8.7")
    beginning.write_alignment(Checkpoint(ARRAYS, {"instance": "a", "rows": 3}))
    monkeypatch.undo()
    monkeypatch.setenv("SECUREFED_PASSPHRASE", PASSPHRASE)
    assert main(["party", str(folder / "party.toml"), "--resume"]) == 2
    line = "checkpoints-bank.sfc: the checkpoint was written by securefed 9.8, this is"
    assert line in capsys.readouterr().err
