"""Parties on a network: the programs of one process, greetings, settings, restarts, and clean ends."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from securefed.errors import SettingError
from securefed.transport.identity import Identity, Peer
from securefed.transport.link import Link, run_local
from securefed.transport.message import (
    AddressError,
    Deadlock,
    LimitExceeded,
    Network,
    PeerGone,
    PeerLeft,
    PeerLost,
    PeerRestarted,
    SettingsDiffer,
    WrongCertificate,
    WrongKind,
    WrongRun,
    WrongSender,
)
from securefed.transport.network.endpoint import Endpoint
from securefed.transport.network.host import Limits, Timeouts
from securefed.transport.network.run import NetworkLink
from tests.transport.network import (
    IDENTITIES,
    KINDS,
    QUICK,
    SETTINGS,
    Proxy,
    Town,
    place,
    result,
    wait_until,
)


def ring(rounds: int, size: int) -> Callable[[Link], Any]:
    """Everybody sends everybody a block each round, and adds up what came."""

    async def program(link: Link) -> int:
        total = 0
        for turn in range(rounds):
            for peer in link.peers:
                link.send(peer, "number", bytes([turn + 1]) * size, round=turn, step=1)
            for peer in link.peers:
                total += sum(await link.receive("number", peer, round=turn, step=1))
        return total

    return program


async def idle(link: Link) -> None:
    return None


@pytest.mark.parametrize("names", [("bank", "shop"), ("bank", "shop", "mill", "farm")])
def test_a_program_gives_the_same_over_the_network_as_in_one_process(names: tuple[str, ...]) -> None:
    programs = dict.fromkeys(names, ring(3, 1000))
    local = run_local(programs, run="r", kinds=KINDS, network=Network("x", 1e9, 0.0))
    found = {name: result(run) for name, run in Town(*names).run(programs).items()}
    assert {name: run.outcome for name, run in found.items()} == local.outcomes
    for name, run in found.items():
        here, there = run.link.transcript, local.links[name].transcript
        assert [(e.event, e.kind, e.peer, e.round, e.digest) for e in here if e.event == "sent"] == [
            (e.event, e.kind, e.peer, e.round, e.digest) for e in there if e.event == "sent"
        ]
        path = run.link.path
        assert path.computation + path.communication == path.total
        assert path.communication > 0


def test_what_a_kind_must_look_like_is_tested_over_the_network_too() -> None:
    kinds = {"number": SimpleNamespace(looks="ciphertext"), "answer": SimpleNamespace(looks="")}
    programs = dict.fromkeys(("bank", "shop"), ring(1, 1000))
    for run in Town(*programs).run(programs, kinds=kinds).values():
        parts = [part for entry in result(run).link.transcript for part in entry.parts]
        assert parts and all(part.random is False for part in parts), "bytes that repeat"


def test_payloads_of_every_size_arrive_as_they_were() -> None:
    """None, one byte, one chunk, one more than that, and several chunks."""
    limits = Limits(chunk_bytes=4096)
    blocks = [secrets.token_bytes(size) for size in (0, 1, 4095, 4096, 4097, 40_000)]

    async def sends(link: Link) -> None:
        for number, block in enumerate(blocks):
            link.send("shop", "number", block, round=number)

    async def takes(link: Link) -> list[bytes]:
        return [await link.receive("number", "bank", round=number) for number in range(len(blocks))]

    found = Town("bank", "shop", limits=limits).run({"bank": sends, "shop": takes})
    assert result(found["shop"]).outcome == blocks


def test_everybody_knows_the_others_facts_before_it_begins() -> None:
    async def looks(link: Link) -> dict[str, dict[str, Any]]:
        assert isinstance(link, NetworkLink)
        assert all(abs(skew) < 5 for skew in link.skew.values())
        return link.hello

    found = Town("bank", "shop", "mill").run(dict.fromkeys(("bank", "shop", "mill"), looks))
    assert result(found["mill"]).outcome == {"bank": {"party": "bank"}, "shop": {"party": "shop"}}


def test_an_endpoint_serves_one_run_after_the_other() -> None:
    """Alignment, training, prediction: the same door, other runs."""
    town = Town("bank", "shop")
    outcomes: dict[str, list[int]] = {"bank": [], "shop": []}

    def party(name: str) -> None:
        with town.endpoint(name) as endpoint:
            for number in range(4):
                run = endpoint.run(ring(number, 10), run=f"r{number}", kinds=KINDS, settings=SETTINGS)
                outcomes[name].append(run.outcome)

    threads = [threading.Thread(target=party, args=(name,)) for name in outcomes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert outcomes["bank"] == outcomes["shop"] == [0, 10, 30, 60]


def test_different_settings_are_named_with_both_values_at_both_parties() -> None:
    town = Town("bank", "shop")
    bank = town.start("bank", idle, settings={"local_steps": 10, "scheme": "ckks", "l2": 0.1})
    shop = town.start("shop", idle, settings={"local_steps": 5, "scheme": "ckks"})
    error = bank.exception(10)
    assert isinstance(error, SettingsDiffer)
    assert str(error) == (
        "bank runs l2=0.1, shop has no l2; bank runs local_steps=10, shop runs local_steps=5; "
        "make them equal (in [run], or by installing the same release) and start all parties again"
    )
    error = shop.exception(10)
    assert isinstance(error, SettingsDiffer)
    assert str(error).startswith(
        "shop has no l2, bank runs l2=0.1; shop runs local_steps=5, bank runs local_steps=10; make them equal"
    )


def test_one_party_with_other_settings_than_all_others_is_named_by_each() -> None:
    town = Town("bank", "shop", "mill", timeouts=replace(QUICK, join=60, farewell=30))
    running = {
        name: town.start(name, idle, settings={"q": name == "mill"}) for name in ("bank", "shop", "mill")
    }
    texts = {name: str(each.exception(90)) for name, each in running.items()}
    assert texts["bank"].startswith("bank runs q=false, mill runs q=true; make them equal")
    assert texts["shop"].startswith("shop runs q=false, mill runs q=true; make them equal")
    for peer in ("bank", "shop"):
        assert f"mill runs q=true, {peer} runs q=false; " in texts["mill"]


def test_different_settings_end_the_start_also_while_a_third_party_is_away() -> None:
    town = Town("bank", "shop", "mill", timeouts=replace(QUICK, join=60))
    bank = town.start("bank", idle, settings={"q": 1})
    town.start("shop", idle, settings={"q": 2})
    error = bank.exception(90)
    assert isinstance(error, SettingsDiffer)
    assert str(error).startswith("bank runs q=1, shop runs q=2; make them equal")


def test_different_runs_are_named_at_both_parties() -> None:
    town = Town("bank", "shop")
    bank, shop = town.start("bank", idle, run="monday"), town.start("shop", idle, run="tuesday")
    for future, text in (
        (bank, "bank is in run 'monday', shop is in run 'tuesday'"),
        (shop, "shop is in run 'tuesday', bank is in run 'monday'"),
    ):
        error = future.exception(10)
        assert isinstance(error, WrongRun)
        assert str(error) == text


async def waits(link: Link) -> None:
    """Tell shop that the run has begun here, and wait for an answer that never comes."""
    link.send("shop", "number", b"")
    await link.receive("answer", "shop")


async def heard(link: Link) -> None:
    """Return when the run has begun at all peers: one that still greets would wait for us to come back."""
    for peer in link.peers:
        await link.receive("number", peer)


def test_what_a_program_raises_comes_out_and_the_others_hear_of_it() -> None:
    async def fails(link: Link) -> None:
        await heard(link)
        raise ZeroDivisionError("a secret number")

    found = Town("bank", "shop", "mill").run({"bank": waits, "shop": fails, "mill": waits})
    assert isinstance(found["shop"], ZeroDivisionError)
    for name in ("bank", "mill"):
        error = found[name]
        assert isinstance(error, PeerLeft)
        # Bank may hear from mill first that mill has left because shop has.
        other = {"bank": "mill", "mill": "bank"}[name]
        assert (error.peer, error.reason) in {("shop", "ZeroDivisionError"), (other, "PeerLeft shop")}
        assert "secret" not in str(error)


def test_ctrl_c_is_passed_on_and_the_others_hear_of_it() -> None:
    async def interrupted(link: Link) -> None:
        await heard(link)
        raise KeyboardInterrupt

    found = Town("bank", "shop").run({"bank": waits, "shop": interrupted})
    assert isinstance(found["shop"], KeyboardInterrupt)
    assert isinstance(found["bank"], PeerLeft)
    assert str(found["bank"]) == "shop left the run: its operator stopped it"


def test_a_farewell_that_fails_is_said_again() -> None:
    """The connection is cut twice while a party that is stopped takes its leave."""
    cuts = iter([True, True])
    leaving = threading.Event()

    def cut(direction: str, _: int, data: bytes) -> bytes | None:
        return None if direction == "in" and leaving.is_set() and next(cuts, False) else data

    async def interrupted(link: Link) -> None:
        await heard(link)
        leaving.set()
        raise KeyboardInterrupt

    town = Town("bank", "shop", timeouts=replace(QUICK, farewell=10.0))
    with Proxy(town.addresses["bank"], cut) as proxy:
        town.reach("shop", "bank", proxy.address)
        found = town.run({"bank": waits, "shop": interrupted})
    assert isinstance(found["shop"], KeyboardInterrupt)
    assert str(found["bank"]) == "shop left the run: its operator stopped it"
    assert next(cuts, None) is None  # both cuts were made


def test_a_party_that_starts_again_sends_all_others_back_to_greet_it() -> None:
    """Three parties count rounds; one fails in the middle and comes back; all go on from the last common
    round, as the layer above does it.
    """
    town = Town("bank", "shop", "mill")
    failures = iter([True, True])
    done: dict[str, list[int]] = {name: [] for name in town.addresses}

    def party(name: str) -> None:
        with town.endpoint(name) as endpoint:
            while True:
                facts = {"rounds": len(done[name])}

                async def program(link: Link) -> None:
                    assert isinstance(link, NetworkLink)
                    known = [facts["rounds"], *(told["rounds"] for told in link.hello.values())]  # noqa: B023
                    del done[name][min(known) :]
                    for turn in range(min(known), 6):
                        for peer in link.peers:
                            link.send(peer, "number", bytes([turn]), round=turn)
                        for peer in link.peers:
                            await link.receive("number", peer, round=turn)
                        if name == "shop" and turn == 3 and next(failures, False):
                            raise ZeroDivisionError
                        done[name].append(turn)

                try:
                    endpoint.run(program, run="r", kinds=KINDS, settings=SETTINGS, facts=facts)
                    return
                except (PeerGone, ZeroDivisionError):
                    continue

    threads = [threading.Thread(target=party, args=(name,), daemon=True) for name in done]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert done == {name: list(range(6)) for name in done}


def test_a_new_session_is_noticed_while_waiting() -> None:
    town = Town("bank", "shop")
    bank = town.start("bank", waits)

    async def vanishes(link: Link) -> None:
        await heard(link)
        raise SystemExit

    # A killed process says no farewell: an endpoint that is told to be quiet stands in for it here;
    # real processes are killed in test_network_processes.
    with town.endpoint("shop", timeouts=Timeouts(farewell=1e-9)) as endpoint, pytest.raises(SystemExit):
        endpoint.run(vanishes, run="r", kinds=KINDS, settings=SETTINGS)
    second = town.start("shop", idle)
    error = bank.exception(10)
    assert isinstance(error, PeerGone)
    assert error.peer == "shop"
    assert isinstance(error, PeerRestarted | PeerLeft)
    assert not second.done()  # it waits for bank to come back
    third = town.start("bank", idle)
    result(third.result(10))
    result(second.result(10))


def test_a_full_queue_slows_the_sender_down_and_loses_nothing() -> None:
    mib = 1 << 20
    limits = Limits(message_bytes=mib, queued_bytes=2 * mib, queued_messages=3, chunk_bytes=65536)
    town = Town("bank", "shop", limits=limits)
    open_now, most = threading.Event(), []
    count = 12

    async def sends(link: Link) -> None:
        for turn in range(count):
            link.send("shop", "number", bytes([turn]) * mib, round=turn)

    async def takes(link: Link) -> list[int]:
        open_now.wait(10)
        seen = []
        for turn in range(count):
            block = await link.receive("number", "bank", round=turn)
            seen.append(block[0])
            inbox = endpoint._register.attempt.others["bank"].inbox  # type: ignore[union-attr]
            most.append((len(inbox._messages), inbox._bytes))
        return seen

    bank = town.start("bank", sends)
    with town.endpoint("shop") as endpoint:
        timer = threading.Timer(1.0, open_now.set)
        timer.start()
        run = endpoint.run(takes, run="r", kinds=KINDS, settings=SETTINGS)
    assert run.outcome == list(range(count))
    bank.result(10)
    assert max(messages for messages, _ in most) <= 3
    assert max(size for _, size in most) <= 2 * mib


def test_a_message_that_is_too_large_is_refused_where_it_is_sent() -> None:
    limits = Limits(message_bytes=1000, queued_bytes=2000)

    async def sends(link: Link) -> None:
        link.send("shop", "number", bytes(1001))

    found = Town("bank", "shop", limits=limits).run({"bank": sends, "shop": idle})
    assert isinstance(found["bank"], LimitExceeded)
    assert str(found["bank"]) == "'number' for shop has 1001 bytes, at most 1000 are allowed"


def test_who_waits_for_one_that_has_finished_waits_for_nothing() -> None:
    async def waits(link: Link) -> None:
        await link.receive("answer", "shop", round=2)

    found = Town("bank", "shop").run({"bank": waits, "shop": idle})
    assert isinstance(found["bank"], Deadlock)
    assert str(found["bank"]) == "bank waits for answer of round 2 step 0 from shop, which has finished"
    assert isinstance(found["shop"], PeerLeft)


def test_a_program_is_held_to_the_protocol_as_in_one_process() -> None:
    async def gossips(link: Link) -> None:
        link.send("shop", "gossip", b"")

    async def stranger(link: Link) -> None:
        await link.receive("number", "mill")

    assert isinstance(Town("bank", "shop").run({"bank": gossips, "shop": idle})["bank"], WrongKind)
    assert isinstance(Town("bank", "shop").run({"bank": stranger, "shop": idle})["bank"], WrongSender)


def test_off_the_clock_the_link_is_free_again() -> None:
    """Evaluation is not in the path, and what it sent does not hold up what comes after it."""

    async def sends(link: Link) -> None:
        with link.off_the_clock("evaluation"):
            time.sleep(0.3)
            link.send("shop", "number", bytes(1000))
        link.send("shop", "number", bytes(1000), round=1)

    async def takes(link: Link) -> None:
        with link.off_the_clock("evaluation"):
            await link.receive("number", "bank")
        await link.receive("number", "bank", round=1)

    found = Town("bank", "shop").run({"bank": sends, "shop": takes})
    bank, shop = result(found["bank"]).link, result(found["shop"]).link
    assert bank.paused.computation >= 0.3
    assert shop.paused.computation >= 0.3
    assert bank.path.computation < 0.3
    assert shop.path.total < 0.3


# Set-up.


def test_a_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressError, match=f"listen: 127.0.0.1:{port} is in use"):
            Endpoint(
                IDENTITIES["bank"],
                listen=f"127.0.0.1:{port}",
                peers={"shop": Peer(place(), IDENTITIES["shop"].certificate)},
            )


def test_the_port_is_free_again_at_once() -> None:
    town = Town("bank", "shop")
    for _ in range(3):
        for run in town.run({"bank": ring(1, 10), "shop": ring(1, 10)}).values():
            result(run)


def test_an_address_of_another_machine_cannot_be_listened_on() -> None:
    with pytest.raises(AddressError, match=r"listen: 192\.0\.2\.1:7001 cannot be used"):
        Endpoint(
            IDENTITIES["bank"],
            listen="192.0.2.1:7001",
            peers={"shop": Peer(place(), IDENTITIES["shop"].certificate)},
        )


def test_bad_peers_are_refused() -> None:
    bank, shop = IDENTITIES["bank"], IDENTITIES["shop"]
    for peers in ({}, {"bank": Peer(place(), shop.certificate)}):
        with pytest.raises(SettingError, match="peers: "):
            Endpoint(bank, listen="127.0.0.1:0", peers=peers)
    for certificate in (bank.certificate, IDENTITIES["mill"].certificate):
        twice = {"shop": Peer(place(), certificate), "mill": Peer(place(), IDENTITIES["mill"].certificate)}
        with pytest.raises(SettingError, match="have the same certificate; ask each"):
            Endpoint(bank, listen="127.0.0.1:0", peers=twice)


def test_an_endpoint_in_a_run_takes_no_second_one() -> None:
    town = Town("bank", "shop")
    with town.endpoint("bank") as endpoint:
        ended: list[PeerGone] = []

        def first_run() -> None:
            with pytest.raises(PeerGone) as caught:
                endpoint.run(idle, run="r", kinds=KINDS, settings=SETTINGS)
            ended.append(caught.value)

        first = threading.Thread(target=first_run)
        first.start()
        wait_until(lambda: endpoint._register.attempt is not None)
        with pytest.raises(Exception, match="bank is already in run 'r'"):
            endpoint.run(idle, run="q", kinds=KINDS, settings=SETTINGS)
        attempt = endpoint._register.attempt
        assert attempt is not None
        attempt.fail(PeerLost("shop", "enough"))
        first.join(10)
    assert [str(error) for error in ended] == ["enough"]


def test_somebody_else_at_a_peers_address_is_found_at_once() -> None:
    """Mill's address was written down as shop's."""
    town = Town("bank", "mill")
    peers = {"shop": Peer(town.addresses["mill"], IDENTITIES["shop"].certificate)}
    with (
        town.endpoint("mill"),
        town.endpoint("bank", peers=peers) as bank,
        pytest.raises(WrongCertificate, match="did not show shop's certificate") as caught,
    ):
        bank.run(idle, run="r", kinds=KINDS, settings=SETTINGS)
    assert town.addresses["mill"] in str(caught.value)


def test_settings_have_to_be_json() -> None:
    with pytest.raises(SettingError, match="settings: not something that JSON can hold"):
        Town("bank", "shop").alone("bank", idle, settings={"rate": float("nan")})
    with pytest.raises(SettingError, match="facts: not something that JSON can hold"):
        Town("bank", "shop").alone("bank", idle, facts={"state": b"bytes"})


@pytest.mark.parametrize(
    ("kind", "given", "text"),
    [
        (Limits, {"message_bytes": 0}, "message_bytes must be an integer of at least 1"),
        (Limits, {"chunk_bytes": 1 << 25}, "chunk_bytes must be an integer from 1024 to"),
        (Limits, {"message_bytes": 10, "queued_bytes": 9}, "queued_bytes: 9 given, at least message_bytes"),
        (Timeouts, {"patience": 0}, "patience must be a finite number greater than 0"),
        (Timeouts, {"beat": "x"}, "beat must be a finite number"),
    ],
)
def test_limits_and_timeouts_refuse_what_makes_no_sense(
    kind: type[Limits] | type[Timeouts], given: dict[str, Any], text: str
) -> None:
    with pytest.raises(SettingError, match=text):
        kind(**given)


def test_nothing_is_left_running() -> None:
    before = {thread.ident for thread in threading.enumerate()}
    for run in Town("bank", "shop").run({"bank": ring(1, 10), "shop": ring(1, 10)}).values():
        result(run)
    wait_until(
        lambda: (
            not [t for t in threading.enumerate() if t.ident not in before and t.name.startswith("securefed")]
        )
    )


def test_an_expired_identity_does_not_start() -> None:
    old = Identity.generate("bank", days=1, now=datetime.now(UTC) - timedelta(days=30))
    with pytest.raises(Exception, match="the certificate of bank ended on"):
        Endpoint(old, listen="127.0.0.1:0", peers={"shop": Peer(place(), IDENTITIES["shop"].certificate)})
