"""The chaos command in a short run, and the faults of its lines."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.chaos import bars
from bench.chaos_faults import Outcome, control_characters
from bench.chaos_launch import PLACES, resolve
from bench.chaos_wires import Wire


def test_bars_say_what_was_lost_and_what_was_done() -> None:
    good = Outcome("plain", 1)
    good.faults.update(kill=3, cut=2, stop=1)
    lost = Outcome("plain", 2, "lost", double_bookings=1, growth_mb=300.0)
    rows = {bar["name"]: bar for bar in bars([good, lost], asked=7)}
    assert rows["runs lost"]["value"] == 1
    assert rows["kinds of faults"]["note"] == "cut, kill, stop"
    missed = {name for name, bar in rows.items() if not bar["met"]}
    assert missed == {"faults", "kinds of faults", "runs lost", "double bookings", "growth of a party, MB"}
    assert {name for name, bar in rows.items() if bar["better"] == "more"} == {"faults", "kinds of faults"}


def test_traps_are_at_functions_that_exist() -> None:
    for place, when in PLACES.values():
        owner, name = resolve(place)
        assert callable(getattr(owner, name)) and when in ("before", "after")


def test_escapes_in_a_log_are_found() -> None:
    assert control_characters("note: shop left\nround 3\tgood\r\n") == ""
    assert control_characters("note: \x1b[2J\x07") == "'\\x07''\\x1b'"


def test_a_lost_run_keeps_its_first_cause() -> None:
    outcome = Outcome("plain", 1)
    outcome.lose("p0: exit code 2")
    outcome.lose("another model")
    assert (outcome.verdict, outcome.why) == ("lost", "p0: exit code 2")


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
                    wire.duplicate()
                    caller.sendall(b"again")
                    called.settimeout(10)
                    assert called.recv(10, socket.MSG_WAITALL) == b"againagain"
                    wire.corrupt()
                    caller.sendall(b"abc")
                    assert called.recv(3, socket.MSG_WAITALL) == b"acc"
                    wire.drop(60.0, most=10)
                    caller.sendall(b"too much for it")
                    assert called.recv(10) == b""
        finally:
            wire.close()


@pytest.mark.slow
def test_a_short_chaos_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "chaos.json"
    words = ["--quick", "--faults", "6", "--scene", "plain", "--seed", "7"]
    assert main(["chaos", *words, "--json", str(path)]) == 0
    written = json.loads(path.read_text())
    assert {row["verdict"] for row in written["rows"]} == {"survived"}
    assert sum(sum(row["faults"].values()) for row in written["rows"]) >= 6
    assert all(bar["met"] for bar in written["bars"])


def test_an_unknown_scene_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "--scene", "war"]) == 2
    assert "scene: 'war' given, plain, scored, four plain" in capsys.readouterr().err
