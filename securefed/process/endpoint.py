"""A party's keys and address on the network, the days of certificates, and whether a lost peer may return."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from securefed.errors import SettingError, plain_text
from securefed.process.keys import PartyKeys
from securefed.settings.party import PartyFile
from securefed.transport.network import Certificate, Endpoint, PeerGone, PeerLeft, Timeouts

__all__ = [
    "TEMPORARY",
    "check_certificates",
    "load_keys",
    "may_return",
    "open_endpoint",
    "why_it_ended",
]

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
    return not isinstance(gone, PeerLeft) or gone.reason.partition(" ")[0] in TEMPORARY


def why_it_ended(error: BaseException) -> str:
    """Why an attempt ended, on one line."""
    text = plain_text(error)
    if isinstance(error, PeerLeft) and not may_return(error):
        return f"{text} ({error.peer}'s own last line says more, and it will be the same next time)"
    return text
