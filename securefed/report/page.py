"""A run as one HTML page: how good the model is, what this party saw, time and bytes, settings, words.

The page is made from result.json and timing.json alone, so that it can be made again. Details are folded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from securefed.labels.metrics import METRICS, shown
from securefed.pages import GLOSSARY, badge, fold, glossary, page, table, term

REASONS = {
    "rounds": "as many as agreed",
    "target": "the target was reached",
    "no progress": "no more progress",
}
"""Why a training was over, in words."""

MOST_CLASSES = 20
"""The most classes of a confusion table that the page shows."""

SIDE = 340
"""Pixels of a side of a plot in the unit square."""
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 26, 44
QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)


def seconds(value: float) -> str:
    if value < 0.995:
        return f"{1000 * value:.0f} ms"
    if value < 120:
        return f"{value:.1f} s"
    minutes = value / 60
    return f"{minutes:.1f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def size(value: float) -> str:
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def facts(result: Mapping[str, Any], timing: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what a person wants to know of a run, in a terminal and on a page: names and words."""
    settings = result["settings"]
    guard = "" if result["protected"] else "   NOT PROTECTED"
    rows = [
        ("run", f"{result['run']}: {settings['algorithm']} Q={settings['local_steps']}, "
        f"{settings['scheme']}{guard}"),
        ("rounds", f"{result['rounds']}, {REASONS.get(result['reason'], result['reason'])}; "
        f"{result['rows']:,} rows in common"),
    ]  # fmt: skip
    if result["metric"] is not None:
        rows.append((result["metric_name"], f"{result['metric']:.4f} at the last evaluation"))
    times = [f"{seconds(timing[f'{work}_seconds'])} {work}" for work in ("computation", "communication")]
    total, wall = (seconds(timing[f"{word}_seconds"]) for word in ("total", "wall"))
    rows += [
        ("time", f"training {' + '.join(times)} = {total}; everything since the start {wall}"),
        ("bytes", f"{size(result['bytes_sent'])} sent, {size(result['bytes_received'])} received"),
        ("saw", result["saw"]),
    ]
    return rows + [(name, f"transcripts {peer['transcripts']}") for name, peer in result["peers"].items()]


def render(result: dict[str, Any], timing: dict[str, Any], more: str = "") -> str:
    """Return the page. `more`: HTML with what was checked, such as an audit."""
    run, party = str(result["run"]), str(result["party"])
    settings = sorted((name.replace("_", " "), _value(value)) for name, value in result["settings"].items())
    when = f", {escape(str(result['finished']))}" if result.get("finished") else ""
    parts = [
        f'<h1>{escape(run)}</h1><p class="soft">as {escape(party)} saw it{when}</p>',
        _sentence(result),
        _quality(result),
        more,
        f'<h2 id="cost">The run</h2>{table(("fact", "value"), facts(result, timing))}',
        fold("Time and bytes in detail", _cost(result, timing)),
        fold("Settings", f'<div id="settings">{table(("setting", "value"), settings)}</div>'),
        fold("Versions", table(("package", "version"), result["versions"].items())),
        glossary(GLOSSARY),
    ]
    return page(f"{run}: {party}", "".join(parts))


def _sentence(result: dict[str, Any]) -> str:
    settings = result["settings"]
    mark = ("encrypted", "good") if result["protected"] else ("NOT PROTECTED: scheme plain", "bad")
    *names, last = [str(each[0]) for each in settings["parties"]]
    blind = settings["reveal"] == "nothing"
    holder = f", with a {term('helper' if blind else 'key-holder')}" if settings.get("key_holder") else ""
    learned = "nothing about each other, but for scores that are counted" if blind else "their own gradients"
    return (
        f"<p>{badge(*mark)} {escape(', '.join(names))} and {escape(last)} trained one model of "
        f"{result['rows']:,} people whom all of them know{holder}. During training the parties learned "
        f"{learned}. {escape(str(settings['algorithm']))}, {settings['local_steps']} {term('local steps')}, "
        f"{escape(str(settings['scheme']))}.</p>"
    )


def _quality(result: dict[str, Any]) -> str:
    holdout, last = result["holdout"], result["settings"]["parties"][-1][0]
    if holdout is None:
        if last != result["party"] or result["metric"] is not None:
            return ""
        return "<p>Quality not measured: no rows were held out, or too few are in common.</p>"
    name, between = str(holdout["metric"]), holdout.get("interval")
    models = {"value": "together", "alone": f"{last} alone", "chance": "chance"}
    rows = [(who, shown(holdout[key], between, between=key == "value")) for key, who in models.items()]
    more = [
        (each, f"{value:.3g}", METRICS[each].about if each in METRICS else "")
        for each, value in holdout.get("more", {}).items()
    ]
    title = term(name) if name in GLOSSARY else escape(name)
    parts = [
        f"<p>{badge(holdout['warning'], 'bad')}</p>" if holdout.get("warning") else "",
        f"<h2>{title} on {holdout['rows']:,} {term('held-out rows')}</h2>",
        table(("model", name), rows, numbers=(1,)),
        _curves(holdout.get("curves") or {}),
        _confusion(holdout.get("confusion")),
        _gain((holdout.get("curves") or {}).get("gain")),
        fold("Other measures", table(("measure", "value", "meaning"), more, numbers=(1,))) if more else "",
    ]
    return f'<section id="quality">{"".join(parts)}</section>'


def _curves(curves: dict[str, Any]) -> str:
    plots = []
    if points := curves.get("roc"):
        axes = ("false alarms: share of the first class", "found: share of the second class")
        drawn = curve([(x, y) for x, y in points], "ROC curve", *axes, "chance")
        plots.append(f'<div class="plot"><h3>{term("ROC curve")}</h3>{drawn}</div>')
    if points := curves.get("calibration"):
        axes, sizes = ("predicted probability", "observed share"), [int(count) for _, _, count in points]
        diagonal = "probabilities that come true"
        drawn = curve([(x, y) for x, y, _ in points], "calibration", *axes, diagonal, sizes)
        plots.append(f'<div class="plot"><h3>{term("calibration")}</h3>{drawn}</div>')
    return f'<div class="pair" id="curves">{"".join(plots)}</div>' if plots else ""


def _gain(groups: list[dict[str, Any]] | None) -> str:
    """Return the gain table: whom a campaign or a cut-off reaches, best scores first."""
    if not groups:
        return ""
    head = ["people, best first", "found", "rate in this group", "lift"]
    forms = {"people": "{:,}", "found": "{:.0%}", "rate": "{:.0%}", "lift": "{:.2f}"}
    rows = [[form.format(group[name]) for name, form in forms.items()] for group in groups]
    about = (
        "<p>People with the highest scores come first. <i>Found</i>: the part of the second class that is "
        "among them. <i>Lift</i>: how many times as frequent the second class is among them as among all.</p>"
    )
    cells = table(head, rows, numbers=range(len(head)), narrow=True)
    return fold("Gain and lift", about + cells)


def _confusion(confusion: dict[str, Any] | None) -> str:
    if confusion is None:
        return ""
    names, counts = [_value(name) for name in confusion["classes"]], confusion["counts"]
    if len(names) > MOST_CLASSES:
        return f"<p>Which of {len(names)} classes was taken for which: holdout.confusion in result.json.</p>"
    rows = [
        (name, *row, f"{100 * row[place] / sum(row):.0f}%" if sum(row) else "none there")
        for place, (name, row) in enumerate(zip(names, counts, strict=True))
    ]
    head = ("true class", *(f"predicted {name}" for name in names), "right")
    cells = table(head, rows, numbers=range(1, len(head)), narrow=True)
    return f'<h3 id="confusion">Confusion matrix</h3>{cells}'


def _cost(result: dict[str, Any], timing: dict[str, Any]) -> str:
    works = ("computation", "communication")
    parties = [
        (name, *(seconds(path[f"{word}_seconds"]) for word in works))
        for name, path in timing["parties"].items()
    ]
    spent = sorted(timing["activities"].items(), key=lambda item: -item[1])
    moved = [
        (kind, *(size(result[way].get(kind, {"bytes": 0})["bytes"]) for way in ("sent", "received")))
        for kind in sorted(result["sent"].keys() | result["received"].keys())
    ]
    return (
        f"<p>{term('computation')} and {term('communication')}, to the end of the training:</p>"
        + table(("party", *works), parties, numbers=(1, 2))
        + table(("computed here", "time"), [(name, seconds(value)) for name, value in spent], numbers=(1,))
        + table(("message", "sent", "received"), moved, numbers=(1, 2))
    )


def _value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "not set", True: "yes", False: "no"}[value]
    if isinstance(value, float):
        return f"{value:.6g}"
    return ", ".join(map(_value, value)) if isinstance(value, list) else str(value)


# Plots: inline SVG, in the page's colours


def curve(
    points: Sequence[tuple[float, float]],
    title: str,
    x_name: str,
    y_name: str,
    diagonal: str,
    sizes: Sequence[int] = (),
) -> str:
    """Draw a curve.

    `diagonal`: what the diagonal stands for. `sizes`: how many people each point is of, which it shows.
    """
    parts = [
        _text((LEFT + SIDE - RIGHT) / 2, SIDE - 6, x_name, "middle"),
        _text(LEFT, TOP - 10, y_name, "start"),
    ]
    for value in QUARTERS:
        (x, y), end = _place(0.0, value), _place(1.0, value)
        parts += [_line((x, y), end, "grid"), _text(LEFT - 6, y + 4, f"{value:g}", "end")]
        parts.append(_text(_place(value, 0.0)[0], SIDE - BOTTOM + 17, f"{value:g}", "middle"))
    parts.append(_line(_place(0.0, 0.0), _place(1.0, 1.0), "rule", diagonal))
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (_place(*point) for point in points))
    parts.append(f'<polyline class="line" points="{path}"/>')
    for (x, y), people in zip(points, sizes, strict=False):
        across, down = _place(x, y)
        tip = f"{x_name} {x:.4g}: {y_name} {y:.4g}, {people} people"
        parts.append(
            f'<circle class="dot" cx="{across:.1f}" cy="{down:.1f}" r="{3 + 3 * people / max(sizes):.1f}">'
            f"<title>{escape(tip)}</title></circle>"
        )
    return (
        f'<svg viewBox="0 0 {SIDE} {SIDE}" role="img" aria-label="{escape(title, quote=True)}" '
        f'xmlns="http://www.w3.org/2000/svg"><title>{escape(title)}</title>{"".join(parts)}</svg>'
    )


def _place(x: float, y: float) -> tuple[float, float]:
    return LEFT + x * (SIDE - LEFT - RIGHT), SIDE - BOTTOM - y * (SIDE - TOP - BOTTOM)


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text class="axis" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _line(start: tuple[float, float], end: tuple[float, float], kind: str, tip: str = "") -> str:
    (x1, y1), (x2, y2) = start, end
    title = f"<title>{escape(tip)}</title>" if tip else ""
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}">{title}</line>'
