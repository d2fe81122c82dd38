"""One party's place on the network: the public port, and a line to each peer.

An endpoint stays open for as long as the party lives. One attempt after the other uses it (`run`). Between
attempts it answers greetings with the end of the last one, or with "in no run".
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import Any

from securefed.errors import SettingError
from securefed.files import Closing
from securefed.transport.identity import (
    NOT_LISTENING,
    Identity,
    IdentityError,
    Peer,
    check_party_name,
    check_reachable,
    check_validity,
    parse_address,
)
from securefed.transport.link import Timer
from securefed.transport.message import TransportError
from securefed.transport.network.attempt import Attempt, Register
from securefed.transport.network.calls import CallChannel, Connection, Publish, contexts, dial
from securefed.transport.network.host import LOG, Host, Limits, Timeouts, thread_starts
from securefed.transport.network.listener import Listener
from securefed.transport.network.peer_channel import Line
from securefed.transport.network.reverse import Outbound, Spare
from securefed.transport.network.rpc_handlers import Reception
from securefed.transport.network.run import Driver, NetworkProgram, NetworkRun, Waiting


class Endpoint(Closing):
    """A party's open port and its lines to peers.

    `listen` is HOST:PORT; port 0 takes a free one. With "none" no port is open to other machines, and this
    party opens all connections itself (securefed.transport.network.reverse).
    """

    def __init__(
        self,
        identity: Identity,
        *,
        listen: str,
        peers: Mapping[str, Peer],
        limits: Limits | None = None,
        timeouts: Timeouts | None = None,
        log: logging.Logger = LOG,
    ) -> None:
        self._host = Host(limits, timeouts, log)
        self.name, self.timeouts = identity.name, self._host.timeouts
        self._peers = {check_party_name(name): peer for name, peer in peers.items()}
        if not peers or self.name in peers:
            raise SettingError(
                f"peers: {', '.join(peers) or 'none'} given, others than {self.name} are needed"
            )
        check_distinct(identity, peers)
        for finding in check_validity(self.name, identity.certificate, {}, datetime.now(UTC)):
            if finding.verdict != "soon":
                raise IdentityError(finding.text)
        check_reachable(self.name, listen, peers)
        self._identity = identity
        self._register = Register(self.name)
        self._reception = Reception(self._register, self._peers, self._host)
        self._server_context, self._contexts = contexts(identity, self._peers)
        self._spares = {name: Spare() for name, peer in self._peers.items() if not peer.listens}
        self._listener: Listener | None = None
        self._lines: dict[str, Line] = {}
        self._outbound: dict[str, Outbound] = {}
        self.address = "nothing"
        try:
            self._open(listen)
        except TransportError:
            self.close()
            raise

    def _open(self, listen: str) -> None:
        if listen != NOT_LISTENING:
            host, port = parse_address(listen)
            self._listener = Listener(
                (host, port),
                self._peers,
                self._server_context,
                self._reception.answer,
                lambda connection: self._spares[connection.party].put(connection),
                self._register.fail,
                self._host,
            )
            shown = f"[{host}]" if ":" in host else host
            self.address = f"{shown}:{self._listener.port}"
        for name in self._peers:
            connect = partial(self._connect, name)
            channels = CallChannel(name, connect), CallChannel(name, connect)
            self._lines[name] = Line(name, *channels, self._host)
            if self._listener is None:
                handle, failed = self._reception.answer, self._register.fail
                self._outbound[name] = Outbound(name, connect, handle, failed, self._host)

    def _connect(self, name: str, seconds: float, publish: Publish) -> Connection:
        spare = self._spares.get(name)
        if spare is not None:
            return spare.take(min(seconds, self.timeouts.beat))
        return dial(name, self._peers[name], self._contexts[name], seconds, publish)

    def repin(self, peers: Mapping[str, Peer]) -> None:
        """Trust other certificates of the same peers from now on, between two attempts."""
        check_distinct(self._identity, peers)
        changed = {
            name: replace(before, certificate=peers[name].certificate) for name, before in self._peers.items()
        }
        changed = {name: peer for name, peer in changed.items() if peer != self._peers[name]}
        if not changed:
            return
        # This may fail, for example on a full disk. Then nothing has changed, and another try does all of it.
        self._server_context, self._contexts = contexts(self._identity, {**self._peers, **changed})
        self._peers.update(changed)
        if self._listener is not None:
            self._listener.trust(self._peers, self._server_context, tuple(changed))
        for name in changed:
            self._lines[name].renew()
            if name in self._outbound:
                self._outbound[name].renew()
            if name in self._spares:
                self._spares[name].put(None)
            self._host.log.info("the certificates of %s were read again", name)

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        for outbound in self._outbound.values():
            outbound.close()
        for spare in self._spares.values():
            spare.put(None)
        for line in self._lines.values():
            line.close()

    def present(self) -> tuple[str, ...]:
        """Return the peers that answer in the current attempt."""
        attempt = self._register.attempt
        others = {} if attempt is None else attempt.others
        oldest = self._host.now() - self.timeouts.patience
        return tuple(
            name
            for name, other in others.items()
            if other.hello is not None and not other.trouble and other.heard > oldest
        )

    def run(
        self,
        program: NetworkProgram,
        *,
        run: str,
        kinds: Collection[str],
        settings: Mapping[str, Any],
        facts: Mapping[str, Any] | None = None,
        after: Collection[str] = (),
        sizes: Mapping[str, int | None] = MappingProxyType({}),
        join: float = math.inf,
        on_wait: Callable[[Waiting], None] | None = None,
        timer: Timer = time.perf_counter,
    ) -> NetworkRun:
        """Make one attempt: greet all peers, run the program, and wait until theirs have ended too.

        `settings` must be equal at all parties. Peers get `facts` in their `link.hello`. `PeerGone` means
        that all must begin a new attempt. `after` names completed runs, of any process: a peer that still
        greets for one of them is directed to the new run. `sizes` bounds the bytes of messages by kind;
        messages of a kind with None wait until the program calls `NetworkLink.bound`. `join`: seconds that
        peers are waited for, where that is less than in the timeouts.
        """
        attempt = Attempt(
            self.name,
            tuple(self._peers),
            run=run,
            kinds=kinds,
            settings=settings,
            facts=facts or {},
            host=self._host,
            done={*after, *self._register.done},
            addresses={name: peer.address for name, peer in self._peers.items() if peer.listens},
            sizes=sizes,
        )
        self._register.begin(attempt)
        try:
            driver = Driver(attempt, self._lines, self._host, join, on_wait=on_wait, timer=timer)
            with thread_starts():
                return driver.run(program)
        finally:
            self._register.end()


def check_distinct(identity: Identity, peers: Mapping[str, Peer]) -> None:
    """Refuse a certificate that two parties have."""
    holders = {identity.certificate: identity.name}
    for name, peer in peers.items():
        for pin in peer.pins:
            if (other := holders.setdefault(pin, name)) != name:
                raise SettingError(
                    f"peers: {other} and {name} have the same certificate; ask each of them for its own"
                )
