"""Encoding and decoding of messages. Decoding raises `Malformed` or returns a value within bounds.

The schema is wire.proto. The rest of the transport works with the values here, so all input from peers is
checked before use.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from securefed.errors import SettingError, plain_text
from securefed.transport.message import Malformed, Message, OtherRelease, Path
from securefed.transport.network import wire_pb2
from securefed.transport.network.host import HELLO_BYTES, MOST_REFUSAL

PROTOCOL = 3
SESSION_BYTES = 16
DIGEST_BYTES = 32
MOST_NAME = 128
MOST_PARTIES = 256
MOST_DIFFERENCES = 10
MOST_SEQUENCE = 1 << 62

ABSENT, GREETING, RUNNING, FINISHED, LEFT = range(5)


@dataclass(frozen=True)
class Hello:
    """A party's statement about itself."""

    run: str
    sender: str
    receiver: str
    session: bytes
    state: int
    settings: bytes
    facts: bytes
    sessions: Mapping[str, bytes]
    clock: float
    reason: str = ""
    refusal: str = ""
    heard: int = ABSENT
    """The receiver's state as the sender last heard it, which confirms arrival."""
    arrived: int = 0
    """Bytes that its sender has seen on the receiver's connections for messages."""
    holding: bool = False
    """The sender currently has no room for the receiver's next message."""

    @property
    def is_short(self) -> bool:
        """Whether it lacks settings and facts. A peer in the same attempt already has them."""
        return not self.settings


@dataclass(frozen=True)
class Envelope:
    """A message without its payload. `departure` is the sender's clock when the link was free for it."""

    run: str
    sender: str
    receiver: str
    attempt: bytes
    settings: bytes
    sequence: int
    kind: str
    round: int
    step: int
    size: int
    departure: Path

    def message(self, payload: bytes, arrival: Path) -> Message:
        return Message(
            self.kind,
            self.run,
            self.round,
            self.step,
            self.sender,
            self.receiver,
            self.sequence,
            payload,
            arrival,
        )

    @property
    def identity(self) -> tuple[object, ...]:
        """What all tries of one message have in common: everything but the clock."""
        return (self.sequence, self.kind, self.round, self.step, self.size)


def to_json(name: str, value: Mapping[str, Any]) -> bytes:
    """Return one text for equal values: sorted, without NaN."""
    try:
        data = json.dumps(dict(value), sort_keys=True, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise SettingError(f"{name}: not something that JSON can hold ({error})") from None
    if len(data) > HELLO_BYTES // 4:
        raise SettingError(f"{name}: {len(data)} bytes as JSON, at most {HELLO_BYTES // 4} are allowed")
    return data


def from_json(name: str, data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise Malformed(f"{name} are not JSON") from None
    if not isinstance(value, dict):
        raise Malformed(f"{name} are not a JSON object")
    return value


def attempt_name(run: str, settings_digest: bytes, sessions: Mapping[str, bytes]) -> bytes:
    """Return the name of an attempt: SHA-256 over the run, the settings and the sessions."""
    taking_part = sorted([name, session.hex()] for name, session in sessions.items())
    return hashlib.sha256(json.dumps([run, settings_digest.hex(), taking_part]).encode()).digest()


def differences(name: str, mine: bytes, peer: str, theirs: bytes) -> str | None:
    """Return which settings differ and how, or None: `shop runs local_steps=5, bank runs local_steps=10`."""
    if mine == theirs:
        return None
    own, others = from_json("settings", mine), from_json("settings", theirs)
    parts = []
    sides = ((name, own), (peer, others))
    for key in sorted({*own, *others}):
        # As text, because the digests are over text: 1 and 1.0 are not the same setting.
        if len({json.dumps(values[key], sort_keys=True) if key in values else "" for _, values in sides}) > 1:
            shown = plain_text(key, 40)
            parts.append(
                ", ".join(
                    f"{who} runs {shown}={_short(values[key])}" if key in values else f"{who} has no {shown}"
                    for who, values in sides
                )
            )
    return "; ".join(parts[:MOST_DIFFERENCES]) or None


def _short(value: object) -> str:
    return plain_text(json.dumps(value) if not isinstance(value, str) else value, 80)


def encode_hello(hello: Hello) -> bytes:
    message = wire_pb2.Hello(
        protocol=PROTOCOL,
        run=hello.run,
        sender=hello.sender,
        receiver=hello.receiver,
        session=hello.session,
        state=wire_pb2.State.Name(hello.state),
        settings=hello.settings,
        facts=hello.facts,
        sessions=dict(hello.sessions),
        clock=hello.clock,
        reason=hello.reason,
        refusal=plain_text(hello.refusal, MOST_REFUSAL),
        heard=wire_pb2.State.Name(hello.heard),
        arrived=hello.arrived,
        holding=hello.holding,
    )
    return bytes(message.SerializeToString())


def decode_hello(data: bytes) -> Hello:
    if len(data) > HELLO_BYTES:
        raise Malformed(f"a hello of {len(data)} bytes, at most {HELLO_BYTES} are allowed")
    hello = wire_pb2.Hello()
    _parse(hello, data, "a hello")
    if hello.protocol == 0:
        raise Malformed("a hello without a protocol number")
    if hello.protocol != PROTOCOL:
        raise OtherRelease(
            f"a hello of protocol {hello.protocol}, this release speaks {PROTOCOL}; "
            "all parties need the same release of securefed"
        )
    for state in (hello.state, hello.heard):
        if not ABSENT <= state <= LEFT:
            raise Malformed(f"a hello with the unknown state {state}")
    if len(hello.session) != SESSION_BYTES and hello.state != ABSENT:
        raise Malformed(f"a hello with a session of {len(hello.session)} bytes, {SESSION_BYTES} are needed")
    if len(hello.sessions) > MOST_PARTIES:
        raise Malformed(f"a hello with {len(hello.sessions)} sessions, at most {MOST_PARTIES} are allowed")
    if not math.isfinite(hello.clock):
        raise Malformed("a hello with a clock that is not a number")
    if len(hello.reason) > MOST_NAME or not hello.reason.isprintable():
        raise Malformed("a hello with a reason that is too long or not printable")
    if len(hello.refusal) > MOST_REFUSAL or not hello.refusal.isprintable():
        raise Malformed("a hello with a refusal that is too long or not printable")
    short = hello.state in (RUNNING, FINISHED, LEFT) and not (hello.settings or hello.facts)
    if hello.state != ABSENT and not short:
        from_json("the settings of a hello", hello.settings)
        from_json("the facts of a hello", hello.facts)
    return Hello(
        run=_name("run", hello.run),
        sender=_name("sender", hello.sender),
        receiver=_name("receiver", hello.receiver),
        session=hello.session,
        state=int(hello.state),
        settings=hello.settings,
        facts=hello.facts,
        sessions=dict(hello.sessions),
        clock=hello.clock,
        reason=hello.reason,
        refusal=hello.refusal,
        heard=int(hello.heard),
        arrived=int(hello.arrived),
        holding=bool(hello.holding),
    )


def encode_envelope(envelope: Envelope) -> bytes:
    return bytes(wire_pb2.Chunk(envelope=_envelope(envelope)).SerializeToString())


def encode_letter(envelope: Envelope, data: bytes) -> bytes:
    return bytes(wire_pb2.Letter(envelope=_envelope(envelope), data=data).SerializeToString())


def _envelope(envelope: Envelope) -> wire_pb2.Envelope:
    return wire_pb2.Envelope(
        run=envelope.run,
        sender=envelope.sender,
        receiver=envelope.receiver,
        attempt=envelope.attempt,
        settings=envelope.settings,
        sequence=envelope.sequence,
        kind=envelope.kind,
        round=envelope.round,
        step=envelope.step,
        size=envelope.size,
        computation=envelope.departure.computation,
        communication=envelope.departure.communication,
    )


def encode_data(data: bytes) -> bytes:
    return bytes(wire_pb2.Chunk(data=data).SerializeToString())


def decode_chunk(data: bytes) -> Envelope | bytes:
    """Parse the envelope that a message begins with, or a piece of its payload."""
    chunk = wire_pb2.Chunk()
    _parse(chunk, data, "a chunk")
    part = chunk.WhichOneof("part")
    if part == "data":
        return bytes(chunk.data)
    if part != "envelope":
        raise Malformed("a chunk with nothing in it")
    return _checked(chunk.envelope)


def decode_letter(data: bytes) -> tuple[Envelope, bytes]:
    letter = wire_pb2.Letter()
    _parse(letter, data, "a letter")
    if not letter.HasField("envelope"):
        raise Malformed("a letter without an envelope")
    return _checked(letter.envelope), bytes(letter.data)


def _checked(envelope: wire_pb2.Envelope) -> Envelope:
    for name in ("attempt", "settings"):
        if len(getattr(envelope, name)) != DIGEST_BYTES:
            raise Malformed(f"an envelope whose {name} is not a digest of {DIGEST_BYTES} bytes")
    if envelope.sequence >= MOST_SEQUENCE:
        raise Malformed(f"an envelope with sequence number {envelope.sequence}")
    for name in ("computation", "communication"):
        if not (math.isfinite(value := getattr(envelope, name)) and value >= 0):
            raise Malformed(f"an envelope with a clock of {value} seconds of {name}")
    return Envelope(
        run=_name("run", envelope.run),
        sender=_name("sender", envelope.sender),
        receiver=_name("receiver", envelope.receiver),
        attempt=envelope.attempt,
        settings=envelope.settings,
        sequence=envelope.sequence,
        kind=_name("kind", envelope.kind),
        round=envelope.round,
        step=envelope.step,
        size=envelope.size,
        departure=Path(envelope.computation, envelope.communication),
    )


def encode_receipt(sequence: int, *, again: bool) -> bytes:
    return bytes(wire_pb2.Receipt(sequence=sequence, again=again).SerializeToString())


def decode_receipt(data: bytes) -> tuple[int, bool]:
    receipt = wire_pb2.Receipt()
    _parse(receipt, data, "a receipt")
    return int(receipt.sequence), bool(receipt.again)


def _parse(into: Any, data: bytes, what: str) -> None:
    try:
        into.ParseFromString(data)
    except DecodeError:
        raise Malformed(f"{what} that cannot be parsed ({len(data)} bytes)") from None


def _name(what: str, text: str) -> str:
    if len(text) > MOST_NAME or not text.isprintable():
        raise Malformed(f"a {what} that is too long or not printable")
    return text
