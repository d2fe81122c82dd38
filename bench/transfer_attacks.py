"""Attacks on recorded runs of the transfer objective: labels, hidden representations, Phi Phi'."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from bench.attack_variants import (
    BLIND,
    CKKS,
    PAILLIER,
    PLAIN,
    SCHEMES,
    SINGLE,
    Size,
    either_sign,
    label_area,
)
from bench.linear_attacks import unmasked
from bench.scenes import Keys, TransferScene, generated, transfer_scene
from research.attacks.blind import columns_from_cross, numbers_of
from research.attacks.clear import CLEAR
from research.attacks.linear import direction_scores, norm_scores
from research.attacks.scores import Interval, Score, area, r_squared
from research.attacks.transfer import (
    curvature_from_steps,
    labels_by_fitting,
    layers,
    similarity,
    solve_block,
)
from research.attacks.views import plain_values
from securefed.assembly import TransferAssembly
from securefed.assembly.base import TrainingRows
from securefed.crypto.blind.interface import Product
from securefed.crypto.shares import size_in_bytes
from securefed.models import LinearModel
from securefed.protocols.agreement import Member
from securefed.protocols.blind.linear import BlindParty
from securefed.protocols.blind.statistics import feature_bits
from securefed.protocols.loop import PartyContext
from securefed.protocols.messages import KINDS
from securefed.protocols.schedules import FedBCD
from securefed.settings import TransferSettings
from securefed.transport.link import run_local
from securefed.transport.message import Message, get_network
from tests.audit.fate_style import PerSample

Array = NDArray[np.float64]
FEW_ROWS = 12
"""Fewer than A has outputs."""


def row_gradients(scene: TransferScene, variant: str) -> Array:
    """The gradient by B's hidden representation, row by row, as well as B can know it after training."""
    view, n = scene.views["B"], scene.rows
    hidden = scene.hidden[-1]
    if variant == PLAIN:
        block = plain_values(view.of("contribution")[-1])
        return block[:n] + hidden @ block[n:] / float(np.sqrt(n))
    last = view.in_round(view.opened[-1].round)
    if variant == SINGLE:
        return last[0].sums
    answer = solve_block(last)
    return answer.rows + hidden @ answer.square / float(np.sqrt(n))


def own_guess(scene: TransferScene) -> float:
    """What B's own representation says about the labels: its main direction, by either sign."""
    hidden = scene.hidden[-1] - scene.hidden[-1].mean(axis=0)
    found = area(hidden @ np.linalg.svd(hidden, full_matrices=False)[2][0], scene.labels > 0)
    return max(found, 1 - found)


def transfer_label_scores(scene: TransferScene, variant: str) -> Iterator[Score]:
    labels, design = scene.labels, own_guess(scene)
    gradients = row_gradients(scene, variant)
    norms, chance = either_sign(norm_scores(gradients), labels)
    yield Score.of("labels from gradient norms", "B", variant, "AUC", norms, chance, design)
    known = int(np.flatnonzero(labels > 0)[0])
    others = np.arange(len(labels)) != known
    directions = label_area(direction_scores(gradients, known)[others], labels[others])
    yield Score.of("labels from gradient directions", "B", variant, "AUC", directions, 0.5, design,
                   "one label known")  # fmt: skip
    name = "labels over the rounds, transfer"
    if variant in (PAILLIER, CKKS):
        yield fitted_labels(scene, variant, name)
        return
    interval, chance = either_sign(direction_scores(gradients, known), labels)
    yield Score.of(name, "B", variant, "AUC", interval, chance, design, "directions suffice")


def fitted_labels(scene: TransferScene, variant: str, name: str) -> Score:
    """B fits the labels and every round's Phi to all its openings."""
    side = scene.sides["B"]
    openings = layers(scene.views["B"].opened, side.model, side.features[: scene.rows])
    answer = labels_by_fitting(openings, scene.rows, restarts=1, iterations=40)
    interval, chance = either_sign(answer.values, scene.labels)
    advisory = next(e for e in scene.ledger if e.advisory)
    note = (
        f"{scene.rows} shared rows; ledger, labels over all rounds: {advisory.ratio:.1f} ({advisory.verdict})"
    )
    return Score.of(name, "B", variant, "AUC", interval, chance, own_guess(scene), note)


def hidden_score(scene: TransferScene, variant: str) -> Score:
    """A rebuilds B's hidden representation from one exchange."""
    view, n, truth = scene.views["A"], scene.rows, scene.hidden[0]
    ratio = max((e.ratio for e in scene.ledger if e.party == "A" and not e.advisory), default=0.0)
    note = f"ledger ratio {ratio:.2f}"
    if variant == PLAIN:
        found, note = plain_values(view.of("contribution")[0])[:n], "sent as it is"
    elif variant == SINGLE:
        sums, side = view.opened[0].sums, scene.sides["A"]
        found = (sums[n] * side._y[:, None] - sums[:n]) / (2.0 * side.gamma)
    else:
        found = solve_block(view.in_round(0), prior=0.5).rows
    return Score.of("hidden representations", "A", variant, "R2", r_squared(found, truth), 0.0, None, note)


def square_score(scene: TransferScene, variant: str, steps: int) -> Score:
    """B finds Phi Phi' from Q local steps of one exchange."""
    view, n = scene.views["B"], scene.rows
    width = scene.squares[0].shape[0]
    found, guesses = [], []
    for number, truth in enumerate(scene.squares):
        own = scene.hidden[number] - scene.hidden[number].mean(axis=0)
        main = np.linalg.svd(own, full_matrices=False)[2][0]
        guesses.append(similarity(np.outer(main, main), truth))
        if variant == PLAIN:
            guess = plain_values(view.of("contribution")[number])[n:]
        elif variant == SINGLE:
            opened = view.in_round(number)
            hidden = [_hidden_at(scene, opening.parameters) for opening in opened]
            guess = curvature_from_steps(hidden, [opening.sums for opening in opened])
        else:
            guess = solve_block(view.in_round(number)).square
        found.append(similarity((guess + guess.T) / 2, truth))
    low, high = np.quantile(
        [np.mean(np.random.default_rng(i).choice(found, len(found))) for i in range(400)], [0.025, 0.975]
    )
    interval = Interval(float(np.mean(found)), float(low), float(high))
    return _square(interval, variant, steps, width, float(np.mean(guesses)))


def _square(interval: Interval, variant: str, steps: int, width: int, design: float | None) -> Score:
    name, note = f"Phi Phi', Q = {steps}", "chance: the identity"
    return Score.of(name, "B", variant, "cosine", interval, 1 / np.sqrt(width), design, note)


def _hidden_at(scene: TransferScene, parameters: Array) -> Array:
    model = scene.sides["B"].model
    kept = model.parameters
    model.parameters = parameters
    hidden = model.forward(scene.sides["B"].features[: scene.rows])
    model.parameters = kept
    return hidden


def blind_scores(size: Size, seed: int) -> Iterator[Score]:
    """Attack the pass of blind transfer learning, and one that is neither encrypted nor masked.

    B takes the bytes of A's encrypted targets for numbers. A takes its share of the products of its targets
    and B's columns, which it reads from the reply, for the products themselves. It has more outputs than rows
    there, so the products would do.
    """
    for variant in (PLAIN, BLIND):
        with unmasked() if variant == PLAIN else nullcontext():
            many = _blind_pass(size.shared, size.blind_rounds, variant, seed, outputs=1)
            few = _blind_pass(FEW_ROWS, size.blind_rounds, variant, seed, outputs=2 * FEW_ROWS)
        note = "nothing is opened; the bytes of ciphertexts"
        targets = numbers_of(many.operand, many.product.inner * many.product.left)
        targets = targets.reshape(many.product.inner, -1)[:, -1]
        note = "the product without encryption" if variant == PLAIN else note
        found = label_area(targets, many.labels)
        yield Score.of("labels, blind transfer", "B", variant, "AUC", found, 0.5, None, note)
        left, right = few.product.left, few.product.right
        read = numbers_of(few.reply[-size_in_bytes(left * right) :], left * right).reshape(left, right)
        built = columns_from_cross(few.own, read * 2.0 ** -feature_bits(FEW_ROWS))
        note = "the reply without a mask" if variant == PLAIN else "the reply as it came"
        found = r_squared(built, few.truth)
        yield Score.of("columns, blind transfer", "A", variant, "R2", found, 0.0, None, note)


@dataclass(frozen=True)
class _Pass:
    """What the two parties get of each other in the pass, and the truth."""

    operand: bytes
    reply: bytes
    product: Product
    labels: Array
    own: Array
    """What A encrypted."""
    truth: Array
    """What B multiplied it by."""


def _blind_pass(rows: int, rounds: int, variant: str, seed: int, outputs: int) -> _Pass:
    joined, labels = generated(rows + 20, 30, seed)
    if outputs > 1:
        labels = np.where(np.random.default_rng(seed).random((rows + 20, outputs)) > 0.5, 1.0, -1.0)
    assembly = TransferAssembly(TransferSettings(algorithm=FedBCD(2), rounds=rounds))
    members = (Member("B", 15, True), Member("A", 1, True))
    agreement = assembly.agreement(members, rows, outputs)
    shared, labelled = np.arange(rows), np.ones(rows, dtype=bool)
    if variant == PLAIN:
        assembly = TransferAssembly(assembly.settings, CLEAR)
    programs, tables = dict[str, BlindParty](), {"B": (joined[:, 15:], None), "A": (joined[:, :15], labels)}
    for name, (columns, known) in tables.items():
        data = TrainingRows(columns, known, shared, labelled)
        party = assembly.program(agreement, name, LinearModel(1), data, PartyContext())
        if isinstance(party, BlindParty):
            programs[name] = party
    seen: dict[str, bytes] = {}

    def tap(message: Message) -> Message:
        seen.setdefault(message.kind, message.payload)
        return message

    run_local(
        {name: program.run for name, program in programs.items()},
        run="attacked",
        kinds=KINDS,
        network=get_network("lan"),
        tap=tap,
    )
    a, b = programs["A"]._own, programs["B"]._own
    if a is None or b is None:
        raise TypeError("a party without columns")
    product = programs["A"]._plan.product("A", "B", 0)
    own, truth = (
        np.asarray(each(0, rows), np.float64) for each in (a.left(programs["A"]._plan, 0), b.right(0))
    )
    return _Pass(
        seen["operand"], seen["reply"], product, labels[:rows], own, truth * 2.0 ** -feature_bits(rows)
    )


def transfer_scores(keys: Keys, size: Size, seed: int) -> Iterator[Score]:
    steps = 2
    make = partial(
        transfer_scene, keys=keys, rows=size.shared, width=size.width, local_steps=steps, seed=seed
    )
    runs = {
        variant: partial(make, scheme, rounds=size.transfer_rounds) for variant, scheme in SCHEMES.items()
    }
    runs[SINGLE] = partial(make, "paillier", rounds=2, wrap=PerSample)
    for variant, record in runs.items():
        scene = record()
        yield from transfer_label_scores(scene, variant)
        yield hidden_score(scene, variant)
        yield square_score(scene, variant, steps)
    many = partial(transfer_scene, "ckks", keys, width=size.width, rounds=size.transfer_rounds, seed=seed)
    name = "labels over the rounds, transfer, 5 times the rows"
    yield fitted_labels(many(rows=5 * size.shared, local_steps=steps), CKKS, name)
    yield from blind_scores(size, seed)
