"""--metrics: figures in Prometheus' text format, health and readiness, over real HTTP on loopback."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from securefed.cli import metrics
from securefed.cli.metrics import STATES, Monitor, serve
from securefed.errors import SettingError
from securefed.settings.party import OwnSettings, PartyFile
from securefed.settings.run import RunSettings
from securefed.transport.transcript import Entry

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\n"])*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)")
SHARED = RunSettings.of(
    {"name": "trial", "parties": ["lab", "shop", "bank"], "key_holder": "notary", "rounds": 10}
)
PARTY = PartyFile(Path("party.toml"), OwnSettings(name="bank"), SHARED, None, {})


def exposition(text: str) -> dict[tuple[str, str], float]:
    """Parse the text format strictly: HELP, TYPE and samples of each family together, nothing twice."""
    assert text.endswith("\n") and "\r" not in text and "\n\n" not in text
    values: dict[tuple[str, str], float] = {}
    families: dict[str, str] = {}
    current = ""
    lines = text[:-1].split("\n")
    for number, line in enumerate(lines):
        if line.startswith("# HELP "):
            name, _, about = line[7:].partition(" ")
            assert re.fullmatch(NAME, name) and about and name not in families, line
            assert lines[number + 1].startswith(f"# TYPE {name} "), line
            current = name
        elif line.startswith("# TYPE "):
            name, kind = line[7:].split(" ")
            assert name == current and kind in ("counter", "gauge"), line
            assert (kind == "counter") == name.endswith("_total"), line
            families[name] = kind
        else:
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            name, labels, value = match.group(1), match.group(2) or "", float(match.group(3))
            assert name == current and (name, labels) not in values, line
            values[name, labels] = value
    assert {name for name, _ in values} == set(families), "a family without samples"
    return values


def ask(address: str, path: str, method: str = "GET", **headers: str) -> tuple[int, str, str]:
    connection = HTTPConnection("127.0.0.1", urlsplit(address).port or 0, timeout=20)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text, answer.getheader("Content-Type") or ""


class FakeEndpoint:
    def __init__(self, *names: str) -> None:
        self.names = names

    def present(self) -> tuple[str, ...]:
        return self.names


def message(event: str, peer: str, size: int) -> dict[str, Any]:
    return {"entry": Entry(event, "difference", peer, 0, 0, size, "", "training", {})}


def busy_monitor() -> Monitor:
    """After three of ten rounds, an interruption and some messages."""
    monitor = Monitor(PARTY, lambda: 96, now=lambda: 1000.5)
    monitor.on_event("opened", {"endpoint": FakeEndpoint("lab", "shop")})
    for event in ("attempt", "met"):
        monitor.on_event(event, {})
    monitor.on_event("interrupted", {"peer": "shop", "reason": "", "last_round": 0})
    monitor.on_event("attempt", {})
    monitor.on_event("training", {"start": 2, "rows": 345, "rounds": 10})
    for facts in (message("sent", "shop", 70), message("sent", "shop", 30), message("received", "lab", 5)):
        monitor.on_event("message", facts)
    point = {"computation": 1.5, "communication": 0.25, "sent": 7, "received": 8, "metric": None}
    monitor.on_event("round", {"round": 3, "rounds": 10, **point})
    return monitor


def test_the_figures_are_in_the_text_format_and_right() -> None:
    with serve(busy_monitor().answer, "127.0.0.1:0") as address:
        status, text, kind = ask(address, "/metrics")
    assert status == 200 and kind == "text/plain; version=0.0.4; charset=utf-8"
    values = exposition(text)
    plain = {name.removeprefix("securefed_"): value for (name, labels), value in values.items() if not labels}
    assert plain == {
        "start_time_seconds": 1000.5,
        "last_round_time_seconds": 1000.5,
        "rounds": 3,
        "rounds_planned": 10,
        "rows": 345,
        "attempts_total": 2,
        "interruptions_total": 1,
        "computation_seconds": 1.5,
        "communication_seconds": 0.25,
        "score_ledger_bits": 96,
    }
    assert values["securefed_sent_bytes_total", 'peer="shop"'] == 100
    assert values["securefed_sent_messages_total", 'peer="shop"'] == 2
    assert values["securefed_received_bytes_total", 'peer="lab"'] == 5
    assert values["securefed_received_messages_total", 'peer="notary"'] == 0
    up = {labels: value for (name, labels), value in values.items() if name == "securefed_peer_up"}
    assert up == {'peer="lab"': 1, 'peer="shop"': 1, 'peer="notary"': 0}
    states = {labels: value for (name, labels), value in values.items() if name == "securefed_state"}
    assert states == {f'state="{each}"': float(each == "training") for each in STATES}
    ((build, one),) = [(labels, v) for (name, labels), v in values.items() if name == "securefed_build_info"]
    assert one == 1 and 'party="bank",run="trial"' in build and 'version="' in build


def test_a_strange_label_is_escaped() -> None:
    text = metrics._family("odd", "Odd.", [({"peer": 'a"b\\c\nd'}, 1)])
    assert exposition(text) == {("securefed_odd", r'peer="a\"b\\c\nd"'): 1.0}


def test_readiness_follows_the_state() -> None:
    monitor = Monitor(PARTY, lambda: None)

    def state() -> tuple[int, dict[str, Any]]:
        status, text, _ = ask(address, "/ready")
        return status, json.loads(text)

    with serve(monitor.answer, "127.0.0.1:0") as address:
        assert state()[0] == 503 and state()[1]["state"] == "starting"
        monitor.on_event("opened", {"endpoint": FakeEndpoint("lab")})
        assert state() == (
            503,
            {
                "ready": False,
                "state": "waiting",
                "round": 0,
                "rounds": 10,
                "waiting_for": ["shop", "notary"],
            },
        )
        monitor.on_event("met", {})
        assert state()[0] == 200 and state()[1]["state"] == "aligning"
        monitor.on_event("training", {"start": 4, "rows": 9, "rounds": 10})
        assert state()[0] == 200 and state()[1]["round"] == 4
        monitor.on_event("interrupted", {"peer": "lab"})
        assert state()[0] == 503 and state()[1]["state"] == "waiting"
        monitor.on_event("failed", {"reason": "", "exit": 1})
        assert state()[0] == 503 and state()[1]["state"] == "failed"
        monitor.on_event("finished", {})
        assert state()[0] == 200 and state()[1]["state"] == "finished"
        assert "score_ledger" not in ask(address, "/metrics")[1], "the label party is not scored"


def test_health_notices_a_thread_that_has_died() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="securefed-accept", daemon=True)
    thread.start()
    monitor = Monitor(PARTY, lambda: None)
    monitor.on_event("opened", {"endpoint": FakeEndpoint()})
    with serve(monitor.answer, "127.0.0.1:0") as address:
        assert ask(address, "/health")[:2] == (200, '{"healthy": true, "dead_threads": []}\n')
        stop.set()
        thread.join()
        assert ask(address, "/health")[:2] == (
            503,
            '{"healthy": false, "dead_threads": ["securefed-accept"]}\n',
        )
        monitor.on_event("closing", {})
        assert ask(address, "/health")[0] == 200, "threads end when the party is done"


def test_other_methods_paths_names_and_large_or_slow_requests_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics, "REQUEST_SECONDS", 0.3)
    with serve(busy_monitor().answer, "127.0.0.1:0") as address:
        assert {ask(address, "/metrics", method)[0] for method in ("POST", "PUT", "DELETE", "HEAD")} == {501}
        assert {ask(address, path)[0] for path in ("/", "/metrics/", "/metrics?x=1", "/../etc/passwd")} == {
            404
        }
        assert ask(address, "/metrics", Host="evil.example:80")[0] == 404
        assert ask(address, "/metrics", Padding="x" * 5000)[0] == 431
        port = urlsplit(address).port or 0
        with socket.create_connection(("127.0.0.1", port)) as slow:
            slow.sendall(b"GET /metrics HTTP/1.1\r\n")
            began = time.monotonic()
            assert b"431" in slow.recv(100) and time.monotonic() - began < 5
        with socket.create_connection(("127.0.0.1", port)) as garbage:
            garbage.sendall(bytes(range(256)) * 64)
        assert ask(address, "/metrics")[0] == 200, "it lives on"
        threads = threading.active_count()
        callers = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        assert threading.active_count() == threads, "strangers start no threads"
        for caller in callers:
            caller.close()


def test_callers_who_say_nothing_or_little_keep_nobody_out() -> None:
    """A health check that waits restarts the party. One caller after the other took 2 s each."""
    with serve(busy_monitor().answer, "127.0.0.1:0") as address:
        port = urlsplit(address).port or 0
        callers = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
        for caller in callers[::2]:
            caller.sendall(b"GET /hea")
        began = time.monotonic()
        assert ask(address, "/health")[0] == 200
        assert time.monotonic() - began < metrics.REQUEST_SECONDS
        for caller in callers:
            caller.close()


def test_a_port_alone_is_on_the_loopback_address_and_one_that_is_taken_is_a_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(SettingError, match=rf"metrics: 127\.0\.0\.1:{port} cannot be used: Address"),
            serve(busy_monitor().answer, f"127.0.0.1:{port}"),
        ):
            pass
    with serve(busy_monitor().answer, str(port)) as address:
        assert address == f"http://127.0.0.1:{port}"
    with pytest.raises(SettingError, match="HOST:PORT"), serve(busy_monitor().answer, "nonsense"):
        pass


@pytest.mark.slow
def test_a_real_run_is_seen_from_waiting_to_training(fleet: Any, tmp_path: Path) -> None:
    """One party waits, answers so, and its counters agree with its result in the end."""
    from bench.ports import free_ports

    parties = fleet({"shop": 3, "bank": 2}, rounds=6)
    (port,) = free_ports(1)
    address = f"http://127.0.0.1:{port}"
    parties.start("bank", "party", "--metrics", str(port))
    parties.until("bank", lambda events: any(each["event"] == "listening" for each in events))
    status, text, _ = ask(address, "/ready")
    assert status == 503 and json.loads(text)["waiting_for"] == ["shop"]
    assert ask(address, "/health")[0] == 200
    parties.start("shop")
    last: dict[tuple[str, str], float] = {}
    while parties.processes["bank"].poll() is None:
        try:
            last = exposition(ask(address, "/metrics")[1])
        except OSError:
            break
    parties.all_good()
    # Six rounds, of which the first four are made twice.
    assert last["securefed_rounds", ""] == 10 and last["securefed_attempts_total", ""] == 1
    transcript = parties.run_folder("bank") / "transcript-bank.jsonl"
    entries = [json.loads(line) for line in transcript.read_text().splitlines()[1:-1]]
    sent = sum(each["bytes"] for each in entries if each["event"] == "sent")
    assert last["securefed_sent_bytes_total", 'peer="shop"'] > sent, "alignment counts too"
    assert parties.log("bank").count("metrics at http://127.0.0.1") == 1
