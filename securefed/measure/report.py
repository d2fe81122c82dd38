"""A run as one HTML page: settings, result, metric per round, time per round and party, bytes by kind of
message, and what this party saw. Self-contained: no script, no style sheet, no font and no picture from
elsewhere.

It is made from result.json and timing.json alone, so that it can be made again from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from securefed.measure import svg

__all__ = ["render", "seconds", "size"]

STYLE = """
:root{--ink:#1d2433;--soft:#5c667a;--line:#d9dee8;--page:#fff;--card:#f5f7fa;--c0:#2f6fde;--c1:#e08a2e;
--c2:#3d9970;--bad:#b3261e;--good:#1e7d4f}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9f0;--soft:#98a2b6;--line:#333b4d;--page:#141821;
--card:#1c2230;--c0:#6ea0ff;--c1:#f0a956;--c2:#62c79a;--bad:#ff8a80;--good:#6fd3a0}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--page);margin:0 auto;max-width:920px;
padding:28px 20px 60px}
h1{font-size:24px;margin:0 0 2px}h2{font-size:17px;margin:34px 0 10px}p{margin:6px 0}.soft{color:var(--soft)}
.cards{display:flex;flex-wrap:wrap;gap:10px;margin:18px 0}.card{background:var(--card);border-radius:8px;
padding:10px 14px;min-width:118px}.card b{display:block;font-size:20px}
.card span{color:var(--soft);font-size:13px}
table{border-collapse:collapse;width:100%;font-size:14px}th,td{text-align:left;padding:5px 10px 5px 0;
border-bottom:1px solid var(--line);vertical-align:top}th{color:var(--soft);font-weight:600}
td.n,th.n{text-align:right}
.badge{border-radius:5px;padding:2px 8px;font-size:13px;font-weight:600;color:var(--page)}
.good{background:var(--good)}.bad{background:var(--bad)}
svg{width:100%;height:auto;display:block;margin:6px 0}
svg .axis{fill:var(--soft);font:11px system-ui,sans-serif}
svg .grid{stroke:var(--line)}svg .line{fill:none;stroke:var(--c0);stroke-width:2}svg .dot{fill:var(--c0)}
svg .s0{fill:var(--c0)}svg .s1{fill:var(--c1)}svg .s2{fill:var(--c2)}
code{background:var(--card);padding:1px 4px;border-radius:4px}
"""


def seconds(value: float) -> str:
    """A time as people read it."""
    if value < 0.995:
        return f"{1000 * value:.0f} ms"
    if value < 120:
        return f"{value:.1f} s"
    minutes = value / 60
    return f"{minutes:.1f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def size(value: float) -> str:
    """Bytes as people read them."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def render(result: dict[str, Any], timing: dict[str, Any], more: str = "") -> str:
    """The page. `more`: a section of HTML to put before the settings, such as an audit."""
    run, party = str(result["run"]), str(result["party"])
    parts = [
        f"<h1>{escape(run)}</h1>",
        f'<p class="soft">as {escape(party)} saw it, {escape(str(result.get("finished", "")))}</p>',
        f"<p>{_badge(result)} {escape(_sentence(result))}</p>",
        _cards(result, timing),
        *_plots(result, timing),
        *_seen(result),
        *_ledger(result),
        more,
        "<h2>Settings</h2>",
        _table(("setting", "value"), sorted((k, _value(v)) for k, v in result["settings"].items())),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(run)}: {escape(party)}</title><style>{STYLE}</style></head><body>"
        f"{''.join(parts)}</body></html>\n"
    )


def _badge(result: dict[str, Any]) -> str:
    if result["protected"]:
        return '<span class="badge good">encrypted</span>'
    return '<span class="badge bad">NOT PROTECTED: scheme plain</span>'


def _sentence(result: dict[str, Any]) -> str:
    settings = result["settings"]
    return (
        f"{settings['algorithm']}, Q = {settings['local_steps']}, {settings['scheme']}, "
        f"{len(settings['parties'])} parties, {result['rows']:,} rows in common; "
        f"reveals {'nothing' if settings['reveal'] == 'nothing' else 'own gradients'} during training."
        f"{_privacy(result)}"
    )


def _privacy(result: dict[str, Any]) -> str:
    found = result.get("privacy")
    if not found:
        return ""
    return f" Labels: differential privacy of epsilon {found['epsilon']:.2f} at delta {found['delta']:.1e}."


def _cards(result: dict[str, Any], timing: dict[str, Any]) -> str:
    cards = [
        (str(result["rounds"]), f"rounds ({result['reason']})"),
        (seconds(timing["computation_seconds"]), "computation"),
        (seconds(timing["communication_seconds"]), "communication"),
        (seconds(timing["total_seconds"]), "total (sum of both)"),
        (size(result["bytes_sent"]), "sent"),
        (size(result["bytes_received"]), "received"),
    ]
    held = result.get("holdout")
    if held is not None:
        cards.insert(0, (f"{held['alone']:.4f}", "the label party alone"))
        cards.insert(0, (f"{held['value']:.4f}", f"{held['metric']} on {held['rows']:,} held-out rows"))
    elif result.get("metric") is not None:
        cards.insert(0, (f"{result['metric']:.4f}", f"{result['metric_name']} at the end"))
    if result.get("interruptions"):
        cards.append((str(result["interruptions"]), "times resumed"))
    inner = "".join(f'<div class="card"><b>{escape(a)}</b><span>{escape(b)}</span></div>' for a, b in cards)
    loud = ""
    if held is not None and held.get("warning"):
        loud = f'<p><span class="badge bad">{escape(held["warning"])}</span></p>'
    elif held is None and result["settings"]["parties"][-1][0] == result["party"]:
        loud = "<p>Quality not measured.</p>"
    return f'{loud}<div class="cards">{inner}</div>'


def _plots(result: dict[str, Any], timing: dict[str, Any]) -> Iterable[str]:
    if result["history"]:
        name = result["metric_name"]
        yield f"<h2>{escape(name)} after each round</h2>"
        points = [(float(number) + 1, float(value)) for number, value in result["history"]]
        yield svg.line(points, f"{name} after each round", "round", name)
    each = timing["each_round"]
    if each:
        yield "<h2>Time of each round</h2>"
        yield svg.columns(
            {
                "computation": [row["computation"] for row in each],
                "communication": [row["communication"] for row in each],
            },
            [str(row["number"] + 1) for row in each],
            "seconds of each round",
            "round",
            "seconds",
        )
    paths = timing["parties"]
    if paths:
        yield "<h2>Computation and communication at each party</h2>"
        rows = [(name, (p["computation_seconds"], p["communication_seconds"])) for name, p in paths.items()]
        yield svg.bars(rows, ("computation", "communication"), "seconds at each party", "s")
    if timing["activities"]:
        yield f"<h2>What {escape(result['party'])} computed</h2>"
        work = sorted(timing["activities"].items(), key=lambda item: -item[1])
        yield svg.bars([(name, (value,)) for name, value in work], ("seconds",), "seconds by activity", "s")
    kinds = {**result["sent"], **result["received"]}
    if kinds:
        yield "<h2>Bytes by kind of message</h2>"
        totals = {
            kind: [result[way].get(kind, {}).get("bytes", 0) / 1e6 for way in ("sent", "received")]
            for kind in kinds
        }
        rows = [(kind, tuple(pair)) for kind, pair in sorted(totals.items(), key=lambda item: -sum(item[1]))]
        yield svg.bars(rows, ("sent", "received"), "megabytes by kind of message", "MB")


def _seen(result: dict[str, Any]) -> Iterable[str]:
    yield f"<h2>What {escape(result['party'])} saw</h2>"
    yield f"<p>{escape(result['saw'])}</p>"
    rows = [
        (row["kind"], f"{row['messages']:,}", size(row["bytes"]), row["protection"], row["reveals"])
        for row in result["seen"]
    ]
    yield _table(("message", "count", "bytes", "protection", "what it reveals"), rows, numbers=(1, 2))
    compared = [(name, peer["transcripts"]) for name, peer in result.get("peers", {}).items()]
    if compared:
        yield "<h2>Transcripts compared with the peers</h2>"
        yield _table(("peer", "what one sent is what the other received"), compared)


def _ledger(result: dict[str, Any]) -> Iterable[str]:
    yield "<h2>Solvability ledger</h2>"
    if not result["ledger_of_all"]:
        yield "<p>Empty: nothing was opened to anybody during training.</p>"
        return
    rows = [
        (e["party"], e["block"], e["equations"], e["unknowns"], f"{e['ratio']:.2f}", e["verdict"])
        for e in result["ledger_of_all"]
    ]
    yield _table(("party", "about", "equations", "unknowns", "ratio", "verdict"), rows, numbers=(2, 3, 4))


def _value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_value(item) for item in value)
    return str(value)


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]], numbers: Sequence[int] = ()) -> str:
    def cells(row: Sequence[Any], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=n' if place in numbers else ''}>{escape(str(cell))}</{tag}>"
            for place, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f"<table><thead><tr>{cells(head, 'th')}</tr></thead><tbody>{body}</tbody></table>"
