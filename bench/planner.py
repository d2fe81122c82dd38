"""What securefed's planner would choose, to be set beside what was measured.

The planner knows sizes and this machine's speed (securefed.measure), and guesses the rounds by its model
from how many FedSGD takes; the bench knows them. Neither is told what the ledger thinks: the paper's settings
are past it. The bench times its parties by the processor's clock (bench.simulate), so that neighbours on the
machine do not count; here the planner's calibration goes by the same clock, or the two would not compare.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from unittest.mock import patch

from bench.simulate import Task, Transfer
from securefed.measure import calibration
from securefed.measure.calibration import Costs, ModelCosts, calibrate
from securefed.measure.plan import RoundsModel, estimate
from securefed.measure.workload import Scenario
from securefed.protocols.schedules import FedBCD, FedSGD
from securefed.transport import Network

__all__ = ["Guess", "Planner"]

FLOOR = 0.04
"""Transfer learning saves rounds down to a small part of FedSGD's (the planner's documentation)."""


@contextmanager
def _processor_time() -> Iterator[None]:
    with patch.object(calibration, "perf_counter", time.process_time):
        yield


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
        with _processor_time():
            self._costs: Costs = calibrate(scheme, key_bits)
            self._model = ModelCosts(self._scenario(1))

    def _scenario(self, steps: int) -> Scenario:
        algorithm = FedSGD() if steps == 1 else FedBCD(steps)
        recipe = replace(self._task.recipe, scheme=self._scheme, algorithm=algorithm)
        return Scenario(recipe, self._columns, self._task.agreement.batches.rows, self._key_bits)

    def guess(self, network: Network, at_one: float, grid: Sequence[int]) -> Guess:
        """From FedSGD's rounds alone."""
        floor = FLOOR if isinstance(self._task, Transfer) else 0.15
        rounds = RoundsModel(at_one, floor=floor)
        minutes = {}
        with _processor_time():  # shapes are measured when they are first met
            for steps in grid:
                row = estimate(self._scenario(steps), self._costs, network, rounds, model=self._model)
                minutes[steps] = (row.computation + row.communication) * row.rounds / 60
        return Guess(min(minutes, key=lambda steps: minutes[steps]), minutes)
