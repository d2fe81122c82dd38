"""The loop around the rounds: evaluation, stopping, the clock, checkpoints and parallel work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from securefed.api.result import RunResult
from securefed.engine import Processes
from securefed.errors import DataError, SettingError
from securefed.protocols.loop import EvaluationRows, Round
from securefed.protocols.own_gradient.training import DataParty, KeyHolderParty
from securefed.protocols.schedules import Algorithm, FedBCD, FedSGD, InverseSqrt
from securefed.protocols.steps import SGD, Adam
from securefed.transport.message import Network
from tests.protocols import federation
from tests.protocols.federation import (
    KEY_HOLDER,
    Federation,
    Keys,
    Recorder,
    blobs,
    run_parties,
    shared_people,
    split,
)

Array = NDArray[np.float64]


class Metric:
    """Says what it was told to say, and remembers the scores that it saw."""

    def __init__(self, *values: float) -> None:
        self._values = list(values)
        self.scores: list[Array] = []

    def __call__(self, scores: Array) -> float:
        self.scores.append(scores)
        return self._values[len(self.scores) - 1]


def linear(
    keys: Keys, metric: Callable[[Array], float] | None, parties: int = 2, **options: Any
) -> Federation:
    """EvaluationRows on the last four of twelve rows."""
    features, labels = blobs(12, 2 * parties, seed=8)
    parts = split(features, parties)
    evaluations = {
        f"p{k}": EvaluationRows(part[8:], metric if k == parties - 1 else None)
        for k, part in enumerate(parts)
    }
    return federation.linear(
        [part[:8] for part in parts],
        labels[:8],
        keys,
        evaluations=evaluations if metric is not None else None,
        **{"algorithm": FedBCD(2), "evaluate_every": 0 if metric is None else 1, "rounds": 6, **options},
    )


# Stopping.


@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize(
    ("told", "options", "rounds", "reason"),
    [
        ((0.1, 0.2, 0.9), {"target": 0.8}, 3, "target"),
        ((0.8,), {"target": 0.8}, 1, "target"),
        ((0.5, 0.6, 0.6, 0.55), {"patience": 2}, 4, "no progress"),
        ((0.5, 0.6, 0.6, 0.7, 0.7, 0.7), {"patience": 3}, 6, "rounds"),
        ((0.1, 0.2, 0.3, 0.4, 0.5, 0.6), {"target": 0.8, "patience": 3}, 6, "rounds"),
        ((0.1, 0.2, 0.3, 0.4, 0.5, 0.6), {}, 6, "rounds"),
    ],
)
def test_everybody_stops_when_the_label_party_says_so(
    told: tuple[float, ...], options: dict[str, Any], rounds: int, reason: str, parties: int, keys: Keys
) -> None:
    made = linear(keys, Metric(*told), parties, **options)
    run = made.run()
    assert set(run.outcomes) == {*made.sides, *(() if parties == 2 else (KEY_HOLDER,))}
    for outcome in run.outcomes.values():
        assert (outcome.rounds, outcome.reason) == (rounds, reason)
    last = made.agreement.label_party
    assert run.outcomes[last].history == list(enumerate(told[:rounds]))
    for name in made.sides:
        if name != last:  # nobody else learns the metric
            assert run.outcomes[name].history == []
    # A verdict a round and receiver where the run may end early, and none where it cannot.
    verdicts = sum(link.transcript.count()["verdict"] for link in run.links.values())
    assert verdicts == (rounds * (len(run.links) - 1) if options else 0)


def test_evaluation_every_few_rounds(keys: Keys) -> None:
    metric = Metric(0.1, 0.2, 0.3)
    made = linear(keys, metric, evaluate_every=2, target=0.9)
    run = made.run()
    assert run.outcomes["p1"].history == [(1, 0.1), (3, 0.2), (5, 0.3)]
    with pytest.raises(SettingError, match="no rows to evaluate on"):
        linear(keys, None, evaluate_every=1).parties()


def test_patience_counts_evaluations_and_not_rounds(keys: Keys) -> None:
    made = linear(keys, Metric(0.5, 0.5, 0.5), evaluate_every=2, patience=1, rounds=10)
    assert made.run().outcomes["p0"].rounds == 4


def test_a_metric_that_is_no_number_stops_in_one_line(keys: Keys) -> None:
    with pytest.raises(DataError, match="metric must be a finite number"):
        linear(keys, Metric(float("nan"))).run()


@pytest.mark.parametrize("parties", [2, 3])
def test_evaluation_scores_the_rows_with_the_parameters_of_the_round(parties: int, keys: Keys) -> None:
    metric = Metric(*([0.5] * 3))
    made = linear(keys, metric, parties, rounds=3)
    seen: list[dict[str, Array]] = []
    made.on_round = {made.agreement.label_party: lambda state: seen.append(made.parameters)}
    made.run()
    features = split(blobs(12, 2 * parties, seed=8)[0], parties)
    for scores, parameters in zip(metric.scores, seen, strict=True):
        expected = sum(part[8:] @ theta for part, theta in zip(features, parameters.values(), strict=True))
        assert np.abs(scores - expected).max() < 1e-12


def test_evaluation_does_not_change_the_training(keys: Keys) -> None:
    with_scores, without = linear(keys, Metric(*[0.5] * 6)), linear(keys, None)
    with_scores.run()
    without.run()
    assert np.array_equal(with_scores.flat, without.flat)


def test_progress_is_reported_after_each_round(keys: Keys) -> None:
    states: list[Round] = []
    made = linear(keys, Metric(0.1, 0.2, 0.9), target=0.8)
    made.on_round = {"p1": states.append}
    made.run()
    assert [(s.number, s.metric) for s in states] == [(0, 0.1), (1, 0.2), (2, 0.9)]


# The clock.


class Time:
    """A clock that stands still unless told otherwise."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("parties", [2, 3])
def test_evaluation_is_off_the_clock(parties: int, keys: Keys) -> None:
    """Its messages and its work take time, and none of it is training time."""
    paths = []
    for evaluated in (False, True):
        time = Time()

        def metric(scores: Array, time: Time = time) -> float:
            time.now += 100.0
            return 0.5

        made = linear(keys, metric if evaluated else None, parties, rounds=3)
        run = made.run(timer=time, network=Network("slow", 1e6, 0.25))
        result = RunResult.of(made.agreement, run)
        paths.append(run.critical)
        if evaluated:
            assert result.evaluation.computation == pytest.approx(300.0)
            assert result.evaluation.communication > 3 * 0.25
            assert result.messages("evaluation")["score-part"] == 3 * (parties - 1)
            assert "score-part" not in result.messages("training")
        else:
            assert result.evaluation.total == 0.0
    assert paths[0] == paths[1]
    assert paths[0].computation == 0.0
    assert paths[0].communication > 0


def test_the_critical_path_of_a_round_by_hand(keys: Keys) -> None:
    """Two parties that work for no time: each message waits for the one that it answers.

    Keys, then per round the exchange, the requests and the replies, each at once in both directions: the
    longer of the two decides, and its latency and transfer are all there is.
    """
    latency, bandwidth = 0.125, 1e6
    recorder = Recorder()
    made = linear(keys, None, rounds=4)
    run = made.run(timer=Time(), network=Network("line", bandwidth, latency), tap=recorder)
    expected = 0.0
    for kind in ("public-key", *["contribution", "opening-request", "opening"] * 4):
        sizes = {m.size for m in recorder.of(kind)}
        assert len(sizes) == 1  # plain arrays of equal shape
        expected += latency + 8 * sizes.pop() / bandwidth
    assert run.critical.computation == 0.0
    assert run.critical.communication == pytest.approx(expected, rel=1e-12)


class Ticks:
    """A clock that goes on by one with each look at it."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> float:
        self.now += 1
        return float(self.now)


@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize("order", ["parallel", "sequential"])
def test_computation_and_communication_make_the_total(parties: int, order: Any, keys: Keys) -> None:
    made = linear(keys, Metric(*[0.5] * 6), parties, algorithm=FedBCD(3, order))
    run = made.run(timer=Ticks())
    result = RunResult.of(made.agreement, run)
    assert result.total == run.critical.total
    assert result.computation + result.communication == result.total
    assert result.total == max(path.total for path in result.paths.values())
    for path in result.paths.values():
        assert path.computation + path.communication == path.total
        assert path.computation > 0


# Checkpoints.


def checkpointed(made: Federation, after: int) -> dict[str, dict[str, NDArray[np.generic]]]:
    """Run to the end; what each data party's state was after that round, as an .npz file would hold it."""
    parties = made.parties()
    kept: dict[str, dict[str, NDArray[np.generic]]] = {}

    def keep(name: str) -> Callable[[Round], None]:
        def on_round(state: Round) -> None:
            party = parties[name]
            if state.number == after and isinstance(party, DataParty):
                kept[name] = {key: value.copy() for key, value in party.state().items()}

        return on_round

    made.on_round = {name: keep(name) for name in made.sides}
    parties = made.parties()
    run_parties(parties)
    return kept


def resume(made: Federation, states: dict[str, dict[str, NDArray[np.generic]]], after: int) -> Any:
    parties = made.parties()
    for name, party in parties.items():
        if isinstance(party, KeyHolderParty):
            party.first_round = after + 1
        else:
            party.restore(states[name])
    return run_parties(parties)


CHECKPOINTED: dict[str, tuple[Algorithm, Any]] = {
    "FedSGD": (FedSGD(), SGD()),
    "FedBCD-p, Adam": (FedBCD(2), Adam()),
    "FedPBCD-s, Adam": (FedBCD(2, "sequential", 0.1), Adam()),
}


QUICK = {("pair", "FedBCD-p, Adam"), ("transfer", "FedPBCD-s, Adam")}


@pytest.mark.parametrize(
    ("objective", "scheme", "schedule"),
    [
        pytest.param(
            objective,
            scheme,
            schedule,
            marks=() if scheme == "plain" or (objective, schedule) in QUICK else pytest.mark.slow,
        )
        for scheme in ("plain", "paillier")
        for objective in ("pair", "star", "transfer")
        for schedule in CHECKPOINTED
    ],
)
def test_a_resumed_run_ends_in_the_same_parameters(
    objective: str, scheme: str, schedule: str, keys: Keys
) -> None:
    """Bit for bit: batches and rates go by the round, Adam's moments come along, Paillier is exact."""
    algorithm, optimiser = CHECKPOINTED[schedule]

    def make() -> Federation:
        options: dict[str, Any] = {
            "scheme": scheme,
            "algorithm": algorithm,
            "optimiser": optimiser,
            "rounds": 4,
            "rate": InverseSqrt(0.2),
            "batch": 5,
        }
        if objective == "transfer":
            return federation.transfer(shared_people(n=7), keys, width=2, **options)
        return linear(keys, None, 2 if objective == "pair" else 3, **options)

    whole = make()
    states = checkpointed(whole, after=1)
    rest = make()
    assert not np.array_equal(whole.flat, rest.flat)
    run = resume(rest, states, after=1)
    assert np.array_equal(whole.flat, rest.flat)
    assert all(outcome.rounds == 4 for outcome in run.outcomes.values())


def test_patience_survives_a_checkpoint(keys: Keys) -> None:
    """Two evaluations without progress before the checkpoint and one after it make three."""
    told = (0.5, 0.4, 0.4, 0.4, 0.4, 0.4)
    whole = linear(keys, Metric(*told), patience=3, rounds=6)
    states = checkpointed(whole, after=2)
    rest = linear(keys, Metric(*told[3:]), patience=3, rounds=6)
    run = resume(rest, states, after=2)
    assert run.outcomes["p0"].rounds == 4
    assert run.outcomes["p0"].reason == "no progress"


def test_a_checkpoint_holds_the_partys_own_numbers_only(keys: Keys) -> None:
    made = linear(keys, None, algorithm=FedBCD(2), optimiser=Adam(), rounds=2)
    states = checkpointed(made, after=0)
    for name, state in states.items():
        size = made.parameters[name].size
        assert {key: value.shape for key, value in state.items()} == {
            "round": (),
            "scoring": (16,),
            "parameters": (size,),
            "previous": (size,),
            "optimiser.steps": (),
            "optimiser.first": (size,),
            "optimiser.second": (size,),
            "stopping.best": (),
            "stopping.stale": (),
        }
        assert not any(value.dtype.hasobject for value in state.values())


@pytest.mark.parametrize(
    "spoil",
    [
        lambda s: {**s, "parameters": s["parameters"][:-1]},
        lambda s: {**s, "parameters": s["parameters"] * np.nan},
    ],
)
def test_parameters_that_do_not_fit_are_refused_in_one_line(spoil: Any, keys: Keys) -> None:
    made = linear(keys, None, optimiser=Adam(), rounds=2)
    state = spoil(checkpointed(made, after=0)["p0"])
    party = linear(keys, None, optimiser=Adam(), rounds=2).parties()["p0"]
    assert isinstance(party, DataParty)
    with pytest.raises(DataError) as caught:
        party.restore(state)
    assert "\n" not in str(caught.value)


# Parallel work.


@pytest.mark.parametrize(("objective", "scheme"), [("star", "plain"), ("transfer", "paillier")])
def test_a_pool_of_processes_gives_the_same_parameters(objective: str, scheme: str, keys: Keys) -> None:
    """Ciphertexts differ from run to run; what is opened does not, bit for bit."""
    results, opened = [], []
    for workers in (1, 2):
        if objective == "star":
            made = linear(keys, None, 3, scheme=scheme, rounds=2, local="network", hidden=(2,))
        else:
            made = federation.transfer(shared_people(n=6), keys, scheme=scheme, width=2, rounds=2)
        recorder = Recorder()
        with Processes(workers) as mapper:
            made.mapper = mapper if workers > 1 else None
            made.run(tap=recorder)
        results.append(made.flat)
        opened.append([m.digest for m in recorder.of("opening")])
    assert np.array_equal(results[0], results[1])
    if scheme == "paillier":
        assert not set(opened[0]) & set(opened[1])
