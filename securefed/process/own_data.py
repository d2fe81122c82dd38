"""A party's own data for a run: its file as numbers, which of its people all parties have, and its program.

After the private set intersection (docs/protocols.md, alignment) the label party tells a helper or
key-holder, which has no ids, how many rows are common. In transfer learning it tells the other party for
which of them it has labels.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.assembly import assembly_of
from securefed.assembly.base import Array, PartyData
from securefed.assembly.build import label_targets
from securefed.crypto import Mapper
from securefed.data.columns import FittedColumns, choose_columns, prepare
from securefed.data.ids import FEW_MEET
from securefed.data.psi import MAX_IDS, PSI_KINDS, intersect
from securefed.data.psi_local import sorted_ids
from securefed.data.rows import Rows, file_digest, read_rows
from securefed.errors import DataError, Problems, SecurefedError, SettingError
from securefed.labels.base_model import LabelOptions
from securefed.labels.label_model import LabelModel, warn_of_label_columns
from securefed.process.checkpoints import ResumeState
from securefed.protocols.agreement import Agreement, Member
from securefed.settings.party import DataSettings, PartyFile
from securefed.settings.run import RunSettings
from securefed.transport.link import Link
from securefed.transport.message import IllegalMessage


@dataclass(frozen=True, eq=False, kw_only=True)
class OwnData(PartyData):
    """A party's rows, and how they were made from its file."""

    settings: DataSettings
    rows: Rows
    preparation: FittedColumns
    digest: str
    """The SHA-256 of the file."""


def check_labels(
    labels: NDArray[Any], party: str, shared: RunSettings, wishes: LabelOptions | None = None
) -> tuple[Array, LabelModel]:
    """Return labels of a file as the objective takes them, and what the label party knows of them."""
    if shared.settings.loss_function.binary and labels.dtype.kind != "f":
        labels = np.array([None if word == "" else word for word in labels.tolist()], dtype=object)
    return label_targets(shared.settings, labels, party, wishes, classes=shared.classes)


def row_numbers(rows: Rows, column: str | None, what: str, least: float = -np.inf) -> Array | None:
    """A number for each row, from a column of its own."""
    if column is None:
        return None
    values = rows.column(column, what)
    if values.dtype.kind != "f" or not np.isfinite(values).all() or (values < least).any():
        allowed = "numbers of at least 0" if least == 0.0 else "numbers"
        raise DataError(f"{rows.name}: column {column!r} is the {what}; {allowed} are allowed, none missing")
    return values


def prepare_columns(rows: Rows, settings: DataSettings) -> tuple[FittedColumns, Array]:
    """Fit the columns that the settings choose, and return the rows as numbers too."""
    special = {settings.id, settings.label, settings.weight, settings.offset}
    chosen = choose_columns(rows, special, settings.columns, settings.drop)
    return prepare(rows, chosen, transform=settings.transform, standardise=settings.standardise)


def load_data(party: PartyFile) -> OwnData:
    """Return the party's file as numbers, and how they were made."""
    if party.data is None:
        raise SettingError("data: missing; a party needs the table [data] with its file")
    settings, path = party.data, party.folder / party.data.file
    rows = read_rows(path, settings.policy)
    digest = file_digest(path)
    problems = Problems(settings.file)
    ids = targets = side = weights = offset = None
    with problems.gathered():
        if settings.id is not None:  # what cannot be aligned is refused before anybody is called
            ids = rows.each_id(settings.id, party.own.name, party.shared.id_form)
            sorted_ids(ids, party.own.name, "exact")
    with problems.gathered():
        if settings.label is not None:
            labels = rows.column(settings.label, "label")
            targets, side = check_labels(labels, party.own.name, party.shared, settings.wishes)
    with problems.gathered():
        weights = row_numbers(rows, settings.weight, "weight", least=0.0)
        offset = row_numbers(rows, settings.offset, "offset")
    with problems.gathered():
        preparation, features = prepare_columns(rows, settings)
    problems.check()
    if settings.label is not None:
        warn_of_label_columns(labels, features, preparation.names, party.own.name)
    return OwnData(
        settings=settings,
        rows=rows,
        features=features,
        preparation=preparation,
        digest=digest,
        ids=ids,
        targets=targets,
        labels=side,
        untransformed=preparation.untransformed,
        weights=weights,
        offset=offset,
    )


ALIGNMENT_KINDS: Mapping[str, str] = {
    **PSI_KINDS,
    "aligned": "how many people all parties have in common",
    "labelled": "which of the shared people have labels",
}
"""Every message before the first round, and what it reveals to its receiver."""

PHASE = "alignment"
COUNT_BYTES = 8
MOST_ALIGNMENTS = 10
"""Most alignments per run or prediction. Each one lets a peer try other ids."""


class AllRefuse(Exception):
    """Carries a refusal that every party comes to by itself, out of the program."""

    def __init__(self, error: SecurefedError) -> None:
        super().__init__(str(error))
        self.error = error


def _nothing_in_common(names: str) -> AllRefuse:
    return AllRefuse(DataError(f"ids: {names} have no id in common: {FEW_MEET}"))


@dataclass(frozen=True, eq=False)
class Alignment:
    """This party's rows of the common people, in the agreed order, and which of these are labelled."""

    rows: NDArray[np.intp]
    labelled: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.rows)


def count_alignment(tally: Path) -> None:
    """Count an alignment before it begins: a byte of the file each. SettingError if there are too many."""
    with tally.open("ab") as file:
        file.write(b".")
        count = file.tell()
    if count > MOST_ALIGNMENTS:
        raise SettingError(
            f"ids: {MOST_ALIGNMENTS} alignments were broken off, no more are allowed; a peer that breaks off"
            " may guess other ids each time. Ask the others why, and start again (a training with --restart)"
        )


async def align(
    link: Link,
    shared: RunSettings,
    ids: Collection[object] | None,
    count: int,
    known: NDArray[np.bool_] | None,
    mapper: Mapper,
    *,
    tally: Path,
    peer_ids: int | None = None,
    labels: bool = True,
) -> Alignment:
    """A data party's part. Without `labels` nobody asks for them: a prediction.

    `count`: its rows. `known`: which of them have labels (label party). `tally`: a file that counts
    alignments. `peer_ids`: how many ids a peer may put in.
    """
    with link.off_the_clock(PHASE):
        rows: NDArray[np.intp] = np.arange(count, dtype=np.intp)
        if shared.alignment == "psi" and ids is not None:
            count_alignment(tally)
            rows = await intersect(link, shared.parties, ids, mapper, form=shared.id_form, peer_ids=peer_ids)
        if shared.key_holder is not None and link.name == shared.label_party:
            link.send(shared.key_holder, "aligned", len(rows).to_bytes(COUNT_BYTES, "big"))
        if len(rows) == 0:
            raise _nothing_in_common(", ".join(shared.parties))
        labelled = np.ones(len(rows), dtype=np.bool_) if known is None else known[rows]
        if not shared.same_people and labels:
            labelled = await _share_labelled(link, shared, labelled)
    return Alignment(rows, labelled)


async def _share_labelled(link: Link, shared: RunSettings, labelled: NDArray[np.bool_]) -> NDArray[np.bool_]:
    (other,) = (name for name in shared.parties if name != link.name)
    if link.name == shared.label_party:
        if not labelled.any():
            raise DataError(f"{link.name}: none of the {len(labelled)} shared people has a label")
        link.send(other, "labelled", np.packbits(labelled).tobytes())
        return labelled
    blob = await link.receive("labelled", other)
    due = (len(labelled) + 7) // 8
    if len(blob) != due:
        raise IllegalMessage(f"{other} sent {len(blob)} bytes of 'labelled', {due} are due")
    bits = np.unpackbits(np.frombuffer(blob, dtype=np.uint8))[: len(labelled)].astype(np.bool_)
    if not bits.any():
        raise IllegalMessage(f"{other} sent no label at all in 'labelled'")
    return bits


async def hear_count(link: Link, label_party: str) -> int:
    """Receive the number of common people, at a party without data."""
    with link.off_the_clock(PHASE):
        blob = await link.receive("aligned", label_party)
    if len(blob) != COUNT_BYTES:
        raise IllegalMessage(f"{label_party} sent {len(blob)} bytes of 'aligned', {COUNT_BYTES} are due")
    count = int.from_bytes(blob, "big")
    if count > MAX_IDS:  # before anything is allocated for them
        raise IllegalMessage(
            f"{label_party} says in 'aligned' that {count} people are common, at most {MAX_IDS} can be"
        )
    if count == 0:
        raise _nothing_in_common("the parties")
    return count


def agreement_of(shared: RunSettings, states: Mapping[str, ResumeState], common: int) -> Agreement:
    """Return what all parties run by, from what they said of themselves."""
    pairs = [(name, states[name]) for name in shared.parties]
    # A party may say what it likes of itself, but not that it has more columns than parameters.
    members = [
        Member(name, each.parameters, each.is_linear, min(each.columns, each.parameters))
        for name, each in pairs
    ]
    agreement = assembly_of(shared.settings).agree(members, common, shared.outputs)
    return replace(agreement, key_holder=shared.key_holder)
