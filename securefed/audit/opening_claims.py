"""Claims about what was opened: only masked values, each mask once, sums and scores only, below the line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import prod

from securefed.audit.claim import Findings, Statement, places
from securefed.audit.recorded import Recorded, Sent
from securefed.crypto import KEY_KINDS
from securefed.protocols.evidence import MOST_PIECES
from securefed.protocols.messages import SCORING

__all__ = ["OPENINGS"]

REQUESTS = {"opening": "opening-request", "score-opening": "score-request"}
"""What an opening answers."""


def _masked(recorded: Recorded, found: Findings) -> None:
    seen = 0
    for message in recorded.messages("sent"):
        for part in message.parts:
            if part.frame != "masked":
                continue
            seen += 1
            mask = message.facts.get("mask", {})
            pieces, blank = len(mask.get("pieces", ())), int(mask.get("blank", 0))
            each = part.scheme in KEY_KINDS and KEY_KINDS[part.scheme].mask_each
            due = min(int(message.facts.get("ciphertexts", 1)), MOST_PIECES) if each else 1
            if blank or pieces < due:
                found.against(f"{message} is under {pieces} masks, {max(due, pieces + blank)} are due")
            elif message.facts.get("narrow"):
                found.against(
                    f"{message} is under {message.facts['narrow']} masks that are too small to hide it"
                )
    for party, transcript in recorded.transcripts.items():
        asked = places(transcript.of("received"))
        for entry in transcript.of("opened"):
            request = REQUESTS.get(entry.kind, entry.kind)
            place = (request, entry.peer, entry.round, entry.step, entry.phase)
            if not asked[place]:
                found.against(f"{party} opened {entry.kind} (round {entry.round}) without a masked request")
            asked[place] -= 1
    found.counted(seen, "masked blocks, each under masks of its own in every part", recorded.missing)


def _mask_once(recorded: Recorded, found: Findings) -> None:
    made = 0
    for party, transcript in recorded.transcripts.items():
        used: Counter[str] = Counter()
        for entry in transcript.of("sent"):
            used.update(entry.detail.get("facts", {}).get("mask", {}).get("pieces", ()))
        made += used.total()
        for count in (count for count in used.values() if count > 1):
            found.against(f"{party} used one mask {count} times")
        for entry in transcript.of("spent"):
            pieces = entry.detail.get("mask", {}).get("pieces", ())
            place = f"{entry.kind} (round {entry.round}, step {entry.step})"
            if not entry.detail.get("destroyed"):
                found.against(f"{party} kept a mask after {place}")
            if any(not used[piece] for piece in pieces):
                found.against(f"{party} removed a mask at {place} that it had used up, or never sent")
            used.subtract(pieces)
        kept = sum(count > 0 for count in used.values())
        if kept:
            found.against(f"{party} sent {kept} masks whose end it did not write down")
    found.counted(made, "masks, all different, none kept", recorded.missing)


def _sums(recorded: Recorded, found: Findings) -> None:
    requests = 0
    for message in recorded.everything:
        if message.entry.kind != "opening-request":
            continue
        requests += 1
        if message.facts.get("single"):
            found.against(f"{message} asks for values of single rows")
        due = recorded.equations(message.sender) * recorded.outputs
        for part in message.parts:
            if prod(part.shape) != due:
                numbers = f"{prod(part.shape)} numbers"
                found.against(f"{message} asks for {numbers}, {message.sender} has {due} parameters")
    opened = 0
    for party, transcript in recorded.transcripts.items():
        asked = places(transcript.of("received"))
        for entry in (entry for entry in transcript.of("sent") if entry.kind == "opening"):
            opened += 1
            place = (REQUESTS["opening"], entry.peer, entry.round, entry.step, entry.phase)
            if not asked[place]:
                found.against(f"{party} opened for {entry.peer} what it had not asked for ({entry.phase})")
            asked[place] -= 1
    what = "gradients opened, each to its owner and of its owner's size"
    found.counted(max(requests, opened), what, recorded.unseen_openings)


def _ledger(recorded: Recorded, found: Findings) -> None:
    entries = [entry for entry in recorded.ledger() if not entry.advisory]
    for entry in entries:
        if entry.ratio >= 1.0:
            numbers = f"{entry.equations} equations for {entry.unknowns} unknowns ({entry.block})"
            found.against(f"{entry.party} holds {numbers}: determined")
    worst = max((entry.ratio for entry in entries), default=0.0)
    found.looked_at = f"at most {worst:.2f} equations an unknown" if entries else "nothing opened in training"
    if recorded.unseen_openings:
        found.looked_at += f"; what was opened to {', '.join(recorded.unseen_openings)} is not here"
        found.checked = bool(entries)


def _nothing(recorded: Recorded, found: Findings) -> None:
    """No opening but of scores (and of own parameters, where all agreed to release them); whoever gets a
    product of shares had sent the share.
    """
    if recorded.settings.get("reveal") != "nothing":
        found.looked_at = "not promised here: own gradients were agreed to be revealed"
        return
    seen = 0
    for message in recorded.everything:
        seen += 1
        released = message.entry.phase == "release" and recorded.settings.get("release")
        if message.entry.kind in (*REQUESTS, *REQUESTS.values()) and not (
            released or message.entry.phase in SCORING
        ):
            found.against(f"{message}: something was opened that is no score")
    shares = sum(_products(recorded, party, found) for party in recorded.transcripts)
    products = f", {shares} products of shares, each for the one whose share it is" if shares else ""
    found.counted(seen, f"messages, no opening but of scores{products}", recorded.missing)


def _products(recorded: Recorded, party: str, found: Findings) -> int:
    """Products that a party got: of a share that it had sent to the one who multiplied. A key-holder party
    passes each on to that one, and to nobody else.
    """
    transcript, third = recorded.transcripts[party], recorded.key_holder
    sent, received, count = places(transcript.of("sent")), places(transcript.of("received")), 0
    others = [name for name in recorded.names if name != party]
    for (kind, _, t, step, phase), number in received.items():
        where = f"round {t}, step {step}"
        if kind == ("share-product" if third is None else "product-share"):
            count += number
            if number > sum(sent["share", other, t, step, phase] for other in others):
                found.against(f"{party} got a product ({where}) of no share of its own")
        elif kind == "share-product" and party != third:
            found.against(f"{party} got a product ({where}) that is for {third}")
    for (kind, peer, t, step, phase), number in sent.items():
        multiplied = [received["share-product", other, t, step, phase] for other in others if other != peer]
        if kind == "product-share" and number > sum(multiplied):
            found.against(f"{party} gave {peer} a product (round {t}, step {step}) that nobody made for it")
    return count


def _scores(recorded: Recorded, found: Findings) -> None:
    numbers, label = 0, recorded.label_party
    for message in recorded.everything:
        kind = message.kind
        if message.entry.phase in SCORING and kind is not None and not kind.scoring:
            found.against(f"{message} has no place in {message.entry.phase}")
        if kind is None or not kind.scoring or kind.protection not in ("opened", "result"):
            continue
        if message.receiver != label:
            found.against(f"{message}: scores are for {label}")
        for part in (part for part in message.parts if part.frame in ("opened", "masked")):
            numbers += prod(part.shape)
            if prod(part.shape[1:]) > recorded.outputs:
                found.against(f"{message} holds more than one number a row and output")
    for party, transcript in recorded.transcripts.items():
        for entry in transcript.of("opened"):
            if entry.kind == "score-opening" and entry.peer != label:
                found.against(f"{party} opened scores for {entry.peer}")
    if numbers:
        each = "one a row" if recorded.outputs == 1 else f"{recorded.outputs} a row"
        found.looked_at = f"{numbers} scores, {each}, to {label}"
    else:
        _nobody(recorded, found, "scores were opened, and neither end of that is here")


SCORED = ("score-part", "margin", "masked-margin", "scores")
"""What a party that is scored sends of its rows, in evaluation and prediction."""


def _scored(recorded: Recorded) -> Iterator[Sent]:
    """Parts of scores that a party other than the label party wrote down as sent."""
    for message in recorded.messages("sent"):
        if message.entry.phase in SCORING and message.entry.kind in SCORED:
            yield message


def _nobody(recorded: Recorded, found: Findings, otherwise: str) -> None:
    """Either there were no scores, or those whom the claim is about did not hand their transcripts in."""
    if any(message.entry.phase in SCORING for message in recorded.everything):
        found.nothing(otherwise)
    else:
        found.looked_at = "no scores in this run"


def _blurred(recorded: Recorded, found: Findings) -> None:
    agreed, parts, least = recorded.settings["score_precision"], 0, 0
    for message in _scored(recorded):
        blur = message.facts.get("blur")
        parts += 1
        if blur is None:
            found.against(f"{message} is exact: nobody blurred it")
        elif blur["precision_bits"] > agreed or blur["noise_bits"] < 1:
            found.against(f"{message} is blurred to 2**-{blur['precision_bits']}, 2**-{agreed} was agreed")
        else:
            least = min(least or blur["noise_bits"], blur["noise_bits"])
    if not parts:
        _nobody(recorded, found, "nobody who was scored is here")
    else:
        found.looked_at = f"{parts} parts of scores, noise over 2**-{agreed} in {least} bits or more"


def _score_ledger(recorded: Recorded, found: Findings) -> None:
    worst: dict[str, tuple[int, int, int]] = {}
    for message in _scored(recorded):
        state = message.facts.get("scored")
        if state is None or state["verdict"] == "not counted":
            found.against(f"{message.sender} kept no score ledger ({message.entry.phase})")
            continue
        numbers = f"{state['bits']} bits of a person in {state['scorings']} scorings"
        if state["verdict"] in ("past", "shown"):
            found.against(f"{message.sender} showed {numbers}, and its columns hold {state['column_bits']}")
        before = worst.get(message.sender, (0, 0, 0))
        worst[message.sender] = max(before, (state["bits"], state["scorings"], state["column_bits"]))
    if not worst:
        _nobody(recorded, found, "nobody who was scored is here")
    else:
        found.looked_at = "; ".join(
            f"{party}: {bits} bits of {held} in {scorings} scorings of a person"
            for party, (bits, scorings, held) in worst.items()
        )


OPENINGS = (
    Statement("masked", "The key-holders opened only masked values.", _masked),
    Statement("mask-once", "No mask was used twice, and each was destroyed after its use.", _mask_once),
    Statement(
        "sums",
        "Every opened gradient is a sum over the batch, of its owner's size, and was asked for by its owner.",
        _sums,
    ),
    Statement("ledger", "Opened equations stayed below the unknowns in every exchange.", _ledger),
    Statement(
        "nothing",
        "Where nothing is to be revealed, nothing was opened but scores, and who got a product of shares had"
        " sent the share.",
        _nothing,
    ),
    Statement(
        "scores", "Prediction and evaluation revealed scores only, and to the label party only.", _scores
    ),
    Statement(
        "blurred", "Every score was blurred below the agreed precision by the parties it is about.", _blurred
    ),
    Statement(
        "score-ledger",
        "Scores showed less of a person than the columns of the parties they are about hold.",
        _score_ledger,
    ),
)
