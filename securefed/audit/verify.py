"""Verify the transcripts of a run: were they signed by their parties, and do they tell the same story?

    python verify.py FOLDER

This file stands alone: it needs Python 3.11, the package `cryptography`, and nothing of securefed. FOLDER
holds transcript-<party>.jsonl and signatures-<party>.json of one party or of several. Of a prediction it may
hold prediction-<party>.jsonl, prediction-signatures-<party>.json and the label party's file of scores.

A transcript is a list of lines of JSON: a header, one line for each event, and an end. Each event holds a
hash over itself and everything before it (`chain`). The checks, in order:

    1. chain          no line was changed, dropped, added or moved: each hash fits, and the end says so
    2. certificate    the party's TLS key, by its certificate, vouches for its signing key (Ed25519)
    3. signature      that signing key signed the run, the number of events and the last hash
    4. countersigned  every other party signed the same numbers when the run ended, so that a party that
                      rewrites its own transcript later and signs it again is found
    5. messages       what one party says it sent is what the other says it received, in the same order
    6. scores         the file of scores is the one whose hash the label party's transcript holds

Transcripts of predictions are signed and not countersigned: checks 1, 2, 3, 5 and 6 are made.

What this cannot show: two parties that lie together, and events that a party never wrote down. Compare the
printed fingerprints of certificates with those that the parties published.

Exit code 0: no check failed. 1: one failed. 2: there was nothing to verify.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

HEADER, FIELDS = {"transcript", "release", "party", "run"}, {
    "event", "kind", "peer", "round", "step", "bytes", "digest", "phase", "detail", "chain",
}  # fmt: skip
KEY, STATEMENT, COUNTERSIGNATURE = (
    b"securefed signing key 1\n",
    b"securefed transcript 1\n",
    b"securefed countersignature 1\n",
)
"""What is signed begins with one of these, so that no signature can stand for another."""


class Wrong(Exception):
    """A check that failed; the text says where."""


def canonical(value: Any) -> bytes:
    """One form of a JSON value, to hash and to sign."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


@dataclass
class Witness:
    """The transcript and signatures of one party."""

    name: str
    run: str = ""
    head: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    signed: dict[str, Any] = field(default_factory=dict)


def read_transcript(path: Path, word: str) -> Witness:
    """Check 1. Read a transcript and follow its chain. `word` is how its file's name begins."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    if len(lines) < 2 or not all(isinstance(line, dict) for line in lines):
        raise Wrong("not a transcript")
    header, *events, end = lines
    if header.keys() != HEADER or header["transcript"] != 2:
        raise Wrong("the first line is not the header of a transcript of format 2")
    if path.name != f"{word}-{header['party']}.jsonl":
        raise Wrong(f"the file holds the transcript of {str(header['party'])[:60]!r}")
    chain = hashlib.sha256(canonical(header)).hexdigest()
    for number, event in enumerate(events):
        if event.keys() != FIELDS:
            raise Wrong(f"event {number} has other fields than an event has")
        content = {name: value for name, value in event.items() if name != "chain"}
        chain = hashlib.sha256(chain.encode() + canonical(content)).hexdigest()
        if event["chain"] != chain:
            raise Wrong(f"event {number} does not fit the chain: it or an event before it was changed")
    if end != {"end": len(events), "chain": chain}:
        raise Wrong("the last line does not fit: events are missing or were added at the end")
    return Witness(str(header["party"]), str(header["run"]), chain, events)


def statement(party: Witness) -> dict[str, Any]:
    """What a party signs: which run, how many events, and the hash over all of them."""
    return {
        "party": party.name,
        "run": party.run,
        "instance": party.signed["instance"],
        "entries": len(party.events),
        "chain": party.head,
        "key": party.signed["key"],
    }


def check_certificate(party: Witness) -> str:
    """Check 2. Return the certificate's fingerprint."""
    certificate = x509.load_pem_x509_certificate(party.signed["certificate"].encode())
    name = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value
    if name != party.name:
        raise Wrong(f"the certificate is of {str(name)[:60]!r}")
    data, signature = KEY + bytes.fromhex(party.signed["key"]), bytes.fromhex(party.signed["vouched"])
    public = certificate.public_key()
    if not isinstance(public, ec.EllipticCurvePublicKey):
        raise Wrong("the certificate does not hold an ECDSA key")
    public.verify(signature, data, ec.ECDSA(hashes.SHA256()))
    return certificate.fingerprint(hashes.SHA256()).hex(":")


def check_signature(party: Witness) -> None:
    """Check 3."""
    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(party.signed["key"]))
    key.verify(bytes.fromhex(party.signed["signature"]), STATEMENT + canonical(statement(party)))


def check_countersignature(party: Witness, peer: Witness) -> None:
    """Check 4. `peer` signed what `party` said at the end of the run, and `party` says the same now."""
    countersigned = peer.signed["countersigned"][party.name]
    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(peer.signed["key"]))
    content = {"by": peer.name, "statement": countersigned["statement"]}
    key.verify(bytes.fromhex(countersigned["signature"]), COUNTERSIGNATURE + canonical(content))
    if countersigned["statement"] != statement(party):
        raise Wrong(f"{peer.name} countersigned another transcript of {party.name} than this one")


def messages(party: Witness, event: str, peer: str) -> list[tuple[Any, ...]]:
    return [
        (e["detail"].get("sequence"), e["kind"], e["round"], e["step"], e["bytes"], e["digest"])
        for e in party.events
        if e["event"] == event and e["peer"] == peer
    ]


def check_messages(sender: Witness, receiver: Witness) -> str:
    """Check 5."""
    sent, received = messages(sender, "sent", receiver.name), messages(receiver, "received", sender.name)
    if len(sent) != len(received):
        raise Wrong(f"{sender.name} sent {len(sent)} messages, {receiver.name} received {len(received)}")
    for number, (one, other) in enumerate(zip(sent, received, strict=True)):
        if one != other:
            raise Wrong(f"message {number} is not the same at both ends")
    return f"{len(sent)} messages"


def check_scores(folder: Path, event: dict[str, Any]) -> str:
    """Check 6."""
    path = folder / Path(str(event["detail"]["file"])).name
    if not path.exists():
        raise FileNotFoundError(path.name)
    if hashlib.sha256(path.read_bytes()).hexdigest() != event["detail"]["digest"]:
        raise Wrong(f"{path.name} is not the file that was written then: it was changed or replaced")
    return path.name


def verify(folder: Path) -> list[tuple[str, str, str]]:
    """Make all checks; ("pass" | "FAIL" | "skip", what was checked, more) for each."""
    training = _verify(folder, "transcript", "signatures")
    return training + _verify(folder, "prediction", "prediction-signatures")


def _verify(folder: Path, word: str, signatures: str) -> list[tuple[str, str, str]]:
    """Check the files whose names begin with these words."""
    results: list[tuple[str, str, str]] = []

    def check(what: str, work: Any, *arguments: Any) -> Any:
        try:
            outcome = work(*arguments)
        except InvalidSignature:
            results.append(("FAIL", what, "the signature is not valid"))
        except Wrong as wrong:
            results.append(("FAIL", what, str(wrong)))
        except FileNotFoundError as missing:
            results.append(("skip", what, f"{missing} is not there"))
        except Exception as error:  # noqa: BLE001  # files come from anybody, and hold anything
            results.append(("FAIL", what, f"cannot be read: {str(error)[:80]}"))
        else:
            results.append(("pass", what, outcome if isinstance(outcome, str) else ""))
            return outcome
        return None

    parties: dict[str, Witness] = {}
    for path in sorted(folder.glob(f"{word}-*.jsonl")):
        party = check(f"chain of {path.name}", read_transcript, path, word)
        if party is not None:
            parties[party.name] = party
    runs = {party.run for party in parties.values()}
    if len(runs) > 1:
        results.append(("FAIL", "run", f"transcripts of {len(runs)} runs"))
    for party in parties.values():
        path = folder / f"{signatures}-{party.name}.json"
        if not path.exists():
            results.append(("skip", f"{signatures} of {party.name}", f"{path.name} is not there"))
            continue
        party.signed = check(f"{path.name}", lambda p=path: dict(json.loads(p.read_text("utf-8")))) or {}
        check(f"certificate of {party.name}", check_certificate, party)
        check(f"signature of {party.name}", check_signature, party)
        for event in party.events:
            if event["event"] == "scored":
                check(f"scores of {party.name}", check_scores, folder, event)
    for party, peer in permutations(parties.values(), 2):
        signed = party.signed and isinstance(peer.signed.get("countersigned"), dict)
        if signed and party.name in peer.signed["countersigned"]:
            check(f"{peer.name} countersigned {party.name}", check_countersignature, party, peer)
        elif word == "transcript":
            results.append(("skip", f"{peer.name} countersigned {party.name}", "no countersignature"))
        check(f"messages {party.name} to {peer.name}", check_messages, party, peer)
    return results


def main(words: list[str]) -> int:
    if len(words) != 1 or not Path(words[0]).is_dir():
        sys.stderr.write("usage: verify.py FOLDER\n")
        return 2
    results = verify(Path(words[0]))
    if not results:
        sys.stderr.write(f"{words[0]}: no transcript-<party>.jsonl there\n")
        return 2
    for verdict, what, more in results:
        line = f"{verdict}  {what}" + (f": {more}" if more else "")
        sys.stdout.write("".join(c if c.isprintable() else "?" for c in line) + "\n")
    counts = {word: sum(verdict == word for verdict, _, _ in results) for word in ("pass", "FAIL", "skip")}
    sys.stdout.write(f"{counts['pass']} checks passed, {counts['FAIL']} failed, {counts['skip']} skipped\n")
    return 1 if counts["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
