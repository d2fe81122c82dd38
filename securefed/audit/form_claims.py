"""Claims about form: only named messages, all checked, one agreement, matching transcripts, no changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from securefed.audit.claim import Findings, Statement, places
from securefed.audit.receipt import receipts
from securefed.audit.recorded import Recorded
from securefed.crypto import protects
from securefed.protocols.messages import SCORING
from securefed.transport.transcript import canonical

__all__ = ["FORM"]


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


FORM = (
    Statement(
        "named",
        "Every message is of a kind, sender and receiver that the protocol names.",
        _named,
    ),
    Statement("checked", "Everything that arrived was checked before it was used.", _checked),
    Statement("agreed", "All parties ran by the same agreement.", _agreed),
    Statement("receipts", "Both ends of every link recorded the same messages.", _receipts),
    Statement("whole", "No transcript was altered after it was written.", _whole),
    Statement("result", "result.json agrees with the transcripts.", _result),
)
