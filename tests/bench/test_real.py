"""Real parties' accounts: measured beside modelled communication, from clocks that are known."""

from __future__ import annotations

from typing import Any

import pytest

from bench.real import line, rows_of
from bench.replay import write_events
from bench.runs import Spec
from securefed.transport.message import NETWORKS
from tests.bench.made_runs import Work, events

WORK = Work()
SPEC = Spec("credit-overlap", 2, scheme="ckks")


def accounts(aucs: list[float]) -> dict[str, dict[str, Any]]:
    """B is a second behind A in the first round; A has had more to receive in the others."""
    found = write_events(events(WORK, 2, len(aucs)))
    a = [[4.0 * t, 2.0 * t, auc] for t, auc in enumerate(aucs, 1)]
    b = [[5.0 * t, 2.0 if t == 1 else 0.5 * t, None] for t in range(1, len(aucs) + 1)]
    return {"B": {"rounds": b, "events": found["B"]}, "A": {"rounds": a, "events": found["A"]}}


def test_rows_are_the_later_clock_and_the_model_of_the_same_events() -> None:
    first, second = rows_of(SPEC, accounts([0.6, 0.65, 0.7]), (0.6, 0.7))
    assert (first.R, second.R) == (1, 3)
    assert (first.comp_min, first.comm_min) == (5.0 / 60, 2.0 / 60)  # B's
    assert (second.comp_min, second.comm_min) == (12.0 / 60, 6.0 / 60)  # A's: 18 s against 16.5
    assert second.total_min == pytest.approx(18.0 / 60)
    network = NETWORKS["loopback"]
    setup = network.transfer(500) + network.latency
    for row, rounds in ((first, 1), (second, 3)):
        modelled = setup + WORK.communication(rounds, 2, network)
        assert row.comm_modelled_min == pytest.approx(modelled / 60)
        assert row.bytes_exchange == 2 * rounds * 2000
        assert row.bytes_open == 2 * rounds * 2 * 30
        assert row.messages == 2 * rounds * (1 + 2 * 2)


def test_a_target_that_is_not_reached() -> None:
    (row,) = rows_of(SPEC, accounts([0.6, 0.65]), (0.7,))
    assert (row.reached, row.R, row.comm_min, row.comm_modelled_min) == (False, None, None, None)
    assert row.auc == 0.65
    assert line(row) == "| 70% | FedBCD-p | 2 | not reached | | | | | |"
