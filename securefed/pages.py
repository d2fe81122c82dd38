"""The frame of all HTML pages: one file that needs nothing else, for light and dark, phone and paper.

Nothing is loaded from elsewhere: no script, style sheet, font or picture. Colours are CSS variables. Text has
a contrast of 4.5 or more on its ground in both themes (WCAG AA; a test computes it in a browser).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

LIGHT = """--ink:#1d2433;--soft:#525c70;--line:#d9dee8;--page:#fff;--link:#1f5fc4;
--c0:#2f6fde;--good:#18693f;--part:#7a4f00;--bad:#a8201a;--on:#fff;"""
DARK = """--ink:#e6e9f0;--soft:#a3adc0;--line:#353e51;--page:#141821;--link:#8ab4ff;
--c0:#6ea0ff;--good:#6fd3a0;--part:#f0c36a;--bad:#ff8a80;--on:#141821;"""

STYLE = f"""
:root{{color-scheme:light dark;{LIGHT}}}
@media(prefers-color-scheme:dark){{:root{{{DARK}}}}}
.pair{{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(300px,100%),1fr));gap:0 28px}}
@media print{{:root{{color-scheme:light;{LIGHT}}}body{{max-width:none;padding:0}}h2{{break-after:avoid}}
.plot,tr{{break-inside:avoid}}}}
*{{box-sizing:border-box}}
body{{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--page);margin:0 auto;
max-width:920px;padding:28px 20px 60px;overflow-wrap:break-word}}
h1{{font-size:24px;margin:0 0 2px}}h2{{font-size:18px;margin:38px 0 10px}}
h3{{font-size:15px;margin:22px 0 6px}}
p{{margin:6px 0}}ul{{padding-left:20px}}a{{color:var(--link)}}.soft{{color:var(--soft)}}
.plot{{break-inside:avoid}}.plot h3{{margin:14px 0 2px}}
table{{border-collapse:collapse;width:100%;font-size:14px;margin:6px 0 14px}}
th,td{{text-align:left;padding:5px 12px 5px 0;border-bottom:1px solid var(--line);vertical-align:top}}
th{{color:var(--soft);font-weight:600}}
td.n,th.n{{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}}
.badge{{border-radius:5px;padding:2px 8px;font-size:13px;font-weight:600;color:var(--on);
display:inline-block}}
.badge.good{{background:var(--good)}}.badge.bad{{background:var(--bad)}}
.badge.part{{background:var(--part);color:var(--on)}}
.pass{{color:var(--good);font-weight:600}}.fail{{color:var(--bad);font-weight:700}}
.part{{color:var(--part);font-weight:600}}
.evidence{{color:var(--soft);font-size:13px}}
.wide{{overflow-x:auto;max-width:100%}}
.plot svg{{width:100%;height:auto;display:block;margin:6px 0}}
svg text{{fill:var(--ink);font:13px system-ui,sans-serif}}
svg .axis{{fill:var(--soft)}}svg .grid{{stroke:var(--line)}}
svg .rule{{stroke:var(--soft);stroke-dasharray:4 4}}
svg .line{{fill:none;stroke:var(--c0);stroke-width:2}}svg .dot{{fill:var(--c0)}}
details{{border:1px solid var(--line);border-radius:8px;padding:0 16px;margin:14px 0}}
summary{{cursor:pointer;padding:10px 0;font-weight:600;color:var(--link)}}
details[open]>summary{{border-bottom:1px solid var(--line);margin-bottom:8px}}
details h2:first-of-type,details h3:first-of-type{{margin-top:12px}}
dt{{font-weight:600;margin-top:8px}}dd{{margin:0 0 4px;color:var(--soft)}}
a.term{{color:inherit;text-decoration:underline dotted;text-underline-offset:3px}}
@media(max-width:600px){{body{{padding:18px 14px 40px}}
table.narrow th,table.narrow td{{white-space:normal;padding-right:8px}}
table.cells thead{{display:none}}
table.cells tr{{display:block;border-bottom:1px solid var(--line);padding:6px 0}}
table.cells td{{display:flex;gap:10px;justify-content:space-between;border:0;padding:2px 0;text-align:left;
white-space:normal}}
table.cells td::before{{content:attr(data-name);color:var(--soft);flex:0 0 34%}}
table.cells td>span{{flex:1 1 0;min-width:0;overflow-wrap:anywhere}}}}
"""

GLOSSARY = {
    "AUC": "The chance that a person of the second class scores above one of the first. 0.5 is guessing.",
    "calibration": "Whether probabilities come true: of people with 30%, about 30 of 100 are of the class.",
    "claim": "A sentence about what nobody saw, checked message by message against the transcripts.",
    "communication": "Seconds on the path to the end that messages took, waiting included.",
    "computation": "Seconds on the path to the end that somebody calculated.",
    "held-out rows": "People that the model was not trained on, set aside to measure it.",
    "helper": "A party without data. It has one of two random shares of the model and sees no result.",
    "key-holder": "The party that has the secret key. It decrypts only what comes to it masked.",
    "ledger": "Counts opened numbers against the secrets that could be calculated from them.",
    "local steps": "Updates that a party makes by itself between two exchanges (Q in the paper).",
    "masked": "With a secret random number added. Whoever decrypts it sees noise.",
    "opened": "Decrypted for its owner by the key-holder, masked on the way.",
    "R2": "The part of a number's variation that the model explains: 0 is the mean alone, 1 is perfect.",
    "receipt": "Two parties compare fingerprints of all messages between them: both saw the same run.",
    "ROC curve": "For each line between the classes: what is found of the second, and flagged of the first.",
    "round": "One exchange between the parties, with the local steps that belong to it.",
    "transcript": "A party's own record of everything that it sent, received and opened, without data.",
}


def term(word: str, shown: str | None = None) -> str:
    """A word that leads to its explanation at the end."""
    return f'<a class="term" href="#term-{word.replace(" ", "-")}">{escape(shown or word)}</a>'


def glossary(words: Iterable[str]) -> str:
    listed = "".join(
        f'<dt id="term-{word.replace(" ", "-")}">{escape(word)}</dt><dd>{escape(GLOSSARY[word])}</dd>'
        for word in words
    )
    return f'<h2 id="glossary">Words</h2><dl>{listed}</dl>'


def badge(text: str, kind: str) -> str:
    return f'<span class="badge {kind}">{escape(text)}</span>'


def fold(title: str, inner: str) -> str:
    """A part of the page that opens when its title is pressed."""
    return f"<details><summary>{escape(title)}</summary>{inner}</details>"


def table(
    head: Sequence[str], rows: Iterable[Sequence[Any]], numbers: Sequence[int] = (), *, narrow: bool = False
) -> str:
    """Cells are text. On a phone each row is a list of names and values, unless the table is narrow."""

    def kind(place: int) -> str:
        return ' class="n"' if place in numbers else ""

    def cell(place: int, value: Any) -> str:
        name = escape(head[place], quote=True)
        return f'<td{kind(place)} data-name="{name}"><span>{escape(str(value))}</span></td>'

    top = "".join(f"<th{kind(place)}>{escape(name)}</th>" for place, name in enumerate(head))
    body = "".join(f"<tr>{''.join(cell(*each) for each in enumerate(row))}</tr>" for row in rows)
    form = "narrow" if narrow else "cells"
    cells = f'<table class="{form}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="wide">{cells}</div>'


def page(title: str, body: str) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{STYLE}</style></head>'
        f"<body>{body}</body></html>\n"
    )
