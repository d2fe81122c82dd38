"""Who holds which key in a run, and how the public ones get around.

Two parties: each is the key-holder for the other. What a party sends is under its own key, what it
computes on is under its peer's, and its peer opens what it has masked. With a key-holder party: everything
is under that one's key, and it opens for everybody.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
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
from securefed.crypto.hidden import HidingKey, Result
from securefed.crypto.scheme import Floats
from securefed.errors import SettingError
from securefed.protocols.agreement import Agreement
from securefed.protocols.channel import Channel
from securefed.protocols.key_check import check_keys
from securefed.transport import Link

__all__ = ["Keyring", "ReadKey", "ask_switching", "distribute_keys", "exchange_switching"]

ReadKey = Callable[[bytes], PublicKey]
COUNT = struct.Struct("<I")
MOST_COLUMNS = 1 << 20


@dataclass
class Keyring:
    """One party's keys: its own pair where it is a key-holder, and the public key of the one who opens for
    it.
    """

    own: KeyHolder | None
    opener: str
    """Who opens what this party masks."""
    public: PublicKey
    """The key of what this party computes on."""

    def encrypt(self, values: Floats, fixed: FixedPoint) -> Encrypted:
        """What this party sends: under its own key if it has one, else under the key-holder's."""
        return self.own.encrypt(values, fixed) if self.own is not None else self.public.encrypt(values, fixed)


async def distribute_keys(
    link: Link,
    agreement: Agreement,
    own: KeyHolder | None,
    mapper: Mapper,
    read_key: ReadKey = load_public_key,
) -> Keyring:
    """Send and receive public keys: message 1 of every protocol. `read_key` refuses bad and weak ones."""
    note_agreement(link, agreement)
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


async def exchange_switching(
    link: Link, agreement: Agreement, keys: Keyring, results: Iterable[Result]
) -> None:
    """Where hidden arrays need them: the keys for merging results of these shapes, made by the key-holder."""
    if not isinstance(keys.public, HidingKey):
        raise SettingError(f"keys: {keys.public!r} hides no arrays")
    strides, checks = keys.public.strides_for(results), agreement.mutual or link.name != agreement.key_holder
    peers = [] if keys.own is None else [keys.opener] if agreement.mutual else list(agreement.names)
    if keys.own is not None and strides:
        with link.activity("keys"):
            blob = keys.own.switching(strides)
        for name in peers:
            link.send(name, "switching-keys", blob)
    if checks and strides:
        blob = await link.receive("switching-keys", keys.opener)
        with link.activity("keys"):
            keys.public.load_switching(blob, strides)
        Channel(link, keys.opener).checked("switching-keys", "as many as agreed")
    if keys.public.chains:
        await check_keys(link, keys.public if checks else None, keys.opener, keys.own, peers)


async def ask_switching(link: Link, agreement: Agreement, keys: Keyring, size: int | None) -> None:
    """The same before a prediction: each party says how many columns it has, and gets the keys that scoring
    any number of rows with them takes. `size`: None at a key-holder party. Scores meet uniform masks only,
    which no noise stands above, so these keys are not checked.
    """
    if not isinstance(keys.public, HidingKey):
        raise SettingError(f"keys: {keys.public!r} hides no arrays")
    if not keys.public.strides_for([Result(0, 1, 2)]):
        return
    if size is not None:
        link.send(keys.opener, "columns", COUNT.pack(size))
    if keys.own is not None:
        for name in [keys.opener] if agreement.mutual else agreement.names:
            blob = await link.receive("columns", name)
            if len(blob) != COUNT.size:
                raise SettingError(f"columns: {len(blob)} bytes given by {name}, {COUNT.size} are allowed")
            strides = keys.public.strides_for([Result(0, agreement.outputs, _size(blob, name))])
            link.send(name, "switching-keys", keys.own.switching(strides))
    if size is not None:
        strides = keys.public.strides_for([Result(0, agreement.outputs, size)])
        keys.public.load_switching(await link.receive("switching-keys", keys.opener), strides)
        Channel(link, keys.opener).checked("switching-keys", "as many as agreed")


def _size(blob: bytes, name: str) -> int:
    (size,) = COUNT.unpack(blob)
    if not 1 <= size <= MOST_COLUMNS:
        raise SettingError(f"columns: {size} given by {name}, 1 to {MOST_COLUMNS} are allowed")
    return int(size)


def note_agreement(link: Link, agreement: Agreement) -> None:
    """Write down what this party runs by: all of it is public."""
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
    """A plain 'key' from a peer must not turn an encrypted run into a plain one."""
    found, due = public.scheme.name, key_kind(agreement.scheme, agreement.reveal)
    if found != due:
        raise SettingError(f"{sender} sent a {found} key, this run takes {due}")


def _check_other(public: PublicKey, own: KeyHolder, agreement: Agreement, sender: str) -> None:
    """Two parties with one key (a folder that was copied) could each read all that the other sends."""
    if protects(agreement.scheme) and public.key_id == own.public.key_id:
        raise SettingError(
            f"keys: {sender} sent the key that is held here too, so each could read what the other sends;"
            " every party makes a key of its own"
        )
