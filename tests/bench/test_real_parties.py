"""Measurements of real parties: what they compare is the same work, and a missed bar is said to be one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench import alignment, forecast, overhead

OVER = overhead.Row("ckks", "own-gradient", 4, 3, 1.0, 1.1, 0.09, 0.08, 0.7, 0.15)


@pytest.mark.parametrize(("wall", "cpu", "verdict"), [(0.4, 0.15, "pass"), (0.1, 0.151, "MISSED")])
def test_the_overhead_is_judged_by_processor_time(wall: float, cpu: float, verdict: str) -> None:
    assert replace(OVER, overhead=wall, cpu_overhead=cpu).verdict == verdict


def test_people_have_as_many_ids_in_common_as_is_said() -> None:
    tables, common = alignment.people(50, 3, seed=1)
    known = [{row[0] for row in table.rows} for table in tables.values()]
    assert [len(ids) for ids in known] == [50, 50, 50]
    assert [table.label for table in tables.values()] == [None, None, "label"]
    assert len(set.intersection(*known)) == common == 45
    assert len(known[0] & known[1]) == common, "no two share more than all do"


def test_one_core_is_given_back() -> None:
    import os

    before = os.sched_getaffinity(0)
    with overhead.one_core():
        assert len(os.sched_getaffinity(0)) == 1
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("transfer", [False, True])
def test_a_forecast_has_the_bytes_of_the_run(transfer: bool) -> None:
    """Times are not for a test; bytes are exact, and both clocks ran."""
    hidden = 2 if transfer else None
    case = forecast.Case("small", {"shop": 3, "bank": 2}, forecast.CKKS, 2, 2, transfer, hidden=hidden)
    row = forecast.measure(case, rows=40, batch=30, key_bits=2048, network="lan", engine="serial", seed=0)
    assert row.planned_bytes == row.measured_bytes > 0 and row.rounds == 2
    assert min(row.planned_computation, row.measured_computation, row.measured_communication) > 0


@pytest.mark.slow
def test_parties_over_the_network_do_what_one_process_does() -> None:
    case = overhead.Case("plain", "own-gradient", 3)
    row = overhead.measure(case, 2048, 1, seed=0)
    assert (row.parties, row.rounds, row.bar) == (4, 3, 0.15)
    assert min(row.network_seconds, row.local_seconds, row.all_cores_seconds) > 0
    assert np.isclose(row.overhead, 1 - row.local_seconds / row.network_seconds, atol=0.01)


@pytest.mark.slow
def test_ids_are_aligned_between_processes() -> None:
    row = alignment.measure(300, 2, seed=0)
    assert (row.ids, row.common) == (300, 270) and min(row.cpu_seconds, row.seconds) > 0
