"""Claims about blind runs: who had keys, that every message was due, and what came out.

Own-gradient runs make no such promise; the claims say so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from functools import partial

from securefed.audit.blind_schedule import Due, Schedule, When, read_schedule
from securefed.audit.claims import NOT_BLIND, Examined, Outcome, Statement, strong_parameters
from securefed.audit.recorded import Recorded, Sent
from securefed.crypto import cross_lengths
from securefed.crypto.blind.interface import Lengths
from securefed.crypto.shares import numbers_in
from securefed.errors import DataError
from securefed.protocols.blind.scoring import RELEASE_LIMIT, release_bits
from securefed.protocols.messages import SCORING

Place = tuple[str, str, str, When]
"""Sender, receiver and kind of a message, and its place in the run."""
KEYS = ("nonce", "cross-key")
OUTPUTS = ("score", "released")
"""The only messages that open anything."""


def _blind_claim(name: str, text: str) -> Callable[[Callable[[Recorded, Schedule], Outcome]], Statement]:
    """Make a function of a blind run and its list of messages the check of a claim."""

    def decorated(check: Callable[[Recorded, Schedule], Outcome]) -> Statement:
        def checked(recorded: Recorded) -> Outcome:
            if not recorded.blind:
                return NOT_BLIND
            try:
                schedule = read_schedule(recorded.settings, _lengths(recorded))
            except DataError as error:
                return Examined(f"no list of messages: {error}", False)
            return (yield from check(recorded, schedule))

        return Statement(name, text, checked)

    return decorated


def _lengths(recorded: Recorded) -> Lengths | None:
    """Lengths of messages; None where they depend on a key's size that no transcript shows."""
    scheme = str(recorded.settings["scheme"])
    if scheme != "paillier":
        return cross_lengths(scheme, 0)
    for _, part in recorded.keys.values():
        words = strong_parameters(part.scheme).get(part.parameters, "").split()
        if part.scheme == "paillier" and len(words) > 1 and words[1].isdigit():
            return cross_lengths(scheme, int(words[1]))
    return None


def _due(recorded: Recorded, schedule: Schedule) -> list[Due]:
    """Every message that is due between two parties of which one is here."""
    phases = {message.entry.phase for message in recorded.everything}
    due: list[Due] = []
    if phases - {"prediction"}:
        rounds = schedule.agreement.stopping.rounds
        if schedule.agreement.watched:
            seen = [m.entry.round for m in recorded.everything if m.entry.phase == "training"]
            rounds = min(rounds, max(seen, default=-1) + 1)
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
    return max(counts.values(), default=0) // recorded.outputs


def _compare(
    recorded: Recorded, schedule: Schedule, chosen: Callable[[str], bool]
) -> Generator[str, None, list[Sent]]:
    """Yield messages that are not due, too many, too few, or of another length, and return all messages.

    `chosen`: which kinds are compared.
    """
    due = [each for each in _due(recorded, schedule) if chosen(each.kind)]
    sent = [m for m in recorded.everything if m.kind is not None and chosen(m.entry.kind)]
    attempts = _attempts(recorded)
    places = Counter(each[:4] for each in due)
    lengths: dict[Place, Counter[int | None]] = {}
    for each in due:
        lengths.setdefault(each[:4], Counter())[each.size] += 1
    seen: Counter[Place] = Counter()
    for message in sent:
        entry = message.entry
        when = When(entry.phase, entry.round, entry.step)
        place = message.sender, message.receiver, entry.kind, when
        seen[place] += 1
        allowed = lengths.get(place, Counter())
        if seen[place] > places[place] * attempts:
            yield f"{message} is not due" + (", it came before" if places[place] else "")
        elif attempts == 1 and None not in allowed:
            if not allowed[entry.bytes]:
                listed = ", ".join(f"{size:,}" for size in sorted({size for size in allowed if size}))
                yield f"{message} has {entry.bytes:,} bytes, {listed} are due"
            else:
                allowed[entry.bytes] -= 1
    if recorded.result is not None and attempts == 1:
        for (sender, receiver, kind, when), count in (places - seen).items():
            words = f"{kind} {sender} to {receiver} (round {when.round}, {when.phase})"
            yield f"{words} was due, and {count} did not come"
    return sent


@_blind_claim(
    "due", "Every message of a blind run has the number, place and length that the agreement asks for."
)
def _all_due(recorded: Recorded, schedule: Schedule) -> Outcome:
    sent = yield from _compare(recorded, schedule, lambda kind: kind not in (*KEYS, *OUTPUTS))
    differences = sum(message.entry.kind == "difference" for message in sent)
    return Examined(f"{len(sent)} messages, {differences} of them differences, each in its place and length")


@_blind_claim(
    "keys",
    "In a blind run only parties that encrypt had a key. With two parties only the label party had one.",
)
def _keys(recorded: Recorded, schedule: Schedule) -> Outcome:
    owners: set[str] = set()
    for message in recorded.of(*KEYS):
        owner = message.sender if message.entry.kind == "cross-key" else message.receiver
        owners.add(owner)
        if owner not in schedule.encryptors(message.entry.phase):
            yield f"{message}: {owner} has a key, and it encrypts nothing in {message.entry.phase}"
    yield from _compare(recorded, schedule, KEYS.__contains__)
    for message in recorded.of("reply"):
        if message.receiver not in schedule.encryptors(message.entry.phase):
            yield f"{message} goes to somebody who has no key"
    listed = ", ".join(sorted(owners)) or "nobody"
    keys = len(recorded.of("cross-key"))
    return Examined(f"{keys} public keys, of {listed}; nobody else can decrypt anything")


@_blind_claim(
    "outputs", "Every output of a blind run belongs to an agreed evaluation, prediction or release."
)
def _outputs(recorded: Recorded, schedule: Schedule) -> Outcome:
    sent = yield from _compare(recorded, schedule, OUTPUTS.__contains__)
    scores, released = recorded.of("score"), recorded.of("released")
    if released and not recorded.settings.get("release"):
        yield f"{released[0]}: nobody agreed to a release"
    for message in released:
        bits = release_bits(recorded.parameters.get(message.receiver, 0), recorded.outputs)
        limited = message.receiver != recorded.label_party and not recorded.settings.get("trusted")
        if limited and bits > RELEASE_LIMIT:
            yield f"{message} shows {bits} bits, at most {RELEASE_LIMIT} were allowed"
    phases = sorted({m.entry.phase for m in sent if m.entry.phase in SCORING})
    opened, total = (sum(numbers_in(m.entry.bytes) for m in listed) for listed in (scores, released))
    where = f" in {' and '.join(phases)}" if phases else ""
    text = f"{opened} scores{where}, {total} parameters released"
    if not sent and recorded.missing:
        return Examined(f"{text}; what {', '.join(recorded.missing)} had of it is not here", False)
    return Examined(text)


BLIND = (_keys, _all_due, _outputs)
