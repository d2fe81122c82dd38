"""Claims about openings: only masked values, each mask once, only sums and scores, below the line."""

from __future__ import annotations

from collections import Counter
from math import prod

from securefed.audit.claims import Outcome, Skipped, claim, counted, unmatched
from securefed.audit.recorded import Recorded, Sent
from securefed.crypto import KEY_KINDS
from securefed.crypto.shares import numbers_in
from securefed.protocols.messages import SCORING

REQUESTS = {"opening": "opening-request", "score-opening": "score-request"}
"""The request that each opening answers."""


@claim("masked", "The key-holders opened only masked values.")
def _masked(recorded: Recorded) -> Outcome:
    seen = 0
    for message in recorded.messages("sent"):
        for part in (part for part in message.parts if part.frame == "masked"):
            seen += 1
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
    return counted(seen, "masked blocks, each under masks of its own in every part", recorded.missing)


UNIFORM = ("reply", "part", "difference", "score-share")
"""Messages of blind runs under masks, or of random numbers, that are used once."""


@claim("mask-once", "No mask was used twice, and each was destroyed after its use.")
def _mask_once(recorded: Recorded) -> Outcome:
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
def _sums(recorded: Recorded) -> Outcome:
    requests, opened = recorded.of("opening-request"), 0
    for message in requests:
        if message.facts.get("single"):
            yield f"{message} asks for values of single rows"
        due = recorded.parameters.get(message.sender, 0) * recorded.outputs
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
def _ledger(recorded: Recorded) -> Outcome:
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
def _scores(recorded: Recorded) -> Outcome:
    numbers, label = 0, recorded.label_party
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
            if prod(part.shape[1:]) > recorded.outputs:
                yield f"{message} holds more than one number a row and output"
        if message.entry.kind == "score":
            numbers += numbers_in(message.entry.bytes)
    for party, transcript in recorded.transcripts.items():
        for entry in transcript.of("opened"):
            if entry.kind == "score-opening" and entry.peer != label:
                yield f"{party} opened scores for {entry.peer}"
    if not numbers:
        return _no_scores(recorded, "scores were opened, and neither end of that is here")
    each = "one a row" if recorded.outputs == 1 else f"{recorded.outputs} a row"
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
        and (message.entry.kind, message.sender) != ("score", recorded.key_holder)
    ]


def _no_scores(recorded: Recorded, otherwise: str = "nobody who was scored is here") -> str:
    """Return that there were no scores. Raises Skipped if the scored parties' transcripts are missing."""
    if any(message.entry.phase in SCORING for message in recorded.everything):
        raise Skipped(otherwise)
    return "no scores in this run"


@claim("blurred", "The scored parties blurred every score below the agreed precision.")
def _blurred(recorded: Recorded) -> Outcome:
    agreed, bits, parts = recorded.settings["score_precision"], list[int](), _scored(recorded)
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
def _score_ledger(recorded: Recorded) -> Outcome:
    """Check the mode of each ledger. Counts stay with the party: they tell about its columns."""
    parts = _scored(recorded)
    for message in parts:
        if message.facts.get("ledger") != "refuse":
            yield f"{message.sender} kept no score ledger that refuses ({message.entry.phase})"
    if not parts:
        return _no_scores(recorded)
    counts = Counter(message.sender for message in parts)
    return "; ".join(f"{party}: {count} scorings, counted" for party, count in counts.items())


OPENINGS = (_masked, _mask_once, _sums, _ledger, _scores, _blurred, _score_ledger)
