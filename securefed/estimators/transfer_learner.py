"""Federated transfer learning, two parties (securefed.protocols.transfer has the objective).

bank = Party("bank", X_bank, labels=y, ids=...)       # A: labels for some of its rows
shop = Party("shop", X_shop, ids=...)                 # B: no labels; shares some people with A
model = TransferLearner().fit([shop, bank])           # nobody sees anything of the other's, nor of the model
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
from securefed.errors import DataError, SettingError
from securefed.estimators.common import (
    Federated,
    accuracy,
    all_or_nothing,
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
from securefed.protocols.agreement import Agreement, Member
from securefed.protocols.prediction_run import BlindShard, predict_programs
from securefed.protocols.recipe import Surroundings
from securefed.protocols.schedules import Algorithm, FedBCD, LearningRate
from securefed.protocols.scorers import Scorer
from securefed.protocols.training import Evaluation
from securefed.protocols.transfer_algebra import with_waves
from securefed.protocols.transfer_recipe import TransferRecipe
from securefed.protocols.trust import warn_of_trust
from securefed.result import RunResult

__all__ = ["TransferLearner"]

Array = NDArray[np.float64]


class TransferLearner(Federated):
    """Transfer learning from a party with labels to one without, over the people they share.

    Parameters
    ----------
    reveal: "nothing" (linear maps over features that each party fixes by itself; they stay hidden
        throughout), or "own-gradient" (the paper's hidden layers; each party sees its own gradients, and from
        them B finds A's labels). With scheme="plain" hidden layers are trained, and nothing is protected.
    hidden: width h of the representation (None: 1 where nothing is revealed, which loses nothing there; else
        32); activation: of hidden layers, "sigmoid", "tanh" or "relu".
    gamma: weight of the squared distance between the two representations of a shared person; l2: of the
        squared parameters; rounds. None: what suits `reveal` (securefed.protocols.transfer_recipe).
    activation_bound: the largest |u| that relu may reach; feature_bound: the largest feature of a blind run.
        Both are public.
    evaluate_every: every so many rounds A sees the scores of the evaluation rows (0: never).
    allow_determined: open gradients even where the ledger says that they determine the other's secrets.
    The rest as in GeneralisedLinear. Where nothing is revealed, a party without `transform` gets "auto":
    splines for numbers, one-hot for categories, fitted on all of its own rows; random features come on top.
    """

    def __init__(
        self,
        hidden: int | None = None,
        algorithm: Algorithm = FedBCD(local_steps=5),  # noqa: B008  # a frozen value
        scheme: str = "ckks",
        *,
        reveal: str = "nothing",
        activation: str = "sigmoid",
        gamma: float | None = None,
        l2: float | None = None,
        learning_rate: str | float | LearningRate = "auto",
        optimiser: Any = "adam",
        batch_size: int | None = None,
        fixed_batches: bool = False,
        rounds: int | None = None,
        target: float | None = None,
        patience: int | None = None,
        evaluate_every: int | None = None,
        score_precision: int = 10,
        score_ledger: str = "refuse",
        activation_bound: float = 64.0,
        feature_bound: float = 64.0,
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
        self.reveal = reveal
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
        self.feature_bound = feature_bound
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

    @all_or_nothing
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
        if recipe.blind:
            a, b = (party.with_transform("auto") if party.transform is None else party for party in (a, b))
        given = {party.name: party for party in (a, b)}
        self.transforms_ = {}
        a, self.transforms_[a.name] = a.fitted(standardise=self.standardise)
        b, self.transforms_[b.name] = b.fitted(standardise=self.standardise)
        if recipe.blind:
            a, b = self._waved(a), self._waved(b)
        signs, self.classes_ = binary_labels(_labels(a), a.name, allow_missing=True)
        rows_a, rows_b = _overlap(a, b)
        labelled = ~np.isnan(signs[rows_a])
        if not labelled.any():
            raise DataError(f"{a.name}: none of the {len(rows_a)} people shared with {b.name} has a label")
        layers = {p.name: recipe.layer(p.features.shape[1], index) for index, p in enumerate((b, a))}
        sizes = {p.name: p.features.shape[1] for p in (b, a)}
        members = tuple(
            recipe.blind_member(name, sizes[name]) if recipe.blind else recipe.member(name, layer)
            for name, layer in layers.items()
        )
        agreement = recipe.agreement(members, len(rows_a))
        warn_of_trust(agreement.scheme, agreement.reveal, agreement.objective)
        holders, guards = self._keys(agreement, keys), self._guards(agreement.names, given)
        evaluations = self._evaluations(agreement, a, b, signs, rows_a, rows_b, validation)
        with self._mapper() as mapper, self._bar(agreement) as on_round:
            around = {
                name: Surroundings(
                    holders[name],
                    mapper,
                    evaluations.get(name),
                    on_round if name == a.name else None,
                    guards.get(name),
                )
                for name in agreement.names
            }
            given_rows = ((b, rows_b, None), (a, rows_a, signs))
            if recipe.blind:
                blind = {
                    p.name: recipe.blind_party(agreement, p.features, rows, labelled, known, around[p.name])
                    for p, rows, known in given_rows
                }
                run = self._run({name: party.run for name, party in blind.items()})
            else:
                sides = {
                    p.name: recipe.side(layers[p.name], p.features, rows, labelled, known)
                    for p, rows, known in given_rows
                }
                run = self._run(
                    {name: recipe.party(agreement, side, around[name]).run for name, side in sides.items()}
                )
        self.result_ = RunResult.of(agreement, run)
        self.parties_ = list(agreement.names)
        self.shards_: dict[str, HiddenLayer | BlindShard]
        self._sealed: dict[bytes, bytes] = {}
        self._holders = holders
        if recipe.blind:
            self._phi: Array | None = None
            self.shards_ = {name: party.shard() for name, party in blind.items()}
        else:
            self._phi = sides[a.name].phi()  # A's, kept with A's shard
            self.shards_ = dict(layers)
        return self

    def _waved(self, party: Party) -> Party:
        """With random features of its columns on top."""
        return party.with_features(with_waves(party.features, self.transforms_[party.name].columns.straight))

    def _ready(self, party: Party) -> Party:
        """Other rows of B's as the model takes them."""
        ready = self._transformed(party)
        return self._waved(ready) if self._recipe().blind else ready

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
            return self._asked(a, b, b.features[rows_b][known], signs[rows_a][known])
        other_a, other_b = self._pair(validation)
        if (other_a.name, other_b.name) != (a.name, b.name):
            raise DataError(
                f"validation: {other_a.name} and {other_b.name} given, {a.name} and {b.name} expected"
            )
        other_a, other_b = align([other_a, other_b], other_a.name)
        other_b = self._ready(other_b)
        check_columns(other_b, b.features.shape[1])
        self._know([other_b])
        other_signs, _ = binary_labels(_labels(other_a), a.name, allow_missing=False, classes=self.classes_)
        return self._asked(a, b, other_b.features, other_signs)

    def _asked(self, a: Party, b: Party, features: Array, signs: Array) -> dict[str, Evaluation]:
        """B brings its columns, A the labels and the number of rows."""
        return {
            a.name: Evaluation(np.zeros((len(features), 1)), auc(signs)),
            b.name: Evaluation(features),
        }

    def decision_function(self, party: Party | Sequence[Party]) -> Array:
        """Scores of B's rows, by an encrypted run; A learns these scores and nobody else anything."""
        self._fitted()
        b_name, a_name = self.parties_
        given = [party] if isinstance(party, Party) else check_parties(party)
        found = [p for p in given if p.name == b_name]
        if len(found) != 1:
            raise DataError(f"parties: {', '.join(p.name for p in given)} given, rows of {b_name} are needed")
        rows = self._ready(found[0])
        recipe = replace(self._recipe(), batch_size=None, target=None, patience=None)
        parts: dict[str, Scorer | BlindShard] = {}
        features = {b_name: rows.features}
        for name, shard in self.shards_.items():
            if isinstance(shard, BlindShard):
                parts[name] = shard
                features[name] = recipe.scored(rows.features, label_party=name == a_name)
            else:
                parts[name] = recipe.scorer(shard, self._phi if name == a_name else None, self._sealed)
        check_columns(rows, self._columns)
        members = tuple(Member(name, 1, recipe.blind) for name in self.parties_)
        agreement = recipe.agreement(members, 1)
        self._holders = self._keys(agreement, getattr(self, "_holders", None))
        with self._mapper() as mapper:
            guards = self._guards(agreement.names)
            self._know([rows])
            run = self._run(predict_programs(agreement, parts, features, self._holders, mapper, guards))
        scores: Array = run.outcomes[a_name]
        return scores

    @property
    def _columns(self) -> int:
        """Of B's, as they are scored."""
        shard = self.shards_[self.parties_[0]]
        return shard.size - 1 if isinstance(shard, BlindShard) else shard.columns

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
        """One file a party, with its own part of the model only (Phi is A's), and what all know.

        Parts of a blind model are ciphertexts; who holds the keys saves them with securefed.crypto.save_key.
        """
        self._fitted()
        recipe = self._recipe()
        public: dict[str, Any] = {
            "estimator": "transfer",
            "parties": self.parties_,
            "hidden": recipe.width,
            "activation": self.activation,
            "activation_bound": self.activation_bound,
            "classes": self.classes_.tolist(),
        }
        for name, shard in self.shards_.items():
            if isinstance(shard, BlindShard):
                public["blind"] = [shard.plan.columns, shard.plan.l2, shard.plan.feature_bound]
            arrays = {**shard.to_arrays(), "public": np.array(json.dumps(public))}
            arrays |= guard_arrays(getattr(self, "score_guards_", {}).get(name))
            arrays |= fitted_arrays(self.transforms_.get(name))
            if name == self.parties_[1] and self._phi is not None:
                arrays["phi"] = self._phi
            write_shard(FilePath(folder), name, arrays)

    @classmethod
    def load(
        cls,
        folder: str | PathLike[str],
        *,
        keys: Mapping[str, KeyHolder] | None = None,
        transforms: Mapping[str, Any] | None = None,
        **parameters: Any,
    ) -> Self:
        """The estimator with the shards that `save` wrote; `parameters` as for the constructor.

        `keys`: the key-holders of a blind model. `transforms`: transformers of the parties' own, fitted, by
        party.
        """
        public, shards = read_shards(
            folder, "transfer", ("hidden", "activation", "activation_bound", "classes")
        )
        fixed = {name: public[name] for name in ("hidden", "activation", "activation_bound")}
        blind = "blind" in public
        if blind:
            if keys is None:
                raise SettingError(
                    "keys: none given, and this model is encrypted; load(folder, keys={...}) takes those that"
                    " it was trained with (fit(keys=...); securefed.crypto.load_key reads them)"
                )
            columns, fixed["l2"], fixed["feature_bound"] = public["blind"]
        else:
            parameters = {"reveal": "own-gradient", **parameters}
        check_free(parameters, fixed)
        self = cls(**fixed, **parameters)
        self.parties_ = public["parties"]
        self.classes_ = np.array(public["classes"])
        self.score_guards_ = take_guards(shards)
        self._sealed = {}
        self.transforms_ = take_fitted(shards, transforms)
        if keys is not None:
            self._holders = dict(keys)
        if blind:
            plan = self._recipe().scoring_plan(columns)
            self._phi = None
            self.shards_ = {name: BlindShard.from_arrays(plan, shards[name]) for name in self.parties_}
        else:
            self._phi = as_phi(shards[self.parties_[1]], public["hidden"])
            self.shards_ = {name: HiddenLayer.from_arrays(shards[name]) for name in self.parties_}
        return self

    @property
    def holders_(self) -> dict[str, KeyHolder]:
        """The key-holders of the run: for another fit, or to save with securefed.crypto.save_key."""
        self._fitted()
        return dict(self._holders)


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
