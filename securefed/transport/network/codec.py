"""Greetings, messages and receipts as bytes. Decoding raises `Malformed` or returns a value within bounds.

    GREET    hello -> hello      who is here, with what settings, at what point
    POST     letter -> receipt   a piece of a message: its envelope, and bytes of its payload

    hello    8 | protocol 1 | JSON
    letter   length 4 | envelope JSON | bytes of the payload
    receipt  JSON

The fields of a JSON object are those of the class here. Bytes are in hexadecimal. All calls run over mutual
TLS 1.3 (securefed.transport.network.calls). The certificate says who calls; `sender` has to agree with it.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, NoReturn, TypeVar

from securefed.errors import SettingError, plain_text
from securefed.transport.message import Malformed, Message, OtherRelease, Path
from securefed.transport.network.host import HELLO_BYTES, MOST_REFUSAL

PROTOCOL = 6
MARK = 8
"""The first byte of a hello. The second is the number of the protocol, in all releases."""
SESSION_BYTES = 16
DIGEST_BYTES = 32
MOST_NAME = 128
MOST_PARTIES = 256
MOST_DIFFERENCES = 10
MOST_NESTED = 32
"""Lists and objects inside each other in settings and facts. More overflow the stack of readers."""
MOST_NUMBER = 1 << 62
MOST_SECONDS = 1e10
"""More than any run takes. A receiver's clock follows the sender's, and larger sums may overflow."""
LENGTH = struct.Struct(">I")

ABSENT, GREETING, RUNNING, FINISHED, LEFT = range(5)

T = TypeVar("T")


@dataclass(frozen=True)
class Hello:
    """A party's statement about itself."""

    run: str
    sender: str
    receiver: str
    session: bytes
    """Random, new with every attempt at a run."""
    state: int
    """ABSENT: in no run. LEFT: its program ended, but not well."""
    settings: str
    """A JSON object that has to be equal at all parties."""
    facts: str
    """A JSON object: what each party tells the others."""
    sessions: Mapping[str, bytes]
    """The sessions that the sender knows, its own included."""
    clock: float
    """The sender's wall clock, in seconds since 1970."""
    reason: str = ""
    """With LEFT: the name of the error."""
    refusal: str = ""
    """With LEFT, if a message of the receiver was the reason: what was wrong with it."""
    heard: int = ABSENT
    """The receiver's state as the sender last heard it, which confirms arrival."""

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
    sequence: int
    kind: str
    round: int
    step: int
    size: int
    departure: Path
    offset: int = 0
    """Bytes of the payload before this piece."""

    def message(self, payload: bytes, arrival: Path) -> Message:
        place = (self.kind, self.run, self.round, self.step, self.sender, self.receiver, self.sequence)
        return Message(*place, payload, arrival)

    @property
    def identity(self) -> tuple[object, ...]:
        """What all pieces and all tries of one message have in common."""
        return (self.sequence, self.kind, self.round, self.step, self.size)


@dataclass(frozen=True)
class PieceReceipt:
    """The answer to a piece: how many bytes of its message have arrived."""

    sequence: int
    arrived: int
    room: bool
    """Without room nothing was taken. With room, a message of which all bytes have arrived is delivered."""


def to_json(name: str, value: Mapping[str, Any]) -> str:
    """Return one text for equal values: sorted, without NaN."""
    try:
        text = json.dumps(dict(value), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise SettingError(f"{name}: not something that JSON can hold ({error})") from None
    if len(text) > HELLO_BYTES // 4:
        raise SettingError(f"{name}: {len(text)} bytes as JSON, at most {HELLO_BYTES // 4} are allowed")
    return text


def from_json(name: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise Malformed(f"{name} are not JSON") from None
    if not isinstance(value, dict):
        raise Malformed(f"{name} are not a JSON object")
    if not _is_shallow(value, MOST_NESTED):
        raise Malformed(f"{name} have more than {MOST_NESTED} lists or objects inside each other")
    return value


def _is_shallow(value: Any, most: int) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return parts is None or (most > 0 and all(_is_shallow(part, most - 1) for part in parts))


def attempt_name(run: str, settings: str, sessions: Mapping[str, bytes]) -> bytes:
    """Return the name of an attempt: SHA-256 over the run, the settings and the sessions."""
    digest = hashlib.sha256(settings.encode()).hexdigest()
    taking_part = sorted([name, session.hex()] for name, session in sessions.items())
    return hashlib.sha256(json.dumps([run, digest, taking_part]).encode()).digest()


def differences(name: str, mine: str, peer: str, theirs: str) -> str | None:
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
    return bytes([MARK, PROTOCOL]) + _encode(
        {**vars(hello), "refusal": plain_text(hello.refusal, MOST_REFUSAL)}
    )


def decode_hello(data: bytes | bytearray) -> Hello:
    if len(data) > HELLO_BYTES:
        raise Malformed(f"a hello of {len(data)} bytes, at most {HELLO_BYTES} are allowed")
    if len(data) < 2 or data[0] != MARK:
        raise Malformed("a hello without a protocol number")
    if data[1] != PROTOCOL:
        raise OtherRelease(
            f"a hello of protocol {data[1]}, this release speaks {PROTOCOL}; "
            "all parties need the same release of securefed"
        )
    hello = _decode(Hello, "a hello", data[2:])
    for state in (hello.state, hello.heard):
        if not ABSENT <= state <= LEFT:
            raise Malformed(f"a hello with the unknown state {state}")
    if len(hello.session) != SESSION_BYTES and hello.state != ABSENT:
        raise Malformed(f"a hello with a session of {len(hello.session)} bytes, {SESSION_BYTES} are needed")
    if len(hello.sessions) > MOST_PARTIES:
        raise Malformed(f"a hello with {len(hello.sessions)} sessions, at most {MOST_PARTIES} are allowed")
    short = hello.state in (RUNNING, FINISHED, LEFT) and not (hello.settings or hello.facts)
    if hello.state != ABSENT and not short:
        from_json("the settings of a hello", hello.settings)
        from_json("the facts of a hello", hello.facts)
    return hello


def encode_letter(envelope: Envelope, data: bytes | memoryview) -> bytes:
    head = _encode(vars(envelope))
    return b"".join((LENGTH.pack(len(head)), head, data))


def decode_letter(data: bytes | bytearray) -> tuple[Envelope, memoryview]:
    if len(data) < LENGTH.size:
        raise Malformed("a letter without an envelope")
    end = LENGTH.size + LENGTH.unpack_from(data)[0]
    envelope = _decode(Envelope, "an envelope", data[LENGTH.size : end])
    if len(envelope.attempt) != DIGEST_BYTES:
        raise Malformed(f"an envelope whose attempt is not a digest of {DIGEST_BYTES} bytes")
    return envelope, memoryview(data)[end:]


def encode_receipt(receipt: PieceReceipt) -> bytes:
    return _encode(vars(receipt))


def decode_receipt(data: bytes | bytearray) -> PieceReceipt:
    return _decode(PieceReceipt, "a receipt", data)


def _encode(values: Mapping[str, Any]) -> bytes:
    return ENCODER.encode(values).encode()


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else [value.computation, value.communication]


def _refuse(text: str) -> NoReturn:
    raise ValueError(text)


ENCODER, DECODER = json.JSONEncoder(default=_plain), json.JSONDecoder(parse_constant=_refuse)


def _decode(cls: type[T], what: str, data: bytes | bytearray) -> T:
    try:
        values = DECODER.decode(data.decode())
    except (ValueError, RecursionError):
        raise Malformed(f"{what} that cannot be parsed ({len(data)} bytes)") from None
    readers = FORMS[cls]
    if not isinstance(values, dict) or values.keys() != readers.keys():
        raise Malformed(f"{what} without its fields, or with others")
    for name, read in readers.items():
        try:
            values[name] = read(values[name])
        except (AttributeError, TypeError, ValueError, OverflowError):
            raise Malformed(f"{what} with a {name} that is out of bounds or not printable") from None
    return cls(**values)


def _sound(value: Any, kind: type[T], holds: bool = True) -> T:
    if type(value) is not kind or not holds:
        raise ValueError
    return value


READERS: dict[str, Callable[[Any], Any]] = {
    "str": lambda text: _sound(text, str, len(text) <= MOST_NAME and text.isprintable()),
    "refusal": lambda text: _sound(text, str, len(text) <= MOST_REFUSAL and text.isprintable()),
    "settings": lambda text: _sound(text, str),
    "facts": lambda text: _sound(text, str),
    "bytes": lambda text: bytes.fromhex(_sound(text, str, len(text) <= MOST_NAME)),
    "bool": lambda flag: _sound(flag, bool),
    "int": lambda count: _sound(count, int, 0 <= count < MOST_NUMBER),
    "float": lambda number: _sound(float(number), float, math.isfinite(number)),
    "Path": lambda pair: Path(*(_sound(float(each), float, 0 <= each < MOST_SECONDS) for each in pair)),
    "Mapping[str, bytes]": lambda parts: {
        READERS["str"](name): READERS["bytes"](part) for name, part in parts.items()
    },
}
"""How fields are read: by their names, or by their types. What they raise means that a field is malformed."""
FORMS: dict[type[Any], dict[str, Callable[[Any], Any]]] = {
    cls: {field.name: READERS.get(field.name, READERS[str(field.type)]) for field in fields(cls)}
    for cls in (Hello, Envelope, PieceReceipt)
}
