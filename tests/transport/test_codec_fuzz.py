"""Many wrong bytes: each is decoded to a value within bounds or `Malformed`, quickly and in little memory.

Inputs are valid frames that were cut, spliced, repeated, flipped or given huge lengths, well-formed ones with
odd values in their fields, and random bytes. Every input goes to every decoder. What comes out goes on to
where the transport uses it: an attempt hears a hello and admits an envelope.
"""

from __future__ import annotations

import logging
import os
import random
import resource
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from securefed.transport.message import TransportError
from securefed.transport.network import Limits, Malformed, codec, wire_pb2
from securefed.transport.network.attempt import Attempt
from securefed.transport.network.codec import Envelope, Hello
from tests.transport.test_network_codec import ENVELOPE, HELLO

LIMITS = Limits(message_bytes=1 << 20, queued_bytes=1 << 21)
DECODERS: dict[str, Callable[[bytes], Any]] = {
    "hello": codec.decode_hello,
    "chunk": codec.decode_chunk,
    "letter": codec.decode_letter,
    "receipt": codec.decode_receipt,
}
DEEP = b'{"a":' * 3000 + b"1" + b"}" * 3000
SEEDS = [
    codec.encode_hello(HELLO),
    codec.encode_hello(replace(HELLO, state=codec.LEFT, reason="PeerLost shop", refusal="no\x1b[31m more")),
    codec.encode_hello(replace(HELLO, settings=b"", facts=b"", state=codec.RUNNING, arrived=1 << 60)),
    codec.encode_hello(replace(HELLO, facts=DEEP)),
    codec.encode_hello(replace(HELLO, settings=b'{"local_steps": 1e400, "x": [NaN, -Infinity]}')),
    codec.encode_hello(replace(HELLO, sessions={f"p{n}": bytes(16) for n in range(200)})),
    codec.encode_envelope(ENVELOPE),
    codec.encode_envelope(replace(ENVELOPE, size=2**64 - 1, sequence=2**62 - 1)),
    codec.encode_data(bytes(range(256)) * 8),
    codec.encode_letter(ENVELOPE, bytes(1000)),
    codec.encode_receipt(7, again=True),
]
HUGE = [b"\xff" * 9 + b"\x01", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07", b"\x80" * 20, b"\x00"]
"""Lengths and numbers as protobuf writes them, near and beyond its bounds."""


ODD: dict[str, list[Any]] = {
    "text": ["", "bank", "shop", "r", "x" * 129, "\x1b[31m", "\u202e", "a\nb", "\U0001f600" * 40],
    "bytes": [b"", bytes(16), bytes(32), bytes(33), b"{}", b"[]", DEEP, b'{"local_steps": 5}', b"\xff" * 100],
    "number": [0, 1, 2, 4, 2**31 - 1, 2**53, 2**62, 2**63 - 1],
    "clock": [0.0, -1.0, 1e308, float("nan"), float("inf"), -float("inf"), 5e-324],
}
"""Values for fields of each type."""


def odd(rng: random.Random) -> bytes:
    """A well-formed hello or envelope with unusual values in some fields."""
    if rng.random() < 0.5:
        message: Any = wire_pb2.Hello.FromString(SEEDS[0])
        types = {"run": "text", "sender": "text", "receiver": "text", "session": "bytes", "settings": "bytes"}
        types |= {
            "facts": "bytes",
            "clock": "clock",
            "reason": "text",
            "refusal": "text",
            "arrived": "number",
        }
    else:
        message = wire_pb2.Chunk.FromString(codec.encode_envelope(ENVELOPE)).envelope
        types = {"run": "text", "sender": "text", "receiver": "text", "attempt": "bytes", "settings": "bytes"}
        types |= {"sequence": "number", "kind": "text", "round": "number", "step": "number", "size": "number"}
        types |= {"computation": "clock", "communication": "clock"}
    for name in rng.sample(sorted(types), rng.choice([1, 1, 2])):
        setattr(message, name, rng.choice(ODD[types[name]]))
    if isinstance(message, wire_pb2.Hello):
        message.state = rng.randrange(5)
        return bytes(message.SerializeToString())
    whole = wire_pb2.Chunk if rng.random() < 0.5 else wire_pb2.Letter
    return bytes(whole(envelope=message).SerializeToString())


def mutated(rng: random.Random) -> bytes:
    if (kind := rng.random()) < 0.1:
        return rng.randbytes(rng.choice([0, 1, 2, 10, 100, 1000, 20_000]))
    if kind < 0.4:
        return odd(rng)
    data = bytearray(rng.choice(SEEDS))
    for _ in range(rng.choice([1, 1, 2, 3, 8])):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(7):
            case 0:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del data[at:]
            case 2:
                del data[at : at + rng.randrange(1, 20)]
            case 3:
                data[at:at] = rng.choice(HUGE)
            case 4:
                other = rng.choice(SEEDS)
                data[at:at] = other[rng.randrange(len(other)) :][:2000]
            case 5:
                data += data[:at][:2000]
            case _:
                data[at:at] = rng.randbytes(rng.randrange(1, 30))
    return bytes(data)


def use(value: object) -> str:
    """Give it to an attempt; return the name of the error that this party would show."""
    attempt = Attempt(
        "shop",
        ("bank",),
        run="r",
        kinds=("number",),
        settings={"local_steps": 5},
        facts={},
        limits=LIMITS,
        log=logging.getLogger("tests.fuzz"),
    )
    if isinstance(value, Hello) and value.sender == "bank":
        codec.decode_hello(codec.encode_hello(attempt.answer(value)))
        attempt.begin_if_agreed()
        attempt.answer(value)
        if (hello := attempt.others["bank"].hello) is not None and hello.facts:
            codec.from_json("facts", hello.facts)
        attempt.check()
    elif isinstance(value, Envelope):
        attempt.attempt, attempt.settings_digest, attempt.name = ENVELOPE.attempt, ENVELOPE.settings, "shop"
        attempt.admit("bank", value)
    return "used"


def fuzz(count: int, seed: int) -> Counter[str]:
    """Decode so many inputs with every decoder; count what came of them."""
    rng, outcomes = random.Random(seed), Counter[str]()
    for _ in range(count):
        data = mutated(rng)
        begun = time.thread_time()
        for name, decode in DECODERS.items():
            try:
                value = decode(data)
                if isinstance(value, tuple):
                    value = value[0]
                outcomes[f"{name}: {use(value)}"] += 1
            except Malformed:
                outcomes[f"{name}: Malformed"] += 1
            except TransportError as error:
                assert "\n" not in str(error) and len(str(error)) < 5000
                outcomes[f"{name}: {type(error).__name__}"] += 1
        assert time.thread_time() - begun < 2.0, data[:200]
    return outcomes


def growth(count: int, seed: int) -> tuple[Counter[str], int]:
    fuzz(200, seed + 1)  # whatever is loaded at the first use
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcomes = fuzz(count, seed)
    return outcomes, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10


def check(count: int, seed: int) -> None:
    outcomes, grown = growth(count, seed)
    assert outcomes.total() == count * len(DECODERS)
    for name in DECODERS:  # both ends of the road are travelled
        assert outcomes[f"{name}: Malformed"] > count // 50
        assert outcomes[f"{name}: used"] > count // 200
    assert grown < 200 << 20


def test_two_thousand_inputs() -> None:
    check(2000, 1)


@pytest.mark.slow
@pytest.mark.nightly
def test_a_hundred_thousand_inputs() -> None:
    check(100_000, int(os.environ.get("SECUREFED_FUZZ_SEED", "2")))
