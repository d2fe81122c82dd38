"""Two certificates of a peer at a time: renewal without a stop, revocation, and what is said about days."""

from __future__ import annotations

import tempfile
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from securefed.errors import SettingError
from securefed.transport.identity import Certificate, CertificateFinding, Identity, Peer, check_validity
from securefed.transport.network.endpoint import Endpoint
from tests.transport.network import FAILED, IDENTITIES, QUICK, Puppet, Town, place, refusal
from tests.transport.test_network import ring

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OLD, NEW = Identity.generate("shop"), Identity.generate("shop")


def both(*identities: Identity) -> tuple[Certificate, ...]:
    return tuple(identity.certificate for identity in identities)


@pytest.mark.parametrize("shown", [OLD, NEW], ids=["old", "new"])
@pytest.mark.parametrize("pins", [(OLD, NEW), (NEW, OLD)], ids=["old first", "new first"])
def test_a_peer_may_show_either_of_two_pinned_certificates(
    shown: Identity, pins: tuple[Identity, Identity]
) -> None:
    """As a caller, and where it is called."""
    town = Town("bank", "shop")
    bank = town.endpoint("bank", peers={"shop": Peer(town.addresses["shop"], both(*pins))})
    shop = Endpoint(
        shown,
        listen=town.addresses["shop"],
        peers={"bank": Peer(town.addresses["bank"], IDENTITIES["bank"].certificate)},
        timeouts=QUICK,
    )
    outcomes: list[object] = []

    def play(name: str, endpoint: Endpoint) -> None:
        outcomes.append(town.alone(name, ring(3, 1000), endpoint).outcome)

    threads = [threading.Thread(target=play, args=each) for each in (("bank", bank), ("shop", shop))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert outcomes == [6000, 6000]


def test_a_pin_that_is_removed_is_refused_from_then_on() -> None:
    address = place()
    peers = {"shop": Peer(place(), both(OLD, NEW))}
    with (
        Endpoint(IDENTITIES["bank"], listen=address, peers=peers, timeouts=QUICK) as bank,
        Puppet("bank", address, OLD) as old,
        Puppet("bank", address, NEW) as new,
    ):
        old.greet()
        new.greet()
        bank.repin({"shop": Peer(place(), NEW.certificate)})
        with pytest.raises(FAILED):
            old.greet()
        for identity, trusted in ((NEW, True), (OLD, False)):
            with Puppet("bank", address, identity) as again:
                if trusted:
                    assert again.greet().sender == "bank"
                    continue
                with pytest.raises(FAILED) as refused:
                    again.greet()
                assert not refusal(refused.value), "TLS itself refuses"


def test_pins_that_could_not_be_changed_are_changed_by_the_next_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk was full for a moment. A revoked certificate must not stay trusted after that."""
    address, revoked = place(), {"shop": Peer(place(), NEW.certificate)}
    with (
        Endpoint(
            IDENTITIES["bank"], listen=address, peers={"shop": Peer(place(), both(OLD, NEW))}, timeouts=QUICK
        ) as bank,
        Puppet("bank", address, OLD) as old,
    ):
        old.greet()
        with monkeypatch.context() as patch:
            patch.setattr(tempfile, "tempdir", "/nowhere")
            with pytest.raises(OSError, match="nowhere"):
                bank.repin(revoked)
        bank.repin(revoked)
        with pytest.raises(FAILED):
            old.greet()


def test_a_pin_that_is_removed_ends_a_caller_that_is_let_in_at_that_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = place()
    looked, go_on, plain = threading.Event(), threading.Event(), Peer.speaks

    def speaks(peer: Peer, shown: Certificate) -> bool:
        known = plain(peer, shown)
        if threading.current_thread().name == "securefed-listener" and not looked.is_set():
            looked.set()
            go_on.wait(0.5)  # the pins change now, if they can
        return known

    def revoke(bank: Endpoint) -> None:
        looked.wait(5)
        bank.repin({"shop": Peer(place(), NEW.certificate)})
        go_on.set()

    monkeypatch.setattr(Peer, "speaks", speaks)
    peers = {"shop": Peer(place(), both(OLD, NEW))}
    with (
        Endpoint(IDENTITIES["bank"], listen=address, peers=peers, timeouts=QUICK) as bank,
        Puppet("bank", address, OLD) as old,
    ):
        thread = threading.Thread(target=revoke, args=(bank,))
        thread.start()
        with suppress(*FAILED):
            old.greet()
        thread.join(5)
        with pytest.raises(FAILED):
            old.greet()


def test_a_pin_that_is_added_is_trusted_from_then_on() -> None:
    """A party that runs reads its pins again when an attempt ends; its own calls trust the new one too."""
    town = Town("bank", "shop")
    bank = town.endpoint("bank", peers={"shop": Peer(town.addresses["shop"], OLD.certificate)})
    with Puppet("bank", town.addresses["bank"], NEW) as early, pytest.raises(FAILED):
        early.greet()
    bank.repin({"shop": Peer("another.example:1", both(OLD, NEW))})
    shop = Endpoint(
        NEW,
        listen=town.addresses["shop"],
        peers={"bank": Peer(town.addresses["bank"], IDENTITIES["bank"].certificate)},
        timeouts=QUICK,
    )
    thread = threading.Thread(target=lambda: town.alone("shop", ring(2, 10), shop))
    thread.start()
    assert town.alone("bank", ring(2, 10), bank).outcome == 30
    thread.join(20)


def test_connections_of_a_party_that_listens_on_nothing_trust_the_pins_of_now() -> None:
    """The old certificate gets no connection any more, and the new one gets some."""
    town = Town("bank", "shop")
    there = town.addresses["shop"]
    town.addresses["bank"] = "none"
    bank = town.endpoint("bank", peers={"shop": Peer(there, OLD.certificate)})
    bank.repin({"shop": Peer(there, NEW.certificate)})
    caller = {"bank": Peer("none", IDENTITIES["bank"].certificate)}
    with Endpoint(OLD, listen=there, peers=caller, timeouts=QUICK) as revoked:
        time.sleep(10 * QUICK.beat)
        assert revoked._spares["bank"]._connection is None
    shop = Endpoint(NEW, listen=there, peers=caller, timeouts=QUICK)
    thread = threading.Thread(target=lambda: town.alone("shop", ring(2, 10), shop))
    thread.start()
    assert town.alone("bank", ring(2, 10), bank).outcome == 30
    thread.join(20)


def test_what_cannot_be_pinned_together() -> None:
    for pins in ((OLD, OLD), (OLD, Identity.generate("mall")), (OLD, NEW, Identity.generate("shop"))):
        with pytest.raises(SettingError, match="certificate: "):
            Peer("shop.example:1", both(*pins))
    with pytest.raises(SettingError, match="0 given"):
        Peer("shop.example:1", ())


def until(name: str, days: int) -> Certificate:
    """A certificate that ends so many days after NOW."""
    made = NOW - timedelta(days=1000)
    return Identity.generate(name, days=1000 + days, now=made).certificate


def said(own: int, *peer: int) -> list[tuple[str, str]]:
    peers = {"shop": Peer("shop.example:1", tuple(until("shop", days) for days in peer))}
    found: list[CertificateFinding] = list(check_validity("bank", until("bank", own), peers, NOW))
    return [(each.holder, each.verdict) for each in found]


def test_thirty_days_before_its_end_a_certificate_is_mentioned() -> None:
    assert said(31, 31) == []
    assert said(30, 31) == []
    assert said(29, 31) == [("bank", "soon")]
    assert said(31, 29) == [("shop", "soon")]
    assert said(31, 1) == [("shop", "soon")]
    assert said(31, 0) == [("shop", "ended")]
    assert said(-5, 100) == [("bank", "ended")]


def test_of_two_pins_one_that_is_valid_is_enough() -> None:
    assert said(100, 10, 500) == [], "the next one is pinned already"
    assert said(100, -10, 500) == [("shop", "soon")], "the old one can go"
    assert said(100, 10, 20) == [("shop", "soon"), ("shop", "soon")]
    assert said(100, -10, -20) == [("shop", "ended"), ("shop", "ended")]


def test_what_is_said_names_the_day_and_what_to_do() -> None:
    peers = {"shop": Peer("shop.example:1", until("shop", 5))}
    (line,) = check_validity("bank", until("bank", 400), peers, NOW)
    assert line.text == (
        "the certificate of shop ends on 2026-01-06; ask shop for a new one (securefed init shop --renew tls)"
    )
    future = Identity.generate("shop", now=NOW + timedelta(days=10)).certificate
    (line,) = check_validity("bank", None, {"shop": Peer("shop.example:1", future)}, NOW)
    assert line.verdict == "yet" and "is this machine's clock right?" in line.text
