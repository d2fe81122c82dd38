"""Draw plots as inline SVG: lines, stacked columns, stacked bars, and curves in the unit square.

A report is one file that needs no plotting package, script, font or network. Colours are the page's CSS
variables, so that they follow its light or dark scheme.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from math import ceil, floor, log10

WIDTH, HEIGHT = 440, 230
"""As wide as half a page or a whole telephone, so that words are neither huge nor tiny on either."""
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 26, 44
BAR, GAP, NAME = 14, 12, 19
SIDE = 340
"""Of a plot in the unit square."""
LETTER = 7.4


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers that cover [low, high]."""
    # Floats of this size that are closer have no room for ticks between them.
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-290):
        low, high = low - (abs(low) or 1.0) * 0.05, high + (abs(high) or 1.0) * 0.05
    raw = (high - low) / max(1, most - 1)
    power = 10.0 ** floor(log10(raw))
    step = next((m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9)), 10 * power)
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    return [step * place for place in range(first, last + 1)]


def label(value: float) -> str:
    """A number as an axis shows it."""
    if value == 0:
        return "0"
    for size, word in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{word}"
    return f"{value:.4g}"


def _text(x: float, y: float, words: str, anchor: str = "start", kind: str = "axis") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _line(start: tuple[float, float], end: tuple[float, float], kind: str, tip: str = "") -> str:
    (x1, y1), (x2, y2) = start, end
    title = f"<title>{escape(tip)}</title>" if tip else ""
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}">{title}</line>'


def _rect(series: int, x: float, y: float, width: float, height: float, tip: str, round_: int = 2) -> str:
    return (
        f'<rect class="s{series}" x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width):.1f}" '
        f'height="{max(0.0, height):.2f}" rx="{round_}"><title>{escape(tip)}</title></rect>'
    )


class _Frame:
    """Axes: data coordinates to the drawing's, grid lines and words."""

    def __init__(
        self,
        x: tuple[float, float],
        y: Sequence[float],
        x_name: str,
        size: tuple[float, float] = (WIDTH, HEIGHT),
        left: float = LEFT,
    ) -> None:
        self._size, self._left, self._x, self._y = size, left, x, (y[0], y[-1])
        self.parts = [_text((left + size[0] - RIGHT) / 2, size[1] - 6, x_name, "middle")]
        for value in y:
            start, end = self.place(x[0], value), self.place(x[1], value)
            self.parts.append(_line(start, end, "grid") + _text(left - 6, start[1] + 4, label(value), "end"))

    def place(self, x: float, y: float) -> tuple[float, float]:
        (x_low, x_high), (low, high), (width, height) = self._x, self._y, self._size
        across = (x - x_low) / ((x_high - x_low) or 1.0) * (width - self._left - RIGHT)
        up = (y - low) / ((high - low) or 1.0) * (height - TOP - BOTTOM)
        return self._left + across, height - BOTTOM - up

    def x_ticks(self, ticks: Sequence[tuple[float, str]]) -> None:
        """Ten of them at most."""
        for x, words in ticks[:: max(1, ceil(len(ticks) / 10))]:
            place, _ = self.place(x, 0.0)
            self.parts.append(_text(place, self._size[1] - BOTTOM + 17, words, "middle"))

    def curve(self, points: Sequence[tuple[float, float]]) -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (self.place(*point) for point in points))
        self.parts.append(f'<polyline class="line" points="{path}"/>')

    def dot(self, point: tuple[float, float], radius: float, tip: str) -> None:
        x, y = self.place(*point)
        self.parts.append(
            f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}">'
            f"<title>{escape(tip)}</title></circle>"
        )

    def drawing(self, title: str) -> str:
        return _svg(*self._size, self.parts, title)


def _svg(width: float, height: float, parts: Sequence[str], title: str) -> str:
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(title, quote=True)}" '
        f'xmlns="http://www.w3.org/2000/svg"><title>{escape(title)}</title>{"".join(parts)}</svg>'
    )


def line(points: Sequence[tuple[float, float]], title: str, x_name: str, y_name: str) -> str:
    """One line with its points."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    frame = _Frame((min(xs), max(xs)), ticks(min(ys), max(ys)), x_name)
    frame.curve(points)
    for x, y in points:
        frame.dot((x, y), 2.6, f"{x_name} {x:g}: {y_name} {y:.4f}")
    frame.x_ticks([(x, f"{x:g}") for x in xs])
    return frame.drawing(title)


def _legend(series: Sequence[str], left: float) -> list[str]:
    parts = []
    for number, name in enumerate(series):
        parts.append(_rect(number, left, 2, 10, 10, name) + _text(left + 14, 11, name))
        left += 30 + LETTER * len(name)
    return parts


def columns(
    series: Mapping[str, Sequence[float]], names: Sequence[str], title: str, x_name: str, y_name: str
) -> str:
    """Stacked columns, one for each name."""
    totals = [sum(values) for values in zip(*series.values(), strict=True)]
    frame = _Frame((0.0, float(len(names))), ticks(0.0, max(totals) or 1.0), x_name)
    width = max(1.0, 0.72 * (frame.place(1.0, 0.0)[0] - LEFT))
    for place, name in enumerate(names):
        height = 0.0
        for number, (word, values) in enumerate(series.items()):
            middle, bottom = frame.place(place + 0.5, height)
            height += values[place]
            top = frame.place(0.0, height)[1]
            tip = f"{name}: {word} {values[place]:.4g} {y_name}"
            frame.parts.append(_rect(number, middle - width / 2, top, width, bottom - top, tip, 0))
    frame.x_ticks([(place + 0.5, name) for place, name in enumerate(names)])
    frame.parts += _legend(list(series), LEFT)
    return frame.drawing(title)


def bars(
    rows: Sequence[tuple[str, Sequence[float]]],
    series: Sequence[str],
    title: str,
    show: Callable[[float], str] = label,
) -> str:
    """Stacked horizontal bars, with a name and the total, as `show` writes it, above each."""
    most = max((sum(values) for _, values in rows), default=0.0) or 1.0
    top, parts = (24.0, _legend(series, 0.0)) if len(series) > 1 else (2.0, [])
    for name, values in rows:
        base = top + NAME - 6
        parts.append(_text(0, base, name, kind="name") + _text(WIDTH, base, show(sum(values)), "end"))
        top, left = top + NAME, 0.0
        for number, value in enumerate(values):
            width = value / most * WIDTH
            parts.append(_rect(number, left, top, width, BAR, f"{name}: {series[number]} {show(value)}"))
            left += width
        top += BAR + GAP
    return _svg(WIDTH, top, parts, title)


def square(
    points: Sequence[tuple[float, float]],
    title: str,
    x_name: str,
    y_name: str,
    *,
    diagonal: str,
    sizes: Sequence[int] = (),
) -> str:
    """A curve in the unit square beside its diagonal. `sizes`: how many people each point is of, if dots."""
    quarters = (0.0, 0.25, 0.5, 0.75, 1.0)
    frame = _Frame((0.0, 1.0), quarters, x_name, (SIDE, SIDE), 44.0)
    frame.x_ticks([(value, f"{value:g}") for value in quarters])
    frame.parts.append(_line(frame.place(0, 0), frame.place(1, 1), "rule", diagonal))
    frame.curve(points)
    for (x, y), count in zip(points, sizes, strict=False):
        tip = f"{x_name} {x:.2f}: {y_name} {y:.2f}, {count} people"
        frame.dot((x, y), 3 + 3 * count / max(sizes), tip)
    frame.parts.append(_text(44, TOP - 10, y_name))
    return frame.drawing(title)
