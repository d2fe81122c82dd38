"""Homomorphic encryption of arrays, with the key-holder as a role of its own.

    holder = generate("paillier")                            # the key-holder; nobody else has the secret key
    public = load_public_key(holder.public.to_bytes())       # what everybody else has
    encrypted = holder.encrypt(values, FixedPoint(bound=1))
    masked, mask = (matrix @ encrypted).mask()               # by a party without the secret key
    opened = holder.open(masked)                             # uniform to the key-holder
    result = mask.remove(opened)                             # matrix @ values, to the requester alone

Schemes: "paillier" (exact, one value a ciphertext or packed), "ckks" (approximate, thousands of values a
ciphertext) and "plain" (no protection; for experiments and as the oracle).
"""

from __future__ import annotations

from os import PathLike

from securefed.crypto.errors import BadKey
from securefed.crypto.fixed import FixedPoint
from securefed.crypto.keyfile import read_key_file, write_key_file
from securefed.crypto.keyholder import KeyHolder, OpeningRecord
from securefed.crypto.plain import PlainPublicKey, PlainSecretKey
from securefed.crypto.scheme import Encrypted, Mapper, Mask, Masked, Opened, PublicKey, SecretKey, Serial
from securefed.crypto.wire import Frame, Kind, Scheme

__all__ = [
    "SCHEMES",
    "Encrypted",
    "FixedPoint",
    "KeyHolder",
    "Mapper",
    "Mask",
    "Masked",
    "Opened",
    "OpeningRecord",
    "PublicKey",
    "Serial",
    "generate",
    "load_key",
    "load_public_key",
    "save_key",
]

SCHEMES = ("paillier", "ckks", "plain")


def generate(scheme: str, *, key_bits: int = 3072, allow_small: bool = False) -> KeyHolder:
    """A key-holder with a fresh key. `key_bits` and `allow_small` (for tests) concern Paillier alone."""
    if scheme == "paillier":
        from securefed.crypto import paillier

        return KeyHolder(paillier.generate_secret_key(key_bits, allow_small=allow_small))
    if scheme == "ckks":
        from securefed.crypto import ckks

        return KeyHolder(ckks.generate_secret_key())
    if scheme == "plain":
        return KeyHolder(PlainSecretKey())
    raise BadKey(f"scheme: {scheme!r} given, one of {', '.join(SCHEMES)} is allowed")


def load_public_key(blob: bytes, *, allow_small: bool = False) -> PublicKey:
    """A public key that arrived; refused when it is malformed, too small or weak."""
    frame = Frame.from_bytes(blob, Kind.PUBLIC_KEY)
    if frame.scheme is Scheme.PAILLIER:
        from securefed.crypto import paillier

        return paillier.PaillierPublicKey.from_frame(frame, allow_small=allow_small)
    if frame.scheme is Scheme.CKKS:
        from securefed.crypto import ckks

        return ckks.CkksPublicKey.from_frame(frame)
    return PlainPublicKey.from_frame(frame)


def save_key(
    path: str | PathLike[str], holder: KeyHolder, passphrase: str | bytes, *, overwrite: bool = False
) -> None:
    """Write the key-holder's secret key to a file that only the passphrase opens."""
    label = f"{holder.public.scheme.name.lower()} {holder.public.key_id.hex()}"
    write_key_file(path, holder._secret.to_bytes(), passphrase, label=label, overwrite=overwrite)


def load_key(path: str | PathLike[str], passphrase: str | bytes, *, allow_small: bool = False) -> KeyHolder:
    """The key-holder whose key `save_key` wrote."""
    frame = Frame.from_bytes(read_key_file(path, passphrase).secret, Kind.SECRET_KEY)
    secret: SecretKey
    if frame.scheme is Scheme.PAILLIER:
        from securefed.crypto import paillier

        secret = paillier.PaillierSecretKey.from_frame(frame, allow_small=allow_small)
    elif frame.scheme is Scheme.CKKS:
        from securefed.crypto import ckks

        secret = ckks.CkksSecretKey.from_frame(frame)
    else:
        secret = PlainSecretKey.from_frame(frame)
    return KeyHolder(secret)
