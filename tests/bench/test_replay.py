"""The replay is the clock: what arithmetic predicts, what the links measured, and more than one network."""

from __future__ import annotations

import json
from random import Random

import numpy as np
import pytest

from bench.replay import Costs, Event, read_events, replay, write_events
from securefed import FedBCD, GeneralisedLinear, Monitoring, Party, Plain, Simulation
from securefed.errors import DataError
from securefed.transport.link import Link, LocalRun, run_local
from securefed.transport.message import Network, Path

SLOW = Network("slow", 8000.0, 0.25)  # 1000 bytes a second
KINDS = ("public-key", "contribution", "opening-request", "opening", "verdict")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def rounds_of(clock: Clock, exchange: float, step: float, size: int, steps: int, rounds: int) -> LocalRun:
    """Two parties with known work and message sizes, in the pattern of FedBCD-p."""

    def program(peer: str) -> object:
        async def run(link: Link) -> None:
            link.send(peer, "public-key", bytes(100))
            await link.receive("public-key", peer)
            link.mark("setup")
            for t in range(rounds):
                clock.now += exchange
                link.send(peer, "contribution", bytes(size), round=t)
                await link.receive("contribution", peer, round=t)
                link.mark("exchange", t)
                for q in range(steps):
                    clock.now += step
                    link.send(peer, "opening-request", bytes(20), round=t, step=q)
                    await link.receive("opening-request", peer, round=t, step=q)
                    link.send(peer, "opening", bytes(10), round=t, step=q)
                    await link.receive("opening", peer, round=t, step=q)
                link.mark("round", t)

        return run

    programs = {"a": program("b"), "b": program("a")}
    return run_local(programs, run="r", kinds=KINDS, network=SLOW, timer=clock)  # type: ignore[arg-type]


@pytest.mark.parametrize(("steps", "rounds"), [(1, 4), (5, 3), (10, 1)])
def test_known_work_and_sizes_cost_what_arithmetic_says(steps: int, rounds: int) -> None:
    run = rounds_of(Clock(), exchange=3.0, step=0.5, size=2000, steps=steps, rounds=rounds)
    found = replay({name: link.events for name, link in run.links.items()}, SLOW)
    assert found.setup.path == Path(0.0, pytest.approx(0.1 + 0.25))
    for number, costs in enumerate(found.rounds, 1):
        # Both parties work at once, and the links of the two directions are two.
        assert costs.computation == {
            "setup": 0.0,
            "exchange": pytest.approx(3.0 * number),
            "steps": pytest.approx(0.5 * steps * number),
        }
        openings = number * steps * (0.02 + 0.25 + 0.01 + 0.25)
        assert costs.communication == {
            "setup": pytest.approx(0.35),
            "exchange": pytest.approx(number * (2.0 + 0.25)),
            "steps": pytest.approx(openings),
        }
        assert costs.total == costs.path.computation + costs.path.communication
    critical = run.critical
    assert found.rounds[-1].path.computation == pytest.approx(critical.computation)
    assert found.rounds[-1].path.communication == pytest.approx(critical.communication)


def test_another_network_costs_what_a_run_on_it_would() -> None:
    run = rounds_of(Clock(), exchange=1.0, step=0.25, size=5000, steps=2, rounds=2)
    events = {name: link.events for name, link in run.links.items()}
    fast = Network("fast", 8e6, 0.0)
    found = replay(events, fast)
    sizes = 100 + 2 * (5000 + 2 * (20 + 10))
    assert found.rounds[-1].path == Path(pytest.approx(2 * 1.5), pytest.approx(sizes * 1e-6))


NAMES = ("a", "b", "c")


def scripted(name: str, order: list[list[str]], work: list[float], clock: Clock) -> object:
    async def run(link: Link) -> None:
        for number, (sender, receiver) in enumerate(order):
            clock.now += work[number * 3 + NAMES.index(name)]
            if sender == name:
                link.send(receiver, "contribution", bytes(100 * number), round=number)
            elif receiver == name:
                await link.receive("contribution", sender, round=number)
        link.mark("round")

    return run


@pytest.mark.parametrize("seed", range(4))
def test_a_replay_of_any_run_is_what_its_links_measured(seed: int) -> None:
    """Random work at three parties who send and receive in a random, agreed order."""
    random, clock = Random(seed), Clock()
    order = [random.sample(NAMES, 2) for _ in range(40)]
    work = [random.random() for _ in range(120)]
    programs = {name: scripted(name, order, work, clock) for name in NAMES}
    run = run_local(programs, run="r", kinds=KINDS, network=SLOW, timer=clock)  # type: ignore[arg-type]
    found = replay({name: link.events for name, link in run.links.items()}, SLOW)
    for name, link in run.links.items():
        assert found.ends[name].path.computation == pytest.approx(link.path.computation, abs=1e-9)
        assert found.ends[name].path.communication == pytest.approx(link.path.communication, abs=1e-9)
    assert found.rounds[-1].total == pytest.approx(run.critical.total, abs=1e-9)


@pytest.mark.parametrize("order", ["parallel", "sequential"])
def test_a_replay_of_training_is_its_result(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real run with three parties, a key-holder and evaluations."""
    from securefed.api import federated

    runs: list[LocalRun] = []
    monkeypatch.setattr(federated, "run_local", lambda *a, **k: runs.append(run_local(*a, **k)) or runs[-1])
    rng = np.random.default_rng(0)
    columns = rng.normal(size=(3, 30, 2))
    parties = [Party("p", columns[0]), Party("q", columns[1])]
    parties.append(Party("z", columns[2], labels=columns.sum(axis=(0, 2)) > 0))
    algorithm = FedBCD(local_steps=2, order=order)  # type: ignore[arg-type]
    model = GeneralisedLinear(
        algorithm=algorithm,
        rounds=3,
        protection=Plain(like="blind"),
        monitoring=Monitoring(evaluate_every=1),
        simulation=Simulation(network="wan"),
    )
    result = model.fit(parties).result_
    events = {name: link.events for name, link in runs[0].links.items()}
    found = replay(events, Network("wan", 100e6, 20e-3))
    assert len(found.rounds) == result.rounds == 3
    assert found.rounds[-1].total == pytest.approx(result.total, rel=1e-3)
    assert set(found.rounds[-1].communication) <= {"setup", "exchange", "steps"}
    assert found.rounds[-1].path.communication == pytest.approx(result.communication, rel=1e-9)


def test_events_survive_json() -> None:
    run = rounds_of(Clock(), exchange=0.1, step=0.3, size=50, steps=2, rounds=2)
    events = {name: link.events for name, link in run.links.items()}
    assert read_events(json.loads(json.dumps(write_events(events)))) == events


def test_events_that_do_not_fit_are_refused() -> None:
    lonely = {"a": [Event(1.0, "received", "contribution", 0, 0, "b", 5)], "b": []}
    with pytest.raises(DataError, match="a wait for messages that nobody sent"):
        replay(lonely, SLOW)
    sent = [Event(1.0, "sent", "opening", 0, 0, "a", 5)]
    with pytest.raises(DataError, match="received"):
        replay({**lonely, "b": sent}, SLOW)
    with pytest.raises(DataError, match="malformed"):
        read_events({"a": [[1.0]]})


def test_the_later_path_wins_whole() -> None:
    short, long = Costs({"steps": 3.0}, {}), Costs({"steps": 1.0}, {"exchange": 2.5})
    assert short.later(long) is long
    assert long.later(short) is long
    assert long.path == Path(1.0, 2.5)
