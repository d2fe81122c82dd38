"""The most bytes of a message of each kind, from the agreement, before anything of it is read.

Before the agreement is known only messages of the alignment are read. They come in blocks of a fixed size.
All others wait outside until `training_sizes` or `prediction_sizes` is told to the link.

    blind            the list of due messages that audits compare with (securefed.audit.blind)
    own gradients    shapes of encrypted arrays: rows of a batch, columns, parameters, scored rows
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from math import ceil
from typing import Any

from securefed.audit.blind import Schedule
from securefed.crypto import cross_lengths, find_kind, key_kind
from securefed.crypto.shares import size_in_bytes
from securefed.data.psi import MAX_IDS, MOST_PSI_BYTES
from securefed.process.own_data import COUNT_BYTES
from securefed.protocols.agreement import Agreement, get_objective
from securefed.protocols.blind.scoring import CHUNK, ModelPart, ScorePlan
from securefed.protocols.messages import KINDS, fixed_sizes
from securefed.protocols.own_gradient.sides import TransferScorer
from securefed.transport.network.host import Limits

SIZES: Mapping[str, int | None] = {
    **dict.fromkeys(KINDS),
    **fixed_sizes(),
    **MOST_PSI_BYTES,
    "aligned": COUNT_BYTES,
    "labelled": MAX_IDS // 8 + 1,
}
"""What is known before the agreement; None: messages of this kind wait for it."""
ANY_SIZE = Limits().message_bytes
LENGTH_BYTES = 8
"""A length field between two frames."""


def training_sizes(agreement: Agreement, key_bits: int, first: int = 0) -> dict[str, int]:
    """Return the most bytes of each kind in a training that begins with round `first`.

    A kind that it does not send has 0. Products for fewer rounds may have larger replies.
    """
    if agreement.reveal == "nothing":
        sizes: dict[str, int] = {}
        schedule = Schedule(agreement, cross_lengths(agreement.scheme, key_bits))
        for due in schedule.training(agreement.stopping.rounds, lambda _: CHUNK, first=first):
            sizes[due.kind] = max(sizes.get(due.kind, 0), due.size or 0)
        if agreement.scores_rows and not get_objective(agreement.objective).same_people:
            for kind, size in _blind_score_sizes(agreement, key_bits, schedule.scores).items():
                sizes[kind] = max(sizes.get(kind, 0), size)
        return _complete(sizes)
    rows = max(agreement.common_rows, agreement.holdout)
    return _complete(_opening_sizes(agreement) | _score_sizes(agreement, rows, agreement.width))


def prediction_sizes(agreement: Agreement, key_bits: int, part: object, rows: int) -> dict[str, int]:
    """Return the most bytes of each kind where `rows` rows are scored by a party's `part` of a model."""
    if isinstance(part, ModelPart):
        return _complete(_blind_score_sizes(agreement, key_bits, part.plan))
    width = part.model.width if isinstance(part, TransferScorer) else agreement.width
    return _complete(_score_sizes(agreement, rows, width))


def _complete(sizes: Mapping[str, int]) -> dict[str, int]:
    return {**dict.fromkeys(KINDS, 0), **fixed_sizes(), **sizes}


def _blind_score_sizes(agreement: Agreement, key_bits: int, plan: ScorePlan) -> dict[str, int]:
    """Return the most bytes for any number of rows at once: fewer rows may take larger ciphertexts."""
    lengths, score_bytes = cross_lengths(agreement.scheme, key_bits), size_in_bytes(CHUNK * plan.outputs)
    products = [plan.rows_product(rows) for rows in range(1, CHUNK + 1)]
    blocks = ((each, last - first) for each in products for first, last in lengths.blocks(each))
    return {
        "operand": max(lengths.block(product, count) for product, count in blocks),
        "reply": max(map(lengths.reply, [*products, *map(plan.sealed_product, plan.names[:-1])])),
        "score": score_bytes,
        "score-share": score_bytes,
    }


def _opening_sizes(agreement: Agreement) -> dict[str, int]:
    """Contributions of a batch, and masked sums over its rows for each parameter of a model."""
    shape = agreement.encrypted_shape
    if agreement.exact:
        shape = (*shape, 2)[:2]
    sums = ceil(max(member.parameters for member in agreement.members) / agreement.width)
    opened = _array_bytes(agreement, shape, sums)
    return {
        "contribution": _array_bytes(agreement, shape),
        "residual": _array_bytes(agreement, shape),
        "opening-request": opened,
        "opening": opened,
    }


def _score_sizes(agreement: Agreement, rows: int, width: int) -> dict[str, int]:
    """The key, and scores of so many rows."""
    score = _array_bytes(agreement, (rows,))
    sums = _array_bytes(agreement, (width,), rows)
    return {
        "public-key": _fact(agreement, "MOST_PUBLIC_BYTES", ANY_SIZE),
        "score-part": score,
        "score-request": score,
        "score-opening": score,
        "score-model": _array_bytes(agreement, (width,)),
        "scores": LENGTH_BYTES + 2 * sums,
    }


def _array_bytes(agreement: Agreement, shape: tuple[int, ...], sums: int = 0) -> int:
    return int(_fact(agreement, "most_bytes", lambda shape, sums: ANY_SIZE)(shape, sums))


def _fact(agreement: Agreement, name: str, otherwise: Any) -> Any:
    """Return what the module of the keys says; a scheme from outside the package may say nothing."""
    kind = key_kind(agreement.scheme, agreement.reveal) or agreement.scheme
    return getattr(import_module(find_kind(kind).module), name, otherwise)
