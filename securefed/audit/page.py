"""The audit as a section of HTML, and as a page of its own."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from securefed.audit.recorded import Receipt
from securefed.pages import badge, fold, glossary, page, table, term

if TYPE_CHECKING:
    from securefed.audit.report import AuditReport

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
        fold(
            "What each party saw",
            "".join(_seen(report, name) for name in report.seen) + _ledger(report),
        ),
        "</section>",
    ]
    return "\n".join(pieces)


def _receipt(report: AuditReport, receipt: Receipt) -> str:
    """A comparison of two parties' messages; one side alone knows what the parties found at the end."""
    peers = (report.recorded.result or {}).get("peers", {})
    told = peers.get(receipt.second, {}).get("transcripts")
    word = "they agree" if told == "agree" else told
    if receipt.compared or told is None:
        return str(receipt)
    return f"{receipt.first} and {receipt.second} compared fingerprints at the end of the run: {word}"


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
