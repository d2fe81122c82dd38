"""Every engine maps the same way."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from securefed.crypto.scheme import Shared
from securefed.engine import Processes, Ray, SerialEngine, WorkerDied, get_engine
from securefed.engine.placing import Places
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
    assert isinstance(get_engine(None, "plain"), SerialEngine)
    assert get_engine(None, "ckks").workers == get_engine(None, "paillier").workers
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


def total(pair: tuple[Shared[np.ndarray], int]) -> tuple[float, bool]:
    values = pair[0].get()
    return float(values[pair[1] :].sum()), values.flags.writeable


@pytest.mark.parametrize("make", [SerialEngine, lambda: Processes(2)])
def test_what_is_shared_is_placed_once_and_survives_a_worker(make, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    values = np.arange(20_000.0)
    with make() as engine:
        shared = engine.share(values)
        assert [value for value, _ in engine.map(total, [(shared, i) for i in range(4)])] == [
            values[i:].sum() for i in range(4)
        ]
        if isinstance(engine, Processes):
            engine.map(dies_once, [tmp_path / "a"])
            (found, writeable), *_ = engine.map(total, [(shared, 0)])
            assert found == values.sum() and not writeable
            assert len(pickle.dumps((shared, 0))) < 1000, "pieces name it, and do not carry it"


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="looks into /proc")
def test_pieces_find_the_worker_that_they_had_before() -> None:
    with Processes(2) as engine:
        first, again = ([pid for _, pid in engine.map(square, range(2))] for _ in range(2))
        assert first == again and len(set(first)) == 2
        assert {pid for _, pid in engine.map(square, range(50))} <= set(first)
    assert not any(Path(f"/proc/{pid}").exists() for pid in first), "they ended with the engine"


class Kept:
    """What took long to make of it is made once in a worker."""

    made = 0

    def __getstate__(self) -> dict[str, object]:
        return {"sent": True}

    def __setstate__(self, state: dict[str, object]) -> None:
        Kept.made += 1


def made_so_far(value: Shared[object]) -> int:
    value.get()
    return Kept.made


def test_a_worker_keeps_what_comes_again_in_every_round() -> None:
    """Two parties' keys and columns, and operands that come once."""
    with Processes(1) as engine:
        kept = [engine.share(Kept()) for _ in range(6)]
        for _ in range(3):
            for value in kept:
                engine.map(made_so_far, [engine.share(np.zeros(3)), value])
        assert engine.map(made_so_far, [kept[0]]) == [len(kept)]


def test_places_are_given_back() -> None:
    def places() -> int:
        paths = list(Path("/proc/self/fd").iterdir())  # the listing itself is one, and gone by now
        return sum("memfd:securefed" in os.readlink(path) for path in paths if os.path.lexists(path))

    before = places()
    with Processes(2) as engine:
        values = np.zeros(20_000)
        one, other = engine.share([values]), engine.share({"again": values})
        assert places() == before + 1, "one array, one place"
        del one, other, values
        assert places() == before
        kept = engine.share(np.zeros(20_000))
        assert places() == before + 1
    assert places() == before
    del kept


def test_arrays_that_are_files_are_named_and_not_copied(tmp_path: Path) -> None:
    np.save(tmp_path / "columns.npy", np.arange(20_000.0))
    on_disk = np.load(tmp_path / "columns.npy", mmap_mode="r")
    places = Places()
    found = places.place(np.asarray(on_disk))
    assert found.path == str(tmp_path / "columns.npy") and (found.load() == on_disk).all()
    assert places.place(on_disk[1:]).path != found.path, "a part of a file is another array"
    places.close()


def test_what_a_piece_asks_a_cluster_for() -> None:
    engine = Ray("ray://head:1?cpus=2&memory_gib=4&resource=ours")
    assert engine._request == {"num_cpus": 2.0, "memory": 4 << 30, "resources": {"ours": 0.001}}
    assert isinstance(get_engine("ray?cpus=0.5", "ckks"), Ray)
    for bad in ("ray://head:1?cpus=0", "ray?gpus=1", "ray?memory_gib=much"):
        with pytest.raises(SettingError, match="cpus, memory_gib and resource are allowed"):
            get_engine(bad, "ckks")
