"""`securefed party --watch`: the report of a run while it goes on, for a browser on the same machine.

Served on the loopback address alone, under a name drawn at random, to be read only: there is nothing that a
request can change. A page of another site that finds the port does not know the name, and one that makes its
own name point here (DNS rebinding) is refused by the Host header. It shows what `report.html` shows, and
nothing of data, parameters or keys.
"""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from securefed.cli.foreground import waiting_note
from securefed.cli.terminal import clock
from securefed.crypto import protects
from securefed.report.page import render
from securefed.report.timeline import RoundPoint, Timeline
from securefed.settings.party import PartyFile
from securefed.transport.network import Waiting
from securefed.versions import versions

__all__ = ["Board", "serve"]

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Board:
    """What is known of a run so far; rounds come from one thread, requests from others."""

    def __init__(self, party: PartyFile, now: Callable[[], float] = time.monotonic) -> None:
        self._party, self._now = party, now
        self._lock = threading.Lock()
        self._points: list[RoundPoint] = []
        self._from, self._rows, self._began = 0, 0, now()
        self._waiting: Waiting | None = None
        self._met = False

    def begin(self, done: int, rows: int) -> None:
        with self._lock:
            self._from, self._rows, self._began = done, rows, self._now()
            self._met, self._waiting = True, None

    def on_round(self, point: RoundPoint) -> None:
        with self._lock:
            self._points = [each for each in self._points if each.number < point.number] + [point]
            self._met, self._waiting = True, None

    def waiting(self, waiting: Waiting) -> None:
        with self._lock:
            self._waiting = waiting

    def page(self) -> str:
        """The report as of now."""
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
            "reason": f"of {shared.settings.rounds}",
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
        rounds = int(self._party.shared.settings.rounds)
        done = self._points[-1].number + 1 if self._points else self._from
        fresh, left = done - self._from, ""
        if fresh > 0 and done < rounds:
            each = (self._now() - self._began) / fresh
            left = f", about {clock(each * (rounds - done))} left"
        away = self._waiting.peer if self._waiting is not None and self._waiting.moved is None else None
        peers = [name for name in self._party.shared.everybody if name != self._party.own.name]
        words = {name: "away" if name == away else "here" if self._met else "not met yet" for name in peers}
        present = ", ".join(f"{name} {word}" for name, word in words.items())
        note = "" if self._waiting is None else f"<p>{escape(waiting_note(self._waiting))}</p>"
        return (
            f'<div class="bar"><i style="width:{100 * done / max(1, rounds):.1f}%"></i></div>'
            f"<p><b>round {done} of {rounds}</b>{escape(left)}; {escape(present)}</p>{note}"
        )


@contextmanager
def serve(page: Callable[[], str]) -> Iterator[str]:
    """The address at which `page` is shown, until the block ends."""
    name = secrets.token_urlsafe(18)

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "securefed", ""

        def do_GET(self) -> None:
            port = server.server_port
            at_home = self.headers.get("Host", "") in (f"127.0.0.1:{port}", f"localhost:{port}")
            if not at_home or not hmac.compare_digest(self.path.encode(), f"/{name}/".encode()):
                self.send_error(404)
                return
            body = page().encode()
            self.send_response(200)
            for key, value in {**HEADERS, "Content-Type": "text/html; charset=utf-8"}.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Addresses with the name in them are not for logs."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, name="securefed-watch", daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/{name}/"
        finally:
            server.shutdown()
            thread.join()
