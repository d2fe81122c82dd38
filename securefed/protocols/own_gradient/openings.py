"""Openings of parameter gradients, and the noise that protects labels in them.

    1. requester -> key-holder   opening-request: the sums, packed, re-randomised, under a fresh uniform mask
    2. key-holder -> requester   opening: the same in the clear, still masked

The key-holder sees uniform numbers. The requester learns the aggregated gradient by its own parameters. The
key-holder first counts each opening in the ledger, and refuses past the line. It derives the layout of the
sums from the agreement, and refuses more ciphertexts, or other coefficients, than honest sums take. It cannot
see under the mask: a requester that packs single values where sums belong gets one plaintext full of them.
Only blind training prevents that (docs/threat-model.md).

With `dp_noise` the key-holder adds Gaussian noise to each sum before it answers, and the label party to its
own gradient: differential privacy of labels (docs/proofs.md derives sensitivity and epsilon).
"""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass
from math import exp, inf, prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import Encrypted, FixedPoint, KeyHolder
from securefed.crypto.fixed import PRIVATE_BITS, Floats, Multipliers, as_multipliers
from securefed.crypto.keyholder import OpeningMemory
from securefed.crypto.randomness import discrete_gaussian
from securefed.crypto.scheme import Mask, Masked, Opened
from securefed.errors import ShapeError
from securefed.protocols.agreement import FRACTION_BITS, Agreement, Member, get_objective
from securefed.protocols.channel import Channel, Keyring
from securefed.protocols.own_gradient.ledger import Ledger, LedgerEntry, LedgerWarning
from securefed.protocols.schedules import Batches
from securefed.transport import Link

ALL_LABELS = "labels over all rounds"
PUBLIC_SCALE = FixedPoint(1.0, PRIVATE_BITS)
"""The scale of multipliers whose sums get noise."""


def levelled(multipliers: Floats | Multipliers) -> tuple[Multipliers, Floats]:
    """Scale multipliers so that the largest of every sum is between 1/2 and 1.

    Schemes give all multipliers of a request one scale, set by the largest. Small columns would lose most of
    their bits. Also returns the powers of two that restore the sums. They stay with the party.
    """
    checked = as_multipliers(multipliers)
    powers = np.clip(np.frexp(checked.largest)[1], -1000, 1000)
    return checked.scaled(np.ldexp(1.0, -powers)), np.ldexp(1.0, powers).T


def normalised(multipliers: Floats) -> tuple[Floats, float]:
    """Scale multipliers so that their rows have a norm of at most 1, rounding included.

    Also returns the divisor. It is for sums with noise, at one public scale .
    """
    longest = float(np.sqrt((multipliers**2).sum(axis=1)).max()) * (1.0 + 2.0**-16)
    norm = longest if longest > 0.0 else 1.0
    return multipliers / norm, norm


def ask_sums(
    link: Link,
    keys: Keyring,
    encrypted: Encrypted,
    multipliers: Floats | Multipliers,
    batch: int,
    round_: int,
    step: int,
    width: int | None = None,
) -> Mask:
    """Request sums of products over the `batch` rows, and return the mask.

    With `width` the request is at the public scale, in slots of that many bits, where the key-holder adds
    noise.
    """
    with link.activity("products"):
        sums = encrypted.contract(multipliers, None if width is None else PUBLIC_SCALE)
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
    """Send an opening request and return the mask. `single`: values of single rows, for the transcript."""
    with link.activity("mask"):
        masked, mask = encrypted.mask(width)
    channel = Channel(link, keys.opener, round_, step)
    channel.requested("opening", masked)
    channel.ask("opening-request", masked, mask, single=single)
    return mask


async def take(link: Link, keys: Keyring, mask: Mask, round_: int, step: int) -> Floats:
    """Receive the opening and remove its mask."""
    channel = Channel(link, keys.opener, round_, step)
    blob = await channel.hear("opening")
    with link.activity("unmask"):
        return channel.remove("opening", mask, keys.public.load_opened(blob))


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
    channel = Channel(link, requester, round_, step)
    blob = await channel.hear("opening-request")
    member = next(m for m in agreement.members if m.name == requester)
    with link.activity("open"):
        masked = holder.public.load_masked(blob)
        check_sums(masked, agreement, member)
        book(ledger, agreement, requester, holder.memory, round_)
        opened = holder.open(masked)
        if agreement.dp_noise and requester != agreement.label_party:
            opened = with_noise(opened, agreement)
        answer = opened.to_bytes()
    channel.checked("opening-request", "ciphertexts", "laid out as agreed", "not seen")
    channel.opened("opening", masked)
    channel.tell("opening", answer)


def with_noise(opened: Opened, agreement: Agreement) -> Opened:
    """Add Gaussian noise for the labels' privacy to each opened sum, under its mask."""
    bits = FRACTION_BITS + PRIVATE_BITS
    units = noise_units(agreement.dp_noise, agreement.label_change, prod(opened.shape), bits)
    return opened.plus(units, bits, sums_width(agreement))


def check_sums(masked: Masked, agreement: Agreement, member: Member) -> None:
    """Raise ShapeError unless the request has the member's sums in the layout of an honest request."""
    entries = prod(masked.shape)
    if entries != member.parameters:
        raise ShapeError(f"{member.name} asks to open {entries} sums, {member.parameters} were agreed")
    check_room(masked, agreement, PRIVATE_BITS + _encrypted_shape(agreement)[0].bit_length())
    if agreement.value_bits:
        masked.check_sums(_encrypted_shape(agreement), entries // agreement.width)


def _encrypted_shape(agreement: Agreement) -> tuple[int, ...]:
    """Return the shape of a party's encrypted matrix."""
    objective = get_objective(agreement.objective)
    return objective.encrypted_shape(agreement.batches.effective_size, agreement.width)


def sums_width(agreement: Agreement) -> int:
    """Return the most bits of an opened sum."""
    return _width(agreement, PRIVATE_BITS + _encrypted_shape(agreement)[0].bit_length())


def _width(agreement: Agreement, more_bits: int) -> int:
    # Terms are rounded up to whole bits where they arrive and where they are passed on; and two for signs.
    return agreement.value_bits + 2 * len(agreement.members).bit_length() + more_bits + 2


def check_room(masked: Masked, agreement: Agreement, more_bits: int) -> None:
    """Raise ShapeError for more ciphertexts than the values take, each of the agreed size plus
    `more_bits`.
    """
    if agreement.value_bits:
        masked.check_room(_width(agreement, more_bits))


def book(
    ledger: Ledger, agreement: Agreement, party: str, memory: OpeningMemory | None = None, round_: int = 0
) -> None:
    """Count one opening of `party` against the fixed secrets and against the labels.

    The key-holder's memory adds openings of earlier attempts at the round. In the clear, a run that trains
    what a blind one trains has no openings to count.
    """
    if agreement.emulates_blind:
        return
    member = next(m for m in agreement.members if m.name == party)
    labels = party == agreement.label_party
    block, equations = get_objective(agreement.objective).block(labels), member.parameters
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


def ledger_after(agreement: Agreement, rounds: int) -> list[LedgerEntry]:
    """Return the entries of all parties after `rounds` rounds, the worst first; empty if nothing is opened.

    Openings follow from the agreement alone. So a plan warns before a run, a party refuses before it starts,
    and a resumed run knows what was opened before its interruption.
    """
    if agreement.reveal == "nothing" or agreement.exact or rounds < 1:
        return []
    ledger = Ledger(allow_determined=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LedgerWarning)
        for t in range(rounds):
            for name in agreement.names:
                for step in range(agreement.algorithm.local_steps):
                    if agreement.opens_at(name, step):
                        book(ledger, agreement, name, round_=t)
    return ledger.entries


def refusal(agreement: Agreement) -> LedgerEntry | None:
    """Return the entry for which the key-holder would refuse to open in the first round, or None."""
    if agreement.allow_determined:
        return None
    return next((e for e in ledger_after(agreement, 1) if e.verdict == "determined"), None)


Array = NDArray[np.float64]
OWN_BITS = 40
"""Fraction bits of the label party's own noise, which no other party sees."""


@dataclass(frozen=True)
class LabelPrivacy:
    """A run's privacy guarantee for each label, against the parties without labels."""

    epsilon: float
    delta: float
    noise_multiplier: float
    mechanisms: int
    """Noisy sums that contain one label."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return f"labels: epsilon {self.epsilon:.2f}, delta {self.delta:.1e}, noise {self.noise_multiplier:g}"


def label_privacy(agreement: Agreement) -> LabelPrivacy | None:
    """Return the guarantee of a run, or None if no noise was agreed."""
    if not agreement.dp_noise:
        return None
    rounds = participations(agreement.batches, agreement.stopping.rounds)
    mechanisms, delta = rounds * len(agreement.members), 0.1 / agreement.batches.rows
    return LabelPrivacy(epsilon(agreement.dp_noise, mechanisms, delta), delta, agreement.dp_noise, mechanisms)


def participations(batches: Batches, rounds: int) -> int:
    """Return the most rounds that any one row takes part in."""
    counts = np.zeros(batches.rows, dtype=np.int64)
    for t in range(rounds):
        counts[batches.batch(t)] += 1
    return int(counts.max())


def epsilon(noise: float, mechanisms: int, delta: float) -> float:
    """Return epsilon of `mechanisms` Gaussian mechanisms with noise multiplier `noise`, at delta."""
    from scipy.optimize import brentq  # takes a second to load, and few runs have noise
    from scipy.special import log_ndtr

    mu = sqrt(mechanisms) / noise

    def excess(eps: float) -> float:
        """The delta of that epsilon, less the given one; in logarithms, since exp(eps) may be infinite."""
        upper, lower = log_ndtr(mu / 2 - eps / mu), log_ndtr(-mu / 2 - eps / mu)
        return float(exp(upper) - exp(eps + lower)) - delta

    most = 1e6
    if excess(0.0) <= 0.0:
        return 0.0
    return inf if excess(most) > 0.0 else float(brentq(excess, 0.0, most, xtol=1e-12))


def noise_units(noise: float, sensitivity: float, count: int, fraction_bits: int) -> list[int]:
    """Draw noise for `count` sums of that sensitivity, in units of 2**-fraction_bits."""
    deviation = max(1, round(noise * sensitivity * 2.0**fraction_bits))
    return [discrete_gaussian(deviation) for _ in range(count)]


def own_noise(noise: float, sensitivity: float, count: int) -> Array:
    """Draw the label party's noise for the sums of its own gradient."""
    units = noise_units(noise, sensitivity, count, OWN_BITS)
    return np.array([unit / 2.0**OWN_BITS for unit in units])
