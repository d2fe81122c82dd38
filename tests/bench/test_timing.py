"""Turns are taken fairly and nothing is measured that should not be."""

from __future__ import annotations

import gc

import pytest

from bench import timing
from bench.timing import Task, per_item_us, take_turns


def test_time_is_per_item_and_leaves_preparation_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(timing, "process_time", lambda: clock[0])

    def prepare() -> tuple[object, ...]:
        clock[0] += 100.0
        return (3.0,)

    def work(seconds: float) -> None:
        clock[0] += seconds

    assert per_item_us(Task(work, items=6, prepare=prepare)) == pytest.approx(0.5e6)


def test_turns_alternate_and_the_first_round_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    clock = [0.0]
    monkeypatch.setattr(timing, "process_time", lambda: clock[0])
    ours, theirs = iter([50.0, 1.0, 9.0, 2.0]), iter([70.0, 8.0, 5.0, 6.0])

    def work(name: str, times: object) -> None:
        order.append(name)
        clock[0] += next(times)  # type: ignore[call-overload]

    tasks = {
        "ours": Task(lambda: work("ours", ours), items=1),
        "peer": Task(lambda: work("peer", theirs), items=2),
    }
    assert take_turns(tasks, repeats=3) == {"ours": pytest.approx(2e6), "peer": pytest.approx(3e6)}
    assert order == ["ours", "peer"] * 4


def test_the_collector_is_off_meanwhile_and_on_again_after_an_error() -> None:
    seen: list[bool] = []

    def fail() -> None:
        seen.append(gc.isenabled())
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        per_item_us(Task(fail, items=1))
    assert seen == [False]
    assert gc.isenabled()
