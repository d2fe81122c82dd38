"""What the parties of a set intersection could find out, tried on ours and on naive variants that fall to
it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from securefed.crypto.scheme import SERIAL
from securefed.data import curve, okvs, psi
from securefed.data import psi_local as psi_work
from securefed.data.curve import PRIME
from securefed.errors import SettingError
from securefed.process import own_data
from securefed.settings.run import RunSettings
from securefed.transport.link import Link, run_local
from securefed.transport.message import Message, get_network
from tests.data.test_psi import align

EVERYBODY = [f"client-{i:03d}" for i in range(60)]
BANK, SHOP = EVERYBODY[:25], EVERYBODY[15:40]
COMMON = set(BANK) & set(SHOP)

Program = Callable[[Link], Any]


def run(programs: dict[str, Program], kinds: Iterable[str], tap: Callable[[Message], Message]) -> None:
    run_local(programs, run="r", kinds=list(kinds), network=get_network("lan"), tap=tap)


def received_by(name: str) -> tuple[list[Message], Callable[[Message], Message]]:
    """What `name` gets to see, and the tap that collects it."""
    seen: list[Message] = []

    def tap(message: Message) -> Message:
        if message.receiver == name:
            seen.append(message)
        return message

    return seen, tap


def dictionary_attack(seen: list[Message], scalars: Iterable[bytes], party: str) -> set[str]:
    """Every id that exists, hashed in every way the attacker can compute, looked for in all it received."""
    windows = {m.payload[i : i + 16] for m in seen for i in range(max(1, len(m.payload) - 15))}
    digests = [hashlib.sha256(text.encode()).digest() for text in EVERYBODY]
    points = curve.hash_to_curve(digests, psi_work.TAG)
    forms: dict[str, list[bytes]] = {}
    for text, point in zip(EVERYBODY, points, strict=True):
        raw = text.encode()
        forms[text] = [hashlib.sha256(raw).digest(), hashlib.sha512(raw).digest(), raw.ljust(16), point]
    chains = [points]
    for _ in range(2):  # one or two of the attacker's scalars on top of each other
        chains += [curve.multiply(scalar, chain) for chain in list(chains) for scalar in scalars]
    for chain in chains:
        values = psi_work.values(party, digests, chain)
        for text, point, value in zip(EVERYBODY, chain, values, strict=True):
            forms[text] += [point, value[:2].tobytes(), value[6:].tobytes()]
    return {text for text, many in forms.items() if any(form[:16] in windows for form in many)}


# The naive way: both sides send hashes of their ids.


def hashed(ids: list[str], other: str) -> Program:
    async def program(link: Link) -> set[str]:
        own = {hashlib.sha256(text.encode()).digest(): text for text in ids}
        link.send(other, "hashes", b"".join(sorted(own)))
        blob = await link.receive("hashes", other)
        return {own[h] for i in range(0, len(blob), 32) if (h := blob[i : i + 32]) in own}

    return program


@pytest.mark.parametrize(("attacker", "victim"), [("bank", SHOP), ("shop", BANK)])
def test_hashed_ids_fall_to_a_dictionary(attacker: str, victim: list[str]) -> None:
    seen, tap = received_by(attacker)
    run({"bank": hashed(BANK, "shop"), "shop": hashed(SHOP, "bank")}, ["hashes"], tap)
    assert dictionary_attack(seen, [], "shop") == set(victim)


@pytest.mark.parametrize("attacker", ["bank", "shop"])
def test_a_dictionary_finds_no_more_than_the_common_ids_in_ours(attacker: str) -> None:
    pair, key = curve.draw_pair(), curve.draw_scalar()
    seen, tap = received_by(attacker)

    def side(link: Link, ids: list[str]) -> psi._Side:
        return psi._Side(link, SERIAL, ids, "exact", psi.MAX_IDS)

    programs: dict[str, Program] = {
        "bank": lambda link: psi._hub(side(link, BANK), ["shop"], pair),
        "shop": lambda link: psi._answer(side(link, SHOP), "bank", [], key),
    }
    run(programs, psi.PSI_KINDS, tap)
    assert len(seen) >= 3
    known = {"bank": list(pair), "shop": [key]}[attacker]
    assert dictionary_attack(seen, known, "shop") <= COMMON
    # It is the scalar of the other that protects: with both, the same attack finds everybody.
    both = dictionary_attack(seen, [*pair, key], "shop")
    assert both >= (set(BANK) if attacker == "shop" else COMMON)


# Ids taken as u-coordinates as they come: one bit of each hash stays visible under any mask.


def is_on_curve(point: bytes) -> bool:
    u = int.from_bytes(point, "little") % PRIME
    return pow(u**3 + 486662 * u * u + u, (PRIME - 1) // 2, PRIME) == 1


def test_raw_hashes_show_a_bit_through_the_mask_and_ours_none() -> None:
    raw = {text: hashlib.sha256(text.encode()).digest()[:31] + b"\0" for text in EVERYBODY}
    (masked,) = curve.multiply(curve.draw_scalar(), [raw["client-007"]])
    left = {text for text in EVERYBODY if is_on_curve(raw[text]) == is_on_curve(masked)}
    assert "client-007" in left
    assert len(left) < 50  # about half of the 60 are ruled out by one message

    points = dict(
        zip(EVERYBODY, curve.hash_to_curve([t.encode() for t in EVERYBODY], psi_work.TAG), strict=True)
    )
    (masked,) = curve.multiply(curve.draw_scalar(), [points["client-007"]])
    assert {text for text in EVERYBODY if is_on_curve(points[text]) == is_on_curve(masked)} == set(EVERYBODY)


# Three parties: whom does the hub share with one of them alone?

CLINIC = EVERYBODY[10:30]


def shares_opened_by_the_hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, bytes]]:
    """party -> id -> what the id opens in that party's table, as the hub computes it."""
    opened: list[dict[bytes, bytes]] = []
    values: dict[str, list[tuple[bytes, bytes]]] = {}
    hub_values, open_shares = psi_work.hub_values, psi_work.open_shares

    def watch_values(undo: bytes, party: str, piece: tuple[bytes, bytes]) -> bytes:
        digests = psi_work.cut(piece[0], 32)
        found = hub_values(undo, party, piece)
        values.setdefault(party, []).extend(zip(psi_work.cut(found, 64), digests, strict=True))
        return found

    def watch_shares(table: bytes, found: okvs.Words, room: int) -> okvs.Words:
        shares = open_shares(table, found, room)
        opened.append({row.tobytes(): share.tobytes() for row, share in zip(found, shares, strict=True)})
        return shares

    monkeypatch.setattr(psi_work, "hub_values", watch_values)
    monkeypatch.setattr(psi_work, "open_shares", watch_shares)
    align({"bank": BANK, "shop": SHOP, "clinic": CLINIC})
    of_digest = {hashlib.sha256(text.encode()).digest(): text for text in EVERYBODY}
    return {
        name: {of_digest[digest]: opened[place][value] for value, digest in values[name]}
        for place, name in enumerate(["shop", "clinic"])
    }


def members(opened: dict[str, bytes]) -> set[str]:
    return {text for text, share in opened.items() if share == bytes(16)}


def test_without_shares_the_hub_sees_who_has_whom(monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(side: psi._Side, others: Iterable[str]) -> list[bytes]:
        return []

    monkeypatch.setattr(psi, "_share_keys", none)
    opened = shares_opened_by_the_hub(monkeypatch)
    assert members(opened["shop"]) == set(BANK) & set(SHOP)
    assert members(opened["clinic"]) == set(BANK) & set(CLINIC)


def test_with_shares_it_sees_only_whom_all_have(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = shares_opened_by_the_hub(monkeypatch)
    assert members(opened["shop"]) == members(opened["clinic"]) == set()
    everywhere = set(BANK) & set(SHOP) & set(CLINIC)
    assert {text for text in BANK if opened["shop"][text] == opened["clinic"][text]} == everywhere
    # And no value occurs twice otherwise, which would tell members from others.
    for each in opened.values():
        assert len(set(each.values())) == len(each)


@pytest.mark.parametrize("guesser", ["bank", "shop"], ids=["the hub guesses", "the other guesses"])
def test_guessing_everybody(guesser: str) -> None:
    """A party with a made-up list of all that exist learns the other's whole list; with a limit it learns
    nothing, because the other one stops before it has answered.
    """
    honest = "shop" if guesser == "bank" else "bank"
    sets = {name: EVERYBODY if name == guesser else SHOP for name in ("bank", "shop")}
    found = align(sets).outcomes[guesser]
    assert {EVERYBODY[row] for row in found} == set(SHOP), "nothing in the protocol itself stops it"
    seen, tap = received_by(guesser)
    with pytest.raises(psi.BadAlignment, match=f"{guesser}: 60 ids announced, 1 to 50 are allowed"):
        align(sets, tap, peer_ids=2 * len(SHOP))
    told = {message.kind for message in seen if message.sender == honest}
    assert not told & {"psi-evaluated", "psi-common"}


@pytest.mark.parametrize("naive", [False, True], ids=["as it is", "naive"])
@pytest.mark.parametrize("guesser", ["bank", "shop"], ids=["the hub guesses", "the other guesses"])
def test_guessing_a_few_after_each_interruption(
    guesser: str, naive: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A party that breaks off after each alignment comes back with other ids, never more than are allowed."""
    if naive:
        monkeypatch.setattr(own_data, "MOST_ALIGNMENTS", 1 << 30)
    shared = RunSettings.of({"name": "trial", "parties": ["bank", "shop"]})
    found: set[str] = set()
    with suppress(SettingError):
        for start in range(0, len(EVERYBODY), 3):
            ids = {name: EVERYBODY[start : start + 3] if name == guesser else SHOP for name in shared.parties}
            # The one that guesses counts nothing.
            tallies = {name: tmp_path / (f"{name}{start}" if name == guesser else name) for name in ids}
            found |= _aligned(shared, ids, tallies, guesser)
    assert (found == set(SHOP)) == naive
    assert naive or found == set(SHOP) & set(EVERYBODY[: 3 * own_data.MOST_ALIGNMENTS])


def _aligned(
    shared: RunSettings, ids: dict[str, list[str]], tallies: dict[str, Path], guesser: str
) -> set[str]:
    """What the one that guesses finds in one alignment of three of its ids."""

    def program(name: str) -> Any:
        async def run(link: Link) -> own_data.Alignment:
            mine = ids[name]
            return await own_data.align(link, shared, mine, len(mine), None, SERIAL, tally=tallies[name])

        return run

    try:
        done = run_local(
            {name: program(name) for name in ids},
            run="r",
            kinds=own_data.ALIGNMENT_KINDS,
            network=get_network("lan"),
        )
    except own_data.AllRefuse:
        return set()
    return {ids[guesser][row] for row in done.outcomes[guesser].rows}
