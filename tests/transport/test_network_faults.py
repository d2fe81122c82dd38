"""What goes wrong between parties, on purpose: a peer with a stolen identity that sends what no honest one
does, and a proxy that corrupts, cuts, delays and freezes.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from securefed.transport.link import Link
from securefed.transport.message import (
    IllegalMessage,
    LimitExceeded,
    Malformed,
    OutOfOrder,
    PeerLost,
    PeerRefused,
    PeerRestarted,
    TransportError,
    WrongKind,
    WrongRound,
)
from securefed.transport.network.codec import FINISHED, LEFT, RUNNING, PieceReceipt
from securefed.transport.network.host import Limits, Timeouts
from securefed.transport.network.run import NetworkRun
from tests.transport.network import FAILED, IDENTITIES, Proxy, Puppet, Town, outcome, refusal, result

LIMITS = Limits(message_bytes=100_000, queued_bytes=200_000, chunk_bytes=4096)


async def three(link: Link) -> list[bytes]:
    return [await link.receive("number", "shop", round=number) for number in range(3)]


@contextmanager
def robbed() -> Iterator[tuple[Puppet, Future[NetworkRun]]]:
    """Bank runs with a shop that is a puppet: it has shop's real key."""
    town = Town("bank", "shop", limits=LIMITS)
    bank = town.start("bank", three)
    with Puppet("bank", town.addresses["bank"], IDENTITIES["shop"]) as shop:
        shop.join()
        yield shop, bank
        bank.exception(20)


def finish(shop: Puppet, bank: Future[NetworkRun]) -> list[bytes]:
    """Say that we are done, so that bank may end."""

    def say() -> None:
        known = {shop.name: shop.session, "bank": answer.session}
        with suppress(*FAILED):  # bank has ended
            while not bank.done():
                shop.greet(shop.hello(state=FINISHED, sessions=known))
                time.sleep(0.05)

    answer = shop.greet(shop.hello(state=RUNNING))
    thread = threading.Thread(target=say)
    thread.start()
    outcome = bank.result(10).outcome
    thread.join()
    assert isinstance(outcome, list)
    return outcome


def test_an_honest_puppet_is_believed() -> None:
    """So that what follows is known to be able to fail."""
    with robbed() as (shop, bank):
        for number in range(3):
            assert shop.send(number, bytes([number]) * 10) == PieceReceipt(number, 10, room=True)
        assert finish(shop, bank) == [bytes([number]) * 10 for number in range(3)]


def test_a_repeated_message_is_acknowledged_and_delivered_once() -> None:
    """The receipt was lost, so the sender sends it again."""
    with robbed() as (shop, bank):
        for number, payload in enumerate((b"zero", b"one", b"two")):
            for _ in range(2):
                assert shop.send(number, payload) == PieceReceipt(number, len(payload), room=True)
        assert finish(shop, bank) == [b"zero", b"one", b"two"]


def test_pieces_go_on_from_what_has_arrived() -> None:
    with robbed() as (shop, bank):
        assert shop.send(0, b"ze", size=4) == PieceReceipt(0, 2, room=True)
        assert shop.send(0, b"ze", size=4) == PieceReceipt(0, 2, room=True)
        assert shop.send(0, b"o", size=4, offset=3) == PieceReceipt(0, 2, room=True), "not yet"
        assert shop.send(0, b"ero", size=4, offset=1) == PieceReceipt(0, 4, room=True)
        shop.send(1, b"one")
        shop.send(2, b"")
        assert finish(shop, bank) == [b"zero", b"one", b""]


Act = Callable[[Puppet], Any]


def after(*payloads: bytes, act: Act) -> Act:
    def both(shop: Puppet) -> None:
        for number, payload in enumerate(payloads):
            shop.send(number, payload)
        act(shop)

    return both


def other_content(shop: Puppet) -> None:
    shop.send(0, b"ze", size=4)
    shop.send(0, b"ze", size=5)


@pytest.mark.parametrize(
    ("act", "error", "text"),
    [
        (
            after(b"zero", b"one", act=lambda s: s.send(1, b"more")),
            OutOfOrder,
            "message 1 again, with another content",
        ),
        (other_content, OutOfOrder, "message 0 again, with another content"),
        (lambda s: s.send(1, b"one"), OutOfOrder, "shop sent message 1 too early; message 0 is due"),
        (lambda s: s.send(0, b"x", kind="gossip"), WrongKind, "a kind that the protocol does not name"),
        (lambda s: s.send(0, b"x", receiver="mill"), TransportError, "a message for 'mill'"),
        (lambda s: s.send(0, b"four", size=3), LimitExceeded, "more than the 3 bytes that it announced"),
        (lambda s: s.send(0, b"x", size=3, offset=3), LimitExceeded, "more than the 3 bytes"),
        (lambda s: s.send(0, b"x", size=100_001), LimitExceeded, "of 100001 bytes, at most 100000"),
        (lambda s: s.post(b"\xff\xff"), Malformed, "a letter without an envelope"),
        (lambda s: s.post(b"\xff\xff\xff\xff\xff"), Malformed, "an envelope that cannot be parsed"),
        (lambda s: s.post(b""), Malformed, "a letter without an envelope"),
    ],
)
def test_what_no_honest_peer_sends_ends_the_run_by_name_at_both_ends(
    act: Act, error: type[Exception], text: str
) -> None:
    with robbed() as (shop, bank):
        with pytest.raises(FAILED) as caught:
            act(shop)
        found = bank.exception(10)
        assert isinstance(found, error)
        assert isinstance(found, IllegalMessage)
        assert text in str(found)
        assert refusal(caught.value) == type(found).__name__
        assert str(caught.value) == f"bank refused: {found}"
        assert "shop" in str(found), "who sent it"


def test_another_round_is_refused_when_the_program_takes_it() -> None:
    with robbed() as (shop, bank):
        shop.send(0, b"zero", round=5)
        error = bank.exception(10)
        assert isinstance(error, WrongRound)
        assert str(error) == "shop sent 'number' of round 5 step 0, round 0 step 0 is due"


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"run": "yesterday"}, "WrongRun"),
        ({"attempt": bytes(32)}, "OtherAttempt"),
    ],
)
def test_a_message_of_another_attempt_is_refused_and_the_run_goes_on(
    fields: dict[str, Any], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A recording of an earlier attempt, played back. It is no warning: honest peers reconnect."""
    caplog.set_level("INFO", "securefed.transport")
    with robbed() as (shop, bank):
        with pytest.raises(FAILED) as caught:
            shop.send(0, b"old", **fields)
        assert refusal(caught.value) == name
        for number in range(3):
            shop.send(number, bytes([number]))
        assert finish(shop, bank) == [b"\x00", b"\x01", b"\x02"]
    refused = [r.levelname for r in caplog.records if "refused a call of shop" in r.getMessage()]
    assert refused == ["INFO"]


def test_an_old_message_once_more_is_refused_and_the_run_goes_on() -> None:
    """A connection that stood still and was given up brings what had been sent on another since."""
    with robbed() as (shop, bank):
        for number in range(2):
            shop.send(number, bytes([number]))
        with pytest.raises(FAILED) as caught:
            shop.send(0, b"\x00")
        assert refusal(caught.value) == "Repeated"
        shop.send(2, b"\x02")
        assert finish(shop, bank) == [b"\x00", b"\x01", b"\x02"]


def test_a_message_that_stops_in_the_middle_is_given_up() -> None:
    town = Town("bank", "shop", timeouts=Timeouts(beat=0.1, patience=1.0, answer=0.5, farewell=0.1))
    bank = town.start("bank", three)
    with Puppet("bank", town.addresses["bank"], IDENTITIES["shop"]) as shop:
        shop.join()
        shop.send(0, b"half", size=10)
        with suppress(*FAILED):  # bank has ended
            while not bank.done():  # shop is there and answers; only the message does not go on
                shop.greet(shop.hello(state=RUNNING))
                time.sleep(0.05)
        assert isinstance(bank.exception(10), PeerLost)
        assert "(it stopped after 4 of 10 bytes of 'number') could" in str(bank.exception())


def test_a_peer_that_calls_and_cannot_be_called_is_lost() -> None:
    """Its address here is wrong: it is heard all the time, and none of our messages could reach it."""
    town = Town("bank", "shop", timeouts=Timeouts(beat=0.1, patience=1.0, answer=0.5, farewell=0.1))
    bank = town.start("bank", three)
    with Puppet("bank", town.addresses["bank"], IDENTITIES["shop"]) as shop:
        shop.join()
        with suppress(*FAILED):  # bank has ended
            while not bank.done():
                shop.greet(shop.hello(state=RUNNING))
                time.sleep(0.05)
        assert isinstance(bank.exception(10), PeerLost)
        assert re.search(r"shop at \S+ \(nobody listens there\) could not be reached", str(bank.exception()))


def test_a_peer_that_leaves_or_comes_back_ends_the_attempt() -> None:
    with robbed() as (shop, bank):
        shop.greet(shop.hello(state=LEFT, reason="OutOfOrder"))
        assert str(bank.exception(10)) == "shop left the run: an error ended it"
    with robbed() as (shop, bank):
        shop.session = secrets.token_bytes(16)
        shop.greet(shop.hello())
        assert isinstance(bank.exception(10), PeerRestarted)


@pytest.mark.slow
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60))
def test_arbitrary_bytes_to_a_live_party_end_in_named_errors_only(data: bytes) -> None:
    with robbed() as (shop, bank):
        for call in (shop.greet_bytes, shop.post):  # the message ends the attempt
            with pytest.raises(FAILED) as caught:
                call(data)
            assert refusal(caught.value) in {"Malformed", "LimitExceeded", "OtherRelease", "OutOfOrder"}, str(
                caught.value
            )
        assert isinstance(bank.exception(10), IllegalMessage)


# A refused sender.


def test_who_is_refused_hears_why_also_from_the_farewell() -> None:
    """The other side's farewell can be here before its answer to the call."""
    with robbed() as (shop, bank):
        shop.greet(shop.hello(state=LEFT, reason="LimitExceeded", refusal="9 bytes, at most 8"))
        error = bank.exception(10)
        assert isinstance(error, PeerRefused)
        assert error.reason == "LimitExceeded"
        assert str(error) == "shop refused: 9 bytes, at most 8"


def test_the_sender_hears_why_its_message_was_refused() -> None:
    """Shop takes less than bank sends."""
    town, small = Town("bank", "shop"), Limits(message_bytes=100, queued_bytes=100)

    async def sends(link: Link) -> None:
        link.send("shop", "number", bytes(101))
        await link.receive("answer", "shop")

    async def takes(link: Link) -> None:
        await link.receive("number", "bank")

    bank = town.start("bank", sends)
    with town.endpoint("shop", limits=small) as endpoint, pytest.raises(LimitExceeded):
        endpoint.run(takes, run="r", kinds=("number", "answer"), settings={"local_steps": 5})
    error = bank.exception(10)
    assert isinstance(error, PeerRefused)
    assert error.reason == "LimitExceeded"
    assert str(error) == ("shop refused: bank sent 'number' of 101 bytes, at most 100 are allowed")


# Proxies between bank (who sends) and shop.

SIZE = 300_000


async def sends_five(link: Link) -> None:
    for number in range(5):
        link.send("shop", "number", bytes([number]) * SIZE, round=number)
        await link.receive("answer", "shop", round=number)


async def takes_five(link: Link) -> list[tuple[int, int]]:
    seen = []
    for number in range(5):
        block = await link.receive("number", "bank", round=number)
        seen.append((block[0], len(block)))
        link.send("bank", "answer", b"", round=number)
    return seen


GOOD = [(number, SIZE) for number in range(5)]


def through(spoil: Callable[[str, int, bytes], bytes | None], **given: Any) -> dict[str, Any]:
    town = Town("bank", "shop", **given)
    with Proxy(town.addresses["shop"], spoil) as proxy:
        town.reach("bank", "shop", proxy.address)
        # Shop listens first: a connection that finds nobody is not counted, and then greetings of shop alone
        # can bring the two together.
        shop = town.start("shop", takes_five)
        bank = town.start("bank", sends_five)
        return {"shop": outcome(shop), "bank": outcome(bank), "connections": proxy.connections}


class Once:
    """Spoils the first connection when so many bytes have passed towards the target, and no other."""

    def __init__(self, at: int, act: Callable[[bytes], bytes | None]) -> None:
        self.at, self.act, self.done = at, act, False

    def __call__(self, direction: str, count: int, data: bytes) -> bytes | None:
        if not self.done and direction == "in" and count <= self.at < count + len(data):
            self.done = True
            return self.act(data)
        return data


def flip(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


MESSAGE = 100_000
LATER = [pytest.param(at, marks=pytest.mark.slow) for at in (100, 5_000, SIZE + 5_000, 4 * SIZE)]


@pytest.mark.parametrize("at", [MESSAGE, *LATER])
@pytest.mark.parametrize("chunk", [SIZE, SIZE // 4], ids=["whole", "pieces"])
@pytest.mark.parametrize(
    "act", [flip, lambda data: None, lambda data: data[: len(data) // 2]], ids=["flip", "cut", "lose"]
)
def test_what_is_damaged_under_way_is_sent_again_and_arrives_whole(
    act: Callable[[bytes], bytes | None], chunk: int, at: int
) -> None:
    """TLS finds every changed or missing byte; the message is delivered again, once."""
    spoil = Once(at, act)
    found = through(spoil, limits=Limits(chunk_bytes=chunk))
    assert result(found["shop"]).outcome == GOOD
    result(found["bank"])
    assert spoil.done
    # Greetings, messages, and another for what was damaged. Only messages are as long as MESSAGE and have to
    # come again. A greeting need not: shop's own greetings may do.
    assert found["connections"] >= (3 if at >= MESSAGE else 2)
    assert [e.detail["sequence"] for e in result(found["shop"]).link.transcript if e.event == "received"] == [
        0,
        1,
        2,
        3,
        4,
    ]


@pytest.mark.slow
def test_a_link_that_always_corrupts_is_a_lost_peer() -> None:
    def spoil(direction: str, count: int, data: bytes) -> bytes:
        return flip(data) if direction == "in" and count + len(data) > 20_000 else data

    timeouts = Timeouts(join=10, patience=2, beat=0.2, answer=0.5, farewell=0.2)
    found = through(spoil, timeouts=timeouts)
    assert isinstance(found["bank"], PeerLost)
    assert found["bank"].peer == "shop"
    assert found["connections"] >= 4


@pytest.mark.parametrize("chunk", [SIZE, SIZE // 4], ids=["whole", "pieces"])
def test_a_stop_on_the_way_is_communication(chunk: int) -> None:
    """Half a second in the middle of a message, in one piece or in several."""

    def spoil(direction: str, count: int, data: bytes) -> bytes:
        if direction == "in" and count <= SIZE // 2 < count + len(data):
            time.sleep(0.5)
        return data

    found = through(spoil, limits=Limits(chunk_bytes=chunk))
    path = result(found["shop"]).link.path
    assert path.communication >= 0.5
    assert path.computation + path.communication == path.total
