"""A party's keys and address on the network, the days of certificates, and whether a lost peer may return."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import UTC, datetime

from securefed.errors import SettingError, plain_text
from securefed.process.keys import PartyKeys
from securefed.settings.party import PartyFile, read_party_file
from securefed.transport.identity import check_validity
from securefed.transport.network import Certificate, Endpoint, PeerGone, PeerLeft, Timeouts

__all__ = [
    "TEMPORARY",
    "check_certificates",
    "load_keys",
    "may_return",
    "open_endpoint",
    "read_pins_again",
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
    for each in check_validity(party.own.name, own, party.peers, now or datetime.now(UTC)):
        if each.verdict != "soon":
            raise SettingError(each.text)
        logging.getLogger("securefed").warning("%s", each.text)


def read_pins_again(party: PartyFile, own: Certificate, endpoint: Endpoint) -> None:
    """Trust what party.toml pins by now: a peer may have a new certificate, or an old one was revoked."""
    changed = read_party_file(party.path)
    check_certificates(changed, own)
    endpoint.repin(changed.peers)


def may_return(gone: PeerGone) -> bool:
    """Whether it is worth waiting for the peer to come back."""
    return not isinstance(gone, PeerLeft) or gone.reason.partition(" ")[0] in TEMPORARY


def why_it_ended(error: BaseException) -> str:
    """Why an attempt ended, on one line."""
    text = plain_text(error)
    if isinstance(error, PeerLeft) and not may_return(error):
        return f"{text} ({error.peer}'s own last line says more, and it will be the same next time)"
    return text
