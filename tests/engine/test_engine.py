"""Every engine maps the same way."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from securefed.engine import Processes, Ray, SerialEngine, WorkerDied, get_engine
from securefed.errors import MissingExtra, SecurefedError, SettingError


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


def test_one_use_at_a_time() -> None:
    """Results of two uses would be mixed up."""
    with Processes(2) as engine:
        busy = (engine.map(square, [n])[0][0] for n in range(3))
        chained = (n if n == 0 else next(busy) for n in range(3))
        with pytest.raises(SecurefedError, match="another thread uses it"):
            engine.map(square, chained)
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


def doubled(pair: tuple[np.ndarray, bytes]) -> tuple[np.ndarray, bytes]:
    values, text = pair
    values *= 2.0
    return values, text[::-1]


@pytest.mark.parametrize("make", [SerialEngine, lambda: Processes(2)])
@pytest.mark.parametrize("size", [10, 100_000])
def test_large_arrays_and_bytes_go_there_and_back(make, size: int) -> None:  # type: ignore[no-untyped-def]
    pieces = [(np.arange(size, dtype=float) + i, bytes(range(10)) * (size // 10)) for i in range(5)]
    with make() as engine:
        copies = [(values.copy(), text) for values, text in pieces]
        for (values, text), (found, turned) in zip(pieces, engine.map(doubled, copies), strict=True):
            assert (found == 2 * values).all() and turned == text[::-1]
            found += 1.0
            assert found[0] == 2 * values[0] + 1.0, "a result may be changed"


def test_a_worker_cannot_change_the_party_s_arrays() -> None:
    values = np.ones(100_000)
    with Processes(2) as engine:
        engine.map(doubled, [(values, b"")])
    assert (values == 1.0).all()


def fails(value: np.ndarray) -> None:
    raise ValueError(f"{len(value)} numbers")


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_files_are_closed(tmp_path: Path) -> None:
    gc.collect()
    before = open_files()
    with Processes(2) as engine:
        engine.map(doubled, [(np.zeros(100_000), b"")] * 5)
        started = open_files()
        with pytest.raises(ValueError, match="100000 numbers"):
            engine.map(fails, [np.zeros(100_000)] * 5)
        engine.map(dies_once, [tmp_path / "a"])
        assert open_files() == started
    assert open_files() == before


def unsendable(_: int) -> object:
    return lambda: None


def test_a_result_that_cannot_be_sent_is_an_error() -> None:
    with Processes(1) as engine, pytest.raises(Exception, match="lambda"):
        engine.map(unsendable, [1])


def fails_or_goes_on(task: tuple[Path, bool]) -> None:
    """One piece fails when the other has begun; the other goes on for ever."""
    folder, failing = task
    if failing:
        wait_for(folder / "going on")
        raise ValueError("this piece fails")
    (folder / "pid").write_text(str(os.getpid()))
    (folder / "going on").touch()
    while True:
        time.sleep(1.0)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30.0
    while not path.exists() and time.monotonic() < deadline:
        pass
    assert path.exists()


def test_no_piece_is_under_way_after_a_failure(tmp_path: Path) -> None:
    """Its result would be taken for another piece's."""
    with Processes(2) as engine:
        with pytest.raises(ValueError, match="this piece fails"):
            engine.map(fails_or_goes_on, [(tmp_path, True), (tmp_path, False)])
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), 0)
        assert engine.map(square, [3])[0][0] == 9


class Peculiar(Exception):
    """An error that cannot be sent: it takes two arguments and keeps one."""

    def __init__(self, what: str, number: int) -> None:
        super().__init__(what)


def fails_peculiarly(number: int) -> None:
    raise Peculiar("seven", number)


def test_an_error_says_where_it_was_raised_or_at_least_what_it_was() -> None:
    with Processes(1) as engine:
        with pytest.raises(ValueError, match="3 numbers") as failure:
            engine.map(fails, [np.zeros(3)])
        assert "in fails" in failure.value.__notes__[0]
        with pytest.raises(RuntimeError, match="Peculiar: seven"):
            engine.map(fails_peculiarly, [7])


def test_workers_begin_before_all_pieces_are_made(tmp_path: Path) -> None:
    """The last piece is made when a worker has done the first one."""

    def pieces() -> Iterator[Path]:
        yield tmp_path / "first"
        wait_for(tmp_path / "first")
        yield tmp_path / "last"

    with Processes(2) as engine:
        assert engine.map(touched, pieces()) == ["first", "last"]


def touched(path: Path) -> str:
    path.touch()
    return path.name


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_workers_end_with_the_engine() -> None:
    with Processes(2) as engine:
        workers = {pid for _, pid in engine.map(square, range(50))}
        assert {pid for _, pid in engine.map(square, range(50))} <= workers and len(workers) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_pool_that_cannot_start_says_so_and_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(multiprocessing.active_children())
    plain, forks = os.fork, []

    def fork() -> int:
        forks.append(0)
        if len(forks) == 2:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return plain()

    monkeypatch.setattr(os, "fork", fork)
    with (
        pytest.raises(WorkerDied, match=r'Resource temporarily unavailable.*engine = "serial"'),
        Processes(2) as engine,
    ):
        engine.map(abs, [-1, 2])
    assert len(forks) == 2 and set(multiprocessing.active_children()) == before


def test_an_engine_takes_no_thread_of_the_party(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where threads are short, a pool whose own thread could not start waited for ever."""
    party, plain = os.getpid(), threading.Thread.start

    def start(thread: threading.Thread) -> None:
        assert os.getpid() != party, thread
        plain(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with Processes(2) as engine:
        assert engine.map(abs, [-1, 2, -3]) == [1, 2, 3]


IDLE = """
import os, signal
from pathlib import Path
from securefed.engine import Processes

def pid(_):
    return os.getpid()

def state(worker):
    try:
        return Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"

for victim in range(2):
    with Processes(2) as engine:
        workers = set()
        while len(workers) < 2:
            workers |= set(engine.map(pid, range(4)))
        while {state(worker) for worker in workers} != {"S"}:
            pass
        killed = sorted(workers)[victim]
        os.kill(killed, signal.SIGKILL)
        while state(killed) == "S":
            pass
        assert killed not in engine.map(pid, range(4))
print("done")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_an_idle_worker_that_is_killed_holds_nobody_up() -> None:
    """In a common queue one of the idle workers has the lock, and the others would wait for it for ever."""
    done = subprocess.run([sys.executable, "-c", IDLE], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("done\n", "")


UNCLOSED = """
from securefed.engine import Processes
engine = Processes(2)
print(engine.map(abs, [-1]), flush=True)
"""


def test_a_process_ends_with_an_engine_that_nobody_closed() -> None:
    done = subprocess.run([sys.executable, "-c", UNCLOSED], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1]\n", "")


def test_a_worker_without_a_thread_dies_in_silence(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    plain = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if "(watch)" in thread.name:
            raise RuntimeError("can't start new thread")
        plain(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(WorkerDied, match="died 3 times"), Processes(1) as engine:
        engine.map(abs, [-1, 2])
    assert "Traceback" not in capfd.readouterr().err
