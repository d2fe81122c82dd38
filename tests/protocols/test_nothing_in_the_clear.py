"""No payload of an encrypted run contains a number that belongs to somebody in the clear.

Everything that passes through the parties is noted: features, labels, contributions to H, multipliers, opened
sums, gradients, parameters, scores. None of it may lie in a payload, as float64 in either byte order, nor as
the fixed-point integer that was encrypted. The same search finds them in a plain run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from securefed.protocols.loop import EvaluationRows
from securefed.protocols.schedules import FedBCD
from tests.protocols import federation
from tests.protocols.error_bounds import Observed, observe
from tests.protocols.federation import Federation, Keys, Recorder, blobs, shared_people, split

Array = NDArray[np.float64]


def forms(values: Array) -> Iterator[bytes]:
    """Each number in eight bytes of either order, as a float and as a fixed-point integer."""
    for number in np.unique(values):
        for kind in ("<f8", ">f8"):
            yield np.array(number, dtype=kind).tobytes()
        integer = round(float(number) * 2**32)
        for order in ("little", "big"):
            yield integer.to_bytes(8, order, signed=True)  # type: ignore[arg-type]


def telling(needle: bytes) -> bool:
    """Numbers like 0, 1 or 1/2 are mostly zero bytes, and those lie everywhere."""
    return sum(byte not in (0, 0xFF) for byte in needle) >= 4


def in_runs(labels: Array) -> Iterator[bytes]:
    """Labels are too short to look for one by one; all of them one after the other are not."""
    signs = np.where(np.isnan(labels), 0, labels)
    for kind in ("<f8", ">f8", "<f4", ">f4", "<i8", "<i4", "i1"):
        yield signs.astype(kind).tobytes()
    yield (signs > 0).astype("u1").tobytes()
    for weight in (-0.5, 0.5):
        yield (weight * signs).astype("<f8").tobytes()


def occurs(needles: set[bytes], payload: bytes) -> bool:
    """Whether one of the needles, of eight bytes each, lies anywhere in the payload."""
    wanted = np.frombuffer(b"".join(needles), dtype="<u8")
    ends = np.zeros(1 << 16, dtype=bool)  # a first sieve by the last two bytes
    ends[wanted & 0xFFFF] = True
    for start in range(8):
        words = np.frombuffer(payload, dtype="<u8", offset=start, count=(len(payload) - start) // 8)
        if np.isin(words[ends[words & 0xFFFF]], wanted).any():
            return True
    return False


class Known:
    """What the parties know, and where it was found."""

    def __init__(self, watched: dict[str, Observed], labels: Array, scores: list[Array]) -> None:
        self._labels = labels
        self._arrays: dict[str, list[Array]] = {
            "contribution": [c for w in watched.values() for c in w.contributions],
            "opened sum": [s for w in watched.values() for s in w.sums],
            "gradient": [g for w in watched.values() for g in w.gradients],
            "parameter": [p for w in watched.values() for p in w.visited],
            "multiplier": [f for w in watched.values() for f in w.factors],
            "score": scores,
        }

    def found_in(self, payloads: list[bytes]) -> set[str]:
        everything = b"".join(payloads)
        found = set()
        for what, arrays in self._arrays.items():
            needles = {needle for array in arrays for needle in forms(np.asarray(array)) if telling(needle)}
            if occurs(needles, everything):
                found.add(what)
        if any(needle in everything for needle in in_runs(self._labels)):
            found.add("labels")
        return found


def linear(
    keys: Keys, scheme: str, parties: int, exchange: str, local: str, metric: Any
) -> tuple[Federation, Array]:
    features, labels = blobs(9, 2 * parties, seed=12)
    parts = split(features, parties)
    made = federation.linear(
        parts,
        labels,
        keys,
        scheme=scheme,
        algorithm=FedBCD(2),
        rounds=2,
        exchange=exchange,
        local=local,
        hidden=(2,),
        evaluate_every=1,
        evaluations={
            f"p{k}": EvaluationRows(part, metric if k == parties - 1 else None)
            for k, part in enumerate(parts)
        },
    )
    return made, labels


def transfer(keys: Keys, scheme: str, metric: Any) -> tuple[Federation, Array]:
    people = shared_people(n=8, seed=12)
    made = federation.transfer(
        people,
        keys,
        scheme=scheme,
        width=2,
        algorithm=FedBCD(2),
        rounds=2,
        evaluate_every=1,
        evaluations={"B": EvaluationRows(people.b), "A": EvaluationRows(None, metric)},
    )
    return made, people.labels


RUNS: dict[str, Any] = {
    "pair": lambda k, s, m: linear(k, s, 2, "star", "linear", m),
    "star": lambda k, s, m: linear(k, s, 3, "star", "network", m),
    "pairwise": lambda k, s, m: linear(k, s, 3, "pairwise", "linear", m),
    "transfer": transfer,
}


def search(name: str, scheme: str, keys: Keys) -> set[str]:
    scores: list[Array] = []

    def metric(found: Array) -> float:
        scores.append(found)
        return 0.5

    made, labels = RUNS[name](keys, scheme, metric)
    watched, recorder = observe(made), Recorder()
    made.run(tap=recorder)
    assert len(scores) == 2
    return Known(watched, labels, scores).found_in(
        [m.payload for m in recorder.messages if m.kind != "public-key"]
    )


@pytest.mark.parametrize("scheme", ["paillier", "ckks"])
@pytest.mark.parametrize("name", RUNS)
def test_nothing_is_found_in_an_encrypted_run(name: str, scheme: str, keys: Keys) -> None:
    assert search(name, scheme, keys) == set()


@pytest.mark.parametrize("name", RUNS)
def test_the_same_search_finds_it_in_a_plain_run(name: str, keys: Keys) -> None:
    """Not multipliers, gradients and parameters, which nobody sends in plain either."""
    found = search(name, "plain", keys)
    assert {"contribution", "opened sum", "score"} <= found
    assert not found & {"multiplier"}


def test_the_search_finds_what_is_there() -> None:
    """Whatever the form, in the middle of other bytes."""
    values = np.array([0.1234567, -3.7])
    known = Known({}, np.array([1.0, -1.0, -1.0, 1.0, 1.0, 1.0, -1.0, -1.0]), [values])
    noise = np.random.default_rng(0).bytes(1000)
    assert known.found_in([noise]) == set()
    for needle in forms(values):
        assert known.found_in([noise + needle + noise]) == {"score"}
    for needle in in_runs(known._labels):
        assert "labels" in known.found_in([noise + needle + noise])


@pytest.mark.parametrize("scheme", ["plain", "paillier", "ckks"])
def test_transcripts_hold_no_values(scheme: str, keys: Keys) -> None:
    """Sizes, digests, shapes, settings: what numbers there are, are whole or public."""
    made, _ = RUNS["pair"](keys, scheme, lambda scores: 0.5)
    watched = observe(made)
    run = made.run()
    secrets = {
        float(number)
        for w in watched.values()
        for arrays in (w.contributions, w.sums, w.gradients, w.visited, w.factors)
        for array in arrays
        for number in np.asarray(array).ravel()
        if abs(number) not in (0.0, 0.25, 0.5, 1.0)
    }

    def numbers(thing: Any) -> Iterator[float]:
        if isinstance(thing, dict):
            thing = list(thing.values())
        if isinstance(thing, list | tuple):
            for item in thing:
                yield from numbers(item)
        elif isinstance(thing, float):
            yield thing

    for link in run.links.values():
        assert not secrets & set(numbers(list(map(asdict, link.transcript))))
