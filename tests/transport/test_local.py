"""All parties in one process: what the clocks say, and what ends a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from securefed.transport.link import Link, run_local
from securefed.transport.message import (
    Deadlock,
    Message,
    Network,
    OutOfOrder,
    Path,
    WrongKind,
    WrongRound,
    WrongRun,
    WrongSender,
)

KINDS = ("number", "answer")
# 1000 bytes take a second, and the way takes a quarter.
NETWORK = Network("test", 8000.0, 0.25)
NO_TIME = Network("none", 1e18, 0.0)


class Clock:
    """A timer that stands still until a program works."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def work(self, seconds: float) -> None:
        self.now += seconds


def test_the_clocks_are_what_arithmetic_predicts() -> None:
    """Bank works 2 s and sends 1000 bytes; shop works 1 s meanwhile, then 3 s on what came, and answers with
    500 bytes.
    """
    clock = Clock()

    async def bank(link: Link) -> Path:
        clock.work(2.0)
        link.send("shop", "number", bytes(1000))
        clock.work(0.5)
        await link.receive("answer", "shop")
        clock.work(0.25)
        return link.path

    async def shop(link: Link) -> Path:
        clock.work(1.0)
        await link.receive("number", "bank")
        arrived = link.path
        clock.work(3.0)
        link.send("bank", "answer", bytes(500))
        return arrived

    run = run_local({"bank": bank, "shop": shop}, run="r", kinds=KINDS, network=NETWORK, timer=clock)
    assert run.outcomes["shop"] == Path(2.0, 1.25)  # 2 of work, then 1000 bytes and the way
    assert run.links["shop"].path == Path(5.0, 1.25)
    # The answer left at (5, 1.25), took 0.5 + 0.25, and was later than bank's own (2.5, 0).
    assert run.outcomes["bank"] == Path(5.0, 2.0)
    assert run.links["bank"].path == Path(5.25, 2.0)
    assert run.critical == Path(5.25, 2.0)
    assert run.critical.total == 7.25


def test_a_link_carries_one_message_after_the_other() -> None:
    clock = Clock()

    async def bank(link: Link) -> None:
        link.send("shop", "number", bytes(1000))
        clock.work(0.5)
        link.send("shop", "number", bytes(2000))  # waits for the first to be through, at 1.0
        clock.work(10.0)
        link.send("shop", "number", bytes(100))  # the link is free again

    async def shop(link: Link) -> list[Path]:
        seen = []
        for _ in range(3):
            await link.receive("number", "bank")
            seen.append(link.path)
        return seen

    run = run_local({"bank": bank, "shop": shop}, run="r", kinds=KINDS, network=NETWORK, timer=clock)
    assert run.outcomes["shop"] == [Path(0.0, 1.25), Path(0.0, 3.25), Path(10.5, 0.35)]


def test_links_to_different_peers_do_not_wait_for_each_other() -> None:
    clock = Clock()

    async def bank(link: Link) -> None:
        link.send("shop", "number", bytes(1000))
        link.send("mill", "number", bytes(1000))

    async def other(link: Link) -> Path:
        await link.receive("number", "bank")
        return link.path

    run = run_local(
        {"bank": bank, "shop": other, "mill": other}, run="r", kinds=KINDS, network=NETWORK, timer=clock
    )
    assert run.outcomes["shop"] == run.outcomes["mill"] == Path(0.0, 1.25)


def test_who_is_busy_when_a_message_arrives_does_not_wait() -> None:
    clock = Clock()

    async def bank(link: Link) -> None:
        link.send("shop", "number", b"")

    async def shop(link: Link) -> Path:
        clock.work(5.0)
        await link.receive("number", "bank")
        return link.path

    run = run_local({"bank": bank, "shop": shop}, run="r", kinds=KINDS, network=NETWORK, timer=clock)
    assert run.outcomes["shop"] == Path(5.0, 0.0)


def test_the_order_of_the_programs_changes_no_clock() -> None:
    def paths(order: list[str]) -> dict[str, Path]:
        clock = Clock()

        def ring(after: str, before: str, first: bool) -> Callable[[Link], object]:
            async def program(link: Link) -> None:
                for turn in range(3):
                    clock.work(1.0 + len(link.name))
                    if not first or turn:
                        await link.receive("number", before, round=turn - 1 if first else turn)
                    link.send(after, "number", bytes(100 * turn), round=turn)

            return program

        programs = {
            "bank": ring("shop", "mill", True),
            "shop": ring("mill", "bank", False),
            "mill": ring("bank", "shop", False),
        }
        chosen = {name: programs[name] for name in order}
        run = run_local(chosen, run="r", kinds=KINDS, network=NETWORK, timer=clock)  # type: ignore[arg-type]
        return {name: link.path for name, link in run.links.items()}

    expected = paths(["bank", "shop", "mill"])
    assert paths(["mill", "shop", "bank"]) == expected
    assert paths(["shop", "bank", "mill"]) == expected


def test_evaluation_is_off_the_clock_and_counted_apart() -> None:
    clock = Clock()

    async def bank(link: Link) -> None:
        clock.work(1.0)
        with link.off_the_clock("evaluation"):
            clock.work(4.0)
            link.send("shop", "number", bytes(1000))
        clock.work(2.0)
        link.send("shop", "number", bytes(1000), round=1)

    async def shop(link: Link) -> list[Path]:
        with link.off_the_clock("evaluation"):
            await link.receive("number", "bank")
        between = link.path
        await link.receive("number", "bank", round=1)
        return [between, link.paused, link.path]

    run = run_local({"bank": bank, "shop": shop}, run="r", kinds=KINDS, network=NETWORK, timer=clock)
    assert run.links["bank"].path == Path(3.0, 0.0)
    assert run.links["bank"].paused == Path(4.0, 0.0)
    # Off the clock the link was busy; on the clock it is free.
    assert run.outcomes["shop"] == [Path(), Path(5.0, 1.25), Path(3.0, 1.25)]
    assert [entry.phase for entry in run.links["shop"].transcript] == ["evaluation", "setup"]


def test_activities_are_booked_under_their_names() -> None:
    clock = Clock()

    async def bank(link: Link) -> None:
        for seconds in (1.0, 2.5):
            with link.activity("encryption"):
                clock.work(seconds)
        clock.work(1.0)

    run = run_local({"bank": bank}, run="r", kinds=KINDS, network=NETWORK, timer=clock)
    assert run.links["bank"].activities == {"encryption": 3.5}
    assert run.links["bank"].path == Path(4.5, 0.0)


def test_nobody_can_go_on() -> None:
    async def waits(link: Link) -> None:
        (peer,) = link.peers
        await link.receive("number", peer, round=7, step=2)

    with pytest.raises(Deadlock) as caught:
        run_local({"bank": waits, "shop": waits}, run="r", kinds=KINDS, network=NO_TIME)
    assert "bank waits for number of round 7 step 2 from shop" in str(caught.value)
    assert "shop waits for number of round 7 step 2 from bank" in str(caught.value)


def test_what_a_program_raises_comes_out_and_the_others_are_closed() -> None:
    closed = []

    async def fails(link: Link) -> None:
        raise ZeroDivisionError

    async def waits(link: Link) -> None:
        try:
            await link.receive("number", "shop")
        finally:
            closed.append(link.name)

    with pytest.raises(ZeroDivisionError):
        run_local({"bank": waits, "shop": fails}, run="r", kinds=KINDS, network=NO_TIME)
    assert closed == ["bank"]


def test_a_program_sends_only_what_the_protocol_names_to_those_who_are_there() -> None:
    async def unknown_peer(link: Link) -> None:
        link.send("mill", "number", b"")

    async def unknown_kind(link: Link) -> None:
        link.send("shop", "gossip", b"")

    async def idle(link: Link) -> None:
        return None

    with pytest.raises(WrongSender, match="bank has no peer 'mill'"):
        run_local({"bank": unknown_peer, "shop": idle}, run="r", kinds=KINDS, network=NO_TIME)
    with pytest.raises(WrongKind, match="no message 'gossip'; it has answer, number"):
        run_local({"bank": unknown_kind, "shop": idle}, run="r", kinds=KINDS, network=NO_TIME)


# Each field of a message under way, altered, and the error that names it.


def change(**fields: object) -> Callable[[Message], Message]:
    return lambda message: dataclasses.replace(message, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tap", "error", "text"),
    [
        (change(kind="answer"), WrongKind, "bank sent 'answer', 'number' is due in round 3 step 1"),
        (change(round=4), WrongRound, "of round 4 step 1, round 3 step 1 is due"),
        (change(step=0), WrongRound, "of round 3 step 0, round 3 step 1 is due"),
        (change(run="q"), WrongRun, "of run 'q', this is run 'r'"),
        (change(sequence=1), OutOfOrder, "message 1 too early; message 0 is due"),
        (change(sequence=-1), OutOfOrder, "message -1 again; message 0 is due"),
    ],
)
def test_a_message_that_was_altered_is_refused_by_name(
    tap: Callable[[Message], Message], error: type[Exception], text: str
) -> None:
    async def bank(link: Link) -> None:
        link.send("shop", "number", b"1", round=3, step=1)

    async def shop(link: Link) -> None:
        await link.receive("number", "bank", round=3, step=1)

    with pytest.raises(error, match=text):
        run_local({"bank": bank, "shop": shop}, run="r", kinds=KINDS, network=NO_TIME, tap=tap)


def test_a_forged_sender_is_found() -> None:
    async def bank(link: Link) -> None:
        link.send("shop", "number", b"1")

    async def shop(link: Link) -> None:
        await link.receive("number", "bank")

    with pytest.raises(WrongSender, match="shop waits for bank, got a message mill->shop"):
        run_local(
            {"bank": bank, "shop": shop}, run="r", kinds=KINDS, network=NO_TIME, tap=change(sender="mill")
        )


def test_a_payload_that_was_altered_under_way_arrives_altered_and_shows_in_the_transcripts() -> None:
    """The transport does not judge payloads; both transcripts hold their digests."""

    async def bank(link: Link) -> None:
        link.send("shop", "number", b"good")

    async def shop(link: Link) -> bytes:
        return await link.receive("number", "bank")

    run = run_local(
        {"bank": bank, "shop": shop}, run="r", kinds=KINDS, network=NO_TIME, tap=change(payload=b"evil")
    )
    assert run.outcomes["shop"] == b"evil"
    (sent,), (received,) = run.links["bank"].transcript, run.links["shop"].transcript
    assert sent.digest != received.digest
    assert (sent.bytes, sent.peer, received.peer) == (4, "shop", "bank")
