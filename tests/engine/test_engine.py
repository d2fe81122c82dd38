"""Every engine maps the same way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from securefed.engine import Processes, Ray, SerialEngine, WorkerDied, get_engine
from securefed.errors import MissingExtra, SettingError


def square(x: int) -> tuple[int, int]:
    return x * x, os.getpid()


@pytest.mark.parametrize("make", [SerialEngine, lambda: Processes(2)])
def test_results_come_in_order(make) -> None:  # type: ignore[no-untyped-def]
    with make() as engine:
        results = engine.map(square, range(20))
    assert [value for value, _ in results] == [x * x for x in range(20)]


def test_a_pool_works_in_other_processes_and_can_be_used_again_after_closing() -> None:
    engine = Processes(2)
    with engine:
        assert os.getpid() not in {pid for _, pid in engine.map(square, range(4))}
    with engine:
        assert engine.map(square, [3])[0][0] == 9


ORPHANING = """
import os, sys
from securefed.engine import Processes
def pid(_): return os.getpid()
print(*set(Processes(2).map(pid, range(4))), flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_workers_end_with_a_killed_party() -> None:
    party = subprocess.Popen(
        [sys.executable, "-c", ORPHANING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert party.stdout is not None
    assert party.stdin is not None
    workers = [int(word) for word in party.stdout.readline().split()]
    assert workers
    party.kill()
    party.wait()
    party.stdin.close()
    party.stdout.close()
    for _ in range(200):
        if not any(Path(f"/proc/{worker}/exe").exists() for worker in workers):
            return
        time.sleep(0.05)
    pytest.fail("a worker lives on")


def test_engines_by_name() -> None:
    assert isinstance(get_engine("serial", "paillier"), SerialEngine)
    assert isinstance(get_engine(None, "ckks"), SerialEngine)
    assert get_engine(3, "ckks").workers == 3
    assert isinstance(get_engine(1, "ckks"), SerialEngine)
    for bad in ("threads", 0, 2.5, True):
        with pytest.raises(SettingError, match="engine"):
            get_engine(bad, "paillier")


def test_ray_works_or_says_what_to_install() -> None:
    engine = get_engine("ray", "paillier")
    assert isinstance(engine, Ray)
    try:
        import ray  # noqa: F401
    except ImportError:
        with pytest.raises(MissingExtra, match=r"securefed\[ray\]"):
            engine.map(square, [1])
    else:
        with engine:
            assert [value for value, _ in engine.map(square, range(5))] == [0, 1, 4, 9, 16]


def dies_once(mark: Path) -> int:
    """As one whom the system kills because memory is short."""
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def dies(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_dead_worker_had_is_done_again(tmp_path: Path) -> None:
    with Processes(2) as engine:
        before = {pid for _, pid in engine.map(square, range(4))}
        found = engine.map(dies_once, [tmp_path / "a", tmp_path / "b", tmp_path / "c"])
        assert len(found) == 3
        assert not before & set(found)
        assert [value for value, _ in engine.map(square, range(20))] == [x * x for x in range(20)]


def test_work_that_kills_its_workers_is_a_named_error_and_the_engine_goes_on() -> None:
    with Processes(2) as engine:
        with pytest.raises(WorkerDied, match="died 3 times over the same work: killed, or short of memory"):
            engine.map(dies, range(4))
        assert engine.map(square, [3])[0][0] == 9


def signals_itself(number: int) -> int:
    os.kill(os.getpid(), number)
    return os.getpid()


def test_whoever_stops_a_party_stops_it_and_not_its_workers() -> None:
    """systemd and Ctrl-C signal all processes; a worker leaves the last word to the party."""
    with Processes(1) as engine:
        (pid,) = {pid for _, pid in engine.map(square, range(2))}
        assert engine.map(signals_itself, [signal.SIGINT, signal.SIGTERM]) == [pid, pid]
