"""A run as one HTML page: how good the model is, what this party saw, time and bytes, settings, words.

The page is made from result.json and timing.json alone, so that it can be made again. Details are folded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from html import escape
from typing import Any

from securefed.labels.metrics import METRICS, shown
from securefed.pages import GLOSSARY, badge, fold, glossary, page, table, term
from securefed.report import svg

REASONS = {
    "rounds": "as many as agreed",
    "target": "the target was reached",
    "no progress": "no more progress",
}
"""Why a training was over, in words."""

STABILITY = (
    (0.1, "these people are like those of the training"),
    (0.25, "these people differ a little from those of the training; watch the quality"),
    (float("inf"), "these people differ from those of the training; measure the model again"),
)
"""What a population stability index below each limit says."""

MOST_CLASSES = 20
"""Of a table of which was taken for which."""


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
    """Return the page. `more`: HTML with what was checked, such as an audit."""
    run, party = str(result["run"]), str(result["party"])
    settings = sorted((str(name).replace("_", " "), _value(v)) for name, v in result["settings"].items())
    when = f", {escape(str(result['finished']))}" if result.get("finished") else ""
    parts = [
        f'<h1>{escape(run)}</h1><p class="soft">as {escape(party)} saw it{when}</p>',
        _sentence(result),
        _quality(result),
        _seen(result),
        more,
        f'<h2 id="cost">Time and bytes</h2>{_cards(result, timing)}',
        fold("Time and bytes in detail", "".join(_plots(result, timing))),
        fold("Settings", f'<div id="settings">{table(("setting", "value"), settings)}</div>'),
        fold("Versions", table(("package", "version"), result["versions"].items())),
        glossary(sorted(GLOSSARY, key=str.lower)),
    ]
    return page(f"{run}: {party}", "".join(parts))


def frame(result: dict[str, Any], saw: Mapping[str, str]) -> str:
    """Return the result of a run in one process for a notebook: the head of a report in a frame of its own.

    Parameters
    ----------
    result: `RunResult.to_dict()` with the label party as "party" and the number of "rows".
    saw: what each party saw, in a line.
    """
    cards = [
        (str(result["rounds"]), "rounds"),
        (seconds(result["computation_seconds"]), "computing"),
        (seconds(result["communication_seconds"]), "communicating"),
        (size(sum(result["bytes"].values())), "sent by all parties"),
    ]
    parts = [
        _sentence(result),
        _quality(result),
        f"<h2>What each party saw</h2>{table(('party', 'saw'), saw.items())}",
        _boxes(cards),
        glossary(sorted(GLOSSARY, key=str.lower)),
    ]
    whole = escape(page("result", "".join(parts)), quote=True)
    return f'<iframe srcdoc="{whole}" style="width:100%;height:640px;border:0"></iframe>'


def _sentence(result: dict[str, Any]) -> str:
    settings, privacy = result["settings"], result.get("privacy")
    mark = ("encrypted", "good") if result["protected"] else ("NOT PROTECTED: scheme plain", "bad")
    *names, last = [str(each[0]) for each in settings["parties"]]
    blind = settings["reveal"] == "nothing"
    holder = f", with a {term('helper' if blind else 'key-holder')}" if settings.get("key_holder") else ""
    learned = "nothing about each other, but for scores that are counted" if blind else "their own gradients"
    labels = ""
    if privacy:
        numbers = f"epsilon {privacy['epsilon']:.2f} at delta {privacy['delta']:.1e}"
        labels = f" Labels: differential privacy of {numbers}."
    return (
        f"<p>{badge(*mark)} {escape(', '.join(names))} and {escape(last)} trained one model of "
        f"{result['rows']:,} people whom all of them know{holder}. During training the parties learned "
        f"{learned}. {escape(str(settings['algorithm']))}, {settings['local_steps']} {term('local steps')}, "
        f"{escape(str(settings['scheme']))}.{labels}</p>"
    )


def _quality(result: dict[str, Any]) -> str:
    """The joint model beside the label party alone, first on new people where somebody knows their labels."""
    holdout, last = result.get("holdout"), result["settings"]["parties"][-1][0]
    if holdout is None:
        if last != result["party"] or result.get("metric") is not None:
            return ""
        return "<p>Quality not measured: no rows were held out, or too few are in common.</p>"
    parts = [f"<p>{badge(holdout['warning'], 'bad')}</p>"] if holdout.get("warning") else []
    new = result.get("new_people")
    if new is not None:
        rows = [("together", new["value"]), ("all data in one place, no protection", new["central"])]
        rows += [(f"{last} alone", new["alone"])] if new["alone"] is not None else []
        parts.append(_bars(new, rows, "new people", 0.5) + _stability(new) + _curves(new))
    rows = [("together", holdout["value"]), (f"{last} alone", holdout["alone"])]
    parts += [
        _bars(holdout, rows, term("held-out rows"), holdout["chance"]),
        _curves(holdout) if new is None else "",
        _confusion(holdout.get("confusion")),
        _gain(holdout if new is None else new),
        _more_metrics(holdout),
    ]
    return f'<section id="quality">{"".join(parts)}</section>'


def _bars(measured: dict[str, Any], rows: list[tuple[str, float]], people: str, chance: float) -> str:
    """Bars that begin at chance, so that they show what the model knows. `people` is HTML."""
    name, between = str(measured["metric"]), measured.get("interval")
    most = max(1.0 - chance, *(value - chance for _, value in rows))
    lines = list[str]()
    for who, value in rows:
        words = shown(value, between, between=False)
        if not lines and between is not None:
            low, high = (shown(end, between, between=False) for end in between)
            words += f" <small>95%: {low} to {high}</small>"
        lines.append(_bar(who, words, (value - chance) / most, "other" if lines else "own"))
    title = f"{term(name) if name in GLOSSARY else escape(name)} on {measured['rows']:,} {people}"
    scale = f'<p class="soft">Bars begin at {chance:.2g}, which is chance.</p>'
    return f'<h2>{title}</h2><div class="scale">{"".join(lines)}</div>{scale}'


def _bar(name: str, words: str, part: float, kind: str) -> str:
    """A name, a number as `words` of HTML, and a bar over that part of the width."""
    width = f'<i style="width:{100 * max(0.0, part):.1f}%"></i>'
    return f'<div class="{kind}"><span>{escape(name)}</span><b>{words}</b>{width}</div>'


def _amounts(rows: Iterable[tuple[str, float]], show: Callable[[float], str]) -> str:
    """Bars that begin at zero, the longest first, of amounts above zero."""
    largest = sorted((row for row in rows if row[1] > 0), key=lambda row: -row[1])
    bars = (_bar(name, show(value), value / largest[0][1], "amount") for name, value in largest)
    return f'<div class="scale">{"".join(bars)}</div>'


def _curves(holdout: dict[str, Any]) -> str:
    """The ROC curve and the calibration plot."""
    curves, plots = holdout.get("curves") or {}, []
    if curves.get("roc"):
        drawn = svg.curve(
            [(x, y) for x, y in curves["roc"]],
            "ROC curve",
            "false alarms: share of the first class",
            "found: share of the second class",
            diagonal="chance",
            sizes=(),
        )
        plots.append(_plot(term("ROC curve"), drawn))
    if curves.get("calibration"):
        drawn = svg.curve(
            [(x, y) for x, y, _ in curves["calibration"]],
            "calibration",
            "predicted probability",
            "observed share",
            diagonal="probabilities that come true",
            sizes=[int(count) for _, _, count in curves["calibration"]],
        )
        plots.append(_plot(term("calibration", "Calibration"), drawn))
    return f'<div class="pair" id="curves">{"".join(plots)}</div>' if plots else ""


def _stability(scored: dict[str, Any]) -> str:
    """Whether the people who were scored are like those of the training."""
    index = scored.get("psi")
    if index is None:
        return ""
    verdict = next(words for limit, words in STABILITY if index < limit)
    return f"<p>{term('PSI')} {index:.2f}: {verdict}.</p>"


def _gain(measured: dict[str, Any]) -> str:
    """The gain table: whom a campaign or a cut-off reaches, best scores first."""
    groups = (measured.get("curves") or {}).get("gain")
    if not groups:
        return ""
    head = ["people, best first", "found", "rate in this group", "lift"]
    head += ["points up to"] if groups[0]["points"] is not None else []
    forms = {"people": "{:,}", "found": "{:.0%}", "rate": "{:.0%}", "lift": "{:.2f}", "points": "{:.0f}"}
    rows = [[form.format(group[name] or 0) for name, form in forms.items()] for group in groups]
    about = (
        "<p>People with the highest scores come first. <i>Found</i>: the part of the second class that is "
        "among them. <i>Lift</i>: how many times as frequent the second class is among them as among all. "
        f"{term('points', 'Points')}: the scorecard's cut-off.</p>"
    )
    cells = table(head, [row[: len(head)] for row in rows], numbers=range(len(head)), narrow=True)
    return fold("Gain, lift and scorecard points", about + cells)


def _more_metrics(holdout: dict[str, Any]) -> str:
    """Every other metric, with what it means."""
    rows = [
        (name, f"{value:.3g}", METRICS[name].about if name in METRICS else "")
        for name, value in holdout.get("more", {}).items()
    ]
    return fold("Other measures", table(("measure", "value", "meaning"), rows, numbers=(1,))) if rows else ""


def _confusion(confusion: dict[str, Any] | None) -> str:
    """Which class was taken for which, and how many of each were recognised."""
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


def _cards(result: dict[str, Any], timing: dict[str, Any]) -> str:
    reason = REASONS.get(str(result["reason"]), str(result["reason"]))
    cards = [
        (str(result["rounds"]), f"rounds, {reason}"),
        (seconds(timing["computation_seconds"]), "computing"),
        (seconds(timing["communication_seconds"]), "communicating"),
        (seconds(timing["total_seconds"]), "training, both together"),
        (size(result["bytes_sent"]), "sent"),
        (size(result["bytes_received"]), "received"),
    ]
    beside = timing.get("alignment", {}).get("total_seconds", 0.0)
    if beside:
        cards.insert(4, (seconds(beside), "finding common people"))
    if timing.get("wall_seconds"):
        cards.insert(4, (seconds(timing["wall_seconds"]), "from start to end"))
    if result.get("holdout") is None and result.get("metric") is not None:
        cards.insert(0, (f"{result['metric']:.3f}", f"{result['metric_name']} at the end"))
    if result.get("interruptions"):
        cards.append((str(result["interruptions"]), "times resumed"))
    return _boxes(cards)


def _boxes(cards: Iterable[tuple[str, str]]) -> str:
    inner = "".join(f'<div class="card"><b>{escape(a)}</b><span>{escape(b)}</span></div>' for a, b in cards)
    return f'<div class="cards">{inner}</div>'


def _plots(result: dict[str, Any], timing: dict[str, Any]) -> Iterable[str]:
    yield f'<p id="time">{term("computation", "Computation")} and {term("communication")}.</p>'
    yield '<div class="plots">'
    works = ("computation", "communication")
    if len(result["history"]) > 1:
        name, title = result["metric_name"], f"{result['metric_name']} after each round"
        points = [(float(number) + 1, float(value)) for number, value in result["history"]]
        yield _plot(escape(title), svg.curve(points, title, "round", name))
    for word in works if timing["each_round"] else ():
        points = [(row["number"] + 1.0, row[word]) for row in timing["each_round"]]
        title = f"seconds of {word} in each round"
        yield _plot(title.capitalize(), svg.curve(points, title, "round", "seconds"))
    if paths := timing["parties"]:
        rows = [
            (f"{name}: {word}", path[f"{word}_seconds"]) for name, path in paths.items() for word in works
        ]
        yield _plot("At each party", _amounts(rows, seconds))
    if timing["activities"]:
        drawn = _amounts(timing["activities"].items(), seconds)
        yield _plot(f"What {escape(result['party'])} computed", drawn)
    if result["sent"] or result["received"]:
        ways = [(kind, way, amount) for way in ("sent", "received") for kind, amount in result[way].items()]
        rows = [(f"{kind}, {way}", amount["bytes"]) for kind, way, amount in ways]
        yield _plot("Bytes by kind of message", _amounts(rows, size))
    yield "</div>"


def _plot(title: str, drawing: str) -> str:
    """`title` is HTML."""
    return f'<div class="plot"><h3>{title}</h3>{drawing}</div>'


def _seen(result: dict[str, Any]) -> str:
    told = str(result["saw"])
    title = f'<h2 id="seen">What {escape(result["party"])} saw</h2>'
    return f"{title}<p>{escape(told[:1].upper() + told[1:])}.</p>"


_CALL = re.compile(r"(\w+)\((.*)\)")


def _value(value: Any) -> str:
    """A setting in words: no None, True or Python call."""
    if value is None or value == "None":
        return "not set"
    if isinstance(value, bool) or value in ("True", "False"):
        return "yes" if value in (True, "True") else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        if value and all(isinstance(each, list) and len(each) == 3 for each in value):  # the members of a run
            return ", ".join(f"{name} ({size:,} parameters)" for name, size, _ in value)
        return ", ".join(_value(item) for item in value)
    if isinstance(value, str) and (call := _CALL.fullmatch(value)):
        fields = [part.partition("=") for part in call[2].split(", ")]
        told = [f"{name.replace('_', ' ')} {_value(each)}" for name, _, each in fields if each != "None"]
        return f"{call[1].lower()}: {', '.join(told)}" if call[2] else call[1].lower()
    return str(value)
