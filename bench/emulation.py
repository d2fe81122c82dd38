"""Opened parameters of blind runs beside the same rounds in the clear, for every schedule and both schemes.

The bench runs all parties in this process, so it can add up the two shares of a finished model, which no
party can. Beside it stands plain arithmetic in the parameters themselves: no shares, no square roots of step
matrices, no fixed point. Rows are few: rounds do not depend on them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.bars import Bar
from securefed.assembly import LinearAssembly
from securefed.assembly.base import HELPER
from securefed.crypto import cross_scheme, shares
from securefed.protocols.agreement import Agreement, Member
from securefed.protocols.blind.linear import BlindParty
from securefed.protocols.blind.statistics import VALUE_BITS
from securefed.protocols.loop import PartyContext
from securefed.protocols.losses import Loss
from securefed.protocols.messages import KINDS
from securefed.protocols.schedules import Algorithm, Automatic, FedBCD, FedSGD
from securefed.settings import Blind, LinearSettings
from securefed.transport.link import run_local
from securefed.transport.message import get_network

Floats = NDArray[np.float64]
BAR = 1e-6
SCHEDULES: dict[str, Algorithm] = {
    "FedSGD": FedSGD(),
    "FedBCD-p": FedBCD(20),
    "FedBCD-s": FedBCD(5, order="sequential"),
    "FedPBCD-p": FedBCD(5, proximal=0.1),
}
PARTIES, OUTPUTS = (2, 3, 5), (1, 3, 10)


@dataclass(frozen=True)
class Case:
    scheme: str
    schedule: str
    parties: int
    outputs: int
    rows: int = 200
    rounds: int = 12
    columns: int = 4
    """Of the first party; each further one has one more."""
    key_bits: int = 2048


@dataclass(frozen=True)
class Distance:
    """A case, and the largest difference of any parameter."""

    case: Case
    difference: float
    largest: float
    """The largest parameter."""
    cpu_s: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self.case) | {
            "difference": self.difference,
            "largest": self.largest,
            "cpu_s": self.cpu_s,
        }


def cases(*, quick: bool) -> Iterator[Case]:
    """Every schedule, number of parties and outputs under both schemes; fewer rows under Paillier."""
    few: dict[str, dict[str, int]] = {"ckks": {}, "paillier": {"rows": 24, "rounds": 4, "columns": 2}}
    some = {"ckks": ((2, 1), (3, 3)), "paillier": ((2, 1),)}
    for scheme, sizes in few.items():
        for schedule in SCHEDULES:
            for parties in PARTIES:
                for outputs in OUTPUTS:
                    if not quick or (parties, outputs) in some[scheme]:
                        yield Case(scheme, schedule, parties, outputs, **sizes)


def measured(case: Case, seed: int) -> Distance:
    columns, targets = table(case, seed)
    settings = LinearSettings(
        protection=Blind(scheme=case.scheme), algorithm=SCHEDULES[case.schedule], rounds=case.rounds, l2=0.01
    )
    assembly = LinearAssembly(settings)
    began = time.process_time()
    found = opened(case, columns, targets, assembly)
    spent = time.process_time() - began
    expected = emulated(agreement_of(columns, targets, assembly), columns, targets, assembly)
    difference = float(np.abs(found - expected).max())
    return Distance(case, difference, float(np.abs(expected).max()), round(spent, 2))


def table(case: Case, seed: int) -> tuple[list[Floats], Floats]:
    """Every party's columns, the label party's with an intercept, and labels -1 and +1."""
    rng = np.random.default_rng(seed)
    blocks = [rng.normal(size=(case.rows, case.columns + k)) for k in range(case.parties)]
    blocks[-1][:, -1] = 1.0
    weights = rng.normal(size=(sum(block.shape[1] for block in blocks), case.outputs))
    margins = np.hstack(blocks) @ weights
    return blocks, np.where(margins + rng.normal(size=margins.shape) > 0, 1.0, -1.0)


def agreement_of(columns: Sequence[Floats], targets: Floats, assembly: LinearAssembly) -> Agreement:
    members = tuple(Member(f"p{k}", block.shape[1], True) for k, block in enumerate(columns))
    return assembly.agreement(members, len(targets), targets.shape[1])


def opened(case: Case, columns: Sequence[Floats], targets: Floats, assembly: LinearAssembly) -> Floats:
    """Parameters of an encrypted run: both holders' shares, added up."""
    agreement, loss = agreement_of(columns, targets, assembly), assembly.settings.loss_function
    scheme = cross_scheme(case.scheme, key_bits=case.key_bits)
    steps = [assembly.steps(agreement, block) for block in columns]
    programs: dict[str, BlindParty] = {}
    for name, block, own in zip(agreement.names, columns, steps, strict=True):
        labels = targets if name == agreement.label_party else None
        context = PartyContext().guarding(name, block)
        programs[name] = BlindParty(agreement, loss, block, labels, context, scheme, steps=own)
    if agreement.key_holder is not None:
        programs[HELPER] = BlindParty(agreement, loss, None, None, PartyContext(), scheme)
    run_local(
        {name: program.run for name, program in programs.items()},
        run="emulation",
        kinds=KINDS,
        network=get_network("lan"),
    )
    second = agreement.key_holder or agreement.names[0]
    total = shares.add(programs[agreement.label_party]._phi, programs[second]._phi)
    blocks = np.vsplit(shares.to_floats(total, VALUE_BITS), _ends(columns))
    return np.vstack([own.root() @ block for own, block in zip(steps, blocks, strict=True)])


def emulated(
    agreement: Agreement, columns: Sequence[Floats], targets: Floats, assembly: LinearAssembly
) -> Floats:
    """The parameters after all rounds in the clear."""
    loss = assembly.settings.loss_function
    roots = [assembly.steps(agreement, block).root() for block in columns]
    *_, theta = plain_rounds(agreement, columns, targets, loss, roots)
    return theta


def plain_rounds(
    agreement: Agreement,
    columns: Sequence[Floats],
    targets: Floats,
    loss: Loss,
    roots: Sequence[Floats],
) -> Iterator[Floats]:
    """Yield the parameters after each round: theta_k <- theta_k + m (last change) - eta P_k (gradient of
    block k); `roots`: each party's P^(1/2).
    """
    rate, rows, features = agreement.learning_rate, len(targets), np.hstack(list(columns))
    gram = loss.margin_weight / rows * features.T @ features + agreement.l2 * np.eye(features.shape[1])
    pull = -loss.label_weight / rows * features.T @ targets
    ends = [0, *_ends(columns), features.shape[1]]
    theta = previous = np.zeros((features.shape[1], targets.shape[1]))
    for t in range(agreement.stopping.rounds):
        momentum = rate.momentum(t) if isinstance(rate, Automatic) else 0.0
        factor = rate(t) if isinstance(rate, Automatic) else rate(t) / rate(0)
        new = theta.copy()
        for active in agreement.turns:
            gradient = gram @ new - pull
            for name in active:
                k = agreement.names.index(name)
                at = slice(ends[k], ends[k + 1])
                step = factor * roots[k] @ (roots[k] @ gradient[at])
                new[at] = new[at] + momentum * (theta - previous)[at] - step
        previous, theta = theta, new
        yield theta


def _ends(columns: Sequence[Floats]) -> list[int]:
    return [int(end) for end in np.cumsum([block.shape[1] for block in columns])[:-1]]


def bars(found: Sequence[Distance]) -> list[Bar]:
    made = []
    for scheme, name in (("ckks", "RLWE"), ("paillier", "Paillier")):
        here = [each for each in found if each.case.scheme == scheme]
        if here:
            worst = max(here, key=lambda each: each.difference)
            where = f"{worst.case.schedule}, K = {worst.case.parties}, {worst.case.outputs} outputs"
            note = f"largest of {len(here)} runs, at {where}"
            title = f"opened parameters beside plain rounds, {name}"
            made.append(Bar.of(title, worst.difference, BAR, "less", note))
    return made
