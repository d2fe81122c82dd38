"""The generalised linear estimator (equation 2): K parties, logistic, linear or squared-hinge loss.

    model = GeneralisedLinear(algorithm=FedBCD(local_steps=20))
    model.fit([Party("shop", X1), Party("bank", X2, labels=y)])
    model.predict_proba([Party("shop", X1_new), Party("bank", X2_new)])

All parties are simulated in this process, each with its own program, keys, clock and transcript; `result_`
says what the run took and what each party saw.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path as FilePath
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from securefed import models
from securefed.api.coefficients import coefficients, intercept, log_odds
from securefed.api.common import (
    Federated,
    Shard,
    all_or_nothing,
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
from securefed.api.warm_start import Start
from securefed.assembly.recipe import LinearRecipe, PartyContext
from securefed.checks import check_choice, check_flag
from securefed.crypto import KeyHolder, Mapper, protects
from securefed.errors import DataError, SettingError
from securefed.labels.base_model import LabelOptions, check_family
from securefed.labels.calibration import check_threshold
from securefed.labels.label_model import LabelModel
from securefed.labels.quality import HeldOut, Holdout, QualityWarning
from securefed.labels.targets import TargetModels
from securefed.models import LocalModel
from securefed.protocols.agreement import Agreement, Member
from securefed.protocols.blind.linear import BlindHelper, BlindParty
from securefed.protocols.blind.scoring import ModelPart, ScorePlan
from securefed.protocols.loop import EvaluationRows, Outcome, PartyLoop
from securefed.protocols.losses import get_loss
from securefed.protocols.objectives import warn_of_trust
from securefed.protocols.schedules import (
    Algorithm,
    FedBCD,
    LearningRate,
    automatic_rounds,
    check_holdout,
    held_out,
)
from securefed.protocols.scoring.prediction_run import blind_program, predict_programs
from securefed.protocols.scoring.scorers import LinearScorer, Scorer
from securefed.transport import Program

__all__ = ["GeneralisedLinear"]

Array = NDArray[np.float64]


class GeneralisedLinear(Federated):
    """Vertical federated (logistic, linear, squared-hinge) regression.

    Parameters
    ----------
    loss: "logistic", "linear" or "squared_hinge".
    algorithm: FedSGD() or FedBCD(local_steps, order, proximal).
    scheme: "paillier", "ckks", or "plain" for no protection at all.
    reveal: "nothing": parameters stay encrypted for the whole training, local steps are free (linear
        models, SGD); or "own-gradient", the paper's way: each party sees its own aggregated gradients.
        With own gradients the peers must be trusted not to cheat: a crafted request shows single residuals
        (Paillier) or the whole secret key (CKKS, which `fit` warns of).
    release: at the end of a training that revealed nothing, open each party's own parameters to it, blurred
        beyond four digits. A party without labels gets at most 1,000 bits; "trusted" lifts that limit where
        the parties trust each other.
    local_model: "linear", "network", or a mapping from party names to these words or to models of your own
        (a LocalModel; torch modules through securefed.models.torch.TorchModel, in plain).
    loss_form: "taylor" (second-order polynomial, the only one that can be encrypted), "exact" (plain
        only), "auto".
    learning_rate: "auto": every party's own step, from its own columns, with which the Taylor loss of linear
        models cannot rise; or a number, or a schedule such as InverseSqrt(0.3). A number that a party's own
        columns show to be unstable is refused unless allow_unstable=True.
    l2: the weight of the penalty l2/2 |theta|^2; "auto" is 1/rows (scikit-learn's C = 1), at least 1e-4.
    rounds: exchanges; "auto": 24 for two parties and more for more of them, by the bound on what further
        accelerated rounds can change. refit: the last third of them learns from the held-out rows too, once
        these have been measured, where nothing is revealed, steps are automatic and no evaluation looks at
        them again; the quality that is told is then that of the model before.
    batch_size: rows of each round's mini-batch, all where it is None. They are drawn anew each round; with
        fixed_batches=True cut once, which gives less of the labels away where gradients are revealed.
    dp_noise: noise multiplier of what is opened to parties without labels, and of the label party's own
        gradient: differential privacy of every label, in `result_.privacy` (own gradients, linear models,
        Paillier; securefed.protocols.own_gradient.privacy derives it). 0 for none.
    margin_bound: public bound on |H^k| and on labels that are numbers; past it the run stops with an error.
    evaluate_every: every so many rounds the label party sees the scores of the evaluation rows (0: never).
        With two parties, scores of a linear model show the other party's part of H for those rows.
    score_precision: bits after the point that scores show, 10 for 2**-10 or three digits; the parties that
        are scored blur what is below (not under "plain").
    score_ledger: what parties that are scored do when scores of a person would show more than its columns
        can keep to themselves: "refuse", "warn", or "off" (not even counted).
    allow_determined: open gradients even where the ledger says that they determine another's residuals.
    standardise: every party gives its columns mean 0 and variance 1 by its own rows, and cuts what is further
        than 16 from 0.
    holdout: the share of the common rows that is set aside by the seed; at the end the label party gets
        their scores, once, and `result_.holdout` says how good the model is beside the label party alone.
        They also calibrate `predict_proba`. 0: quality is not measured.
    warm_start: a further `fit` begins where the last one ended, in plain or with reveal="nothing" (under the
        same keys), with columns prepared as they were then and nothing learnt from held-out rows (no refit).
    base: "own": the label party fits its own columns first, and the joint training what is left of that:
        closer to a logistic model where classes are rare. class_weight ("balanced", or a weight for each
        class; "auto": half way to balanced where a class has less than a tenth of the rows, and the logistic
        loss is blind), Party(weights=..., offset=...) and family take it anyway. Nobody else learns of them.
    family: with the loss "linear", counts and amounts by their logarithm: "poisson", "gamma", or a number
        from 1 to 2, the power of the variance (Tweedie). The offset is the logarithm of the exposure.
    threshold: where `predict` draws the line: "half", a probability, or the best on held-out rows by
        "accuracy", "f1" or "balanced" (the mean of both classes' accuracy).
    key_bits: of Paillier keys. network: a profile for the clock, see securefed.transport.get_network.
    engine: parallel work, see securefed.engine. progress: a bar; None shows it at a terminal.
    """

    _kind: ClassVar[str] = "generalised-linear"
    _side: ClassVar[type[LabelModel]] = LabelModel
    _label_side: LabelModel

    def __init__(
        self,
        loss: str = "logistic",
        algorithm: Algorithm = FedBCD(local_steps=20),  # noqa: B008  # a frozen value
        scheme: str = "ckks",
        *,
        reveal: str = "nothing",
        release: bool | str = False,
        local_model: str | Mapping[str, str | LocalModel] = "linear",
        hidden: Sequence[int] = (16,),
        activation: str = "tanh",
        fit_intercept: bool = True,
        l2: str | float = "auto",
        learning_rate: str | float | LearningRate = "auto",
        optimiser: Any = "sgd",
        batch_size: int | None = None,
        fixed_batches: bool = False,
        rounds: int | str = 24,
        refit: bool = True,
        target: float | None = None,
        patience: int | None = None,
        evaluate_every: int | None = None,
        score_precision: int = 10,
        score_ledger: str = "refuse",
        exchange: str = "star",
        loss_form: str = "auto",
        margin_bound: float = 64.0,
        dp_noise: float = 0.0,
        allow_determined: bool = False,
        allow_unstable: bool = False,
        standardise: bool = True,
        holdout: float = 0.2,
        warm_start: bool = False,
        base: str = "zero",
        class_weight: str | Mapping[Any, float] | None = "auto",
        family: str | float | None = None,
        threshold: str | float = "half",
        key_bits: int = 3072,
        network: Any = "lan",
        engine: Any = None,
        seed: int = 0,
        progress: bool | None = None,
    ) -> None:
        self.loss = loss
        self.algorithm = algorithm
        self.scheme = scheme
        self.reveal = reveal
        self.release = release
        self.local_model = local_model
        self.hidden = hidden
        self.activation = activation
        self.fit_intercept = fit_intercept
        self.l2 = l2
        self.learning_rate = learning_rate
        self.optimiser = optimiser
        self.batch_size = batch_size
        self.fixed_batches = fixed_batches
        self.rounds = rounds
        self.refit = refit
        self.target = target
        self.patience = patience
        self.evaluate_every = evaluate_every
        self.score_precision = score_precision
        self.score_ledger = score_ledger
        self.exchange = exchange
        self.loss_form = loss_form
        self.margin_bound = margin_bound
        self.dp_noise = dp_noise
        self.allow_determined = allow_determined
        self.allow_unstable = allow_unstable
        self.standardise = standardise
        self.holdout = holdout
        self.warm_start = warm_start
        self.base = base
        self.class_weight = class_weight
        self.family = family
        self.threshold = threshold
        self.key_bits = key_bits
        self.network = network
        self.engine = engine
        self.seed = seed
        self.progress = progress

    def _recipe(self, parties: int = 2) -> LinearRecipe:
        simulation = {"standardise", "holdout", "threshold", "score_ledger", "base", "class_weight", "family"}
        simulation |= {"network", "engine", "progress", "warm_start"}
        settings = {k: v for k, v in self.get_params(deep=False).items() if k not in simulation}
        if settings["rounds"] == "auto":
            settings["rounds"] = automatic_rounds(parties)
            if settings["learning_rate"] != "auto":
                raise SettingError("rounds: 'auto' takes learning_rate='auto'")
        if check_flag("warm_start", self.warm_start):
            settings["refit"] = False
        return LinearRecipe(**settings)

    def _earlier(self, recipe: LinearRecipe) -> Start | None:
        """Where to begin, if not at 0."""
        if not self.warm_start:
            return None
        if protects(recipe.scheme) and not recipe.blind:
            raise SettingError(
                "warm_start: it takes reveal='nothing', or no protection; openings of gradients are counted"
                " by the run, and a further run would be more of the same"
            )
        if hasattr(self, "shards_") and not hasattr(self, "_start"):
            raise SettingError(
                "warm_start: a model that was loaded has nothing to begin with; a fit with warm_start=False"
                " comes first"
            )
        return getattr(self, "_start", None)

    @all_or_nothing
    def fit(
        self,
        parties: Sequence[Party],
        *,
        validation: Sequence[Party] | None = None,
        keys: Mapping[str, KeyHolder] | None = None,
    ) -> Self:
        """Train. `validation` (same parties, other rows) is what evaluations look at, in place of held-out
        rows.
        """
        parties = check_parties(parties)
        recipe = self._recipe(len(parties))
        self._check_simulation()
        check_holdout(self.holdout)
        check_threshold(self.threshold)
        earlier = self._earlier(recipe)
        last = label_party(parties).name
        # Turns are taken in this order; the paper's party K, with the labels, is last.
        aligned = sorted(align(parties, last), key=lambda p: p.name == last)
        if earlier is not None:
            ordered = self._match(aligned, self.parties_)
        else:
            fitted = [party.fitted(standardise=self.standardise) for party in aligned]
            ordered = [ready for ready, _ in fitted]
            self.transforms_ = {ready.name: transform for ready, transform in fitted}
        labels = self._labels_of(ordered[-1])
        self._label_side = (TargetModels if labels.ndim == 2 else self._side).of(
            labels,
            last,
            recipe.loss_function,
            standardise=self.standardise,
            taylor=not recipe.exact,
            wishes=self._wishes(aligned, recipe),
        )
        if labels.ndim == 2 and (not recipe.blind or recipe.release):
            raise SettingError(
                f"labels: {labels.shape[1]} columns given; several targets take reveal='nothing' under"
                " encryption, and release=False"
            )
        everybody = ordered
        train, held_rows = held_out(ordered[0].rows, 0.0 if validation else self.holdout, self.seed)
        self._label_side.check_measured(last, len(validation) if validation else len(held_rows))
        ordered = [party.take(train) for party in everybody]
        targets = self._label_side.targets(self._labels_of(ordered[-1]), last, self.margin_bound)
        local = {
            p.name: recipe.model(p.name, p.features.shape[1], last=p.name == last, index=i)
            for i, p in enumerate(ordered)
        }
        # A further model of the same people is a further question about them.
        guards = self._guards(list(local), {p.name: p for p in aligned} if earlier is None else None)
        outputs = self._label_side.outputs
        members = tuple(recipe.member(name, model) for name, model in local.items())
        seen = [party.take(held_rows) for party in everybody] if len(held_rows) else ordered
        if validation:
            seen = self._match(validation, [party.name for party in ordered])
        agreement = recipe.agreement(members, len(train) + len(held_rows), outputs, held=len(held_rows))
        if earlier is not None:
            earlier.check(agreement, len(held_rows), self.seed)
            if recipe.blind:
                agreement = replace(agreement, details=(*agreement.details, ("warm_start", True)))
            keys = keys or earlier.holders
            for name, model in local.items() if not recipe.blind else ():
                model.parameters = _known(self.shards_[name])
        if validation:
            agreement = replace(agreement, holdout=seen[0].rows)
        # Where the last rounds learn from the held-out rows too, programs take all.
        learning = everybody if agreement.batches.holdout_rows else ordered
        rows = learning[-1]
        learnt = self._label_side.aim(
            last,
            self.margin_bound,
            rows.features,
            self._label_side.targets(self._labels_of(rows), last, self.margin_bound),
            rows.weights,
            rows.offset,
            train if agreement.batches.holdout_rows else np.arange(rows.rows),
        )
        warn_of_trust(agreement.scheme, agreement.reveal, agreement.objective)
        holders = self._keys(agreement, keys)
        measured = self._label_side.targets(self._labels_of(seen[-1]), last, self.margin_bound)
        evaluations, held = self._evaluations(agreement, seen, measured)
        with self._mapper() as mapper, self._bar(agreement) as on_round:
            data_parties = {
                p.name: recipe.party(
                    agreement,
                    p.name,
                    local[p.name],
                    p.features,
                    learnt if p.name == last else None,
                    PartyContext(
                        holders.get(p.name),
                        mapper,
                        evaluations.get(p.name),
                        on_round if p.name == last else None,
                        guards.get(p.name),
                    ),
                )
                for p in learning
            }
            states = {} if earlier is None else earlier.states
            for party_name, party in data_parties.items():
                if party_name in states:
                    party.start_from(states[party_name])
            programs: dict[str, Program] = {name: party.run for name, party in data_parties.items()}
            helper: PartyLoop | None = None
            if (third := agreement.key_holder) is not None:
                helper = recipe.key_holder(agreement, PartyContext(holders.get(third), mapper))
                if third in states:
                    helper.start_from(states[third])
                programs[third] = helper.run
            run = self._run(programs)
        self.parties_ = list(agreement.names)
        self._holders = holders
        judged = self._judge(run.outcomes[last], held, ordered[-1], targets, seen[-1])
        self.result_ = RunResult.of(agreement, run, judged)
        self.shards_: dict[str, LocalModel | ModelPart] = {}
        for name, trained in data_parties.items():
            self.shards_[name] = local[name]
            if isinstance(trained, BlindParty):
                self.shards_[name] = self._blind_shard(trained, local[name])
        blind: dict[str, PartyLoop] = dict(data_parties) if recipe.blind else {}
        if isinstance(helper, BlindHelper):
            blind[str(agreement.key_holder)] = helper
            if not recipe.release:
                self.shards_[str(agreement.key_holder)] = helper.part
        left = {name: {**party.state(), **_root(party)} for name, party in blind.items()}
        self._start = Start(agreement, len(held_rows), self.seed, holders, left)
        return self

    def _blind_shard(self, party: BlindParty, model: LocalModel) -> LocalModel | ModelPart:
        """What a party keeps of a blind run: its parameters if they were released, else shares."""
        if party.parameters is None:
            return party.part
        model.parameters = party.parameters.ravel()
        return model

    def _wishes(self, parties: Sequence[Party], recipe: LinearRecipe) -> LabelOptions:
        """What the label party, the last, wants of its rows."""
        for party in parties[:-1]:
            if party.weights is not None or party.offset is not None:
                raise DataError(f"{party.name}: weights or an offset given, which the label party alone has")
        rows, own = parties[-1], check_choice("base", self.base, ("zero", "own")) == "own"
        weighted, offset = rows.weights is not None, rows.offset is not None
        found = LabelOptions(own, self.class_weight, check_family(self.family), weighted, offset)
        free = recipe.weighs_rare_classes and self._side is LabelModel and self.holdout > 0.0
        found = found.settled(self._labels_of(rows), free=free)
        found.check(recipe.loss_function, taylor=not recipe.exact, dp_noise=recipe.dp_noise)
        return found

    def _labels_of(self, party: Party) -> NDArray[Any]:
        if party.labels is None:
            raise DataError(f"{party.name}: no labels")
        return party.labels

    def _evaluations(
        self, agreement: Agreement, rows: Sequence[Party], targets: Array
    ) -> tuple[dict[str, EvaluationRows], HeldOut]:
        """What each party brings to evaluations, and the label party's measure."""
        held = self._label_side.held_out(targets, rows[-1].features, rows[-1].offset)
        if agreement.evaluate_every and held.name == "accuracy":
            lacking = "are all of one class" if self._label_side.outputs == 1 else "lack a class"
            raise DataError(f"evaluation: the labels of the rows to evaluate on {lacking}")
        self._know(rows)
        last = agreement.label_party
        evaluations = {p.name: EvaluationRows(p.features, held if p.name == last else None) for p in rows}
        return evaluations if agreement.evaluate_every or agreement.holdout else {}, held

    def _judge(
        self, outcome: Outcome, held: HeldOut, training: Party, targets: Array, seen: Party
    ) -> Holdout | None:
        """What the held-out rows say of the model that is kept."""
        self.judged_: tuple[HeldOut, Array, tuple[Array, Array, Array]] | None = None
        if not held.scores or seen is training:
            return None
        own = (training.features, targets, seen.features)
        scores = held.scores[outcome.kept(len(held.scores))]
        self.judged_ = (held, scores, own)
        found = self._label_side.learn(held, scores, own, self.threshold)
        if found.warning:
            warnings.warn(found.warning, QualityWarning, stacklevel=3)
        return found

    def _named(self, parties: Sequence[Party], names: Sequence[str]) -> list[Party]:
        """The same parties as in training, aligned, in the order of training."""
        by_name = {party.name: party for party in check_parties(parties)}
        if set(by_name) != set(names):
            raise DataError(f"parties: {', '.join(sorted(by_name))} given, the model has {', '.join(names)}")
        return align([by_name[name] for name in names], names[-1])

    def _match(self, parties: Sequence[Party], names: Sequence[str]) -> list[Party]:
        """Likewise, and transformed."""
        return [self._transformed(party) for party in self._named(parties, names)]

    def decision_function(self, parties: Sequence[Party]) -> Array:
        """H for new rows, by an encrypted run; the label party learns these scores and nobody else
        anything. For the linear loss in the labels' own units.
        """
        self._fitted()
        return self._label_side.numbers(self._scores(parties))

    def _scores(self, parties: Sequence[Party]) -> Array:
        recipe = self._recipe()
        rows = self._match(parties, self.parties_)
        parts: dict[str, Scorer] = {}
        blind: dict[str, ModelPart] = {}
        features = {}
        for party in rows:
            shard, columns = self.shards_[party.name], party.features
            if isinstance(shard, ModelPart):
                columns = recipe.augmented(columns, last=party.name == self.parties_[-1])
                blind[party.name] = shard
            else:
                parts[party.name] = LinearScorer(shard, self.margin_bound)
            given, due = columns.shape[1], _columns(shard)
            if due not in (None, given):
                raise DataError(f"{party.name}: {given} columns given, the model has {due}")
            features[party.name] = columns
        agreement = self._prediction_agreement(recipe, blind=bool(blind))
        with self._mapper() as mapper:
            guards = self._guards(agreement.names)
            self._know(rows)
            if blind:
                programs = self._blind_programs(recipe, agreement, features, mapper)
            else:
                self._holders = self._keys(agreement, self._fitting_holders(agreement))
                programs = predict_programs(agreement, parts, features, self._holders, mapper, guards)
            run = self._run(programs)
        scores: Array = run.outcomes[agreement.label_party]
        return self._label_side.total(scores, rows[-1].name, rows[-1].features, rows[-1].offset)

    def _blind_programs(
        self, recipe: LinearRecipe, agreement: Agreement, features: Mapping[str, Array], mapper: Mapper
    ) -> dict[str, Program]:
        """Of all who have a part of the model, the helper too."""
        scheme, count = recipe.cross_scheme(), len(features[agreement.label_party])
        return {
            name: blind_program(
                agreement, part, features.get(name), count, scheme, mapper, self.score_guards_.get(name)
            )
            for name, part in self.shards_.items()
            if isinstance(part, ModelPart)
        }

    def _prediction_agreement(self, recipe: LinearRecipe, *, blind: bool) -> Agreement:
        members = tuple(Member(name, 1, blind) for name in self.parties_)
        unwatched: dict[str, Any] = {"batch_size": None, "target": None, "patience": None, "dp_noise": 0.0}
        settings = replace(recipe, **unwatched, local_model="linear")
        if recipe.blind and not blind:  # released parameters are scored like any linear model
            settings = replace(settings, reveal="own-gradient", release=False)
        return settings.agreement(members, 1, self._label_side.outputs)

    def predict_proba(self, parties: Sequence[Party]) -> Array:
        """Probabilities of the two classes (logistic loss)."""
        self._fitted()
        if not get_loss(self.loss).binary:
            raise SettingError(f"predict_proba: the loss 'logistic' has probabilities, {self.loss!r} given")
        positive = self._label_side.probabilities(self._scores(parties))
        return np.column_stack([1.0 - positive, positive])

    def predict(self, parties: Sequence[Party]) -> NDArray[Any]:
        """Classes, or numbers for the linear loss."""
        self._fitted()
        return self._label_side.answers(self._scores(parties), self.threshold)

    def score(self, parties: Sequence[Party], metric: str | None = None) -> float:
        """Return a metric on rows whose labels are given.

        Parameters
        ----------
        metric: a name of securefed.labels.metrics; None: accuracy, R2, or D2 for a family.
        """
        self._fitted()
        rows = label_party(self._named(parties, self.parties_))
        labels, scores = self._labels_of(rows), self._scores(parties)
        answers = self._label_side.beside(labels, scores, rows.name, rows.offset, self.threshold)
        return self._label_side.score(answers, metric)

    def save(self, folder: str | PathLike[str]) -> None:
        """One file a party, with its own part of the model only, and what all know.

        Parts of a blind model are shares, uniform by themselves; a helper has one too. How a party prepares
        its columns is in its file too, but for a transformer of the user's own, which goes to `load` again.
        """
        self._fitted()
        public: dict[str, Any] = {
            "estimator": self._kind,
            "parties": self.parties_,
            "loss": self.loss,
            "margin_bound": self.margin_bound,
            "fit_intercept": self.fit_intercept,
            "classes": None if self._label_side.classes is None else self._label_side.classes.tolist(),
        }
        for shard in self.shards_.values():
            if isinstance(shard, ModelPart):
                public["blind"] = shard.plan.to_dict()
        note = np.array(json.dumps(public))
        for name, shard in self.shards_.items():
            arrays: Shard = dict(shard.to_arrays())
            arrays |= guard_arrays(getattr(self, "score_guards_", {}).get(name))
            arrays |= fitted_arrays(self.transforms_.get(name))
            arrays |= self._label_side.to_arrays() if name == self.parties_[-1] else {}
            write_shard(FilePath(folder), name, {**arrays, "public": note})

    @classmethod
    def load(
        cls,
        folder: str | PathLike[str],
        *,
        transforms: Mapping[str, Any] | None = None,
        **parameters: Any,
    ) -> Self:
        """The estimator with the shards that `save` wrote.

        `transforms`: the fitted ones, by party. `parameters` as for the constructor (scheme, network, ...).
        """
        public, shards = read_shards(folder, cls._kind, ("loss", "margin_bound", "fit_intercept", "classes"))
        bounds = {"margin_bound": public["margin_bound"], "fit_intercept": public["fit_intercept"]}
        classes = None if public["classes"] is None else np.array(public["classes"])
        labelled = shards[public["parties"][-1]]
        several = TargetModels if "targets.count" in labelled else cls._side
        side = several.take(labelled, get_loss(public["loss"]), classes)
        plan: ScorePlan | None = None
        if "blind" not in public:
            # Parameters that their owners know are scored under any scheme; nothing is left to reveal.
            parameters = {"reveal": "own-gradient", **parameters}
        else:
            plan = ScorePlan.from_dict(public["blind"])
        fixed = {"loss": public["loss"], **bounds}
        check_free(parameters, fixed)
        self = cls(**fixed, **parameters)
        self.parties_ = public["parties"]
        self.transforms_ = take_fitted(shards, transforms)
        self.score_guards_ = take_guards(shards)
        self._label_side = side
        self.shards_ = {name: _shard(folder, name, arrays, plan) for name, arrays in shards.items()}
        return self

    @property
    def holders_(self) -> dict[str, KeyHolder]:
        """The key-holders of the run: for another fit, or to save with securefed.crypto.save_key."""
        self._fitted()
        return dict(getattr(self, "_holders", {}))

    @property
    def coef_(self) -> dict[str, dict[str, float]]:
        """Each party's own coefficients by column, in the columns' own units, where they are known."""
        self._fitted()
        return coefficients(self.shards_, self.transforms_, self._label_side)

    @property
    def intercept_(self) -> float:
        """What all coefficients are added to."""
        self._fitted()
        return intercept(self.shards_, self.transforms_, self._label_side)

    @property
    def log_odds_(self) -> tuple[float, dict[str, dict[str, float]]]:
        """Intercept and coefficients of the log odds of the second class: `coef_` is on the scale of scores,
        and the held-out rows say what a score is worth.
        """
        self._fitted()
        return log_odds(self.shards_, self.transforms_, self._label_side)

    @property
    def classes_(self) -> NDArray[Any]:
        """The two classes, in sorted order (binary losses)."""
        found = self._label_side.classes if hasattr(self, "_label_side") else None
        if found is None:
            raise AttributeError("classes_: a fitted model of a binary loss has them")
        return found


def _root(party: PartyLoop) -> dict[str, Array]:
    """The basis of a blind party's parameters, for a warm start."""
    return {"root": party.part.root} if isinstance(party, BlindParty) and party.part.root is not None else {}


def _columns(shard: LocalModel | ModelPart) -> int | None:
    """Columns that a part of the model takes, where it says so (a blind one counts the intercept's)."""
    if isinstance(shard, ModelPart):
        return None if shard.root is None else len(shard.root)
    columns: int | None = getattr(shard, "columns", None)
    return columns


def _known(shard: LocalModel | ModelPart) -> Array:
    if isinstance(shard, ModelPart):
        raise SettingError("warm_start: shared parameters were left by the fit before")
    return shard.parameters


def _shard(
    folder: str | PathLike[str], name: str, arrays: Shard, plan: ScorePlan | None
) -> LocalModel | ModelPart:
    if plan is not None:
        try:
            return ModelPart.from_arrays(plan, arrays)
        except DataError as error:
            raise DataError(f"{folder}: the shard of {name} {error}") from None
    model = models.from_arrays(arrays)
    if isinstance(model, models.HiddenLayer):
        raise DataError(f"{folder}: the shard of {name} holds a hidden layer, not a local model")
    return model
