"""Bytes off the wire: whatever they are, they become a value within bounds or `Malformed`."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefed.errors import SettingError
from securefed.transport.message import LimitExceeded, Malformed, OtherRelease, OutOfOrder, Path, Repeated
from securefed.transport.network.attempt import Inbox, Parcel
from securefed.transport.network.codec import (
    ABSENT,
    GREETING,
    LEFT,
    MARK,
    MOST_NESTED,
    MOST_SECONDS,
    PROTOCOL,
    Envelope,
    Hello,
    PieceReceipt,
    decode_hello,
    decode_letter,
    decode_receipt,
    differences,
    encode_hello,
    encode_letter,
    encode_receipt,
    from_json,
    to_json,
)
from securefed.transport.network.host import Limits

HELLO = Hello(
    run="r",
    sender="bank",
    receiver="shop",
    session=bytes(range(16)),
    state=GREETING,
    settings='{"local_steps": 5}',
    facts="{}",
    sessions={"bank": bytes(range(16))},
    clock=1.5e9,
)
ENVELOPE = Envelope(
    run="r",
    sender="bank",
    receiver="shop",
    attempt=bytes(32),
    sequence=7,
    kind="number",
    round=3,
    step=1,
    size=1000,
    departure=Path(1.25, 0.5),
)
NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=128)
SECONDS = st.floats(0, MOST_SECONDS, exclude_max=True)


@given(
    st.builds(
        Envelope,
        run=NAMES,
        sender=NAMES,
        receiver=NAMES,
        attempt=st.binary(min_size=32, max_size=32),
        sequence=st.integers(0, 2**62 - 1),
        kind=NAMES,
        round=st.integers(0, 2**62 - 1),
        step=st.integers(0, 2**62 - 1),
        size=st.integers(0, 2**62 - 1),
        departure=st.builds(Path, SECONDS, SECONDS),
        offset=st.integers(0, 2**62 - 1),
    ),
    st.binary(max_size=5000),
)
def test_a_letter_comes_back_as_it_was(envelope: Envelope, data: bytes) -> None:
    assert decode_letter(encode_letter(envelope, data)) == (envelope, data)


@given(
    st.builds(
        Hello,
        run=NAMES,
        sender=NAMES,
        receiver=NAMES,
        session=st.binary(min_size=16, max_size=16),
        state=st.integers(GREETING, LEFT),
        settings=st.dictionaries(NAMES, st.integers()).map(lambda d: to_json("settings", d)),
        facts=st.dictionaries(NAMES, st.floats(allow_nan=False, allow_infinity=False)).map(
            lambda d: to_json("facts", d)
        ),
        sessions=st.dictionaries(NAMES, st.binary(max_size=16), max_size=5),
        clock=st.floats(allow_nan=False, allow_infinity=False),
        reason=NAMES,
        refusal=NAMES.map(lambda text: " ".join(text.split())),
        heard=st.integers(ABSENT, LEFT),
    )
)
def test_a_hello_comes_back_as_it_was(hello: Hello) -> None:
    assert decode_hello(encode_hello(hello)) == hello


def test_a_receipt_comes_back_as_it_was() -> None:
    for receipt in (PieceReceipt(12, 1000, room=True), PieceReceipt(0, 0, room=False)):
        assert decode_receipt(encode_receipt(receipt)) == receipt


def damaged(whole: bytes) -> st.SearchStrategy[bytes]:
    """Cut short, with bytes changed, or with bytes put in."""
    place = st.integers(0, len(whole) - 1)
    return st.one_of(
        place.map(lambda i: whole[:i]),
        st.tuples(place, st.integers(1, 255)).map(
            lambda t: whole[: t[0]] + bytes([whole[t[0]] ^ t[1]]) + whole[t[0] + 1 :]
        ),
        st.tuples(place, st.binary(min_size=1, max_size=20)).map(
            lambda t: whole[: t[0]] + t[1] + whole[t[0] :]
        ),
    )


@pytest.mark.parametrize("decode", [decode_hello, decode_letter, decode_receipt])
@given(data=st.data())
def test_any_bytes_are_a_value_or_malformed(decode: Any, data: st.DataObject) -> None:
    whole = {
        decode_hello: encode_hello(HELLO),
        decode_letter: encode_letter(ENVELOPE, b"payload"),
        decode_receipt: encode_receipt(PieceReceipt(300, 5, room=True)),
    }[decode]
    given_bytes = data.draw(st.one_of(st.binary(max_size=300), damaged(whole)))
    try:
        found = decode(given_bytes)
    except Malformed:
        return
    if decode is decode_letter:
        found, payload = found
        assert isinstance(payload, memoryview)
    if isinstance(found, Envelope):
        assert len(found.attempt) == 32
        assert math.isfinite(found.departure.total)
        assert found.departure.computation >= 0
        assert found.departure.communication >= 0
        assert max(map(len, (found.run, found.sender, found.receiver, found.kind))) <= 128
    if isinstance(found, Hello):
        assert found.state == ABSENT or len(found.session) == 16
        assert math.isfinite(found.clock)
        if found.state != ABSENT:
            assert isinstance(from_json("settings", found.settings), dict)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"attempt": b"short"}, "attempt is not a digest"),
        ({"sequence": 2**62}, "a sequence that is out of bounds"),
        ({"size": -1}, "a size that is out of bounds"),
        ({"offset": True}, "a offset that is out of bounds"),
        ({"departure": Path(math.nan, 0)}, "cannot be parsed"),
        ({"departure": Path(0, math.inf)}, "cannot be parsed"),
        ({"departure": Path(-1, 0)}, "a departure that is out of bounds"),
        ({"departure": Path(1e308, 1e308)}, "a departure that is out of bounds"),
        ({"sender": "x" * 129}, "a sender that is out of bounds"),
        ({"kind": "a\nb"}, "a kind that is out of bounds or not printable"),
        ({"kind": None}, "a kind that is out of bounds"),
    ],
)
def test_an_envelope_out_of_bounds_is_malformed(change: dict[str, Any], text: str) -> None:
    with pytest.raises(Malformed, match=text):
        decode_letter(encode_letter(replace(ENVELOPE, **change), b"x"))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"session": b"short"}, "a session of 5 bytes, 16 are needed"),
        ({"sessions": {str(i): b"" for i in range(257)}}, "257 sessions"),
        ({"sessions": {"bank": "no bytes"}}, "a sessions that is out of bounds"),
        ({"sessions": ["bank"]}, "a sessions that is out of bounds"),
        ({"clock": math.nan}, "cannot be parsed"),
        ({"state": 9}, "the unknown state 9"),
        ({"heard": 9}, "the unknown state 9"),
        ({"reason": "a\x1b[31mred"}, "a reason that is out of bounds or not printable"),
        ({"settings": "{"}, "settings of a hello are not JSON"),
        ({"settings": "[1]"}, "settings of a hello are not a JSON object"),
        ({"facts": "[" * 100_000}, "facts of a hello are not JSON"),
        ({"facts": {}}, "a facts that is out of bounds"),
        ({"facts": " " * (1 << 20)}, "at most 1048576 are allowed"),
        ({"another": 1}, "without its fields, or with others"),
    ],
)
def test_a_hello_out_of_bounds_is_malformed(change: dict[str, Any], text: str) -> None:
    with pytest.raises(Malformed, match=text):
        decode_hello(raw_hello(**change))


def raw_hello(**change: Any) -> bytes:
    """A hello as JSON, without the care that its sender takes."""
    fields = json.loads(encode_hello(HELLO)[2:]) | change
    return bytes([MARK, PROTOCOL]) + json.dumps(fields, default=bytes.hex).encode()


def test_a_refusal_is_cleaned_by_who_sends_it_and_checked_by_who_reads_it() -> None:
    said = replace(HELLO, refusal="a\x1b[31mred\nline " + "x" * 1000)
    found = decode_hello(encode_hello(said)).refusal
    assert found.startswith("a?[31mred line xxx") and len(found) == 300
    for bad in ("a\x1b[31mred", "x" * 301):
        with pytest.raises(Malformed, match="a refusal that is out of bounds or not printable"):
            decode_hello(raw_hello(refusal=bad))


def test_another_protocol_is_named() -> None:
    for number in (1, PROTOCOL - 1, PROTOCOL + 1):  # of earlier releases too
        with pytest.raises(OtherRelease, match=f"of protocol {number}, this release speaks {PROTOCOL}"):
            decode_hello(bytes([MARK, number]) + b"anything")


def test_a_letter_without_an_envelope_is_malformed() -> None:
    with pytest.raises(Malformed, match="a letter without an envelope"):
        decode_letter(b"")
    with pytest.raises(Malformed, match="an envelope that cannot be parsed"):
        decode_letter(bytes(4) + b"payload")


# Settings.


def test_equal_settings_do_not_differ() -> None:
    one, two = to_json("settings", {"b": [1, None], "a": 2}), to_json("settings", {"a": 2, "b": [1, None]})
    assert one == two
    assert differences("bank", one, "shop", two) is None


@pytest.mark.parametrize(
    ("mine", "theirs", "text"),
    [
        ({"Q": 10}, {"Q": 5}, "bank runs Q=10, shop runs Q=5"),
        ({"scheme": "ckks"}, {"scheme": "paillier"}, "bank runs scheme=ckks, shop runs scheme=paillier"),
        ({"l2": 1}, {"l2": 1.0}, "bank runs l2=1, shop runs l2=1.0"),
        ({"l2": None}, {}, "bank runs l2=null, shop has no l2"),
        ({"a": 1, "b": 2}, {"a": 2, "b": 3}, "bank runs a=1, shop runs a=2; bank runs b=2, shop runs b=3"),
        ({"x": "y" * 200}, {"x": 1}, f"bank runs x={'y' * 77}..., shop runs x=1"),
    ],
)
def test_differences_name_the_setting_and_both_values(
    mine: dict[str, Any], theirs: dict[str, Any], text: str
) -> None:
    assert differences("bank", to_json("s", mine), "shop", to_json("s", theirs)) == text


@pytest.mark.parametrize("name", ["settings", "facts"])
@pytest.mark.parametrize("marks", ["[]", ('{"a":', "}")], ids=["lists", "objects"])
def test_deep_values_are_refused_before_anything_walks_through_them(
    name: str, marks: tuple[str, str]
) -> None:
    """At about 985 levels json could read them and could not write them."""

    def hello(depth: int) -> bytes:
        text = marks[0] * (depth - 1) + "1" + marks[1] * (depth - 1)
        return encode_hello(replace(HELLO, **{name: f'{{"x": {text}}}'}))

    decode_hello(hello(MOST_NESTED))
    for depth in (MOST_NESTED + 1, *range(900, 1010), 3000):
        with pytest.raises(Malformed, match=f"the {name} of a hello"):
            decode_hello(hello(depth))


def test_settings_are_bounded() -> None:
    with pytest.raises(SettingError, match="settings: 300012 bytes as JSON, at most 262144"):
        to_json("settings", {"text": "x" * 300_000})


# Order, sizes and counts.

LIMITS = Limits(message_bytes=1000, queued_bytes=2000, queued_messages=4)


def parcel(size: int) -> Parcel:
    return Parcel("bank", replace(ENVELOPE, size=size))


@given(st.binary(max_size=50), st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=20))
def test_pieces_in_any_order_and_twice_make_the_message(whole: bytes, cuts: list[tuple[int, int]]) -> None:
    """A sender goes on from what has arrived; a retry brings bytes again, or bytes that are not due yet."""
    due = parcel(len(whole))
    for start, length in cuts:
        before = due.size
        due.add(min(start, len(whole)), whole[start : start + length])
        assert before <= due.size <= len(whole)
        assert due.payload() == whole[: due.size]
    while due.size < len(whole):
        due.add(due.size, whole[due.size : due.size + 7])
    assert due.payload() == whole


def test_nothing_but_the_message_is_kept_of_a_piece() -> None:
    """A peer sends four megabytes of which a few bytes are new, again and again."""
    due, question = parcel(10_000), bytearray(10_000)
    for end in range(100, 10_000, 100):
        due.add(0, memoryview(question)[:end])
        question.append(0)  # no view of it is left, or this raises
    assert due.size == 9_900


def test_more_than_was_announced_is_refused() -> None:
    for offset, piece in ((0, bytes(11)), (10, b"x"), (2**61, b"x")):
        with pytest.raises(LimitExceeded, match="more than the 10 bytes that it announced for message 7"):
            parcel(10).add(offset, piece)


def put(inbox: Inbox, sequence: int, size: int = 1) -> None:
    envelope = replace(ENVELOPE, sequence=sequence, size=size)
    assert inbox.expects(envelope)
    inbox.put(envelope, envelope.message(bytes(size), Path()), 0.0)


@given(st.lists(st.integers(0, 5), max_size=20))
def test_exactly_the_message_that_is_due_is_taken(sequences: list[int]) -> None:
    inbox, due = Inbox("bank", LIMITS), 0
    for sequence in sequences:
        envelope = replace(ENVELOPE, sequence=sequence)
        try:
            fresh = inbox.expects(envelope)
        except OutOfOrder as error:
            assert sequence not in (due, due - 1)
            assert isinstance(error, Repeated) == (sequence < due)
            word = "again" if sequence < due else "too early"
            assert str(error) == f"bank sent message {sequence} {word}; message {due} is due"
            continue
        assert fresh == (sequence == due)
        if fresh:
            inbox.put(envelope, envelope.message(b"x" * envelope.size, Path()), 0.0)
            due += 1
    taken = []
    while (found := inbox.take()) is not None:
        taken.append(found[0].sequence)
    assert taken == list(range(due))


def test_the_last_number_with_other_contents_is_a_replay() -> None:
    inbox = Inbox("bank", LIMITS)
    put(inbox, 0)
    for change in ({"kind": "answer"}, {"round": 9}, {"step": 9}, {"size": 9}):
        with pytest.raises(OutOfOrder, match="message 0 again, with another content; message 1 is due"):
            inbox.expects(replace(ENVELOPE, **({"sequence": 0, "size": 1} | change)))
    assert not inbox.expects(replace(ENVELOPE, sequence=0, size=1))


def test_room_is_counted_in_bytes_and_messages() -> None:
    inbox = Inbox("bank", LIMITS)
    assert inbox.has_room(1000)
    put(inbox, 0, 1000)
    put(inbox, 1, 900)
    assert inbox.has_room(100)
    assert not inbox.has_room(101)
    put(inbox, 2, 0)
    put(inbox, 3, 0)
    assert not inbox.has_room(0)
    inbox.take()
    assert inbox.has_room(1000)


def test_a_message_under_way_goes_on_and_no_other_takes_its_place() -> None:
    inbox = Inbox("bank", LIMITS)
    first = inbox.begin(replace(ENVELOPE, sequence=0))
    assert inbox.begin(replace(ENVELOPE, sequence=0, offset=5, departure=Path(9.0, 9.0))) is first
    with pytest.raises(OutOfOrder, match="message 0 again, with another content"):
        inbox.begin(replace(ENVELOPE, sequence=0, size=9))
