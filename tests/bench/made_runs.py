"""Records of runs that nobody made: known work, known message sizes, known AUCs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.replay import Event
from bench.runs import Record, source_digest
from bench.table2_rows import Cells
from securefed.transport.message import Network

SLOW = Network("slow", 8000.0, 0.25)
"""1000 bytes a second."""


@dataclass(frozen=True)
class Work:
    """Of both parties, in seconds and bytes."""

    exchange: float = 3.0
    step: float = 0.5
    size: int = 2000
    request: int = 20
    opening: int = 10

    def computation(self, rounds: float, steps: int) -> float:
        return rounds * (self.exchange + steps * self.step)

    def communication(self, rounds: float, steps: int, network: Network) -> float:
        def way(size: int) -> float:
            return network.transfer(size) + network.latency

        return rounds * (way(self.size) + steps * (way(self.request) + way(self.opening)))


def events(work: Work, steps: int, rounds: int, *, openings: int | None = None) -> dict[str, list[Event]]:
    """Two parties in the pattern of FedBCD-p, as alike as twins; `openings` a round where not one a step."""
    found: dict[str, list[Event]] = {}
    for name, peer in (("B", "A"), ("A", "B")):
        listed = [
            Event(1.0, "sent", "public-key", peer=peer, size=500),
            Event(0.0, "received", "public-key", peer=peer, size=500),
            Event(0.0, "mark", "setup"),
        ]
        for t in range(rounds):
            listed += [
                Event(work.exchange, "sent", "contribution", t, 0, peer, work.size),
                Event(0.0, "received", "contribution", t, 0, peer, work.size),
                Event(0.0, "mark", "exchange", t),
            ]
            for q in range(steps if openings is None else openings):
                listed += [
                    Event(work.step, "sent", "opening-request", t, q, peer, work.request),
                    Event(0.0, "received", "opening-request", t, q, peer, work.request),
                    Event(0.0, "sent", "opening", t, q, peer, work.opening),
                    Event(0.0, "received", "opening", t, q, peer, work.opening),
                ]
            listed.append(Event(0.0, "mark", "round", t))
        found[name] = listed
    return found


def record(
    aucs: Sequence[float],
    steps: int,
    work: Work | None = None,
    *,
    openings: int | None = None,
    options: Mapping[str, Any] | None = None,
    ledger: Sequence[Mapping[str, Any]] = (),
    metric: str = "overlap_auc",
) -> Record:
    """`work`: None for a plain run whose events were not kept."""
    count = steps if openings is None else openings
    made = Work() if work is None else work
    sent = [
        {
            "messages": 2 * number * (1 + 2 * count),
            "bytes_exchange": 2 * number * made.size,
            "bytes_open": 2 * number * count * (made.request + made.opening),
            "ciphertexts": number * (4 + count),
        }
        for number in range(1, len(aucs) + 1)
    ]
    return Record(
        settings={"options": dict(options or {})},
        points=[{"held_out_auc": auc - 0.2, metric: auc} for auc in aucs],
        reason="target",
        events={} if work is None else events(work, steps, len(aucs), openings=openings),
        sent=sent,
        ledger=[dict(entry) for entry in ledger],
        facts={"load": 0.5, "sources": source_digest(), "seconds": 1.0},
    )


def climb(rounds: Mapping[float, int], last: int | None = None) -> list[float]:
    """AUCs that reach each target in its round."""
    return [
        max((target for target, number in rounds.items() if number <= t), default=0.5)
        for t in range(1, (last or max(rounds.values())) + 1)
    ]


def cells(
    rounds: Mapping[int, Mapping[float, int]],
    *,
    kind: str = "overlap",
    scheme: str = "ckks",
    work: Work | Mapping[int, Work] | None = None,
    plain: Mapping[tuple[int, int], Mapping[float, int]] | None = None,
    options: Mapping[str, Any] | None = None,
    openings: int | None = None,
) -> Cells:
    """One seed that takes `rounds` (by Q and target), in plain as well unless `plain` says otherwise."""
    metric = {"overlap": "overlap_auc", "held-out": "held_out_auc", "linear": "test_auc"}[kind]
    given = Work() if work is None else work
    measured = {
        (q, 0): record(
            climb(by),
            q,
            given if isinstance(given, Work) else given[q],
            openings=openings,
            options=options,
            metric=metric,
        )
        for q, by in rounds.items()
    }
    others = plain or {(q, 0): by for q, by in rounds.items()}
    in_plain = {key: record(climb(by), key[0], options=options, metric=metric) for key, by in others.items()}
    return Cells(kind, scheme, sorted(rounds), measured, in_plain)
