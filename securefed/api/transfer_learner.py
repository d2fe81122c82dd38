"""Federated transfer learning, two parties (securefed.protocols.own_gradient.transfer has the objective).

bank = Party("bank", X_bank, labels=y, ids=...)       # A: labels for some of its rows
shop = Party("shop", X_shop, ids=...)                 # B: no labels; shares some people with A
model = TransferLearner().fit([shop, bank])           # nobody sees anything of the other's, nor of the model
model.decision_function(Party("shop", X_new))         # scores of B's people, learnt by A alone
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path as FilePath
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from securefed.api.common import (
    Federated,
    all_or_nothing,
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
from securefed.api.party import Party, align, label_party
from securefed.api.result import RunResult
from securefed.assembly.recipe import PartyContext
from securefed.assembly.transfer_recipe import TransferRecipe
from securefed.crypto import KeyHolder
from securefed.data.labels import check_known, missing_labels
from securefed.errors import DataError, SettingError
from securefed.labels.classes import ClassModels
from securefed.labels.label_model import LabelModel
from securefed.labels.quality import HeldOut, Holdout, QualityWarning
from securefed.models import HiddenLayer
from securefed.protocols.agreement import Agreement, Member
from securefed.protocols.blind.scoring import ModelPart, ScorePlan
from securefed.protocols.blind.transfer_algebra import with_waves
from securefed.protocols.loop import EvaluationRows, Outcome
from securefed.protocols.losses import get_loss
from securefed.protocols.objectives import warn_of_trust
from securefed.protocols.schedules import Algorithm, FedBCD, LearningRate, check_holdout, held_out
from securefed.protocols.scoring.prediction_run import blind_program, predict_programs
from securefed.protocols.scoring.scorers import Scorer
from securefed.transport import Program
from securefed.transport.identity import check_party_name

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
        squared parameters; rounds. None: what suits `reveal` (securefed.assembly.transfer_recipe).
    activation_bound: the largest |u| that relu may reach; it is public.
    key_holder: the name of a helper without data, where nothing is revealed. It holds the second shares of
        the model in place of B, which then only hands out shares and is scored. None: the two parties hold
        the shares themselves.
    evaluate_every: every so many rounds A sees the scores of the evaluation rows (0: never).
    holdout: part of the shared people that is not trained on; A sees the scores of those with labels once, at
        the end, which says how good the model is (`result_.holdout`) and how likely each class.
    allow_determined: open gradients even where the ledger says that they determine the other's secrets.
    The rest as in GeneralisedLinear. Where nothing is revealed, a party without `transform` gets "auto":
    splines for numbers, one-hot for categories, fitted on all of its own rows; random features come on top.

    Labels are of two classes or more. Three and more are trained each against the rest, all in one run where
    nothing is revealed; else MultiClass(TransferLearner(...)) makes one run a class.
    """

    def __init__(
        self,
        hidden: int | None = None,
        algorithm: Algorithm = FedBCD(local_steps=5),  # noqa: B008  # a frozen value
        scheme: str = "ckks",
        *,
        reveal: str = "nothing",
        key_holder: str | None = None,
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
        holdout: float = 0.0,
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
        self.reveal = reveal
        self.key_holder = key_holder
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
        self.holdout = holdout
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
        simulation = {"standardise", "network", "engine", "progress", "score_ledger", "holdout"}
        own = {*simulation, "key_holder"}
        recipe = TransferRecipe(**{k: v for k, v in self.get_params(deep=False).items() if k not in own})
        if self.key_holder is not None:
            recipe.check_key_holder(check_party_name(self.key_holder))
        return recipe

    @all_or_nothing
    def fit(
        self,
        parties: Sequence[Party],
        *,
        validation: Sequence[Party] | None = None,
        keys: Mapping[str, KeyHolder] | None = None,
    ) -> Self:
        """Train on the shared people.

        `validation`: B's rows and A's labels for them, for evaluations in place of held-out people or, where
        none are held out, of the shared labelled ones.
        """
        recipe = self._recipe()
        self._check_simulation()
        check_holdout(self.holdout)
        a, b = self._pair(parties)
        if recipe.blind:
            a, b = (party.with_transform("auto") if party.transform is None else party for party in (a, b))
        given = {party.name: party for party in (a, b)}
        self.transforms_ = {}
        a, self.transforms_[a.name] = a.fitted(standardise=self.standardise)
        b, self.transforms_[b.name] = b.fitted(standardise=self.standardise)
        if recipe.blind:
            a, b = self._waved(a), self._waved(b)
        self._label_side, signs = self._targets(_labels(a), a.name, blind=recipe.blind)
        self.classes_: NDArray[Any] = np.asarray(self._label_side.classes)
        outputs, known = self._label_side.outputs, _known(signs)
        all_a, all_b = _overlap(a, b)
        kept, aside = held_out(len(all_a), 0.0 if validation else self.holdout, self.seed)
        rows_a, rows_b, labelled = all_a[kept], all_b[kept], known[all_a[kept]]
        seen = aside[known[all_a[aside]]]
        if not labelled.any():
            raise DataError(f"{a.name}: none of the {len(rows_a)} people shared with {b.name} has a label")
        self._note_missing(signs[rows_a][labelled], a.name, b.name)
        if len(aside) and not len(seen):
            raise DataError(f"holdout: none of the {len(aside)} people that are held out has a label")
        layers = {p.name: recipe.layer(p.features.shape[1], index) for index, p in enumerate((b, a))}
        sizes = {p.name: p.features.shape[1] for p in (b, a)}
        members = tuple(
            recipe.blind_member(name, sizes[name]) if recipe.blind else recipe.member(name, layer)
            for name, layer in layers.items()
        )
        agreement = recipe.agreement(members, len(rows_a), outputs, len(aside))
        agreement = replace(agreement, key_holder=self.key_holder)
        if validation:
            rows = ("validation_rows", max(party.rows for party in validation))
            agreement = replace(agreement, details=(*agreement.details, rows))
        warn_of_trust(agreement.scheme, agreement.reveal, agreement.objective)
        holders, guards = self._keys(agreement, keys), self._guards(agreement.names, given)
        measured = (all_a[seen], all_b[seen]) if len(aside) else (rows_a[labelled], rows_b[labelled])
        evaluations, held = self._evaluations(agreement, a, b, signs, measured, validation)
        trained = signs.copy()
        trained[all_a[aside]] = np.nan  # Phi is of all of A's labels but these
        with self._mapper() as mapper, self._bar(agreement) as on_round:
            context = {
                name: PartyContext(
                    holders.get(name),
                    mapper,
                    evaluations.get(name),
                    on_round if name == a.name else None,
                    guards.get(name),
                )
                for name in agreement.names
            }
            given_rows = ((b, rows_b, None), (a, rows_a, trained))
            if recipe.blind:
                blind = {
                    p.name: recipe.blind_party(agreement, p.features, rows, labelled, told, context[p.name])
                    for p, rows, told in given_rows
                }
                programs: dict[str, Program] = {name: party.run for name, party in blind.items()}
                if self.key_holder is not None:
                    helper = recipe.key_holder(agreement, PartyContext(mapper=mapper))
                    programs[self.key_holder] = helper.run
                run = self._run(programs)
            else:
                sides = {
                    p.name: recipe.side(layers[p.name], p.features, rows, labelled, told)
                    for p, rows, told in given_rows
                }
                run = self._run(
                    {name: recipe.party(agreement, side, context[name]).run for name, side in sides.items()}
                )
        self.judged_: tuple[HeldOut, Array, tuple[Array, Array, Array]] | None = None
        judged = self._judge(run.outcomes[a.name], held, trained) if len(aside) else None
        self.result_ = RunResult.of(agreement, run, judged)
        self.parties_ = list(agreement.names)
        self.shards_: dict[str, HiddenLayer | ModelPart]
        self._sealed: dict[bytes, bytes] = {}
        self._holders = holders
        if recipe.blind:
            self._phi: Array | None = None
            self.shards_ = {name: party.part for name, party in blind.items()}
            if self.key_holder is not None:
                self.shards_[self.key_holder] = helper.part
        else:
            self._phi = sides[a.name].phi()  # A's, kept with A's shard
            self.shards_ = dict(layers)
        return self

    def _waved(self, party: Party) -> Party:
        """With random features of its columns on top."""
        return party.with_features(
            with_waves(party.features, self.transforms_[party.name].columns.untransformed)
        )

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

    def _targets(self, labels: NDArray[Any], party: str, *, blind: bool) -> tuple[LabelModel, Array]:
        """What A knows of its labels, and them as -1 and +1, NaN where missing; a column a class from three
        on.
        """
        loss, known = get_loss("logistic"), labels[~missing_labels(labels)] if labels.ndim == 1 else labels
        if labels.ndim > 1 or len(set(known.tolist())) <= 2:
            signs, classes = binary_labels(labels, party, allow_missing=True)
            return LabelModel(loss, classes, taylor=False), signs
        found = ClassModels.with_gaps(labels, party, loss)
        if not blind:
            few = ", ".join(map(str, np.asarray(found[0].classes)[:5]))
            raise DataError(
                f"{party}: labels have {found[0].outputs} classes ({few}); reveal='nothing' under encryption"
                " has all in one run, MultiClass(TransferLearner(...)) makes one run a class"
            )
        return found

    def _note_missing(self, signs: Array, a: str, b: str) -> None:
        """Say which classes nobody shared has: B's columns say nothing of them."""
        missing = self._label_side.unseen(signs)
        if missing:
            names = ", ".join(map(str, missing))
            warnings.warn(f"{a}: nobody shared with {b} to learn from has the label {names}", stacklevel=4)

    def _evaluations(
        self,
        agreement: Agreement,
        a: Party,
        b: Party,
        signs: Array,
        measured: tuple[NDArray[np.intp], NDArray[np.intp]],
        validation: Sequence[Party] | None,
    ) -> tuple[dict[str, EvaluationRows], HeldOut]:
        """B brings its columns, A the labels (with which it measures) and the number of rows."""
        targets, features = signs[measured[0]], b.features[measured[1]]
        if not agreement.scores_rows:
            return {}, self._label_side.held_out(targets)
        if validation is not None:
            features, targets = self._validation(a, b, validation)
        else:
            self._know([b])
        held = self._label_side.held_out(targets)
        if agreement.evaluate_every and held.name == "accuracy":
            lacking = "are all of one class" if self._label_side.outputs == 1 else "lack a class"
            raise DataError(f"evaluation: the labels of the rows to evaluate on {lacking}")
        return {
            a.name: EvaluationRows(np.zeros((len(features), 1)), held),
            b.name: EvaluationRows(features),
        }, held

    def _validation(self, a: Party, b: Party, validation: Sequence[Party]) -> tuple[Array, Array]:
        """B's columns and A's labels of other people."""
        other_a, other_b = self._pair(validation)
        if (other_a.name, other_b.name) != (a.name, b.name):
            raise DataError(
                f"validation: {other_a.name} and {other_b.name} given, {a.name} and {b.name} expected"
            )
        other_a, other_b = align([other_a, other_b], other_a.name)
        other_b = self._ready(other_b)
        check_columns(other_b, b.features.shape[1])
        self._know([other_b])
        labels = _labels(other_a)
        if self._label_side.outputs == 1:
            signs, _ = binary_labels(labels, a.name, allow_missing=False, classes=self.classes_)
            return other_b.features, signs
        check_known(labels, a.name)
        return other_b.features, self._label_side.targets(np.array(labels.tolist()), a.name, np.inf)

    def _judge(self, outcome: Outcome, held: HeldOut, trained: Array) -> Holdout:
        """What the people that were held out say of the model that is kept. Of people that B alone knows A
        has no columns, so alone it has the shares of the classes to go by.
        """
        scores, known = held.scores[outcome.kept(len(held.scores))], trained[_known(trained)]
        own = np.zeros((len(known), 1)), known, np.zeros((len(scores), 1))
        self.judged_ = held, scores, own
        found = self._label_side.learn(held, scores, own, "half")
        if found.warning:
            warnings.warn(found.warning, QualityWarning, stacklevel=3)
        return found

    def decision_function(self, party: Party | Sequence[Party]) -> Array:
        """Scores of B's rows, by an encrypted run; A learns these scores and nobody else anything. A column a
        class from three on.
        """
        self._fitted()
        return self._label_side.numbers(self._scores(party))

    def _scores(self, party: Party | Sequence[Party]) -> Array:
        b_name, a_name = self.parties_
        given = [party] if isinstance(party, Party) else check_parties(party)
        found = [p for p in given if p.name == b_name]
        if len(found) != 1:
            raise DataError(f"parties: {', '.join(p.name for p in given)} given, rows of {b_name} are needed")
        rows = self._ready(found[0])
        check_columns(rows, self._columns)
        recipe = replace(self._recipe(), batch_size=None, target=None, patience=None)
        members = tuple(Member(name, 1, recipe.blind) for name in self.parties_)
        agreement = recipe.agreement(members, 1, self._label_side.outputs)
        agreement = replace(agreement, key_holder=self.key_holder)
        with self._mapper() as mapper:
            guards = self._guards(agreement.names)
            self._know([rows])
            programs: dict[str, Program] = {}
            parts: dict[str, Scorer] = {}
            for name, shard in self.shards_.items():
                if isinstance(shard, ModelPart):
                    features = None
                    if name in self.parties_:
                        features = recipe.scored(rows.features, label_party=name == a_name)
                    programs[name] = blind_program(
                        agreement,
                        shard,
                        features,
                        len(rows.features),
                        recipe.cross_scheme(),
                        mapper,
                        guards.get(name),
                    )
                else:
                    parts[name] = recipe.scorer(shard, self._phi if name == a_name else None, self._sealed)
            if parts:
                self._holders = self._keys(agreement, getattr(self, "_holders", None))
                programs = predict_programs(
                    agreement, parts, {b_name: rows.features}, self._holders, mapper, guards
                )
            run = self._run(programs)
        scores: Array = run.outcomes[a_name]
        return scores

    @property
    def _columns(self) -> int:
        """Of B's, as they are scored."""
        shard = self.shards_[self.parties_[0]]
        return shard.plan.sizes[0] - 1 if isinstance(shard, ModelPart) else shard.columns

    def predict_proba(self, party: Party | Sequence[Party]) -> Array:
        """Probabilities of the classes: of the score as it is, or as held-out people say."""
        self._fitted()
        found = self._label_side.probabilities(self._scores(party))
        return found if found.ndim == 2 else np.column_stack([1.0 - found, found])

    def predict(self, party: Party | Sequence[Party]) -> NDArray[Any]:
        """Classes of B's rows."""
        self._fitted()
        return self._label_side.answers(self._scores(party), "half")

    def score(self, parties: Sequence[Party], metric: str | None = None) -> float:
        """Return a metric (accuracy if None) on people of B whose labels A knows."""
        self._fitted()
        a, b = self._pair(parties)
        a, b = align([a, b], a.name)
        answers = self._label_side.beside(_labels(a), self._scores(b), a.name, None, "half")
        return self._label_side.score(answers, metric)

    def save(self, folder: str | PathLike[str]) -> None:
        """One file a party, with its own part of the model only (Phi is A's), and what all know.

        Parts of a blind model are shares that are uniform by themselves; a helper has one too.
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
            "key_holder": self.key_holder,
        }
        for name, shard in self.shards_.items():
            if isinstance(shard, ModelPart):
                public["blind"] = shard.plan.to_dict()
            arrays = {**shard.to_arrays(), "public": np.array(json.dumps(public))}
            arrays |= guard_arrays(getattr(self, "score_guards_", {}).get(name))
            arrays |= fitted_arrays(self.transforms_.get(name))
            if name == self.parties_[1]:
                arrays |= self._label_side.to_arrays()
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

        `keys`: key-holders for predictions of a model of hidden layers; fresh ones are made where none are
        given. A blind model takes none. `transforms`: transformers of the parties' own, fitted, by party.
        """
        public, shards = read_shards(
            folder, "transfer", ("hidden", "activation", "activation_bound", "classes")
        )
        fixed = {name: public[name] for name in ("hidden", "activation", "activation_bound")}
        blind = "blind" in public
        if blind:
            if keys:
                raise SettingError("keys: a model that reveals nothing has its own keys; leave them out")
            fixed["key_holder"] = public.get("key_holder")
        else:
            parameters = {"reveal": "own-gradient", **parameters}
        check_free(parameters, fixed)
        self = cls(**fixed, **parameters)
        self.parties_ = public["parties"]
        self.classes_ = np.array(public["classes"])
        self._label_side = _side(shards[self.parties_[1]], self.classes_)
        self.score_guards_ = take_guards(shards)
        self._sealed = {}
        self.transforms_ = take_fitted(shards, transforms)
        if keys is not None:
            self._holders = dict(keys)
        if blind:
            plan = ScorePlan.from_dict(public["blind"])
            self._phi = None
            self.shards_ = {name: ModelPart.from_arrays(plan, shards[name]) for name in shards}
        else:
            self._phi = as_phi(shards[self.parties_[1]], public["hidden"])
            self.shards_ = {name: HiddenLayer.from_arrays(shards[name]) for name in self.parties_}
        return self

    @property
    def holders_(self) -> dict[str, KeyHolder]:
        """The key-holders of the run: for another fit, or to save with securefed.crypto.save_key."""
        self._fitted()
        return dict(self._holders)


def _side(arrays: dict[str, NDArray[np.generic]], classes: NDArray[Any]) -> LabelModel:
    """What A knew of its labels. Shards of version 0.1 did not say: two classes, and nothing held out."""
    loss = get_loss("logistic")
    if len(classes) > 2:
        return ClassModels.take(arrays, loss, classes)
    if LabelModel(loss).to_arrays().keys() <= arrays.keys():
        return LabelModel.take(arrays, loss, classes)
    return LabelModel(loss, classes, taylor=False)


def as_phi(arrays: Mapping[str, NDArray[np.generic]], width: int) -> Array:
    phi = np.asarray(arrays.get("phi", np.zeros(0)), dtype=np.float64)
    if phi.shape != (width,) or not np.isfinite(phi).all():
        raise DataError(f"shard: Phi has shape {phi.shape}, ({width},) of finite numbers is allowed")
    return phi


def _known(signs: Array) -> NDArray[np.bool_]:
    """Of which rows there are labels."""
    return np.asarray(~np.isnan(signs.reshape(len(signs), -1)).any(axis=1), dtype=np.bool_)


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
