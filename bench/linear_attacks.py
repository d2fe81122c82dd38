"""Attacks on recorded runs of the generalised linear objective: labels, features, membership, data sets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from bench.attack_variants import BLIND, PLAIN, SCHEMES, SINGLE, Size, label_area
from bench.scenes import Keys, LinearScene, blind_scene, linear_scene
from research.attacks import clear
from research.attacks.blind import columns_from_cross, numbers_of
from research.attacks.clear import CLEAR
from research.attacks.first_exchange import labels_by_lattice
from research.attacks.linear import (
    exposed_rows,
    features_from_span,
    labels_over_rounds,
    membership_scores,
    solve,
    solve_residuals,
)
from research.attacks.scores import Score, area, area_under_curve, proportion, r_squared
from research.attacks.transcripts import matching_data_sets, without_rerandomisation
from research.attacks.views import plain_values
from securefed.crypto import shares
from securefed.crypto.shares import size_in_bytes
from securefed.protocols.blind.statistics import PRODUCT_BITS
from securefed.protocols.losses import get_loss

Array = NDArray[np.float64]
GUESSES = 8
LABEL_WEIGHT = get_loss("logistic").label_weight


def one_exchange(scene: LinearScene, variant: str, name: str) -> Score:
    """p0 solves each opened gradient for the residuals of its batch."""
    found, labels, solved, total = [], [], 0, 0
    own = scene.features["p0"] @ scene.parameters["p0"]
    messages = iter(scene.views["p0"].of("contribution"))
    for opening in scene.views["p0"].opened:
        message = next(messages)
        if variant == PLAIN:
            values, determined = plain_values(message), np.ones(len(opening.batch), dtype=bool)
        else:
            answer = solve_residuals(opening)
            values, determined = answer.values, answer.determined
        found.append(values)
        labels.append(scene.labels[opening.batch])
        solved, total = solved + int(determined.sum()), total + len(determined)
    truth = np.concatenate(labels)
    design = area(own, scene.labels > 0)
    ratio = max((e.ratio for e in scene.ledger if not e.advisory and e.party == "p0"), default=0.0)
    note = f"ledger ratio {ratio:.2f}; {solved} of {total} residuals determined"
    interval = label_area(-np.concatenate(found), truth)
    return Score.of(name, "column holder", variant, "AUC", interval, 0.5, design, note)


def first_exchange(scene: LinearScene, variant: str, name: str) -> Score:
    """p0 solves the first opened gradient for labels of -1 and +1: all models start at 0."""
    opening = scene.views["p0"].opened[0]
    truth = scene.labels[opening.batch]
    if variant == PLAIN:
        found: Array | None = -plain_values(scene.views["p0"].of("contribution")[0])
    else:
        found = labels_by_lattice(opening, LABEL_WEIGHT)
    own = scene.features["p0"] @ scene.parameters["p0"]
    ratio = max((e.ratio for e in scene.ledger if not e.advisory and e.party == "p0"), default=0.0)
    note = f"ledger ratio {ratio:.2f}" + ("; no solution found" if found is None else "")
    interval = label_area(np.zeros(len(truth)) if found is None else found, truth)
    design = area(own, scene.labels > 0)
    return Score.of(name, "column holder", variant, "AUC", interval, 0.5, design, note)


def over_rounds(scene: LinearScene, variant: str, name: str) -> Score:
    """p0 takes all opened gradients together."""
    view, labels = scene.views["p0"], scene.labels
    own = scene.features["p0"] @ scene.parameters["p0"]
    note = ""
    if variant == PLAIN:
        scores = np.zeros(len(labels))
        for opening, message in zip(view.opened, view.of("contribution"), strict=True):
            scores[opening.batch] -= plain_values(message)
    else:
        scores = labels_over_rounds(view.opened, len(labels), LABEL_WEIGHT)
        advisory = next(e for e in scene.ledger if e.advisory)
        note = f"ledger, labels over all rounds: {advisory.ratio:.2f} ({advisory.verdict})"
    design = area(own, labels > 0)
    return Score.of(name, "column holder", variant, "AUC", label_area(scores, labels), 0.5, design, note)


def blind_labels(scene: LinearScene, variant: str, name: str) -> Score:
    """All that p0 has of the labels in blind training: the encrypted (Z | y), taken for numbers."""
    operand, width = scene.views["p0"].of("operand")[0], scene.features["p1"].shape[1] + 1
    rows = len(scene.labels)
    told = numbers_of(operand.payload, rows * width).reshape(rows, width)[:, -1]
    note = "nothing is opened; the bytes of ciphertexts"
    if variant == PLAIN:
        note = "the product without encryption"
    return Score.of(name, "column holder", variant, "AUC", label_area(told, scene.labels), 0.5, None, note)


def _columns_of(scene: LinearScene, name: str) -> Array:
    """Return Z of a party."""
    own: Any = scene.parties[name]._own
    product: Array = own._features @ own.root
    return product


def blind_columns(scene: LinearScene, variant: str, name: str) -> Score:
    """p1 takes its share of Z_1'Z_0, which it reads from the reply, for the product itself."""
    message = scene.views["p1"].of("reply")[0]
    own, truth = _columns_of(scene, "p1"), _columns_of(scene, "p0")
    plan = scene.parties["p1"]._plan
    product = plan.product("p1", "p0", 0)
    read = numbers_of(
        message.payload[-size_in_bytes(product.left * product.right) :], product.left * product.right
    )
    cross = read.reshape(product.left, product.right)[:-1] * 2.0**-PRODUCT_BITS
    mine = own * (plan.margin_weight / plan.rows)
    interval = r_squared(columns_from_cross(mine, cross), truth)
    note = "the reply without a mask" if variant == PLAIN else "the reply as it came"
    return Score.of(name, "label party", variant, "R2", interval, 0.0, None, note)


def reconstruction(scene: LinearScene, variant: str) -> Score:
    """p1 rebuilds p0's columns from what p0 sent over the rounds and a few rows that it knows."""
    truth, columns = scene.features["p0"], scene.features["p0"].shape[1]
    if variant == BLIND:
        sent = [numbers_of(m.payload, len(truth)) for m in scene.views["p1"].of("reply")]
        sent = [(each - each.mean()) / (each.std() or 1.0) for each in sent]
    else:
        sent = [plain_values(message).ravel() for message in scene.views["p1"].of("contribution")]
    known = np.arange(columns + 4)
    built = features_from_span(np.column_stack(sent), truth[known], known, columns)
    rest = np.setdiff1d(np.arange(len(truth)), known)
    interval = r_squared(built[rest], truth[rest])
    note = f"{len(sent)} rounds, {len(known)} rows known"
    return Score.of("features, a few rows known", "label party", variant, "R2", interval, 0.0, None, note)


def membership(scheme: str, variant: str, keys: Keys, size: Size, seed: int) -> Score:
    """Whoever opens sees gradients (plain) or masked ones, and knows people's features."""
    rows, columns = 24, 20
    scores, inside = [], []
    for place in range(max(2, size.trials // 8)):
        scene = linear_scene(
            scheme, keys, rows=rows, batch=None, rounds=4, columns=(columns, 4), seed=seed + 10 + place
        )
        outsiders = np.random.default_rng(seed + 1000 + place).normal(size=(rows, columns))
        candidates = np.vstack([scene.features["p0"], outsiders])
        gradients = [plain_values(m).ravel()[:columns] for m in scene.views["p1"].of("opening-request")]
        scores.append(membership_scores(candidates, gradients))
        inside.append(np.arange(2 * rows) < rows)
    interval = area_under_curve(np.concatenate(scores), np.concatenate(inside))
    note = f"{rows} members and {rows} others, {len(scores)} times"
    return Score.of("membership in the batch", "key-holder", variant, "AUC", interval, 0.5, None, note)


def singled_out(scheme: str, variant: str, keys: Keys, size: Size, seed: int) -> Score:
    """p0 has a category with one person in it: the gradient by that column is that person's residual."""

    def with_rare(features: Array) -> Array:
        rare = np.zeros((len(features), 6))
        rare[np.arange(6), np.arange(6)] = 1.0
        return np.column_stack([features[:, :4], rare])

    right, trials = 0, 0
    for place in range(max(4, size.trials // 8)):
        number = seed + 100 + place
        scene = linear_scene(
            scheme, keys, rows=size.batch, batch=None, rounds=1, seed=number, shape=with_rare
        )
        (opening,) = scene.views["p0"].opened
        rows = exposed_rows(scene.features["p0"][opening.batch])
        residuals = solve(opening.multipliers[0], opening.sums).values[rows]
        right += int((np.sign(-residuals) == scene.labels[opening.batch][rows]).sum())
        trials += len(rows)
    ratio = max(e.ratio for e in scene.ledger if e.party == "p0" and not e.advisory)
    note = f"ledger ratio {ratio:.2f}: it counts equations, not whom they single out"
    guess = 0.75  # three quarters of the labels are negative
    interval = proportion(right, trials)
    return Score.of("labels of people alone in a category", "column holder", variant, "share right", interval,
                    guess, None, note)  # fmt: skip


def data_sets(scheme: str, variant: str, keys: Keys, size: Size, seed: int) -> Score:
    """The key-holder tries which of eight data sets the requester computed with."""
    batch = size.batch // 2
    make = partial(linear_scene, scheme, keys, rows=4 * batch, batch=batch, columns=(4, 4), seed=seed)
    if variant == SINGLE:
        with without_rerandomisation():
            scene = make(rounds=size.trials)
    else:
        scene = make(rounds=size.trials)
    generator, holder = np.random.default_rng(seed), keys.holder(scheme, 1)
    view, right = scene.views["p1"], 0
    sent = [message for message in view.sent if message.kind == "contribution"]
    for opening, before, after in zip(
        scene.views["p0"].opened, sent, view.of("opening-request"), strict=True
    ):
        guesses = [generator.normal(size=opening.multipliers.shape) for _ in range(GUESSES)]
        truth = int(generator.integers(GUESSES))
        guesses[truth] = opening.multipliers
        fitting = matching_data_sets(holder, before, after, guesses)
        right += (fitting[0] if fitting else int(generator.integers(GUESSES))) == truth
    note = "the naive variant masks but does not re-randomise" if variant == SINGLE else ""
    interval = proportion(right, size.trials)
    return Score.of("which of 8 data sets, from ciphertexts", "key-holder", variant, "share right", interval,
                    1 / GUESSES, None, note)  # fmt: skip


def linear_scores(keys: Keys, size: Size, seed: int) -> Iterator[Score]:
    below, past = "labels from one exchange, below the line", "labels from one exchange, past the line"
    fresh, same = "labels over the rounds, new batches", "labels over the rounds, full batch"
    again, first = "labels over the rounds, fixed batches", "labels from the first exchange, below the line"
    for variant, scheme in SCHEMES.items():
        make = partial(linear_scene, scheme, keys, rows=size.rows, seed=seed)
        scene = make(batch=size.batch, rounds=size.rounds)
        yield one_exchange(scene, variant, below)
        yield first_exchange(scene, variant, first)
        yield over_rounds(scene, variant, fresh)
        yield over_rounds(make(batch=size.batch, rounds=size.rounds, fixed=True), variant, again)
        yield one_exchange(make(batch=8, rounds=size.rounds // 2), variant, past)
        whole = make(batch=None, rounds=size.full_rounds)
        yield over_rounds(whole, variant, same)
        yield reconstruction(whole, variant)
        yield membership(scheme, variant, keys, size, seed)
        yield singled_out(scheme, variant, keys, size, seed)
        yield data_sets(scheme, variant, keys, size, seed)
    yield data_sets("paillier", SINGLE, keys, size, seed)
    hidden = blind_scene(rows=size.rows, rounds=size.full_rounds, seed=seed)
    for name in (below, first, fresh, again, past, same):
        yield blind_labels(hidden, BLIND, name)
    yield reconstruction(hidden, BLIND)
    # Labels take many rows, or luck could not be told from success; columns take as many of p1's as rows.
    tall = partial(blind_scene, rows=size.rows, rounds=2, seed=seed)
    wide = partial(blind_scene, rows=16, rounds=2, seed=seed, columns=(6, 15))
    with unmasked():
        bare = tall(scheme=CLEAR), wide(scheme=CLEAR)
    for (rows, columns), variant in ((bare, PLAIN), ((tall(), wide()), BLIND)):
        yield blind_labels(rows, variant, "labels from the pass of a blind run")
        yield blind_columns(columns, variant, "columns from the pass of a blind run")


@contextmanager
def unmasked() -> Iterator[None]:
    """Naive: replies of the product in the clear, without their masks."""
    with patch.object(clear, "uniform", shares.zeros):
        yield
