"""Many wrong bytes: each is decoded to a value within bounds or `Malformed`, quickly and in little memory.

Inputs are valid frames that were cut, spliced, repeated, flipped or given huge lengths, well-formed ones with
odd values in their fields, and random bytes. Every input goes to every decoder. What comes out goes on to
where the transport uses it: an attempt hears a hello and admits an envelope.
"""

from __future__ import annotations

import json
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

from securefed.transport.message import Malformed, TransportError
from securefed.transport.network import codec
from securefed.transport.network.attempt import Attempt
from securefed.transport.network.codec import Envelope, Hello
from securefed.transport.network.host import Host, Limits
from tests.transport.test_network_codec import ENVELOPE, HELLO

LIMITS = Limits(message_bytes=1 << 20, queued_bytes=1 << 21)
DECODERS: dict[str, Callable[[bytes], Any]] = {
    "hello": codec.decode_hello,
    "letter": codec.decode_letter,
    "receipt": codec.decode_receipt,
}
DEEP = '{"a":' * 3000 + "1" + "}" * 3000
SEEDS = [
    codec.encode_hello(HELLO),
    codec.encode_hello(replace(HELLO, state=codec.LEFT, reason="PeerLost shop", refusal="no\x1b[31m more")),
    codec.encode_hello(replace(HELLO, settings="", facts="", state=codec.RUNNING)),
    codec.encode_hello(replace(HELLO, facts=DEEP)),
    codec.encode_hello(replace(HELLO, settings='{"local_steps": 1e400, "x": [NaN, -Infinity]}')),
    codec.encode_hello(replace(HELLO, sessions={f"p{n}": bytes(16) for n in range(200)})),
    codec.encode_letter(ENVELOPE, bytes(1000)),
    codec.encode_letter(replace(ENVELOPE, size=2**62 - 1, sequence=2**62 - 1), b""),
    codec.encode_receipt(codec.PieceReceipt(7, 1000, room=True)),
]
HUGE = [b"\xff" * 10, b"\xff\xff\xff\xff", b"9" * 5000, b"[" * 5000, b'"', b"\x00", b"1e999"]
"""Lengths, numbers and brackets near and beyond bounds."""


ODD: list[Any] = [
    *("", "bank", "shop", "r", "x" * 129, "\x1b[31m", "\u202e", "a\nb", "\ud800", "\U0001f600" * 40),
    *("00" * 16, "00" * 32, "00" * 33, "{}", "[]", DEEP, '{"local_steps": 5}'),
    *(0, 1, 2, 4, -1, 2**31 - 1, 2**53, 2**62, 10**400, True, None),
    *(0.0, -1.0, 1e308, float("nan"), float("inf"), -float("inf"), 5e-324),
    *([], [1.0], [0.0, -1.0], {}, {"bank": "00"}, {"\x1b": 1}),
]
"""Values for any field."""


def odd(rng: random.Random) -> bytes:
    """A well-formed hello, letter or receipt with unusual values in some fields."""
    whole = rng.choice([SEEDS[0], SEEDS[-3], SEEDS[-1]])
    start = whole.index(b"{")
    fields, end = json.JSONDecoder().raw_decode(whole[start:].decode("latin-1"))
    for name in rng.sample(sorted(fields), rng.choice([1, 1, 2])):
        fields[name] = rng.choice(ODD)
    head, text = whole[:start], json.dumps(fields).encode()
    if start == codec.LENGTH.size:
        head = codec.LENGTH.pack(len(text))
    return head + text + whole[start + end :]


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
        host=Host(LIMITS, log=logging.getLogger("tests.fuzz")),
    )
    if isinstance(value, Hello) and value.sender == "bank":
        codec.decode_hello(codec.encode_hello(attempt.answer(value)))
        attempt.begin_if_agreed()
        attempt.answer(value)
        if (hello := attempt.others["bank"].hello) is not None and hello.facts:
            codec.from_json("facts", hello.facts)
        attempt.check()
    elif isinstance(value, Envelope):
        attempt.attempt, attempt.name = ENVELOPE.attempt, "shop"
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
