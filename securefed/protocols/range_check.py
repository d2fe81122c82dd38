"""That a key-holder hides what it was sent, and not something far larger: random sums, commit and reveal.

In blind training whoever refreshes or converts an array could add 2^120 to one number of it: the holder goes
on with that, and its next masked margin carries one of its columns above the mask. So a holder checks arrays
that came back, at moments that it draws after they came (one in `check_every`), before it uses them. With w
the numbers that were hidden, and p what the holder adds to them, each known to one side only, w + p is a
value in its range; at the places of a polynomial that hold no entry both are 0, and a number there would do
the same harm:

    holder -> key-holder   range-choice       whether this array is checked
                           range-check        sums, each of a random half of all numbers of [[w]], masked
    key-holder -> holder   range-commitment   a hash of its answer
    holder -> key-holder   range-reveal       which numbers, and the mask
    key-holder -> holder   range-opening      the answer: the sums, flooded, under the mask

- *The holder* sees sums of w + p under a flood, and stops the run, naming the key-holder, if one of them is
  beyond 2^99 (modulo q or n, the representative nearest to 0). Weights are 0 and 1: of the two values that a
  sum has with and without number j at least one is beyond if |w_j + p_j| > 2^100, whatever the others are and
  however they were chosen. What the key-holder sees before it commits does not depend on the weights (the
  mask is uniform, and c1 or r^n fresh), so a cheat passes a sum with probability 1/2 at most and all with
  2^-4, or 2^-40 where every array is checked (`check_every = 1`): there that is what protects; elsewhere a
  cheat is not looked at with 1 - 1 / check_every, and 2^-4 adds little to that. (Weights of +1 and -1 would
  not do: modulo n two entries near n / 2 cancel whatever their signs. Nor would sums packed into slots: a
  multiple of the next slot's place shows there as a small number. So a Paillier ciphertext holds one sum.)
- *It is no oracle*: the key-holder knows w. After the reveal it computes the sums, and answers only if what
  it decrypted is them up to 2^50. Then it tells the holder nothing but sums under a flood of three numbers
  uniform below 2^96, where declared ranges let sums of w + p reach some 2^72, and real values 2^45.
- *The key-holder* learns which numbers were chosen, and the mask of sums that it knows: nothing.

What stays: shifts below 2^100 (a parameter moved by that moves margins by some 2^132, where masks are 2^150
wide), other values within the range, a cheat in an array that is not checked, and one bit where a check of
something else is refused. Arrays that are lifted for scoring are not checked: they meet uniform masks only.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from securefed.crypto import KeyHolder
from securefed.crypto.errors import OpeningRefused
from securefed.crypto.hidden import FLOOD_BITS, HiddenArray, PlainMatrix, Range, Wide
from securefed.crypto.scheme import Opened
from securefed.errors import SecurefedError
from securefed.protocols.channel import Channel
from securefed.protocols.keyring import Keyring
from securefed.transport import Link

__all__ = ["CHECK_EVERY", "Answer", "Check", "Gate", "RangeCheckFailed", "sums_for"]

CHECK_EVERY = 32
"""One array in so many is checked unless it is set otherwise: what that costs is in `bench blind`."""
SUMS = 4
ALL_SUMS = 40
"""Where every array is checked."""
SEED_BYTES = 32
DOMAIN = b"securefed: numbers of a range check, version 2"
MOST_BITS = FLOOD_BITS + 3
NOISE_BITS = 50
CHECKED, SKIPPED = b"\1", b"\0"


class RangeCheckFailed(SecurefedError):
    """A key-holder hid other values than it was sent."""


def chosen(seed: bytes, sums: int, entries: int) -> Wide:
    """(sums, entries) of 0 and 1."""
    raw = hashlib.shake_256(DOMAIN + seed).digest(-(-sums * entries // 8))
    bits = np.unpackbits(np.frombuffer(raw, dtype=np.uint8))[: sums * entries]
    return bits.reshape(sums, entries)


def weighed(weights: Wide, integers: Wide) -> Wide:
    """(sums, outputs): for each row of 0 and 1 the sum of the numbers that it chooses."""
    return np.array([integers[row.astype(bool)].sum(axis=0) for row in weights], dtype=object)


def drawn(check_every: int) -> bool:
    """Whether this array is one of those that are checked."""
    return secrets.randbelow(check_every) == 0


def sums_for(check_every: int) -> int:
    return ALL_SUMS if check_every == 1 else SUMS


def largest_bits(values: Wide, public: Any) -> int:
    """Of the representatives nearest to 0."""
    modulus = int(public.modulus)
    residues = (int(value) % modulus for value in values.ravel())
    return max(min(residue, modulus - residue) for residue in residues).bit_length()


@dataclass
class Check:
    """The holder's side, for one array that came back."""

    link: Link
    keys: Keyring
    rate: int
    round: int
    step: int
    array: HiddenArray
    plain: Wide
    """What is added to the array."""
    blocks: int = 1
    _pending: Any = field(default=None, init=False)

    def begin(self) -> bool:
        """Draw whether to check, and send the sums; whether it does."""
        if not drawn(self.rate):
            self._channel.tell("range-choice", SKIPPED)
            return False
        self._channel.tell("range-choice", CHECKED)
        public: Any = self.keys.public
        numbers, places = public.places(self.array.shape[0], self.blocks)
        seed = secrets.token_bytes(SEED_BYTES)
        weights = chosen(seed, sums_for(self.rate), numbers)
        with self.link.activity("range check"):
            sums = PlainMatrix(weights, 0, 1) @ self.array.whole()
            masked, mask = sums.within(public.check_range(self.array.range, numbers), 0).mask()
        self._channel.ask("range-check", masked, mask)
        self._pending = seed, mask, weighed(weights[:, places], self.plain)
        return True

    async def reveal(self) -> None:
        seed, mask, *_ = self._pending
        self._commitment = await self._channel.hear("range-commitment")
        self._channel.tell("range-reveal", seed + b"".join(mask.material()))

    async def end(self) -> None:
        """RangeCheckFailed unless the sums are small."""
        _, mask, plain = self._pending
        blob, peer = await self._channel.hear("range-opening"), self.keys.opener
        pieces = mask.material()
        with self.link.activity("range check"):
            public: Any = self.keys.public
            opened = public.load_opened(blob)
            found = public.unmasked(opened, b"".join(pieces)) + plain
            bits = largest_bits(found, public)
        if hashlib.sha256(blob).digest() != self._commitment:
            raise RangeCheckFailed(f"{peer} answered a range check with something else than it committed to")
        if bits > MOST_BITS:
            raise RangeCheckFailed(
                f"{peer} hid other values than it was sent: a sum of them is far out of range (round "
                f"{self.round}); nothing that it refreshed can be relied on, and it may have read data"
            )
        self._channel.remove("range-opening", mask, opened, "committed", "in range")
        self._pending = None

    @property
    def _channel(self) -> Channel:
        return Channel(self.link, self.keys.opener, self.round, self.step)


@dataclass
class Answer:
    """The key-holder's side. `hidden_numbers`: what it hid in the array."""

    link: Link
    holder: KeyHolder
    requester: str
    rate: int
    hidden_numbers: Wide
    range: Range
    blocks: int
    round: int
    step: int
    _answer: Any = field(default=None, init=False)

    async def asked(self) -> bool:
        """Whether the holder checks this array."""
        choice = await self._receive("range-choice")
        if choice not in (CHECKED, SKIPPED):
            raise OpeningRefused(f"range-choice: {choice.hex()!r} given, one byte of 0 or 1 is allowed")
        return choice == CHECKED

    async def begin(self) -> None:
        blob = await self._receive("range-check")
        entries, columns = self.hidden_numbers.shape
        public: Any = self.holder.public
        range_ = public.check_range(self.range, public.places(entries, self.blocks)[0])
        shape = (sums_for(self.rate), columns)
        with self.link.activity("range check"):
            masked = public.load_masked(blob)
            if masked.shape != shape or masked.ciphertexts != public.sum_ciphertexts(shape, range_, 0):
                raise OpeningRefused(f"a range check of shape {masked.shape} given, {shape} is due")
            raw, flooded = self.holder.open_twice(masked, public.slot_bits(range_, 0))
        self._channel.checked("range-check", "as agreed", "not seen")
        self._answer = raw, flooded.to_bytes()
        self._send("range-commitment", hashlib.sha256(self._answer[1]).digest())

    async def end(self) -> None:
        """Open, if the sums are those of what was hidden."""
        raw, answer = self._answer
        self._answer = None
        reveal = await self._receive("range-reveal")
        with self.link.activity("range check"):
            self._judge(raw, reveal)
        self._send("range-opening", answer)

    async def serve(self) -> None:
        """All of it, for a key-holder party, which checks nothing itself."""
        if await self.asked():
            await self.begin()
            await self.end()

    def _judge(self, raw: Opened, reveal: bytes) -> None:
        public: Any = self.holder.public
        numbers, places = public.places(len(self.hidden_numbers), self.blocks)
        weights = chosen(reveal[:SEED_BYTES], raw.shape[0], numbers)[:, places]
        off = public.unmasked(raw, reveal[SEED_BYTES:]) - weighed(weights, self.hidden_numbers)
        if largest_bits(off, public) > NOISE_BITS:
            raise OpeningRefused(
                f"{self.requester} asks in a range check for other sums than those of what was hidden for it"
            )

    def _send(self, kind: str, payload: bytes) -> None:
        self._channel.tell(kind, payload)

    async def _receive(self, kind: str) -> bytes:
        return await self._channel.hear(kind)

    @property
    def _channel(self) -> Channel:
        return Channel(self.link, self.requester, self.round, self.step)


async def _nothing() -> None:
    pass


@dataclass
class Gate:
    """Checks of arrays that came back, before the messages in which they are used: a party that draws none
    waits for nobody before it goes on, so that choices cost no round trip.
    """

    check: Check | None = None
    answer: Answer | None = None

    async def passed(
        self, say: Callable[[], None] = lambda: None, hear: Callable[[], Awaitable[None]] = _nothing
    ) -> None:
        """`say` what follows on our side once our array is checked; `hear` what follows on theirs."""
        checking = self.check is not None and self.check.begin()
        if not checking:
            say()
        asked = self.answer is not None and await self.answer.asked()
        if not asked:
            await hear()
        if self.answer is not None and asked:
            await self.answer.begin()
        if self.check is not None and checking:
            await self.check.reveal()
        if self.answer is not None and asked:
            await self.answer.end()
        if self.check is not None and checking:
            await self.check.end()
            say()
        if asked:
            await hear()
