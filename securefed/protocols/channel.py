"""A party's channel to one peer at one step of a round: send, receive, check and record.

Programs decide what to send and what to accept. This module records the facts for the transcript. Plain bytes
need no facts.

| fact | meaning |
|---|---|
| origin | source of the ciphertexts' randomness: fresh, re-randomised or forwarded (see `send`) |
| mask | fingerprints of a block's mask (securefed.transport.transcript), never the mask itself |
| narrow | count of masks that are too small to hide anything; recorded only if there are any |
| checks | checks that an arrival passed before it was used |

No fact is secret, and none depends on a value.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from securefed.crypto.scheme import Floats, Mask, Masked, Opened, Origin
from securefed.transport import Link

__all__ = ["Channel"]

REPEATED = "used for several of them"
"""The origin of ciphertexts that share randomness. No ciphertexts may."""
T = TypeVar("T")


class Sendable(Protocol):
    """Ciphertexts that are about to be sent."""

    origin: Origin
    shown: bool

    def repeated(self) -> int: ...

    def to_bytes(self) -> bytes: ...


@dataclass(frozen=True)
class Channel:
    """A channel that is bound to one peer, round and step."""

    link: Link
    peer: str
    round: int = 0
    step: int = 0

    # What leaves

    def send(
        self,
        kind: str,
        ciphertexts: Sendable,
        *,
        source: str | None = None,
        more: dict[str, Any] | None = None,
        activity: str = "",
    ) -> None:
        """Send ciphertexts, fresh or re-randomised.

        Parameters
        ----------
        source
            The party that encrypted forwarded ciphertexts. A key-holder's own fresh ciphertexts also count as
            forwarded: their receiver has not seen them.
        more
            Further facts for the transcript.
        """
        ciphertexts.shown = True
        facts: dict[str, Any] = {"origin": REPEATED if ciphertexts.repeated() else ciphertexts.origin}
        if facts["origin"] == "arrived" and source is not None:
            facts = {"origin": "forwarded", "source": source}
        facts |= more or {}
        with self._during(activity):
            payload = ciphertexts.to_bytes()
        self.tell(kind, payload, facts)

    def ask(self, kind: str, masked: Masked, mask: Mask, **more: Any) -> None:
        """Send a masked block to its key-holder."""
        self.tell(kind, masked.to_bytes(), self._hidden(masked, mask, more))

    def disclose(
        self, kind: str, masked: Masked, mask: Mask, joined: Callable[[bytes, bytes], bytes], **more: Any
    ) -> None:
        """Send a block with its mask, `joined` to one message. The key-holder learns the value; the mask
        ends.
        """
        facts, pieces = self._hidden(masked, mask, more), mask.material()
        self.tell(kind, joined(masked.to_bytes(), mask.disclose()), facts)
        self._spent(kind, mask, pieces)

    def _hidden(self, masked: Masked, mask: Mask, more: dict[str, Any]) -> dict[str, Any]:
        """Return the facts of a masked block that is about to be sent."""
        facts = {
            "origin": REPEATED if masked.repeated() else masked.origin,
            "mask": self.link.transcript.mask_print(mask.material()).to_dict(),
            "ciphertexts": masked.ciphertexts,
            **more,
        }
        narrow = mask.narrow()
        return {**facts, "narrow": narrow} if narrow else facts

    def tell(self, kind: str, payload: bytes, facts: dict[str, Any] | None = None) -> None:
        """Send bytes unchanged."""
        self.link.send(self.peer, kind, payload, round=self.round, step=self.step, facts=facts)

    # What arrives

    async def take(self, kind: str, load: Callable[[bytes], T], *checks: str, activity: str = "") -> T:
        """Return the next message as `load` parses it, and record the `checks` that `load` makes."""
        blob = await self.hear(kind)
        with self._during(activity):
            content = load(blob)
        self.checked(kind, *checks)
        return content

    async def hear(self, kind: str) -> bytes:
        """Return the bytes of the next message."""
        return await self.link.receive(kind, self.peer, round=self.round, step=self.step)

    def checked(self, kind: str, *checks: str) -> None:
        """Record the checks that an arrival passed, besides those of its frame."""
        self._note("checked", kind, checks=["frame", "scheme", "parameters", "key", *checks])

    def _during(self, activity: str) -> AbstractContextManager[None]:
        """Return a timer for making or reading bytes."""
        return self.link.activity(activity) if activity else nullcontext()

    # Masks and openings

    def remove(self, kind: str, mask: Mask, opened: Opened, *checks: str) -> Floats:
        """Remove the mask from an opening and return the values. The mask ends here."""
        pieces = mask.material()
        values = mask.remove(opened)
        self.checked(kind, *(checks or ("fits its mask",)))
        self._spent(kind, mask, pieces)
        return values

    def _spent(self, kind: str, mask: Mask, pieces: list[bytes]) -> None:
        """Record a mask's end. `pieces` is its material from before."""
        fingerprints = self.link.transcript.mask_print(pieces).to_dict()
        self._note("spent", kind, mask=fingerprints, destroyed=mask.destroyed)

    def requested(self, kind: str, masked: Masked) -> None:
        """Record that this party asked to open the block."""
        self._note("requested", kind, shape=list(masked.shape), ciphertexts=masked.ciphertexts)

    def opened(self, kind: str, masked: Masked) -> None:
        """Record that this key-holder opened the block for the peer."""
        self._note("opened", kind, shape=list(masked.shape), ciphertexts=masked.ciphertexts)

    def _note(self, event: str, kind: str, **detail: Any) -> None:
        place = self.peer, self.round, self.step, self.link.phase
        self.link.transcript.note(event, kind, *place, **detail)
