"""What every command that goes on the network has to do first: keys, address, log lines, signals."""

from __future__ import annotations

import logging
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import FrameType
from typing import Any

from securefed.cli.keys import PartyKeys
from securefed.cli.settings import PartyFile
from securefed.cli.terminal import Terminal, clock
from securefed.errors import SettingError
from securefed.transport.grpc import Certificate, Endpoint, PeerGone, PeerLeft, Timeouts, Waiting

__all__ = [
    "PASSING",
    "check_certificates",
    "load_keys",
    "lost",
    "open_endpoint",
    "passes",
    "spoken",
    "told",
    "waiting_note",
]

REASONS = {
    "Connection refused": "nobody listens there",
    "DNS resolution failed": "its address is unknown",
    "Deadline Exceeded": "no answer",
    "timed out": "no answer",
    "Socket closed": "it ends the connection: not ready yet, or our certificate is unknown there",
    "onnection reset": "it ends the connection: not ready yet, or our certificate is unknown there",
}
PASSING = frozenset(
    {
        "",
        "ABSENT",
        "KeyboardInterrupt",
        "MemoryError",
        "OSError",
        "PeerLeft",
        "PeerLost",
        "PeerRestarted",
        "StorageError",
        "SystemExit",
    }
)
"""Why a peer may leave and come back."""
MOST_WORDS = 60
SOON = timedelta(days=30)
"""Before its end, a certificate is mentioned."""


def load_keys(party: PartyFile, passphrase: str) -> PartyKeys:
    holds = party.is_key_holder or party.shared.key_holder is None
    keys = PartyKeys(party.keys_folder, passphrase, party.shared.scheme, holds=holds)
    if keys.identity.name != party.own.name:
        raise SettingError(
            f"name: {party.own.name!r} given, the certificate in {party.keys_folder} is of "
            f"{keys.identity.name!r}"
        )
    return keys


def open_endpoint(party: PartyFile, keys: PartyKeys) -> Endpoint:
    """The party's place on the network; the address is checked by listening on it."""
    check_certificates(party, keys.identity.certificate)
    timeouts = replace(Timeouts(), join=party.own.wait, patience=party.own.patience)
    return Endpoint(keys.identity, listen=party.own.listen, peers=party.peers, timeouts=timeouts)


def check_certificates(party: PartyFile, own: Certificate, now: datetime | None = None) -> None:
    """Whose certificate has ended, and a line in the log for each that soon will."""
    moment, name = now or datetime.now(UTC), party.own.name
    pinned = {peer: each.certificate for peer, each in party.peers.items() if each.certificate is not None}
    for holder, certificate in {name: own, **pinned}.items():
        remedy = f"securefed init {holder} --renew tls"
        remedy = f"{remedy} makes a new one" if holder == name else f"ask {holder} for a new one ({remedy})"
        if moment >= certificate.ends:
            raise SettingError(
                f"the certificate of {holder} ended on {certificate.ends:%Y-%m-%d %H:%M} UTC; {remedy}"
            )
        if certificate.ends - moment < SOON:
            logging.getLogger("securefed").warning(
                "the certificate of %s ends on %s; %s", holder, f"{certificate.ends:%Y-%m-%d}", remedy
            )


class _Lines(logging.Handler):
    """Log lines of the transport, one by one, where a person sees them."""

    def __init__(self, terminal: Terminal) -> None:
        super().__init__()
        self._terminal = terminal

    def emit(self, record: logging.LogRecord) -> None:
        text = " ".join(record.getMessage().split())
        if record.levelno >= logging.WARNING:
            self._terminal.warn(text)
        else:
            self._terminal.detail(text)


@contextmanager
def spoken(terminal: Terminal) -> Iterator[None]:
    """Warnings and log lines go to the terminal, and SIGTERM is a Ctrl-C."""
    logger = logging.getLogger("securefed")
    handler, level, propagate = _Lines(terminal), logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    with warnings.catch_warnings(), told():
        warnings.simplefilter("once")
        warnings.showwarning = lambda message, *_: terminal.warn(str(message))
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate


@contextmanager
def told() -> Iterator[None]:
    """Whoever stops this process with SIGTERM gets the same clean end as with Ctrl-C."""

    def stop(_: int, __: FrameType | None) -> Any:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def passes(gone: PeerGone) -> bool:
    """Whether it is worth waiting for the peer to come back."""
    return not isinstance(gone, PeerLeft) or gone.reason in PASSING


def waiting_note(waiting: Waiting) -> str:
    """A countdown."""
    return f"waiting for {waiting.peer}, {clock(max(0.0, waiting.left))} left{_reason(waiting.trouble)}"


def lost(error: BaseException) -> str:
    """Why an attempt ended, without what the network library says at length."""
    text = " ".join(str(error).split())
    if isinstance(error, PeerLeft) and not passes(error):
        return f"{text} (its own last line says more, and it will be the same next time)"
    head, found, trouble = text.partition(" (last: ")
    return f"{head}{_reason(trouble.removesuffix(')'))}" if found else text


def _reason(trouble: str) -> str:
    """What the network said, in a few words."""
    trouble = trouble.rpartition("last error: ")[2]  # grpc begins with what it always says
    for said, word in REASONS.items():
        if said in trouble:
            return f" ({word})"
    short = trouble if len(trouble) <= MOST_WORDS else trouble[: MOST_WORDS - 3] + "..."
    return f" ({short})" if trouble else ""
