"""What others may see of a run while it goes on, over HTTP: a page for people, and figures for monitoring.

    securefed party --watch             the report, for a browser on the same machine, under a random name
    securefed party --metrics ADDRESS   /metrics (Prometheus text format), /health and /ready

There is nothing that a request can change, and nothing of data, people, parameters or keys in an answer. Both
take GET alone, with at most 4 kB of request. On a loopback address a page of another site that makes its own
name point here (DNS rebinding) is refused by the Host header.
"""

from __future__ import annotations

import hmac
import io
import json
import secrets
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from html import escape
from http.server import BaseHTTPRequestHandler
from typing import Any

from securefed.cli.terminal import clock, waiting_note
from securefed.crypto import protects
from securefed.errors import SettingError
from securefed.files import versions
from securefed.report.page import render
from securefed.report.summary import RoundPoint, Timeline
from securefed.settings.party import PartyFile
from securefed.transport.identity import parse_address
from securefed.transport.network import Waiting

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
LOOPBACK = ("127.0.0.1", "localhost", "::1")
MOST_REQUEST = 4096
REQUEST_SECONDS = 2.0
"""For all of a request, and for all of an answer."""
MOST_CALLERS = 64
"""At a time. One more ends the oldest."""
TICK = 0.1
STATES = ("starting", "waiting", "aligning", "training", "finished", "failed")
READY = ("aligning", "training", "finished")
AFTER = {
    "opened": "waiting",
    "met": "aligning",
    "training": "training",
    "interrupted": "waiting",
    "finished": "finished",
    "stopped": "failed",
    "failed": "failed",
}
"""The state of a party after an event (securefed.process.recording)."""


class Board:
    """The report of a run so far. Events come from one thread, requests from others."""

    def __init__(self, party: PartyFile, now: Callable[[], float] = time.monotonic) -> None:
        self._party, self._now = party, now
        self._lock = threading.Lock()
        self._points: list[RoundPoint] = []
        self._rounds = int(party.shared.settings.rounds)
        self._from, self._rows, self._began = 0, 0, now()
        self._waiting: Waiting | None = None
        self._met = False

    def on_event(self, event: str, facts: Mapping[str, Any]) -> None:
        with self._lock:
            if event == "training":
                self._from, self._rows, self._began = facts["start"], facts["rows"], self._now()
                self._rounds = facts["rounds"]
            elif event == "round":
                point = point_of(facts)
                self._points = [each for each in self._points if each.number < point.number] + [point]
            if event in ("training", "round"):
                self._met, self._waiting = True, None
            elif event == "waiting":
                self._waiting = facts["waiting"]

    def page(self) -> str:
        """Return the report as of now."""
        with self._lock:
            points, live = list(self._points), self._live()
        shared, own = self._party.shared, self._party.own.name
        last = points[-1] if points else RoundPoint(-1, 0.0, 0.0, 0, 0)
        timeline = Timeline(points)
        result: dict[str, Any] = {
            "run": shared.name,
            "party": own,
            "settings": {
                **shared.to_dict(),
                "scheme": shared.scheme,
                "algorithm": shared.settings.algorithm.name,
                "reveal": shared.reveal,
                "parties": [[name] for name in shared.parties],
                "key_holder": shared.key_holder,
            },
            "protected": protects(shared.scheme),
            "rounds": last.number + 1,
            "reason": f"of {self._rounds}",
            "rows": self._rows,
            "metric_name": shared.settings.metric_name,
            "metric": last.metric,
            "history": [list(each) for each in timeline.history],
            "sent": {},
            "received": {},
            "bytes_sent": last.sent,
            "bytes_received": last.received,
            "versions": versions(),
        }
        timing = {
            "computation_seconds": last.computation,
            "communication_seconds": last.communication,
            "total_seconds": last.total,
            "activities": {},
            "parties": {},
            "each_round": [vars(point) for point in timeline.each()],
        }
        seen = '<p class="soft">What was seen and what was checked stands here when the run is over.</p>'
        return render(result, timing, seen, live=live)

    def _live(self) -> str:
        rounds = self._rounds
        done = self._points[-1].number + 1 if self._points else self._from
        fresh, left = done - self._from, ""
        if fresh > 0 and done < rounds:
            each = (self._now() - self._began) / fresh
            left = f", about {clock(each * (rounds - done))} left"
        away = self._waiting.peer if self._waiting is not None and self._waiting.moved is None else None
        words = {
            name: "away" if name == away else "here" if self._met else "not met yet"
            for name in _peers(self._party)
        }
        present = ", ".join(f"{name} {word}" for name, word in words.items())
        note = "" if self._waiting is None else f"<p>{escape(waiting_note(self._waiting))}</p>"
        return (
            f'<div class="bar"><i style="width:{100 * done / max(1, rounds):.1f}%"></i></div>'
            f"<p><b>round {done} of {rounds}</b>{escape(left)}; {escape(present)}</p>{note}"
        )


def _peers(party: PartyFile) -> list[str]:
    return [name for name in party.shared.everybody if name != party.own.name]


def point_of(facts: Mapping[str, Any]) -> RoundPoint:
    """Return what the event `round` tells."""
    rest = {name: value for name, value in facts.items() if name not in ("round", "rounds")}
    return RoundPoint(facts["round"] - 1, **rest)


class Monitor:
    """State and figures of a party's process. Events come from one thread, requests from another."""

    def __init__(
        self, party: PartyFile, ledger_bits: Callable[[], int | None], now: Callable[[], float] = time.time
    ) -> None:
        """`ledger_bits`: what scores have told of this party's people at most; None: it is not scored."""
        self._party, self._ledger_bits, self._now = party, ledger_bits, now
        self._state, self._started, self._moved = "starting", now(), 0.0
        self._attempts = self._interruptions = self._start = self._rows = 0
        self._rounds = int(party.shared.settings.rounds)
        self._point = RoundPoint(-1, 0.0, 0.0, 0, 0)
        self._bits: int | None = None
        self._messages: Counter[tuple[str, str]] = Counter()
        self._bytes: Counter[tuple[str, str]] = Counter()
        self._present: Callable[[], Collection[str]] = tuple
        self._threads: tuple[threading.Thread, ...] = ()
        self._lock = threading.Lock()

    def on_event(self, event: str, facts: Mapping[str, Any]) -> None:
        bits = self._ledger_bits() if event in ("training", "round", "finished") else self._bits
        with self._lock:
            self._state, self._bits = AFTER.get(event, self._state), bits
            if event == "message" and facts["entry"].event in ("sent", "received"):
                entry = facts["entry"]
                self._messages[entry.event, entry.peer] += 1
                self._bytes[entry.event, entry.peer] += entry.bytes
            elif event == "round":
                self._point, self._moved = point_of(facts), self._now()
            elif event == "training":
                self._start, self._rows, self._rounds = facts["start"], facts["rows"], facts["rounds"]
            elif event == "attempt":
                self._attempts += 1
            elif event == "interrupted":
                self._interruptions += 1
            elif event == "opened":
                self._present = facts["endpoint"].present
                running = threading.enumerate()
                self._threads = tuple(each for each in running if each.name.startswith("securefed"))
            elif event == "closing":
                self._present, self._threads = tuple, ()

    def answer(self, path: str) -> Answer | None:
        """Return the answer to a GET of this path."""
        with self._lock:
            if path == "/metrics":
                text = "".join(self._families())
                return Answer(200, "text/plain; version=0.0.4; charset=utf-8", text)
            if path == "/health":
                dead = sorted(each.name for each in self._threads if not each.is_alive())
                return _json(503 if dead else 200, {"healthy": not dead, "dead_threads": dead})
            if path == "/ready":
                return self._ready()
        return None

    def _done(self) -> int:
        return max(self._start, self._point.number + 1)

    def _ready(self) -> Answer:
        present, ready = self._present(), self._state in READY
        facts = {
            "ready": ready,
            "state": self._state,
            "round": self._done(),
            "rounds": self._rounds,
            "waiting_for": [name for name in _peers(self._party) if name not in present],
        }
        return _json(200 if ready else 503, facts)

    def _families(self) -> Iterator[str]:
        """Yield each metric with its help, type and samples."""
        party, present, point = self._party, self._present(), self._point
        peers = _peers(party)
        packages = versions()
        build = {"version": packages["securefed"], "python": packages["python"]}
        build |= {"party": party.own.name, "run": party.shared.name}
        yield _family("build_info", "gauge", "Release and run of this party.", [(build, 1)])
        states = [({"state": each}, int(each == self._state)) for each in STATES]
        yield _family("state", "gauge", "1 for the state that this party is in.", states)
        up = [({"peer": name}, int(name in present)) for name in peers]
        yield _family("peer_up", "gauge", "1 for a peer that answers.", up)
        for name, kind, about, value in (
            ("start_time_seconds", "gauge", "Unix time when this process began.", self._started),
            ("last_round_time_seconds", "gauge", "Unix time of the last round; 0: none yet.", self._moved),
            ("rounds", "gauge", "Rounds that are done.", self._done()),
            ("rounds_planned", "gauge", "Rounds of the whole run.", self._rounds),
            ("rows", "gauge", "Rows that the run trains on.", self._rows),
            ("attempts_total", "counter", "Meetings of all parties that were tried.", self._attempts),
            ("interruptions_total", "counter", "Meetings that broke off.", self._interruptions),
            ("computation_seconds", "gauge", "Computation of the run so far.", point.computation),
            ("communication_seconds", "gauge", "Communication of the run so far.", point.communication),
        ):
            yield _family(name, kind, about, [({}, value)])
        if self._bits is not None:
            about = "Bits that scores have told of this party's people at most, over all its runs."
            yield _family("score_ledger_bits", "gauge", about, [({}, self._bits)])
        for event in ("sent", "received"):
            for what, counts in (("messages", self._messages), ("bytes", self._bytes)):
                samples = [({"peer": name}, counts[event, name]) for name in peers]
                about = f"{what.capitalize()} {event}, alignment and repetitions included."
                yield _family(f"{event}_{what}_total", "counter", about, samples)


def _family(name: str, kind: str, about: str, samples: Iterable[tuple[Mapping[str, str], float]]) -> str:
    lines = [f"# HELP securefed_{name} {about}", f"# TYPE securefed_{name} {kind}"]
    for labels, value in samples:
        inner = ",".join(f'{key}="{_escaped(each)}"' for key, each in labels.items())
        lines.append(f"securefed_{name}{{{inner}}} {value}" if inner else f"securefed_{name} {value}")
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


# HTTP


@dataclass(frozen=True)
class Answer:
    """An answer to a request."""

    status: int
    content_type: str
    text: str


def _json(status: int, facts: Mapping[str, Any]) -> Answer:
    return Answer(status, "application/json", json.dumps(facts) + "\n")


class Handler(BaseHTTPRequestHandler):
    """Reads one bounded request and answers it."""

    server_version, sys_version = "securefed", ""

    def __init__(self, answer: Callable[[str], Answer | None], head: bytes | None, *arguments: Any) -> None:
        """`head`: the request up to its blank line; None if it is too large or too slow."""
        self._answer, self._head = answer, head
        super().__init__(*arguments)

    def handle(self) -> None:
        self.requestline, self.request_version, self.command = "", "HTTP/1.0", ""
        if self._head is None:
            self.send_error(431)
            return
        self.rfile = io.BytesIO(self._head)
        super().handle()

    def do_GET(self) -> None:
        answer = self._answer(self.path) if self._at_home() else None
        if answer is None:
            self.send_error(404)
            return
        body = answer.text.encode()
        self.send_response(answer.status)
        for key, value in {**HEADERS, "Content-Type": answer.content_type}.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _at_home(self) -> bool:
        """Whether the request came for a name of this machine; behind a public address every name will do."""
        own, own_port = self.connection.getsockname()[:2]
        if own not in LOOPBACK:
            return True
        host, _, port = self.headers.get("Host", "").rpartition(":")
        return host.strip("[]") in LOOPBACK and port == str(own_port)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: addresses with a secret name in them are not for logs."""


@dataclass(eq=False)
class Caller:
    """A connection, and what came of its request."""

    connection: socket.socket
    address: Any
    until: float
    head: bytes = b""


class Callers:
    """All callers of a port, in one thread. A request is read as it arrives, so that slow callers keep nobody
    out.
    """

    def __init__(self, listener: socket.socket, answer: Callable[[str], Answer | None]) -> None:
        self._listener, self._answer = listener, answer
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._waiting: list[Caller] = []
        """The oldest first."""

    def serve(self, stop: threading.Event) -> None:
        while not stop.is_set():
            for key, _ in self._selector.select(TICK):
                if key.data is None:
                    self._accept()
                elif key.data in self._waiting:  # it may have gone a moment ago
                    self._read(key.data)
            now = time.monotonic()
            for caller in [each for each in self._waiting if each.until <= now]:
                self._finish(caller, None)
        for caller in list(self._waiting):
            self._leave(caller)
        self._selector.close()

    def _accept(self) -> None:
        try:
            connection, address = self._listener.accept()
        except OSError:  # the caller is gone already
            return
        if len(self._waiting) >= MOST_CALLERS:
            self._leave(self._waiting[0])
        connection.setblocking(False)
        caller = Caller(connection, address, time.monotonic() + REQUEST_SECONDS)
        self._waiting.append(caller)
        self._selector.register(connection, selectors.EVENT_READ, caller)

    def _read(self, caller: Caller) -> None:
        try:
            piece = caller.connection.recv(MOST_REQUEST)
        except OSError:
            self._leave(caller)
            return
        caller.head += piece
        if len(caller.head) > MOST_REQUEST:
            self._finish(caller, None)
        elif not piece or b"\r\n\r\n" in caller.head:
            self._finish(caller, caller.head)

    def _finish(self, caller: Caller, head: bytes | None) -> None:
        caller.connection.settimeout(REQUEST_SECONDS)
        with suppress(Exception):  # neither a caller that breaks off nor an answer that fails ends the thread
            Handler(self._answer, head, caller.connection, caller.address, None)
        self._leave(caller)

    def _leave(self, caller: Caller) -> None:
        self._waiting.remove(caller)
        self._selector.unregister(caller.connection)
        with suppress(OSError):
            caller.connection.shutdown(socket.SHUT_WR)
        caller.connection.close()


@contextmanager
def serve(answer: Callable[[str], Answer | None], host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serve `answer` in a daemon thread until the block ends; yield the address."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        raise SettingError(f"metrics: {host}:{port} cannot be used: {error.strerror or error}") from None
    with listener:
        listener.setblocking(False)
        stop, callers = threading.Event(), Callers(listener, answer)
        thread = threading.Thread(target=callers.serve, args=(stop,), name="securefed-http", daemon=True)
        thread.start()
        try:
            yield f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
        finally:
            stop.set()
            thread.join()


@contextmanager
def serve_page(page: Callable[[], str]) -> Iterator[str]:
    """Serve a page on the loopback address, under a name that nobody can guess; yield its address."""
    name = secrets.token_urlsafe(18)

    def answer(path: str) -> Answer | None:
        if not hmac.compare_digest(path.encode(), f"/{name}/".encode()):
            return None
        return Answer(200, "text/html; charset=utf-8", page())

    with serve(answer) as address:
        yield f"{address}/{name}/"


@contextmanager
def serve_metrics(monitor: Monitor, address: str) -> Iterator[str]:
    """Serve /metrics, /health and /ready at HOST:PORT, or at a port of the loopback address."""
    host, port = parse_address(f"127.0.0.1:{address}" if address.isdecimal() else address)
    with serve(monitor.answer, host, port) as base:
        yield base
