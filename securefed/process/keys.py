"""A party's keys on disk, all under one passphrase:

    tls-key.skf, certificate.pem   who it is on the network (securefed.transport.identity)
    checkpoint-key.skf             a random key for checkpoints; the secret of blurred scores follows from it
    signing-key.skf                an Ed25519 key that signs transcripts (securefed.process.signing)
    he-<kind>.skf                  a secret key for runs that reveal own gradients; made only when asked for

A run that reveals nothing makes its encryption keys itself, new ones for every attempt, and needs no
he-<kind>.skf. Nothing of this is printed, and only the certificate is ever handed to anybody.
"""

from __future__ import annotations

import logging
import secrets
from functools import cached_property
from hashlib import blake2b
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefed.crypto import KEY_KINDS, KeyHolder, generate, load_key, protects, save_key
from securefed.crypto.errors import KeyFileError, WrongPassphrase
from securefed.crypto.keyfile import KeyFile, read_key_file, write_key_file
from securefed.errors import SettingError
from securefed.protocols.scoring.blur import KEY_BYTES
from securefed.transport.identity import (
    KEY_FILE,
    SEALED_KEY_FILE,
    Identity,
    IdentityError,
    guessed_cheaply,
    sealed_private_key,
)

__all__ = [
    "CHECKPOINT_KEY",
    "SIGNING_KEY",
    "PartyKeys",
    "change_passphrase",
    "he_file",
    "kept_kinds",
    "make_he_key",
]

CHECKPOINT_KEY, SIGNING_KEY = "checkpoint-key.skf", "signing-key.skf"
SAVE_EVERY = 1000
"""Openings after which a CKKS key is written again: its file counts them, and a key answers so many."""


def kept_kinds() -> tuple[str, ...]:
    """The kinds of encryption keys that a party may keep in files."""
    return tuple(kind for kind, entry in KEY_KINDS.items() if entry.protects)


def he_file(scheme: str) -> str:
    return f"he-{scheme}.skf"


def make_he_key(folder: Path, scheme: str, key_bits: int, passphrase: str, *, overwrite: bool = False) -> str:
    """A fresh key in its file; its public name."""
    holder = generate(scheme, key_bits=key_bits)
    save_key(folder / he_file(scheme), holder, passphrase, overwrite=overwrite)
    return holder.public.key_id.hex()


def make_checkpoint_key(folder: Path, passphrase: str) -> None:
    """A random key, under the same derivation as the TLS key where there is one: one opens both."""
    beside = folder / SEALED_KEY_FILE
    write_key_file(
        folder / CHECKPOINT_KEY,
        secrets.token_bytes(32),
        passphrase,
        label="securefed checkpoints",
        beside=beside if beside.exists() else None,
    )


def make_signing_key(folder: Path, passphrase: str) -> None:
    """A random Ed25519 key, under the same derivation as the TLS key where there is one."""
    beside = folder / SEALED_KEY_FILE
    write_key_file(
        folder / SIGNING_KEY,
        Ed25519PrivateKey.generate().private_bytes_raw(),
        passphrase,
        label="securefed transcripts",
        beside=beside if beside.exists() else None,
    )


def change_passphrase(folder: Path, old: str, new: str) -> list[str]:
    """Put every key of a folder, the replaced ones too, under another passphrase; the names of the files.

    Nothing is written before all of them could be read, and each file is replaced as a whole. One that is
    under the new passphrase already stays: a change that was interrupted is finished by doing it again.
    A TLS key in a PEM text under the passphrase becomes a key file like the others.
    """
    # A name with a dot is what an interrupted write left: no key, and never read.
    files = sorted(path for path in folder.glob("*.skf*") if not path.name.startswith("."))
    sealed = {path: _either(path, old, new) for path in files}
    texts = {}
    for path in sorted(folder.glob(f"{KEY_FILE}*")):
        try:
            secret = sealed_private_key(path, old)
        except IdentityError:
            secret = sealed_private_key(path, new)
        texts[path] = KeyFile("tls", secret)
        sealed[path.with_name(path.name.replace(KEY_FILE, SEALED_KEY_FILE))] = texts[path]
    for path, found in sealed.items():
        write_key_file(path, found.secret, new, label=found.label, overwrite=True)
    for path in texts:
        path.unlink()
    return [path.name for path in sealed]


def _either(path: Path, old: str, new: str) -> KeyFile:
    try:
        return read_key_file(path, old)
    except WrongPassphrase:
        try:
            return read_key_file(path, new)
        except WrongPassphrase:
            raise WrongPassphrase(f"{path}: the passphrase does not open this key file") from None


class PartyKeys:
    """What a party reads from its folder to take part in a run."""

    def __init__(self, folder: Path, passphrase: str, kind: str | None, *, holds: bool) -> None:
        """Read the keys. `kind`: of the encryption key that the run takes; None where it makes its own.

        `holds`: whether this party holds such a key in the run (both of two parties, else the key-holder).
        """
        self._folder, self._passphrase, self._kind = folder, passphrase, kind
        self.identity = Identity.load(folder, passphrase)
        if guessed_cheaply(folder):
            logging.getLogger("securefed").warning(
                f"{folder / KEY_FILE} makes the passphrase of all keys cheap to guess (OpenSSL's "
                f"derivation); securefed init {self.identity.name} --renew passphrase puts it under scrypt "
                "like the others"
            )
        self.checkpoint_key = self._read_checkpoint_key()
        self.holder = self._load_holder(kind) if holds and kind is not None else None
        self._saved = 0

    def _read_checkpoint_key(self) -> bytes:
        secret = read_key_file(self._folder / CHECKPOINT_KEY, self._passphrase).secret
        if len(secret) != 32:
            raise KeyFileError(f"{self._folder / CHECKPOINT_KEY}: {len(secret)} bytes, 32 are a key")
        return secret

    @cached_property
    def signing_key(self) -> Ed25519PrivateKey:
        """The key that signs transcripts; made here for a folder of an older release."""
        path = self._folder / SIGNING_KEY
        if not path.exists():
            make_signing_key(self._folder, self._passphrase)
        secret = read_key_file(path, self._passphrase).secret
        if len(secret) != 32:
            raise KeyFileError(f"{path}: {len(secret)} bytes, 32 are a key")
        return Ed25519PrivateKey.from_private_bytes(secret)

    @property
    def score_key(self) -> bytes:
        """The secret that the noise of scores follows from (protocols.scoring.blur); it lasts as long as
        this folder.
        """
        return blake2b(b"", key=self.checkpoint_key, person=b"score key", digest_size=KEY_BYTES).digest()

    def _load_holder(self, kind: str) -> KeyHolder:
        if not protects(kind):
            return generate(kind)
        path = self._folder / he_file(kind)
        if not path.exists():
            command = f"securefed init {self.identity.name} --folder {self._folder} --renew {kind}"
            raise SettingError(
                f"{path}: missing; reveal = 'own-gradient' needs a {kind} key, and `{command}` makes one"
            )
        holder = load_key(path, self._passphrase)
        if holder.public.scheme.name != kind:
            raise SettingError(f"{path}: not a {kind} key")
        return holder

    def keep_count(self, *, now: bool = False) -> None:
        """Write a key that counts again when it has answered many openings; `now` at the end of a run."""
        if self.holder is None or self._kind is None or not KEY_KINDS[self._kind].counts:
            return
        opened = self.holder.openings
        if opened - self._saved >= (1 if now else SAVE_EVERY):
            save_key(self._folder / he_file(self._kind), self.holder, self._passphrase, overwrite=True)
            self._saved = opened

    def __repr__(self) -> str:
        return f"<keys of {self.identity.name!r}>"
