"""Who stops a party, and who kills its workers: what its operator sees."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process.parties import Fleet, reached

Make = Callable[..., Fleet]

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks into /proc")


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(word) for path in found for word in path.read_text().split()]


@pytest.mark.slow
def test_a_stop_for_all_processes_while_waiting_is_one_line(fleet: Make) -> None:
    """As systemd does: SIGTERM to the party and to each of its workers."""
    made = fleet({"shop": 2, "bank": 2}, scheme="plain", reveal="own-gradient", rounds=3)
    made.settings("bank", {"engine": 2})
    party = made.start("bank")
    made.until("bank", lambda events: any(event["event"] == "listening" for event in events))
    workers = children(party.pid)
    assert len(workers) == 2
    for pid in (*workers, party.pid):
        os.kill(pid, signal.SIGTERM)
    assert made.finish() == {"bank": 1}
    log = made.log("bank").strip()
    assert "Traceback" not in log
    assert log.split("\n")[-1].startswith("securefed party: stopped; nothing has begun yet; start again with")


@pytest.mark.slow
def test_workers_that_are_killed_are_replaced_and_nobody_else_notices(fleet: Make) -> None:
    made = fleet({"shop": 2, "bank": 2}, scheme="paillier", reveal="own-gradient", rounds=6, batch_size=20)
    made.settings("bank", {"engine": 2})
    made.start_all()
    for round_ in (1, 3):
        made.until("bank", reached(round_))
        for pid in children(made.processes["bank"].pid):
            os.kill(pid, signal.SIGKILL)
    made.all_good()
    for name in ("shop", "bank"):
        assert made.result(name)["rounds"] == 6
        assert made.result(name)["interruptions"] == 0
