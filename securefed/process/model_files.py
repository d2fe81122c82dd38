"""What a party keeps for predictions: its part of the model, and the ledger of what scores have shown.

shard-<party>.npz holds the party's own part (securefed.assembly.base), as the estimators read it too.
preparation-<party>.npz says how columns were prepared and, at the label party, what the classes are called.

score-ledger.bin lies beside the party's keys and counts over all its runs:

    magic 4 b"SFSL" | version 1 | key print 16 | records (protocols.scoring.score_ledger)

A record is appended under a lock, held since the file was read, and is on disk before the scores that it is
about leave. One that was cut off by a crash was never answered, and is taken away by the next. The file
belongs to the key that people are hashed with; with another key it would find nobody, so that is refused.
score-ledger.mark says how long the ledger was after the last record. A shorter ledger has lost records of
what was shown, and is refused.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.assembly import Trained, assembly_of
from securefed.assembly.base import Part, read_arrays, read_part, write_part
from securefed.data.columns import FittedColumns
from securefed.errors import DataError
from securefed.files import storage_error, write_atomically
from securefed.labels.label_model import LabelModel
from securefed.labels.quality import Holdout
from securefed.labels.several import label_model_of
from securefed.process.keys import PartyKeys
from securefed.protocols.scoring.blur import ScoreGuard
from securefed.protocols.scoring.score_ledger import whole_records
from securefed.settings.party import PartyFile
from securefed.settings.run import RunSettings

Array = NDArray[np.float64]
TRAINING_SCORES, MOST_SCORES = "training_scores", 1001


@dataclass(frozen=True, eq=False)
class Shard:
    """A party's part of a trained model. `public`: what all parties know of it."""

    public: Mapping[str, Any]
    part: Part
    preparation: FittedColumns | None = None
    """At a party with data."""
    labels: LabelModel | None = None
    """At the label party."""
    training_scores: Array | None = None
    """At the label party: quantiles of the scores of held-out people, to compare new people with."""
    score_bits: float | None = None
    """What the party's columns held when it trained (securefed.data.columns), for its score ledger."""

    @property
    def instance(self) -> str:
        return str(self.public["instance"])

    @property
    def columns(self) -> FittedColumns:
        """How the party prepares its columns."""
        if self.preparation is None:
            raise DataError("columns: a party without data has none")
        return self.preparation


def save_shard(path: Path, shared: RunSettings, instance: str, trained: Trained) -> None:
    """Write the party's own part, and what all know."""
    assembly = assembly_of(shared.settings)
    known, arrays = assembly.save(assembly.part(trained), assembly.released(trained))
    public = {
        "parties": list(shared.parties),
        "instance": instance,
        "run": shared.name,
        "classes": None,
        "estimator": assembly.estimator,
        "key_holder": shared.key_holder,
        **known,
    }
    bits = trained.program.guard.column_bits
    arrays["score_bits"] = np.array(np.nan if bits is None else bits)
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
    return Shard(public, part, columns, labels, scores, None if np.isnan(bits) else bits)


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
    """The same from a file of arrays; it is taken out of them."""
    if "classes" not in arrays:
        return None, None
    names: list[Any] | None = json.loads(str(arrays.pop("classes")))
    measured: dict[str, Any] | None = json.loads(str(arrays.pop("holdout", np.array("null"))))
    loss = shared.settings.loss_function
    return label_model_of(arrays, loss, names), measured


SCORE_LEDGER = "score-ledger.bin"
MAGIC = b"SFSL\x01"
PRINT = 16


class ScoreFile:
    """A ScoreStore in a file."""

    def __init__(self, path: Path, key: bytes) -> None:
        self._path, self._key = path, key
        self._head = MAGIC + blake2b(b"", key=key, person=b"score file", digest_size=PRINT).digest()
        self._end = len(self._head)
        self._descriptor: int | None = None
        """Open while the lock is held."""

    def read(self) -> bytes:
        if not self._path.exists():
            self._check_mark(0)
            return b""
        with self.held() as descriptor:
            records = self._rest(descriptor)
            self._check_mark(os.fstat(descriptor).st_size)
        self._end += len(records)
        return records

    def append(self, record: bytes) -> None:
        with self.held() as descriptor:
            size = os.fstat(descriptor).st_size
            if size < len(self._head):  # new, or cut off when it was
                os.ftruncate(descriptor, 0)
                record = self._head + record
            else:
                os.ftruncate(descriptor, self._end + len(self._rest(descriptor)))
            os.lseek(descriptor, 0, os.SEEK_END)
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.write(record)
                file.flush()
                os.fsync(descriptor)
            self._write_mark(os.fstat(descriptor).st_size)

    @property
    def _mark(self) -> Path:
        return self._path.with_suffix(".mark")

    def _write_mark(self, size: int) -> None:
        length = size.to_bytes(8, "big")
        write_atomically(self._mark, length + self._sealed(length))

    def _sealed(self, length: bytes) -> bytes:
        return blake2b(length, key=self._key, person=b"score mark", digest_size=PRINT).digest()

    def _check_mark(self, size: int) -> None:
        """Refuse a ledger that has lost records since the last one was written."""
        if not self._mark.exists():
            return
        blob = self._mark.read_bytes()
        whole = len(blob) == 8 + PRINT and blob[8:] == self._sealed(blob[:8])
        if not whole or size < int.from_bytes(blob[:8], "big"):
            lost = "is shorter than its mark says" if whole else "has a damaged mark"
            raise DataError(
                f"{self._path} {lost}: records of what scores have shown are missing; put the file back from"
                f" a backup. Only if they are lost for good, delete {self._mark.name}: scores then count anew"
            )

    def _rest(self, descriptor: int) -> bytes:
        """Whole records from where this reader is."""
        with os.fdopen(os.dup(descriptor), "rb") as file:
            file.seek(0)
            head = file.read(len(self._head))
            if len(head) < len(self._head):
                return b""
            if head[: len(MAGIC)] != MAGIC:
                raise DataError(f"{self._path}: not a score ledger; put it back from a backup")
            if head != self._head:
                raise DataError(
                    f"{self._path}: a score ledger under another key than this party's; put the old"
                    " checkpoint-key.skf back, or move the ledger away to begin anew"
                )
            file.seek(self._end)
            data = file.read()
        try:
            return data[: whole_records(data)]
        except DataError as error:
            raise DataError(f"{self._path}: {error}") from None

    @contextmanager
    def held(self) -> Iterator[int]:
        """Hold the lock, over several calls; yield the open file."""
        if self._descriptor is not None:
            yield self._descriptor
            return
        try:
            self._descriptor = descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield descriptor
            finally:
                self._descriptor = None
                os.close(descriptor)
        except OSError as error:
            raise storage_error(self._path, error) from None


def score_guard(party: PartyFile, keys: PartyKeys, column_bits: float | None = None) -> ScoreGuard:
    """What this party blurs and counts by when it is scored; the same in every run of its folder."""
    return ScoreGuard(
        keys.score_key,
        party=party.own.name,
        mode=party.own.score_ledger,
        store=ScoreFile(party.keys_folder / SCORE_LEDGER, keys.score_key),
        column_bits=column_bits,
    )
