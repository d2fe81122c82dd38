"""Calibrations count what their thread computes, whatever else the machine does."""

from __future__ import annotations

from threading import Event

from securefed.plan.fake_keys import timed


def test_a_wait_is_not_computing() -> None:
    """As a thread waits for a core that is busy, it waits for an event here."""
    assert timed(lambda: Event().wait(0.05)) < 0.04
