"""The audit as a section of HTML, with a diagram of messages in SVG. No script, nothing from elsewhere."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from securefed.audit.recorded import Recorded, Sent

if TYPE_CHECKING:
    from securefed.audit.report import AuditReport

__all__ = ["diagram", "section"]

COLOURS = {
    "public-key": "#777777",
    "bytes": "#777777",
    "ciphertext": "#2b6cb0",
    "masked": "#6b46c1",
    "opened": "#b7791f",
    "disclosure": "#b7791f",
    "clear": "#c53030",
}
WORDS = {
    "public-key": "public",
    "bytes": "public",
    "ciphertext": "ciphertext",
    "masked": "masked",
    "opened": "opened, still masked",
    "disclosure": "result and its mask",
    "clear": "IN THE CLEAR",
}
LANE, ROW, TOP = 220, 26, 46
MOST_ARROWS = 60

STYLE = """
.securefed-audit { font-family: system-ui, sans-serif; font-size: 14px; color: #1a202c; max-width: 76rem; }
.securefed-audit table { border-collapse: collapse; width: 100%; margin: 0.5rem 0 1.5rem; }
.securefed-audit th, .securefed-audit td { text-align: left; padding: 0.3rem 0.6rem; vertical-align: top;
  border-bottom: 1px solid #e2e8f0; }
.securefed-audit td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.securefed-audit .pass { color: #276749; font-weight: 600; }
.securefed-audit .fail { color: #fff; background: #c53030; font-weight: 600; padding: 0 0.4rem; }
.securefed-audit .part { color: #975a16; font-weight: 600; }
.securefed-audit .evidence { color: #4a5568; }
.securefed-audit svg { max-width: 100%; height: auto; }
"""


MARKS = {"pass": "pass", "FAIL": "fail", "not checked": "part"}


def section(report: AuditReport) -> str:
    """The whole section."""
    mark = "fail" if not report.passed else "pass" if report.unqualified else "part"
    pieces = [
        f"<section class='securefed-audit' id='audit'><style>{STYLE}</style><h2>Audit</h2>",
        f"<p><span class='{mark}'>{escape(report.verdict)}</span></p>",
        _claims(report),
        *(_seen(report, name) for name in report.seen),
        _ledger(report),
        "<h3>Receipts</h3><ul>",
        *(f"<li>{escape(str(receipt))}</li>" for receipt in report.receipts),
        "</ul><h3>Messages</h3>",
        "<p>The start of the run, its first round and its first scores; (n): how often in the whole run.</p>",
        diagram(report.recorded),
        "</section>",
    ]
    return "\n".join(pieces)


def _claims(report: AuditReport) -> str:
    rows = "".join(
        f"<tr><td><span class='{MARKS[claim.word]}'>{claim.word}"
        f"</span></td><td>{escape(claim.text)}<br><span class='evidence'>{escape(claim.evidence)}</span></td>"
        "</tr>"
        for claim in report.claims
    )
    return f"<h3>Claims</h3><table>{_head('', 'claim and evidence')}{rows}</table>"


def _head(*names: str) -> str:
    return f"<tr>{''.join(f'<th>{name}</th>' for name in names)}</tr>"


def _seen(report: AuditReport, name: str) -> str:
    rows = "".join(
        f"<tr><td>{escape(row.peer)}</td><td>{escape(row.kind)}</td>"
        f"<td class='number'>{row.messages:,}</td><td class='number'>{row.bytes:,}</td>"
        f"<td>{escape(row.protection)}{escape(f' ({row.key})' if row.key else '')}</td>"
        f"<td>{escape(row.reveals)}</td></tr>"
        for row in report.seen[name]
    )
    head = _head("from", "kind", "messages", "bytes", "protection (key)", "reveals")
    return f"<h3>What {escape(name)} saw</h3><table>{head}{rows}</table>"


def _ledger(report: AuditReport) -> str:
    if not report.ledger:
        return "<h3>Ledger</h3><p>Empty: no gradient was opened to anybody.</p>"
    rows = "".join(
        f"<tr><td>{escape(e.party)}</td><td>{escape(e.block)}{' (estimate)' if e.advisory else ''}</td>"
        f"<td class='number'>{e.equations:,}</td><td class='number'>{e.unknowns:,}</td>"
        f"<td class='number'>{e.ratio:.2f}</td><td>{escape(e.verdict)}</td></tr>"
        for e in report.ledger
    )
    head = _head("party", "secrets", "equations", "unknowns", "ratio", "verdict")
    return f"<h3>Ledger: opened equations against unknowns</h3><table>{head}{rows}</table>"


def _protection(message: Sent) -> str:
    found = [part.protection for part in message.parts]
    for word in ("clear", "disclosure", "opened", "masked", "ciphertext", "public-key"):
        if word in found:
            return word
    return "bytes"


def _arrows(recorded: Recorded) -> list[tuple[Sent, int]]:
    """One arrow for each message of the first round of each phase, with how often its like was sent."""
    first: dict[str, int] = {}
    totals: dict[tuple[str, str, str], int] = {}
    chosen: list[Sent] = []
    for message in _in_order(recorded):
        entry = message.entry
        like = (message.sender, message.receiver, entry.kind)
        totals[like] = totals.get(like, 0) + 1
        if entry.round == first.setdefault(entry.phase, entry.round):
            chosen.append(message)
    return [(m, totals[m.sender, m.receiver, m.entry.kind]) for m in chosen[:MOST_ARROWS]]


def _in_order(recorded: Recorded) -> list[Sent]:
    """All messages in an order that fits every transcript: sent after what the sender had received."""
    queues = {
        name: [e for e in transcript.entries if e.event in ("sent", "received")]
        for name, transcript in recorded.transcripts.items()
    }
    done: set[tuple[str, str, int]] = set()
    ordered: list[Sent] = []
    places = dict.fromkeys(queues, 0)
    moved = True
    while moved:
        moved = False
        for name, entries in queues.items():
            while places[name] < len(entries):
                entry = entries[places[name]]
                number = int(entry.detail.get("sequence", 0))
                if entry.event == "received":
                    if (entry.peer, name, number) not in done:
                        if entry.peer in queues:
                            break
                        ordered.append(Sent(entry.peer, name, entry, name))
                else:
                    done.add((name, entry.peer, number))
                    ordered.append(Sent(name, entry.peer, entry, name))
                places[name] += 1
                moved = True
    return ordered


def diagram(recorded: Recorded) -> str:
    """Lifelines and arrows, coloured by what protects a message."""
    names = list(recorded.everybody)
    arrows = _arrows(recorded)
    lanes = {name: 110 + LANE * place for place, name in enumerate(names)}
    width, legend = 220 + LANE * (len(names) - 1), 20 * len({_protection(m) for m, _ in arrows}) + 20
    height = TOP + ROW * (len(arrows) + 1) + legend
    lines = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' "
        f"height='{height}' role='img' aria-label='messages between the parties' font-family='sans-serif' "
        "font-size='11'>"
    ]
    bottom = TOP + ROW * (len(arrows) + 1) - 10
    for name, x in lanes.items():
        lines.append(f"<text x='{x}' y='20' text-anchor='middle' font-weight='bold'>{escape(name)}</text>")
        lines.append(f"<line x1='{x}' y1='28' x2='{x}' y2='{bottom}' stroke='#cbd5e0'/>")
    for place, (message, total) in enumerate(arrows):
        y = TOP + ROW * (place + 1)
        start, end = lanes[message.sender], lanes[message.receiver]
        colour = COLOURS[_protection(message)]
        tip = end - 7 if end > start else end + 7
        label = f"{message.entry.kind} ({total})"
        lines += [
            f"<line x1='{start}' y1='{y}' x2='{tip}' y2='{y}' stroke='{colour}' stroke-width='1.6'/>",
            f"<polygon points='{end},{y} {tip},{y - 4} {tip},{y + 4}' fill='{colour}'/>",
            f"<text x='{(start + end) / 2:.0f}' y='{y - 5}' text-anchor='middle' fill='{colour}'>"
            f"{escape(label)}</text>",
        ]
    for row, word in enumerate(sorted({_protection(m) for m, _ in arrows})):
        y = bottom + 24 + 20 * row
        lines.append(f"<line x1='20' y1='{y}' x2='50' y2='{y}' stroke='{COLOURS[word]}' stroke-width='3'/>")
        lines.append(f"<text x='58' y='{y + 4}'>{escape(WORDS[word])}</text>")
    return "\n".join([*lines, "</svg>"])
