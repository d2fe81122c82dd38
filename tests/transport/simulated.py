"""A network and its machines, in this process only: time passes when nobody has anything to do.

Everything above the connections is the real thing: attempts, registers, lines, senders, the reception and the
driver. Machines and channels are made here. Threads take turns: one runs at a time, until it waits, so that a
world with the same seed does the same things in the same order, and an hour takes milliseconds.
"""

from __future__ import annotations

import heapq
import logging
import math
import random
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, cast

from securefed.transport.identity import Peer
from securefed.transport.link import Program
from securefed.transport.network.attempt import Attempt, Register
from securefed.transport.network.calls import GREET, CallChannel, CallFailed, Connection, answered, concluded
from securefed.transport.network.host import Host, Timeouts
from securefed.transport.network.peer_channel import Line
from securefed.transport.network.rpc_handlers import Reception
from securefed.transport.network.run import Driver, NetworkRun, Waiting
from tests.transport.network import IDENTITIES, KINDS, SETTINGS

LOG = logging.getLogger("tests.simulated")
LOG.setLevel(logging.CRITICAL)


class Killed(BaseException):
    """This process does not exist any more."""


class Stuck(AssertionError):
    """Somebody waits, and nothing will ever happen again."""


class Task:
    """A thread that runs when it is its turn."""

    def __init__(self, world: World, process: Process, work: Callable[[], None]) -> None:
        self.world, self.process, self._work = world, process, work
        self.turn = threading.Semaphore(0)
        self.ended = False
        self.waits = 0
        self.notified = False
        self._done = Condition(world)
        threading.Thread(target=self._run, daemon=True).start()
        world.tasks.append(self)
        world.at(0.0, self.resume)

    def _run(self) -> None:
        self.turn.acquire()
        self.world.current = self
        try:
            if self.process.alive:
                self._work()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test has to hear of it
            self.world.errors.append(error)
        finally:
            self.ended = True
            self._done.notify_all()
            self.world.back.release()

    def resume(self) -> None:
        if not self.ended:
            self.turn.release()
            self.world.back.acquire()

    def join(self) -> None:
        self._done.wait_for(lambda: self.ended)


class Condition:
    """As threading.Condition. Nothing else runs between two waits, so there is nothing to lock."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: list[tuple[Task, int]] = []

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        return None

    def notify_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for task, number in waiting:
            self._world.wake(task, number, notified=True)

    def wait(self, timeout: float | None = None) -> bool:
        world = self._world
        task = world.current
        if not task.process.alive:
            raise Killed
        task.waits += 1
        number, task.notified = task.waits, False
        self._waiting.append((task, number))
        if timeout is not None:
            world.at(timeout, lambda: world.wake(task, number, notified=False))
        world.back.release()
        task.turn.acquire()
        world.current = task
        if not task.process.alive:
            raise Killed
        return task.notified

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        end = None if timeout is None else self._world.now + timeout
        while not (found := predicate()):
            left = None if end is None else end - self._world.now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return found


class Call:
    """At its caller."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._changed = Condition(process.world)
        self.result: tuple[int, bytes] | CallFailed | None = None

    def wait(self, name: str) -> bytearray:
        self._changed.wait_for(lambda: self.result is not None)
        if isinstance(self.result, CallFailed):
            raise self.result
        assert self.result is not None
        how, answer = self.result
        return concluded(name, how, bytearray(answer))

    def fail(self, text: str, *, late: bool = False) -> None:
        self.end(CallFailed(text, late=late))

    def end(self, result: tuple[int, bytes] | CallFailed) -> None:
        if self.result is not None or not self._process.alive:
            return
        if self._process.stopped:
            self._process.kept.append(lambda: self.end(result))
            return
        self.result = result
        self._changed.notify_all()


@dataclass
class Caller:
    """A connection at the party that is called."""

    party: str
    remote: str


class Way:
    """What the network does between two parties, in one direction."""

    def __init__(self) -> None:
        self.delay = (0.001, 0.01)
        self.repeats = 0.0
        self.silent = False
        """Nothing comes through, and nobody is told."""
        self.refuses = False
        """Every call fails at once."""
        self.loses_messages = False
        """Greetings come through, on their connection; on that for messages nothing does any more."""
        self.bandwidth = float("inf")
        """Bytes a second on each connection."""


class Channel:
    """From one process to a party, wherever its process is by then."""

    def __init__(self, world: World, source: Process, target: str) -> None:
        self._world, self._source, self._target = world, source, target
        self._pending: Call | None = None
        self._free = 0.0

    def close(self) -> None: ...

    def drop(self) -> None:
        if self._pending is not None:
            self._pending.fail("the call was cancelled")

    def call(
        self,
        what: int,
        *parts: bytes | memoryview,
        seconds: float,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> bytearray:
        if not self._source.alive:
            raise Killed
        if is_cancelled():
            raise CallFailed("the call was cancelled")
        call = self._pending = Call(self._source)
        self._send(what, b"".join(parts), call, seconds)
        try:
            return call.wait(self._target)
        except CallFailed:
            self._free = 0.0  # the next one has a new connection
            raise

    def _send(self, what: int, data: bytes, call: Call, seconds: float) -> None:
        world, source = self._world, self._source
        way = world.way(source.name, self._target)
        world.at(seconds, lambda: call.fail("no answer", late=True))
        if way.refuses or not world.reachable(source, self._target):
            world.at(0.01, lambda: call.fail("nobody listens there"))
            return
        if way.silent or (way.loses_messages and what != GREET):
            return
        # One after the other on this connection: what comes second waits for the first.
        self._free = max(world.now, self._free) + len(data) / way.bandwidth
        through = self._free - world.now
        for _ in range(1 + (world.random.random() < way.repeats)):
            delay = world.random.uniform(*way.delay)
            world.at(through + delay, lambda: self._arrive(what, data, call))

    def _arrive(self, what: int, data: bytes, call: Call) -> None:
        world = self._world
        process = world.processes.get(self._target)
        if world.way(self._source.name, self._target).silent:
            return
        if process is None or not process.alive:
            call.fail("nobody listens there")
        elif process.stopped:
            process.kept.append(lambda: self._arrive(what, data, call))
        elif what == GREET:
            self._answer(process, what, data, call)
        else:
            Task(world, process, lambda: self._answer(process, what, data, call))

    def _answer(self, process: Process, what: int, data: bytes, call: Call) -> None:
        connection = cast(Connection, Caller(self._source.name, self._source.name))
        how, answer = answered(process.reception.answer, what, bytearray(data), connection, self._world.now)
        way = self._world.way(process.name, self._source.name)
        if way.silent:
            return
        delay = self._world.random.uniform(*way.delay)

        def back() -> None:
            if not self._world.way(process.name, self._source.name).silent:
                call.end((how, answer))

        self._world.at(delay, back)


class Process(Host):
    """One process of a party, from its start to its end."""

    def __init__(
        self,
        world: World,
        name: str,
        life: Callable[[Process], None],
        *,
        timeouts: Timeouts,
        attempt: type[Attempt] = Attempt,
        line: type[Line] = Line,
    ) -> None:
        super().__init__(timeouts=timeouts, log=LOG)
        self.world, self.name, self._attempt = world, name, attempt
        self.alive, self.stopped = True, False
        self.kept: list[Callable[[], None]] = []
        others = [other for other in world.names if other != name]
        peers = {other: Peer("127.0.0.1:1", IDENTITIES[other].certificate) for other in others}
        self.reception = Reception(Register(name), peers, self)
        self._lines = {other: self._line(other, line) for other in others}
        world.processes[name] = self
        self.spares: dict[str, Process] = {}
        """Processes that listen on nothing and have a connection to this one."""
        self.main = Task(world, self, lambda: life(self))
        if name in world.outbound:
            Task(world, self, self._keep_spares)

    def _line(self, other: str, line: type[Line]) -> Line:
        channels = (cast(CallChannel, Channel(self.world, self, other)) for _ in range(2))
        return line(other, *channels, self)

    def _keep_spares(self) -> None:
        """As securefed.transport.network.reverse: one to each peer, opened again after at most a beat."""
        while True:
            for other in self._lines:
                way, peer = self.world.way(self.name, other), self.world.processes.get(other)
                if peer is not None and not peer.stopped and not (way.silent or way.refuses):
                    peer.spares[self.name] = self
            Condition(self.world).wait(self.timeouts.beat)

    def now(self) -> float:
        return self.world.now

    def condition(self, beside: threading.Condition | None = None) -> threading.Condition:
        return cast(threading.Condition, Condition(self.world))

    def chance(self) -> float:
        return self.world.random.random()

    def start(self, work: Callable[[], None], name: str) -> threading.Thread:
        return cast(threading.Thread, Task(self.world, self, work))

    def run(
        self,
        program: Program,
        run: str,
        *,
        facts: Mapping[str, Any] | None = None,
        after: Collection[str] = (),
        join: float | None = None,
        on_wait: Callable[[Waiting], None] | None = None,
    ) -> NetworkRun:
        """As Endpoint.run."""
        register = self.reception.register
        attempt = self._attempt(
            self.name,
            tuple(self._lines),
            run=run,
            kinds=KINDS,
            settings=SETTINGS,
            facts=facts or {},
            host=self,
            done={*after, *register.done},
        )
        register.begin(attempt)
        try:
            wait = math.inf if join is None else join
            driver = Driver(attempt, self._lines, self, wait, on_wait=on_wait, timer=self.now)
            return driver.run(program)
        finally:
            register.end()

    def kill(self) -> None:
        self.alive = False
        if self.world.processes.get(self.name) is self:
            del self.world.processes[self.name]

    def stop(self) -> None:
        """As SIGSTOP: it is there and does nothing."""
        self.stopped = True

    def go_on(self) -> None:
        self.stopped = False
        kept, self.kept = self.kept, []
        for work in kept:
            self.world.at(0.0, work)


class World:
    """Time, the network, and the processes that are alive."""

    def __init__(self, names: Collection[str], seed: int, outbound: Collection[str] = ()) -> None:
        self.names, self.outbound = tuple(names), frozenset(outbound)
        for name in names:
            _ = IDENTITIES[name]
        self.random = random.Random(seed)
        self.now = 1000.0
        self.processes: dict[str, Process] = {}
        self.errors: list[BaseException] = []
        self.tasks: list[Task] = []
        self.back = threading.Semaphore(0)
        self.current: Task
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._ways: dict[tuple[str, str], Way] = {}

    def way(self, source: str, target: str) -> Way:
        return self._ways.setdefault((source, target), Way())

    @property
    def ways(self) -> Iterator[Way]:
        return (self.way(a, b) for a in self.names for b in self.names if a != b)

    def reachable(self, source: Process, target: str) -> bool:
        """Whether a call finds a process: one that listens, or one that has a connection to the caller."""
        process = self.processes.get(target)
        return process is not None and (target not in self.outbound or source.spares.get(target) is process)

    def at(self, delay: float, work: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._order), work))

    def wake(self, task: Task, number: int, *, notified: bool) -> None:
        """End the wait of that number, if it is the one that the task is in."""

        def work() -> None:
            if task.waits != number or task.ended:
                return
            if task.process.stopped and task.process.alive:
                task.process.kept.append(work)
                return
            task.waits += 1
            task.notified = notified
            task.resume()

        self.at(0.0, work)

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Let so much time pass, at most; whether it came to what was waited for."""
        end = self.now + seconds
        while not (found := until() or bool(self.errors)):
            if not self._events or self._events[0][0] > end:
                self.now = end
                break
            self.now, _, work = heapq.heappop(self._events)
            work()
        if self.errors:
            raise self.errors[0]
        return found

    def close(self) -> None:
        """End all threads."""
        for process in list(self.processes.values()):
            process.kill()
            process.stopped = False
        for task in self.tasks:
            task.process.alive = False
            while not task.ended:
                task.resume()
