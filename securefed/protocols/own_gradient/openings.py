"""Openings of parameter gradients: a request under a fresh uniform mask, and the answer, still masked.

The key-holder sees uniform numbers. The requester learns the aggregated gradient by its own parameters. The
key-holder first counts each opening in the ledger, and refuses past the line. It derives the layout of the
sums from the agreement, and refuses more ciphertexts, or other coefficients, than honest sums take. It cannot
see under the mask: a requester that packs single values where sums belong gets one plaintext full of them.
Only blind training prevents that (docs/threat-model.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from securefed.crypto import Encrypted, KeyHolder
from securefed.crypto.fixed import PRIVATE_BITS, Floats, Multipliers, as_multipliers
from securefed.crypto.keyholder import OpeningMemory
from securefed.crypto.scheme import Mask, Masked
from securefed.errors import ShapeError
from securefed.protocols.agreement import Agreement, Member, get_objective
from securefed.protocols.channel import Channel
from securefed.protocols.own_gradient.ledger import Ledger, LedgerEntry
from securefed.transport.link import Link

ALL_LABELS = "labels over all rounds"


def levelled(multipliers: Floats | Multipliers) -> tuple[Multipliers, Floats]:
    """Scale multipliers so that the largest of every sum is between 1/2 and 1.

    Schemes give all multipliers of a request one scale, set by the largest. Small columns would lose most of
    their bits. Also returns the powers of two that restore the sums. They stay with the party.
    """
    checked = as_multipliers(multipliers)
    powers = np.clip(np.frexp(checked.largest)[1], -1000, 1000)
    return checked.scaled(np.ldexp(1.0, -powers)), np.ldexp(1.0, powers).T


def ask_sums(channel: Channel, encrypted: Encrypted, multipliers: Floats | Multipliers, batch: int) -> Mask:
    """Request sums of products over the `batch` rows, and return the mask."""
    with channel.link.activity("products"):
        sums = encrypted.contract(multipliers)
    return ask(channel, sums, single=row_by_row(as_multipliers(multipliers), batch))


def ask(channel: Channel, encrypted: Encrypted, *, single: bool = False) -> Mask:
    """Send an opening request and return the mask. `single`: values of single rows, for the transcript."""
    with channel.link.activity("mask"):
        masked, mask = encrypted.mask()
    channel.requested("opening", masked)
    channel.ask("opening-request", masked, mask, single=single)
    return mask


async def serve(
    link: Link,
    agreement: Agreement,
    holder: KeyHolder,
    ledger: Ledger,
    requester: str,
    round_: int,
    step: int,
) -> None:
    """Answer one opening request as the key-holder."""

    def check(masked: Masked) -> None:
        check_sums(masked, agreement, agreement.member(requester))
        book(ledger, agreement, requester, holder.memory, round_)

    channel = Channel(link, requester, round_, step)
    await channel.open_for("opening-request", "opening", holder, check, "ciphertexts", "laid out as agreed")


def check_sums(masked: Masked, agreement: Agreement, member: Member) -> None:
    """Raise ShapeError unless the request has the member's sums in the layout of an honest request."""
    entries = prod(masked.shape)
    if entries != member.parameters:
        raise ShapeError(f"{member.name} asks to open {entries} sums, {member.parameters} were agreed")
    check_room(masked, agreement, PRIVATE_BITS + agreement.encrypted_shape[0].bit_length())
    if agreement.value_bits:
        masked.check_sums(agreement.encrypted_shape, entries // agreement.width)


def check_room(masked: Masked, agreement: Agreement, more_bits: int) -> None:
    """Raise ShapeError for more ciphertexts than values of the agreed size plus `more_bits` take."""
    if agreement.value_bits:
        # Terms are rounded up to whole bits where they arrive and where they go on; and two for signs.
        rounding = 2 * len(agreement.members).bit_length() + 2
        masked.check_room(agreement.value_bits + rounding + more_bits)


def book(
    ledger: Ledger, agreement: Agreement, party: str, memory: OpeningMemory | None = None, round_: int = 0
) -> None:
    """Count one opening of `party` against the fixed secrets and against the labels.

    The key-holder's memory adds openings of earlier attempts at the round. In the clear, a run that trains
    what a blind one trains has no openings to count.
    """
    if agreement.emulates_blind:
        return
    labels, equations = party == agreement.label_party, agreement.member(party).parameters
    block = get_objective(agreement.objective).block(labels)
    memory = OpeningMemory() if memory is None else memory
    before = memory.count(f"{party}: {block}, round {round_}", equations)
    ledger.count(party, block, equations, agreement.unknowns(), round_=round_, over_attempts=before)
    if not labels:
        before = memory.count(f"{party}: {ALL_LABELS}", equations)
        rows = agreement.batches.rows
        ledger.count(party, ALL_LABELS, equations, rows, advisory=True, over_attempts=before)


def row_by_row(multipliers: Multipliers, rows: int) -> bool:
    """Return whether the sums are single values: no output takes more than one of the first `rows` rows."""
    return rows > 1 and all(
        int(np.count_nonzero(block[:, :, :rows], axis=2).max(initial=0)) <= 1
        for _, _, block in multipliers.blocks()
    )


def ledger_of(agreement: Agreement, opened: Mapping[str, tuple[int, int]]) -> list[LedgerEntry]:
    """Return the entries, the worst first. `opened`: each party's numbers in its worst round, and in all."""
    entries, objective = [], get_objective(agreement.objective)
    for party, (worst, total) in opened.items():
        labels = party == agreement.label_party
        if total:
            entries.append(LedgerEntry(party, objective.block(labels), worst, agreement.unknowns(), False))
        if total and not labels:
            entries.append(LedgerEntry(party, ALL_LABELS, total, agreement.batches.rows, True))
    return sorted(entries, key=lambda e: (e.advisory, -e.ratio))


def ledger_after(agreement: Agreement, rounds: int) -> list[LedgerEntry]:
    """Return the entries of all parties after `rounds` rounds.

    Openings follow from the agreement alone. So a plan warns before a run, a party refuses before it starts,
    and a resumed run knows what was opened before its interruption.
    """
    if agreement.reveal == "nothing" or agreement.emulates_blind:
        return []
    opened = {}
    for member in agreement.members:
        steps = range(agreement.algorithm.local_steps)
        each = member.parameters * sum(agreement.opens_at(member.name, step) for step in steps)
        opened[member.name] = each, rounds * each
    return ledger_of(agreement, opened)


def refusal(agreement: Agreement) -> LedgerEntry | None:
    """Return the entry for which the key-holder would refuse to open in the first round, or None."""
    if agreement.allow_determined:
        return None
    return next((e for e in ledger_after(agreement, 1) if e.verdict == "determined"), None)
