"""The encrypted pass over the rows, by itself: what it takes, and how it grows with rows and columns.

A blind run has one pass. All that follows works on matrices of columns x columns, so it does not depend on
rows. Growth is the exponent of processor time: the slope of a straight line through the logarithms.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import cross_scheme
from securefed.crypto.blind.interface import CrossScheme
from securefed.crypto.scheme import Mapper, Serial
from securefed.protocols.blind.cross import CrossTools
from securefed.protocols.blind.statistics import PassColumns, PassPlan, Statistics, run_pass
from securefed.protocols.losses import get_loss
from securefed.protocols.messages import KINDS
from securefed.transport.link import Link, run_local
from securefed.transport.message import get_network

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Pass:
    """One pass of two parties: processor seconds of both, and what they sent."""

    rows: int
    left: int
    right: int
    cpu_s: float
    wall_s: float
    bytes: int
    messages: int

    @property
    def columns(self) -> int:
        return self.left + self.right


def passed(
    rows: int, left: int, right: int, seed: int, *, mapper: Mapper | None = None, scheme: str = "ckks"
) -> Pass:
    """The pass over generated rows; `left` columns at the party without labels."""
    rng, loss = np.random.default_rng(seed), get_loss("logistic")
    blocks = {"shop": rng.normal(size=(rows, left)), "bank": rng.normal(size=(rows, right))}
    labels = np.where(rng.random((rows, 1)) < 0.5, -1.0, 1.0)
    plan = PassPlan(
        tuple(blocks),
        (left, right),
        None,
        1,
        rows,
        (rows,),
        ((0,),),
        loss.label_weight,
        loss.margin_weight,
        1.0 / rows,
    )
    made = cross_scheme(scheme, key_bits=2048)
    programs = {}
    for name, block in blocks.items():
        targets = labels if name == "bank" else None
        root = np.eye(block.shape[1]) / np.sqrt(block.shape[1])
        own = PassColumns(plan, block, root, [np.arange(rows)], targets)
        programs[name] = partial(_run, made, mapper or Serial(), plan, own)
    began, wall = time.process_time(), time.perf_counter()
    done = run_local(programs, run="pass", kinds=KINDS, network=get_network("lan"))
    spent, wall = time.process_time() - began, time.perf_counter() - wall
    sent = [entry for link in done.links.values() for entry in link.transcript.of("sent")]
    return Pass(rows, left, right, spent, wall, sum(entry.bytes for entry in sent), len(sent))


async def _run(
    scheme: CrossScheme, mapper: Mapper, plan: PassPlan, columns: PassColumns, link: Link
) -> Statistics | None:
    return await run_pass(CrossTools(link, scheme, mapper), plan, columns)


def slope(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The exponent: of a straight line through the logarithms."""
    found, _ = np.polyfit(np.log(sizes), np.log(values), 1)
    return float(found)
