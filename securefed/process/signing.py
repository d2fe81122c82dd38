"""Sign the end of a transcript, and countersign the peers': what `securefed verify` checks later.

    signing-key.skf              a party's Ed25519 key, beside its TLS key; the TLS key vouches for it
    signatures-<party>.json      in the run directory: the own signature, and one for each peer's transcript

The parties tell each other their signed statements when a run ends, over connections that their certificates
have authenticated. Each keeps what the others said, countersigned. What is signed: securefed.audit.verify.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from securefed.audit.verify import COUNTERSIGNATURE, KEY, STATEMENT, canonical
from securefed.process.keys import PartyKeys
from securefed.transport import Transcript

__all__ = ["Signatures"]

FIELDS = ("party", "run", "instance", "entries", "chain", "key")


class Signatures:
    """What one party signs at the end of one run."""

    def __init__(self, keys: PartyKeys, transcript: Transcript, instance: str) -> None:
        self._keys, self._run, self._instance = keys, transcript.run, instance
        self._public = keys.signing_key.public_key().public_bytes_raw()
        self._statement = {
            "party": transcript.party,
            "run": transcript.run,
            "instance": instance,
            "entries": len(transcript),
            "chain": transcript.head,
            "key": self._public.hex(),
        }
        self._signature = self._sign(STATEMENT, self._statement)

    def _sign(self, purpose: bytes, value: object) -> str:
        return self._keys.signing_key.sign(purpose + canonical(value)).hex()

    def to_facts(self) -> dict[str, Any]:
        """Return what the peers are told."""
        return {"statement": self._statement, "signature": self._signature}

    def to_file(self, heard: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Return what the file holds. `heard`: the facts of each peer that was still there."""
        identity = self._keys.identity
        countersigned = {}
        for peer, facts in heard.items():
            statement = self._sound(peer, facts.get("signed"))
            if statement is not None:
                said = {"by": self._statement["party"], "statement": statement}
                signature = self._sign(COUNTERSIGNATURE, said)
                countersigned[peer] = {"statement": statement, "signature": signature}
        return {
            "party": self._statement["party"],
            "run": self._run,
            "instance": self._instance,
            "key": self._public.hex(),
            "certificate": identity.certificate.pem.decode(),
            "vouched": identity.sign(KEY + self._public).hex(),
            "signature": self._signature,
            "countersigned": countersigned,
        }

    def _sound(self, peer: str, said: object) -> dict[str, Any] | None:
        """Return a peer's statement if it is one about this run and its signature is valid."""
        if not isinstance(said, Mapping) or not isinstance(said.get("statement"), Mapping):
            return None
        found = said["statement"]
        try:
            statement = {name: found[name] for name in FIELDS}
            key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(statement["key"]))
            key.verify(bytes.fromhex(said["signature"]), STATEMENT + canonical(statement))
        except (KeyError, TypeError, ValueError, InvalidSignature):
            return None
        here = (peer, self._run, self._instance)
        return statement if (statement["party"], statement["run"], statement["instance"]) == here else None
