"""Calls on real connections: what ends them, and what opens the next one."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from securefed.transport.identity import Peer
from securefed.transport.network.calls import (
    CLOSED_AT_ONCE,
    GREET,
    CallChannel,
    CallFailed,
    _connected,
    contexts,
    dial,
)
from securefed.transport.network.endpoint import Endpoint
from securefed.transport.network.host import Timeouts
from tests.transport.network import IDENTITIES, Puppet, place, wait_until


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of somebody who takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def channel_to(address: str) -> CallChannel:
    peer = Peer(address, IDENTITIES["bank"].certificate)
    context = contexts(IDENTITIES["shop"], {"bank": peer})[1]["bank"]
    return CallChannel("bank", partial(dial, "bank", peer, context))


def test_a_call_ends_at_its_deadline(silent: str) -> None:
    with pytest.raises(CallFailed, match="no answer") as failed:
        channel_to(silent).call(GREET, seconds=0.2)
    assert failed.value.late


def test_a_call_that_is_dropped_ends_at_once(silent: str) -> None:
    channel, failures = channel_to(silent), []

    def call() -> None:
        try:
            channel.call(GREET, seconds=600.0)
        except CallFailed as failed:
            failures.append(failed)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    wait_until(lambda: channel._waits is not None)
    channel.drop()
    thread.join(10.0)
    assert len(failures) == 1


def test_a_call_that_is_cancelled_before_it_begins_opens_nothing(silent: str) -> None:
    with pytest.raises(CallFailed, match="cancelled"):
        channel_to(silent).call(GREET, seconds=600.0, is_cancelled=lambda: True)


def test_an_address_of_a_family_that_this_system_lacks_is_passed_over(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name has an IPv6 address first, and this system was started without IPv6."""
    plain, port = socket.getaddrinfo, int(silent.partition(":")[2])
    lacking = (45, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("::1", port))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **named: [lacking, *plain(*args, **named)])
    with pytest.raises(OSError, match="not supported"):
        socket.socket(lacking[0], lacking[1], lacking[2])
    _connected("127.0.0.1", port, time.monotonic() + 5.0, lambda end: None).close()


def test_what_stands_in_the_way_is_said() -> None:
    with pytest.raises(CallFailed, match="nobody listens there"):
        channel_to(place()).call(GREET, seconds=5.0)
    with pytest.raises(CallFailed, match="the host name cannot be resolved"):
        channel_to("nowhere.invalid:7001").call(GREET, seconds=5.0)


def test_a_peer_that_closes_at_once_may_not_know_us() -> None:
    peers = {"mill": Peer(place(), IDENTITIES["mill"].certificate)}
    with (
        Endpoint(IDENTITIES["bank"], listen="127.0.0.1:0", peers=peers) as bank,
        pytest.raises(CallFailed) as failed,
    ):
        channel_to(bank.address).call(GREET, seconds=5.0)
    assert str(failed.value) == CLOSED_AT_ONCE


def test_a_connection_that_was_closed_in_between_is_opened_again() -> None:
    """The other side closes one on which nothing was asked for as long as its patience."""
    peers = {"shop": Peer(place(), IDENTITIES["shop"].certificate)}
    timeouts = Timeouts(patience=0.3)
    with (
        Endpoint(IDENTITIES["bank"], listen="127.0.0.1:0", peers=peers, timeouts=timeouts) as bank,
        Puppet("bank", bank.address, IDENTITIES["shop"]) as shop,
    ):
        shop.greet()
        first = shop.channel.connection
        assert first is not None
        wait_until(lambda: first.has_ended)
        assert shop.greet().sender == "bank"
        assert shop.channel.connection is not first


def test_an_answer_without_end_is_not_read() -> None:
    """A peer with the right certificate announces an answer of four gigabytes."""
    server, _ = contexts(IDENTITIES["bank"], {"shop": Peer(place(), IDENTITIES["shop"].certificate)})
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with server.wrap_socket(listener.accept()[0], server_side=True) as connection:
                connection.recv(5)
                connection.sendall(b"\x00\xff\xff\xff\xff" + bytes(1000))
                connection.recv(1)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(CallFailed):
            channel_to(f"127.0.0.1:{listener.getsockname()[1]}").call(GREET, seconds=10.0)
        thread.join(10.0)
