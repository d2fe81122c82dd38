"""A thread that cannot start, anywhere in a party's transport: one line and an end, never a deaf party."""

from __future__ import annotations

import threading

import pytest

from securefed.transport.identity import Peer
from securefed.transport.message import TransportError
from securefed.transport.network.endpoint import Endpoint
from tests.transport.network import IDENTITIES, QUICK, Town, place, wait_until
from tests.transport.test_network import ring

REMEDY = "cannot start another thread; raise the limit"


class Starts:
    """Counts the starts of threads, and lets chosen ones fail."""

    def __init__(self, patch: pytest.MonkeyPatch, *, fails: range = range(0), named: str = "") -> None:
        self.count = 0
        plain = threading.Thread.start

        def start(thread: threading.Thread) -> None:
            if named in thread.name:
                self.count += 1
                if self.count - 1 in fails:
                    raise RuntimeError("can't start new thread")
            plain(thread)

        patch.setattr(threading.Thread, "start", start)


def open_and_close() -> None:
    peers = {"shop": Peer(place(), IDENTITIES["shop"].certificate)}
    Endpoint(IDENTITIES["bank"], listen="127.0.0.1:0", peers=peers, timeouts=QUICK).close()


def test_an_endpoint_opens_or_says_what_to_do_and_always_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        all_starts = Starts(patch)
        open_and_close()
    refused = 0
    for number in range(all_starts.count):
        with monkeypatch.context() as patch:
            Starts(patch, fails=range(number, number + 1))
            try:
                open_and_close()
            except TransportError as error:
                assert REMEDY in str(error)
                refused += 1
    assert refused == all_starts.count == 2, "the listener, and greetings"


@pytest.mark.parametrize("named", ["securefed-from-", "securefed-to-"])
def test_a_run_whose_connections_get_no_thread_says_what_to_do(
    named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either nobody could be answered, or nothing sent."""
    town = Town("bank", "shop")
    Starts(monkeypatch, fails=range(1000), named=named)
    found = town.run({"bank": ring(2, 100), "shop": ring(2, 100)})
    assert any(isinstance(each, TransportError) and REMEDY in str(each) for each in found.values())


def test_a_party_that_listens_on_nothing_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two attempts nobody hears of it."""
    town = Town("bank", "shop")
    town.addresses["bank"] = "none"
    starts = Starts(monkeypatch, fails=range(1, 3), named="securefed-outbound-")
    with town.endpoint("shop") as shop, town.endpoint("bank"):
        spare = shop._spares["bank"]
        wait_until(lambda: spare._connection is not None)
    assert starts.count > 3
