"""The attack on scores: columns of 100 levels from what the label party is given in predictions.

Plain: one prediction by one model. Ours: the same people scored by one retrained model after the other, for
as long as the other party's score ledger answers.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.attack_variants import BLIND, CKKS, PAILLIER, PLAIN
from research.attacks.columns import columns_from_scores, in_units_of_noise
from research.attacks.scores import Score, proportion
from securefed import GeneralisedLinear, OwnGradient, Party, Plain, Simulation
from securefed.models import LocalModel
from securefed.protocols.blind.scoring import ModelPart
from securefed.protocols.own_gradient.ledger import LedgerWarning
from securefed.protocols.scoring.score_ledger import ScoreRefusal

Array = NDArray[np.float64]
PEOPLE, COLUMNS, LEVELS, MODELS = 48, 3, 100, 6
EXACT_BITS = 40
"""What a float says of a plain score."""
NAME = "columns of 100 levels, from scores"


class Levels:
    """48 people; three columns at p0, one at the label party p1."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.theirs = rng.integers(0, LEVELS, size=(PEOPLE, COLUMNS))
        self.own = rng.integers(0, LEVELS, size=(PEOPLE, 1))
        self.features = {"p0": _standardised(self.theirs), "p1": _standardised(self.own)}
        margin = self.features["p0"].sum(axis=1) + rng.logistic(size=PEOPLE)
        self.labels = (margin > 0).astype(int)

    def parties(self, *, labelled: bool) -> list[Party]:
        labels = self.labels if labelled else None
        return [Party("p0", self.features["p0"]), Party("p1", self.features["p1"], labels=labels)]

    def attacked(self, variant: str, scores: list[Array], precision: int, note: str) -> Score:
        known = [[1] * PEOPLE, self.own[:, 0].tolist()]
        found = columns_from_scores(in_units_of_noise(scores, precision), COLUMNS, known=known)
        right, asked = found.true_relations(self.theirs), len(found.relations)
        return Score.of(NAME, "label party", variant, "share of relations", proportion(right, asked), 0.0,
                        None, f"{len(scores)} scorings of {PEOPLE} people; {note}")  # fmt: skip


def _standardised(levels: NDArray[np.int64]) -> Array:
    return np.asarray((levels - levels.mean(axis=0)) / levels.std(axis=0))


def _until_refused(score: Callable[[int], Array]) -> tuple[list[Array], str]:
    given: list[Array] = []
    try:
        for number in range(MODELS):
            given.append(score(number))
    except ScoreRefusal:
        return given, f"refused for the model after them, {MODELS} were to come"
    return given, "none refused"


def score_attacks(seed: int) -> Iterator[Score]:
    data = Levels(seed)
    common: dict[str, Any] = {"holdout": 0, "simulation": Simulation(engine="serial")}
    plain = GeneralisedLinear(
        protection=Plain(batch_size=24, allow_determined=True), rounds=3, refit=False, **common
    )
    trained = []
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore", LedgerWarning)
        for number in range(MODELS):
            plain.set_params(seed=seed + number).fit(data.parties(labelled=True))
            trained.append({name: model.parameters for name, model in _open(plain).items()})
        exact = plain.decision_function(data.parties(labelled=False))
        yield data.attacked(PLAIN, [exact], EXACT_BITS, "one prediction")
        plain.save(folder)
        for variant, scheme in ((PAILLIER, "paillier"), (CKKS, "ckks")):
            protection = OwnGradient(scheme=scheme, key_bits=2048)
            serial = Simulation(engine="serial")
            model = GeneralisedLinear.load(folder, protection=protection, simulation=serial)

            def score(number: int, model: GeneralisedLinear = model) -> Array:
                for name, part in _open(model).items():
                    part.parameters = trained[number][name]
                return np.asarray(model.decision_function(data.parties(labelled=False)))

            given, note = _until_refused(score)
            yield data.attacked(variant, given, protection.score_precision, note)
        blind = GeneralisedLinear(rounds=2, holdout=0, simulation=Simulation(engine="serial"))

        def retrained(number: int) -> Array:
            blind.set_params(seed=seed + number)
            before = getattr(blind, "score_guards_", None)
            blind.fit(data.parties(labelled=True))
            blind.score_guards_ = before or blind.score_guards_  # a party's ledger outlives a model
            return np.asarray(blind.decision_function(data.parties(labelled=False)))

        given, note = _until_refused(retrained)
        yield data.attacked(BLIND, given, blind.protection.score_precision, note)


def _open(model: GeneralisedLinear) -> dict[str, LocalModel]:
    """The parts of a model whose parameters are in the clear."""
    return {name: part for name, part in model.shards_.items() if not isinstance(part, ModelPart)}
