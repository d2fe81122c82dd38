"""Blind transfer learning with a key-holder party: its program, and what all three derive of it.

C reads products under masks and gives each to the party whose share it is of (securefed.protocols.
shared_products), hides v afresh under masks when rows are to be scored, and opens scores under the label
party's mask. It sees masked numbers only, keeps nothing from round to round, and works from the plan alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from securefed.crypto.errors import CapacityError
from securefed.crypto.hidden import HidingKey, Result, slack_for
from securefed.protocols.agreement import Agreement
from securefed.protocols.blind_algebra import PARAMETER_BITS, BlindPlan
from securefed.protocols.blind_scores import serve_blind_scores
from securefed.protocols.keyring import Keyring, exchange_switching
from securefed.protocols.loop import PartyLoop, Surroundings
from securefed.protocols.refresh import hiding
from securefed.protocols.shared_products import Shape, serve, serve_hidden
from securefed.protocols.transfer_algebra import VALUE_BITS, TransferPlan
from securefed.transport import Link

__all__ = ["SETUP_STEPS", "BlindTransferKeyHolder", "lift_of", "ready"]

Array = NDArray[np.float64]
SETUP_STEPS = 4
"""Messages of a round are numbered from here on."""


async def ready(link: Link, agreement: Agreement, keys: Keyring, plan: TransferPlan, slack: int) -> None:
    """Room for masks, and the keys for merging, as all know them from the plan."""
    key, shapes = hiding(keys), plan.setup() + plan.round() + plan.scoring()
    for shape in shapes:
        if key.room(shape.range(key), shape.slack(key, slack)) < 0:
            raise CapacityError(f"values of this run and their masks do not fit {key!r}: fewer rounds do")
    results = [shape.result for shape in shapes]
    await exchange_switching(link, agreement, keys, [*results, Result(0, plan.outputs, plan.size_b)])


def lift_of(key: HidingKey) -> int:
    """Bits from the scale of shares to that of scoring."""
    return PARAMETER_BITS - VALUE_BITS + key.scoring_lift


class BlindTransferKeyHolder(PartyLoop):
    """The key-holder party of a blind transfer run: it reads products under masks, for the party whose share
    they are of, and keeps nothing.
    """

    def __init__(
        self, agreement: Agreement, plan: TransferPlan, scoring: BlindPlan, around: Surroundings
    ) -> None:
        super().__init__(agreement, around)
        self._plan, self._scoring, self._own = plan, scoring, around.key
        self._slack = slack_for(plan.entries(agreement))

    async def _serve(self, link: Link, shapes: list[Shape], t: int) -> None:
        b, a = self._agreement.names
        await serve(link, self._own, (b, a), shapes, self._slack, t, self._step)
        self._step += len(shapes)

    async def _begin(self, link: Link, keys: Keyring) -> None:
        await ready(link, self._agreement, keys, self._plan, self._slack)
        self._step = 0
        await self._serve(link, self._plan.setup(), 0)

    async def _round(self, link: Link, keys: Keyring, t: int) -> None:
        self._step = SETUP_STEPS
        await self._serve(link, self._plan.round(), t)

    async def _lift(self, link: Link, keys: Keyring, t: int) -> None:
        await self._serve(link, self._plan.scoring(), t)
        b, shape = self._agreement.names[0], (self._plan.size_b, self._plan.outputs)
        lift = lift_of(hiding(keys))
        await serve_hidden(link, self._own, b, shape, lift, self._slack, t, self._step)
        self._step += 1

    async def _scores(self, link: Link, keys: Keyring, rows: Array | None, t: int) -> None:
        await self._lift(link, keys, t)
        await serve_blind_scores(link, self._agreement, self._own, t, self._scoring)

    async def _end(self, link: Link, keys: Keyring) -> None:
        link.phase = "release"
        self._step = SETUP_STEPS
        await self._lift(link, keys, self._agreement.stopping.rounds)
