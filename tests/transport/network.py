"""Parties on loopback, for tests: in threads of this process, as puppets that send whatever a test wants, and
with a proxy in between that loses, delays and damages bytes.
"""

from __future__ import annotations

import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Self

from bench.ports import free_ports
from securefed.transport.identity import Identity, Peer
from securefed.transport.link import Program
from securefed.transport.message import OtherRelease, Path, PeerRefused, TransportError
from securefed.transport.network import codec
from securefed.transport.network.calls import GREET, POST, CallChannel, CallFailed, contexts, dial
from securefed.transport.network.codec import GREETING, RUNNING, Envelope, Hello, PieceReceipt
from securefed.transport.network.endpoint import Endpoint
from securefed.transport.network.host import Limits, Timeouts
from securefed.transport.network.run import NetworkRun

KINDS = ("number", "answer")
SETTINGS = {"local_steps": 5}
QUICK = Timeouts(join=10, patience=6, beat=0.2, answer=1, silence=60, handshake=2, farewell=0.5)


class Identities(dict[str, Identity]):
    """Made when first asked for, and kept."""

    def __missing__(self, name: str) -> Identity:
        self[name] = Identity.generate(name)
        return self[name]


IDENTITIES = Identities()


def place() -> str:
    return f"127.0.0.1:{free_ports(1)[0]}"


class Town:
    """Some parties, each with an endpoint at an address; `through` puts something between two of them."""

    def __init__(
        self,
        *names: str,
        timeouts: Timeouts = QUICK,
        limits: Limits | None = None,
        through: Mapping[tuple[str, str], str] | None = None,
    ) -> None:
        self.addresses = {name: place() for name in names}
        for name in names:
            _ = IDENTITIES[name]  # here, before there are threads
        self._timeouts, self._limits, self._through = timeouts, limits, dict(through or {})

    def reach(self, caller: str, called: str, address: str) -> None:
        """From now on that caller finds the other one there."""
        self._through[caller, called] = address

    def peers(self, name: str) -> dict[str, Peer]:
        return {
            other: Peer(self._through.get((name, other), address), IDENTITIES[other].certificate)
            for other, address in self.addresses.items()
            if other != name
        }

    def endpoint(self, name: str, **given: Any) -> Endpoint:
        options = {"timeouts": self._timeouts, "limits": self._limits, "peers": self.peers(name)} | given
        return Endpoint(IDENTITIES[name], listen=self.addresses[name], **options)

    def run(self, programs: Mapping[str, Program], **given: Any) -> dict[str, NetworkRun | BaseException]:
        """Every party in a thread; what each one's run gave, or raised."""
        with ThreadPoolExecutor(len(programs)) as pool:
            runs = {
                name: pool.submit(self.alone, name, program, **given) for name, program in programs.items()
            }
        return {name: outcome(future) for name, future in runs.items()}

    def alone(
        self, name: str, program: Program, endpoint: Endpoint | None = None, **given: Any
    ) -> NetworkRun:
        options = {"run": "r", "kinds": KINDS, "settings": SETTINGS, "facts": {"party": name}} | given
        with endpoint or self.endpoint(name) as opened:
            return opened.run(program, **options)

    def start(self, name: str, program: Program, **given: Any) -> Future[NetworkRun]:
        """One party in a thread of its own; it listens when this returns."""
        found: Future[NetworkRun] = Future()
        endpoint = self.endpoint(name)

        def work() -> None:
            try:
                found.set_result(self.alone(name, program, endpoint, **given))
            except BaseException as error:  # noqa: BLE001 - KeyboardInterrupt and SystemExit are outcomes here
                found.set_exception(error)

        threading.Thread(target=work, name=f"party-{name}", daemon=True).start()
        return found


def outcome(future: Future[NetworkRun]) -> NetworkRun | BaseException:
    error = future.exception()
    return future.result() if error is None else error


def result(found: NetworkRun | BaseException) -> NetworkRun:
    if isinstance(found, BaseException):
        raise found
    return found


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


FAILED = (CallFailed, TransportError)
"""How a puppet's call ends without an answer."""


def refusal(error: BaseException) -> str:
    """The name of the error in a refusal; nothing if the call was not refused."""
    if isinstance(error, PeerRefused):
        return error.reason
    return OtherRelease.__name__ if isinstance(error, OtherRelease) else ""


class Puppet:
    """Somebody with `identity` who calls an endpoint and says what a test tells it to say, as `name`."""

    def __init__(
        self,
        target: str,
        address: str,
        identity: Identity | None,
        *,
        name: str = "",
        trust: Identity | None = None,
    ) -> None:
        self.target, self.name = target, name or (identity.name if identity else "nobody")
        self.session = secrets.token_bytes(codec.SESSION_BYTES)
        self.attempt = b""
        peer = Peer(address, (trust or IDENTITIES[target]).certificate)
        context = contexts(identity or IDENTITIES["nobody"], {target: peer})[1][target]
        if identity is None:  # the same trust, and nothing to show
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.load_verify_locations(cadata=peer.anchors.decode())
        self.channel = CallChannel(target, partial(dial, target, peer, context))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def hello(self, **fields: Any) -> Hello:
        plain = Hello(
            run="r",
            sender=self.name,
            receiver=self.target,
            session=self.session,
            state=GREETING,
            settings=codec.to_json("settings", SETTINGS),
            facts="{}",
            sessions={self.name: self.session},
            clock=time.time(),
        )
        return replace(plain, **fields)

    def greet(self, hello: Hello | None = None) -> Hello:
        return codec.decode_hello(self.greet_bytes(codec.encode_hello(hello or self.hello())))

    def greet_bytes(self, data: bytes) -> bytes:
        return bytes(self.channel.call(GREET, data, seconds=5))

    def join(self) -> None:
        """Greet until the other side runs, as its only peer."""
        deadline = time.monotonic() + 5
        known = {self.name: self.session}
        while time.monotonic() < deadline:
            with suppress(CallFailed):
                answer = self.greet(self.hello(sessions=known))
                known = {self.name: self.session}
                if answer.session:
                    known[self.target] = answer.session
                if answer.state == RUNNING:
                    self.attempt = codec.attempt_name("r", answer.settings, known)
                    return
            time.sleep(0.02)
        raise AssertionError("the other side did not begin")

    def envelope(self, sequence: int, size: int, **fields: Any) -> Envelope:
        plain = Envelope(
            run="r",
            sender=self.name,
            receiver=self.target,
            attempt=self.attempt,
            sequence=sequence,
            kind="number",
            round=sequence,
            step=0,
            size=size,
            departure=Path(),
        )
        return replace(plain, **fields)

    def send(self, sequence: int, payload: bytes, **fields: Any) -> PieceReceipt:
        """A message, or a piece of one, with fields of its envelope as a test wants them."""
        size = fields.pop("size", len(payload))
        return self.post(codec.encode_letter(self.envelope(sequence, size, **fields), payload))

    def post(self, data: bytes) -> PieceReceipt:
        return codec.decode_receipt(self.channel.call(POST, data, seconds=10))


class Proxy:
    """A TCP relay. `spoil` sees every piece with its direction ("in" towards the target) and the number of
    bytes before it, and gives back what to pass on, or None to cut the connection.
    """

    def __init__(self, target: str, spoil: Callable[[str, int, bytes], bytes | None]) -> None:
        self._host, _, port = target.partition(":")
        self._port, self._spoil = int(port), spoil
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                outer, _ = self._listener.accept()
                inner = socket.create_connection((self._host, self._port), timeout=5)
            except OSError:
                if self._listener.fileno() < 0:
                    return
                outer.close()
                continue
            inner.settimeout(None)
            self.connections += 1
            self._sockets += [outer, inner]
            for direction, source, target in (("in", outer, inner), ("out", inner, outer)):
                threading.Thread(target=self._relay, args=(direction, source, target), daemon=True).start()

    def _relay(self, direction: str, source: socket.socket, target: socket.socket) -> None:
        count = 0
        with suppress(OSError):
            while data := source.recv(65536):
                passed = self._spoil(direction, count, data)
                count += len(data)
                if passed is None:
                    break
                target.sendall(passed)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        for end in self._sockets:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
