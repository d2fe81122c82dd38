"""The opening of a parameter gradient: mask, ask the key-holder, remove the mask.

    1. requester -> key-holder   opening-request: the sums, packed, re-randomised, under a fresh uniform mask
    2. key-holder -> requester   opening: the same in the clear, still masked

The key-holder learns nothing (uniform), the requester learns the aggregated gradient by its own
parameters. The key-holder books each opening in the ledger first, and refuses past the line.

How the sums lie in the request is not the requester's to say: the key-holder derives it from the agreement
and refuses more ciphertexts, or other coefficients, than honest sums take. Else one request of d numbers
could hold d whole plaintexts full of single residuals. What is under the mask it cannot see: a requester
that packs single values where sums belong gets a plaintext full of them. Against that only blind training
helps (docs/threat-model.md).
"""

from __future__ import annotations

import warnings
from math import prod

import numpy as np

from securefed.crypto import Encrypted, FixedPoint, KeyHolder
from securefed.crypto.errors import ShapeError
from securefed.crypto.fixed import PRIVATE_BITS
from securefed.crypto.memory import OpeningMemory
from securefed.crypto.multipliers import Multipliers, Scaled, as_multipliers
from securefed.crypto.scheme import Floats, Mask, Masked, Opened
from securefed.protocols.agreement import FRACTION_BITS, Agreement, Member
from securefed.protocols.channel import Channel
from securefed.protocols.keyring import Keyring
from securefed.protocols.objectives import get_objective
from securefed.protocols.own_gradient.exchange import Held
from securefed.protocols.own_gradient.ledger import Ledger, LedgerEntry, LedgerWarning
from securefed.protocols.own_gradient.privacy import noise_units
from securefed.transport import Link

__all__ = [
    "ALL_LABELS",
    "ask",
    "ask_sums",
    "book",
    "check_room",
    "check_sums",
    "fix_ledger",
    "ledger_after",
    "levelled",
    "normalised",
    "refusal",
    "row_by_row",
    "serve",
    "sums_width",
    "take",
    "with_noise",
]

ALL_LABELS = "labels over all rounds"
PUBLIC_SCALE = FixedPoint(1.0, PRIVATE_BITS)
"""Of multipliers whose sums get noise."""


def levelled(multipliers: Floats | Multipliers) -> tuple[Multipliers, Floats]:
    """Multipliers of which the largest of every sum is between 1/2 and 1, and the powers of two that the sums
    have to be multiplied by again.

    Schemes give all multipliers of a request one scale, by the largest of all: of columns of very different
    sizes the small ones would have few bits left, or none. The powers are the party's own and are not sent.
    """
    checked = as_multipliers(multipliers)
    powers = np.clip(np.frexp(checked.largest)[1], -1000, 1000)
    return Scaled(checked, np.ldexp(1.0, -powers)), np.ldexp(1.0, powers).T


def normalised(multipliers: Floats) -> tuple[Floats, float]:
    """Multipliers whose rows have a norm of at most 1, rounding included, and what they were divided by: for
    sums that get noise, at one public scale (securefed.protocols.own_gradient.privacy).
    """
    longest = float(np.sqrt((multipliers**2).sum(axis=1)).max()) * (1.0 + 2.0**-16)
    norm = longest if longest > 0.0 else 1.0
    return multipliers / norm, norm


def ask_sums(
    link: Link,
    keys: Keyring,
    operand: Held,
    multipliers: Floats | Multipliers,
    batch: int,
    round_: int,
    step: int,
    width: int | None = None,
) -> Mask:
    """Send an opening request for sums of products over the `batch` rows; keep the mask. `width`: at the
    public scale and in slots of that many bits, where the key-holder adds noise.
    """
    with link.activity("products"):
        sums = operand.encrypted.contract(multipliers, None if width is None else PUBLIC_SCALE)
    single = row_by_row(as_multipliers(multipliers), batch)
    return ask(link, keys, sums, round_, step, single=single, width=width)


def ask(
    link: Link,
    keys: Keyring,
    encrypted: Encrypted,
    round_: int,
    step: int,
    *,
    single: bool = False,
    width: int | None = None,
) -> Mask:
    """Send an opening request; keep the mask. `single`: the values are of single rows, for the transcript."""
    with link.activity("mask"):
        masked, mask = encrypted.mask() if width is None else encrypted.mask_slots(width)
    channel = Channel(link, keys.opener, round_, step)
    channel.requested("opening", masked)
    channel.ask("opening-request", masked, mask, single=single)
    return mask


async def take(link: Link, keys: Keyring, mask: Mask, round_: int, step: int) -> Floats:
    """The reply, without its mask."""
    channel = Channel(link, keys.opener, round_, step)
    blob = await channel.hear("opening")
    with link.activity("unmask"):
        return channel.remove("opening", mask, keys.public.load_opened(blob))


async def serve(
    link: Link,
    agreement: Agreement,
    holder: KeyHolder,
    ledger: Ledger | None,
    requester: str,
    round_: int,
    step: int,
) -> None:
    """The key-holder's part of one opening; without a ledger where what is opened is the run's agreed
    result.
    """
    channel = Channel(link, requester, round_, step)
    blob = await channel.hear("opening-request")
    member = next(m for m in agreement.members if m.name == requester)
    with link.activity("open"):
        masked = holder.public.load_masked(blob)
        check_sums(masked, agreement, member)
        if ledger is not None:
            book(ledger, agreement, requester, holder.memory, round_)
        opened = holder.open(masked)
        if agreement.dp_noise and requester != agreement.label_party:
            opened = with_noise(opened, agreement)
        answer = opened.to_bytes()
    channel.checked("opening-request", "ciphertexts", "laid out as agreed", "not seen")
    channel.opened("opening", masked)
    channel.tell("opening", answer)


def with_noise(opened: Opened, agreement: Agreement) -> Opened:
    """What was opened, each sum with Gaussian noise for the labels' privacy; it is under its mask still."""
    bits = FRACTION_BITS + PRIVATE_BITS
    units = noise_units(agreement.dp_noise, agreement.label_change, prod(opened.shape), bits)
    return opened.plus(units, bits, sums_width(agreement))


def check_sums(masked: Masked, agreement: Agreement, member: Member) -> None:
    """Raise ShapeError unless a request is for the member's sums, laid out as those of an honest one."""
    entries = prod(masked.shape)
    if entries != member.parameters:
        raise ShapeError(f"{member.name} asks to open {entries} sums, {member.parameters} were agreed")
    check_room(masked, agreement, PRIVATE_BITS + _held(agreement)[0].bit_length())
    if agreement.value_bits:
        masked.check_sums(_held(agreement), entries // agreement.width)


def _held(agreement: Agreement) -> tuple[int, ...]:
    """The shape of what a party holds encrypted."""
    objective = get_objective(agreement.objective)
    return objective.held(agreement.batches.effective_size, agreement.width)


def sums_width(agreement: Agreement) -> int:
    """Bits that an opened sum takes at most."""
    return _width(agreement, PRIVATE_BITS + _held(agreement)[0].bit_length())


def _width(agreement: Agreement, more_bits: int) -> int:
    # Terms are rounded up to whole bits where they arrive and where they are passed on; and two for signs.
    return agreement.value_bits + 2 * len(agreement.members).bit_length() + more_bits + 2


def check_room(masked: Masked, agreement: Agreement, more_bits: int) -> None:
    """Raise ShapeError for more ciphertexts than so many values take, each of the agreed size and
    `more_bits`.
    """
    if agreement.value_bits:
        masked.check_room(_width(agreement, more_bits))


def fix_ledger(ledger: Ledger, agreement: Agreement, party: str) -> None:
    """An exchange gave `party` new values to open sums of."""
    ledger.fix(party, get_objective(agreement.objective).block(party == agreement.label_party))


def book(
    ledger: Ledger, agreement: Agreement, party: str, memory: OpeningMemory | None = None, round_: int = 0
) -> None:
    """Count one opening of `party` against what stays fixed since the last exchange, and against the labels;
    with what it was given in earlier attempts at the round, as far as the key-holder's memory goes.
    """
    member = next(m for m in agreement.members if m.name == party)
    labels = party == agreement.label_party
    block, equations = get_objective(agreement.objective).block(labels), member.parameters
    memory = OpeningMemory() if memory is None else memory
    before = memory.count(f"{party}: {block}, round {round_}", equations)
    ledger.count(party, block, equations, agreement.unknowns(), over_attempts=before)
    if not labels:
        before = memory.count(f"{party}: {ALL_LABELS}", equations)
        rows = agreement.batches.rows
        ledger.count(party, ALL_LABELS, equations, rows, advisory=True, over_attempts=before)


def row_by_row(multipliers: Multipliers, rows: int) -> bool:
    """Say whether sums of products are none: no output takes more than one of the first `rows` rows."""
    return rows > 1 and all(
        int(np.count_nonzero(block[:, :, :rows], axis=2).max(initial=0)) <= 1
        for _, _, block in multipliers.blocks()
    )


def ledger_after(agreement: Agreement, rounds: int) -> list[LedgerEntry]:
    """Return the entries of all parties after so many rounds, the worst first; empty where nothing is opened.

    Openings follow from the agreement alone. So a plan warns before a run, a party refuses before it starts,
    and a resumed run knows what was opened before its interruption.
    """
    if agreement.reveal == "nothing" or agreement.exact or rounds < 1:
        return []
    ledger = Ledger(allow_determined=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LedgerWarning)
        for _ in range(rounds):
            for name in agreement.names:
                fix_ledger(ledger, agreement, name)
                for step in range(agreement.algorithm.local_steps):
                    if agreement.opens_at(name, step):
                        book(ledger, agreement, name)
    return ledger.entries


def refusal(agreement: Agreement) -> LedgerEntry | None:
    """Return the entry for which the key-holder would refuse to open in the first round, or None."""
    if agreement.allow_determined:
        return None
    return next((e for e in ledger_after(agreement, 1) if e.verdict == "determined"), None)
