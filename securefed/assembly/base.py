"""What a run of one objective is assembled from: everything that differs between objectives.

From the settings of a run, and what the others say about themselves in public (`Member`), each party builds
the agreement and its own program. Simulations, party processes and plans all do so here, and know no
objective by its name.

A party's file has its own part of a model, and what all parties know of the model. Parts of a blind model are
shares, uniform by themselves; a helper has one too. A file has mode 0600: a part is its owner's alone.
"""

from __future__ import annotations

import io
import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from securefed.crypto import Serial
from securefed.crypto.blind.interface import CrossScheme
from securefed.declare import check_choice
from securefed.errors import DataError, SettingError, plain_text
from securefed.files import UNREADABLE, release, write_atomically
from securefed.labels.label_model import LabelModel
from securefed.models import HiddenLayer, LocalModel
from securefed.protocols.agreement import Agreement, Member, Objective
from securefed.protocols.agreement import register as register_objective
from securefed.protocols.blind.scoring import ModelPart, ScorePlan, blind_program
from securefed.protocols.loop import PartyContext, PartyLoop
from securefed.protocols.own_gradient.prediction import score_program
from securefed.protocols.own_gradient.sides import Scorer
from securefed.protocols.schedules import Batches, LearningRate, held_out
from securefed.settings.objectives import OBJECTIVE_SETTINGS, ObjectiveSettings
from securefed.settings.protection import ByGradient
from securefed.transport.link import Link, Program

PUBLIC = "public"
Arrays = dict[str, NDArray[np.generic]]
FORMAT = 2
"""The format of the files. A new number keeps older releases from reading a part wrongly."""


def shard_file(party: str) -> str:
    return f"shard-{party}.npz"


def write_arrays(path: Path, arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Write arrays by name into one file, whole or not at all."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    write_atomically(path, buffer.getvalue())


def read_arrays(path: Path, what: str) -> Arrays:
    """Return the arrays of a file; DataError where it is not `what` it should be."""
    try:
        archive = np.load(io.BytesIO(path.read_bytes()), allow_pickle=False)
        if not isinstance(archive, NpzFile):
            raise ValueError("one array without a name")
        with archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise DataError(f"{path}: no {what} there; train first") from None
    except UNREADABLE as error:
        line = str(error).strip().split("\n", 1)[0]
        raise DataError(f"{path}: not a {what} ({line})") from None


def write_part(path: Path, public: Mapping[str, Any], arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Write a party's part of a model. `public` has the parties and the estimator's word."""
    note = np.array(json.dumps({**public, "format": FORMAT, "release": release()}, sort_keys=True))
    write_arrays(path, {**arrays, PUBLIC: note})


def read_part(path: Path) -> tuple[dict[str, Any], Arrays]:
    """Return what all know of a model, and the party's arrays."""
    arrays = read_arrays(path, "model shard")
    try:
        public = json.loads(str(arrays.pop(PUBLIC)))
        if not isinstance(public["parties"], list) or not isinstance(public["estimator"], str):
            raise ValueError("no parties")
    except (KeyError, ValueError, TypeError):
        raise DataError(f"{path}: not a model shard") from None
    if public.get("format") != FORMAT:
        wrote = plain_text(public.get("release", "of an earlier release"), 30)
        raise DataError(
            f"{path}: a model shard of format {plain_text(public.get('format'), 10)}, written by securefed "
            f"{wrote}; securefed {release()} reads format {FORMAT}: use that release, or train again"
        )
    return public, arrays


Array = NDArray[np.float64]
Places = NDArray[np.intp]
Model = LocalModel | HiddenLayer
AnyPart = Scorer | ModelPart
S = TypeVar("S", bound=ObjectiveSettings)
KEY_HOLDER = "key-holder"
HELPER = "helper"
"""The party without data of a simulated run: it holds the key, or the second shares of a blind run."""


@dataclass(frozen=True, eq=False, kw_only=True)
class PartyData:
    """A party's rows as numbers, and what it knows of its labels."""

    features: Array
    """Prepared columns."""
    targets: Array | None = None
    """-1 and +1 (NaN where unknown), or numbers; a column for each class or target."""
    labels: LabelModel | None = None
    """How labels became targets, and how scores will become answers."""
    untransformed: Places | None = None
    """Which of the columns are as they were in the file; None: all."""
    weights: Array | None = None
    offset: Array | None = None
    ids: Collection[str] | None = None
    """Whom the rows are about, in the agreed form."""

    @property
    def known(self) -> NDArray[np.bool_] | None:
        """Which rows have labels; None at a party without labels."""
        return None if self.targets is None else known_rows(self.targets)


def known_rows(targets: Array) -> NDArray[np.bool_]:
    return np.asarray(~np.isnan(targets.reshape(len(targets), -1)).any(axis=1), dtype=np.bool_)


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """A party's columns and targets, of which `rows` are the common ones, in the agreed order."""

    features: Array
    targets: Array | None
    rows: Places
    labelled: NDArray[np.bool_]
    """Which of the common rows have labels."""

    @classmethod
    def whole(cls, features: Array, targets: Array | None) -> Self:
        """All rows are common, and have labels."""
        return cls(features, targets, np.arange(len(features)), np.ones(len(features), dtype=np.bool_))


class Assembly(ABC, Generic[S]):
    """The parts of a run of one objective, from its settings."""

    settings_class: ClassVar[type[ObjectiveSettings]]
    estimator: ClassVar[str]
    """The word in a shard that says which estimator reads it."""
    needed: ClassVar[tuple[str, ...]] = ()
    """The settings of the objective or the protection that a saved model needs."""

    def __init__(self, settings: S, scheme: CrossScheme | None = None) -> None:
        self.settings = settings
        self._scheme = scheme

    @property
    def scheme(self) -> CrossScheme:
        """The encrypted product of a blind run: that of the settings, or another one (plans, tests)."""
        return self.settings.cross_scheme() if self._scheme is None else self._scheme

    # A run

    @abstractmethod
    def model(self, name: str, columns: int, *, last: bool, index: int, seed: int | None = None) -> Model:
        """Return a party's part of the model before training. `seed`: where it starts, if that is random."""

    def member(self, name: str, model: Model, columns: int = 0) -> Member:
        """Return a party as the others know it; `columns`: of its model, by their weight."""
        return Member(name, model.size, model.is_linear, columns if model.is_linear else 0)

    def party_model(self, name: str, parties: Sequence[str], prepared: int, seed: int | None = None) -> Model:
        """Return the model of one of `parties`, the label party last, that has so many prepared columns."""
        last, place = name == parties[-1], list(parties).index(name)
        return self.model(name, self.columns(prepared), last=last, index=place, seed=seed)

    def columns(self, prepared: int) -> int:
        """Return how many columns a program takes, of so many prepared ones."""
        return prepared

    def features(self, prepared: Array, untransformed: Places | None) -> Array:
        """Return the columns as a program takes them; `untransformed` indexes the raw ones."""
        return prepared

    @abstractmethod
    def agreement(
        self, members: tuple[Member, ...], rows: int, outputs: int = 1, holdout: int = 0
    ) -> Agreement:
        """Return what all parties run by. `holdout` of the common `rows` are held out."""

    def agree(self, members: Sequence[Member], rows: int, outputs: int = 1) -> Agreement:
        """Return what all parties run by, of so many common rows."""
        holdout = len(held_out(rows, self.settings.holdout, self.settings.seed)[1])
        return self.agreement(tuple(members), rows, outputs, holdout=holdout)

    def agreed(
        self, members: tuple[Member, ...], rate: LearningRate, batches: Batches, holdout: int, **more: Any
    ) -> Agreement:
        """Return an agreement with what every objective has, and `more`."""
        settings = self.settings
        stopping = more.pop("stopping", None) or settings.stopping()
        return Agreement(
            settings.objective,
            settings.scheme,
            members,
            settings.algorithm,
            rate,
            batches,
            stopping,
            holdout=holdout,
            evaluate_every=settings.monitoring.every,
            score_precision=settings.option("score_precision"),
            allow_determined=settings.option("allow_determined"),
            reveal=settings.protection.reveal,
            **more,
        )

    @abstractmethod
    def program(
        self, agreement: Agreement, name: str, model: Model, data: TrainingRows, context: PartyContext
    ) -> PartyLoop:
        """Return a party's program."""

    def key_holder(self, agreement: Agreement, context: PartyContext) -> PartyLoop:
        """Return the program of the party without data: a helper, or a key-holder."""
        raise SettingError(f"objective: {agreement.objective!r} has no party without data")

    @property
    def rehearsed_rate(self) -> Any:
        """The learning rate of a rehearsal: one that moves nothing far."""
        return 1e-3

    def rehearsed(self) -> S:
        """Return settings for random columns that change nothing of what is sent.

        A rate was chosen for the real columns. The plan reports ledger refusals, so this does not raise.
        """
        protection = self.settings.protection
        if isinstance(protection, ByGradient):
            protection = replace(protection, allow_determined=True)
        return replace(self.settings, learning_rate=self.rehearsed_rate, protection=protection)

    # What is kept

    def part(self, program: Any) -> AnyPart:
        """Return a party's part of the model that its program trained; a helper's too."""
        part: AnyPart = program.part if self.settings.blind else program.side.scorer()
        return part

    def released(self, program: Any, *, last: bool) -> Model | None:
        """Return the party's own model where a blind run opened its parameters to it."""
        return None

    def facts(self) -> dict[str, Any]:
        """Return the settings that a saved model needs."""
        own = self.settings
        return {name: getattr(own, name) if hasattr(own, name) else own.option(name) for name in self.needed}

    def save(self, part: AnyPart, released: Model | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what all know of the model, and the party's own arrays.

        Released parameters lie beside the shares, for their owner to read; scores take the shares.
        """
        public, arrays = self.facts(), dict(part.to_arrays())
        if isinstance(part, ModelPart):
            public |= {"scheme": self.settings.scheme, "blind": part.plan.to_dict()}
        return public, {**arrays, **({} if released is None else released.to_arrays())}

    def load(self, public: Mapping[str, Any], arrays: dict[str, Any]) -> AnyPart:
        """Return the part of the model that `save` gave."""
        if "blind" in public:
            return ModelPart.from_arrays(ScorePlan.from_dict(public["blind"]), arrays)
        return self.load_scorer(public, arrays)

    @abstractmethod
    def load_scorer(self, public: Mapping[str, Any], arrays: dict[str, Any]) -> Scorer:
        """Return a part of a model whose owners know their parameters."""

    def scored(self, part: AnyPart, prepared: Array, untransformed: Places | None, *, last: bool) -> Array:
        """Return the columns of rows that are scored."""
        return self.features(prepared, untransformed)

    def prediction_agreement(self, parties: Sequence[str], outputs: int, key_holder: str | None) -> Agreement:
        """Return what a prediction runs by: everybody derives the same from the settings."""
        settings = self.settings.for_prediction()
        members = tuple(Member(name, 1, settings.blind) for name in parties)
        agreement = type(self)(settings).agreement(members, 1, outputs)
        return replace(agreement, key_holder=key_holder)

    def prediction_program(
        self,
        agreement: Agreement,
        name: str,
        part: AnyPart | None,
        data: PartyData | None,
        rows: int,
        context: PartyContext,
    ) -> Program:
        """Return one party's program of a run that only predicts: the label party's returns the scores.

        A key-holder has no `part`. `data` has prepared columns, and is None at a party that needs none. With
        labels, what the label party adds to scores by itself is in them.
        """
        features, last = None, name == agreement.label_party
        mapper, guard = context.mapper or Serial(), context.guard
        if data is not None and part is not None:
            features = self.scored(part, data.features, data.untransformed, last=last)
            if guard is not None and data.ids is not None:
                guard.know(features, [each.encode() for each in data.ids])
        if isinstance(part, ModelPart):
            if features is None and last:
                # In transfer learning their number is all that counts.
                features = self.scored(part, np.zeros((rows, 0)), None, last=True)
            program = blind_program(agreement, part, features, rows, self.scheme, mapper, guard)
        else:
            program = score_program(agreement, part, features, rows, context.holder, mapper, guard)
        if data is None or data.labels is None:
            return program
        labels, offset = data.labels, data.offset

        async def total(link: Link) -> Array:
            return labels.total(await program(link), name, offset)

        return total


ASSEMBLIES: dict[str, type[Assembly[Any]]] = {}


def register(assembly: type[Assembly[Any]], objective: Objective | None = None) -> None:
    """Make an objective known.

    `objective`: what the protocols have to know of it. The package's own have that already.
    """
    name = assembly.settings_class.objective
    if name in ASSEMBLIES:
        raise SettingError(f"objective: {name!r} given, and there is one of that name")
    if objective is not None:
        register_objective(name, objective)
        OBJECTIVE_SETTINGS[name] = assembly.settings_class
    ASSEMBLIES[name] = assembly


def assembly_of(settings: ObjectiveSettings, scheme: CrossScheme | None = None) -> Assembly[Any]:
    return ASSEMBLIES[check_choice("objective", settings.objective, ASSEMBLIES)](settings, scheme)
