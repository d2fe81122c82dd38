"""Secrets at rest: one secret in one file, encrypted under a passphrase.

scrypt turns the passphrase into an AES-256-GCM key and, separately, into a check value; the header is
authenticated with the secret. Version 1, big-endian:

    magic       4   b"SFKF"
    version     1   1
    kdf         1   1 = scrypt
    log2 n      1   cost of scrypt; bounded before it is used, so that a hostile file cannot eat the memory
    r           1   8
    p           1   1
    label size  1   bytes
    secret size 4   bytes
    salt       16
    nonce      12
    check      16   tells a wrong passphrase from an altered file
    label           UTF-8; readable without the passphrase, and authenticated
    ciphertext      secret + 16 bytes of tag
    digest     32   SHA-256 over all the rest: finds damage before a passphrase is judged

The check value gives somebody who guesses passphrases nothing that the GCM tag would not give. Whoever alters
the file and renews the digest is found by GCM; an altered salt, cost or check value is reported as a wrong
passphrase.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import struct
import unicodedata
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from securefed.errors import KeyFileError, WrongPassphrase
from securefed.files import StorageError, read_bounded, write_atomically

MAGIC = b"SFKF"
VERSION = 1
SCRYPT = 1
HEADER = struct.Struct(">4sBBBBBBI16s12s16s")
TAG_SIZE = 16
DIGEST_SIZE = 32
MOST_SECRET = 1 << 26

LOG2_N = 17  # 128 MiB and about 0.3 s with r = 8
LOG2_N_TEST = 10
LOG2_N_MOST = 20  # 1 GiB
R = 8
P = 1


@dataclass(frozen=True)
class KeyFile:
    label: str
    secret: bytes = field(repr=False)


def write_key_file(
    path: str | os.PathLike[str],
    secret: bytes,
    passphrase: str | bytes,
    *,
    label: str,
    overwrite: bool = False,
    beside: str | os.PathLike[str] | None = None,
    weak_for_tests: bool = False,
) -> None:
    """Encrypt `secret` under `passphrase` into a file of mode 0600 that appears whole or not at all.

    `beside`: a key file whose salt is taken, so that a process that opens both derives one key; each file has
    a random nonce of its own. `weak_for_tests` makes the passphrase cheap to guess; such a file is read only
    with the same word.
    """
    log2_n = LOG2_N_TEST if weak_for_tests else LOG2_N
    nonce = secrets.token_bytes(12)
    salt = secrets.token_bytes(16) if beside is None else _salt_of(Path(beside))
    blob = _seal(secret, _passphrase_bytes(passphrase), _label_bytes(label), log2_n, salt, nonce)
    try:
        write_atomically(Path(path), blob, overwrite=overwrite)
    except FileExistsError:
        raise KeyFileError(f"{path} exists already and is kept; overwrite=True replaces it") from None


def read_key_file(
    path: str | os.PathLike[str], passphrase: str | bytes, *, weak_for_tests: bool = False
) -> KeyFile:
    """Read a file that `write_key_file` wrote, or raise the `KeyFileError` that says what is wrong."""
    phrase = _passphrase_bytes(passphrase)
    return _unseal(_read_private(Path(path)), phrase, LOG2_N_TEST if weak_for_tests else LOG2_N)


def _salt_of(path: Path) -> bytes:
    blob = _read_private(path)
    if len(blob) < HEADER.size or blob[: len(MAGIC)] != MAGIC:
        raise KeyFileError(f"{path}: not a securefed key file")
    salt: bytes = HEADER.unpack_from(blob)[8]
    return salt


def _seal(secret: bytes, passphrase: bytes, label: bytes, log2_n: int, salt: bytes, nonce: bytes) -> bytes:
    """Return the file's bytes. It is deterministic, so that there is a known answer."""
    if not 1 <= len(secret) <= MOST_SECRET:
        raise KeyFileError(f"secret: {len(secret)} bytes given, 1 to {MOST_SECRET} are allowed")
    key, check = _derive(passphrase, salt, log2_n)
    sizes = (len(label), len(secret))
    header = HEADER.pack(MAGIC, VERSION, SCRYPT, log2_n, R, P, *sizes, salt, nonce, check) + label
    body = header + AESGCM(key).encrypt(nonce, secret, header)
    return body + hashlib.sha256(body).digest()


def _unseal(blob: bytes, passphrase: bytes, least_log2_n: int) -> KeyFile:
    if blob[: len(MAGIC)] != MAGIC[: len(blob)]:
        raise KeyFileError("not a securefed key file: its first bytes are others")
    if len(blob) < HEADER.size:
        raise KeyFileError(f"cut short: {len(blob)} bytes, the header alone has {HEADER.size}")
    _, version, kdf, log2_n, r, p, label_size, secret_size, salt, nonce, check = HEADER.unpack_from(blob)
    announced = HEADER.size + label_size + secret_size + TAG_SIZE + DIGEST_SIZE
    body, digest = blob[:-DIGEST_SIZE], blob[-DIGEST_SIZE:]
    if hashlib.sha256(body).digest() != digest:
        if version == VERSION and len(blob) < announced:
            raise KeyFileError(f"cut short: {len(blob)} bytes, the header announces {announced}")
        raise KeyFileError("altered: the digest at its end does not fit the bytes before it")
    # From here on the file is as somebody meant it to be, which need not be somebody honest.
    if version != VERSION:
        raise KeyFileError(f"key file of version {version}; this release reads version {VERSION}")
    if len(blob) != announced:
        raise KeyFileError(f"altered: {len(blob)} bytes, the header announces {announced}")
    if kdf != SCRYPT or r != R or p != P or not least_log2_n <= log2_n <= LOG2_N_MOST:
        cheap = "its passphrase is cheap to guess: " if log2_n < least_log2_n else ""
        raise KeyFileError(
            f"{cheap}kdf {kdf} with n = 2**{log2_n}, r = {r}, p = {p}; allowed: kdf {SCRYPT} (scrypt) with "
            f"n = 2**{least_log2_n} to 2**{LOG2_N_MOST}, r = {R}, p = {P}"
        )
    key, expected = _derive(passphrase, salt, log2_n)
    if not hmac.compare_digest(check, expected):
        raise WrongPassphrase("the passphrase does not open this key file")
    header, ciphertext = body[: HEADER.size + label_size], body[HEADER.size + label_size :]
    try:
        secret = AESGCM(key).decrypt(nonce, ciphertext, header)
        return KeyFile(header[HEADER.size :].decode(), secret)
    except (InvalidTag, UnicodeDecodeError):
        raise KeyFileError("altered: the passphrase is right and the contents are not authentic") from None


@lru_cache(maxsize=4)
def _derive(passphrase: bytes, salt: bytes, log2_n: int) -> tuple[bytes, bytes]:
    """Return the AES-256 key and the check value, separate parts of scrypt's output.

    The last results are cached: files of one folder may share a salt, and each derivation takes 0.3 s.
    """
    output = Scrypt(salt=salt, length=48, n=1 << log2_n, r=R, p=P).derive(passphrase)
    return output[:32], output[32:]


def _passphrase_bytes(passphrase: str | bytes) -> bytes:
    if not passphrase:
        raise KeyFileError("passphrase: empty; at least one character is needed")
    if isinstance(passphrase, bytes):
        return passphrase
    try:
        # The same letters typed on another system may arrive composed differently.
        return unicodedata.normalize("NFC", passphrase).encode()
    except UnicodeEncodeError:
        raise KeyFileError("passphrase: not text that UTF-8 can represent") from None


def _label_bytes(label: str) -> bytes:
    if not isinstance(label, str) or not label.isprintable():
        raise KeyFileError("label: printable text is allowed")
    encoded = label.encode()
    if not 1 <= len(encoded) <= 255:
        raise KeyFileError(f"label: {len(encoded)} bytes given, 1 to 255 are allowed")
    return encoded


def _read_private(path: Path) -> bytes:
    """Return the bytes of a regular file of bounded size that no other user can read."""
    try:
        return read_bounded(path, HEADER.size + 255 + MOST_SECRET + TAG_SIZE + DIGEST_SIZE, private=True)
    except StorageError as error:
        raise KeyFileError(str(error)) from None
