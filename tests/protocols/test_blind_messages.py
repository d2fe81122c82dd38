"""Messages of blind training: which are sent, and that none of another length or form is taken."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from securefed.assembly import LinearAssembly
from securefed.errors import CryptoError, FormatError, SecurefedError
from securefed.protocols.messages import KINDS
from securefed.protocols.schedules import FedBCD
from securefed.settings import Blind, LinearSettings, Monitoring
from securefed.transport.message import Message
from tests.protocols.federation import Recorder
from tests.protocols.test_blind_linear import Run, table

ROUNDS = 2
SETTINGS: dict[str, Any] = {"rounds": ROUNDS, "monitoring": Monitoring(evaluate_every=ROUNDS)}
PAIR = {"nonce", "cross-key", "operand", "reply", "difference", "score", "released"}
STAR = PAIR | {"part", "progress", "received", "model-share", "question", "score-share"}


def run(parties: int, tap: Callable[[Message], Message], scheme: str = "clear", **settings: Any) -> Run:
    columns, targets = table(parties, rows=12)
    assembly = LinearAssembly(LinearSettings(**{**SETTINGS, "protection": Blind(release=True), **settings}))
    options = {} if scheme == "clear" else {"scheme": assembly.settings.cross_scheme()}
    return Run(columns, targets, assembly, rows=columns, tap=tap, **options)


def clean(parties: int, **options: Any) -> list[Message]:
    recorder = Recorder()
    run(parties, recorder, **options)
    return recorder.messages


class Tamper:
    """Change the payload of one message of a run."""

    def __init__(self, number: int, change: Callable[[bytes], bytes]) -> None:
        self.left, self.change = number, change

    def __call__(self, message: Message) -> Message:
        self.left -= 1
        if self.left != -1:
            return message
        return dataclasses.replace(message, payload=self.change(message.payload))


@pytest.mark.parametrize(("parties", "kinds"), [(2, PAIR), (3, STAR), (4, STAR)])
def test_the_kinds_that_are_sent(parties: int, kinds: set[str]) -> None:
    messages = clean(parties)
    assert {message.kind for message in messages} == kinds <= set(KINDS)
    later = [message.kind for message in messages if message.kind == "difference"]
    assert len(later) == 2 * ROUNDS  # between the two holders alone, however many parties there are


@pytest.mark.parametrize("parties", [2, 3])
def test_only_the_label_party_hears_of_scores(parties: int) -> None:
    for message in clean(parties):
        if message.kind == "score":
            assert message.receiver == "labels"
        if message.kind == "progress":
            assert message.payload == b"\1"


@pytest.mark.parametrize("local_steps", [1, 50])
def test_no_size_depends_on_the_number_of_local_steps(local_steps: int) -> None:
    sizes = [(m.kind, m.sender, m.receiver, m.size) for m in clean(3)]
    other = clean(3, algorithm=FedBCD(local_steps))
    assert [(m.kind, m.sender, m.receiver, m.size) for m in other] == sizes


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "shorter": lambda payload: payload[:-1],
    "longer": lambda payload: payload + b"\0",
    "empty": lambda payload: b"",
}
OPEN = {"progress", "received"}
"""A word whose content says nothing: that it came is all that counts."""


@pytest.mark.parametrize(
    ("scheme", "parties", "change"),
    [
        *(("clear", parties, change) for parties in (2, 3) for change in CHANGES),
        ("ckks", 2, "longer"),
        ("ckks", 3, "shorter"),
    ],
)
def test_another_length_is_refused(scheme: str, parties: int, change: str) -> None:
    messages = clean(parties, scheme=scheme)
    first = {message.kind: number for number, message in reversed(list(enumerate(messages)))}
    for kind, number in first.items():
        if kind in OPEN:
            continue
        with pytest.raises(SecurefedError) as caught:
            run(parties, Tamper(number, CHANGES[change]), scheme)
        assert isinstance(caught.value, CryptoError), kind
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["part", "difference", "model-share", "score-share", "score", "released"])
def test_a_bit_that_no_number_has_is_refused(kind: str) -> None:
    messages = clean(3)
    number = next(n for n, message in enumerate(messages) if message.kind == kind)

    def change(payload: bytes) -> bytes:
        return payload[:-1] + bytes([payload[-1] | 0x80])

    with pytest.raises(FormatError, match="a bit is set that no number has"):
        run(3, Tamper(number, change))


def test_other_numbers_spoil_the_model_and_are_not_noticed() -> None:
    """Documented: a party that does not follow the protocol can spoil the model. Nothing is told about it."""
    messages = clean(2)
    number = next(n for n, message in enumerate(messages) if message.kind == "difference")

    def change(payload: bytes) -> bytes:
        return bytes([payload[0] ^ 1]) + payload[1:-8] + bytes([payload[-8] ^ 1]) + payload[-7:]

    spoilt = run(2, Tamper(number, change))
    assert np.isfinite(spoilt.phi).all()
