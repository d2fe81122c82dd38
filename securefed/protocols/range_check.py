"""That a key-holder hides what it was sent, and not something far larger: random sums, commit and reveal.

In blind training whoever refreshes or converts an array could add 2^120 to one entry of it: the holder goes
on with that, and its next masked margin carries one of its columns above the mask. So a holder checks arrays
that came back, at moments that it draws after they came (one in `check_every`). With w the numbers that were
hidden, and p what the holder adds to them, each known to one side only, w + p is a value in its range:

    holder -> key-holder   range-choice       whether this array is checked
                           range-check        sums, each of a random half of the entries of [[w]], masked
    key-holder -> holder   range-commitment   a hash of its answer
    holder -> key-holder   range-reveal       which entries, and the mask
    key-holder -> holder   range-opening      the answer: the sums, flooded, under the mask

- *The holder* sees sums of w + p under a flood, and stops the run, naming the key-holder, if one of them is
  beyond 2^99. Weights are 0 and 1: of the two values that a sum has with and without entry j at least one is
  beyond if |w_j + p_j| > 2^100, whatever the other entries are and however they were chosen. So a cheat
  passes one sum with probability 1/2 at most, and all of them with 2^-40 (RLWE, 40 sums) or 2^-12 (Paillier,
  12 sums). (Weights of +1 and -1 would not do: modulo n two entries near n / 2 cancel whatever their signs.
  Nor would sums packed into slots: a multiple of the next slot's place shows there as a small number. So a
  Paillier ciphertext holds one sum, and there are fewer of them.) The answer cannot be made up, since it was
  committed to before the mask was known.
- *It is no oracle*: the key-holder knows w. After the reveal it computes the sums, and answers only if what
  it decrypted is them up to 2^50. Then it tells the holder nothing but sums under a flood of three numbers
  uniform below 2^96, where declared ranges let sums of w + p reach some 2^70, and real values 2^45.
- *The key-holder* learns which entries were chosen, and the mask of sums that it knows: nothing.

What stays: shifts below 2^100 (a parameter moved by that moves margins by some 2^132, where masks are 2^150
wide), a cheat in an array that is not checked, and one bit where a check of something else is refused.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from securefed.crypto import KeyHolder
from securefed.crypto.errors import BadCiphertext, OpeningRefused
from securefed.crypto.hidden import FLOOD_BITS, HiddenArray, PlainMatrix, Range, Wide
from securefed.crypto.paillier.hidden import slot_width
from securefed.crypto.paillier.masking import PaillierOpened, split_integers
from securefed.crypto.paillier.public import PaillierPublicKey
from securefed.crypto.scheme import Opened
from securefed.errors import SecurefedError
from securefed.protocols.evidence import checked, hidden, spent
from securefed.protocols.keyring import Keyring
from securefed.transport import Link

__all__ = ["Answer", "Check", "RangeCheckFailed", "check_both"]

SUMS = 40
PAILLIER_SUMS = 12
SEED_BYTES = 32
DOMAIN = b"securefed: entries of a range check, version 1"
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


def summed(public: Any, range_: Range, entries: int) -> tuple[int, Range]:
    """How many sums of so many numbers of that range a check takes, and the range that they are sent in."""
    if isinstance(public, PaillierPublicKey):
        return PAILLIER_SUMS, Range(range_.fraction_bits, public.bits - 6)  # one sum a plaintext
    return SUMS, Range(range_.fraction_bits, range_.bits + entries.bit_length() + 1)


def without_mask(opened: Any, material: bytes) -> Wide:
    """The whole numbers under a mask; `material` is the mask's."""
    public = opened.public
    if isinstance(opened, PaillierOpened):
        n, masks = int(public.n), split_integers(material, len(opened.integers()), public.plaintext_bytes)
        pairs = zip(opened.integers(), masks, strict=True)
        values = [(plaintext - int(mask)) % n for plaintext, mask in pairs]
        signed = [value - n if 2 * value > n else value for value in values]
        return np.array(signed, dtype=object).reshape(opened.shape)
    from securefed.crypto.rlwe.arrays import unflat
    from securefed.crypto.rlwe.packing import Packing

    ring, residues = public.ring, opened.residues
    if len(material) != residues.size * 8:
        raise BadCiphertext(f"a mask of {len(material)} bytes given, {residues.size * 8} are due")
    mask = np.frombuffer(material, dtype="<u8").astype(np.uint64).reshape(residues.shape)
    if (mask >= ring.moduli(mask).view(np.uint64)).any():
        raise BadCiphertext("a mask with residues that are not reduced")
    packing = Packing(opened.shape[0], opened.shape[1], ring.degree)
    return unflat(packing, ring.to_wide(ring.subtract(residues, mask)))


def largest_bits(values: Wide) -> int:
    return max(abs(int(value)) for value in values.ravel()).bit_length()


@dataclass
class Check:
    """The holder's side, for one array that came back."""

    link: Link
    keys: Keyring
    rate: int
    round: int
    step: int
    _pending: Any = field(default=None, init=False)

    def begin(self, array: HiddenArray, plain: Wide) -> None:
        """Draw whether to check, and send the sums. `plain`: what is added to the array."""
        place: dict[str, Any] = {"round": self.round, "step": self.step}
        if secrets.randbelow(self.rate):
            self.link.send(self.keys.opener, "range-choice", SKIPPED, **place)
            return
        self.link.send(self.keys.opener, "range-choice", CHECKED, **place)
        seed, entries = secrets.token_bytes(SEED_BYTES), array.shape[0]
        count, range_ = summed(self.keys.public, array.range, entries)
        weights = chosen(seed, count, entries)
        with self.link.activity("range check"):
            sums = PlainMatrix(weights.astype(np.float64), 0, 1) @ array
            masked, mask = sums.within(range_, 0).mask()
        facts = hidden(self.link, masked, mask)
        self.link.send(self.keys.opener, "range-check", masked.to_bytes(), facts=facts, **place)
        self._pending = seed, mask, weights.astype(object) @ plain

    async def reveal(self) -> None:
        if self._pending is None:
            return
        seed, mask, *_ = self._pending
        self._commitment = await self._receive("range-commitment")
        pieces = mask.material()
        place: dict[str, Any] = {"round": self.round, "step": self.step}
        self.link.send(self.keys.opener, "range-reveal", seed + b"".join(pieces), **place)

    async def end(self) -> None:
        """RangeCheckFailed unless the sums are small."""
        if self._pending is None:
            return
        _, mask, plain = self._pending
        blob, peer = await self._receive("range-opening"), self.keys.opener
        pieces = mask.material()
        with self.link.activity("range check"):
            opened = self.keys.public.load_opened(blob)
            found = without_mask(opened, b"".join(pieces)) + plain
        if hashlib.sha256(blob).digest() != self._commitment:
            raise RangeCheckFailed(f"{peer} answered a range check with something else than it committed to")
        if largest_bits(found) > MOST_BITS:
            raise RangeCheckFailed(
                f"{peer} hid other values than it was sent: a sum of them is far out of range (round "
                f"{self.round}); nothing that it refreshed can be relied on, and it may have read data"
            )
        mask.remove(opened)
        checked(self.link, "range-opening", peer, self.round, self.step, "committed", "in range")
        spent(self.link, "range-opening", peer, self.round, self.step, mask, pieces)
        self._pending = None

    async def _receive(self, kind: str) -> bytes:
        return await self.link.receive(kind, self.keys.opener, round=self.round, step=self.step)


@dataclass
class Answer:
    """The key-holder's side. `hidden_numbers`: what it hid in the array."""

    link: Link
    holder: KeyHolder
    requester: str
    hidden_numbers: Wide
    range: Range
    round: int
    step: int
    _answer: Any = field(default=None, init=False)

    async def begin(self) -> None:
        choice = await self._receive("range-choice")
        if choice not in (CHECKED, SKIPPED):
            raise OpeningRefused(f"range-choice: {choice.hex()!r} given, one byte of 0 or 1 is allowed")
        if choice == SKIPPED:
            return
        blob = await self._receive("range-check")
        entries, columns = self.hidden_numbers.shape
        public: Any = self.holder.public
        count, range_ = summed(public, self.range, entries)
        shape = (count, columns)
        with self.link.activity("range check"):
            masked = public.load_masked(blob)
            if masked.shape != shape or masked.ciphertexts != public.sum_ciphertexts(shape, range_, 0):
                raise OpeningRefused(f"a range check of shape {masked.shape} given, {shape} is due")
            raw, flooded = self.holder.open_twice(masked, slot_width(range_, 0))
        checked(self.link, "range-check", self.requester, self.round, self.step, "as agreed", "not seen")
        self._answer = raw, flooded.to_bytes()
        self._send("range-commitment", hashlib.sha256(self._answer[1]).digest())

    async def end(self) -> None:
        """Open, if the sums are those of what was hidden."""
        if self._answer is None:
            return
        raw, answer = self._answer
        self._answer = None
        reveal = await self._receive("range-reveal")
        with self.link.activity("range check"):
            self._judge(raw, reveal)
        self._send("range-opening", answer)

    def _judge(self, raw: Opened, reveal: bytes) -> None:
        weights = chosen(reveal[:SEED_BYTES], raw.shape[0], len(self.hidden_numbers)).astype(object)
        if largest_bits(without_mask(raw, reveal[SEED_BYTES:]) - weights @ self.hidden_numbers) > NOISE_BITS:
            raise OpeningRefused(
                f"{self.requester} asks in a range check for other sums than those of what was hidden for it"
            )

    def _send(self, kind: str, payload: bytes) -> None:
        self.link.send(self.requester, kind, payload, round=self.round, step=self.step)

    async def _receive(self, kind: str) -> bytes:
        return await self.link.receive(kind, self.requester, round=self.round, step=self.step)


async def check_both(check: Check | None, answer: Answer | None) -> None:
    """The rest of a check after its beginning, in an order in which nobody waits for itself."""
    if answer is not None:
        await answer.begin()
    if check is not None:
        await check.reveal()
    if answer is not None:
        await answer.end()
    if check is not None:
        await check.end()
