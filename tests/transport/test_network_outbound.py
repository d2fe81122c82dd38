"""A party that listens on nothing: its peers reach it on connections that it opened."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from securefed.errors import SettingError
from securefed.transport.identity import Peer
from securefed.transport.link import Link
from securefed.transport.message import PeerLost
from securefed.transport.network.calls import CallFailed, Connection
from securefed.transport.network.endpoint import Endpoint
from securefed.transport.network.host import Timeouts
from securefed.transport.network.reverse import Spare
from tests.transport.network import (
    IDENTITIES,
    QUICK,
    Proxy,
    Town,
    outcome,
    result,
    wait_until,
)
from tests.transport.test_network import idle, ring
from tests.transport.test_network_processes import Group, expected

NAMES = ("bank", "shop", "mill")


def outbound_town(*names: str, through: Mapping[tuple[str, str], str] | None = None, **given: Any) -> Town:
    """The first one listens on nothing."""
    town = Town(*names, through=through, **given)
    town.addresses[names[0]] = "none"
    return town


def test_three_parties_of_which_one_listens_on_nothing() -> None:
    town = outbound_town(*NAMES)
    found = town.run(dict.fromkeys(NAMES, ring(5, 200_000)))
    outcomes = {result(each).outcome for each in found.values()}
    assert outcomes == {2 * 200_000 * sum(range(1, 6))}
    for each in found.values():
        path = result(each).link.path
        assert path.computation + path.communication == path.total


def test_the_party_has_no_port() -> None:
    with outbound_town(*NAMES).endpoint("bank") as endpoint:
        assert endpoint.address == "nothing"
        assert endpoint._listener is None


def test_two_parties_that_both_listen_on_nothing_are_refused() -> None:
    peer = Peer("none", IDENTITIES["shop"].certificate)
    with pytest.raises(SettingError, match=r"bank and shop both listen on nothing.*one of the two needs"):
        Endpoint(IDENTITIES["bank"], listen="none", peers={"shop": peer})


@pytest.mark.slow
def test_a_party_that_never_connects_is_named_without_an_address() -> None:
    town = outbound_town("bank", "shop", timeouts=Timeouts(**{**vars(QUICK), "join": 3.0, "answer": 0.5}))
    with pytest.raises(PeerLost, match=r"^bank \(it is not connected to this party\) could not be reached"):
        town.alone("shop", idle)


def test_a_peer_that_has_an_address_of_it_says_what_to_change(caplog: pytest.LogCaptureFixture) -> None:
    town = outbound_town("bank", "shop", timeouts=Timeouts(**{**vars(QUICK), "join": 1.0, "patience": 1.0}))
    town.reach("shop", "bank", "127.0.0.1:9")
    found = town.run({"bank": ring(1, 10), "shop": ring(1, 10)})
    assert any("bank at 127.0.0.1:9" in str(each) for each in found.values())
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert lines.count('shop refused: bank listens on nothing; its address at shop has to be "none"') == 1


def slow_ring(rounds: int) -> Callable[[Link], Any]:
    """Rounds of about 40 ms."""

    async def program(link: Link) -> int:
        for turn in range(rounds):
            link.send(link.peers[0], "number", bytes(1000), round=turn)
            await link.receive("number", link.peers[0], round=turn)
            time.sleep(0.04)
        return rounds

    return program


@pytest.mark.slow
def test_a_connection_that_is_cut_is_opened_again() -> None:
    town = outbound_town("bank", "shop")
    cut = threading.Event()

    def spoil(direction: str, before: int, data: bytes) -> bytes | None:
        return None if cut.is_set() else data

    with Proxy(town.addresses["shop"], spoil) as proxy:
        town.reach("bank", "shop", proxy.address)
        runs = {name: town.start(name, slow_ring(100)) for name in ("bank", "shop")}
        for _ in range(3):
            time.sleep(0.7)
            before = proxy.connections
            cut.set()
            time.sleep(0.2)
            assert not runs["bank"].done()
            cut.clear()
        wait_until(lambda: proxy.connections > before)
        found = {name: outcome(future) for name, future in runs.items()}
    assert {result(each).outcome for each in found.values()} == {100}


@pytest.mark.slow
def test_a_silent_connection_is_replaced_within_half_of_the_patience() -> None:
    """Nothing comes through any more, and nobody is told: as behind a router that forgot the connection."""
    town = outbound_town("bank", "shop")
    relay, silent = threading.local(), threading.Event()
    dead: list[str] = []

    def spoil(direction: str, before: int, data: bytes) -> bytes | None:
        if silent.is_set() and not hasattr(relay, "dead"):
            relay.dead = True
            dead.append(direction)
        return b"" if hasattr(relay, "dead") else data

    with Proxy(town.addresses["shop"], spoil) as proxy:
        town.reach("bank", "shop", proxy.address)
        runs = {name: town.start(name, slow_ring(50)) for name in ("bank", "shop")}
        time.sleep(1.0)
        silent.set()
        time.sleep(1.0)
        assert len(dead) >= 4  # both ways of greetings and of messages
        assert not runs["bank"].done()
        silent.clear()
        found = {name: outcome(future) for name, future in runs.items()}
    assert {result(each).outcome for each in found.values()} == {50}


def test_a_newer_spare_ends_the_one_before() -> None:
    """A party that died without notice left one behind."""
    ended: list[str] = []
    first, second = (cast(Connection, SimpleNamespace(end=partial(ended.append, name))) for name in "ab")
    spare = Spare()
    spare.put(first)
    spare.put(second)
    assert ended == ["a"]
    assert spare.take(0.0) is second
    with pytest.raises(CallFailed, match="it is not connected to this party"):
        spare.take(0.0)
    spare.put(first)
    spare.put(None)
    assert ended == ["a", "a"]


def test_an_unused_spare_is_replaced_after_a_few_beats() -> None:
    """A router forgets connections on which nothing moves."""
    town = outbound_town("bank", "shop")
    with town.endpoint("shop") as shop, town.endpoint("bank"):
        spare = shop._spares["bank"]
        wait_until(lambda: spare._connection is not None)
        first = spare._connection
        wait_until(lambda: spare._connection not in (None, first))


@pytest.mark.slow
def test_processes_of_which_one_listens_on_nothing_survive_kills(tmp_path: Path) -> None:
    addresses = dict(Town(*NAMES).addresses) | {"bank": "none"}
    group = Group(tmp_path, NAMES, addresses=addresses, rounds=40, size=50_000, work=0.05)
    try:
        group.start()
        for victim in ("bank", "shop", "bank"):
            before = group.rounds("mill")
            wait_until(lambda: group.rounds("mill") >= before + 4, 60)  # noqa: B023
            group.kill(victim)
            group.start(victim)
        found = group.outcomes(120)
    finally:
        group.end()
    assert {name: run["state"] for name, run in found.items()} == expected(NAMES, 40, 50_000)
    assert all(run["began"] >= 4 for run in found.values())
