"""A real run leaves signatures that `securefed verify` accepts, and finds a change of one byte."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from securefed.cli import main
from tests.process.parties import Fleet

Make = Callable[..., Fleet]


@pytest.mark.slow
def test_a_run_of_three_is_signed_and_countersigned(
    fleet: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = fleet({"a": 2, "b": 2, "c": 2}, scheme="ckks", reveal="nothing", rounds=2)
    made.start_all()
    made.all_good()
    together = tmp_path / "together"
    together.mkdir()
    for name in made.everybody:
        for kind in (f"transcript-{name}.jsonl", f"signatures-{name}.json"):
            shutil.copy(made.run_folder(name) / kind, together)
    assert main(["verify", str(together)]) == 0
    assert "40 checks passed, 0 failed, 0 skipped" in capsys.readouterr().out
    path = together / "transcript-a.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"step":0', b'"step":1', 1))
    assert main(["verify", str(together)]) == 1
