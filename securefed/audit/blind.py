"""Blind runs: their messages, one by one, from the agreement alone, and claims that compare with this list.

Lengths, places and numbers of all messages follow from public settings (securefed.protocols.blind). A message
that is not on the list was not agreed to. Own-gradient runs make no such promise; the claims say so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from securefed.audit.claims import REQUESTS, Skipped, Violations, claim, strength_of
from securefed.audit.recorded import Recorded, Sent
from securefed.crypto import cross_lengths
from securefed.crypto.blind.interface import NONCE_BYTES, Lengths, Product
from securefed.crypto.shares import numbers_in, size_in_bytes
from securefed.errors import SettingError
from securefed.protocols.agreement import Agreement, get_objective
from securefed.protocols.blind import linear, scoring
from securefed.protocols.blind.correlations import prepared_products
from securefed.protocols.blind.cross import AHEAD, WINDOW
from securefed.protocols.blind.linear import PREPARE_STEP
from securefed.protocols.blind.statistics import PART_STEP, PassPlan
from securefed.protocols.messages import SCORING

QUESTION_BYTES = 32
MOST_ROWS, MOST_FOLDS, MOST_ROUNDS = 1 << 31, 1 << 8, 1 << 16
"""More than any blind run has. A list of more messages would not end."""


When = tuple[str, int, int]
"""The place of a message in a run: phase, round and step."""


class Due(NamedTuple):
    """One message that the agreement asks for; `size` is None where the key's size is not known."""

    sender: str
    receiver: str
    kind: str
    when: When
    size: int | None


class Schedule:
    """All messages of a blind run. `lengths`: None where the transcripts do not show the key's size."""

    def __init__(self, agreement: Agreement, lengths: Lengths | None) -> None:
        plan = self._plan = linear.pass_plan(agreement)
        self.agreement, self._lengths, self._holders = agreement, lengths, plan.holders
        self.scores = scoring.ScorePlan.of(agreement, plan.sizes)

    def training(
        self, rounds: int, scored: Callable[[int], int], *, first: int = 0, broken: bool = False
    ) -> Iterator[Due]:
        """Yield the messages of a run that went on for so many rounds.

        `scored`: the rows of an evaluation, where the agreement does not say them.
        `first`: the round from which products are prepared.
        `broken`: in several attempts. Each has a scoring key of its own, so one may be new at any scoring.
        """
        agreement, plan, introduced = self.agreement, self._plan, False
        yield from self._pass(plan, 0)
        yield from self._key(*self._holders, ("setup", 0, PREPARE_STEP))
        sizes = linear.round_products(agreement, plan, range(first, agreement.stopping.rounds))
        for product in prepared_products(sizes):
            yield from self._product(*self._holders, product, PREPARE_STEP)
        for t in range(rounds):
            if agreement.batches.aims_anew(t):
                yield from self._pass(replace(plan, only_targets=True), t)
            yield from self._round(t)
            for name in agreement.names:
                if name not in self._holders:
                    yield Due(agreement.label_party, name, "progress", ("training", t, 0), 1)
            if agreement.evaluates_after(t):
                before = 0
                for rows in self._agreed_rows(t) or [scored(t)]:
                    known = introduced or before > 0
                    yield from self._scoring("evaluation", t, rows, known, before, seal=True)
                    before += scoring.chunks_of(rows)
                introduced = not broken
            if agreement.watched:
                for name in self.scores.multipliers():
                    yield Due(agreement.label_party, name, "verdict", ("training", t, 0), 1)
        last = agreement.stopping.rounds
        yield from self._scoring("release", last, 0, introduced, seal=True)
        for name in plan.names if agreement.release else ():
            sender = self._holders[name == agreement.label_party]
            size = size_in_bytes(self.scores.size(name) * agreement.outputs)
            yield Due(sender, name, "released", ("release", last, linear.RELEASE_STEP), size)

    def _agreed_rows(self, t: int) -> list[int]:
        """The rows that each model scores; none where the agreement does not say them."""
        if not get_objective(self.agreement.objective).same_people:
            return []
        return [int(rows.stop - rows.start) for rows in self.agreement.scored_after(t).values()]

    def prediction(self, rows: int) -> Iterator[Due]:
        """Yield the messages that score so many rows by a model at rest."""
        yield from self._scoring("prediction", 0, rows, True, seal=False)

    def _key(self, owner: str, peer: str, when: When) -> Iterator[Due]:
        size = None if self._lengths is None else self._lengths.public
        yield Due(peer, owner, "nonce", when, NONCE_BYTES)
        yield Due(owner, peer, "cross-key", when, size)

    def _blocks(self, product: Product) -> list[int | None]:
        lengths = self._lengths
        if lengths is None:
            return [None]
        return [lengths.block(product, last - first) for first, last in lengths.blocks(product)]

    def _operand(self, owner: str, peer: str, product: Product, when: When) -> Iterator[Due]:
        for size in self._blocks(product):
            yield Due(owner, peer, "operand", when, size)

    def _reply(self, owner: str, peer: str, product: Product, when: When) -> Due:
        size = None if self._lengths is None else self._lengths.reply(product)
        return Due(peer, owner, "reply", when, size)

    def _product(self, owner: str, peer: str, product: Product, step: int, t: int = 0) -> Iterator[Due]:
        when = ("setup", t, step)
        yield from self._operand(owner, peer, product, when)
        windows = -(-len(self._blocks(product)) // WINDOW)
        for _ in range(windows if windows > AHEAD else 0):
            yield Due(peer, owner, "received", when, 1)
        yield self._reply(owner, peer, product, when)

    def _pass(self, plan: PassPlan, t: int) -> Iterator[Due]:
        """A pass, and what parties without shares send of it."""
        for owner, peer in plan.pairs():
            yield from self._key(owner, peer, ("setup", t, scoring.KEY_STEP))
            for fold in range(len(plan.folds)):
                product = plan.product(owner, peer, fold)
                yield from self._product(owner, peer, product, PART_STEP + 1 + fold, t)
        for name in plan.names[:-1] if plan.helper is not None else ():
            for holder in plan.holders:
                for pair in plan.parts(name, holder):
                    for fold in range(len(plan.folds)):
                        product = plan.product(*pair, fold)
                        size = size_in_bytes(product.left * product.right)
                        yield Due(name, holder, "part", ("setup", t, PART_STEP), size)

    def _round(self, t: int) -> Iterator[Due]:
        """The differences that the holders send, a message each way at each turn."""
        systems = len(linear.systems_of(self.agreement.batches, t))
        size = size_in_bytes(self._plan.columns * self._plan.outputs * systems)
        for turn in range(len(self.agreement.turns)):
            for sender in self._holders:
                yield Due(sender, self._plan.peer(sender), "difference", ("training", t, turn), size)

    def _scoring(
        self, phase: str, t: int, rows: int, introduced: bool, chunks: int = 0, *, seal: bool
    ) -> Iterator[Due]:
        """`chunks`: of rows that other models scored in this round."""
        plan = self.scores
        label_party, second, helper = plan.label_party, plan.second, plan.helper
        if not introduced:
            for name in plan.multipliers():
                yield from self._key(label_party, name, (phase, t, scoring.KEY_STEP))
        for name in plan.names[:-1] if seal else ():
            when = (phase, t, scoring.SEAL_STEP)
            yield from self._operand(label_party, name, plan.sealed_product(name), when)
            if helper is not None:
                size = size_in_bytes(plan.size(name) * plan.outputs)
                yield Due(helper, name, "model-share", when, size)
            if helper is not None and phase == "evaluation":
                yield Due(name, label_party, "received", when, 1)
        for chunk, start in enumerate(range(0, rows, scoring.CHUNK), start=chunks):
            when, count = (phase, t, scoring.SCORE_STEP + chunk), min(scoring.CHUNK, rows - start)
            product, size = plan.rows_product(count), size_in_bytes(count * plan.outputs)
            yield from self._operand(label_party, second, product, when)
            yield self._reply(label_party, second, product, when)
            yield Due(second, label_party, "score", when, size)
            for name in plan.names[:-1]:
                if helper is not None:
                    yield Due(helper, name, "question", when, QUESTION_BYTES)
                    yield Due(name, helper, "score-share", when, size)
                for _ in range(0, count, scoring.SEALED_ROWS):
                    yield self._reply(label_party, name, plan.sealed_product(name), when)


# Claims

DueKey = tuple[str, str, str, When]
"""Sender, receiver and kind of a message, and its place in the run."""
NOT_BLIND = "does not apply: the parties agreed to reveal own gradients"
OUTPUTS = ("score", "released")
"""The only messages that open anything."""


def _lengths(recorded: Recorded) -> Lengths | None:
    """Lengths of messages; None where they depend on a key's size that no transcript shows."""
    scheme = recorded.agreement.scheme
    if scheme != "paillier":
        return cross_lengths(scheme, 0)
    for _, part in recorded.keys.values():
        words = (strength_of(part) or "").split()
        if part.scheme == "paillier" and len(words) > 1 and words[1].isdigit():
            return cross_lengths(scheme, int(words[1]))
    return None


def _due(recorded: Recorded) -> list[Due]:
    """List messages between two parties of which at least one transcript is here."""
    agreement = recorded.agreement
    sizes = (agreement.batches.rows, agreement.batches.folds, agreement.stopping.rounds)
    if any(size > most for size, most in zip(sizes, (MOST_ROWS, MOST_FOLDS, MOST_ROUNDS), strict=True)):
        raise SettingError(f"{sizes} rows, folds and rounds: no blind run has so many")
    schedule = Schedule(agreement, _lengths(recorded))
    phases = {message.entry.phase for message in recorded.everything}
    due: list[Due] = []
    if phases - {"prediction"}:
        rounds = agreement.stopping.rounds
        if agreement.watched:
            indices = [m.entry.round for m in recorded.everything if m.entry.phase == "training"]
            rounds = min(rounds, max(indices, default=-1) + 1)
        scored = partial(_scored_rows, recorded, "evaluation")
        due += schedule.training(rounds, scored, broken=_attempts(recorded) > 1)
    if "prediction" in phases:
        due += schedule.prediction(_scored_rows(recorded, "prediction", 0))
    here = recorded.transcripts
    return [each for each in due if each.sender in here or each.receiver in here]


def _attempts(recorded: Recorded) -> int:
    return max(len(recorded.agreements(name)) for name in recorded.transcripts)


def _scored_rows(recorded: Recorded, phase: str, round_: int) -> int:
    """Rows that were scored, from the lengths of what is one number a row and output."""
    counts: Counter[tuple[str, str]] = Counter()
    for message in recorded.everything:
        entry = message.entry
        if (entry.phase, entry.round) == (phase, round_) and entry.kind in ("score", "score-share"):
            counts[entry.kind, message.sender] += numbers_in(entry.bytes)
    return max(counts.values(), default=0) // recorded.agreement.outputs


def _compare(recorded: Recorded, chosen: Callable[[str], bool]) -> Generator[str, None, list[Sent]]:
    """Yield messages that are not due, too many, too few, or of another length, and return all messages.

    `chosen`: which kinds are compared.
    """
    due = [each for each in _due(recorded) if chosen(each.kind)]
    sent = [m for m in recorded.everything if m.kind is not None and chosen(m.entry.kind)]
    attempts = _attempts(recorded)
    places = Counter(each[:4] for each in due)
    lengths: dict[DueKey, Counter[int | None]] = {}
    for each in due:
        lengths.setdefault(each[:4], Counter())[each.size] += 1
    tally: Counter[DueKey] = Counter()
    for message in sent:
        entry = message.entry
        place = message.sender, message.receiver, entry.kind, (entry.phase, entry.round, entry.step)
        tally[place] += 1
        allowed = lengths.get(place, Counter())
        if tally[place] > places[place] * attempts:
            yield f"{message} is not due" + (", it came before" if places[place] else "")
        elif attempts == 1 and None not in allowed:
            if not allowed[entry.bytes]:
                listed = ", ".join(f"{size:,}" for size in sorted({size for size in allowed if size}))
                yield f"{message} has {entry.bytes:,} bytes, {listed} are due"
            else:
                allowed[entry.bytes] -= 1
    if recorded.result is not None and attempts == 1:
        for (sender, receiver, kind, (phase, round_, _)), count in (places - tally).items():
            words = f"{kind} {sender} to {receiver} (round {round_}, {phase})"
            yield f"{words} was due, and {count} did not come"
    return sent


@claim(
    "due",
    "Every message and key of a blind run has the number, place and length that the agreement asks for.",
)
def _all_due(recorded: Recorded) -> Violations:
    if not recorded.blind:
        return NOT_BLIND
    sent = yield from _compare(recorded, lambda kind: kind not in OUTPUTS)
    kinds = Counter(message.entry.kind for message in sent)
    owners = {message.sender for message in recorded.of("cross-key")}
    keys = f"{kinds['cross-key']} of them public keys, of {', '.join(sorted(owners)) or 'nobody'}"
    return f"{len(sent)} messages, {kinds['difference']} of them differences, {keys}"


@claim("outputs", "A blind run opened only scores and parameters that all parties had agreed to.")
def _outputs(recorded: Recorded) -> Violations:
    scores, released = recorded.of("score"), recorded.of("released")
    if not recorded.blind:
        return NOT_BLIND
    for message in recorded.of(*REQUESTS, *REQUESTS.values()):
        yield f"{message}: something was decrypted for somebody"
    if released and not recorded.agreement.release:
        yield f"{released[0]}: nobody agreed to a release"
    sent = yield from _compare(recorded, OUTPUTS.__contains__)
    agreement = recorded.agreement
    sizes = {member.name: member.parameters for member in agreement.members}
    for message in released:
        bits = scoring.release_bits(sizes.get(message.receiver, 0), agreement.outputs)
        limited = message.receiver != agreement.label_party and not agreement.trusted
        if limited and bits > scoring.RELEASE_LIMIT:
            yield f"{message} shows {bits} bits, at most {scoring.RELEASE_LIMIT} were allowed"
    phases = sorted({m.entry.phase for m in sent if m.entry.phase in SCORING})
    opened, total = (sum(numbers_in(m.entry.bytes) for m in listed) for listed in (scores, released))
    where = f" in {' and '.join(phases)}" if phases else ""
    text = f"{opened} scores{where}, {total} parameters released"
    if not sent and recorded.missing:
        raise Skipped(f"{text}; what {', '.join(recorded.missing)} had of it is not here")
    return text


BLIND = (_all_due, _outputs)
