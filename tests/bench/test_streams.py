"""Calls beside a stream: both ways move the same bytes, and the rows say what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import streams
from bench.__main__ import main


@pytest.mark.slow
def test_both_ways_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "TRIPS", 20)
    monkeypatch.setattr(streams, "PIECES", (1 << 20,))
    assert main(["streams", "--quick", "--json", str(tmp_path / "rows.json")]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [row["what"] for row in rows] == ["round trips a second", "MiB/s in pieces of 1024 KiB"]
    assert all(row["calls"] > 0 and row["stream"] > 0 for row in rows)
