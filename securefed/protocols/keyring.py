"""The keys of a run, and the distribution of the public keys.

With two parties, each is the key-holder for the other. A party sends values under its own key and computes on
values under its peer's key. The peer opens what the party has masked. With a key-holder party, everything is
under its key, and it opens for everybody.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from securefed.crypto import (
    Encrypted,
    FixedPoint,
    KeyHolder,
    Mapper,
    PublicKey,
    find_kind,
    key_kind,
    load_public_key,
    protects,
)
from securefed.crypto.scheme import Floats
from securefed.errors import SettingError
from securefed.protocols.agreement import Agreement
from securefed.protocols.channel import Channel
from securefed.transport import Link

__all__ = ["Keyring", "ReadKey", "distribute_keys", "note_agreement"]

ReadKey = Callable[[bytes], PublicKey]


@dataclass
class Keyring:
    """One party's keys: its own pair, if it has one, and the public key of its opener."""

    own: KeyHolder | None
    opener: str
    """The party that opens what this party masks."""
    public: PublicKey
    """The key of the ciphertexts that this party computes on."""

    def encrypt(self, values: Floats, fixed: FixedPoint) -> Encrypted:
        """Encrypt values to send: under this party's own key if it has one, else under the key-holder's."""
        return self.own.encrypt(values, fixed) if self.own is not None else self.public.encrypt(values, fixed)


async def distribute_keys(
    link: Link,
    agreement: Agreement,
    own: KeyHolder | None,
    mapper: Mapper,
    read_key: ReadKey = load_public_key,
) -> Keyring:
    """Send and receive public keys, the first message of every protocol.

    Raises SettingError for a missing key, a key of another scheme or a peer's key that equals this party's.
    `read_key` refuses malformed and weak keys.
    """
    if agreement.mutual:
        (peer,) = (name for name in agreement.names if name != link.name)
        if own is None:
            raise SettingError(f"keys: {link.name} has no key, and two parties hold keys for each other")
        own.public.mapper = mapper
        link.send(peer, "public-key", own.public.to_bytes())
        public = read_key(await link.receive("public-key", peer))
        _check_scheme(public, agreement, peer)
        _check_other(public, own, agreement, peer)
        Channel(link, peer).checked("public-key", *find_kind(public.scheme.name).checks)
        public.mapper = mapper
        return Keyring(own, peer, public)
    holder = str(agreement.key_holder)
    if link.name == holder:
        if own is None:
            raise SettingError(f"keys: the key-holder {holder} has no key")
        own.public.mapper = mapper
        blob = own.public.to_bytes()
        for name in agreement.names:
            link.send(name, "public-key", blob)
        return Keyring(own, holder, own.public)
    public = read_key(await link.receive("public-key", holder))
    _check_scheme(public, agreement, holder)
    Channel(link, holder).checked("public-key", *find_kind(public.scheme.name).checks)
    public.mapper = mapper
    return Keyring(None, holder, public)


def note_agreement(link: Link, agreement: Agreement) -> None:
    """Record the agreement in the transcript. All of it is public."""
    link.transcript.note(
        "agreed",
        "agreement",
        "",
        0,
        0,
        link.phase,
        digest=agreement.digest(),
        settings=agreement.to_dict(),
        rows=agreement.batches.rows,
        batch=agreement.batches.effective_size,
        unknowns=agreement.unknowns(),
    )


def _check_scheme(public: PublicKey, agreement: Agreement, sender: str) -> None:
    """Refuse a peer's plain 'key' in an encrypted run."""
    kind, due = public.scheme.name, key_kind(agreement.scheme, agreement.reveal)
    if kind != due:
        raise SettingError(f"{sender} sent a {kind} key, this run takes {due}")


def _check_other(public: PublicKey, own: KeyHolder, agreement: Agreement, sender: str) -> None:
    """Refuse a peer's key that equals this party's: each party could read what the other sends."""
    if protects(agreement.scheme) and public.key_id == own.public.key_id:
        raise SettingError(
            f"keys: {sender} sent the key that is held here too, so each could read what the other sends;"
            " every party makes a key of its own"
        )
