"""All parties in this process, one at a time.

Each party's program runs until it waits for a message that is not there yet. Only one computes at a time, so
others do not distort its measurement. The clocks (securefed.transport.clock) compute the time of a parallel
run. The programs resume in a fixed order, and the clocks do not depend on it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any

from securefed.transport.clock import Network, Path
from securefed.transport.link import Link, Needed, Timer
from securefed.transport.message import Deadlock, Message

__all__ = ["LocalRun", "Program", "run_local"]

Program = Callable[[Link], Coroutine[Any, Any, Any]]
Tap = Callable[[Message], Message]


class LocalRun:
    """The result of a run: each party's outcome and link."""

    def __init__(self, links: dict[str, Link], outcomes: dict[str, Any]) -> None:
        self.links = links
        self.outcomes = outcomes

    @property
    def critical(self) -> Path:
        """The path that ended last."""
        path = Path()
        for link in self.links.values():
            path = path.later(link.path)
        return path


def run_local(
    programs: Mapping[str, Program],
    *,
    run: str,
    kinds: Collection[str],
    network: Network,
    timer: Timer = time.perf_counter,
    tap: Tap | None = None,
) -> LocalRun:
    """Run the parties' programs to their ends. In tests `tap` sees each message and may alter it."""
    names = list(programs)
    links = {
        name: Link(name, [p for p in names if p != name], run=run, kinds=kinds, network=network, timer=timer)
        for name in names
    }
    mail: dict[tuple[str, str], deque[Message]] = {(s, r): deque() for s in names for r in names if s != r}
    running = {name: programs[name](links[name]) for name in names}
    waiting: dict[str, Needed | None] = dict.fromkeys(names)
    outcomes: dict[str, Any] = {}

    def advance(name: str) -> bool:
        """Resume one program if it can go on; true if it did."""
        needed, link = waiting[name], links[name]
        if needed is not None:
            box = mail.get((needed.sender, name))
            if not box:
                return False
        link.resume()
        try:
            need = running[name].send(None if needed is None else mail[needed.sender, name].popleft())
        except StopIteration as end:
            link.settle()
            outcomes[name] = end.value
            del running[name]
        else:
            waiting[name] = need
        for message in link.outbox:
            mail[message.sender, message.receiver].append(tap(message) if tap else message)
        link.outbox.clear()
        return True

    try:
        while running:
            moved = [advance(name) for name in list(running)]
            if not any(moved):
                waits = ", ".join(
                    f"{n} waits for {w.what} from {w.sender}" for n in running if (w := waiting[n])
                )
                raise Deadlock(f"no party can go on: {waits}")
    finally:
        for program in running.values():
            program.close()
    return LocalRun(links, outcomes)
