"""A joint prediction: the private intersection of the new rows, then encrypted scores, for the label party.

docs/threat-model.md says who learns what. A blind model is scored on its shares, under the keys that lie in
its parts; a helper takes part with its own. Other models are scored under the parties' encryption keys.
Compared when they meet: the settings of the training, and the instance that made the model.

Each party signs its transcript of the prediction. The label party's holds the hash of the file of scores, so
that `securefed verify` finds a changed score.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.assembly import assembly_of
from securefed.assembly.base import Array, PartyData
from securefed.crypto import Mapper
from securefed.data.columns import prepared
from securefed.data.ids import normalise_ids
from securefed.data.rows import read_rows
from securefed.errors import DataError, SettingError
from securefed.files import RunDirectory, write_atomically
from securefed.labels.label_model import LabelModel
from securefed.labels.metrics import main_metric, measure
from securefed.labels.quality import curves, stability
from securefed.process.keys import PartyKeys
from securefed.process.message_sizes import prediction_sizes
from securefed.process.model_files import Shard, score_guard
from securefed.process.own_data import align, hear_count, row_numbers
from securefed.process.recording import Events, start_transcript
from securefed.protocols.loop import PartyContext
from securefed.protocols.own_gradient.sides import TransferScorer
from securefed.settings.party import PartyFile
from securefed.transport.message import Malformed
from securefed.transport.message import Path as ClockPath
from securefed.transport.network.run import NetworkLink
from securefed.transport.transcript import Transcript

KEY_ID_BYTES = 16
PSI_NOISE = 0.05
"""Half of the index that counts as a difference."""


@dataclass(frozen=True, eq=False)
class NewRows:
    """A party's rows to score; the label party of a transfer model needs ids alone."""

    ids: list[object] | None
    count: int
    features: Array | None
    peer_ids: int | None = None
    """How many ids a peer may put in."""
    offset: Array | None = None
    """The label party's offset, where the model has one."""
    id_name: str = "id"
    """The name of the column with the ids."""
    labels: NDArray[Any] | None = None
    """Where the label party's file has them; None or NaN where a label is not known."""


def read_new_rows(
    party: PartyFile, path: Path | None, shard: Shard | None
) -> tuple[NewRows | None, list[str]]:
    """Return a party's rows to score, and a line for each column with values that training did not have.

    Without a shard, since nothing is trained yet, columns are not looked at.
    """
    if party.is_key_holder:
        if path is not None:
            raise SettingError(f"rows: {party.own.name} is a party without data; leave --rows out")
        return None, []
    if path is None or party.data is None:
        raise SettingError("rows: missing; --rows FILE names this party's file with the people to score")
    rows, data, ids = read_rows(path, party.data.policy), party.data, None
    if data.id is not None:
        ids = rows.ids(data.id)
        normalise_ids(ids, party.own.name, party.shared.id_form)
    features, unknown, used = None, dict[str, int](), party.shared.same_people or not party.is_label_party
    if used and shard is not None and shard.columns is not None:
        features, unknown = prepared(shard.columns, rows)
    offset = None
    if shard is not None and shard.labels is not None and shard.labels.wishes.offset:
        if data.offset is None:
            raise SettingError("offset: the model was trained with one; name its column in [data]")
        offset = row_numbers(rows, data.offset, "offset")
    labels = None
    if data.label is not None and data.label in rows.fields:
        labels = rows.column(data.label, "label")
    lines = [
        f"{count} of {rows.count} values of {column!r} were not there in training"
        for column, count in unknown.items()
    ]
    return NewRows(ids, rows.count, features, data.peer_ids, offset, data.id or "id", labels), lines


@dataclass(frozen=True, eq=False)
class Scored:
    """What a party has afterwards. `scores` at the label party only."""

    rows: NDArray[np.intp]
    """Row numbers of the own file, in the agreed order."""
    scores: Array | None
    path: ClockPath
    alignment: ClockPath
    transcript: Transcript
    """Still open: the hash of the scores is its last entry."""


class Scoring:
    """One party's part of a prediction."""

    last_round = 0
    position: object = None
    """A prediction has no rounds to go on from."""

    def __init__(
        self,
        party: PartyFile,
        keys: PartyKeys,
        mapper: Mapper,
        shard: Shard,
        rows: NewRows | None,
        events: Events,
    ) -> None:
        self.party, self.keys, self.events, self._mapper = party, keys, events, mapper
        self._shared, self._name, self._shard, self._rows = party.shared, party.own.name, shard, rows
        self.run = f"{party.shared.name}/predict"
        self.compared = {**party.shared.to_dict(), "model": shard.instance}
        self.directory = RunDirectory(party.run_folder, self._name)
        self._guard = score_guard(party, keys, shard.score_bits)
        self.directory.prediction_alignments.unlink(missing_ok=True)

    def facts(self) -> dict[str, Any]:
        return {"rows": None if self._rows is None else self._rows.count}

    def finished_before(self) -> None:
        """A prediction that is over here is over for all."""

    async def program(self, link: NetworkLink) -> Scored:
        folder = self.directory.folder
        link.transcript = start_transcript(
            folder / f"aligned-prediction-{self._name}.jsonl", self._name, link.run
        )
        try:
            rows, count = await self._align(link)
        finally:
            link.transcript.close()
        link.transcript = start_transcript(self.directory.prediction, self._name, link.run)
        aligned = link.paused
        scores = await self._score(link, rows, count)
        return Scored(rows, scores, link.path, aligned, link.transcript)

    async def _align(self, link: NetworkLink) -> tuple[NDArray[np.intp], int]:
        """Return which of the own rows are common, and how many there are."""
        shared, rows = self._shared, self._rows
        if rows is None:
            count = await hear_count(link, shared.label_party)
            self._check_due(link, count)
            return np.zeros(0, dtype=np.intp), count
        if shared.alignment == "rows":
            self._check_counts(link, rows.count)
        tally, limit = self.directory.prediction_alignments, rows.peer_ids
        alignment = await align(
            link, shared, rows.ids, rows.count, None, self._mapper, tally=tally, peer_ids=limit, labels=False
        )
        return alignment.rows, len(alignment)

    def _check_due(self, link: NetworkLink, due: int) -> None:
        """The number of common people is the label party's word; no party has fewer rows than that."""
        for peer in self._shared.parties:
            count = link.hello[peer].get("rows")
            if not isinstance(count, int) or count < due:
                claim = f"{self._shared.label_party} says that {due} people are in common"
                raise SettingError(f"rows: {claim}, and {peer} said that it has {count}; compare the files")

    def _check_counts(self, link: NetworkLink, own: int) -> None:
        for peer in self._shared.parties:
            count = own if peer == self._name else link.hello[peer].get("rows")
            if not isinstance(count, int):
                raise Malformed(f"{peer} did not say how many rows it has; all parties need the same release")
            if count != own:
                text = f"rows: {self._name} has {own} to score and {peer} has {count}"
                raise SettingError(f"{text}; score the same people in the same order")

    async def _score(self, link: NetworkLink, rows: NDArray[np.intp], count: int) -> Array | None:
        shared, part, assembly = self._shared, self._shard.part, assembly_of(self._shared.settings)
        agreement = assembly.prediction_agreement(shared.parties, shared.outputs, shared.key_holder)
        link.bound(prediction_sizes(agreement, shared.settings.option("key_bits"), part, count))
        context = PartyContext(self.keys.holder, self._mapper, guard=self._guard)
        data = self._data(rows)
        program = assembly.prediction_program(agreement, self._name, part, data, count, context)
        with self._same_question():
            scores: Array | None = await program(link)
        return scores

    def _data(self, rows: NDArray[np.intp]) -> PartyData | None:
        own, shard = self._rows, self._shard
        if own is None or own.features is None or shard.columns is None:
            return None
        names = None if own.ids is None else normalise_ids(own.ids, self._name, self._shared.id_form)
        return PartyData(
            features=own.features[rows],
            labels=shard.labels,
            untransformed=shard.columns.untransformed,
            offset=None if own.offset is None else own.offset[rows],
            ids=None if names is None else [names[row] for row in rows],
        )

    @contextmanager
    def _same_question(self) -> Iterator[None]:
        """The label party of a transfer model asks with the ciphertexts that it asked with before."""
        part = self._shard.part
        if not isinstance(part, TransferScorer) or part.phi is None:
            yield
            return
        path = self.directory.folder / f"score-model-{self._shard.instance}.bin"
        if path.exists():
            question = path.read_bytes()
            part.sealed[question[:KEY_ID_BYTES]] = question[KEY_ID_BYTES:]
        kept = set(part.sealed)
        try:
            yield
        finally:
            for key in part.sealed.keys() - kept:
                write_atomically(path, key + part.sealed[key])


def write_scores(path: Path, rows: NewRows, scored: Scored, shard: Shard) -> None:
    """Write the label party's CSV, one line for each common row in the order of its own file, and its hash
    into the transcript.
    """
    labels, scores = _label_side(scored, shard)
    columns: dict[str, list[object]] = _spread("score", labels.numbers(scores), labels)
    if labels.has_probabilities:
        columns |= _spread("probability", labels.probabilities(scores), labels)
    if labels.classes is not None:
        columns["predicted"] = [_plain(each) for each in labels.answers(scores, "half").tolist()]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([rows.id_name if rows.ids is not None else "row", *columns])
    for place in np.argsort(scored.rows):
        row = int(scored.rows[place])
        name = row if rows.ids is None else rows.ids[row]
        writer.writerow([name, *(each[place] for each in columns.values())])
    blob = text.getvalue().encode()
    write_atomically(path, blob)
    digest = sha256(blob).hexdigest()
    scored.transcript.note("scored", "scores", "", 0, 0, "prediction", file=path.name, digest=digest)


def _label_side(scored: Scored, shard: Shard) -> tuple[LabelModel, Array]:
    if scored.scores is None:
        raise DataError("scores: only the label party has them")
    if shard.labels is None:
        raise DataError("scores: the label party's preparation does not say what its labels were")
    return shard.labels, scored.scores


def figures(party: str, rows: NewRows, scored: Scored, shard: Shard) -> dict[str, Any]:
    """Return what the label party's scores say of these people, ready for JSON.

    quality   every metric that fits, where the file has labels; the main one with its 95% interval
    gain      the gain table of two classes, where the file has labels
    psi       population stability index: these people beside the held-out people of the training
    """
    labels, scores = _label_side(scored, shard)
    facts: dict[str, Any] = {"quality": None, "gain": None, "psi": None}
    if shard.training_scores is not None:
        facts["psi"] = _stability(shard.training_scores, scores)
    truth = np.zeros(0) if rows.labels is None else rows.labels[scored.rows]
    known = np.flatnonzero([each not in (None, "") and each == each for each in truth])
    if not len(known):
        return facts
    offset = None if rows.offset is None else rows.offset[scored.rows][known]
    answers = labels.beside(truth[known], scores[known], party, offset, "half")
    metric, more = main_metric(answers), measure(answers)
    facts["quality"] = {
        "metric": metric.name,
        "value": more.pop(metric.name),
        "interval": list(metric.between(answers)),
        "rows": len(known),
        "more": more,
    }
    facts["gain"] = curves(answers).get("gain")
    return facts


def _stability(expected: Array, actual: Array) -> float | None:
    """Return the PSI, in so few groups that chance alone gives at most PSI_NOISE; None for too few people.

    For people who are alike its mean is about (groups - 1) (1 / expected + 1 / actual).
    """
    groups = min(10, int(1 + PSI_NOISE / (1 / len(expected) + 1 / len(actual))))
    return stability(expected, actual, groups) if groups > 1 else None


def _spread(name: str, numbers: Array, labels: LabelModel) -> dict[str, list[object]]:
    """A column, or one a class where there are several."""
    if numbers.ndim == 1 or labels.classes is None:
        return {name: [f"{number:.9g}" for number in numbers.ravel()]}
    named = zip(labels.classes.tolist(), numbers.T, strict=True)
    return {f"{name} {_plain(each)}": [f"{number:.9g}" for number in column] for each, column in named}


def _plain(value: Any) -> object:
    """A class as its file had it: 1 and not 1.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
