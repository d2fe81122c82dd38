"""Who is in common: the private set intersection before a training or a prediction, and what else has to be
known before the first round.

    1. all parties with data        securefed.data.psi: the common ids, in one agreed order
    2. label party -> helper        aligned: how many there are (a helper or key-holder has no ids)
    3. label party -> other         labelled: for which of them it has labels (transfer learning)

Each party with data learns which of its people all have. The party without data learns their number.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import Mapper
from securefed.data.psi import MAX_IDS, PSI_KINDS, intersect
from securefed.errors import DataError
from securefed.settings.run import RunSettings
from securefed.transport import Link
from securefed.transport.message import IllegalMessage

__all__ = ["ALIGNMENT_KINDS", "Alignment", "NothingInCommon", "align", "hear_count"]

ALIGNMENT_KINDS: Mapping[str, str] = MappingProxyType(
    {
        **PSI_KINDS,
        "aligned": "how many people all parties have in common",
        "labelled": "which of the shared people have labels",
    }
)
"""Every message before the first round, and what it reveals to its receiver."""

PHASE = "alignment"
COUNT_BYTES = 8


class NothingInCommon(DataError):
    """No id is in common. Every party comes to that by itself, the one without data by the number."""


@dataclass(frozen=True, eq=False)
class Alignment:
    """This party's rows of the common people, in the agreed order, and which of these are labelled."""

    rows: NDArray[np.intp]
    labelled: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.rows)


async def align(
    link: Link,
    shared: RunSettings,
    ids: Collection[object] | None,
    count: int,
    known: NDArray[np.bool_] | None,
    mapper: Mapper,
    *,
    peer_ids: int | None = None,
    labels: bool = True,
) -> Alignment:
    """A data party's part. `count`: its rows. `known`: which of them have labels (label party). `peer_ids`:
    how many ids a peer may put in. Without `labels` nobody asks for them: a prediction.
    """
    with link.off_the_clock(PHASE):
        if shared.alignment == "rows" or ids is None:
            rows: NDArray[np.intp] = np.arange(count, dtype=np.intp)
        else:
            parties, form = shared.parties, shared.id_form
            rows = await intersect(link, parties, ids, mapper, form=form, peer_ids=peer_ids)
        if shared.key_holder is not None and link.name == shared.label_party:
            link.send(shared.key_holder, "aligned", len(rows).to_bytes(COUNT_BYTES, "big"))
        if len(rows) == 0:
            raise NothingInCommon(f"ids: {', '.join(shared.parties)} have no id in common")
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
    """The part of the party without data."""
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
        raise NothingInCommon("ids: the parties have no id in common")
    return count
