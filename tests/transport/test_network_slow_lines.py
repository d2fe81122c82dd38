"""Lines that are slow, and lines that are dead without saying so: which is which, and what is done about it.

In the simulated world: what takes minutes there takes no time here, and nothing depends on this machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from securefed.transport.link import Link, Program
from securefed.transport.message import PeerGone, PeerLost
from securefed.transport.network.host import Timeouts
from securefed.transport.network.peer_channel import Line
from securefed.transport.network.run import NetworkRun, Waiting
from tests.transport.simulated import Process, World

MODEM = 100e3 / 8
"""Bytes a second at 100 kbit/s."""
LARGE = 1_500_000


class Pair:
    """Bank and shop, each with a program, once."""

    def __init__(
        self, bank: Program, shop: Program, *, patience: float = 30.0, line: type[Line] = Line
    ) -> None:
        self.world = World(("bank", "shop"), 1)
        self.found: dict[str, NetworkRun | PeerGone] = {}
        self.seen: dict[str, list[Waiting]] = {"bank": [], "shop": []}
        programs = {"bank": bank, "shop": shop}

        def life(process: Process) -> None:
            name = process.name
            try:
                self.found[name] = process.run(programs[name], "r", on_wait=self.seen[name].append)
            except PeerGone as gone:
                self.found[name] = gone

        for name in programs:
            Process(self.world, name, life, timeouts=Timeouts(patience=patience), line=line)

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self.world.close()

    def run(self, seconds: float) -> None:
        assert self.world.run(seconds, lambda: len(self.found) == 2), self.found

    def outcome(self, name: str) -> Any:
        found = self.found[name]
        if isinstance(found, PeerGone):
            raise found
        return found.outcome


def sends(size: int, then: Callable[[], None] = lambda: None) -> Program:
    async def program(link: Link) -> None:
        link.send("shop", "number", bytes(range(256)) * (size // 256))
        then()
        await link.receive("answer", "shop")

    return program


async def takes(link: Link) -> int:
    got = await link.receive("number", "bank")
    link.send("bank", "answer", b"")
    return len(got)


@pytest.mark.parametrize("size", [200_000, LARGE, 8_000_000])
@pytest.mark.parametrize("patience", [30.0, 120.0])
def test_a_large_message_gets_through_a_slow_line(size: int, patience: float) -> None:
    with Pair(sends(size), takes, patience=patience) as pair:
        for way in pair.world.ways:
            way.bandwidth, way.delay = MODEM, (0.2, 0.4)
        pair.run(2 * size / MODEM + 60)
        assert pair.outcome("shop") == size // 256 * 256
        assert pair.world.now - 1000 < 1.12 * size / MODEM + 30  # each piece waits for a receipt, 0.6 s


def test_its_progress_is_seen_at_both_ends() -> None:
    with Pair(sends(LARGE), takes) as pair:
        pair.world.way("bank", "shop").bandwidth = MODEM
        pair.run(600)
        for name in ("bank", "shop"):
            moved = [waiting.moved for waiting in pair.seen[name] if waiting.moved is not None]
            shares = [part / whole for part, whole in moved]
            assert len(shares) > 20
            assert shares == sorted(shares)
            assert shares[0] < 0.1
            assert shares[-1] > 0.9
            assert all(waiting.outgoing == (name == "bank") for waiting in pair.seen[name] if waiting.moved)


class OneConnection(Line):
    """The naive twin: questions wait behind messages."""

    @property
    def _asks(self) -> Any:
        return self._carries

    @_asks.setter
    def _asks(self, channel: Any) -> None:
        self._carries = channel


@pytest.mark.parametrize("line", [Line, OneConnection])
def test_questions_on_the_same_connection_would_take_a_slow_line_for_a_late_one(line: type[Line]) -> None:
    with Pair(sends(LARGE), takes, line=line) as pair:
        for way in pair.world.ways:
            way.bandwidth = MODEM
        pair.run(700)
        run = pair.found["bank"]
        assert isinstance(run, NetworkRun)
        assert (run.link._attempt.others["shop"].latency > 1.0) == (line is OneConnection)


def test_a_connection_that_died_quietly_is_replaced_while_the_peer_answers_on_the_other() -> None:
    pair: Pair

    def lose() -> None:
        pair.world.way("bank", "shop").loses_messages = True

    def found_again() -> None:
        pair.world.way("bank", "shop").loses_messages = False

    with Pair(sends(LARGE, lose), takes) as pair:
        pair.world.at(12.0, found_again)  # for new connections; the old one stays dead
        pair.run(40)
        assert pair.outcome("shop") == LARGE // 256 * 256
        assert 15 < pair.world.now - 1000 < 20  # half of the patience, and not more


def test_a_line_on_which_nothing_moves_is_a_lost_peer() -> None:
    pair: Pair

    def silence() -> None:
        for way in pair.world.ways:
            way.silent = True

    with Pair(sends(LARGE, silence), takes) as pair:
        pair.run(120)
        for name, other in (("bank", "shop"), ("shop", "bank")):
            gone = pair.found[name]
            assert isinstance(gone, PeerLost)
            assert str(gone).startswith(f"{other} (no answer) could not be reached for 3")
        left = [waiting.left for waiting in pair.seen["bank"] if waiting.moved is None]
        assert left
        assert left == sorted(left, reverse=True)


def test_a_receiver_without_room_is_not_a_dead_line() -> None:
    """Its program takes nothing for ten minutes; its inbox is full, and the next message waits outside."""
    pair: Pair

    async def many(link: Link) -> None:
        for number in range(3):
            link.send("shop", "number", bytes(1 << 20), round=number)
        await link.receive("answer", "shop")

    async def slow(link: Link) -> int:
        pair.world.processes["shop"].condition().wait(600.0)
        total = 0
        for number in range(3):
            total += len(await link.receive("number", "bank", round=number))
        link.send("bank", "answer", b"")
        return total

    with Pair(many, slow) as pair:
        for process in pair.world.processes.values():
            object.__setattr__(process.limits, "queued_messages", 1)
        pair.run(700)
        assert pair.outcome("shop") == 3 << 20
