"""Messages in which hidden arrays pass their key-holder: refresh, and what the key-holder does about it.

    holder -> key-holder     refresh-request: the array, every entry under a mask
    key-holder -> holder     refreshed: what was read, with low bits cut off (or lifted), hidden afresh

The key-holder sees value + noise + mask (securefed.crypto.hidden); the holder sees ciphertexts of a key
that it lacks. Shapes, ranges and shifts are both sides' own, from the agreement; what a frame says besides
is refused.

An entry that no honest value leads to is replaced by 0 and remembered: nothing that is answered, and no
delay, says so during the run. At the end the key-holder tells all parties, in one byte, that values left
their range.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from securefed.crypto import KeyHolder
from securefed.crypto.errors import Diverged
from securefed.crypto.hidden import HiddenArray, HiddenSum, HidingKey, Range, Wide, hides
from securefed.errors import SettingError
from securefed.protocols.channel import Channel
from securefed.protocols.keyring import Keyring
from securefed.protocols.range_check import Answer, Check
from securefed.transport import Link

__all__ = [
    "DIVERGED",
    "Refresh",
    "Refresher",
    "ask_refresh",
    "hear_report",
    "hiding",
    "shifted",
    "take_refreshed",
]


def hiding(keys: Keyring) -> HidingKey:
    """The key of what this party works on."""
    if not hides(keys.public):
        raise SettingError(f"reveal: 'nothing' takes keys that hide arrays, {keys.public!r} given")
    return keys.public


@dataclass(frozen=True)
class Refresh:
    """What both sides know about one refresh."""

    shape: tuple[int, int]
    range: Range
    slack: int
    shift: int
    """Low bits cut off; negative: bits added."""
    blocks: int = 1

    @property
    def wide(self) -> Range:
        """Of value + mask after the shift."""
        return self.range.masked(self.slack).cut(self.shift)

    @property
    def fresh(self) -> Range:
        """Of the refreshed array."""
        return self.range.cut(self.shift)


def shifted(integers: Wide, shift: int) -> Wide:
    return integers >> shift if shift >= 0 else integers << -shift


def ask_refresh(link: Link, keys: Keyring, sums: HiddenSum, t: int, step: int) -> Wide:
    """Send the request, of sums that were declared `within` its range; keep the masks."""
    with link.activity("mask"):
        block, masks = sums.hide()
    Channel(link, keys.opener, t, step).ask("refresh-request", block, masks)
    return masks


async def take_refreshed(
    link: Link,
    keys: Keyring,
    masks: Wide,
    due: Refresh,
    t: int,
    step: int,
    check_every: int = 0,
) -> tuple[HiddenArray, Check | None]:
    """The refreshed array, without the masks; and its check, where checks were agreed."""
    channel = Channel(link, keys.opener, t, step)

    def load(blob: bytes) -> HiddenArray:
        return hiding(keys).load_array(blob, due.shape, due.wide, due.blocks)

    array = await channel.take("refreshed", load, "shape", "scale", "ciphertexts", activity="unmask")
    with link.activity("unmask"):
        plain = -shifted(masks, due.shift)
        result = array.add_plain(plain, due.fresh)
    check = Check(link, keys, check_every, t, step, array, plain, due.blocks) if check_every else None
    channel.spend("refreshed", masks)
    return result, check


@dataclass
class Refresher:
    """The key-holder's side."""

    holder: KeyHolder
    check_every: int = 0
    left_range: bool = field(default=False, init=False)
    """Whether something that was read cannot come from values in their range."""

    @property
    def public(self) -> HidingKey:
        if not hides(self.holder.public):
            raise SettingError(f"reveal: 'nothing' takes keys that hide arrays, {self.holder.public!r} given")
        return self.holder.public

    def read(self, blob: bytes, shape: tuple[int, int], range_: Range, slack: int) -> Wide:
        """value + noise + mask of every entry; 0 where that is out of range."""
        seen = self.holder.read(self.public.load_block(blob, shape, range_, slack))
        low, high = -(1 << range_.bits), (3 << (range_.bits + slack)) + (1 << range_.bits)
        out = np.asarray((seen < low) | (seen > high), dtype=bool)
        self.left_range |= bool(out.any())
        seen[out] = 0
        return seen

    async def serve(self, link: Link, requester: str, due: Refresh, t: int, step: int) -> Answer | None:
        """Answer one request; and what answers a check of it, where checks were agreed."""
        blob = await link.receive("refresh-request", requester, round=t, step=step)
        return self.answer(link, requester, due, t, step, blob)

    def answer(
        self, link: Link, requester: str, due: Refresh, t: int, step: int, blob: bytes
    ) -> Answer | None:
        channel = Channel(link, requester, t, step)
        with link.activity("refresh"):
            numbers = shifted(self.read(blob, due.shape, due.range, due.slack), due.shift)
            fresh = self.holder.conceal(numbers, due.wide, due.blocks)
        channel.checked("refresh-request", "as agreed", "ciphertexts", "not seen")
        channel.send("refreshed", fresh, activity="refresh")
        return self.checkable(link, requester, numbers, due.wide, due.blocks, t, step)

    def checkable(
        self, link: Link, requester: str, numbers: Wide, range_: Range, blocks: int, t: int, step: int
    ) -> Answer | None:
        """What answers a check of numbers that were hidden."""
        if not self.check_every:
            return None
        rate, holder = self.check_every, self.holder
        return Answer(link, holder, requester, rate, numbers, range_, blocks, t, step)

    def tell(self, link: Link, names: list[str], t: int) -> None:
        """At the end: whether values left their range."""
        for name in names:
            link.send(name, "range-report", bytes([self.left_range]), round=t)

    def check(self) -> None:
        if self.left_range:
            raise Diverged(DIVERGED)


DIVERGED = "values left their declared range during the run: the model is not usable, lower learning_rate"


async def hear_report(link: Link, keys: Keyring, t: int) -> None:
    """What the key-holder says at the end; Diverged if values left their range."""
    report = await link.receive("range-report", keys.opener, round=t)
    if report not in (b"\0", b"\1"):
        raise SettingError(f"range-report: {report.hex()!r} given, one byte of 0 or 1 is allowed")
    if report == b"\1":
        raise Diverged(DIVERGED)
