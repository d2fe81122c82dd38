"""Who is let in: openssl and bare clients knock in every way that is not allowed, get nothing, and leave
one line in the log each.
"""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from securefed.transport.identity import Identity, Peer
from securefed.transport.message import TransportError
from securefed.transport.network import codec
from securefed.transport.network import endpoint as endpoint_module
from securefed.transport.network.calls import GREET, HEAD, POST, REFUSED, Connection, contexts, dial
from securefed.transport.network.codec import ABSENT
from securefed.transport.network.endpoint import Endpoint
from securefed.transport.network.host import Limits, Timeouts
from securefed.transport.network.listener import NO_HANDSHAKE, Listener, crowding, origin
from tests.transport.authority import Authority
from tests.transport.network import (
    FAILED,
    IDENTITIES,
    QUICK,
    Puppet,
    Town,
    place,
    refusal,
    result,
    wait_until,
)
from tests.transport.test_network import idle, ring

OLD = Identity.generate("farm", days=1, now=datetime.now(UTC) - timedelta(days=30))
STRANGER = Identity.generate("shop")
"""Has the right name and a certificate that nobody pinned."""


@pytest.fixture
def bank() -> Iterator[Endpoint]:
    """An endpoint that knows shop, mill, and farm by a certificate that has expired since."""
    peers = {name: Peer(place(), IDENTITIES[name].certificate) for name in ("shop", "mill")}
    peers["farm"] = Peer(place(), OLD.certificate)
    with Endpoint(IDENTITIES["bank"], listen="127.0.0.1:0", peers=peers, timeouts=QUICK) as endpoint:
        yield endpoint


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "securefed.transport"]


def one_line(caplog: pytest.LogCaptureFixture) -> str:
    wait_until(lambda: bool(lines(caplog)))
    time.sleep(0.2)  # for a second one, which must not come
    (line,) = lines(caplog)
    return line


def test_a_known_peer_is_answered(bank: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    """So that what follows is known to be able to fail."""
    for name in ("shop", "mill"):
        with Puppet("bank", bank.address, IDENTITIES[name]) as puppet:
            answer = puppet.greet()
            assert (answer.sender, answer.receiver, answer.state) == ("bank", name, ABSENT)
    time.sleep(0.3)
    assert lines(caplog) == []


@pytest.mark.parametrize("identity", [None, STRANGER, OLD], ids=["no-certificate", "unknown", "expired"])
def test_a_bare_client_that_is_not_a_peer_gets_nothing(
    bank: Endpoint, identity: Identity | None, caplog: pytest.LogCaptureFixture
) -> None:
    with Puppet("bank", bank.address, identity, name="shop") as puppet:
        with pytest.raises(FAILED) as caught:
            puppet.greet()
        assert not refusal(caught.value), "TLS itself refuses"
        line = one_line(caplog)
    assert line.startswith("refused 127.0.0.1:")
    assert line.endswith(NO_HANDSHAKE)


def test_a_client_without_tls_gets_nothing(bank: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    host, _, port = bank.address.partition(":")
    with socket.create_connection((host, int(port)), timeout=5) as caller:
        caller.sendall(HEAD.pack(GREET, 0))
        with suppress(ConnectionError):
            assert caller.recv(100)[:1] in (b"", b"\x15"), "an alert of TLS at most"
        assert one_line(caplog).endswith(NO_HANDSHAKE)


@pytest.mark.parametrize("call", ["greet", "post"])
def test_a_known_peer_that_gives_another_name_gets_nothing(
    bank: Endpoint, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Puppet("bank", bank.address, IDENTITIES["shop"], name="mill") as puppet:
        with pytest.raises(FAILED) as caught:
            if call == "greet":
                puppet.greet()
            else:
                puppet.attempt = bytes(32)
                puppet.send(0, b"number")
        assert refusal(caught.value) == "WrongSender"
        line = one_line(caplog)
    assert line.startswith("refused a call of shop from 127.0.0.1:")
    assert line.endswith("the certificate of 'shop' came with the name 'mill'")


def test_a_known_peer_finds_no_other_calls(bank: Endpoint) -> None:
    with Puppet("bank", bank.address, IDENTITIES["shop"]) as puppet:
        with pytest.raises(FAILED) as caught:
            puppet.channel.call(77, seconds=5)
        assert str(caught.value).startswith("bank refused: shop sent what is not a call; all parties need")


@pytest.mark.parametrize("size", [Limits().wire_bytes + 1, (1 << 32) - 1])
def test_a_question_that_is_too_large_is_not_read(
    bank: Endpoint, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    with Puppet("bank", bank.address, IDENTITIES["shop"]) as puppet:
        puppet.greet()
        connection = puppet.channel.connection
        assert connection is not None
        connection.tls.settimeout(5)
        connection.tls.sendall(HEAD.pack(POST, size))
        how, length = connection.receive_head(time.monotonic() + 5)
        connection.receive_bytes(length, time.monotonic() + 5)
        wait_until(lambda: connection.has_ended)
        assert how == REFUSED
        assert "sent what is not a call" in one_line(caplog)


def test_a_peer_with_too_many_connections_loses_its_oldest() -> None:
    peers = {"shop": Peer(place(), IDENTITIES["shop"].certificate)}
    limits = Limits(connections=3)
    with (
        Endpoint(IDENTITIES["bank"], listen="127.0.0.1:0", peers=peers, limits=limits) as endpoint,
        ExitStack() as stack,
    ):
        puppets = [
            stack.enter_context(Puppet("bank", endpoint.address, IDENTITIES["shop"])) for _ in range(5)
        ]
        for puppet in puppets:
            puppet.greet()
        ends = [puppet.channel.connection for puppet in puppets]
        wait_until(lambda: [end is not None and end.has_ended for end in ends] == [True] * 2 + [False] * 3)


def test_a_peer_with_calls_under_way_does_not_use_up_threads(caplog: pytest.LogCaptureFixture) -> None:
    """Each of its messages waits until all parties are here, also after its connection has ended."""
    town = Town("bank", "shop", limits=Limits(connections=3))
    future = town.start("bank", idle)
    peer = Peer(town.addresses["bank"], IDENTITIES["bank"].certificate)
    context = contexts(IDENTITIES["shop"], {"bank": peer})[1]["bank"]
    with Puppet("bank", town.addresses["bank"], IDENTITIES["shop"]) as puppet:
        puppet.attempt = bytes(32)
        letter = codec.encode_letter(puppet.envelope(0, 10), bytes(10))
        ends = []
        for _ in range(20):
            ends.append(dial("bank", peer, context, 5.0, lambda end: None))
            ends[-1].send(POST, letter, deadline=time.monotonic() + 5)
        wait_until(lambda: any("shop has 6 connections already" in line for line in lines(caplog)))
        threads = [t for t in threading.enumerate() if t.name == "securefed-from-shop"]
        assert len(threads) <= 6
        for end in ends:
            end.end()
        # They end by themselves, and then there is room again.
        wait_until(lambda: not any(t.is_alive() for t in threads))
        assert puppet.greet().sender == "bank"
        puppet.greet(puppet.hello(run="another"))
    assert future.exception(20) is not None


def test_a_flood_of_refused_calls_is_not_a_flood_of_lines(
    bank: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    with Puppet("bank", bank.address, IDENTITIES["shop"]) as puppet:
        for _ in range(80):
            with pytest.raises(FAILED):
                puppet.channel.call(77, seconds=5)
    assert len(lines(caplog)) == 60


def test_a_flood_of_callers_that_leave_is_not_a_flood_of_lines(
    bank: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    """And it does not hide a refusal, which is of another level."""
    caplog.set_level("INFO", "securefed.transport")
    host, _, port = bank.address.partition(":")
    for _ in range(80):
        socket.create_connection((host, int(port))).close()
    with Puppet("bank", bank.address, STRANGER) as puppet, pytest.raises(FAILED):
        puppet.greet()
    wait_until(lambda: any(line.startswith("refused") for line in lines(caplog)))
    assert sum("connected and left" in line for line in lines(caplog)) == 60
    assert any("20 more lines before were left out" in line for line in lines(caplog))


def test_a_greeting_for_somebody_else_is_refused(bank: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    with Puppet("bank", bank.address, IDENTITIES["shop"]) as puppet, pytest.raises(FAILED) as caught:
        puppet.greet(puppet.hello(receiver="mill"))
    assert str(caught.value) == "bank refused: this is bank, the greeting is for 'mill'"
    assert "refused a call of shop from 127.0.0.1:" in one_line(caplog)


def test_a_run_goes_on_while_strangers_knock(caplog: pytest.LogCaptureFixture) -> None:
    town = Town("bank", "shop")
    stop = threading.Event()

    def knock() -> None:
        while not stop.is_set():
            with (
                Puppet("bank", town.addresses["bank"], STRANGER) as puppet,
                pytest.raises(FAILED),
            ):
                puppet.greet()

    thread = threading.Thread(target=knock)
    thread.start()
    found = town.run({"bank": ring(5, 100_000), "shop": ring(5, 100_000)})
    stop.set()
    thread.join(10)
    assert result(found["bank"]).outcome == sum(range(1, 6)) * 100_000


# The door by itself.


def test_who_says_nothing_is_sent_away(caplog: pytest.LogCaptureFixture) -> None:
    peers = {"shop": Peer(place(), IDENTITIES["shop"].certificate)}
    timeouts = Timeouts(handshake=0.5)
    with Endpoint(IDENTITIES["bank"], listen="127.0.0.1:0", peers=peers, timeouts=timeouts) as endpoint:
        host, _, port = endpoint.address.partition(":")
        with socket.create_connection((host, int(port))) as silent:
            silent.settimeout(5)
            assert silent.recv(1) == b""
        assert one_line(caplog).endswith("it did not show who it is in 0.5 s")


def idle_callers(endpoint: Endpoint, count: int, addresses: int) -> list[socket.socket]:
    """Connections that say nothing, from several addresses of this machine in turn."""
    host, _, port = endpoint.address.partition(":")
    return [
        socket.create_connection((host, int(port)), source_address=(f"127.0.0.{2 + i % addresses}", 0))
        for i in range(count)
    ]


class NaiveListener(Listener):
    """Who is there stays, whoever comes."""

    def _accept(self) -> None:
        if len(self._waiting) < self._limits.callers:
            super()._accept()
        else:
            self._listener.accept()[0].close()


@pytest.mark.parametrize("addresses", [1, 3, 60])
@pytest.mark.parametrize("naive", [True, False], ids=["naive", "ours"])
def test_idle_callers_keep_nobody_out(addresses: int, naive: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty silent sockets, twice as many as there are places. They are not timed out during the test."""
    if naive:
        monkeypatch.setattr(endpoint_module, "Listener", NaiveListener)
    limits = Limits(callers_per_address=1000 if naive else 8)
    peers = {"shop": Peer(place(), IDENTITIES["shop"].certificate)}
    timeouts = Timeouts(handshake=3600.0)
    with Endpoint(
        IDENTITIES["bank"], listen="127.0.0.1:0", peers=peers, timeouts=timeouts, limits=limits
    ) as endpoint:
        callers = idle_callers(endpoint, 60, addresses)
        with Puppet("bank", endpoint.address, IDENTITIES["shop"]) as puppet:
            if naive:
                with pytest.raises(FAILED):
                    puppet.greet()
            else:
                assert puppet.greet().sender == "bank"
        for caller in callers:
            caller.close()


def test_who_goes_for_a_newcomer() -> None:
    def caller(remote: str, begun: float) -> Connection:
        made = Connection.__new__(Connection)
        made.remote, made.begun = remote, begun
        return made

    peer = caller("192.0.2.1:1000", 1.0)
    crowd = [caller(f"192.0.2.9:{i}", 2.0 + i) for i in range(3)]
    waiting = [*crowd, peer]
    assert crowding(waiting, "192.0.2.5", callers=5, each=3) == []
    assert crowding(waiting, "192.0.2.5", callers=4, each=3) == [crowd[0]], "not the peer, which was first"
    assert crowding(waiting, "192.0.2.9", callers=9, each=3) == [crowd[0]], "its own"
    assert crowding([peer], "192.0.2.1", callers=9, each=1) == [peer]
    assert origin("2001:db8:1:2:3::4:7001") == origin("2001:db8:1:2:ffff::5:9") == "2001:db8:1:2::/64"
    assert origin("fe80::1%eth0:7001") == "fe80::/64"


def test_callers_that_say_nothing_are_sent_away(caplog: pytest.LogCaptureFixture) -> None:
    peers = {"shop": Peer(place(), IDENTITIES["shop"].certificate)}
    limits, timeouts = Limits(callers=3, callers_per_address=3), Timeouts(handshake=1.0)
    with Endpoint(
        IDENTITIES["bank"], listen="127.0.0.1:0", peers=peers, timeouts=timeouts, limits=limits
    ) as endpoint:
        callers = idle_callers(endpoint, 9, 1)  # seven have room: three strangers, and the peer's four
        wait_until(lambda: sum("and others wait" in line for line in lines(caplog)) == 2)
        wait_until(lambda: sum("did not show who it is in" in line for line in lines(caplog)) == 7)
        for caller in callers:
            caller.close()


def test_a_flood_of_callers_is_not_a_flood_of_lines(bank: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    host, _, port = bank.address.partition(":")
    for _ in range(80):
        with socket.create_connection((host, int(port))) as caller:
            caller.sendall(b"GET / HTTP/1.1\r\n\r\n")
            caller.settimeout(5)
            with suppress(ConnectionError):
                while caller.recv(100):
                    pass
    time.sleep(1.0)
    assert 0 < len(lines(caplog)) <= 60


def test_a_caller_that_leaves_by_itself_is_no_alarm(bank: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    """A load balancer's probe, a port scan, a peer that was killed while it connected."""
    caplog.set_level("INFO", "securefed.transport")
    host, _, port = bank.address.partition(":")
    socket.create_connection((host, int(port))).close()
    assert one_line(caplog).endswith("connected and left before it showed who it is")
    assert caplog.records[0].levelname == "INFO"


def test_callers_need_no_threads(bank: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread for each caller was a way to make a party deaf: a thread that cannot start ends a server."""

    def none_left(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    before = threading.active_count()
    monkeypatch.setattr(threading.Thread, "start", none_left)
    callers = idle_callers(bank, 40, 3)
    monkeypatch.undo()
    with Puppet("bank", bank.address, IDENTITIES["shop"]) as puppet:
        assert puppet.greet().sender == "bank"
    assert threading.active_count() <= before + 1, "that of the peer"
    for caller in callers:
        caller.close()


def test_an_endpoint_that_gets_no_threads_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none_left)
    peers = {"shop": Peer(place(), IDENTITIES["shop"].certificate)}
    with pytest.raises(TransportError, match="cannot start another thread; raise the limit"):
        Endpoint(IDENTITIES["bank"], listen="127.0.0.1:0", peers=peers)


# openssl.


def s_client(endpoint: Endpoint, *options: str) -> subprocess.CompletedProcess[bytes]:
    """Connect and ask a question that no party understands; what the server answers is the output."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    command = [openssl, "s_client", "-connect", endpoint.address, "-quiet", *options]
    return subprocess.run(
        [
            shutil.which("sh") or "/bin/sh",
            "-c",
            '(printf "\\115\\000\\000\\000\\000"; sleep 0.5) | exec "$@"',
            "sh",
            *command,
        ],
        capture_output=True,
        timeout=20,
        check=False,
    )


def files(folder: Path, identity: Identity) -> list[str]:
    """The arguments of openssl for a party's key, which lies there under a password."""
    (folder / "chain.pem").write_bytes(identity.certificate.pem + identity.key_pem("password"))
    return ["-cert", str(folder / "chain.pem"), "-key", str(folder / "chain.pem"), "-pass", "pass:password"]


@pytest.mark.slow
def test_openssl_with_a_known_certificate_gets_an_answer(bank: Endpoint, tmp_path: Path) -> None:
    done = s_client(bank, "-tls1_3", *files(tmp_path, IDENTITIES["shop"]))
    assert b"Malformed" in done.stdout


@pytest.mark.parametrize("identity", [None, STRANGER, OLD], ids=["no-certificate", "unknown", "expired"])
def test_openssl_that_is_not_a_peer_gets_nothing(
    bank: Endpoint, identity: Identity | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    done = s_client(bank, "-tls1_3", *(files(tmp_path, identity) if identity else []))
    assert done.stdout == b""
    assert one_line(caplog).endswith(NO_HANDSHAKE)


@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_1"])
def test_openssl_with_an_older_tls_gets_nothing(
    bank: Endpoint, version: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = [version, "-cipher", "ALL:@SECLEVEL=0", *files(tmp_path, IDENTITIES["shop"])]
    done = s_client(bank, *options)
    assert done.stdout == b""
    assert done.returncode != 0
    assert one_line(caplog).endswith(NO_HANDSHAKE)


# The other direction: a party calls, and what answers is not what it should be.


def answering(folder: Path, identity: Identity, version: ssl.TLSVersion) -> tuple[str, list[str]]:
    """A TLS server of Python's; what becomes of one handshake is put into the list."""
    (folder / "chain.pem").write_bytes(identity.certificate.pem + identity.key_pem("password"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = version
    context.load_cert_chain(folder / "chain.pem", password="password")
    listener = socket.create_server(("127.0.0.1", 0))
    happened: list[str] = []

    def serve() -> None:
        connection, _ = listener.accept()
        try:
            with context.wrap_socket(connection, server_side=True) as secured:
                happened.append(str(secured.version()))
        except (ssl.SSLError, OSError) as error:
            happened.append(f"refused: {error}")
        listener.close()

    threading.Thread(target=serve, daemon=True).start()
    return f"127.0.0.1:{listener.getsockname()[1]}", happened


@pytest.mark.parametrize(
    ("version", "expected"), [(ssl.TLSVersion.TLSv1_3, "TLSv1.3"), (ssl.TLSVersion.TLSv1_2, "refused")]
)
def test_a_party_calls_with_tls_1_3_only(version: ssl.TLSVersion, expected: str, tmp_path: Path) -> None:
    address, happened = answering(tmp_path, IDENTITIES["shop"], version)
    town = Town("bank", "shop", timeouts=Timeouts(join=1.0, farewell=0.1))
    town.reach("bank", "shop", address)
    future = town.start("bank", idle)
    wait_until(lambda: bool(happened))
    assert happened[0].startswith(expected)
    assert future.exception(20) is not None


def test_a_party_does_not_talk_to_an_unpinned_server(tmp_path: Path) -> None:
    """A certificate with the right name, and not the pinned one."""
    address, happened = answering(tmp_path, STRANGER, ssl.TLSVersion.TLSv1_3)
    town = Town("bank", "shop")
    town.reach("bank", "shop", address)
    with pytest.raises(Exception, match="did not show shop's certificate"):
        town.alone("bank", idle)
    assert "TLSv1.3" not in happened


# Certificates from an authority, whose other certificates are nobody's.


def test_a_certificate_from_an_authority_can_be_pinned_too() -> None:
    authority = Authority("guild")
    shop = authority.identity("shop")
    peers = {"shop": Peer(place(), shop.certificate)}
    with Endpoint(IDENTITIES["bank"], listen="127.0.0.1:0", peers=peers) as endpoint:
        with Puppet("bank", endpoint.address, shop) as puppet:
            assert puppet.greet().sender == "bank"
        # Another one of the same authority, for the same name, is not the pinned one.
        with (
            Puppet("bank", endpoint.address, authority.identity("shop")) as puppet,
            pytest.raises(FAILED),
        ):
            puppet.greet()


def test_a_pinned_certificate_issues_no_others(caplog: pytest.LogCaptureFixture) -> None:
    """Its key may sign certificates, as far as TLS is concerned. It still speaks for its own party alone."""
    authority = Authority("guild", is_authority=None)
    peers = {
        "shop": Peer(place(), authority.certificate),
        "mill": Peer(place(), IDENTITIES["mill"].certificate),
    }
    made = authority.identity("mill")
    with (
        Endpoint(IDENTITIES["bank"], listen="127.0.0.1:0", peers=peers) as endpoint,
        Puppet("bank", endpoint.address, made) as puppet,
    ):
        with pytest.raises(FAILED):
            puppet.greet()
        assert one_line(caplog).endswith("the certificate of 'mill' is not a peer's")


def test_a_delivery_needs_an_admitted_caller_before_anything_is_read(bank: Endpoint) -> None:
    with Puppet("bank", bank.address, IDENTITIES["shop"]) as puppet:
        with pytest.raises(FAILED) as caught:
            puppet.post(b"no")
        assert str(caught.value) == "bank refused: shop sent a letter without an envelope"
