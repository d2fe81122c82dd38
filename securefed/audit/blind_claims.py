"""Claims about blind runs: that every message was due, and what came out.

Own-gradient runs make no such promise; the claims say so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from functools import partial

from securefed.audit.blind_schedule import Due, When, read_schedule
from securefed.audit.claims import REQUESTS, Outcome, Skipped, claim, strength_of
from securefed.audit.recorded import Recorded, Sent
from securefed.crypto import cross_lengths
from securefed.crypto.blind.interface import Lengths
from securefed.crypto.shares import numbers_in
from securefed.protocols.blind.scoring import RELEASE_LIMIT, release_bits
from securefed.protocols.messages import SCORING

Place = tuple[str, str, str, When]
"""Sender, receiver and kind of a message, and its place in the run."""
NOT_BLIND = "does not apply: the parties agreed to reveal own gradients"
OUTPUTS = ("score", "released")
"""The only messages that open anything."""


def _lengths(recorded: Recorded) -> Lengths | None:
    """Lengths of messages; None where they depend on a key's size that no transcript shows."""
    scheme = str(recorded.settings["scheme"])
    if scheme != "paillier":
        return cross_lengths(scheme, 0)
    for _, part in recorded.keys.values():
        words = (strength_of(part) or "").split()
        if part.scheme == "paillier" and len(words) > 1 and words[1].isdigit():
            return cross_lengths(scheme, int(words[1]))
    return None


def _due(recorded: Recorded) -> list[Due]:
    """Every message that is due between two parties of which one is here."""
    schedule = read_schedule(recorded.settings, _lengths(recorded))
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


def _compare(recorded: Recorded, chosen: Callable[[str], bool]) -> Generator[str, None, list[Sent]]:
    """Yield messages that are not due, too many, too few, or of another length, and return all messages.

    `chosen`: which kinds are compared.
    """
    due = [each for each in _due(recorded) if chosen(each.kind)]
    sent = [m for m in recorded.everything if m.kind is not None and chosen(m.entry.kind)]
    attempts = _attempts(recorded)
    places = Counter(each[:4] for each in due)
    lengths: dict[Place, Counter[int | None]] = {}
    for each in due:
        lengths.setdefault(each[:4], Counter())[each.size] += 1
    seen: Counter[Place] = Counter()
    for message in sent:
        entry = message.entry
        place = message.sender, message.receiver, entry.kind, (entry.phase, entry.round, entry.step)
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
        for (sender, receiver, kind, (phase, round_, _)), count in (places - seen).items():
            words = f"{kind} {sender} to {receiver} (round {round_}, {phase})"
            yield f"{words} was due, and {count} did not come"
    return sent


@claim(
    "due",
    "Every message and key of a blind run has the number, place and length that the agreement asks for.",
)
def _all_due(recorded: Recorded) -> Outcome:
    if not recorded.blind:
        return NOT_BLIND
    sent = yield from _compare(recorded, lambda kind: kind not in OUTPUTS)
    kinds = Counter(message.entry.kind for message in sent)
    owners = {message.sender for message in recorded.of("cross-key")}
    keys = f"{kinds['cross-key']} of them public keys, of {', '.join(sorted(owners)) or 'nobody'}"
    return f"{len(sent)} messages, {kinds['difference']} of them differences, {keys}"


@claim("outputs", "A blind run opened only scores and parameters that all parties had agreed to.")
def _outputs(recorded: Recorded) -> Outcome:
    scores, released = recorded.of("score"), recorded.of("released")
    if not recorded.blind:
        return NOT_BLIND
    for message in recorded.of(*REQUESTS, *REQUESTS.values()):
        yield f"{message}: something was decrypted for somebody"
    if released and not recorded.settings.get("release"):
        yield f"{released[0]}: nobody agreed to a release"
    sent = yield from _compare(recorded, OUTPUTS.__contains__)
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
        raise Skipped(f"{text}; what {', '.join(recorded.missing)} had of it is not here")
    return text


BLIND = (_all_due, _outputs)
