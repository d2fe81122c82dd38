"""Claims: plain sentences about a run, each with a check of its transcripts that looks for violations.

A claim is a function under `@claim`. It yields violations and returns what it examined. securefed.audit.blind
has those about blind runs. The table of message kinds (securefed.protocols.messages) says what each kind may
contain, and who may send it to which party and when. docs/audit.md says what transcripts cannot show: a party
that lies about itself consistently.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from securefed.audit.recorded import Recorded, Sent, receipts
from securefed.crypto import KEY_KINDS, key_kind, protects
from securefed.crypto.shares import numbers_in
from securefed.errors import plain_text
from securefed.protocols.blind.scoring import SEAL_STEP
from securefed.protocols.messages import SCORING
from securefed.transport.transcript import Entry, Part, canonical

SHOWN = 3


@dataclass(frozen=True)
class Claim:
    """A statement about one run, and whether its transcripts support it."""

    name: str
    text: str
    passed: bool
    evidence: str
    """What was examined, or the first violations."""
    checked: bool = True
    """There was something to check. One end of a link alone shows nothing about the other."""

    @property
    def word(self) -> str:
        if not self.passed:
            return "FAIL"
        return "pass" if self.checked else "skip"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Skipped(Exception):
    """There is nothing to check a claim by."""


def counted(count: int, what: str, absent: Sequence[str]) -> str:
    """Return how much was examined. Raises Skipped if all of it is in `absent` transcripts."""
    rest = f"; what {', '.join(absent)} had of it is not here" if absent else ""
    if not count and absent:
        raise Skipped(f"0 {what}{rest}")
    return f"{count} {what}{rest}"


Violations = Generator[str, None, str]
"""Violations, and in the end what was examined."""
ClaimCheck = Callable[[Recorded], Violations]


@dataclass(frozen=True)
class Statement:
    """A claim before its check."""

    name: str
    text: str
    check: ClaimCheck

    def about(self, recorded: Recorded) -> Claim:
        violations, evidence, checked = list[str](), "", True
        check = self.check(recorded)
        try:
            while True:
                violations.append(next(check))
        except StopIteration as end:
            evidence = end.value
        except Skipped as reason:
            evidence, checked = str(reason), False
        except Exception as error:  # noqa: BLE001  # what a check cannot read speaks against the claim
            why = plain_text(error, 80)
            violations.append(f"the transcripts cannot be read for this claim ({why})")
        if not violations:
            return Claim(self.name, self.text, True, evidence, checked)
        more = len(violations) - SHOWN
        evidence = "; ".join(violations[:SHOWN]) + (f"; and {more} more" if more > 0 else "")
        return Claim(self.name, self.text, False, evidence)


def claim(name: str, text: str) -> Callable[[ClaimCheck], Statement]:
    """Make a function the check of a claim."""
    return lambda check: Statement(name, text, check)


EntryKey = tuple[str, str, int, int, str]


def _place(entry: Entry, kind: str | None = None) -> EntryKey:
    """Kind, peer, round, step and phase of an entry. `kind` replaces its own."""
    return kind or entry.kind, entry.peer, entry.round, entry.step, entry.phase


def unmatched(entries: Iterable[Entry], others: Iterable[Entry], kinds: Mapping[str, str]) -> Iterable[Entry]:
    """Yield the entries that have no partner of their own at the same place among the others.

    `kinds`: the partner's kind, where it is another.
    """
    partners = Counter(map(_place, others))
    for entry in entries:
        place = _place(entry, kinds.get(entry.kind))
        if not partners[place]:
            yield entry
        partners[place] -= 1


# Claims about contents


@claim(
    "clear",
    "No features, labels, parameters, H, residuals or per-sample gradients were sent in the clear.",
)
def _clear(recorded: Recorded) -> Violations:
    total = 0
    for message in (*recorded.messages("sent"), *recorded.messages("received")):
        if message.kind is None:
            continue
        total += 1
        due = message.kind.contents
        framed = ((part.frame, part.size) for part in message.parts)
        contents = tuple(f"bytes:{size}" if frame == "bytes" else frame for frame, size in framed)
        bare = [part for part in message.parts if part.protection == "clear"]
        if bare:
            none = bare[0].frame != "bytes" and not protects(bare[0].scheme)
            why = "no encryption" if none else "not what a ciphertext or a share looks like"
            yield f"{message} is in the clear ({why})"
        elif due == ("bytes",) and len(contents) == 1 and contents[0].startswith("bytes:"):
            continue  # its length is another claim's matter
        elif due is not None and contents != due:
            yield f"{message} holds {', '.join(contents) or 'nothing'} where {', '.join(due)} is due"
    return f"{total} messages sent or received: ciphertexts, shares, masked or public data only"


@claim("encrypted", "The run was encrypted, with keys of full strength that were exchanged at its start.")
def _encrypted(recorded: Recorded) -> Violations:
    scheme = recorded.agreement.scheme
    due = key_kind(scheme, recorded.agreement.reveal)
    if not protects(scheme):
        yield f"the scheme is {scheme!r}, which protects nothing"
    if recorded.blind:
        return (yield from _run_keys(recorded))
    strengths = set()
    for key, (owner, part) in recorded.keys.items():
        strength = strength_of(part)
        strengths.add(strength or part.scheme)
        if part.scheme != due:
            yield f"key {key[:8]} of {owner} is {part.scheme}, {due} was agreed"
        elif strength is None and protects(part.scheme):
            yield f"key {key[:8]} of {owner} is weaker than what is documented"
    used = {part.key for message in recorded.everything for part in message.parts if part.key}
    for key in sorted(used - recorded.keys.keys()):
        yield f"key {key[:8]} was used, and nobody had sent it around"
    proof, proven = KEY_KINDS[due].proof if due in KEY_KINDS else "", False
    for party, transcript in recorded.transcripts.items() if proof else ():
        for entry in (entry for entry in transcript.of("checked") if entry.kind == "public-key"):
            proven = True
            if proof not in entry.detail.get("checks", ()):  # that its maker cannot read through masks
                yield f"{party} took {entry.peer}'s key without a proof that {proof}"
    with_proofs = ", each checked by its proof where it arrived" if proven else ""
    return f"{len(recorded.keys)} keys: {', '.join(sorted(strengths))}{with_proofs}"


def _run_keys(recorded: Recorded) -> Violations:
    """Check the keys that a blind run makes. The ring has one size; Paillier's moduli show theirs."""
    strengths, keys = set(), recorded.of("cross-key")
    for message in keys:
        for part in message.parts:
            if part.frame == "bytes":
                strengths.add("rlwe of degree 4096")
                continue
            strengths.add(strength_of(part) or part.scheme)
            if strength_of(part) is None:
                yield f"{message}: the key is weaker than what is documented"
    if not keys:
        return counted(0, "public keys of this run", recorded.missing)
    return f"{len(keys)} public keys of this run: {', '.join(sorted(strengths)) or 'none sent'}"


def strength_of(part: Part) -> str | None:
    """Return a key's set of parameters in words if its strength is documented (docs/security.md)."""
    strong = KEY_KINDS[part.scheme].load("strong_parameters")() if part.scheme in KEY_KINDS else {}
    strength: str | None = strong.get(part.parameters)
    return strength


@claim("foreign-key", "Every ciphertext that a party received is under a key whose secret half it lacks.")
def _foreign_key(recorded: Recorded) -> Violations:
    operands, total = recorded.of("operand"), 0
    for message in recorded.everything:
        for part in (part for part in message.parts if part.frame == "encrypted"):
            total += 1
            if not protects(part.scheme):
                yield f"{message} is under no key"
            elif recorded.owner(part.key) == message.receiver:
                yield f"{message} is under {message.receiver}'s own key"
    keys = {(message.sender, message.receiver) for message in recorded.of("cross-key")}
    for message in operands:
        if message.entry.phase != "prediction" and (message.sender, message.receiver) not in keys:
            yield f"{message} is under no key that {message.sender} had sent there"
    what = "ciphertext blocks, each under a key of somebody else than its receiver"
    return counted(total + len(operands), what, recorded.missing)


@claim("fresh", "Every ciphertext that left a party was fresh or re-randomised.")
def _fresh(recorded: Recorded) -> Violations:
    total = 0
    arrived: Counter[tuple[str, str]] = Counter()
    for message in recorded.messages("sent"):
        operand = message.entry.kind == "operand"
        if not operand and not any(part.frame in ("encrypted", "masked") for part in message.parts):
            continue
        total += 1
        origin = "fresh" if operand else message.facts.get("origin", "not noted")
        if origin not in ("fresh", "re-randomised"):
            yield f"{message} left under randomness that was {origin}"
        if operand and message.entry.phase in SCORING and message.entry.step > SEAL_STEP:
            continue  # a question that is asked again has the same bytes
        arrived[message.receiver, message.entry.digest] += 1
        if arrived[message.receiver, message.entry.digest] > 1:
            yield f"{message} is a ciphertext that {message.receiver} had already"
    return counted(total, "ciphertext messages, fresh or re-randomised", recorded.missing)


# Claims about openings and scores

REQUESTS = {"opening": "opening-request", "score-opening": "score-request"}


@claim("masked", "The key-holders opened only masked values.")
def _masked(recorded: Recorded) -> Violations:
    total = 0
    for message in recorded.messages("sent"):
        for part in (part for part in message.parts if part.frame == "masked"):
            total += 1
            mask = message.facts.get("mask", {})
            pieces, blank = len(mask.get("pieces", ())), int(mask.get("blank", 0))
            each = part.scheme in KEY_KINDS and KEY_KINDS[part.scheme].mask_each
            due = int(message.facts.get("ciphertexts", 1)) if each else 1
            if blank or pieces < due:
                yield f"{message} is under {pieces} masks, {max(due, pieces + blank)} are due"
            elif message.facts.get("narrow"):
                yield f"{message} is under {message.facts['narrow']} masks that are too small to hide it"
    for party, transcript in recorded.transcripts.items():
        for entry in unmatched(transcript.of("opened"), transcript.of("received"), REQUESTS):
            yield f"{party} opened {entry.kind} (round {entry.round}) without a masked request"
    return counted(total, "masked blocks, each under masks of its own in every part", recorded.missing)


UNIFORM = ("reply", "part", "difference", "score-share")
"""Messages of blind runs under masks, or of random numbers, that are used once."""


@claim("mask-once", "No mask was used twice, and each was destroyed after its use.")
def _mask_once(recorded: Recorded) -> Violations:
    bytes_before: Counter[tuple[str, str]] = Counter()
    for message in (m for m in recorded.messages("sent") if m.entry.kind in UNIFORM):
        bytes_before[message.sender, message.entry.digest] += 1
        if bytes_before[message.sender, message.entry.digest] > 1:
            yield f"{message} has the bytes of an earlier message: its mask was used twice"
    masks = bytes_before.total()
    for party, transcript in recorded.transcripts.items():
        used: Counter[str] = Counter()
        for entry in transcript.of("sent"):
            used.update(entry.detail.get("facts", {}).get("mask", {}).get("pieces", ()))
        masks += used.total()
        for count in (count for count in used.values() if count > 1):
            yield f"{party} used one mask {count} times"
        for entry in transcript.of("spent"):
            pieces = entry.detail.get("mask", {}).get("pieces", ())
            place = f"{entry.kind} (round {entry.round}, step {entry.step})"
            if not entry.detail.get("destroyed"):
                yield f"{party} kept a mask after {place}"
            if any(not used[piece] for piece in pieces):
                yield f"{party} removed a mask at {place} that it had used up, or never sent"
            used.subtract(pieces)
        kept = sum(count > 0 for count in used.values())
        if kept:
            yield f"{party} sent {kept} masks whose end it did not write down"
    return counted(masks, "masks, all different, none kept", recorded.missing)


@claim(
    "sums",
    "Every opened gradient is a sum over the batch, of its owner's size, and was asked for by its owner.",
)
def _sums(recorded: Recorded) -> Violations:
    requests, opened = recorded.of("opening-request"), 0
    sizes = {member.name: member.parameters for member in recorded.agreement.members}
    for message in requests:
        if message.facts.get("single"):
            yield f"{message} asks for values of single rows"
        due = sizes.get(message.sender, 0) * recorded.agreement.outputs
        for numbers in (prod(part.shape) for part in message.parts):
            if numbers != due:
                yield f"{message} asks for {numbers} numbers, {message.sender} has {due} parameters"
    for party, transcript in recorded.transcripts.items():
        openings = [entry for entry in transcript.of("sent") if entry.kind == "opening"]
        opened += len(openings)
        for entry in unmatched(openings, transcript.of("received"), REQUESTS):
            yield f"{party} opened for {entry.peer} what it had not asked for ({entry.phase})"
    what = "gradients opened, each to its owner and of its owner's size"
    return counted(max(len(requests), opened), what, recorded.unseen_openings)


@claim("ledger", "In every exchange fewer equations were opened than there are unknowns.")
def _ledger(recorded: Recorded) -> Violations:
    entries = [entry for entry in recorded.ledger() if not entry.advisory]
    for entry in entries:
        if entry.ratio >= 1.0:
            numbers = f"{entry.equations} equations for {entry.unknowns} unknowns ({entry.block})"
            yield f"{entry.party} holds {numbers}: determined"
    worst = max((entry.ratio for entry in entries), default=0.0)
    text = f"at most {worst:.2f} equations an unknown" if entries else "nothing opened in training"
    if recorded.unseen_openings:
        text += f"; what was opened to {', '.join(recorded.unseen_openings)} is not here"
    if not entries and recorded.unseen_openings:
        raise Skipped(text)
    return text


@claim("scores", "Prediction and evaluation revealed scores only, and to the label party only.")
def _scores(recorded: Recorded) -> Violations:
    numbers, label = 0, recorded.agreement.label_party
    for message in recorded.everything:
        kind = message.kind
        if message.entry.phase in SCORING and kind is not None and not kind.scoring:
            yield f"{message} has no place in {message.entry.phase}"
        if not message.opens_scores:
            continue
        if message.receiver != label:
            yield f"{message}: scores are for {label}"
        for part in (part for part in message.parts if part.frame in ("opened", "masked")):
            numbers += prod(part.shape)
            if prod(part.shape[1:]) > recorded.agreement.outputs:
                yield f"{message} holds more than one number a row and output"
        if message.entry.kind == "score":
            numbers += numbers_in(message.entry.bytes)
    for party, transcript in recorded.transcripts.items():
        for entry in transcript.of("opened"):
            if entry.kind == "score-opening" and entry.peer != label:
                yield f"{party} opened scores for {entry.peer}"
    if not numbers:
        return _no_scores(recorded, "scores were opened, and neither end of that is here")
    each = "one a row" if recorded.agreement.outputs == 1 else f"{recorded.agreement.outputs} a row"
    return f"{numbers} scores, {each}, to {label}"


SCORED = ("score-part", "scores", "score-share", "score")
"""Messages about a scored party's rows, in evaluation and prediction."""


def _scored(recorded: Recorded) -> list[Sent]:
    """Return the parts of scores that parties other than the label party recorded as sent.

    A helper has no rows. What it adds up is blurred by others.
    """
    return [
        message
        for message in recorded.messages("sent")
        if message.entry.phase in SCORING
        and message.entry.kind in SCORED
        and (message.entry.kind, message.sender) != ("score", recorded.agreement.key_holder)
    ]


def _no_scores(recorded: Recorded, otherwise: str = "nobody who was scored is here") -> str:
    """Return that there were no scores. Raises Skipped if the scored parties' transcripts are missing."""
    if any(message.entry.phase in SCORING for message in recorded.everything):
        raise Skipped(otherwise)
    return "no scores in this run"


@claim("blurred", "The scored parties blurred every score below the agreed precision.")
def _blurred(recorded: Recorded) -> Violations:
    agreed, bits, parts = recorded.agreement.score_precision, list[int](), _scored(recorded)
    for message in parts:
        blur = message.facts.get("blur")
        if blur is None:
            yield f"{message} is exact: nobody blurred it"
        elif blur["precision_bits"] > agreed or blur["noise_bits"] < 1:
            yield f"{message} is blurred to 2**-{blur['precision_bits']}, 2**-{agreed} was agreed"
        else:
            bits.append(blur["noise_bits"])
    if not parts:
        return _no_scores(recorded)
    least = min(bits, default=0)
    return f"{len(parts)} parts of scores, noise over 2**-{agreed} in {least} bits or more"


@claim("score-ledger", "The scored parties counted all scores, in ledgers that refuse past their limit.")
def _score_ledger(recorded: Recorded) -> Violations:
    """Check the mode of each ledger. Counts stay with the party: they tell about its columns."""
    parts = _scored(recorded)
    for message in parts:
        if message.facts.get("ledger") != "refuse":
            yield f"{message.sender} kept no score ledger that refuses ({message.entry.phase})"
    if not parts:
        return _no_scores(recorded)
    counts = Counter(message.sender for message in parts)
    return "; ".join(f"{party}: {count} scorings, counted" for party, count in counts.items())


# Claims about form


@claim("named", "Every message is of a kind, sender and receiver that the protocol names.")
def _named(recorded: Recorded) -> Violations:
    for message in recorded.everything:
        kind, phase = message.kind, message.entry.phase
        if kind is None:
            yield f"{message} is of no kind that the protocol names"
            continue
        if kind.phases and phase not in kind.phases and phase not in SCORING:
            yield f"{message} has no place in {phase}"
        if not recorded.has_role(message.sender, kind.sender, message):
            yield f"{message} comes from somebody who is not its {kind.sender}"
        # Who gets scores is a claim of its own.
        if not message.opens_scores and not recorded.has_role(message.receiver, kind.receiver, message):
            yield f"{message} goes to somebody who is not its {kind.receiver}"
    kinds = sorted({message.entry.kind for message in recorded.everything})
    return f"{len(recorded.everything)} messages of {len(kinds)} kinds: {', '.join(kinds)}"


@claim("checked", "Everything that arrived was checked before it was used.")
def _checked(recorded: Recorded) -> Violations:
    total = 0
    for party, transcript in recorded.transcripts.items():
        # Of bytes without frames the program takes exactly those that are due or stops.
        arrivals = [
            entry
            for entry in transcript.of("received")
            if entry.kind != "cross-key" and not all(part.frame == "bytes" for part in entry.parts)
        ]
        total += len(arrivals)
        for entry in unmatched(arrivals, transcript.of("checked"), {}):
            yield f"{party} used {entry.kind} of {entry.peer} (round {entry.round}) unchecked"
    return f"{total} arrivals: frame, checksum, scheme, parameter set, key, shape, every number"


@claim("agreed", "All parties ran by the same agreement.")
def _agreed(recorded: Recorded) -> Violations:
    first, expected = next(iter(recorded.transcripts)), recorded.agreed
    for name in recorded.transcripts:
        for attempt, agreed in enumerate(recorded.agreements(name)):
            later = f" when it went on ({attempt})" if attempt else ""
            text = json.dumps(agreed.get("settings"), sort_keys=True)
            if hashlib.sha256(text.encode()).hexdigest() != agreed.get("digest"):
                yield f"{name}'s settings{later} are not those that its agreement was hashed from"
            elif agreed != expected:
                yield f"{name} ran{later} by other settings than {first}: {_difference(agreed, expected)}"
    text = f"agreement {str(expected.get('digest'))[:16]} at {', '.join(recorded.transcripts)}"
    if len(recorded.transcripts) == 1:
        raise Skipped(f"{text} alone: the others' transcripts are not here")
    return text


def _difference(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """Return the names of differing settings, or of facts that follow from them (rows, unknowns)."""
    one, other = ({**agreed, **agreed.get("settings", {})} for agreed in (theirs, ours))
    skipped = ("settings", "digest")
    names = [key for key in {**other, **one} if key not in skipped and one.get(key) != other.get(key)]
    return ", ".join(names)


@claim("receipts", "Both ends of every link recorded the same messages.")
def _receipts(recorded: Recorded) -> Violations:
    listed = receipts(recorded)
    yield from (str(receipt) for receipt in listed if receipt.problems)
    done = sum(receipt.compared for receipt in listed)
    rest = f"; {len(listed) - done} not, one transcript is missing" if done < len(listed) else ""
    if not done:
        raise Skipped(f"no link compared{rest}")
    return f"{done} links compared{rest}"


@claim("whole", "No transcript was altered after it was written.")
def _whole(recorded: Recorded) -> Violations:
    for name, transcript in recorded.transcripts.items():
        fault = transcript.fault()
        if fault:
            yield f"{name}: {fault}"
    listed = list(recorded.transcripts.values())
    resumed = [entry for transcript in listed for entry in transcript.of("resumed")]
    taken_back = sum(int(entry.detail.get("dropped", 0)) for entry in resumed)
    again = f"; {len(resumed)} times resumed, {taken_back} entries taken back" if resumed else ""
    return f"{sum(map(len, listed))} entries in {len(listed)} hash chains{again}"


@claim("result", "result.json agrees with the transcripts.")
def _result(recorded: Recorded) -> Violations:
    if recorded.result is None:
        raise Skipped("no result to compare with")
    if canonical(recorded.result.get("settings")) != canonical(recorded.settings):
        yield "the result names other settings than the transcripts"
    if recorded.result.get("protected") is not recorded.agreement.blurs:
        yield "the result says otherwise about whether the run was protected"
    shown = {(e.party, e.block, e.equations, e.unknowns) for e in recorded.ledger()}
    own, every = (
        {(e["party"], e["block"], e["equations"], e["unknowns"]) for e in entries}
        for entries in (recorded.result.get("ledger", ()), recorded.result.get("ledger_of_all", ()))
    )
    # A party's result lists what its own transcript shows, and beside it what the others opened.
    due = {entry for entry in every if entry[0] not in recorded.unseen_openings} or own
    if due != shown or not own <= shown:
        yield "the result's ledger is not what the openings in the transcripts add up to"
    return "settings, protection and ledger are those of the transcripts"


CONTENT = (_clear, _encrypted, _foreign_key, _fresh)
OPENINGS = (_masked, _mask_once, _sums, _ledger, _scores, _blurred, _score_ledger)
FORM = (_named, _checked, _agreed, _receipts, _whole, _result)
