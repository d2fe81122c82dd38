"""What others may see of a run while it goes on, over HTTP: figures for monitoring.

    securefed party --metrics ADDRESS   /metrics (Prometheus text format), /health and /ready

There is nothing that a request can change, and nothing of data, people, parameters or keys in an answer. Only
GET is answered, with at most 4 kB of request. On a loopback address a page of another site that makes its own
name point here (DNS rebinding) is refused by the Host header.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Any

from securefed.errors import SettingError
from securefed.files import versions
from securefed.settings.party import PartyFile
from securefed.transport.identity import parse_address

LOOPBACK = ("127.0.0.1", "localhost", "::1")
MOST_REQUEST = 4096
REQUEST_SECONDS = 2.0
"""Seconds for all of a request, and for all of an answer."""
MOST_CALLERS = 64
"""Callers at a time. One more ends the oldest."""
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
FIGURES = {  # metrics of one number each
    "start_time_seconds": "Unix time when this process began.",
    "last_round_time_seconds": "Unix time of the last round; 0: none yet.",
    "rounds": "Rounds that are done.",
    "rounds_planned": "Rounds of the whole run.",
    "rows": "Rows that the run trains on.",
    "attempts_total": "Meetings of all parties that were tried.",
    "interruptions_total": "Meetings that broke off.",
    "computation_seconds": "Computation of the run so far.",
    "communication_seconds": "Communication of the run so far.",
}
LEDGER = "Bits that scores have told of this party's people at most, over all its runs."
COUNTED = {"attempt": "attempts_total", "interrupted": "interruptions_total"}
BOOKED = ("training", "round", "finished")
"""Events after which scores may have told more."""
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
        self._state = "starting"
        self._figures: dict[str, float] = dict.fromkeys(FIGURES, 0)
        self._figures |= {"start_time_seconds": now(), "rounds_planned": int(party.shared.settings.rounds)}
        self._traffic: Counter[tuple[str, str, str]] = Counter()
        """Messages and bytes, sent and received, by peer."""
        self._present: Callable[[], Collection[str]] = tuple
        self._threads: tuple[threading.Thread, ...] = ()
        self._lock = threading.Lock()

    def on_event(self, event: str, facts: Mapping[str, Any]) -> None:
        figures: dict[str, float] = {}
        if event in BOOKED and (bits := self._ledger_bits()) is not None:
            figures["score_ledger_bits"] = bits
        if event == "training":
            figures |= {"rounds": facts["start"], "rows": facts["rows"], "rounds_planned": facts["rounds"]}
        elif event == "round":
            figures |= {"rounds": facts["round"], "last_round_time_seconds": self._now()}
            figures |= {f"{name}_seconds": facts[name] for name in ("computation", "communication")}
        with self._lock:
            self._state = AFTER.get(event, self._state)
            self._figures |= figures
            if event in COUNTED:
                self._figures[COUNTED[event]] += 1
            elif event == "message" and facts["entry"].event in ("sent", "received"):
                entry = facts["entry"]
                self._traffic[entry.event, "messages", entry.peer] += 1
                self._traffic[entry.event, "bytes", entry.peer] += entry.bytes
            elif event == "opened":
                self._present = facts["endpoint"].present
                running = threading.enumerate()
                self._threads = tuple(each for each in running if each.name.startswith("securefed"))
            elif event == "closing":
                self._present, self._threads = tuple, ()

    def answer(self, path: str) -> Answer | None:
        with self._lock:
            if path == "/metrics":
                return 200, "text/plain; version=0.0.4; charset=utf-8", "".join(self._families())
            if path == "/health":
                dead = sorted(each.name for each in self._threads if not each.is_alive())
                return _json(503 if dead else 200, {"healthy": not dead, "dead_threads": dead})
            if path == "/ready":
                present, ready = self._present(), self._state in READY
                facts = {
                    "ready": ready,
                    "state": self._state,
                    "round": self._figures["rounds"],
                    "rounds": self._figures["rounds_planned"],
                    "waiting_for": [name for name in self._peers if name not in present],
                }
                return _json(200 if ready else 503, facts)
        return None

    def _families(self) -> Iterator[str]:
        """Yield each metric with its help, type and samples."""
        present, packages = self._present(), versions()
        build = {"version": packages["securefed"], "python": packages["python"]}
        build |= {"party": self._party.own.name, "run": self._party.shared.name}
        yield _family("build_info", "Release and run of this party.", [(build, 1)])
        states = [({"state": each}, int(each == self._state)) for each in STATES]
        yield _family("state", "1 for the state that this party is in.", states)
        up = [({"peer": name}, int(name in present)) for name in self._peers]
        yield _family("peer_up", "1 for a peer that answers.", up)
        for name, value in self._figures.items():
            yield _family(name, FIGURES.get(name, LEDGER), [({}, value)])
        for event in ("sent", "received"):
            for what in ("messages", "bytes"):
                samples = [({"peer": name}, self._traffic[event, what, name]) for name in self._peers]
                about = f"{what.capitalize()} {event}, alignment and repetitions included."
                yield _family(f"{event}_{what}_total", about, samples)


def _family(name: str, about: str, samples: Iterable[tuple[Mapping[str, str], float]]) -> str:
    kind = "counter" if name.endswith("_total") else "gauge"
    lines = [f"# HELP securefed_{name} {about}", f"# TYPE securefed_{name} {kind}"]
    for labels, value in samples:
        # JSON escapes a label's value as this format does.
        inner = ",".join(f"{key}={json.dumps(each, ensure_ascii=False)}" for key, each in labels.items())
        lines.append(f"securefed_{name}{{{inner}}} {value}" if inner else f"securefed_{name} {value}")
    return "\n".join(lines) + "\n"


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
    return (answer(path) if at_home else None) or _error(404)


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
        top = f"HTTP/1.0 {status} {HTTPStatus(status).phrase}\nContent-Type: {kind}\n"
        top += f"Content-Length: {len(body)}\nConnection: close\n\n"
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
def serve(answer: Callable[[str], Answer | None], address: str) -> Iterator[str]:
    """Serve `answer` at HOST:PORT, or at a PORT of the loopback address, until the block ends; yield the URL.

    Slow callers keep nobody out: a request is read as it arrives, in one daemon thread for all callers.
    """
    host, port = parse_address(f"127.0.0.1:{address}" if address.isdecimal() else address)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        raise SettingError(f"metrics: {host}:{port} cannot be used: {error.strerror or error}") from None
    with listener, asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        loop, stop = runner.get_loop(), asyncio.Event()
        work = _serve(listener, answer, stop)
        thread = threading.Thread(target=runner.run, args=(work,), name="securefed-http", daemon=True)
        thread.start()
        try:
            yield f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()
