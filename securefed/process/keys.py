"""A party's keys on disk, all under one passphrase, and the signatures at the end of a run.

docs/operations.md lists the files. The secret of blurred scores follows from the checkpoint key, and the TLS
key vouches for the signing key. Blind runs make their encryption keys themselves, new ones for every attempt.
Nothing of this is printed, and only the certificate is handed to anybody.

When a run ends the parties tell each other signed statements about their transcripts, over connections that
their certificates have authenticated. Each keeps the others' statements, countersigned.
securefed.audit.verify says what is signed, and checks it.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from securefed.audit.verify import COUNTERSIGNATURE, KEY, STATEMENT, canonical
from securefed.crypto import KEY_KINDS, KeyHolder, generate, load_key, protects, save_key
from securefed.crypto.keyfile import KeyFile, read_key_file, write_key_file
from securefed.errors import KeyFileError, SettingError, WrongPassphrase
from securefed.protocols.scoring.blur import KEY_BYTES
from securefed.settings.party import PartyFile
from securefed.transport.identity import (
    KEY_FILE,
    Certificate,
    Identity,
    check_validity,
)
from securefed.transport.transcript import Transcript

CHECKPOINT_KEY, SIGNING_KEY = "checkpoint-key.skf", "signing-key.skf"
LABELS = {CHECKPOINT_KEY: "securefed checkpoints", SIGNING_KEY: "securefed transcripts"}
KEY_LENGTH = 32
"""Bytes of a checkpoint key (AES-256), and of the seed of an Ed25519 key."""
SAVE_EVERY = 1000
"""Openings after which a CKKS key is written again: its file counts them, and a key answers so many."""


def kept_kinds() -> tuple[str, ...]:
    """The kinds of encryption keys that a party may keep in files."""
    return tuple(kind for kind, entry in KEY_KINDS.items() if entry.protects)


def he_file(scheme: str) -> str:
    return f"he-{scheme}.skf"


def make_key(folder: Path, name: str, passphrase: str) -> None:
    """Write a random key, if there is none, under the same derivation as the TLS key: one opens both."""
    path, secret = folder / name, secrets.token_bytes(KEY_LENGTH)
    if not path.exists():
        write_key_file(path, secret, passphrase, label=LABELS[name], beside=folder / KEY_FILE)


def change_passphrase(folder: Path, old: str, new: str) -> list[str]:
    """Put every key of a folder, the replaced ones too, under another passphrase; the names of the files.

    Nothing is written before all of them could be read, and each file is replaced as a whole. One that is
    under the new passphrase already stays: a change that was interrupted is finished by doing it again.
    """
    # A name with a dot is what an interrupted write left: no key, and never read.
    files = sorted(path for path in folder.glob("*.skf*") if not path.name.startswith("."))
    sealed = {path: _either(path, old, new) for path in files}
    for path, key in sealed.items():
        write_key_file(path, key.secret, new, label=key.label, overwrite=True)
    return [path.name for path in sealed]


def _either(path: Path, *passphrases: str) -> KeyFile:
    for passphrase in passphrases:
        with suppress(WrongPassphrase):
            return read_key_file(path, passphrase)
    raise WrongPassphrase(f"{path}: the passphrase does not open this key file")


class PartyKeys:
    """What a party reads from its folder to take part in a run."""

    def __init__(self, folder: Path, passphrase: str, kind: str | None, *, holds: bool) -> None:
        """Read the keys. `kind`: of the encryption key that the run takes; None where it makes its own.

        `holds`: whether this party holds such a key in the run (both of two parties, else the key-holder).
        """
        self._folder, self._passphrase, self._kind = folder, passphrase, kind
        self.identity = Identity.load(folder, passphrase)
        self.checkpoint_key = self._read(CHECKPOINT_KEY)
        self.holder = self._load_holder(kind) if holds and kind is not None else None
        self._saved = 0

    def _read(self, name: str) -> bytes:
        path = self._folder / name
        secret = read_key_file(path, self._passphrase).secret
        if len(secret) != KEY_LENGTH:
            text = f"{len(secret)} bytes, a key has {KEY_LENGTH}; put it back from a backup"
            raise KeyFileError(f"{path}: {text}")
        return secret

    @cached_property
    def signing_key(self) -> Ed25519PrivateKey:
        """The key that signs transcripts; made here for a folder of an older release."""
        make_key(self._folder, SIGNING_KEY, self._passphrase)
        return Ed25519PrivateKey.from_private_bytes(self._read(SIGNING_KEY))

    @property
    def score_key(self) -> bytes:
        """The secret that the noise of scores follows from (protocols.scoring.blur); it lasts as long as
        this folder.
        """
        return blake2b(b"", key=self.checkpoint_key, person=b"score key", digest_size=KEY_BYTES).digest()

    def fingerprint(self, value: object) -> str:
        """Return a keyed hash of a value that JSON can hold. Nobody else can test a guess of the value."""
        key = self.checkpoint_key
        return blake2b(canonical(value), key=key, person=b"fingerprint", digest_size=16).hexdigest()

    def _load_holder(self, kind: str) -> KeyHolder:
        if not protects(kind):
            return generate(kind)
        path = self._folder / he_file(kind)
        if not path.exists():
            command = f"securefed init {self.identity.name} --folder {self._folder} --renew {kind}"
            raise SettingError(
                f"{path}: missing; protection 'own-gradient' needs a {kind} key; `{command}` makes one"
            )
        holder = load_key(path, self._passphrase)
        if holder.public.scheme != kind:
            raise SettingError(f"{path}: not a {kind} key")
        return holder

    def keep_count(self, *, now: bool = False) -> None:
        """Write a key that counts again when it has answered many openings; `now` at the end of a run."""
        if self.holder is None or self._kind is None or not KEY_KINDS[self._kind].counts:
            return
        opened = self.holder.openings
        if opened - self._saved >= (1 if now else SAVE_EVERY):
            path = self._folder / he_file(self._kind)
            save_key(path, self.holder, self._passphrase, overwrite=True, beside=path)
            self._saved = opened


class Signatures:
    """What one party signs at the end of one run."""

    def __init__(self, keys: PartyKeys, transcript: Transcript, instance: str) -> None:
        self._keys = keys
        self._statement: dict[str, Any] = {
            "party": transcript.party,
            "run": transcript.run,
            "instance": instance,
            "entries": len(transcript),
            "chain": transcript.head,
            "key": keys.signing_key.public_key().public_bytes_raw().hex(),
        }
        self._signature = self._sign(STATEMENT, self._statement)

    def _sign(self, purpose: bytes, value: object) -> str:
        return self._keys.signing_key.sign(purpose + canonical(value)).hex()

    def to_facts(self) -> dict[str, Any]:
        return {"statement": self._statement, "signature": self._signature}

    def to_file(self, heard: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Return what the file holds. `heard`: the facts of each peer that was still there."""
        identity, own, countersigned = self._keys.identity, self._statement, {}
        for peer, facts in heard.items():
            statement = self._sound(peer, facts.get("signed"))
            if statement is not None:
                signature = self._sign(COUNTERSIGNATURE, {"by": own["party"], "statement": statement})
                countersigned[peer] = {"statement": statement, "signature": signature}
        return {
            **{name: own[name] for name in ("party", "run", "instance", "key")},
            "certificate": identity.certificate.pem.decode(),
            "vouched": identity.sign(KEY + bytes.fromhex(own["key"])).hex(),
            "signature": self._signature,
            "countersigned": countersigned,
        }

    def _sound(self, peer: str, facts: object) -> dict[str, Any] | None:
        """Return a peer's statement if it is one about this run and its signature is valid."""
        if not isinstance(facts, Mapping) or not isinstance(facts.get("statement"), Mapping):
            return None
        claim = facts["statement"]
        try:
            statement = {name: claim[name] for name in self._statement}
            key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(statement["key"]))
            key.verify(bytes.fromhex(facts["signature"]), STATEMENT + canonical(statement))
        except (KeyError, TypeError, ValueError, InvalidSignature):
            return None
        here = [peer, self._statement["run"], self._statement["instance"]]
        return statement if [statement[name] for name in ("party", "run", "instance")] == here else None


def load_keys(party: PartyFile, passphrase: str) -> PartyKeys:
    """Return the keys that the run of a party.toml takes."""
    holds = party.is_key_holder or party.shared.key_holder is None
    keys = PartyKeys(party.keys_folder, passphrase, party.shared.key_kind, holds=holds)
    if keys.identity.name != party.own.name:
        raise SettingError(
            f"name: {party.own.name!r} given, the certificate in {party.keys_folder} is of "
            f"{keys.identity.name!r}"
        )
    return keys


def check_certificates(party: PartyFile, own: Certificate, now: datetime | None = None) -> None:
    """Refuse certificates that have ended, and log a line for each that soon will."""
    for each in check_validity(party.own.name, own, party.peers, now or datetime.now(UTC)):
        if each.verdict != "soon":
            raise SettingError(each.text)
        logging.getLogger("securefed").warning("%s", each.text)
