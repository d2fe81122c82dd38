"""A run as one HTML page: how good it is, progress and time by round and party, bytes by kind of message,
what this party saw, settings and versions, with words explained (securefed.pages).

It is made from result.json and timing.json alone, so that it can be made again from them; while a run goes on
the same page shows what is there so far.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

from securefed.labels.metrics import METRICS
from securefed.pages import GLOSSARY, badge, glossary, page, table, term
from securefed.report import svg

__all__ = ["REASONS", "render", "seconds", "size"]

REASONS = {
    "rounds": "as many as agreed",
    "target": "the target was reached",
    "no progress": "no more progress",
}
"""Why a training was over, in words."""

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


def render(result: dict[str, Any], timing: dict[str, Any], more: str = "", *, live: str = "") -> str:
    """The page. `more`: a section of HTML with what was seen and checked, such as an audit; `live`: one with
    how far the run is, on a page that renews itself.
    """
    run, party = str(result["run"]), str(result["party"])
    parts = [
        f"<h1>{escape(run)}</h1>",
        f'<p class="soft">as {escape(party)} saw it{", " * bool(result.get("finished"))}'
        f"{escape(str(result.get('finished', '')))}</p>",
        f"<p>{_badge(result)} {_sentence(result)}</p>",
        live,
        "" if live else _quality(result),
        _cards(result, timing),
        *_plots(result, timing),
        more or "".join([*_seen(result), *_ledger(result)]),
        *_compared(result),
        '<h2 id="settings">Settings</h2>',
        table(("setting", "value"), sorted((k, _value(v)) for k, v in result["settings"].items())),
        *_versions(result),
        glossary(sorted(GLOSSARY, key=str.lower)),
    ]
    return page(f"{run}: {party}", "".join(parts), refresh=2 if live else None)


def _badge(result: dict[str, Any]) -> str:
    if result["protected"]:
        return badge("encrypted", "good")
    return badge("NOT PROTECTED: scheme plain", "bad")


def _sentence(result: dict[str, Any]) -> str:
    settings = result["settings"]
    word = "helper" if settings["reveal"] == "nothing" else "key-holder"
    holder = f" and the {term(word)}" if settings.get("key_holder") else ""
    return (
        f"{escape(str(settings['algorithm']))} with Q = {settings['local_steps']} {term('local steps')}, "
        f"{escape(str(settings['scheme']))}, {len(settings['parties'])} parties{holder}, {result['rows']:,} "
        f"rows in common; reveals {'nothing' if settings['reveal'] == 'nothing' else 'own gradients'} during "
        "training."
        f"{escape(_privacy(result))}"
    )


def _privacy(result: dict[str, Any]) -> str:
    found = result.get("privacy")
    if not found:
        return ""
    return f" Labels: differential privacy of epsilon {found['epsilon']:.2f} at delta {found['delta']:.1e}."


def _quality(result: dict[str, Any]) -> str:
    """Together, beside what else there is to compare with."""
    held, last = result.get("holdout"), result["settings"]["parties"][-1][0]
    if held is None:
        if last != result["party"] or result.get("metric") is not None:
            return ""
        return "<p>Quality not measured: no rows were held out, or too few are in common.</p>"
    rows = [("together", held["value"]), (f"{last} alone", held["alone"]), ("chance", held["chance"])]
    rows += [(str(name), float(value)) for name, value in result.get("beside", [])]
    low = min(0.0, *(value for _, value in rows))
    most = max(1.0, *(value for _, value in rows)) - low
    lines = "".join(
        f"<div class='{'own' if name.startswith('together') else 'other'}'><span>{escape(name)}</span>"
        f'<b>{value:.4f}</b><i style="width:{100 * (value - low) / most:.1f}%"></i></div>'
        for name, value in rows
    )
    loud = f"<p>{badge(held['warning'], 'bad')}</p>" if held.get("warning") else ""
    name = str(held["metric"])
    shown = term(name) if name in GLOSSARY else escape(name)
    return (
        f'<h2 id="quality">{shown} on {held["rows"]:,} {term("held-out rows")}</h2>{loud}'
        f'<p>{_between(held)}</p><div class="scale">{lines}</div>'
        f"{_more_metrics(held)}{_confusion(held.get('confusion'))}"
    )


def _between(held: dict[str, Any]) -> str:
    """The 95% interval of the joint model's metric."""
    if held.get("interval") is None:
        return ""
    low, high = held["interval"]
    return f"With 95% certainty between {low:.4f} and {high:.4f} on people like these."


def _more_metrics(held: dict[str, Any]) -> str:
    """Every other metric, with what it means."""
    rows = [
        (name, f"{value:.4g}", METRICS[name].about if name in METRICS else "")
        for name, value in held.get("more", {}).items()
    ]
    return (
        f'<div class="wide">{table(("metric", "value", "meaning"), rows, numbers=(1,))}</div>' if rows else ""
    )


def _confusion(found: dict[str, Any] | None) -> str:
    """Which class was taken for which, and how many of each were recognised."""
    if found is None:
        return ""
    names, counts = [str(name) for name in found["classes"]], found["counts"]
    if len(names) > MOST_CLASSES:
        return f"<p>Which of {len(names)} classes was taken for which: holdout.confusion in result.json.</p>"
    rows = [
        (name, *row, f"{100 * row[place] / sum(row):.0f}%" if sum(row) else "none there")
        for place, (name, row) in enumerate(zip(names, counts, strict=True))
    ]
    head = ("true class", *(f"as {name}" for name in names), "recognised")
    shown = table(head, rows, numbers=range(1, len(head)))
    return f'<h3 id="confusion">Which class was taken for which</h3><div class="wide">{shown}</div>'


def _cards(result: dict[str, Any], timing: dict[str, Any]) -> str:
    reason = REASONS.get(str(result["reason"]), str(result["reason"]))
    cards = [
        (str(result["rounds"]), f"rounds {reason}" if reason.startswith("of ") else f"rounds: {reason}"),
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
        cards.insert(0, (f"{result['metric']:.4f}", f"{result['metric_name']} at the end"))
    if result.get("interruptions"):
        cards.append((str(result["interruptions"]), "times resumed"))
    inner = "".join(f'<div class="card"><b>{escape(a)}</b><span>{escape(b)}</span></div>' for a, b in cards)
    return f'<div class="cards">{inner}</div>'


def _plots(result: dict[str, Any], timing: dict[str, Any]) -> Iterable[str]:
    yield f'<h2 id="time">Progress, {term("computation")} and {term("communication")}</h2><div class="plots">'
    if len(result["history"]) > 1:
        name = result["metric_name"]
        points = [(float(number) + 1, float(value)) for number, value in result["history"]]
        yield _plot(f"{name} after each round", svg.line(points, f"{name} after each round", "round", name))
    each = timing["each_round"]
    if each:
        work = {name: [row[name] for row in each] for name in ("computation", "communication")}
        numbers = [str(row["number"] + 1) for row in each]
        drawn = svg.columns(work, numbers, "seconds of each round", "round", "seconds")
        yield _plot("Seconds of each round", drawn)
    paths = timing["parties"]
    if paths:
        rows = [(name, (p["computation_seconds"], p["communication_seconds"])) for name, p in paths.items()]
        drawn = svg.bars(rows, ("computation", "communication"), "seconds at each party", seconds)
        yield _plot("At each party", drawn)
    if timing["activities"]:
        work_done = sorted(timing["activities"].items(), key=lambda item: -item[1])
        listed = [(name, (value,)) for name, value in work_done]
        drawn = svg.bars(listed, ("seconds",), "seconds by activity", seconds)
        yield _plot(f"What {result['party']} computed", drawn)
    kinds = {**result["sent"], **result["received"]}
    if kinds:
        totals = {
            kind: [result[way].get(kind, {}).get("bytes", 0) for way in ("sent", "received")]
            for kind in kinds
        }
        rows = [(kind, (s, r)) for kind, (s, r) in sorted(totals.items(), key=lambda item: -sum(item[1]))]
        drawn = svg.bars(rows, ("sent", "received"), "bytes by kind of message", size)
        yield _plot("Bytes by kind of message", drawn)
    yield "</div>"


def _plot(title: str, drawing: str) -> str:
    return f'<div class="plot"><h3>{escape(title)}</h3>{drawing}</div>'


def _seen(result: dict[str, Any]) -> Iterable[str]:
    yield f'<h2 id="seen">What {escape(result["party"])} saw</h2>'
    yield f"<p>{escape(result['saw'])}</p>"
    rows = [
        (row["kind"], f"{row['messages']:,}", size(row["bytes"]), row["protection"], row["reveals"])
        for row in result["seen"]
    ]
    yield table(("message", "count", "bytes", "protection", "what it reveals"), rows, numbers=(1, 2))


def _compared(result: dict[str, Any]) -> Iterable[str]:
    compared = [(name, peer["transcripts"]) for name, peer in result.get("peers", {}).items()]
    if compared:
        yield f"<h2>{term('transcript', 'Transcripts')} compared with the peers</h2>"
        yield table(("peer", "what one sent is what the other received"), compared)


def _ledger(result: dict[str, Any]) -> Iterable[str]:
    yield f"<h2>{term('ledger', 'Ledger')}: opened numbers against the secrets they depend on</h2>"
    if not result["ledger_of_all"]:
        yield "<p>Empty: nothing was opened to anybody during training.</p>"
        return
    rows = [
        (e["party"], e["block"], e["equations"], e["unknowns"], f"{e['ratio']:.2f}", e["verdict"])
        for e in result["ledger_of_all"]
    ]
    yield table(("party", "about", "numbers", "secrets", "ratio", "verdict"), rows, numbers=(2, 3, 4))


def _versions(result: dict[str, Any]) -> Iterable[str]:
    if result.get("versions"):
        yield '<h2 id="versions">Versions</h2>'
        yield table(("package", "version"), result["versions"].items())


def _value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_value(item) for item in value)
    return str(value)
