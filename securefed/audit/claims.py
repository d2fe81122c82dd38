"""Claims: plain sentences about a run, each with a check of its transcripts that looks for violations.

A claim is a function under `@claim`. Here are those about contents (nothing in the clear, everything fresh
and under the right keys) and about form (only named messages, all checked, one agreement).

The table of message kinds (securefed.protocols.messages) says what each kind may contain, and who may send it
to which party and when. It covers a new kind at once. A kind that is not in the table fails the claim
`named`.

The parties write the transcripts themselves. Transcripts show mistakes of software and of configuration, and
receipts show whether both ends of a link tell the same story. They cannot show a malicious party that lies
about itself consistently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from securefed.audit.recorded import Recorded, Sent, receipts
from securefed.crypto import KEY_KINDS, key_kind, protects
from securefed.errors import plain_text
from securefed.protocols.blind.scoring import SEAL_STEP
from securefed.protocols.messages import SCORING
from securefed.transport import Entry
from securefed.transport.transcript import Part, canonical

SHOWN = 3


@dataclass(frozen=True)
class Claim:
    """A statement about one run, and whether its transcripts support it."""

    name: str
    text: str
    passed: bool
    """No violation was found."""
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


@dataclass
class Findings:
    """The result of a check."""

    violations: list[str] = field(default_factory=list)
    looked_at: str = ""
    checked: bool = True

    def against(self, violation: str) -> None:
        self.violations.append(violation)

    def nothing(self, why: str) -> None:
        """Record that there is nothing to check the claim by."""
        self.checked, self.looked_at = False, why

    def counted(self, count: int, what: str, absent: Sequence[str]) -> None:
        """Record how much was examined: nothing, if all of it is in `absent` transcripts."""
        rest = f"; what {', '.join(absent)} had of it is not here" if absent else ""
        self.checked, self.looked_at = bool(count) or not absent, f"{count} {what}{rest}"

    @property
    def evidence(self) -> str:
        if not self.violations:
            return self.looked_at
        more = len(self.violations) - SHOWN
        return "; ".join(self.violations[:SHOWN]) + (f"; and {more} more" if more > 0 else "")


Check = Callable[[Recorded, Findings], None]


@dataclass(frozen=True)
class Statement:
    """A claim before its check."""

    name: str
    text: str
    check: Check

    def about(self, recorded: Recorded) -> Claim:
        findings = Findings()
        try:
            self.check(recorded, findings)
        except Exception as error:  # noqa: BLE001  # what a check cannot read speaks against the claim
            findings.against(f"the transcripts cannot be read for this claim ({plain_text(error, 80)})")
        checked = findings.checked or bool(findings.violations)
        return Claim(self.name, self.text, not findings.violations, findings.evidence, checked)


def claim(name: str, text: str) -> Callable[[Check], Statement]:
    """Make a function the check of a claim."""
    return lambda check: Statement(name, text, check)


Place = tuple[str, str, int, int, str]


def places(entries: Iterable[Entry], kind: str | None = None) -> Counter[Place]:
    """Count entries by kind, peer, round, step and phase. `kind` replaces their own."""
    return Counter((kind or e.kind, e.peer, e.round, e.step, e.phase) for e in entries)


# Claims about contents


@claim(
    "clear",
    "No features, labels, parameters, H, residuals or per-sample gradients were sent in the clear.",
)
def _clear(recorded: Recorded, findings: Findings) -> None:
    seen = 0
    for message in (*recorded.messages("sent"), *recorded.messages("received")):
        if message.kind is None:
            continue
        seen += 1
        due = message.kind.contents
        contents = tuple(_name(part) for part in message.parts)
        bare = [part for part in message.parts if part.protection == "clear"]
        if bare:
            framed = bare[0].frame != "bytes"
            none = framed and not protects(bare[0].scheme)
            why = "no encryption" if none else "not what a ciphertext or a share looks like"
            findings.against(f"{message} is in the clear ({why})")
        elif due == ("bytes",) and len(contents) == 1 and contents[0].startswith("bytes:"):
            continue  # its length is another claim's matter
        elif due is not None and contents != due:
            findings.against(
                f"{message} holds {', '.join(contents) or 'nothing'} where {', '.join(due)} is due"
            )
    findings.looked_at = f"{seen} messages sent or received: ciphertexts, shares, masked or public data only"


def _name(part: Part) -> str:
    return f"bytes:{part.size}" if part.frame == "bytes" else part.frame


@claim("encrypted", "The run was encrypted, with keys of full strength that were exchanged at its start.")
def _encrypted(recorded: Recorded, findings: Findings) -> None:
    scheme = str(recorded.settings["scheme"])
    due = key_kind(scheme, str(recorded.settings.get("reveal", "own-gradient")))
    if not protects(scheme):
        findings.against(f"the scheme is {scheme!r}, which protects nothing")
    if recorded.blind:
        _run_keys(recorded, findings)
        return
    strengths = set()
    for key, (actual, parameters) in recorded.parameters.items():
        strength = strong_parameters(actual).get(parameters)
        strengths.add(strength or actual)
        if actual != due:
            findings.against(f"key {key[:8]} of {recorded.owners[key]} is {actual}, {due} was agreed")
        elif strength is None and protects(actual):
            findings.against(f"key {key[:8]} of {recorded.owners[key]} is weaker than what is documented")
    used = {part.key for message in recorded.everything for part in message.parts if part.key}
    for key in sorted(used - recorded.owners.keys()):
        findings.against(f"key {key[:8]} was used, and nobody had sent it around")
    proof = KEY_KINDS[due].proof if due in KEY_KINDS else ""
    proven = bool(proof) and _proven(recorded, findings, proof)
    with_proofs = ", each checked by its proof where it arrived" if proven else ""
    findings.looked_at = f"{len(recorded.owners)} keys: {', '.join(sorted(strengths))}{with_proofs}"


def _proven(recorded: Recorded, findings: Findings, proof: str) -> bool:
    """Return whether keys arrived, all with the proof that their makers cannot read through masks."""
    arrivals = 0
    for party, transcript in recorded.transcripts.items():
        for entry in transcript.of("checked"):
            if entry.kind != "public-key":
                continue
            arrivals += 1
            if proof not in entry.detail.get("checks", ()):
                findings.against(f"{party} took {entry.peer}'s key without a proof that {proof}")
    return arrivals > 0


def _run_keys(recorded: Recorded, findings: Findings) -> None:
    """Check the keys that a blind run makes. The ring has one size; Paillier's moduli show theirs."""
    strengths, keys = set(), 0
    for message in recorded.everything:
        if message.entry.kind != "cross-key":
            continue
        keys += 1
        for part in message.parts:
            if part.frame == "bytes":
                strengths.add("rlwe of degree 4096")
                continue
            strength = strong_parameters(part.scheme).get(part.parameters)
            strengths.add(strength or part.scheme)
            if strength is None:
                findings.against(f"{message}: the key is weaker than what is documented")
    findings.looked_at = f"{keys} public keys of this run: {', '.join(sorted(strengths)) or 'none sent'}"
    if not keys:
        findings.counted(keys, "public keys of this run", recorded.missing)


def strong_parameters(kind: str) -> dict[str, str]:
    """Return parameter sets of documented strength (docs/security.md), by fingerprint."""
    strong: dict[str, str] = KEY_KINDS[kind].load("strong_parameters")() if kind in KEY_KINDS else {}
    return strong


@claim("foreign-key", "Every ciphertext that a party received is under a key whose secret half it lacks.")
def _foreign_key(recorded: Recorded, findings: Findings) -> None:
    seen = 0
    for message in recorded.everything:
        for part in message.parts:
            if part.frame != "encrypted":
                continue
            seen += 1
            if not protects(part.scheme):
                findings.against(f"{message} is under no key")
            elif recorded.owners.get(part.key) == message.receiver:
                findings.against(f"{message} is under {message.receiver}'s own key")
    keys = {(m.sender, m.receiver) for m in recorded.everything if m.entry.kind == "cross-key"}
    for message in recorded.everything:
        if message.entry.kind != "operand":
            continue
        seen += 1
        if message.entry.phase != "prediction" and (message.sender, message.receiver) not in keys:
            findings.against(f"{message} is under no key that {message.sender} had sent there")
    what = "ciphertext blocks, each under a key of somebody else than its receiver"
    findings.counted(seen, what, recorded.missing)


@claim("fresh", "Every ciphertext that left a party was fresh or re-randomised.")
def _fresh(recorded: Recorded, findings: Findings) -> None:
    seen = 0
    arrived: Counter[tuple[str, str]] = Counter()

    def arrive(message: Sent) -> None:
        arrived[message.receiver, message.entry.digest] += 1
        if arrived[message.receiver, message.entry.digest] > 1:
            findings.against(f"{message} is a ciphertext that {message.receiver} had already")

    for message in recorded.messages("sent"):
        operand = message.entry.kind == "operand"
        if not operand and not any(part.frame in ("encrypted", "masked") for part in message.parts):
            continue
        seen += 1
        if operand:
            # A question that is asked again has the same bytes.
            if message.entry.phase not in SCORING or message.entry.step <= SEAL_STEP:
                arrive(message)
            continue
        origin = message.facts.get("origin", "not noted")
        if origin not in ("fresh", "re-randomised"):
            findings.against(f"{message} left under randomness that was {origin}")
        arrive(message)
    what = "ciphertext messages, fresh or re-randomised"
    findings.counted(seen, what, recorded.missing)


CONTENT = (_clear, _encrypted, _foreign_key, _fresh)


# Claims about form


@claim("named", "Every message is of a kind, sender and receiver that the protocol names.")
def _named(recorded: Recorded, findings: Findings) -> None:
    for message in recorded.everything:
        kind, phase = message.kind, message.entry.phase
        if kind is None:
            findings.against(f"{message} is of no kind that the protocol names")
            continue
        if kind.phases and phase not in kind.phases and phase not in SCORING:
            findings.against(f"{message} has no place in {phase}")
        if not recorded.has_role(message.sender, kind.sender, message):
            findings.against(f"{message} comes from somebody who is not its {kind.sender}")
        # Who gets scores is a claim of its own.
        scores = kind.scoring and kind.protection in ("opened", "result")
        if not scores and not recorded.has_role(message.receiver, kind.receiver, message):
            findings.against(f"{message} goes to somebody who is not its {kind.receiver}")
    kinds = sorted({message.entry.kind for message in recorded.everything})
    findings.looked_at = f"{len(recorded.everything)} messages of {len(kinds)} kinds: {', '.join(kinds)}"


@claim("checked", "Everything that arrived was checked before it was used.")
def _checked(recorded: Recorded, findings: Findings) -> None:
    seen = 0
    for party, transcript in recorded.transcripts.items():
        checks = places(transcript.of("checked"))
        for entry in transcript.of("received"):
            if entry.kind == "cross-key" or all(part.frame == "bytes" for part in entry.parts):
                continue  # the program takes exactly the bytes that are due or stops
            seen += 1
            place = (entry.kind, entry.peer, entry.round, entry.step, entry.phase)
            if not checks[place]:
                findings.against(f"{party} used {entry.kind} of {entry.peer} (round {entry.round}) unchecked")
            checks[place] -= 1
    findings.looked_at = f"{seen} arrivals: frame, checksum, scheme, parameter set, key, shape, every number"


@claim("agreed", "All parties ran by the same agreement.")
def _agreed(recorded: Recorded, findings: Findings) -> None:
    first = next(iter(recorded.transcripts))
    expected = recorded.agreed(first)
    for name in recorded.transcripts:
        for attempt, agreed in enumerate(recorded.agreements(name)):
            later = f" when it went on ({attempt})" if attempt else ""
            if recorded.agreement_digest(agreed) != agreed.get("digest"):
                findings.against(f"{name}'s settings{later} are not those that its agreement was hashed from")
            elif agreed != expected:
                findings.against(
                    f"{name} ran{later} by other settings than {first}: {_difference(agreed, expected)}"
                )
    listed = ", ".join(recorded.transcripts)
    findings.looked_at = f"agreement {str(expected.get('digest'))[:16]} at {listed}"
    if len(recorded.transcripts) == 1:
        findings.nothing(f"{findings.looked_at} alone: the others' transcripts are not here")


def _difference(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """Return the names of differing settings, or of facts that follow from them (rows, unknowns)."""
    one, other = ({**agreed, **agreed.get("settings", {})} for agreed in (theirs, ours))
    skipped = ("settings", "digest")
    names = [key for key in {**other, **one} if key not in skipped and one.get(key) != other.get(key)]
    return ", ".join(names)


@claim("receipts", "Both ends of every link recorded the same messages.")
def _receipts(recorded: Recorded, findings: Findings) -> None:
    listed = receipts(recorded)
    for receipt in listed:
        problems = [problem for problem in receipt.problems if "agreements" not in problem]
        if problems:
            findings.against(f"{receipt.first.party} and {receipt.first.peer}: {'; '.join(problems)}")
    done = sum(receipt.compared for receipt in listed)
    rest = len(listed) - done
    findings.looked_at = f"{done} links compared" + (
        f"; {rest} not, one transcript is missing" if rest else ""
    )
    if not done:
        findings.nothing(findings.looked_at)


@claim("whole", "No transcript was altered after it was written.")
def _whole(recorded: Recorded, findings: Findings) -> None:
    for name, transcript in recorded.transcripts.items():
        fault = transcript.fault()
        if fault:
            findings.against(f"{name}: {fault}")
    listed = list(recorded.transcripts.values())
    resumed = [entry for transcript in listed for entry in transcript.of("resumed")]
    taken_back = sum(int(entry.detail.get("dropped", 0)) for entry in resumed)
    again = f"; {len(resumed)} times resumed, {taken_back} entries taken back" if resumed else ""
    findings.looked_at = f"{sum(map(len, listed))} entries in {len(listed)} hash chains{again}"


@claim("result", "result.json agrees with the transcripts.")
def _result(recorded: Recorded, findings: Findings) -> None:
    if recorded.result is None:
        findings.nothing("no result to compare with")
        return
    if canonical(recorded.result.get("settings")) != canonical(recorded.settings):
        findings.against("the result names other settings than the transcripts")
    if recorded.result.get("protected") is not protects(recorded.settings["scheme"]):
        findings.against("the result says otherwise about whether the run was protected")
    counted = sorted((e.party, e.block, e.equations, e.unknowns) for e in recorded.ledger())
    written = sorted(
        (e["party"], e["block"], e["equations"], e["unknowns"]) for e in recorded.result.get("ledger", ())
    )
    if counted != written:
        findings.against("the result's ledger is not what the openings in the transcripts add up to")
    findings.looked_at = "settings, protection and ledger are those of the transcripts"


FORM = (_named, _checked, _agreed, _receipts, _whole, _result)
