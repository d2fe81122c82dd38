"""Claims about openings: only masked values, each mask once, only sums and scores, below the line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import prod

from securefed.audit.blind_schedule import numbers_in
from securefed.audit.claims import Findings, claim, places
from securefed.audit.recorded import Recorded, Sent
from securefed.crypto import KEY_KINDS
from securefed.protocols.messages import SCORING

REQUESTS = {"opening": "opening-request", "score-opening": "score-request"}
"""The request that each opening answers."""


@claim("masked", "The key-holders opened only masked values.")
def _masked(recorded: Recorded, findings: Findings) -> None:
    seen = 0
    for message in recorded.messages("sent"):
        for part in message.parts:
            if part.frame != "masked":
                continue
            seen += 1
            mask = message.facts.get("mask", {})
            pieces, blank = len(mask.get("pieces", ())), int(mask.get("blank", 0))
            each = part.scheme in KEY_KINDS and KEY_KINDS[part.scheme].mask_each
            due = int(message.facts.get("ciphertexts", 1)) if each else 1
            if blank or pieces < due:
                findings.against(f"{message} is under {pieces} masks, {max(due, pieces + blank)} are due")
            elif message.facts.get("narrow"):
                findings.against(
                    f"{message} is under {message.facts['narrow']} masks that are too small to hide it"
                )
    for party, transcript in recorded.transcripts.items():
        requests = places(transcript.of("received"))
        for entry in transcript.of("opened"):
            request = REQUESTS.get(entry.kind, entry.kind)
            place = (request, entry.peer, entry.round, entry.step, entry.phase)
            if not requests[place]:
                findings.against(
                    f"{party} opened {entry.kind} (round {entry.round}) without a masked request"
                )
            requests[place] -= 1
    findings.counted(seen, "masked blocks, each under masks of its own in every part", recorded.missing)


UNIFORM = ("reply", "part", "difference", "score-share")
"""Messages of blind runs under masks, or of random numbers, that are used once."""


@claim("mask-once", "No mask was used twice, and each was destroyed after its use.")
def _mask_once(recorded: Recorded, findings: Findings) -> None:
    masks = 0
    bytes_before: Counter[tuple[str, str]] = Counter()
    for message in recorded.messages("sent"):
        if message.entry.kind in UNIFORM:
            masks += 1
            bytes_before[message.sender, message.entry.digest] += 1
            if bytes_before[message.sender, message.entry.digest] > 1:
                findings.against(f"{message} has the bytes of an earlier message: its mask was used twice")
    for party, transcript in recorded.transcripts.items():
        used: Counter[str] = Counter()
        for entry in transcript.of("sent"):
            used.update(entry.detail.get("facts", {}).get("mask", {}).get("pieces", ()))
        masks += used.total()
        for count in (count for count in used.values() if count > 1):
            findings.against(f"{party} used one mask {count} times")
        for entry in transcript.of("spent"):
            pieces = entry.detail.get("mask", {}).get("pieces", ())
            place = f"{entry.kind} (round {entry.round}, step {entry.step})"
            if not entry.detail.get("destroyed"):
                findings.against(f"{party} kept a mask after {place}")
            if any(not used[piece] for piece in pieces):
                findings.against(f"{party} removed a mask at {place} that it had used up, or never sent")
            used.subtract(pieces)
        kept = sum(count > 0 for count in used.values())
        if kept:
            findings.against(f"{party} sent {kept} masks whose end it did not write down")
    findings.counted(masks, "masks, all different, none kept", recorded.missing)


@claim(
    "sums",
    "Every opened gradient is a sum over the batch, of its owner's size, and was asked for by its owner.",
)
def _sums(recorded: Recorded, findings: Findings) -> None:
    requests = 0
    for message in recorded.everything:
        if message.entry.kind != "opening-request":
            continue
        requests += 1
        if message.facts.get("single"):
            findings.against(f"{message} asks for values of single rows")
        due = recorded.equations(message.sender) * recorded.outputs
        for part in message.parts:
            if prod(part.shape) != due:
                numbers = f"{prod(part.shape)} numbers"
                findings.against(f"{message} asks for {numbers}, {message.sender} has {due} parameters")
    opened = 0
    for party, transcript in recorded.transcripts.items():
        received = places(transcript.of("received"))
        for entry in (entry for entry in transcript.of("sent") if entry.kind == "opening"):
            opened += 1
            place = (REQUESTS["opening"], entry.peer, entry.round, entry.step, entry.phase)
            if not received[place]:
                findings.against(f"{party} opened for {entry.peer} what it had not asked for ({entry.phase})")
            received[place] -= 1
    what = "gradients opened, each to its owner and of its owner's size"
    findings.counted(max(requests, opened), what, recorded.unseen_openings)


@claim("ledger", "In every exchange fewer equations were opened than there are unknowns.")
def _ledger(recorded: Recorded, findings: Findings) -> None:
    entries = [entry for entry in recorded.ledger() if not entry.advisory]
    for entry in entries:
        if entry.ratio >= 1.0:
            numbers = f"{entry.equations} equations for {entry.unknowns} unknowns ({entry.block})"
            findings.against(f"{entry.party} holds {numbers}: determined")
    worst = max((entry.ratio for entry in entries), default=0.0)
    findings.looked_at = (
        f"at most {worst:.2f} equations an unknown" if entries else "nothing opened in training"
    )
    if recorded.unseen_openings:
        findings.looked_at += f"; what was opened to {', '.join(recorded.unseen_openings)} is not here"
        findings.checked = bool(entries)


@claim("nothing", "A blind run opened only scores, and parameters if all parties had agreed.")
def _nothing(recorded: Recorded, findings: Findings) -> None:
    """Check that only scores were opened, and own parameters if all agreed to release them."""
    if not recorded.blind:
        findings.looked_at = "does not apply: the parties agreed to reveal own gradients"
        return
    seen = 0
    for message in recorded.everything:
        seen += 1
        if message.entry.kind in (*REQUESTS, *REQUESTS.values()):
            findings.against(f"{message}: something was decrypted for somebody")
        elif message.entry.kind == "released" and not recorded.settings.get("release"):
            findings.against(f"{message}: parameters were opened that nobody agreed to release")
    findings.counted(seen, "messages, no opening but of scores", recorded.missing)


@claim("scores", "Prediction and evaluation revealed scores only, and to the label party only.")
def _scores(recorded: Recorded, findings: Findings) -> None:
    numbers, label = 0, recorded.label_party
    for message in recorded.everything:
        kind = message.kind
        if message.entry.phase in SCORING and kind is not None and not kind.scoring:
            findings.against(f"{message} has no place in {message.entry.phase}")
        if kind is None or not kind.scoring or kind.protection not in ("opened", "result"):
            continue
        if message.receiver != label:
            findings.against(f"{message}: scores are for {label}")
        for part in (part for part in message.parts if part.frame in ("opened", "masked")):
            numbers += prod(part.shape)
            if prod(part.shape[1:]) > recorded.outputs:
                findings.against(f"{message} holds more than one number a row and output")
        if message.entry.kind == "score":
            numbers += numbers_in(message.entry.bytes)
    for party, transcript in recorded.transcripts.items():
        for entry in transcript.of("opened"):
            if entry.kind == "score-opening" and entry.peer != label:
                findings.against(f"{party} opened scores for {entry.peer}")
    if numbers:
        each = "one a row" if recorded.outputs == 1 else f"{recorded.outputs} a row"
        findings.looked_at = f"{numbers} scores, {each}, to {label}"
    else:
        _nobody(recorded, findings, "scores were opened, and neither end of that is here")


SCORED = ("score-part", "scores", "score-share", "score")
"""Messages about a scored party's rows, in evaluation and prediction."""


def _scored(recorded: Recorded) -> Iterator[Sent]:
    """Yield the parts of scores that parties other than the label party recorded as sent."""
    for message in recorded.messages("sent"):
        if message.entry.phase in SCORING and message.entry.kind in SCORED:
            if message.entry.kind == "score" and message.sender == recorded.key_holder:
                continue  # a helper has no rows; what it adds up is blurred by others
            yield message


def _nobody(recorded: Recorded, findings: Findings, otherwise: str) -> None:
    """Record that there were no scores, or that the scored parties' transcripts are missing."""
    if any(message.entry.phase in SCORING for message in recorded.everything):
        findings.nothing(otherwise)
    else:
        findings.looked_at = "no scores in this run"


@claim("blurred", "The scored parties blurred every score below the agreed precision.")
def _blurred(recorded: Recorded, findings: Findings) -> None:
    agreed, parts, least = recorded.settings["score_precision"], 0, 0
    for message in _scored(recorded):
        blur = message.facts.get("blur")
        parts += 1
        if blur is None:
            findings.against(f"{message} is exact: nobody blurred it")
        elif blur["precision_bits"] > agreed or blur["noise_bits"] < 1:
            findings.against(f"{message} is blurred to 2**-{blur['precision_bits']}, 2**-{agreed} was agreed")
        else:
            least = min(least or blur["noise_bits"], blur["noise_bits"])
    if not parts:
        _nobody(recorded, findings, "nobody who was scored is here")
    else:
        findings.looked_at = f"{parts} parts of scores, noise over 2**-{agreed} in {least} bits or more"


@claim("score-ledger", "The scored parties counted all scores, in ledgers that refuse past their limit.")
def _score_ledger(recorded: Recorded, findings: Findings) -> None:
    """Check the mode of each ledger. Counts stay with the party: they tell about its columns."""
    kept: Counter[str] = Counter()
    for message in _scored(recorded):
        mode = message.facts.get("ledger", "off")
        kept[message.sender] += 1
        if mode == "off":
            findings.against(f"{message.sender} kept no score ledger ({message.entry.phase})")
        elif mode != "refuse":
            findings.against(f"{message.sender}'s score ledger only warns ({message.entry.phase})")
    if not kept:
        _nobody(recorded, findings, "nobody who was scored is here")
    else:
        findings.looked_at = "; ".join(f"{party}: {count} scorings, counted" for party, count in kept.items())


OPENINGS = (_masked, _mask_once, _sums, _ledger, _nothing, _scores, _blurred, _score_ledger)
