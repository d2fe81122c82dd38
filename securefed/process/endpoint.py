"""A party's place on the network: its keys, its address, certificates that are still good; and what
is said when a peer goes: whether it may come back, and why it went, in a few words.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from securefed.errors import SettingError
from securefed.process.keys import PartyKeys
from securefed.process.settings import PartyFile
from securefed.transport.network import Certificate, Endpoint, PeerGone, PeerLeft, Timeouts

__all__ = [
    "TEMPORARY",
    "check_certificates",
    "load_keys",
    "may_return",
    "open_endpoint",
    "trouble_in_words",
    "why_it_ended",
]

REASONS = {
    "Connection refused": "nobody listens there",
    "DNS resolution failed": "its address is unknown",
    "Deadline Exceeded": "no answer",
    "timed out": "no answer",
    "Socket closed": "it ends the connection: not ready yet, or our certificate is unknown there",
    "onnection reset": "it ends the connection: not ready yet, or our certificate is unknown there",
}
TEMPORARY = frozenset(
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
        "WorkerDied",
    }
)
"""Why a peer may leave and come back."""
MOST_WORDS = 60
SOON = timedelta(days=30)
"""Before its end, a certificate is mentioned."""


def load_keys(party: PartyFile, passphrase: str) -> PartyKeys:
    holds = party.is_key_holder or party.shared.key_holder is None
    keys = PartyKeys(party.keys_folder, passphrase, party.shared.key_kind, holds=holds)
    if keys.identity.name != party.own.name:
        raise SettingError(
            f"name: {party.own.name!r} given, the certificate in {party.keys_folder} is of "
            f"{keys.identity.name!r}"
        )
    return keys


def open_endpoint(party: PartyFile, keys: PartyKeys) -> Endpoint:
    """The party's place on the network; the address is checked by listening on it."""
    check_certificates(party, keys.identity.certificate)
    # A question has to be given up, and asked on a new connection, well before patience ends.
    patience, normal = party.own.patience, Timeouts()
    timeouts = replace(
        normal,
        join=party.own.wait,
        patience=patience,
        answer=min(normal.answer, patience / 4),
        beat=min(normal.beat, patience / 10),
    )
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


def may_return(gone: PeerGone) -> bool:
    """Whether it is worth waiting for the peer to come back."""
    return not isinstance(gone, PeerLeft) or gone.reason in TEMPORARY


def why_it_ended(error: BaseException) -> str:
    """Why an attempt ended, without what the network library says at length."""
    text = " ".join(str(error).split())
    if isinstance(error, PeerLeft) and not may_return(error):
        return f"{text} (its own last line says more, and it will be the same next time)"
    head, found, trouble = text.partition(" (last: ")
    return f"{head}{trouble_in_words(trouble.removesuffix(')'))}" if found else text


def trouble_in_words(trouble: str) -> str:
    """What the network said, in a few words."""
    trouble = trouble.rpartition("last error: ")[2]  # grpc begins with what it always says
    for said, word in REASONS.items():
        if said in trouble:
            return f" ({word})"
    short = trouble if len(trouble) <= MOST_WORDS else trouble[: MOST_WORDS - 3] + "..."
    return f" ({short})" if trouble else ""
