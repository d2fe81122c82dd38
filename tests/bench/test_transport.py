"""The transport's measurement: it moves the payload in every way, and its rows say what was measured."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from bench import transport


@pytest.mark.slow
def test_a_small_payload_goes_every_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    transport.add_arguments(parser)
    out = tmp_path / "rows.json"
    args = parser.parse_args(["--mib", "1"])
    args.quick, args.json, args.seed = True, out, 0
    assert transport.run(args) == 0
    found = json.loads(out.read_text())
    assert [bar["name"] for bar in found["bars"]] == ["large messages", "small round trips a second"]
    assert found["bars"][1]["value"] == pytest.approx(found["trips"], abs=0.1)
    assert all(set(bar) == {"name", "value", "bar", "better", "met", "note"} for bar in found["bars"])
    rows = {row["way"]: row for row in found["rows"]}
    assert list(rows) == ["bare TLS", "carrier", "with transcript"]
    assert rows["bare TLS"]["ratio"] == 1.0
    assert rows["carrier"]["bar"] == 0.4
    for row in rows.values():
        assert row["mib"] == 1
        assert row["seconds"] > 0
    printed = capsys.readouterr().out
    assert "MiB/s" in printed
    assert all(way in printed for way in rows)
