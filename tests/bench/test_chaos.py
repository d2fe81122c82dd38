"""The chaos command, short; and its lines, which do to bytes what they say."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.chaos import Outcome, bars
from bench.chaos_wires import Wire


def test_bars_say_what_was_lost_and_what_was_done() -> None:
    good = Outcome("plain", 1)
    good.faults.update(kill=3, cut=2, stop=1)
    found = {bar["name"]: bar for bar in bars([good, Outcome("plain", 2, "lost")], long=True)}
    assert found["runs lost"] | {"note": ""} == {
        "name": "runs lost",
        "value": 1,
        "bar": 0,
        "better": "less",
        "met": False,
        "note": "",
    }
    assert (found["kills"]["value"], found["network faults"]["value"]) == (3, 2)
    assert found["runs stuck"]["met"]
    assert not found["kills"]["met"]
    assert len(bars([good], long=False)) == 2


def test_a_wire_passes_on_cuts_and_forgets() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        wire = Wire(server.getsockname()[1])
        try:
            with socket.create_connection(("127.0.0.1", wire.port), timeout=10) as caller:
                called, _ = server.accept()
                with called:
                    called.settimeout(10)
                    caller.sendall(b"hello")
                    assert called.recv(10) == b"hello"
                    wire.forget()
                    caller.sendall(b"lost")
                    wire.cut()
                    assert called.recv(10) == b""
            with socket.create_connection(("127.0.0.1", wire.port), timeout=10) as caller:
                called, _ = server.accept()
                with called:
                    caller.sendall(b"again")
                    assert called.recv(10) == b"again"
        finally:
            wire.close()


@pytest.mark.slow
def test_a_short_chaos_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "chaos.json"
    words = ["--quick", "--runs", "1", "--scene", "plain", "--seed", "7"]
    assert main(["chaos", *words, "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    assert [row["verdict"] for row in found["rows"]] == ["survived"]
    assert all(bar["met"] for bar in found["bars"])


def test_an_unknown_scene_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "--scene", "war"]) == 2
    assert "scene: 'war' given, plain, four plain" in capsys.readouterr().err
