"""A party's part of the model on disk, and back again for a prediction.

shard-<party>.npz holds the party's own part in the form that the estimators read, and beside it what all
parties know: its parameters, or shares of the model where nothing was revealed. A helper has one too. It is a
file of mode 0600; a part is its owner's alone. preparation-<party>.npz says how columns were prepared and, at
the label party, what the classes are called.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.assembly import Trained, kit_of
from securefed.assembly.kit import Part
from securefed.data.columns import Columns
from securefed.errors import DataError
from securefed.files import UNREADABLE, write_atomically
from securefed.labels.label_model import LabelModel
from securefed.labels.quality import Holdout
from securefed.process.run_settings import RunSettings
from securefed.protocols.agreement import Agreement, Member

__all__ = [
    "Shard",
    "label_arrays",
    "prediction_agreement",
    "read_arrays",
    "read_shard",
    "save_shard",
    "take_labels",
    "write_arrays",
]

Array = NDArray[np.float64]
Arrays = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True, eq=False)
class Shard:
    """A party's part of a trained model. `public`: what all parties know of it."""

    public: Mapping[str, Any]
    part: Part
    preparation: Columns | None = None
    """At a party with data."""
    labels: LabelModel | None = None
    """At the label party."""
    score_bits: float | None = None
    """What the party's columns held when it trained (securefed.data.entropy), for its score ledger."""

    @property
    def instance(self) -> str:
        return str(self.public["instance"])

    @property
    def columns(self) -> Columns:
        """How the party prepares its columns."""
        if self.preparation is None:
            raise DataError("columns: a party without data has none")
        return self.preparation


def write_arrays(path: Path, arrays: Arrays) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    write_atomically(path, buffer.getvalue())


def read_arrays(path: Path, what: str) -> dict[str, NDArray[np.generic]]:
    try:
        held = np.load(io.BytesIO(path.read_bytes()), allow_pickle=False)
        if not isinstance(held, np.lib.npyio.NpzFile):
            raise ValueError("one array without a name")
        with held:
            return {name: held[name] for name in held.files}
    except FileNotFoundError:
        raise DataError(f"{path}: no {what} there; train first") from None
    except UNREADABLE as error:
        raise DataError(f"{path}: not a {what} ({error})") from None


def save_shard(
    path: Path, shared: RunSettings, agreement: Agreement, instance: str, trained: Trained
) -> None:
    """The party's own part, and what all know."""
    kit = shared.kit()
    known, arrays = kit.save(agreement, trained)
    public = {
        "parties": list(shared.parties),
        "instance": instance,
        "run": shared.name,
        "classes": None,
        "estimator": kit.estimator,
        **known,
    }
    held = trained.program.guard.column_bits
    arrays["score_bits"] = np.array(np.nan if held is None else held)
    write_arrays(path, {**arrays, "public": np.array(json.dumps(public, sort_keys=True))})


def read_shard(path: Path, preparation: Path | None, shared: RunSettings) -> Shard:
    """What `save_shard` wrote, with the preparation beside it; a helper has none."""
    arrays = read_arrays(path, "model shard")
    try:
        public = json.loads(str(arrays.pop("public")))
        parties = tuple(public["parties"])
        _ = public["instance"], public["estimator"]
    except (KeyError, ValueError, TypeError):
        raise DataError(f"{path}: not a model shard of a run") from None
    if parties != shared.parties:
        raise DataError(
            f"{path}: a model of {', '.join(parties)}, this run is of {', '.join(shared.parties)}"
        )
    if shared.blind and not isinstance(public.get("blind"), dict):
        raise DataError(f"{path}: made by an earlier version of securefed; train again")
    labels, prepared = None, None
    if preparation is not None:
        beside = read_arrays(preparation, "preparation")
        labels, _ = take_labels(beside, shared)
        prepared = Columns.from_arrays(beside)
    held = float(arrays.pop("score_bits", np.array(np.nan)))
    try:
        part = shared.kit().load(public, arrays, parties, shared.outputs)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    return Shard(public, part, prepared, labels, None if np.isnan(held) else held)


def label_arrays(labels: LabelModel, holdout: Holdout | None) -> dict[str, NDArray[np.generic]]:
    """What the label party knows of its labels, and how good the model was."""
    classes = None if labels.classes is None else labels.classes.tolist()
    told = None if holdout is None else holdout.to_dict()
    return {
        "classes": np.array(json.dumps(classes)),
        "holdout": np.array(json.dumps(told)),
        **labels.to_arrays(),
    }


def take_labels(
    arrays: dict[str, NDArray[np.generic]], shared: RunSettings
) -> tuple[LabelModel | None, dict[str, Any] | None]:
    """The same from a file of arrays; it is taken out of them."""
    if "classes" not in arrays:
        return None, None
    names: list[Any] | None = json.loads(str(arrays.pop("classes")))
    told: dict[str, Any] | None = json.loads(str(arrays.pop("holdout", np.array("null"))))
    loss = shared.recipe().loss_function
    classes = None if names is None else np.array(names)
    if shared.outputs == 1:
        return LabelModel.take(arrays, loss, classes), told
    from securefed.labels.classes import ClassModels

    return ClassModels.take(arrays, loss, classes), told


def prediction_agreement(shared: RunSettings) -> Agreement:
    """What a prediction runs by: everybody derives the same from the settings."""
    unwatched: dict[str, Any] = {"batch_size": None, "target": None, "patience": None, "evaluate_every": 0}
    settings = replace(shared.kit().for_prediction(), **unwatched)
    members = tuple(Member(name, 1, settings.blind) for name in shared.parties)
    agreement = kit_of(settings).agreement(members, 1, shared.outputs)
    return replace(agreement, key_holder=shared.key_holder)
