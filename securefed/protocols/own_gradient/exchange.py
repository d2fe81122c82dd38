"""The paper's Exchange(U): encrypted contributions to H reach the parties that need them.

    pair      two parties: each sends its contribution to the other, under its own key (2 messages a round)
    star      each party sends its contribution to the label party, which adds its own, freshly encrypted,
              and sends the sum to all: 2 (K - 1) messages a round, as in equation 2's form
    pairwise  each party sends to each, where no party may add for all: K^2 - K messages a round

A party gets the sum of the others' contributions, or of all contributions (`included`). It cannot decrypt the
sum.
"""

from __future__ import annotations

from dataclasses import dataclass

from securefed.crypto import Encrypted
from securefed.protocols.agreement import Agreement
from securefed.protocols.channel import Channel, Keyring
from securefed.protocols.own_gradient.sides import Side
from securefed.transport import Link

__all__ = ["Exchange", "PeerSum"]


@dataclass(frozen=True)
class PeerSum:
    """The encrypted sum that a party holds after an exchange."""

    encrypted: Encrypted
    included: bool
    """Whether the sum includes the party's own contribution of the round's start."""


class Exchange:
    """One party's part in the exchanges of a run."""

    def __init__(self, link: Link, agreement: Agreement, keys: Keyring, side: Side) -> None:
        self._link, self._agreement, self._keys, self._side = link, agreement, keys, side
        self._me, self._label = link.name, agreement.label_party
        self._parts: dict[str, Encrypted] = {}

    async def all(self, round_: int) -> PeerSum:
        """Exchange({1 .. K}): return this party's sum. Parallel schedules start a round with it."""
        if self._agreement.mutual or self._agreement.exchange == "pairwise":
            others = [name for name in self._agreement.names if name != self._me]
            part = self._encrypt()
            for name in others:
                self._send(name, "contribution", part, round_)
            return PeerSum(
                self._sum([await self._receive("contribution", name, round_) for name in others]), False
            )
        if self._me != self._label:
            self._send(self._label, "contribution", self._encrypt(), round_)
            return PeerSum(await self._receive("residual", self._label, round_), True)
        others = [name for name in self._agreement.names if name != self._me]
        received = self._sum([await self._receive("contribution", name, round_) for name in others])
        total = self._encrypt() + received  # the fresh term re-randomises the sum
        for name in others:
            self._send(name, "residual", total, round_)
        return PeerSum(received, False)

    async def before_turns(self, round_: int) -> None:
        """Sequential: send the contributions of all later turns to the label party."""
        if self._agreement.mutual:
            return
        for position, name in enumerate(self._agreement.names[1:-1], start=1):
            if self._agreement.exchange == "pairwise":
                await self._broadcast(name, round_, position)
            elif name == self._me:
                self._send(self._label, "contribution", self._encrypt(), round_, position)
            elif self._me == self._label:
                self._parts[name] = await self._receive("contribution", name, round_, position)
        if self._agreement.exchange == "pairwise":
            await self._broadcast(self._label, round_, len(self._agreement.names) - 1)

    async def for_turn(self, round_: int, turn: str) -> PeerSum | None:
        """Sequential: return the sum of the others' newest contributions at the party of this turn."""
        others = [name for name in self._agreement.names if name != turn]
        if self._agreement.mutual:
            (peer,) = others
            if self._me == peer:
                self._send(turn, "contribution", self._encrypt(), round_)
                return None
            return PeerSum(await self._receive("contribution", peer, round_), False)
        if self._agreement.exchange == "pairwise" or turn == self._label:
            if self._me != turn:
                return None
            return PeerSum(self._sum([self._parts[name] for name in others]), False)
        if self._me == self._label:
            total = self._sum(
                [self._encrypt(), *(self._parts[name] for name in others if name != self._label)]
            )
            self._send(turn, "residual", total, round_)
        return (
            PeerSum(await self._receive("residual", self._label, round_), False) if self._me == turn else None
        )

    async def after_turn(self, round_: int, turn: str) -> None:
        """Sequential: Exchange({k, K}) after party k's local steps."""
        if self._agreement.mutual or turn == self._label:
            return
        step = self._agreement.algorithm.local_steps
        if self._agreement.exchange == "pairwise":
            await self._broadcast(turn, round_, step)
        elif self._me == turn:
            self._send(self._label, "contribution", self._encrypt(), round_, step)
        elif self._me == self._label:
            self._parts[turn] = await self._receive("contribution", turn, round_, step)

    async def _broadcast(self, sender: str, round_: int, step: int) -> None:
        if self._me == sender:
            part = self._encrypt()
            for name in self._agreement.names:
                if name != self._me:
                    self._send(name, "contribution", part, round_, step)
        else:
            self._parts[sender] = await self._receive("contribution", sender, round_, step)

    def _encrypt(self) -> Encrypted:
        with self._link.activity("local model"):
            values = self._side.contribution()
        with self._link.activity("encrypt"):
            return self._keys.encrypt(values, self._side.fixed())

    def _send(self, receiver: str, kind: str, encrypted: Encrypted, round_: int, step: int = 0) -> None:
        Channel(self._link, receiver, round_, step).send(kind, encrypted)

    async def _receive(self, kind: str, sender: str, round_: int, step: int = 0) -> Encrypted:
        def load(blob: bytes) -> Encrypted:
            return self._keys.public.load(blob, self._side.peer_shape())

        channel = Channel(self._link, sender, round_, step)
        return await channel.take(kind, load, "shape", "ciphertexts", activity="validate")

    def _sum(self, parts: list[Encrypted]) -> Encrypted:
        with self._link.activity("add"):
            total = parts[0]
            for part in parts[1:]:
                total = total + part
            return total
