"""What a party keeps for predictions: its part of the model, and the ledger of what scores have shown.

shard-<party>.npz holds the party's own part (securefed.assembly.base), as the estimators read it too.
preparation-<party>.npz says how columns were prepared and, at the label party, what the classes are called.

score-ledger.bin lies beside the party's keys and counts over all its runs (protocols.scoring.score_ledger).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.assembly import assembly_of
from securefed.assembly.base import AnyPart, Array, read_arrays, read_part, write_part
from securefed.data.columns import FittedColumns
from securefed.errors import DataError
from securefed.labels.label_model import LabelModel
from securefed.labels.quality import Holdout
from securefed.labels.several import label_model_of
from securefed.process.keys import PartyKeys
from securefed.protocols.loop import PartyLoop
from securefed.protocols.scoring.score_ledger import ScoreGuard
from securefed.settings.party import PartyFile
from securefed.settings.run import RunSettings

TRAINING_SCORES, MOST_SCORES = "training_scores", 1001


@dataclass(frozen=True, eq=False)
class Shard:
    """A party's part of a trained model, and the name of the run's start that made it."""

    instance: str
    part: AnyPart | None = None
    """None at a key-holder."""
    columns: FittedColumns | None = None
    """How a party with data prepares its columns."""
    labels: LabelModel | None = None
    """At the label party."""
    training_scores: Array | None = None
    """At the label party: quantiles of the scores of held-out people, to compare new people with."""
    score_bits: float | None = None
    """What the party's columns held when it trained (securefed.data.columns), for its score ledger."""


def save_shard(path: Path, party: str, shared: RunSettings, instance: str, program: PartyLoop) -> None:
    """Write the party's own part, and what all know."""
    assembly = assembly_of(shared.settings)
    released = assembly.released(program, last=party == shared.label_party)
    known, arrays = assembly.save(assembly.part(program), released)
    public = {
        "parties": list(shared.parties),
        "instance": instance,
        "run": shared.name,
        "classes": None,
        "estimator": assembly.estimator,
        "key_holder": shared.key_holder,
        **known,
    }
    arrays["score_bits"] = np.array(program.guard.column_bits, dtype=np.float64)
    write_part(path, public, arrays)


def read_shard(path: Path, preparation: Path | None, shared: RunSettings) -> Shard:
    """Return what `save_shard` wrote, with the preparation beside it; a helper has none."""
    public, arrays = read_part(path)
    parties = tuple(public["parties"])
    if "instance" not in public:
        raise DataError(f"{path}: not a model shard of a run; train first: securefed party")
    if parties != shared.parties:
        raise DataError(
            f"{path}: a model of {', '.join(parties)}, and [run] names {', '.join(shared.parties)}; name the "
            "parties of the training"
        )
    labels, columns, scores = None, None, None
    if preparation is not None:
        beside = read_arrays(preparation, "preparation")
        labels, _ = take_labels(beside, shared)
        if TRAINING_SCORES in beside:
            scores = np.asarray(beside.pop(TRAINING_SCORES), dtype=np.float64)
        columns = FittedColumns.from_arrays(beside)
    bits = float(arrays.pop("score_bits", np.array(np.nan)))
    try:
        part = assembly_of(shared.settings).load(public, arrays)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    return Shard(str(public["instance"]), part, columns, labels, scores, None if np.isnan(bits) else bits)


def label_arrays(
    labels: LabelModel, holdout: Holdout | None, scores: Array | None = None
) -> dict[str, NDArray[np.generic]]:
    """What the label party knows of its labels, how good the model was, and how held-out people scored."""
    classes = None if labels.classes is None else labels.classes.tolist()
    measured = None if holdout is None else holdout.to_dict()
    arrays: dict[str, NDArray[np.generic]] = {
        "classes": np.array(json.dumps(classes)),
        "holdout": np.array(json.dumps(measured)),
        **labels.to_arrays(),
    }
    if scores is not None and scores.ndim == 1 and labels.wishes.family is None:
        arrays[TRAINING_SCORES] = np.quantile(scores, np.linspace(0.0, 1.0, min(len(scores), MOST_SCORES)))
    return arrays


def take_labels(
    arrays: dict[str, NDArray[np.generic]], shared: RunSettings
) -> tuple[LabelModel | None, dict[str, Any] | None]:
    """Return what `label_arrays` wrote, and remove it from the arrays of a file."""
    if "classes" not in arrays:
        return None, None
    names: list[Any] | None = json.loads(str(arrays.pop("classes")))
    measured: dict[str, Any] | None = json.loads(str(arrays.pop("holdout", np.array("null"))))
    loss = shared.settings.loss_function
    return label_model_of(arrays, loss, names), measured


SCORE_LEDGER = "score-ledger.bin"


def score_guard(party: PartyFile, keys: PartyKeys, column_bits: float | None = None) -> ScoreGuard:
    """What this party blurs and counts by when it is scored; the same in every run of its folder."""
    return ScoreGuard(
        keys.score_key,
        party=party.own.name,
        mode=party.own.score_ledger,
        path=party.keys_folder / SCORE_LEDGER,
        column_bits=column_bits,
    )
