"""Each test with folders of its own, so that no file of this machine is found by chance; and the real
files.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

NAMED = os.environ.get("SECUREFED_DATA")


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that SECUREFED_DATA names."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("SECUREFED_DATA", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the published files, where there is one."""
    if not NAMED or not (Path(NAMED) / "UCI_Credit_Card.csv").exists():
        pytest.skip("SECUREFED_DATA does not name a folder with the published files")
    monkeypatch.setenv("SECUREFED_DATA", NAMED)
    return Path(NAMED)
