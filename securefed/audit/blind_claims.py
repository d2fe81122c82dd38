"""Claims about blind runs: who had keys, that every message was due, and what came out.

Own-gradient runs make no such promise; the claims say so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial

from securefed.audit.blind_schedule import SCHEDULES, Due, Schedule, When, numbers_in
from securefed.audit.claims import Findings, claim, strong_parameters
from securefed.audit.recorded import Recorded, Sent
from securefed.crypto import cross_lengths
from securefed.crypto.blind.interface import Lengths
from securefed.errors import DataError
from securefed.protocols.blind.scoring import RELEASE_LIMIT, release_bits
from securefed.protocols.messages import SCORING

Place = tuple[str, str, str, When]
"""Sender, receiver and kind of a message, and its place in the run."""
KEYS = ("nonce", "cross-key")
OUTPUTS = ("score", "released")
"""The only messages that open anything."""


def _schedule(recorded: Recorded) -> Schedule | None:
    """The list of due messages; None for runs of another kind."""
    if not recorded.blind:
        return None
    return SCHEDULES[str(recorded.settings["objective"])](recorded.settings, _lengths(recorded))


def _lengths(recorded: Recorded) -> Lengths | None:
    """Lengths of messages; None where they depend on a key's size that no transcript shows."""
    scheme = str(recorded.settings["scheme"])
    if scheme != "paillier":
        return cross_lengths(scheme, 0)
    for kind, parameters in recorded.parameters.values():
        words = strong_parameters(kind).get(parameters, "").split()
        if kind == "paillier" and len(words) > 1 and words[1].isdigit():
            return cross_lengths(scheme, int(words[1]))
    return None


def _skip(recorded: Recorded, findings: Findings) -> Schedule | None:
    try:
        schedule = _schedule(recorded)
    except DataError as error:
        findings.nothing(f"no list of messages: {error}")
        return None
    if schedule is None:
        findings.looked_at = "does not apply: the parties agreed to reveal own gradients"
    return schedule


def _due(recorded: Recorded, schedule: Schedule) -> list[Due]:
    """Every message that is due between two parties of which one is here."""
    phases = {message.entry.phase for message in recorded.everything}
    due: list[Due] = []
    if phases - {"prediction"}:
        rounds = schedule.rounds
        if schedule.watched:
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
    counts: dict[tuple[str, str], int] = {}
    for message in recorded.everything:
        entry = message.entry
        if (entry.phase, entry.round) == (phase, round_) and entry.kind in ("score", "score-share"):
            ends = (entry.kind, message.sender)
            counts[ends] = counts.get(ends, 0) + numbers_in(entry.bytes)
    return max(counts.values(), default=0) // recorded.outputs


def _place(message: Sent) -> Place:
    entry = message.entry
    return message.sender, message.receiver, entry.kind, When(entry.phase, entry.round, entry.step)


def _compare(
    recorded: Recorded, findings: Findings, due: Iterable[Due], kinds: set[str], sent: list[Sent]
) -> None:
    """Write down messages that are not due, too many, too few, or of another length."""
    attempts = _attempts(recorded)
    places = Counter(each[:4] for each in due if each.kind in kinds)
    lengths: dict[Place, Counter[int | None]] = {}
    for each in due:
        lengths.setdefault(each[:4], Counter())[each.size] += 1
    seen: Counter[Place] = Counter()
    for message in sent:
        place = _place(message)
        seen[place] += 1
        allowed = lengths.get(place, Counter())
        if seen[place] > places[place] * attempts:
            findings.against(f"{message} is not due" + (", it came before" if places[place] else ""))
        elif attempts == 1 and None not in allowed:
            if not allowed[message.entry.bytes]:
                listed = ", ".join(f"{size:,}" for size in sorted({size for size in allowed if size}))
                findings.against(f"{message} has {message.entry.bytes:,} bytes, {listed} are due")
            else:
                allowed[message.entry.bytes] -= 1
    if recorded.result is not None and attempts == 1:
        for place, count in (places - seen).items():
            sender, receiver, kind, when = place
            words = f"{kind} {sender} to {receiver} (round {when.round}, {when.phase})"
            findings.against(f"{words} was due, and {count} did not come")


@claim("due", "Every message of a blind run has the number, place and length that the agreement asks for.")
def _all_due(recorded: Recorded, findings: Findings) -> None:
    schedule = _skip(recorded, findings)
    if schedule is None:
        return
    due = [each for each in _due(recorded, schedule) if each.kind not in (*KEYS, *OUTPUTS)]
    sent = [m for m in recorded.everything if m.kind is not None and m.entry.kind not in (*KEYS, *OUTPUTS)]
    _compare(recorded, findings, due, {each.kind for each in due}, sent)
    differences = sum(message.entry.kind == "difference" for message in sent)
    findings.looked_at = (
        f"{len(sent)} messages, {differences} of them differences, each in its place and length"
    )


@claim(
    "keys",
    "In a blind run only parties that encrypt had a key. With two parties only the label party had one.",
)
def _keys(recorded: Recorded, findings: Findings) -> None:
    schedule = _skip(recorded, findings)
    if schedule is None:
        return
    due = [each for each in _due(recorded, schedule) if each.kind in KEYS]
    sent = [message for message in recorded.everything if message.entry.kind in KEYS]
    owners: set[str] = set()
    for message in sent:
        owner = message.sender if message.entry.kind == "cross-key" else message.receiver
        owners.add(owner)
        if owner not in schedule.encryptors(message.entry.phase):
            findings.against(
                f"{message}: {owner} has a key, and it encrypts nothing in {message.entry.phase}"
            )
    _compare(recorded, findings, due, set(KEYS), sent)
    for message in recorded.everything:
        if message.entry.kind == "reply" and message.receiver not in schedule.encryptors(message.entry.phase):
            findings.against(f"{message} goes to somebody who has no key")
    listed = ", ".join(sorted(owners)) or "nobody"
    keys = sum(message.entry.kind == "cross-key" for message in sent)
    findings.looked_at = f"{keys} public keys, of {listed}; nobody else can decrypt anything"


@claim("outputs", "Every output of a blind run belongs to an agreed evaluation, prediction or release.")
def _outputs(recorded: Recorded, findings: Findings) -> None:
    schedule = _skip(recorded, findings)
    if schedule is None:
        return
    due = [each for each in _due(recorded, schedule) if each.kind in OUTPUTS]
    sent = [message for message in recorded.everything if message.entry.kind in OUTPUTS]
    _compare(recorded, findings, due, set(OUTPUTS), sent)
    scores = sum(numbers_in(m.entry.bytes) for m in sent if m.entry.kind == "score")
    released = [m for m in sent if m.entry.kind == "released"]
    if released and not recorded.settings.get("release"):
        findings.against(f"{released[0]}: nobody agreed to a release")
    for message in released:
        bits = release_bits(recorded.equations(message.receiver), recorded.outputs)
        limited = message.receiver != recorded.label_party and not recorded.settings.get("trusted")
        if limited and bits > RELEASE_LIMIT:
            findings.against(f"{message} shows {bits} bits, at most {RELEASE_LIMIT} were allowed")
    phases = sorted({m.entry.phase for m in sent if m.entry.phase in SCORING})
    total = sum(numbers_in(m.entry.bytes) for m in released)
    where = f" in {' and '.join(phases)}" if phases else ""
    findings.looked_at = f"{scores} scores{where}, {total} parameters released"
    if not sent and recorded.missing:
        findings.nothing(f"{findings.looked_at}; what {', '.join(recorded.missing)} had of it is not here")


BLIND = (_keys, _all_due, _outputs)
