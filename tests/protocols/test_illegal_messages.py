"""Illegal messages are refused by name, whatever they replace and at every stage of every run.

A clean run says which messages there are. Then the run is made again for each of them and each way to spoil
it, by a tap on the wire.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securefed.crypto import FixedPoint, KeyHolder, generate, load_public_key
from securefed.crypto.wire import HEADER, Frame, Kind
from securefed.errors import (
    BadKey,
    CryptoError,
    DataError,
    FormatError,
    MaskError,
    OpeningRefused,
    SecurefedError,
    SettingError,
    ShapeError,
    WrongKey,
)
from securefed.labels.quality import HeldOut
from securefed.protocols.messages import KINDS
from securefed.transport.message import (
    IllegalMessage,
    Message,
    OutOfOrder,
    WrongKind,
    WrongRound,
    WrongRun,
    WrongSender,
)
from tests.protocols import federation
from tests.protocols.federation import FULL_KEYS, KEYS, Keys, Recorder, blobs, split
from tests.protocols.scenarios import SCENARIOS, Scenario, training, transfer_training

Change = Callable[[Message], Message | None]


class Tamper:
    """A tap that replaces one message, by its number on the wire."""

    def __init__(self, number: int, change: Change) -> None:
        self._number, self._change = number, change
        self._passed: list[Message] = []
        self.done = False

    def __call__(self, message: Message) -> Message:
        self._passed.append(message)
        if len(self._passed) - 1 != self._number:
            return message
        changed = self._change(message)
        self.done = changed is not None
        return changed or message


def spoilt(scenario: Scenario, number: int, change: Change) -> Exception | None:
    """What the run raises with that message changed; None if the change does not apply to it."""
    tamper = Tamper(number, change)
    try:
        scenario.run(tap=tamper)
    except SecurefedError as error:
        assert tamper.done, f"an error before anything was changed: {error}"
        assert "\n" not in str(error)
        return error
    assert not tamper.done, "a changed message was taken"
    return None


def clean(scenario: Scenario) -> list[Message]:
    recorder = Recorder()
    scenario.run(tap=recorder)
    return recorder.messages


def first_of_each_kind(messages: list[Message]) -> list[int]:
    kinds = [m.kind for m in messages]
    return sorted(kinds.index(kind) for kind in set(kinds))


def all_of_a_round(messages: list[Message]) -> list[int]:
    """Every message of the last round, and those from before the first."""
    places = {(m.kind, m.sender, m.receiver, m.step): number for number, m in enumerate(messages)}
    return sorted(places.values())


# In plain a run takes milliseconds: the slow tests spoil every message of a round.
MESSAGES = pytest.mark.parametrize(
    "choose", [first_of_each_kind, pytest.param(all_of_a_round, marks=pytest.mark.slow)]
)
Choice = Callable[[list[Message]], list[int]]


# The envelope.


def another_kind(message: Message) -> Message:
    kinds = sorted(KINDS)
    return dataclasses.replace(message, kind=kinds[(kinds.index(message.kind) + 1) % len(kinds)])


ENVELOPES: dict[str, tuple[Change, type[SecurefedError]]] = {
    "kind": (another_kind, WrongKind),
    "unknown kind": (lambda m: dataclasses.replace(m, kind="gradient"), WrongKind),
    "later round": (lambda m: dataclasses.replace(m, round=m.round + 1), WrongRound),
    "earlier round": (lambda m: dataclasses.replace(m, round=m.round - 1), WrongRound),
    "step": (lambda m: dataclasses.replace(m, step=m.step + 1), WrongRound),
    "sender": (lambda m: dataclasses.replace(m, sender=m.receiver), WrongSender),
    "stranger": (lambda m: dataclasses.replace(m, sender="mallory"), WrongSender),
    "receiver": (lambda m: dataclasses.replace(m, receiver="mallory"), WrongSender),
    "run": (lambda m: dataclasses.replace(m, run="run-0"), WrongRun),
    "skipped": (lambda m: dataclasses.replace(m, sequence=m.sequence + 1), OutOfOrder),
    "again": (lambda m: dataclasses.replace(m, sequence=m.sequence - 1), OutOfOrder),
}


@MESSAGES
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_an_envelope_that_is_not_due_is_refused(scenario: str, choose: Choice) -> None:
    """One field changed in each message, the fields in turn: the function that checks them has its own tests
    (tests/transport/test_link.py), and here it is seen that no message gets past it.
    """
    changes = cycle(ENVELOPES.values())
    for number in choose(clean(SCENARIOS[scenario](KEYS, "plain"))):
        change, expected = next(changes)
        assert isinstance(spoilt(SCENARIOS[scenario](KEYS, "plain"), number, change), expected)


@MESSAGES
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_replayed_message_is_refused(scenario: str, choose: Choice) -> None:
    """The bytes of an earlier message between the same two, exactly as they were."""
    messages = clean(SCENARIOS[scenario](KEYS, "plain"))
    for number in choose(messages):
        message = messages[number]
        earlier = [
            m for m in messages[:number] if (m.sender, m.receiver) == (message.sender, message.receiver)
        ]
        if earlier:
            error = spoilt(SCENARIOS[scenario](KEYS, "plain"), number, lambda m, e=earlier[-1]: e)  # type: ignore[misc]
            assert isinstance(error, OutOfOrder)


# The payload.

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda p: b"",
    "cut by a byte": lambda p: p[:-1],
    "cut in half": lambda p: p[: len(p) // 2],
    "longer": lambda p: p + b"\0",
    "zeros": lambda p: bytes(len(p)),
    "not a frame": lambda p: b"\xff" * max(2, len(p)),
    "one bit": lambda p: p[:-1] + bytes([p[-1] ^ 0x80]),
}


@MESSAGES
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_damaged_payload_is_refused(scenario: str, choose: Choice) -> None:
    """The first message of each kind in every way; the others of a round in one, the ways in turn."""

    def change(message: Message, damage: Callable[[bytes], bytes]) -> Message | None:
        damaged = damage(message.payload)
        # A verdict is one byte, and this byte is another verdict: nothing for a receiver to notice.
        legal = message.kind == "verdict" and len(damaged) == 1 and damaged[0] < 4
        return None if legal else dataclasses.replace(message, payload=damaged)

    messages = clean(SCENARIOS[scenario](KEYS, "plain"))
    ways = cycle(DAMAGE.values())
    for number in choose(messages):
        for damage in DAMAGE.values() if choose is first_of_each_kind else [next(ways)]:
            spoil = partial(change, damage=damage)
            message, error = messages[number], spoilt(SCENARIOS[scenario](KEYS, "plain"), number, spoil)
            if error is not None:
                assert isinstance(error, IllegalMessage if message.kind == "verdict" else CryptoError)


@pytest.mark.parametrize("scheme", ["paillier", "ckks"])
@settings(max_examples=10)
@given(data=st.data())
@pytest.mark.slow
def test_a_payload_damaged_anywhere_is_refused(scheme: str, data: st.DataObject) -> None:
    """Flipped bits and cuts at any place of any message of prediction runs, which are short."""
    name = data.draw(st.sampled_from(["prediction, pair", "prediction, transfer"]))
    messages = clean(SCENARIOS[name](KEYS, scheme))
    number = data.draw(st.integers(0, len(messages) - 1))
    place = data.draw(st.integers(0, messages[number].size - 1))
    cut = data.draw(st.booleans())

    def change(message: Message) -> Message:
        at = min(place, message.size - 1)  # Paillier frames of one kind are equally long
        flipped = bytes([message.payload[at] ^ data.draw(st.integers(1, 255))])
        rest = b"" if cut else flipped + message.payload[at + 1 :]
        return dataclasses.replace(message, payload=message.payload[:at] + rest)

    assert isinstance(spoilt(SCENARIOS[name](KEYS, scheme), number, change), CryptoError)


# Well-formed payloads of the wrong content, made by somebody who knows all keys.

FIXED = FixedPoint(bound=1.0)


def frame_kind(payload: bytes) -> Kind:
    return Kind(payload[5])


def forged(payload: bytes, holder: KeyHolder, shape: tuple[int, ...]) -> bytes:
    """A frame of the same kind, under that key-holder's key, of an array of that shape."""
    encrypted = holder.public.encrypt(np.zeros(shape), FIXED)
    kind = frame_kind(payload)
    if kind is Kind.ENCRYPTED:
        return encrypted.to_bytes()
    masked, _ = encrypted.mask()
    return masked.to_bytes() if kind is Kind.MASKED else holder.open(masked).to_bytes()


def owner(scenario: Scenario, frame: Frame) -> KeyHolder:
    return next(holder for holder in scenario.holders.values() if holder.public.key_id == frame.key)


def other_shapes(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    yield (shape[0] + 1, *shape[1:])
    yield (*shape, 1) if len(shape) == 1 else (shape[0], shape[1] + 1)
    yield (1,)


ARRAYS = {"contribution", "residual", "opening-request", "opening", "score-part", "score-request"}
ARRAYS |= {"score-opening", "score-model"}


ENCRYPTED = {
    "prediction, pair": (),
    "prediction, transfer": (),
    "star": pytest.mark.slow,
    "transfer": pytest.mark.slow,
}
"""Runs that have every kind of message between them; in plain all runs are tried."""
CELLS = [
    *(pytest.param("plain", name) for name in SCENARIOS),
    *(
        pytest.param(scheme, name, marks=marks)
        for scheme in ("paillier", "ckks")
        for name, marks in ENCRYPTED.items()
    ),
]


def test_the_runs_that_are_tried_under_encryption_have_every_kind_of_array() -> None:
    assert {m.kind for name in ENCRYPTED for m in clean(SCENARIOS[name](KEYS, "plain"))} >= ARRAYS


@pytest.mark.parametrize(("scheme", "scenario"), CELLS)
def test_an_array_of_another_shape_is_refused(scheme: str, scenario: str, keys: Keys) -> None:
    messages = clean(SCENARIOS[scenario](keys, scheme))
    for number in first_of_each_kind(messages):
        if messages[number].kind not in ARRAYS:
            continue
        found = Frame.from_bytes(messages[number].payload, frame_kind(messages[number].payload)).shape
        others = [shape for shape in other_shapes(found) if shape != found]
        for shape in others if scheme == "plain" else others[:1]:
            again = SCENARIOS[scenario](keys, scheme)

            def change(message: Message, shape: tuple[int, ...] = shape, made: Scenario = again) -> Message:
                frame = Frame.from_bytes(message.payload, frame_kind(message.payload))
                payload = forged(message.payload, owner(made, frame), shape)
                return dataclasses.replace(message, payload=payload)

            error = spoilt(again, number, change)
            assert isinstance(error, ShapeError | MaskError), (messages[number], shape, error)


@pytest.mark.parametrize(("scheme", "scenario"), CELLS)
def test_an_array_under_another_key_is_refused(scheme: str, scenario: str, keys: Keys) -> None:
    stranger = keys.holder(scheme, 7)
    messages = clean(SCENARIOS[scenario](keys, scheme))
    for number in first_of_each_kind(messages):
        if messages[number].kind not in ARRAYS:
            continue

        def change(message: Message) -> Message:
            frame = Frame.from_bytes(message.payload, frame_kind(message.payload))
            return dataclasses.replace(message, payload=forged(message.payload, stranger, frame.shape))

        assert isinstance(spoilt(SCENARIOS[scenario](keys, scheme), number, change), WrongKey)


@pytest.mark.parametrize(("scheme", "scenario"), CELLS)
def test_a_frame_of_another_kind_is_refused(scheme: str, scenario: str, keys: Keys) -> None:
    """A ciphertext where a masked block is due would be opened to the one who asks."""
    made = SCENARIOS[scenario](keys, scheme)
    messages = clean(made)
    public = next(m for m in messages if m.kind == "public-key").payload
    encrypted = next(m for m in messages if frame_kind(m.payload) is Kind.ENCRYPTED).payload
    for number in first_of_each_kind(messages):
        kind = messages[number].kind
        if kind in ARRAYS | {"public-key"}:
            wrong = encrypted if frame_kind(messages[number].payload) is not Kind.ENCRYPTED else public
            error = spoilt(
                SCENARIOS[scenario](keys, scheme),
                number,
                lambda m, w=wrong: dataclasses.replace(m, payload=w),  # type: ignore[misc]
            )
            assert isinstance(error, FormatError)


@pytest.mark.parametrize(
    ("scheme", "scenario"),
    [
        ("paillier", "pair"),
        ("ckks", "transfer"),
        pytest.param("paillier", "star", marks=pytest.mark.slow),
        pytest.param("ckks", "star", marks=pytest.mark.slow),
    ],
)
def test_the_answer_to_another_question_is_refused(scheme: str, scenario: str, keys: Keys) -> None:
    """An opening of the round before, in an envelope of this round."""
    passed: dict[str, list[Message]] = {}

    def change(message: Message) -> Message:
        return dataclasses.replace(message, payload=passed[message.receiver][0].payload)

    messages = clean(SCENARIOS[scenario](keys, scheme))
    number = max(n for n, m in enumerate(messages) if m.kind == "opening")
    made = SCENARIOS[scenario](keys, scheme)
    tamper = Tamper(number, change)

    def tap(message: Message) -> Message:
        if message.kind == "opening":
            passed.setdefault(message.receiver, []).append(message)
        return tamper(message)

    with pytest.raises(MaskError):
        made.run(tap=tap)


@pytest.mark.parametrize(
    ("scheme", "scenario"),
    [
        *(("plain", scenario) for scenario in ("pair", "star", "transfer")),
        ("paillier", "pair"),
        ("ckks", "star"),
        ("ckks", "transfer"),
    ],
)
def test_asking_twice_for_the_same_opening_is_refused(scheme: str, scenario: str, keys: Keys) -> None:
    """A request of the round before, in an envelope of this round: two answers under one mask differ by what
    they hide.
    """
    first: dict[str, bytes] = {}

    def tap(message: Message) -> Message:
        if message.kind != "opening-request":
            return message
        return dataclasses.replace(message, payload=first.setdefault(message.sender, message.payload))

    with pytest.raises(OpeningRefused):
        SCENARIOS[scenario](keys, scheme).run(tap=tap)


# Keys.


def with_key(blob: bytes) -> Change:
    return lambda message: dataclasses.replace(message, payload=blob)


@pytest.mark.parametrize("scenario", ["pair", "star", "transfer", "prediction, pair", "prediction, transfer"])
def test_a_key_of_another_scheme_does_not_turn_the_run_into_another(scenario: str, keys: Keys) -> None:
    for scheme, other in (
        ("ckks", "plain"),
        ("ckks", "paillier"),
        ("paillier", "plain"),
        ("plain", "paillier"),
    ):
        error = spoilt(
            SCENARIOS[scenario](keys, scheme), 0, with_key(FULL_KEYS.holder(other, 7).public.to_bytes())
        )
        assert isinstance(error, SettingError)
        assert scheme in str(error) and other in str(error)


def test_a_key_that_is_too_small_is_refused(keys: Keys) -> None:
    small = generate("paillier", key_bits=512, allow_small=True).public.to_bytes()
    features, labels = blobs(6, 2)
    made = federation.linear(split(features, 2), labels, FULL_KEYS, scheme="paillier")
    made.read_key = load_public_key  # which takes no small keys
    for scenario in (training(made), SCENARIOS["prediction, pair"](keys, "paillier")):
        assert isinstance(spoilt(scenario, 0, with_key(small)), BadKey)


@pytest.mark.parametrize("scheme", ["plain", "paillier", "ckks"])
@pytest.mark.parametrize("scenario", ["pair", "star", "transfer", "prediction, star"])
def test_somebody_elses_key_is_noticed(scheme: str, scenario: str, keys: Keys) -> None:
    """A good key of nobody in the run: what comes under the right one does not fit it."""
    stranger = FULL_KEYS.holder(scheme, 7).public.to_bytes()
    assert isinstance(spoilt(SCENARIOS[scenario](keys, scheme), 0, with_key(stranger)), WrongKey)


@pytest.mark.parametrize(
    ("scheme", "scenario"), [("paillier", "pair"), ("ckks", "transfer"), ("ckks", "prediction, transfer")]
)
def test_two_parties_with_one_key_are_refused(scheme: str, scenario: str, keys: Keys) -> None:
    """A folder of keys that was copied: each could read what the other sends."""
    clean = Recorder()
    SCENARIOS[scenario](keys, scheme).run(tap=clean)
    first, second = clean.of("public-key")
    error = spoilt(SCENARIOS[scenario](keys, scheme), 0, with_key(second.payload))
    assert isinstance(error, SettingError)
    assert f"{first.sender} sent the key that is held here too" in str(error)


# Scores of the transfer objective: a masked block and its disclosure in one message.

SIZE = struct.Struct("<Q")


def parts(payload: bytes) -> tuple[bytes, bytes]:
    (length,) = SIZE.unpack_from(payload)
    return payload[SIZE.size : SIZE.size + length], payload[SIZE.size + length :]


def joined(masked: bytes, disclosure: bytes) -> bytes:
    return SIZE.pack(len(masked)) + masked + disclosure


@pytest.mark.parametrize("scheme", ["paillier", "ckks"])
@pytest.mark.parametrize(
    "scenario", [pytest.param("transfer", marks=pytest.mark.slow), "prediction, transfer"]
)
def test_scores_that_do_not_fit_are_refused(scheme: str, scenario: str, keys: Keys) -> None:
    messages = clean(SCENARIOS[scenario](keys, scheme))
    number = next(n for n, m in enumerate(messages) if m.kind == "scores")
    masked, disclosure = parts(messages[number].payload)
    made = SCENARIOS[scenario](keys, scheme)
    frame = Frame.from_bytes(masked, Kind.MASKED)
    stranger = keys.holder(scheme, 7)
    longer = forged(masked, owner(made, frame), (frame.shape[0] + 1,))
    changes: dict[
        str, tuple[Callable[[Message], bytes], type[SecurefedError] | tuple[type[SecurefedError], ...]]
    ]
    changes = {
        "no disclosure": (lambda m: joined(parts(m.payload)[0], b""), FormatError),
        "of another block": (lambda m: joined(parts(m.payload)[0], disclosure), MaskError),
        "another shape": (lambda m: joined(longer, parts(m.payload)[1]), (ShapeError, MaskError)),
        "another key": (
            lambda m: joined(forged(masked, stranger, frame.shape), parts(m.payload)[1]),
            WrongKey,
        ),
        "a length past the end": (lambda m: SIZE.pack(2**63) + m.payload[SIZE.size :], FormatError),
        "swapped": (lambda m: joined(parts(m.payload)[1], parts(m.payload)[0]), FormatError),
    }
    for what, (payload, expected) in changes.items():
        error = spoilt(
            SCENARIOS[scenario](keys, scheme),
            number,
            lambda m, p=payload: dataclasses.replace(m, payload=p(m)),  # type: ignore[misc]
        )
        assert isinstance(error, expected), what


@pytest.mark.parametrize("scheme", ["plain", "paillier", "ckks"])
def test_too_few_scores_are_noticed_by_the_one_who_evaluates(scheme: str, keys: Keys) -> None:
    """The label party knows how many labels it compares with; B might send another number of scores."""
    metric = HeldOut(np.array([1.0, -1.0, 1.0, 1.0, -1.0]), binary=True)
    made = transfer_training(keys, scheme, "parallel", metric)
    messages = clean(transfer_training(keys, scheme, "parallel", metric))
    number = next(n for n, m in enumerate(messages) if m.kind == "scores")

    def change(message: Message) -> Message:
        masked, _ = parts(message.payload)
        holder = owner(made, Frame.from_bytes(masked, Kind.MASKED))
        block, mask = holder.public.encrypt(np.zeros(2), FIXED).mask()
        return dataclasses.replace(message, payload=joined(block.to_bytes(), mask.disclose()))

    assert isinstance(spoilt(made, number, change), DataError | ShapeError)


def test_headers_are_where_these_tests_think(keys: Keys) -> None:
    payload = keys.holder("plain").public.to_bytes()
    assert frame_kind(payload) is Kind.PUBLIC_KEY
    assert len(payload) == HEADER.size + 16
