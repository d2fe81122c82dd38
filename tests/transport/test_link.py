"""A party's end by itself: what it hands over, what it takes, and what it writes down."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from securefed.transport.link import Link, Needed
from securefed.transport.message import (
    Message,
    Network,
    OutOfOrder,
    Path,
    TransportError,
    WrongKind,
    WrongRound,
    WrongRun,
    WrongSender,
)


def make() -> Link:
    network = Network("none", 1e18, 0.0)
    link = Link("bank", ["shop"], run="r", kinds=["number"], network=network, timer=lambda: 0.0)
    link.resume()
    return link


def message(sequence: int, **fields: Any) -> Message:
    plain = {
        "kind": "number",
        "run": "r",
        "round": 0,
        "step": 0,
        "sender": "shop",
        "receiver": "bank",
        "sequence": sequence,
        "payload": b"x",
        "arrival": Path(),
    }
    return Message(**(plain | fields))


def take(link: Link, arriving: Message) -> bytes:
    """Drive one `receive` by hand, as a driver does."""
    waiting = link.receive("number", "shop")
    needed = waiting.send(None)
    assert isinstance(needed, Needed)
    assert (needed.sender, needed.what) == ("shop", "number of round 0 step 0")
    try:
        waiting.send(arriving)
    except StopIteration as end:
        return bytes(end.value)
    raise AssertionError("the message was not taken")


def test_messages_are_numbered_for_each_peer() -> None:
    link = make()
    for _ in range(3):
        link.send("shop", "number", b"abc", round=1)
    assert [m.sequence for m in link.outbox] == [0, 1, 2]
    fields = {(m.run, m.sender, m.receiver, m.round, m.size) for m in link.outbox}
    assert fields == {("r", "bank", "shop", 1, 3)}


def test_each_message_is_taken_once_and_in_order() -> None:
    link = make()
    assert take(link, message(0)) == b"x"
    with pytest.raises(OutOfOrder, match="message 0 again; message 1 is due"):
        take(link, message(0))
    with pytest.raises(OutOfOrder, match="message 2 too early; message 1 is due"):
        take(link, message(2))
    assert take(link, message(1)) == b"x"


REFUSED: list[tuple[dict[str, Any], type[TransportError]]] = [
    ({"kind": "answer"}, WrongKind),
    ({"round": 1}, WrongRound),
    ({"round": -1}, WrongRound),
    ({"step": 1}, WrongRound),
    ({"sender": "bank"}, WrongSender),
    ({"sender": "mallory"}, WrongSender),
    ({"receiver": "mallory"}, WrongSender),
    ({"run": "r2"}, WrongRun),
    ({"sequence": 1}, OutOfOrder),
    ({"sequence": -1}, OutOfOrder),
]


def test_every_field_of_an_envelope_is_checked() -> None:
    for fields, expected in REFUSED:
        with pytest.raises(expected) as caught:
            take(make(), message(**({"sequence": 0} | fields)))
        assert caught.type is expected and "\n" not in str(caught.value), fields
    checked = {name for fields, _ in REFUSED for name in fields}
    assert checked == {field.name for field in dataclasses.fields(Message)} - {"payload", "arrival"}


def test_a_message_for_somebody_else_is_refused() -> None:
    with pytest.raises(WrongSender, match="shop->mill"):
        take(make(), message(0, receiver="mill"))
    with pytest.raises(WrongSender, match="mill->bank"):
        take(make(), message(0, sender="mill"))


def test_a_refused_message_is_not_taken_note_of() -> None:
    link = make()
    with pytest.raises(WrongKind):
        take(link, message(0, kind="answer"))
    assert len(link.transcript) == 0
    assert take(link, message(0)) == b"x"
    (entry,) = link.transcript
    assert (entry.event, entry.kind, entry.peer, entry.bytes) == ("received", "number", "shop", 1)


def test_a_message_shows_its_metadata_and_not_its_payload() -> None:
    shown = repr(message(0, payload=b"secret"))
    assert "secret" not in shown and "kind='number'" in shown and "receiver='bank'" in shown
