"""A party's line to one peer at one step of a round: it sends, takes, checks, and writes the evidence.

Programs say what is sent and what an arrival has to be; what the transcript has to know of it (where
randomness comes from, which mask hides a block and when it ended, what an arrival was checked for) is written
here and nowhere else (securefed.protocols.evidence has the words). What goes as bare bytes needs none.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from securefed.crypto.scheme import Floats, Mask, Masked, Opened
from securefed.protocols import evidence
from securefed.transport import Link

__all__ = ["Channel"]

T = TypeVar("T")


class Sendable(evidence.Leaving, Protocol):
    """Ciphertexts."""

    def to_bytes(self) -> bytes: ...


@dataclass(frozen=True)
class Channel:
    """Bound to (peer, round, step)."""

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
        """Ciphertexts, fresh or re-randomised; `source`: who encrypted what is passed on. `more` evidence."""
        facts = evidence.leaving(ciphertexts, source=source) | (more or {})
        with self._during(activity):
            payload = ciphertexts.to_bytes()
        self.tell(kind, payload, facts)

    def ask(self, kind: str, masked: Masked, mask: Mask, **more: Any) -> None:
        """A block under a mask, for its key-holder."""
        facts = evidence.hidden(self.link, masked, mask, **more)
        self.tell(kind, masked.to_bytes(), facts)

    def disclose(
        self, kind: str, masked: Masked, mask: Mask, joined: Callable[[bytes, bytes], bytes], **more: Any
    ) -> None:
        """A block with its mask, `joined` to one message: a value for its key-holder. The mask ends here."""
        facts, pieces = evidence.hidden(self.link, masked, mask, **more), mask.material()
        self.tell(kind, joined(masked.to_bytes(), mask.disclose()), facts)
        self._spent(kind, mask, pieces)

    def tell(self, kind: str, payload: bytes, facts: dict[str, Any] | None = None) -> None:
        """Bytes as they are."""
        self.link.send(self.peer, kind, payload, round=self.round, step=self.step, facts=facts)

    # What arrives

    async def take(self, kind: str, load: Callable[[bytes], T], *checks: str, activity: str = "") -> T:
        """The next message, as `load` makes of it, which makes the checks that are named."""
        blob = await self.hear(kind)
        with self._during(activity):
            content = load(blob)
        self.checked(kind, *checks)
        return content

    async def hear(self, kind: str) -> bytes:
        """Its bytes."""
        return await self.link.receive(kind, self.peer, round=self.round, step=self.step)

    def checked(self, kind: str, *checks: str) -> None:
        """An arrival was validated: so, besides its frame, scheme, parameters and key."""
        evidence.checked(self.link, kind, self.peer, self.round, self.step, *checks)

    def _during(self, activity: str) -> AbstractContextManager[None]:
        """What making or reading bytes counts as."""
        return self.link.activity(activity) if activity else nullcontext()

    # Masks and openings

    def remove(self, kind: str, mask: Mask, opened: Opened, *checks: str) -> Floats:
        """The value of an opening, without its mask, which ends here."""
        pieces = mask.material()
        values = mask.remove(opened)
        self.checked(kind, *(checks or ("fits its mask",)))
        self._spent(kind, mask, pieces)
        return values

    def _spent(self, kind: str, mask: Mask, pieces: list[bytes]) -> None:
        evidence.spent(self.link, kind, self.peer, self.round, self.step, mask, pieces)

    def requested(self, kind: str, masked: Masked) -> None:
        """This party asks to have it opened."""
        self._note("requested", kind, masked)

    def opened(self, kind: str, masked: Masked) -> None:
        """This key-holder opened it for the peer."""
        self._note("opened", kind, masked)

    def _note(self, event: str, kind: str, masked: Masked) -> None:
        shape, count = list(masked.shape), masked.ciphertexts
        self.link.transcript.note(
            event, kind, self.peer, self.round, self.step, self.link.phase, shape=shape, ciphertexts=count
        )
