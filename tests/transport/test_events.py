"""A link writes down what happened on its clock: work, messages, marks; nothing that is off it."""

from __future__ import annotations

from bench.replay import Event
from securefed.transport.link import Link, LocalRun, run_local
from securefed.transport.message import Network

NETWORK = Network("slow", 8000.0, 0.25)  # 1000 bytes a second


class Clock:
    """Time that passes only when a program says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def work(self, seconds: float) -> None:
        self.now += seconds


def ping(clock: Clock) -> LocalRun:
    async def bank(link: Link) -> None:
        clock.work(2.0)
        link.send("shop", "number", bytes(500), round=1)
        with link.off_the_clock("evaluation"):
            clock.work(70.0)
            link.send("shop", "score", bytes(9000))
            await link.receive("score", "shop")
        clock.work(1.0)
        link.mark("exchange", 1)
        await link.receive("number", "shop", round=1, step=3)

    async def shop(link: Link) -> None:
        await link.receive("number", "bank", round=1)
        clock.work(4.0)
        with link.off_the_clock("evaluation"):
            await link.receive("score", "bank")
            link.send("bank", "score", b"x")
        clock.work(8.0)
        link.send("bank", "number", bytes(100), round=1, step=3)

    programs = {"bank": bank, "shop": shop}
    return run_local(programs, run="r", kinds=["number", "score"], network=NETWORK, timer=clock)


def test_events_hold_the_work_before_them_and_nothing_off_the_clock() -> None:
    links = ping(Clock()).links
    assert links["bank"].events == [
        Event(2.0, "sent", "number", 1, 0, "shop", 500),
        Event(1.0, "mark", "exchange", 1, 0),
        Event(0.0, "received", "number", 1, 3, "shop", 100),
    ]
    assert links["shop"].events == [
        Event(0.0, "received", "number", 1, 0, "bank", 500),
        Event(12.0, "sent", "number", 1, 3, "bank", 100),
    ]


def test_marks_and_events_leave_the_clock_as_it_is() -> None:
    links = ping(Clock()).links
    # 2 s of work, 0.5 + 0.25 s on the way, 12 s of work there, 0.1 + 0.25 s back.
    assert links["bank"].path.computation == 14.0
    assert abs(links["bank"].path.communication - 1.1) < 1e-12
