"""A party's channel to one peer at one step of a round, and the keys of a run.

Programs decide what to send and what to accept. A channel records facts for the transcript (docs/audit.md,
transcripts). No fact is secret, and none depends on a value.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

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
from securefed.crypto.fixed import Floats
from securefed.crypto.scheme import Mask, Masked
from securefed.errors import SettingError
from securefed.protocols.agreement import Agreement
from securefed.transport.link import Link

REPEATED = "used for several of them"
"""The origin of ciphertexts that share randomness. No ciphertexts may."""
LENGTH = struct.Struct("<Q")
T = TypeVar("T")


@dataclass(frozen=True)
class Channel:
    link: Link
    peer: str
    round: int = 0
    step: int = 0

    # What leaves

    def send(self, kind: str, encrypted: Encrypted, more: dict[str, Any] | None = None) -> None:
        """Send ciphertexts, fresh or re-randomised. `more`: further facts for the transcript."""
        encrypted.shown = True
        facts = {"origin": REPEATED if encrypted.repeated() else encrypted.origin, **(more or {})}
        self.tell(kind, encrypted.to_bytes(), facts)

    def ask(self, kind: str, masked: Masked, mask: Mask, **more: Any) -> None:
        """Send a masked block to its key-holder."""
        self.tell(kind, masked.to_bytes(), self._hidden(masked, mask, more))

    def disclose(self, kind: str, masked: Masked, mask: Mask, **more: Any) -> None:
        """Send a block, after its length, and its mask. The key-holder learns the value; the mask ends."""
        facts, pieces, block = self._hidden(masked, mask, more), mask.material(), masked.to_bytes()
        self.tell(kind, LENGTH.pack(len(block)) + block + mask.disclose(), facts)
        self._spent(kind, mask, pieces)

    def _hidden(self, masked: Masked, mask: Mask, more: dict[str, Any]) -> dict[str, Any]:
        """Return the facts of a masked block that is about to be sent."""
        facts = {
            "origin": REPEATED if masked.repeated() else masked.origin,
            "mask": self.link.transcript.mask_print(mask.material()),
            "ciphertexts": masked.ciphertexts,
            **more,
        }
        narrow = mask.narrow()
        return {**facts, "narrow": narrow} if narrow else facts

    def tell(self, kind: str, payload: bytes, facts: dict[str, Any] | None = None) -> None:
        """Send bytes unchanged."""
        self.link.send(self.peer, kind, payload, round=self.round, step=self.step, facts=facts)

    # What arrives

    async def take(self, kind: str, load: Callable[[bytes], T], *checks: str) -> T:
        """Return the next message as `load` parses it, and record the `checks` that `load` makes."""
        blob = await self.hear(kind)
        with self.link.activity("validate"):
            content = load(blob)
        self.checked(kind, *checks)
        return content

    async def hear(self, kind: str) -> bytes:
        return await self.link.receive(kind, self.peer, round=self.round, step=self.step)

    def checked(self, kind: str, *checks: str) -> None:
        """Record the checks that an arrival passed, besides those of its frame."""
        self._note("checked", kind, checks=["frame", "scheme", "parameters", "key", *checks])

    # Masks and openings

    async def unmask(self, kind: str, mask: Mask, public: PublicKey) -> Floats:
        """Remove the mask from the next opening and return the values. The mask ends here."""
        blob, pieces = await self.hear(kind), mask.material()
        with self.link.activity("unmask"):
            values = mask.remove(public.load_opened(blob))
        self.checked(kind, "fits its mask")
        self._spent(kind, mask, pieces)
        return values

    def _spent(self, kind: str, mask: Mask, pieces: list[bytes]) -> None:
        """Record a mask's end. `pieces` is its material from before."""
        fingerprints = self.link.transcript.mask_print(pieces)
        self._note("spent", kind, mask=fingerprints, destroyed=mask.destroyed)

    def requested(self, kind: str, masked: Masked) -> None:
        self._note("requested", kind, shape=list(masked.shape), ciphertexts=masked.ciphertexts)

    async def open_for(
        self, request: str, opening: str, holder: KeyHolder, check: Callable[[Masked], None], *checks: str
    ) -> None:
        """Answer a request of the peer as its key-holder if `check` passes. `checks`: for the record."""
        blob = await self.hear(request)
        with self.link.activity("open"):
            masked = holder.public.load_masked(blob)
            check(masked)
            answer = holder.open(masked).to_bytes()
        self.checked(request, *checks, "not seen")
        self._note("opened", opening, shape=list(masked.shape), ciphertexts=masked.ciphertexts)
        self.tell(opening, answer)

    def _note(self, event: str, kind: str, **detail: Any) -> None:
        place = self.peer, self.round, self.step, self.link.phase
        self.link.transcript.note(event, kind, *place, **detail)


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


async def distribute_keys(link: Link, agreement: Agreement, own: KeyHolder | None, mapper: Mapper) -> Keyring:
    """Send and receive public keys, the first message of every protocol.

    Raises SettingError for a missing key, a key of another scheme or a peer's key that equals this party's.
    Malformed and weak keys are refused.
    """
    if agreement.mutual:
        receivers = [name for name in agreement.names if name != link.name]
        opener = receivers[0]
    else:
        opener = str(agreement.key_holder)
        receivers = list(agreement.names) if link.name == opener else []
        own = own if receivers else None
    if receivers:
        if own is None:
            raise SettingError(f"keys: {link.name} has no key, and the other parties need it")
        own.public.mapper = mapper
        for name in receivers:
            link.send(name, "public-key", own.public.to_bytes())
        if link.name == opener:
            return Keyring(own, opener, own.public)
    public = load_public_key(await link.receive("public-key", opener))
    kind, due = public.scheme, key_kind(agreement.scheme, agreement.reveal)
    if kind != due:  # a plain 'key' in an encrypted run, for one
        raise SettingError(f"{opener} sent a {kind} key, this run takes {due}")
    if own is not None and protects(agreement.scheme) and public.key_id == own.public.key_id:
        raise SettingError(
            f"keys: {opener} sent the key that is held here too, so each could read what the other sends;"
            " every party makes a key of its own"
        )
    Channel(link, opener).checked("public-key", *find_kind(kind).checks)
    public.mapper = mapper
    return Keyring(own, opener, public)


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
