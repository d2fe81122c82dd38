"""Whom a party waits for, how long, and what it says meanwhile; in the simulated world, where waiting costs
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import pytest

from securefed.transport.link import Link, Program
from securefed.transport.message import PeerGone, PeerLeft, PeerLost
from securefed.transport.network.host import Timeouts
from securefed.transport.network.run import NetworkRun, Waiting
from tests.transport.simulated import Process, World

Found = dict[str, NetworkRun | BaseException]


class Parties:
    """Each with a program, once; `found` has what came of it."""

    def __init__(self, programs: Mapping[str, Program], timeouts: Timeouts | None = None) -> None:
        self.world = World(("bank", "shop"), 3)
        self.found: Found = {}
        self.seen: list[Waiting] = []
        self._programs = dict(programs)
        for name in programs:
            Process(self.world, name, self._life, timeouts=timeouts or Timeouts())

    def __enter__(self) -> Parties:
        return self

    def __exit__(self, *_: object) -> None:
        self.world.close()

    def _life(self, process: Process) -> None:
        name = process.name
        on_wait = self.seen.append if name == "bank" else None
        try:
            self.found[name] = process.run(self._programs[name], "r", on_wait=on_wait)
        except (PeerGone, ArithmeticError) as error:
            self.found[name] = error

    def run(self, seconds: float) -> Found:
        self.world.run(seconds, lambda: len(self.found) == len(self._programs))
        return self.found

    def work(self, seconds: float) -> None:
        """As a program that computes: its process answers meanwhile."""
        self.world.current.process.condition().wait(seconds)


async def idle(link: Link) -> None:
    return None


async def waits(link: Link) -> bytes:
    return await link.receive("answer", "shop", round=3)


def answers(work: Callable[[], None]) -> Program:
    async def program(link: Link) -> None:
        work()
        link.send("bank", "answer", b"at last", round=3)

    return program


def test_who_never_comes_is_named_and_counted_down() -> None:
    with Parties({"bank": idle}, Timeouts(join=600)) as parties:
        error = parties.run(700)["bank"]
        assert isinstance(error, PeerLost)
        assert error.peer == "shop"
        text = r"shop \(nobody listens there\) could not be reached for 60[01] s"
        assert re.fullmatch(text, str(error))
        left = [waiting.left for waiting in parties.seen]
        assert left == sorted(left, reverse=True)
        assert left[0] > 590
        assert left[-1] < 10
        assert all("nobody listens" in waiting.trouble for waiting in parties.seen[1:])


@pytest.mark.parametrize("hours", [0.1, 1.0])
def test_a_peer_that_works_for_long_is_waited_for(hours: float) -> None:
    """It answers questions meanwhile, so it is not lost although it sends nothing for longer than that."""
    parties: Parties
    programs = {"bank": waits, "shop": answers(lambda: parties.work(3600 * hours))}
    with Parties(programs) as parties:
        found = parties.run(3600 * hours + 60)["bank"]
        assert isinstance(found, NetworkRun)
        assert found.outcome == b"at last"


def test_a_peer_that_answers_and_never_sends_is_given_up_in_the_end() -> None:
    parties: Parties
    programs = {"bank": waits, "shop": answers(lambda: parties.work(90_000))}
    with Parties(programs, Timeouts(silence=3600)) as parties:
        parties.world.run(3700)
        error = parties.found["bank"]
        assert isinstance(error, PeerLost)
        assert str(error) == "shop: no answer of round 3 step 0 for 3600 s"
        assert isinstance(parties.run(100_000)["shop"], PeerLeft)


def test_all_end_together() -> None:
    """Who is done first stays until all are, so that it can go back with one who fails late."""
    parties: Parties

    async def fails_late(link: Link) -> None:
        parties.work(1000)
        raise ZeroDivisionError

    with Parties({"bank": idle, "shop": fails_late}) as parties:
        parties.world.run(990)
        assert parties.found == {}
        found = parties.run(60)
        assert isinstance(found["bank"], PeerLeft)
        assert isinstance(found["shop"], ZeroDivisionError)


def exchange(count: int) -> dict[str, Program]:
    async def asks(link: Link) -> list[bytes]:
        found = []
        for number in range(count):
            link.send("shop", "number", bytes([number]) * 300_000, round=number)
            found.append(await link.receive("answer", "shop", round=number))
        return found

    async def echoes(link: Link) -> None:
        for number in range(count):
            block = await link.receive("number", "bank", round=number)
            link.send("bank", "answer", block[:1], round=number)

    return {"bank": asks, "shop": echoes}


@pytest.mark.parametrize("how", ["silent", "refuses"])
@pytest.mark.parametrize("seconds", [1.0, 20.0, 55.0])
def test_a_short_outage_is_bridged(how: str, seconds: float) -> None:
    """Nobody has to start again: it is shorter than the patience, and connections are made anew."""
    with Parties(exchange(5)) as parties:
        for way in parties.world.ways:
            way.delay = (0.1, 0.3)

        def outage(on: bool) -> None:
            for way in parties.world.ways:
                setattr(way, how, on)

        parties.world.at(2.5, lambda: outage(True))
        parties.world.at(2.5 + seconds, lambda: outage(False))
        found = parties.run(200)["bank"]
        assert isinstance(found, NetworkRun)
        assert found.outcome == [bytes([number]) for number in range(5)]


def test_messages_that_are_delayed_arrive_in_order_and_delay_is_communication() -> None:
    with Parties(exchange(10)) as parties:
        for way in parties.world.ways:
            way.delay = (0.05, 2.0)
        found = parties.run(200)["bank"]
        assert isinstance(found, NetworkRun)
        assert found.outcome == [bytes([number]) for number in range(10)]
        path = found.link.path
        assert path.total == pytest.approx(path.computation + path.communication)
        assert path.communication > 10 * 2 * 0.05
        assert path.computation == 0.0  # nothing was computed: in this world only waiting takes time
