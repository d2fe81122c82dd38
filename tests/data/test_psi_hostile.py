"""What a set intersection refuses: everything that no honest party sends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from securefed.data import okvs
from securefed.data.curve import PRIME
from securefed.data.psi import MAX_IDS, BadAlignment
from securefed.transport.message import IllegalMessage, Message
from tests.data.test_psi import align

HUB = [f"p{i}" for i in range(6)]
SHOP = [f"p{i}" for i in range(3, 10)]

Change = Callable[[bytes], bytes]


def number(value: int) -> Change:
    return lambda _: value.to_bytes(8, "big")


def first_point(value: int) -> Change:
    return lambda payload: value.to_bytes(32, "little") + payload[32:]


def short(payload: bytes) -> bytes:
    return payload[:-1]


def longer(payload: bytes) -> bytes:
    return payload + bytes(32)


def repeated(payload: bytes) -> bytes:
    return payload[:32] + payload[:32] + payload[64:]


def swapped(payload: bytes) -> bytes:
    return payload[16:32] + payload[:16] + payload[32:]


def doubled(payload: bytes) -> bytes:
    return payload[:16] + payload[:16] + payload[32:]


def unknown(payload: bytes) -> bytes:
    return bytes(16) + payload[16:]


ORDER_8 = 325606250916557431795983626356110631294008115727848805560023387167927233504
TOO_BIG = 2**255 - 1

CASES: list[tuple[str, str, int, Change, str]] = [
    ("hub", "psi-size", 0, number(0), "hub: 0 ids announced"),
    ("hub", "psi-size", 0, number(MAX_IDS + 1), f"hub: {MAX_IDS + 1} ids announced"),
    ("hub", "psi-size", 0, number(7), "hub: a block of 192 bytes in psi-blinded, 224 are due"),
    ("hub", "psi-size", 0, short, "hub: a number of 7 bytes"),
    ("shop", "psi-size", 0, number(2**63), "shop: 9223372036854775808 ids announced"),
    ("shop", "psi-size", 0, number(10), "shop: a block of .* bytes in psi-table, .* are due"),
    ("shop", "psi-size", 0, number(2), "shop: a block of .* bytes in psi-table, .* are due"),
    ("hub", "psi-blinded", 0, short, "hub: a block of 191 bytes"),
    ("hub", "psi-blinded", 0, longer, "hub: a block of 224 bytes"),
    ("hub", "psi-blinded", 0, first_point(0), "hub: a point in psi-blinded is zero"),
    ("hub", "psi-blinded", 0, first_point(PRIME), "hub: a point in psi-blinded is zero or not reduced"),
    ("hub", "psi-blinded", 0, first_point(PRIME + 9), "not reduced"),
    ("hub", "psi-blinded", 0, first_point(TOO_BIG), "not reduced"),
    ("hub", "psi-blinded", 0, first_point(1), "hub: a point of small order"),
    ("hub", "psi-blinded", 0, first_point(ORDER_8), "hub: a point of small order"),
    ("hub", "psi-blinded", 0, repeated, "hub: the same point twice in psi-blinded"),
    ("shop", "psi-evaluated", 0, short, "shop: a block of"),
    ("shop", "psi-evaluated", 0, first_point(0), "shop: a point in psi-evaluated is zero"),
    ("shop", "psi-evaluated", 0, first_point(PRIME - 1), "shop: a point of small order"),
    ("shop", "psi-evaluated", 0, repeated, "shop: the same point twice in psi-evaluated"),
    ("shop", "psi-table", 0, short, "shop: a block of .* bytes in psi-table"),
    ("shop", "psi-table", 0, longer, "shop: a block of .* bytes in psi-table"),
    ("hub", "psi-common", 0, number(16 * 7), "hub: 112 bytes of psi-common announced, at most 96"),
    ("hub", "psi-common", 0, number(17), "hub: 17 bytes of psi-common, a multiple of 16 is due"),
    ("hub", "psi-common", 0, number(32), "hub: a block of 48 bytes in psi-common, 32 are due"),
    ("hub", "psi-common", 1, short, "hub: a block of 47 bytes in psi-common"),
    ("hub", "psi-common", 1, unknown, "hub: named an id as common that shop does not have"),
    ("hub", "psi-common", 1, swapped, "hub: the common ids are not in the agreed order"),
    ("hub", "psi-common", 1, doubled, "hub: the common ids are not in the agreed order, each once"),
]


@pytest.mark.parametrize(("sender", "kind", "step", "change", "message"), CASES)
def test_it_is_refused_by_name(sender: str, kind: str, step: int, change: Change, message: str) -> None:
    touched = []

    def tap(sent: Message) -> Message:
        if (sent.sender, sent.kind, sent.step) == (sender, kind, step):
            touched.append(sent)
            return replace(sent, payload=change(sent.payload))
        return sent

    with pytest.raises(BadAlignment, match=message):
        align({"hub": HUB, "shop": SHOP}, tap)
    assert touched


@pytest.mark.parametrize("change", [short, longer, first_point(0), first_point(TOO_BIG), first_point(1)])
def test_a_bad_key_for_the_shares(change: Change) -> None:
    def tap(sent: Message) -> Message:
        return replace(sent, payload=change(sent.payload)) if sent.kind == "psi-seed" else sent

    with pytest.raises(BadAlignment, match=r"^(shop|bank): "):
        align({"hub": HUB, "shop": SHOP, "bank": HUB}, tap)


def test_a_block_that_comes_under_another_number() -> None:
    def tap(sent: Message) -> Message:
        return replace(sent, step=5) if sent.kind == "psi-blinded" else sent

    with pytest.raises(IllegalMessage, match="round 0 step 5"):
        align({"hub": HUB, "shop": SHOP}, tap)


def test_the_hub_cannot_name_an_id_that_it_did_not_put_in() -> None:
    """A hub that knows shop's ids but did not ask for them lacks their names."""
    honest: list[bytes] = []

    def watch(sent: Message) -> Message:
        if sent.kind == "psi-common" and sent.step == 1:
            honest.append(sent.payload)
        return sent

    align({"hub": SHOP, "shop": SHOP}, watch)

    def tap(sent: Message) -> Message:
        if sent.kind == "psi-common" and sent.step == 1:
            return replace(sent, payload=honest[0][: len(sent.payload)])
        return sent

    with pytest.raises(BadAlignment, match="does not have"):
        align({"hub": HUB, "shop": SHOP}, tap)


def test_a_point_on_the_twist_does_no_harm() -> None:
    """It belongs to no id, so at most one id of its sender is lost; the scalar stays hidden (curve.py)."""
    twisted = next(u for u in range(2, 50) if pow(u**3 + 486662 * u * u + u, (PRIME - 1) // 2, PRIME) != 1)

    def tap(sent: Message) -> Message:
        change = first_point(twisted)
        return replace(sent, payload=change(sent.payload)) if sent.kind == "psi-blinded" else sent

    run = align({"hub": HUB, "shop": SHOP}, tap)
    assert 2 <= len(run.outcomes["hub"]) <= 3


def test_a_table_of_noise_shares_nobody() -> None:
    def tap(sent: Message) -> Message:
        if sent.kind == "psi-table":
            assert len(sent.payload) == okvs.CELL * okvs.cells(len(SHOP))
            return replace(sent, payload=Random(0).randbytes(len(sent.payload)))
        return sent

    run = align({"hub": HUB, "shop": SHOP}, tap)
    assert len(run.outcomes["hub"]) == len(run.outcomes["shop"]) == 0
