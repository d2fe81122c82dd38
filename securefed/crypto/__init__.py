"""Homomorphic encryption of arrays, with the key-holder as a role of its own.

    holder = generate("paillier")                            # the key-holder; nobody else has the secret key
    public = load_public_key(holder.public.to_bytes())       # what everybody else has
    encrypted = holder.encrypt(values, FixedPoint(bound=1))
    masked, mask = (matrix @ encrypted).mask()               # by a party without the secret key
    opened = holder.open(masked)                             # uniform to the key-holder
    result = mask.remove(opened)                             # matrix @ values, to the requester alone

Schemes: "ckks" (lattices, thousands of values a ciphertext), "paillier" (factoring, one value a ciphertext or
packed) and "plain" (no protection; for experiments and as the oracle). Blind training encrypts one product
between two parties instead (securefed.crypto.blind, `cross_scheme`), under keys that it makes itself.
"""

from __future__ import annotations

from os import PathLike

from securefed.crypto.fixed import FixedPoint
from securefed.crypto.keyfile import read_key_file, write_key_file
from securefed.crypto.keyholder import KeyHolder
from securefed.crypto.registry import (
    DEFAULT_SCHEME,
    KEY_KINDS,
    SCHEMES,
    KeyKind,
    SchemeEntry,
    cross_lengths,
    cross_scheme,
    find_kind,
    key_kind,
    protects,
    register,
    schemes_that,
)
from securefed.crypto.scheme import Encrypted, Mapper, Mask, Masked, Opened, PublicKey, Serial
from securefed.crypto.wire import Frame, Kind

__all__ = [
    "DEFAULT_SCHEME",
    "KEY_KINDS",
    "SCHEMES",
    "Encrypted",
    "FixedPoint",
    "KeyHolder",
    "KeyKind",
    "Mapper",
    "Mask",
    "Masked",
    "Opened",
    "PublicKey",
    "SchemeEntry",
    "Serial",
    "cross_lengths",
    "cross_scheme",
    "find_kind",
    "generate",
    "key_kind",
    "load_key",
    "load_public_key",
    "protects",
    "register",
    "save_key",
    "schemes_that",
]


def generate(kind: str, *, key_bits: int = 3072, allow_small: bool = False) -> KeyHolder:
    """Return a key-holder with a new key. Only Paillier uses `key_bits` and `allow_small` (for tests)."""
    entry = find_kind(kind)
    make = entry.load("generate_secret_key")
    return KeyHolder(make(key_bits, allow_small=allow_small) if entry.sized else make())


def load_public_key(blob: bytes, *, allow_small: bool = False) -> PublicKey:
    """Parse a public key that arrived. Raises BadKey or FormatError if it is malformed, too small or weak."""
    frame = Frame.from_bytes(blob, Kind.PUBLIC_KEY)
    entry = find_kind(frame.scheme.name)
    options = {"allow_small": allow_small} if entry.sized else {}
    key: PublicKey = entry.load(entry.public).from_frame(frame, **options)
    return key


def save_key(
    path: str | PathLike[str], holder: KeyHolder, passphrase: str | bytes, *, overwrite: bool = False
) -> None:
    """Write the key-holder's secret key to a file, encrypted under the passphrase."""
    label = f"{holder.public.scheme.name} {holder.public.key_id.hex()}"
    write_key_file(path, holder._secret.to_bytes(), passphrase, label=label, overwrite=overwrite)


def load_key(path: str | PathLike[str], passphrase: str | bytes, *, allow_small: bool = False) -> KeyHolder:
    """Return the key-holder from a file that `save_key` wrote."""
    frame = Frame.from_bytes(read_key_file(path, passphrase).secret, Kind.SECRET_KEY)
    entry = find_kind(frame.scheme.name)
    options = {"allow_small": allow_small} if entry.sized else {}
    return KeyHolder(entry.load(entry.secret).from_frame(frame, **options))
