"""What one party has at the end of a run: its own secrets, what it received, and what was opened to it.

An attack may use all of that and nothing else. `Watched` stands between a party's program and its side of
the objective and keeps what passes; `Tape` keeps the messages under way, of which a party's view has those
that it sent or received.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.crypto.fixed import Multipliers
from securefed.crypto.wire import Frame, Kind
from securefed.protocols.own_gradient.sides import Side
from securefed.transport.message import Message
from securefed.transport.transcript import parts_of

Array = NDArray[np.float64]
Rows = NDArray[np.intp]


@dataclass(frozen=True)
class OpenedSums:
    """One opening as its requester has it: sums[a, j] = sum over i of multipliers[j, a, i] * E[i, j]."""

    round: int
    step: int
    batch: Rows
    multipliers: Array
    sums: Array
    contribution: Array
    """What the party itself sent in that round."""
    parameters: Array


@dataclass
class View:
    """One party's view."""

    party: str
    opened: list[OpenedSums] = field(default_factory=list)
    received: list[Message] = field(default_factory=list)
    sent: list[Message] = field(default_factory=list)

    def of(self, kind: str) -> list[Message]:
        """Messages received of one kind."""
        return [message for message in self.received if message.kind == kind]

    def in_round(self, number: int) -> list[OpenedSums]:
        return [opening for opening in self.opened if opening.round == number]


class Watched:
    """A side that keeps what its party sees. Behaves as the side itself."""

    def __init__(self, side: Side, view: View, *, sums_only: bool = False) -> None:
        """`sums_only`: leave out the multipliers, which are large and follow from the parameters."""
        self.side, self.view, self._sums_only = side, view, sums_only
        self.is_linear, self.exact = side.is_linear, side.exact
        self._round, self._step = -1, 0
        self._batch: Rows = np.arange(0)
        self._asked: Array | None = None
        self._sent: Array = np.zeros(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.side, name)

    @property
    def parameters(self) -> Array:
        return self.side.parameters

    @parameters.setter
    def parameters(self, values: Array) -> None:
        self.side.parameters = values

    def begin(self, batch: Rows) -> None:
        self._round, self._step, self._batch = self._round + 1, 0, batch
        self.side.begin(batch)

    def contribution(self) -> Array:
        self._sent = self.side.contribution()
        return self._sent

    def multipliers(self) -> Array | Multipliers:
        asked = self.side.multipliers()
        self._asked = np.zeros(0) if self._sums_only else np.asarray(asked)
        return asked

    def gradient(self, sums: Array, included: bool) -> Array:
        if self._asked is not None:
            place = (self._round, self._step, self._batch)
            state = (self._sent.copy(), self.side.parameters.copy())
            self.view.opened.append(OpenedSums(*place, self._asked, sums.copy(), *state))
            self._asked = None
        self._step += 1
        return self.side.gradient(sums, included)


class Tape:
    """A tap that keeps every message and changes none."""

    def __init__(self, views: Sequence[View]) -> None:
        self._views = {view.party: view for view in views}
        self.messages: list[Message] = []

    def __call__(self, message: Message) -> Message:
        self.messages.append(message)
        if message.receiver in self._views:
            self._views[message.receiver].received.append(message)
        if message.sender in self._views:
            self._views[message.sender].sent.append(message)
        return message


def plain_values(message: Message) -> Array:
    """The numbers of a message, as far as its bytes are any: what a plain run shows to everybody.

    For an encrypted message this reads the payload of its frame as if it were numbers, which is what somebody
    without the key can do; entries that are no finite number become 0.
    """
    (part, *_) = [part for part in parts_of(message.payload) if part.frame != "bytes"]
    kind = Kind[part.frame.upper().replace("-", "_")]
    frame = Frame.from_bytes(message.payload[: part.size], kind)
    if frame.scheme == "plain":
        return np.frombuffer(frame.payload, dtype="<f8")[1:].reshape(part.shape).astype(np.float64)
    entries = int(np.prod(part.shape))
    width = max(8, len(frame.payload) // entries // 8 * 8)
    words = [int.from_bytes(frame.payload[i * width : i * width + 6], "big") for i in range(entries)]
    values: Array = np.array(words, dtype=np.float64).reshape(part.shape)
    spread = float(values.std()) or 1.0
    return (values - float(values.mean())) / spread
