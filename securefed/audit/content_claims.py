"""Claims about message contents: nothing in the clear, everything fresh and under the right keys."""

from __future__ import annotations

from collections import Counter

from securefed.audit.claim import Findings, Statement
from securefed.audit.recorded import Recorded
from securefed.crypto import KEY_KINDS, key_kind, protects
from securefed.protocols.blind.scoring import SEAL_STEP
from securefed.protocols.messages import SCORING
from securefed.transport.contents import Part

__all__ = ["CONTENT"]


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


def _fresh(recorded: Recorded, findings: Findings) -> None:
    seen = 0
    arrived: Counter[tuple[str, str]] = Counter()
    for message in recorded.messages("sent"):
        if not any(part.frame in ("encrypted", "masked") for part in message.parts):
            continue
        seen += 1
        origin = message.facts.get("origin", "not noted")
        if origin == "forwarded":
            source = message.facts.get("source")
            if source == message.receiver or recorded.owners.get(message.parts[0].key) != source:
                findings.against(f"{message} was passed on to somebody who had seen it")
        elif origin not in ("fresh", "re-randomised"):
            findings.against(f"{message} left under randomness that was {origin}")
        arrived[message.receiver, message.entry.digest] += 1
        if arrived[message.receiver, message.entry.digest] > 1:
            findings.against(f"{message} is a ciphertext that {message.receiver} had already")
    for message in recorded.messages("sent"):
        if message.entry.kind != "operand":
            continue
        seen += 1
        if message.entry.phase in SCORING and message.entry.step > SEAL_STEP:
            continue  # a question that is asked again has the same bytes
        arrived[message.receiver, message.entry.digest] += 1
        if arrived[message.receiver, message.entry.digest] > 1:
            findings.against(f"{message} is a ciphertext that {message.receiver} had already")
    what = "ciphertext messages, fresh, re-randomised, or the key-holder's, passed on once"
    findings.counted(seen, what, recorded.missing)


CONTENT = (
    Statement(
        "clear",
        "No features, labels, parameters, H, residuals or per-sample gradients were sent in the clear.",
        _clear,
    ),
    Statement(
        "encrypted",
        "The run was encrypted, with keys of full strength that were exchanged at its start.",
        _encrypted,
    ),
    Statement(
        "foreign-key",
        "Every ciphertext that a party received is under a key whose secret half it lacks.",
        _foreign_key,
    ),
    Statement("fresh", "Every ciphertext that left a party was fresh or re-randomised.", _fresh),
)
