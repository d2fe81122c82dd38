"""Federated transfer learning, two parties (securefed.protocols.transfer has the objective).

bank = Party("bank", X_bank, labels=y, ids=...)       # A: labels for some of its rows
shop = Party("shop", X_shop, ids=...)                 # B: no labels; shares some people with A
model = TransferLearner(hidden=32, scheme="ckks").fit([shop, bank])
model.decision_function(Party("shop", X_new))         # scores of B's people, learnt by A alone
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path as FilePath
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import KeyHolder
from securefed.errors import DataError
from securefed.estimators.common import (
    Federated,
    accuracy,
    auc,
    binary_labels,
    check_columns,
    check_free,
    check_parties,
    fitted_arrays,
    guard_arrays,
    read_shards,
    take_fitted,
    take_guards,
    write_shard,
)
from securefed.models import HiddenLayer
from securefed.party import Party, align, label_party
from securefed.protocols.agreement import Agreement
from securefed.protocols.prediction_run import predict_programs
from securefed.protocols.recipe import Surroundings
from securefed.protocols.schedules import Algorithm, FedBCD, LearningRate
from securefed.protocols.training import Evaluation
from securefed.protocols.transfer_recipe import TransferRecipe
from securefed.protocols.trust import warn_of_trust
from securefed.result import RunResult

__all__ = ["TransferLearner"]

Array = NDArray[np.float64]


class TransferLearner(Federated):
    """Transfer learning from a party with labels to one without, over the people they share.

    Parameters
    ----------
    hidden: width h of both parties' hidden layer; activation: "sigmoid", "tanh" or "relu".
    gamma: weight of the squared distance between the two representations of a shared person.
    activation_bound: the largest |u| that relu may reach, a public bound.
    evaluate_every: every so many rounds A sees the scores of the evaluation rows (0: never).
    allow_determined: open gradients even where the ledger says that they determine the other's secrets.
    The rest as in GeneralisedLinear.
    """

    def __init__(
        self,
        hidden: int = 32,
        algorithm: Algorithm = FedBCD(local_steps=5),  # noqa: B008  # a frozen value
        scheme: str = "ckks",
        *,
        activation: str = "sigmoid",
        gamma: float = 0.05 / 32,
        l2: float = 1e-5,
        learning_rate: str | float | LearningRate = "auto",
        optimiser: Any = "adam",
        batch_size: int | None = None,
        fixed_batches: bool = False,
        rounds: int = 30,
        target: float | None = None,
        patience: int | None = None,
        evaluate_every: int | None = None,
        score_precision: int = 10,
        score_ledger: str = "refuse",
        activation_bound: float = 64.0,
        allow_determined: bool = False,
        standardise: bool = True,
        key_bits: int = 3072,
        network: Any = "lan",
        engine: Any = None,
        seed: int = 0,
        progress: bool | None = None,
    ) -> None:
        self.hidden = hidden
        self.algorithm = algorithm
        self.scheme = scheme
        self.activation = activation
        self.gamma = gamma
        self.l2 = l2
        self.learning_rate = learning_rate
        self.optimiser = optimiser
        self.batch_size = batch_size
        self.fixed_batches = fixed_batches
        self.rounds = rounds
        self.target = target
        self.patience = patience
        self.evaluate_every = evaluate_every
        self.score_precision = score_precision
        self.score_ledger = score_ledger
        self.activation_bound = activation_bound
        self.allow_determined = allow_determined
        self.standardise = standardise
        self.key_bits = key_bits
        self.network = network
        self.engine = engine
        self.seed = seed
        self.progress = progress

    def _recipe(self) -> TransferRecipe:
        simulation = {"standardise", "key_bits", "network", "engine", "progress", "score_ledger"}
        return TransferRecipe(**{k: v for k, v in self.get_params(deep=False).items() if k not in simulation})

    def fit(
        self,
        parties: Sequence[Party],
        *,
        validation: Sequence[Party] | None = None,
        keys: Mapping[str, KeyHolder] | None = None,
    ) -> Self:
        """Train on the shared people.

        `validation`: B's rows and A's labels for them; without it, the shared labelled people.
        """
        recipe = self._recipe()
        self._check_simulation()
        a, b = self._pair(parties)
        given = {party.name: party for party in (a, b)}
        self.transforms_ = {}
        a, self.transforms_[a.name] = a.fitted(standardise=self.standardise)
        b, self.transforms_[b.name] = b.fitted(standardise=self.standardise)
        signs, self.classes_ = binary_labels(_labels(a), a.name, allow_missing=True)
        rows_a, rows_b = _overlap(a, b)
        labelled = ~np.isnan(signs[rows_a])
        if not labelled.any():
            raise DataError(f"{a.name}: none of the {len(rows_a)} people shared with {b.name} has a label")
        layers = {p.name: recipe.layer(p.features.shape[1], index) for index, p in enumerate((b, a))}
        sides = {
            b.name: recipe.side(layers[b.name], b.features, rows_b, labelled, None),
            a.name: recipe.side(layers[a.name], a.features, rows_a, labelled, signs),
        }
        members = tuple(recipe.member(name, layer) for name, layer in layers.items())
        agreement = recipe.agreement(members, len(rows_a))
        warn_of_trust(agreement.scheme, agreement.reveal)
        holders, guards = self._keys(agreement, keys), self._guards(agreement, given)
        evaluations = self._evaluations(agreement, a, b, signs, rows_a, rows_b, validation)
        with self._mapper() as mapper, self._bar(agreement) as on_round:
            programs = {
                name: recipe.party(
                    agreement,
                    side,
                    Surroundings(
                        holders[name],
                        mapper,
                        evaluations.get(name),
                        on_round if name == a.name else None,
                        guards.get(name),
                    ),
                ).run
                for name, side in sides.items()
            }
            run = self._run(programs)
        self.result_ = RunResult.of(agreement, run)
        self.parties_ = list(agreement.names)
        self.shards_: dict[str, HiddenLayer] = layers
        self._phi = sides[a.name].phi()  # A's, kept with A's shard
        self._sealed: dict[bytes, bytes] = {}
        self._holders = holders
        return self

    def _pair(self, parties: Sequence[Party]) -> tuple[Party, Party]:
        listed = check_parties(parties)
        if len(listed) != 2:
            raise DataError(f"parties: {len(listed)} given, transfer learning takes 2")
        a = label_party(listed)
        (b,) = (party for party in listed if party is not a)
        return a, b

    def _evaluations(
        self,
        agreement: Agreement,
        a: Party,
        b: Party,
        signs: Array,
        rows_a: NDArray[np.intp],
        rows_b: NDArray[np.intp],
        validation: Sequence[Party] | None,
    ) -> dict[str, Evaluation]:
        if not agreement.evaluate_every:
            return {}
        if validation is None:
            self._know([b])
            known = ~np.isnan(signs[rows_a])
            return {
                a.name: Evaluation(None, auc(signs[rows_a][known])),
                b.name: Evaluation(b.features[rows_b][known]),
            }
        other_a, other_b = self._pair(validation)
        if (other_a.name, other_b.name) != (a.name, b.name):
            raise DataError(
                f"validation: {other_a.name} and {other_b.name} given, {a.name} and {b.name} expected"
            )
        other_a, other_b = align([other_a, other_b], other_a.name)
        other_b = self._transformed(other_b)
        check_columns(other_b, b.features.shape[1])
        self._know([other_b])
        other_signs, _ = binary_labels(_labels(other_a), a.name, allow_missing=False, classes=self.classes_)
        return {a.name: Evaluation(None, auc(other_signs)), b.name: Evaluation(other_b.features)}

    def decision_function(self, party: Party | Sequence[Party]) -> Array:
        """Scores of B's rows, by an encrypted run; A learns these scores and nobody else anything."""
        self._fitted()
        b_name, a_name = self.parties_
        given = [party] if isinstance(party, Party) else check_parties(party)
        found = [p for p in given if p.name == b_name]
        if len(found) != 1:
            raise DataError(f"parties: {', '.join(p.name for p in given)} given, rows of {b_name} are needed")
        rows = self._transformed(found[0])
        check_columns(rows, self.shards_[b_name].columns)
        recipe = replace(self._recipe(), batch_size=None, target=None, patience=None)
        phis = {a_name: self._phi, b_name: None}
        scorers = {
            name: recipe.scorer(self.shards_[name], phis[name], self._sealed) for name in self.parties_
        }
        members = tuple(recipe.member(name, self.shards_[name]) for name in self.parties_)
        agreement = recipe.agreement(members, 1)
        self._holders = self._keys(agreement, getattr(self, "_holders", None))
        with self._mapper() as mapper:
            features, guards = {b_name: rows.features}, self._guards(agreement)
            self._know([rows])
            run = self._run(predict_programs(agreement, scorers, features, self._holders, mapper, guards))
        scores: Array = run.outcomes[a_name]
        return scores

    def predict_proba(self, party: Party | Sequence[Party]) -> Array:
        """Probabilities of the two classes: the logistic function of the score."""
        positive = 1.0 / (1.0 + np.exp(-self.decision_function(party)))
        return np.column_stack([1.0 - positive, positive])

    def predict(self, party: Party | Sequence[Party]) -> NDArray[Any]:
        """Classes of B's rows."""
        self._fitted()
        classes: NDArray[Any] = self.classes_[(self.decision_function(party) > 0).astype(int)]
        return classes

    def score(self, parties: Sequence[Party]) -> float:
        """Accuracy on people of B whose labels A knows."""
        self._fitted()
        a, b = self._pair(parties)
        a, b = align([a, b], a.name)
        return accuracy(_labels(a), self.predict(b), a.name)

    def save(self, folder: str | PathLike[str]) -> None:
        """One file a party, with its own parameters only (Phi is A's), and what all know."""
        self._fitted()
        public = {
            "estimator": "transfer",
            "parties": self.parties_,
            "hidden": self.hidden,
            "activation": self.activation,
            "activation_bound": self.activation_bound,
            "classes": self.classes_.tolist(),
        }
        for name, layer in self.shards_.items():
            arrays = {**layer.to_arrays(), "public": np.array(json.dumps(public))}
            arrays |= guard_arrays(getattr(self, "score_guards_", {}).get(name))
            arrays |= fitted_arrays(self.transforms_.get(name))
            if name == self.parties_[1]:
                arrays["phi"] = self._phi
            write_shard(FilePath(folder), name, arrays)

    @classmethod
    def load(
        cls,
        folder: str | PathLike[str],
        *,
        transforms: Mapping[str, Any] | None = None,
        **parameters: Any,
    ) -> Self:
        """The estimator with the shards that `save` wrote; `parameters` as for the constructor.

        `transforms`: transformers of the parties' own, fitted, by party.
        """
        public, shards = read_shards(
            folder, "transfer", ("hidden", "activation", "activation_bound", "classes")
        )
        fixed = {name: public[name] for name in ("hidden", "activation", "activation_bound")}
        check_free(parameters, fixed)
        self = cls(**fixed, **parameters)
        self.parties_ = public["parties"]
        self.classes_ = np.array(public["classes"])
        self.score_guards_ = take_guards(shards)
        self._sealed = {}
        self.transforms_ = take_fitted(shards, transforms)
        self._phi = as_phi(shards[self.parties_[1]], public["hidden"])
        self.shards_ = {name: HiddenLayer.from_arrays(shards[name]) for name in self.parties_}
        return self


def as_phi(arrays: Mapping[str, NDArray[np.generic]], width: int) -> Array:
    phi = np.asarray(arrays.get("phi", np.zeros(0)), dtype=np.float64)
    if phi.shape != (width,) or not np.isfinite(phi).all():
        raise DataError(f"shard: Phi has shape {phi.shape}, ({width},) of finite numbers is allowed")
    return phi


def _labels(party: Party) -> NDArray[Any]:
    if party.labels is None:
        raise DataError(f"{party.name}: no labels")
    return party.labels


def _overlap(a: Party, b: Party) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Row numbers of the shared people at A and at B, in A's order."""
    if a.ids is None and b.ids is None:
        if a.rows != b.rows:
            raise DataError(
                f"ids: {a.name} has {a.rows} rows and {b.name} {b.rows}; pass ids to say who is shared"
            )
        return np.arange(a.rows), np.arange(a.rows)
    numbered = [
        Party(p.name, np.arange(p.rows, dtype=np.float64), ids=p.ids) if p.ids is not None else p
        for p in (a, b)
    ]
    both = align(numbered, a.name)
    rows_a, rows_b = (party.features[:, 0].astype(np.intp) for party in both)
    return rows_a, rows_b
