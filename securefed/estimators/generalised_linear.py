"""The generalised linear estimator (equation 2): K parties, logistic, linear or squared-hinge loss.

    model = GeneralisedLinear(scheme="ckks", algorithm=FedBCD(local_steps=5))
    model.fit([Party("shop", X1), Party("bank", X2, labels=y)])
    model.predict_proba([Party("shop", X1_new), Party("bank", X2_new)])

All parties are simulated in this process, each with its own program, keys, clock and transcript; `result_`
says what the run took and what each party saw.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path as FilePath
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, r2_score

from securefed import models
from securefed.checks import check_choice, check_flag, check_number
from securefed.crypto import KeyHolder
from securefed.errors import DataError, SettingError
from securefed.estimators.common import (
    KEY_HOLDER,
    Federated,
    auc,
    binary_labels,
    check_parties,
    read_shards,
    write_shard,
)
from securefed.models import Linear, LocalModel, Network
from securefed.party import Party, align, label_party
from securefed.protocols.agreement import Agreement, Member
from securefed.protocols.losses import Loss, get_loss
from securefed.protocols.optimisers import get_optimiser
from securefed.protocols.prediction_run import predict_programs
from securefed.protocols.schedules import Algorithm, Batches, FedBCD, LearningRate, Stopping, as_learning_rate
from securefed.protocols.scorers import LinearScorer
from securefed.protocols.sides import LinearSide
from securefed.protocols.training import DataParty, Evaluation

__all__ = ["GeneralisedLinear"]

Array = NDArray[np.float64]


class GeneralisedLinear(Federated):
    """Vertical federated (logistic, linear, squared-hinge) regression with linear or network local models.

    Parameters
    ----------
    loss: "logistic", "linear" or "squared_hinge".
    algorithm: FedSGD() or FedBCD(local_steps, order, proximal).
    scheme: "ckks", "paillier", or "plain" for no protection at all.
    local_model: "linear", "network", or a mapping from party names to these words or to models of your own
    (a LocalModel; torch
        modules through securefed.models.torch.TorchModel, in plain).
    loss_form: "taylor" (second-order polynomial, the only one that can be encrypted), "exact" (plain
    only), "auto". margin_bound: the largest |H^k| that a party may reach; a public bound, past which
    training stops with an error. evaluate_every: every so many rounds the label party sees the scores of
    the evaluation rows (0: never). With two parties, scores of
        a linear model show the other party's part of H for those rows.
    allow_determined: open gradients even where the ledger says that they determine another party's residuals.
    """

    def __init__(
        self,
        loss: str = "logistic",
        algorithm: Algorithm = FedBCD(local_steps=5),  # noqa: B008  # a frozen value
        scheme: str = "ckks",
        *,
        local_model: str | Mapping[str, str | LocalModel] = "linear",
        hidden: Sequence[int] = (16,),
        activation: str = "tanh",
        fit_intercept: bool = True,
        l2: float = 1e-3,
        learning_rate: float | LearningRate = 0.5,
        optimiser: Any = "sgd",
        batch_size: int | None = None,
        rounds: int = 30,
        target: float | None = None,
        patience: int | None = None,
        evaluate_every: int | None = None,
        exchange: str = "star",
        loss_form: str = "auto",
        margin_bound: float = 64.0,
        allow_determined: bool = False,
        key_bits: int = 3072,
        network: Any = "lan",
        engine: Any = None,
        seed: int = 0,
        progress: bool | None = None,
    ) -> None:
        self.loss = loss
        self.algorithm = algorithm
        self.scheme = scheme
        self.local_model = local_model
        self.hidden = hidden
        self.activation = activation
        self.fit_intercept = fit_intercept
        self.l2 = l2
        self.learning_rate = learning_rate
        self.optimiser = optimiser
        self.batch_size = batch_size
        self.rounds = rounds
        self.target = target
        self.patience = patience
        self.evaluate_every = evaluate_every
        self.exchange = exchange
        self.loss_form = loss_form
        self.margin_bound = margin_bound
        self.allow_determined = allow_determined
        self.key_bits = key_bits
        self.network = network
        self.engine = engine
        self.seed = seed
        self.progress = progress

    def fit(
        self,
        parties: Sequence[Party],
        *,
        validation: Sequence[Party] | None = None,
        keys: Mapping[str, KeyHolder] | None = None,
    ) -> Self:
        """Train. `validation` (same parties, other rows) is what evaluations look at; without it, the
        training rows.
        """
        self._check_common()
        check_flag("fit_intercept", self.fit_intercept)
        check_flag("allow_determined", self.allow_determined)
        check_number("margin_bound", self.margin_bound, above=0.0)
        loss = get_loss(self.loss)
        exact = self._exact()
        parties = check_parties(parties)
        holder_of_labels = label_party(parties)
        aligned = align(parties, holder_of_labels.name)
        # Turns are taken in this order; the paper's party K, with the labels, is last.
        ordered = sorted(aligned, key=lambda p: p.name == holder_of_labels.name)
        targets = self._targets(ordered[-1], loss)
        sides = {
            party.name: LinearSide(
                self._model(party, index, last=index == len(ordered) - 1),
                party.features,
                targets if index == len(ordered) - 1 else None,
                loss,
                l2=self.l2,
                exact=exact,
                margin_bound=self.margin_bound,
            )
            for index, party in enumerate(ordered)
        }
        members = tuple(Member(name, side.equations, side.affine) for name, side in sides.items())
        agreement = self._agreement(members, ordered[0].rows, exact=exact)
        evaluations = self._evaluations(agreement, ordered, targets, validation, loss)
        names = list(agreement.names) if agreement.mutual else [KEY_HOLDER]
        holders = self._keys(names, keys)
        on_round, close = self._bar(agreement)
        with self._mapper() as mapper:
            programs = {
                party.name: DataParty(
                    agreement,
                    sides[party.name],
                    get_optimiser(self.optimiser),
                    holder=holders.get(party.name),
                    evaluation=evaluations.get(party.name),
                    mapper=mapper,
                    on_round=on_round if party is ordered[-1] else None,
                ).run
                for party in ordered
            }
            programs |= self._key_holder_program(agreement, holders, mapper)
            try:
                run = self._run(programs)
            finally:
                close()
        self._finish(agreement, run)
        self.parties_ = list(agreement.names)
        self.shards_: dict[str, LocalModel] = {name: side.model for name, side in sides.items()}
        self._holders = holders
        return self

    def _exact(self) -> bool:
        check_choice("loss_form", self.loss_form, ("auto", "exact", "taylor"))
        if self.loss_form == "exact" and self.scheme != "plain":
            raise SettingError(
                f"loss_form: 'exact' is only possible with scheme 'plain', {self.scheme!r} given"
            )
        return self.scheme == "plain" and self.loss_form != "taylor"

    def _targets(self, party: Party, loss: Loss) -> Array:
        if party.labels is None:
            raise DataError(f"{party.name}: no labels")
        if loss.binary:
            signs, self.classes_ = binary_labels(party.labels, party.name, allow_missing=False)
            return signs
        try:
            targets = loss.check_labels(party.labels)
        except DataError as error:
            raise DataError(f"{party.name}: {error}") from None
        if float(np.max(np.abs(targets))) > self.margin_bound:
            raise DataError(
                f"{party.name}: labels up to {np.max(np.abs(targets)):.4g} given, at most margin_bound="
                f"{self.margin_bound:g} is allowed; scale them or raise it"
            )
        return targets

    def _model(self, party: Party, index: int, *, last: bool) -> LocalModel:
        kind = self.local_model
        chosen = kind if isinstance(kind, str) else kind.get(party.name, "linear")
        if not isinstance(chosen, str):
            return chosen
        check_choice("local_model", chosen, ("linear", "network"))
        columns = party.features.shape[1]
        if chosen == "linear":
            return Linear(columns, bias=bool(last and self.fit_intercept))
        return Network(columns, tuple(self.hidden), self.activation, seed=self.seed * 1000 + index)

    def _agreement(self, members: tuple[Member, ...], rows: int, *, exact: bool) -> Agreement:
        watched = self.target is not None or self.patience is not None
        every = self.evaluate_every if self.evaluate_every is not None else int(watched)
        return Agreement(
            objective="linear",
            scheme=self.scheme,
            members=members,
            algorithm=self.algorithm,
            learning_rate=as_learning_rate(self.learning_rate),
            batches=Batches(rows, self.batch_size, self.seed),
            stopping=Stopping(self.rounds, self.target, self.patience),
            exchange=self.exchange,  # type: ignore[arg-type]  # checked by Agreement
            key_holder=None if len(members) == 2 else KEY_HOLDER,
            evaluate_every=every,
            exact=exact,
            allow_determined=self.allow_determined,
            details=(("loss", self.loss), ("l2", self.l2), ("margin_bound", self.margin_bound)),
        )

    def _evaluations(
        self,
        agreement: Agreement,
        parties: Sequence[Party],
        targets: Array,
        validation: Sequence[Party] | None,
        loss: Loss,
    ) -> dict[str, Evaluation]:
        if not agreement.evaluate_every:
            return {}
        rows = list(parties)
        if validation is not None:
            rows = self._match(validation, agreement.names)
            targets = self._targets(rows[-1], loss)
        metric = auc(targets) if loss.binary else lambda scores: float(r2_score(targets, scores))
        return {
            party.name: Evaluation(party.features, metric if party.name == agreement.label_party else None)
            for party in rows
        }

    def _match(self, parties: Sequence[Party], names: Sequence[str]) -> list[Party]:
        """The same parties as in training, aligned, in the order of training."""
        by_name = {party.name: party for party in check_parties(parties)}
        if set(by_name) != set(names):
            raise DataError(f"parties: {', '.join(sorted(by_name))} given, the model has {', '.join(names)}")
        return align([by_name[name] for name in names], names[-1])

    def decision_function(self, parties: Sequence[Party]) -> Array:
        """H for new rows, by an encrypted run; the label party learns these scores and nobody else
        anything.
        """
        self._fitted()
        rows = self._match(parties, self.parties_)
        for party in rows:
            columns = getattr(self.shards_[party.name], "columns", party.features.shape[1])
            if party.features.shape[1] != columns:
                raise DataError(
                    f"{party.name}: {party.features.shape[1]} columns given, the model has {columns}"
                )
        scorers = {name: LinearScorer(model, self.margin_bound) for name, model in self.shards_.items()}
        members = tuple(Member(name, model.size, model.is_linear) for name, model in self.shards_.items())
        agreement = self._agreement(members, rows[0].rows, exact=False)
        names = list(agreement.names) if agreement.mutual else [KEY_HOLDER]
        self._holders = self._keys(names, getattr(self, "_holders", None))
        features = {party.name: party.features for party in rows}
        with self._mapper() as mapper:
            programs = predict_programs(agreement, scorers, features, self._holders, mapper)
            run = self._run(programs)
        scores: Array = run.outcomes[agreement.label_party]
        return scores

    def predict_proba(self, parties: Sequence[Party]) -> Array:
        """Probabilities of the two classes (logistic loss)."""
        if self.loss != "logistic":
            raise SettingError(f"predict_proba: the loss 'logistic' has probabilities, {self.loss!r} given")
        positive = get_loss("logistic").predict_proba(self.decision_function(parties))  # type: ignore[attr-defined]
        return np.column_stack([1.0 - positive, positive])

    def predict(self, parties: Sequence[Party]) -> NDArray[Any]:
        """Classes, or numbers for the linear loss."""
        scores = self.decision_function(parties)
        if not get_loss(self.loss).binary:
            return scores
        classes: NDArray[Any] = self.classes_[(scores > 0).astype(int)]
        return classes

    def score(self, parties: Sequence[Party]) -> float:
        """Accuracy, or R^2 for the linear loss, on rows whose labels are given."""
        labelled = label_party(list(parties))
        aligned = self._match(parties, self.parties_)
        labels = next(p for p in aligned if p.name == labelled.name).labels
        predicted = self.predict(parties)
        if not get_loss(self.loss).binary:
            return float(r2_score(labels, predicted))
        return float(accuracy_score(labels, predicted))

    def save(self, folder: str | PathLike[str]) -> None:
        """One file a party, with its own parameters only, and what all know."""
        self._fitted()
        public = {
            "estimator": "generalised-linear",
            "parties": self.parties_,
            "loss": self.loss,
            "margin_bound": self.margin_bound,
            "classes": self.classes_.tolist() if get_loss(self.loss).binary else None,
        }
        for name, model in self.shards_.items():
            write_shard(FilePath(folder), name, {**model.to_arrays(), "public": np.array(json.dumps(public))})

    @classmethod
    def load(cls, folder: str | PathLike[str], **parameters: Any) -> Self:
        """The estimator with the shards that `save` wrote; `parameters` as for the constructor (scheme,
        network, ...).
        """
        public, shards = read_shards(folder, "generalised-linear")
        self = cls(public["loss"], margin_bound=public["margin_bound"], **parameters)
        self.parties_ = public["parties"]
        self.shards_ = {}
        for name in self.parties_:
            model = models.from_arrays(shards[name])
            if isinstance(model, models.HiddenLayer):
                raise DataError(f"{folder}: the shard of {name} holds a hidden layer, not a local model")
            self.shards_[name] = model
        if public["classes"] is not None:
            self.classes_ = np.array(public["classes"])
        return self
