"""What securefed's planner would choose, to be set beside what was measured.

The planner knows sizes and this machine's speed (securefed.plan), and guesses the rounds by its model
from how many FedSGD takes; the bench knows them. Neither is told what the ledger thinks: the paper's settings
are past it. Both go by the processor's clock, so that neighbours on the machine do not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bench.simulate import Task, Transfer
from securefed import OwnGradient
from securefed.plan.planner import RoundsModel, estimates
from securefed.plan.rehearsal import Scenario
from securefed.transport.message import Network

FLOOR = 0.04
"""Transfer learning saves rounds down to a small part of FedSGD's (the planner's documentation)."""


@dataclass(frozen=True)
class Guess:
    """Total minutes by Q, and the Q with the fewest."""

    Q: int
    minutes: Mapping[int, float]


class Planner:
    """Guesses for one task under one scheme, with one worker a party."""

    def __init__(self, task: Task, scheme: str, key_bits: int, columns: Mapping[str, int]) -> None:
        self._task, self._key_bits, self._columns = task, key_bits, dict(columns)
        self._scheme = scheme

    def _scenario(self) -> Scenario:
        settings = self._task.assembly.settings
        settings = replace(settings, protection=settings.protection.as_kind(OwnGradient, scheme=self._scheme))
        return Scenario(settings, self._columns, self._task.agreement.batches.rows, self._key_bits)

    def guess(self, network: Network, at_one: float, grid: Sequence[int]) -> Guess:
        """From FedSGD's rounds alone."""
        floor = FLOOR if isinstance(self._task, Transfer) else 0.15
        rounds = RoundsModel(at_one, floor=floor)
        rows = estimates(self._scenario(), grid, network, rounds)
        minutes = {row.local_steps: (row.computation + row.communication) * row.rounds / 60 for row in rows}
        return Guess(min(minutes, key=lambda steps: minutes[steps]), minutes)
