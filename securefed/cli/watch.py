"""What others may see of a run while it goes on, over HTTP: a page for people, and figures for monitoring.

    securefed party --watch             the report, for a browser on the same machine, under a random name
    securefed party --metrics ADDRESS   /metrics (Prometheus text format), /health and /ready

There is nothing that a request can change, and nothing of data, people, parameters or keys in an answer. Both
take GET alone, with at most 4 kB of request. On a loopback address a page of another site that makes its own
name point here (DNS rebinding) is refused by the Host header.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from html import escape
from http import HTTPStatus
from typing import Any

from securefed.cli.terminal import clock, waiting_note
from securefed.crypto import protects
from securefed.errors import SettingError, plain_text
from securefed.files import versions
from securefed.report.page import render
from securefed.report.summary import RoundPoint, Timeline, seconds_of
from securefed.settings.party import PartyFile
from securefed.transport.identity import parse_address
from securefed.transport.network import Waiting

HEADERS = """\
Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'
Cache-Control: no-store
Referrer-Policy: no-referrer
X-Content-Type-Options: nosniff
Connection: close
"""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
MOST_REQUEST = 4096
REQUEST_SECONDS = 2.0
"""For all of a request, and for all of an answer."""
MOST_CALLERS = 64
"""At a time. One more ends the oldest."""
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
Answer = tuple[int, str, str]
"""Status, type of content and content."""


class Monitor:
    """State and figures of a party's process. Events come from one thread, requests from another."""

    def __init__(
        self,
        party: PartyFile,
        ledger_bits: Callable[[], int | None] = lambda: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`ledger_bits`: what scores have told of this party's people at most; None: it is not scored."""
        self._party, self._ledger_bits, self._now = party, ledger_bits, now
        self._peers = [name for name in party.shared.everybody if name != party.own.name]
        self._state, self._started, self._began, self._moved = "starting", now(), 0.0, 0.0
        self._attempts = self._interruptions = self._start = self._rows = 0
        self._rounds = int(party.shared.settings.rounds)
        self._points: list[RoundPoint] = []
        self._bits: int | None = None
        self._counts: Counter[tuple[str, str, str]] = Counter()
        """Messages and bytes, sent and received, by peer."""
        self._waiting: Waiting | None = None
        self._present: Callable[[], Collection[str]] = tuple
        self._threads: tuple[threading.Thread, ...] = ()
        self._lock = threading.Lock()

    def on_event(self, event: str, facts: Mapping[str, Any]) -> None:
        bits = self._ledger_bits() if event in ("training", "round", "finished") else self._bits
        with self._lock:
            self._state, self._bits = AFTER.get(event, self._state), bits
            if event == "message" and facts["entry"].event in ("sent", "received"):
                entry = facts["entry"]
                self._counts[entry.event, "messages", entry.peer] += 1
                self._counts[entry.event, "bytes", entry.peer] += entry.bytes
            elif event == "round":
                rest = {name: value for name, value in facts.items() if name not in ("round", "rounds")}
                point, self._moved, self._waiting = RoundPoint(facts["round"] - 1, **rest), self._now(), None
                self._points = [each for each in self._points if each.number < point.number] + [point]
            elif event == "training":
                self._start, self._rows, self._rounds = facts["start"], facts["rows"], facts["rounds"]
                self._began, self._waiting = self._now(), None
            elif event == "waiting":
                self._waiting = facts["waiting"]
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

    @property
    def _point(self) -> RoundPoint:
        """The last round that is done."""
        return self._points[-1] if self._points else RoundPoint(-1, 0.0, 0.0, 0, 0)

    def _done(self) -> int:
        return max(self._start, self._point.number + 1)

    def page(self) -> str:
        """Return the report as of now."""
        with self._lock:
            points, last, live = list(self._points), self._point, self._live()
        shared, timeline = self._party.shared, Timeline(points)
        result: dict[str, Any] = {
            "run": shared.name,
            "party": self._party.own.name,
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
        each_round = [vars(point) for point in timeline.each()]
        timing = {**seconds_of(last), "activities": {}, "parties": {}, "each_round": each_round}
        seen = '<p class="soft">What was seen and what was checked stands here when the run is over.</p>'
        return render(result, timing, seen, live=live)

    def _live(self) -> str:
        """Return the progress in HTML."""
        done, rounds, left = self._done(), self._rounds, ""
        if self._start < done < rounds:
            each = (self._now() - self._began) / (done - self._start)
            left = f", about {clock(each * (rounds - done))} left"
        away = self._waiting.peer if self._waiting is not None and self._waiting.moved is None else None
        otherwise = "here" if self._began else "not met yet"
        present = ", ".join(f"{name} {'away' if name == away else otherwise}" for name in self._peers)
        note = "" if self._waiting is None else f"<p>{escape(waiting_note(self._waiting))}</p>"
        return (
            f'<div class="bar"><i style="width:{100 * done / max(1, rounds):.1f}%"></i></div>'
            f"<p><b>round {done} of {rounds}</b>{escape(left)}; {escape(present)}</p>{note}"
        )

    def answer(self, path: str) -> Answer | None:
        """Return the answer to a GET of this path."""
        with self._lock:
            if path == "/metrics":
                return 200, "text/plain; version=0.0.4; charset=utf-8", "".join(self._families())
            if path == "/health":
                dead = sorted(each.name for each in self._threads if not each.is_alive())
                return _json(503 if dead else 200, {"healthy": not dead, "dead_threads": dead})
            if path == "/ready":
                return self._ready()
        return None

    def _ready(self) -> Answer:
        present, ready = self._present(), self._state in READY
        facts = {
            "ready": ready,
            "state": self._state,
            "round": self._done(),
            "rounds": self._rounds,
            "waiting_for": [name for name in self._peers if name not in present],
        }
        return _json(200 if ready else 503, facts)

    def _families(self) -> Iterator[str]:
        """Yield each metric with its help, type and samples."""
        party, present, point = self._party, self._present(), self._point
        packages = versions()
        build = {"version": packages["securefed"], "python": packages["python"]}
        build |= {"party": party.own.name, "run": party.shared.name}
        yield _family("build_info", "gauge", "Release and run of this party.", [(build, 1)])
        states = [({"state": each}, int(each == self._state)) for each in STATES]
        yield _family("state", "gauge", "1 for the state that this party is in.", states)
        up = [({"peer": name}, int(name in present)) for name in self._peers]
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
            for what in ("messages", "bytes"):
                samples = [({"peer": name}, self._counts[event, what, name]) for name in self._peers]
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


def _json(status: int, facts: Mapping[str, Any]) -> Answer:
    return status, "application/json", json.dumps(facts) + "\n"


def _error(status: int) -> Answer:
    return status, "text/plain; charset=utf-8", f"{HTTPStatus(status).phrase}\n"


def _response(head: bytes, at: tuple[Any, ...], answer: Callable[[str], Answer | None]) -> Answer:
    """Answer one request that came in at this address and port."""
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, *_ = *first.split(" "), ""
    if method != "GET":
        return _error(501)
    hosts = [line[5:].strip() for line in lines if line.lower().startswith("host:")]
    host, _, port = (hosts or [""])[0].rpartition(":")
    # Behind a public address every name will do.
    at_home = at[0] not in LOOPBACK or (host.strip("[]") in LOOPBACK and port == str(at[1]))
    try:
        return (answer(path) if at_home else None) or _error(404)
    except Exception as error:  # noqa: BLE001  # one answer that fails ends neither the server nor the run
        logging.getLogger(__name__).warning("no answer to %s: %s", path[:60], plain_text(error))
        return _error(500)


async def _serve(
    listener: socket.socket, answer: Callable[[str], Answer | None], stop: asyncio.Event
) -> None:
    callers: dict[asyncio.StreamWriter, None] = {}

    async def call(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read one bounded request and answer it."""
        if len(callers) >= MOST_CALLERS:
            oldest = next(iter(callers))
            del callers[oldest]
            oldest.transport.abort()
        callers[writer] = None
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), REQUEST_SECONDS)
            status, kind, text = _response(head, writer.get_extra_info("sockname"), answer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            status, kind, text = _error(431)
        body = text.encode()
        top = f"HTTP/1.0 {status} {HTTPStatus(status).phrase}\n{HEADERS}Content-Type: {kind}\n"
        top += f"Content-Length: {len(body)}\n\n"
        writer.write(top.replace("\n", "\r\n").encode() + body)
        writer.close()  # once all of it is sent
        with suppress(OSError, TimeoutError):
            await asyncio.wait_for(writer.wait_closed(), REQUEST_SECONDS)
        callers.pop(writer, None)
        writer.transport.abort()

    server = await asyncio.start_server(call, sock=listener, limit=MOST_REQUEST)
    await stop.wait()
    asyncio.get_running_loop().remove_reader(listener)
    while tasks := asyncio.all_tasks() - {asyncio.current_task()}:  # some callers are just coming in
        for caller in callers:
            caller.transport.abort()
        await asyncio.wait(tasks, timeout=0.01)
    server.close()


@contextmanager
def serve(answer: Callable[[str], Answer | None], host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serve `answer` in one daemon thread until the block ends; yield the address.

    Slow callers keep nobody out: a request is read as it arrives.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        raise SettingError(f"metrics: {host}:{port} cannot be used: {error.strerror or error}") from None
    address = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
    with listener, asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        loop, stop = runner.get_loop(), asyncio.Event()
        work = _serve(listener, answer, stop)
        thread = threading.Thread(target=runner.run, args=(work,), name="securefed-http", daemon=True)
        thread.start()
        try:
            yield address
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()


@contextmanager
def serve_page(page: Callable[[], str]) -> Iterator[str]:
    """Serve a page on the loopback address, under a name that nobody can guess; yield its address."""
    name = secrets.token_urlsafe(18)

    def answer(path: str) -> Answer | None:
        right = hmac.compare_digest(path.encode(), f"/{name}/".encode())
        return (200, "text/html; charset=utf-8", page()) if right else None

    with serve(answer) as address:
        yield f"{address}/{name}/"


@contextmanager
def serve_metrics(monitor: Monitor, address: str) -> Iterator[str]:
    """Serve /metrics, /health and /ready at HOST:PORT, or at a port of the loopback address."""
    host, port = parse_address(f"127.0.0.1:{address}" if address.isdecimal() else address)
    with serve(monitor.answer, host, port) as base:
        yield base
