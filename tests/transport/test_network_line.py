"""The channel for questions is given up while a question is still open on it."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from securefed.transport.network import codec
from securefed.transport.network.host import Limits, Timeouts
from securefed.transport.network.peer_channel import OVERDUE, Line


class Call:
    """Never answered; whoever cancels it hears of it at once, in the same thread."""

    def __init__(self) -> None:
        self._then: list[Any] = []

    def add_done_callback(self, then: Any) -> None:
        self._then.append(then)

    def cancel(self) -> None:
        then, self._then = self._then, []
        for each in then:
            each(self)

    def result(self) -> bytes:
        raise grpc.FutureCancelledError


class Channel:
    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.closed = False

    def unary_unary(self, _: str) -> Any:
        def future(data: bytes, timeout: float) -> Call:
            self.calls.append(Call())
            return self.calls[-1]

        return SimpleNamespace(future=future)

    def close(self) -> None:
        self.closed = True
        for call in self.calls:
            call.cancel()


def test_closing_a_channel_may_end_its_open_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "encode_hello", lambda hello: b"")
    made: list[Channel] = []
    now = [0.0]

    def connect() -> Channel:
        made.append(Channel())
        return made[-1]

    timeouts, host = Timeouts(), SimpleNamespace(now=lambda: now[0])
    line = Line("shop", "shop:7001", connect, Limits(), timeouts, host)  # type: ignore[arg-type]
    other = SimpleNamespace(session=b"", trouble="")
    attempt: Any = SimpleNamespace(
        others={"shop": other}, hello=lambda name: None, changed=threading.Condition(), state=None
    )
    line.greet(attempt)
    asks = made[0]
    for _ in range(100):
        now[0] += timeouts.answer + OVERDUE + 1.0
        worker = threading.Thread(target=line.greet, args=(attempt,), daemon=True)
        worker.start()
        worker.join(30.0)
        assert not worker.is_alive(), "it waits for a lock that it holds itself"
        if asks.closed:
            break
    open_calls = len(made[-1].calls)
    line.greet(attempt)
    assert asks.closed and len(made[-1].calls) == open_calls == 1, "one question at a time"
