"""The audit as a section of HTML with a diagram of messages, and as a page of its own."""

from __future__ import annotations

from collections import Counter
from graphlib import CycleError, TopologicalSorter
from html import escape
from typing import TYPE_CHECKING

from securefed.audit.recorded import Receipt, Recorded, Sent
from securefed.pages import badge, fold, glossary, page, table, term

if TYPE_CHECKING:
    from securefed.audit.report import AuditReport

LOOKS = {
    "public-key": ("--public", "public"),
    "bytes": ("--public", "public"),
    "ciphertext": ("--cipher", "ciphertext"),
    "masked": ("--mask", "masked"),
    "opened": ("--open", "opened, still masked"),
    "disclosure": ("--open", "result and its mask"),
    "share": ("--mask", "a random share"),
    "result": ("--open", "result"),
    "clear": ("--clear", "IN THE CLEAR"),
}
"""Colour and words of each protection."""
MOST_ARROWS = 60
MARKS = {"pass": "pass", "FAIL": "fail", "skip": "part"}
USED = ("claim", "key-holder", "ledger", "masked", "opened", "receipt", "round", "transcript")


def section(report: AuditReport, *, folded: bool = True) -> str:
    """Return the section. The page around it explains terms. `folded` also folds the checks."""
    mark = "bad" if not report.passed else "part" if report.reservation else "good"
    counts = report.counts
    short = f"{counts['pass']} checks passed, {counts['FAIL']} failed, {counts['skip']} skipped"
    pieces = [
        f'<section id="audit"><h2>Audit</h2><p>{badge(short, mark)}</p>',
        f'<p class="soft">{escape(report.verdict)}</p>',
        fold(f"All {len(report.claims)} checks", _claims(report)) if folded else _claims(report),
        f'<h3 id="receipts">{term("receipt", "Receipts")}</h3><ul>',
        *(f"<li>{escape(_receipt(report, receipt))}</li>" for receipt in report.receipts),
        "</ul>",
        _left_out(report),
        fold(
            "Every message, and what each party saw",
            f'<h3 id="messages">One {term("round")}, message by message</h3>'
            '<p class="soft">The start of the run, its first round and its first scores; (n): how often in '
            f"the whole run.</p>{diagram(report.recorded)}"
            f"{''.join(_seen(report, name) for name in report.seen)}{_ledger(report)}",
        ),
        "</section>",
    ]
    return "\n".join(pieces)


def _receipt(report: AuditReport, receipt: Receipt) -> str:
    """A comparison of two parties' messages; one side alone knows what the parties found at the end."""
    peers = (report.recorded.result or {}).get("peers", {})
    told = peers.get(receipt.first.peer, {}).get("transcripts")
    word = "they agree" if told == "agree" else told
    if receipt.compared or told is None:
        return str(receipt)
    return (
        f"{receipt.first.party} and {receipt.first.peer} compared fingerprints at the end of the run: {word}"
    )


def whole_page(report: AuditReport) -> str:
    """Return the audit as a page of its own."""
    run = str(report.recorded.run or "a run")
    return page(
        f"Audit of {run}", f"<h1>Audit of {escape(run)}</h1>{section(report, folded=False)}{glossary(USED)}"
    )


def _claims(report: AuditReport) -> str:
    rows = "".join(
        f'<tr><td><span class="{MARKS[claim.word]}">{claim.word}</span></td><td>{escape(claim.text)}<br/>'
        f'<span class="evidence">{escape(claim.evidence)}</span></td></tr>'
        for claim in report.claims
    )
    return f'<h3 id="claims">{term("claim", "Claims")}</h3><table><tbody>{rows}</tbody></table>'


def _left_out(report: AuditReport) -> str:
    """Return what the verdict does not cover."""
    lines = [f"{claim.text.rstrip('.')}: {claim.evidence}" for claim in report.claims if not claim.checked]
    if report.recorded.missing:
        names = ", ".join(report.recorded.missing)
        lines.append(f"The transcripts of {names} are not here, so only this side's records were checked.")
    lines.append(
        "A party that lies about itself in a consistent way, and what anybody does outside of the run."
    )
    listed = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return fold("Skipped, and why", f'<ul id="unchecked">{listed}</ul>')


def _seen(report: AuditReport, name: str) -> str:
    rows = []
    for row in report.seen[name]:
        how = f"{row.protection} (key of {row.key})" if row.key else row.protection
        rows.append((row.peer, row.kind, f"{row.messages:,}", f"{row.bytes:,}", how, row.reveals))
    head = ("from", "message", "count", "bytes", "protection", "what it reveals")
    return f"<h3>What {escape(name)} saw</h3>{table(head, rows, numbers=(2, 3))}"


def _ledger(report: AuditReport) -> str:
    word = term("ledger", "Ledger")
    title = f'<h3 id="ledger">{word}: opened numbers against the secrets they depend on</h3>'
    if not report.ledger:
        return f"{title}<p>Empty: no gradient was opened to anybody.</p>"
    rows = []
    for e in report.ledger:
        block = f"{e.block} (estimate)" if e.advisory else e.block
        rows.append((e.party, block, f"{e.equations:,}", f"{e.unknowns:,}", f"{e.ratio:.2f}", e.verdict))
    head = ("party", "secrets", "numbers", "secrets, how many", "ratio", "verdict")
    return title + table(head, rows, numbers=(2, 3, 4))


def _protection(message: Sent) -> str:
    protections = [part.protection for part in message.parts]
    for word in ("clear", "disclosure", "opened", "masked", "ciphertext", "public-key"):
        if word in protections:
            return word
    if message.kind is not None and message.kind.looks:
        return message.kind.protection
    return "bytes"


def _arrows(recorded: Recorded) -> list[tuple[Sent, int]]:
    """Return an arrow for each message of the first round of each phase, with the count of similar ones."""
    first: dict[str, int] = {}
    totals: Counter[tuple[str, str, str]] = Counter()
    chosen: list[Sent] = []
    for message in _in_order(recorded):
        entry = message.entry
        totals[message.sender, message.receiver, entry.kind] += 1
        if entry.round == first.setdefault(entry.phase, entry.round):
            chosen.append(message)
    return [(m, totals[m.sender, m.receiver, m.entry.kind]) for m in chosen[:MOST_ARROWS]]


def _in_order(recorded: Recorded) -> list[Sent]:
    """Return all messages in an order that fits every transcript: sent after what the sender had received."""
    order: TopologicalSorter[tuple[object, ...]] = TopologicalSorter()
    messages: dict[tuple[object, ...], Sent] = {}
    for name, transcript in recorded.transcripts.items():
        before: list[tuple[object, ...]] = []
        numbers: Counter[tuple[str, str]] = Counter()
        for entry in (e for e in transcript.entries if e.event in ("sent", "received")):
            ends = (name, entry.peer) if entry.event == "sent" else (entry.peer, name)
            numbers[ends] += 1
            event, sent = (entry.event, *ends, numbers[ends]), ("sent", *ends, numbers[ends])
            if event == sent or entry.peer not in recorded.transcripts:
                messages[event] = Sent(*ends, entry)
            order.add(event, *before, *([] if event == sent else [sent]))
            before = [event]
    try:
        return [messages[event] for event in order.static_order() if event in messages]
    except CycleError:  # the transcripts contradict each other, which is a claim's matter
        return recorded.everything


def diagram(recorded: Recorded) -> str:
    """Draw a lane for each party, and a row for each message, coloured by its protection."""
    arrows, lanes = _arrows(recorded), list(recorded.everybody)
    head = "".join(f"<th>{escape(name)}</th>" for name in lanes)
    rows = []
    for message, total in arrows:
        colour, words = LOOKS[_protection(message)]
        start, end = lanes.index(message.sender), lanes.index(message.receiver)
        first, last = min(start, end), max(start, end)
        label = f"{escape(message.entry.kind)} ({total})"
        arrow = f"{label} →" if start < end else f"← {label}"
        rows.append(
            f"<tr>{'<td></td>' * first}"
            f'<td colspan="{last - first + 1}" title="{words}" style="color:var({colour})">{arrow}</td>'
            f"{'<td></td>' * (len(lanes) - 1 - last)}</tr>"
        )
    shown = {_protection(message) for message, _ in arrows}
    used = dict.fromkeys(look for name, look in LOOKS.items() if name in shown)
    key = ", ".join(f'<span style="color:var({colour})">{words}</span>' for colour, words in used)
    table_ = f'<table class="lanes"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    return f'<div class="wide">{table_}</div><p>{key}</p>'
