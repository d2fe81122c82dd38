"""A message between two parties, what can go wrong with it, and the clocks that it carries.

A message is metadata and a payload of bytes. The metadata say its run, round, local step and kind. The
receiver asks for exactly one kind from exactly one sender at a time, and refuses everything else by name.

    TransportError
    |-- PeerGone             this attempt is over; go back to the last common round and greet again
    |   |-- PeerLost           no answer for as long as is allowed
    |   |-- PeerRestarted      it came back as a new process, or went back itself
    |   `-- PeerLeft           it said that its program ended, and why
    |-- SettingsDiffer       two parties do not run the same settings   (also a SettingError)
    |-- PeerRefused          a peer refused what this party sent, and said why
    |-- WrongCertificate     who answers there is not the peer that was pinned
    |-- AddressError         the address cannot be listened on   (also a SettingError)
    |-- Deadlock             every party waits for a message that nobody will send
    `-- IllegalMessage       not what the protocol expects here
        |-- WrongKind, WrongRound, WrongSender, WrongRun
        |-- OutOfOrder         repeated, skipped or reordered
        |   `-- Repeated         one that has been taken already, long ago
        |-- Malformed          bytes that are not a message
        |   `-- OtherRelease     of another version of the protocol   (also a SettingError)
        |-- LimitExceeded      larger, more or slower than is allowed
        `-- OtherAttempt       of an earlier attempt at this run

Each error's text is one line that says who and what.

A party's clock is a path: the seconds of computation and of communication on the chain of events up to now.
Work adds computation. A message leaves with its sender's path and arrives with latency and transfer added as
communication. The receiver's path becomes the later of its own and the arrival's. The path that ends last is
the critical path of the run. Every second on it is one or the other: computation + communication = total,
exactly.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from securefed.declare import check_number
from securefed.errors import SecurefedError, SettingError


@dataclass(frozen=True)
class Path:
    """Seconds of computation and of communication up to an event."""

    computation: float = 0.0
    communication: float = 0.0

    @property
    def total(self) -> float:
        return self.computation + self.communication

    def work(self, seconds: float) -> Path:
        return Path(self.computation + seconds, self.communication)

    def travel(self, seconds: float) -> Path:
        return Path(self.computation, self.communication + seconds)

    def later(self, other: Path) -> Path:
        return other if other.total > self.total else self

    def plus(self, other: Path) -> Path:
        return Path(self.computation + other.computation, self.communication + other.communication)

    def since(self, start: Path) -> Path:
        return Path(self.computation - start.computation, self.communication - start.communication)


@dataclass(frozen=True)
class Network:
    """A link between each two parties: `bandwidth` in bit/s, `latency` in seconds one way."""

    name: str
    bandwidth: float
    latency: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "bandwidth", check_number("bandwidth", self.bandwidth, above=0.0))
        object.__setattr__(self, "latency", check_number("latency", self.latency, least=0.0))

    def transfer(self, size: int) -> float:
        """Return the seconds that `size` bytes occupy the link."""
        return 8.0 * size / self.bandwidth


# `paper`: the paper gives no figures for its network. 10 Mbit/s is what its Table 2 implies: about 0.67
# minutes a round for FATE's FTL layout at its size. `loopback` stands for memory speed in a simulation.
NETWORKS = {
    "loopback": Network("loopback", 16e9, 20e-6),
    "lan": Network("lan", 1e9, 1e-3),
    "wan": Network("wan", 100e6, 20e-3),
    "paper": Network("paper", 10e6, 1e-3),
}


def get_network(value: str | Network) -> Network:
    """Return a profile by its name, or from "BANDWIDTH,LATENCY" in bit/s and seconds."""
    if isinstance(value, Network):
        return value
    if not isinstance(value, str):
        raise SettingError(f"network: {value!r} given, a name or a Network(...) is allowed")
    if value in NETWORKS:
        return NETWORKS[value]
    parts = value.split(",")
    try:
        bandwidth, latency = (float(part) for part in parts)
    except ValueError:
        names = ", ".join(NETWORKS)
        raise SettingError(
            f"network: {value!r} given, one of {names} or BANDWIDTH,LATENCY (bit/s, seconds) is allowed"
        ) from None
    return Network(value, bandwidth, latency)


class TransportError(SecurefedError):
    """The root of the transport's errors."""


class IllegalMessage(TransportError):
    """A message that the protocol does not allow at this place."""


class WrongKind(IllegalMessage):
    """Another kind of message was due."""


class WrongRound(IllegalMessage):
    """Another round or local step was due."""


class WrongSender(IllegalMessage):
    """The message is from, or for, another party."""


class WrongRun(IllegalMessage):
    """The message belongs to another run."""


class OutOfOrder(IllegalMessage):
    """A message came twice, too early or too late."""


class Deadlock(TransportError):
    """No party can continue."""


@dataclass(frozen=True)
class Message:
    """One message. `sequence` counts the messages from this sender to this receiver, from 0."""

    kind: str
    run: str
    round: int
    step: int
    sender: str
    receiver: str
    sequence: int
    payload: bytes = field(repr=False)
    arrival: Path

    @property
    def size(self) -> int:
        """Bytes of payload, without the transport's envelope."""
        return len(self.payload)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.payload).hexdigest()


class PeerGone(TransportError):
    """The attempt is over because of `peer`."""

    def __init__(self, peer: str, text: str, reason: str = "") -> None:
        super().__init__(text)
        self.peer, self.reason = peer, reason
        """`reason`: the name of the peer's error, and the party that it concerns, if any."""


class PeerLost(PeerGone):
    """The peer no longer answers."""


class PeerRestarted(PeerGone):
    """The peer is in another attempt."""


TEMPORARY = {
    "": "it gave no reason",
    "ABSENT": "it is in no run any more",
    "KeyboardInterrupt": "its operator stopped it",
    "MemoryError": "it ran out of memory",
    "OSError": "an error ended it",
    "PeerLeft": "another party left it",
    "PeerLost": "it lost another party",
    "PeerRestarted": "another party started again",
    "StorageError": "its disk cannot be written",
    "SystemExit": "its process was ended",
    "WorkerDied": "one of its worker processes died",
}
"""Reasons of a party that may come back, by the name of the error that ended it there."""
LASTING = {
    "DataError": "its data cannot be used",
    "Deadlock": "it waited for a message that nobody sends",
    "Diverged": "its training diverged",
    "LedgerRefusal": "its ledger refuses to show more",
    "PeerRefused": "another party refused what it sent",
    "ScoreRefusal": "its score ledger refuses more scores",
    "SettingError": "one of its settings is wrong",
    "SettingsDiffer": "its settings differ from another party's",
}
"""Reasons that will be the same next time."""


def left_because(reason: str) -> str:
    """Return the reason in words. A party that refused a message names an error outside of the list."""
    name, _, about = reason.partition(" ")
    words = {**TEMPORARY, **LASTING}.get(name, "an error ended it")
    return f"{words} ({about})" if about else words


class PeerLeft(PeerGone):
    """The peer's program ended with an error."""


class SettingsDiffer(TransportError, SettingError):
    """Two parties run different settings; each difference is named with both values."""


class PeerRefused(TransportError):
    """A peer refused what this party sent."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text)
        self.reason = reason
        """The name of the peer's error."""


class WrongCertificate(TransportError):
    """Another machine answers at a peer's address."""


class AddressError(TransportError, SettingError):
    """No server can listen at the address."""


class Malformed(IllegalMessage):
    """Bytes that do not fit the schema or its bounds."""


class OtherRelease(Malformed, SettingError):
    """A peer speaks another version of the protocol."""


class LimitExceeded(IllegalMessage):
    """More than this party accepts."""


class OtherAttempt(IllegalMessage):
    """A message of an attempt that is over."""


class Repeated(OutOfOrder):
    """A message that was already taken. A stalled connection can bring one late; it is refused without
    effect.
    """
