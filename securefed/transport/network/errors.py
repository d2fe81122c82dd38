"""What can go wrong between parties on a network, besides what securefed.transport.message names.

    TransportError
    |-- PeerGone             this attempt is over; go back to the last common round and greet again
    |   |-- PeerLost           no answer for as long as is allowed
    |   |-- PeerRestarted      it came back as a new process, or went back itself
    |   `-- PeerLeft           it said that its program ended, and why
    |-- SettingsDiffer       two parties do not run the same settings   (also a SettingError)
    |-- PeerRefused          a peer refused what this party sent, and said why
    |-- WrongCertificate     who answers there is not the peer that was pinned
    |-- AddressError         the address cannot be listened on   (also a SettingError)
    |-- WeakTransport        grpc would accept less than TLS 1.3
    `-- IllegalMessage       securefed.transport.message: wrong kind, round, sender, run; out of order; and
        |-- Malformed          bytes that are not a message
        |   `-- OtherRelease     of another version of the protocol   (also a SettingError)
        |-- LimitExceeded      larger, more or slower than is allowed
        |-- OtherAttempt       of an earlier attempt at this run
        `-- Repeated           one that has been taken already, long ago   (also OutOfOrder)

Each message is one line that says who and what.
"""

from __future__ import annotations

from securefed.errors import SettingError
from securefed.transport.message import IllegalMessage, OutOfOrder, TransportError

__all__ = [
    "AddressError",
    "LimitExceeded",
    "Malformed",
    "OtherAttempt",
    "OtherRelease",
    "PeerGone",
    "PeerLeft",
    "PeerLost",
    "PeerRefused",
    "PeerRestarted",
    "Repeated",
    "SettingsDiffer",
    "WeakTransport",
    "WrongCertificate",
]


class PeerGone(TransportError):
    """The attempt is over because of `peer`."""

    def __init__(self, peer: str, text: str) -> None:
        super().__init__(text)
        self.peer = peer


class PeerLost(PeerGone):
    """The peer no longer answers."""


class PeerRestarted(PeerGone):
    """The peer is in another attempt."""


LEFT_BECAUSE = {
    "": "it gave no reason",
    "ABSENT": "it is in no run any more",
    "DataError": "its data cannot be used",
    "Deadlock": "it waited for a message that nobody sends",
    "Diverged": "its training diverged",
    "KeyboardInterrupt": "its operator stopped it",
    "LedgerRefusal": "its ledger refuses to show more",
    "MemoryError": "it ran out of memory",
    "PeerLeft": "another party left it",
    "PeerLost": "it lost another party",
    "PeerRefused": "another party refused what it sent",
    "PeerRestarted": "another party started again",
    "ScoreRefusal": "its score ledger refuses more scores",
    "SettingError": "one of its settings is wrong",
    "SettingsDiffer": "its settings differ from another party's",
    "StorageError": "its disk cannot be written",
    "SystemExit": "its process was ended",
    "WorkerDied": "one of its worker processes died",
}
"""Reasons of a leaving party, by the name of the error that ended it there."""


def left_because(reason: str) -> str:
    """Return the reason in words. A party that refused a message names an error outside of the list."""
    name, _, about = reason.partition(" ")
    words = LEFT_BECAUSE.get(name, "an error ended it")
    return f"{words} ({about})" if about else words


class PeerLeft(PeerGone):
    """The peer's program ended with an error."""

    def __init__(self, peer: str, text: str, reason: str) -> None:
        super().__init__(peer, text)
        self.reason = reason
        """The name of the peer's error, and the party that it concerns, if any."""


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


class WeakTransport(TransportError):
    """TLS 1.3 is not assured."""


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
