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


class _Frame:
    """Axes: data coordinates to the drawing's, grid lines and words."""

    def __init__(self, x: tuple[float, float], y: Sequence[float], x_name: str) -> None:
        self._x, self._y = x, (y[0], y[-1])
        self.parts = [
            f'<text class="axis" x="{(LEFT + WIDTH - RIGHT) / 2:.1f}" y="{HEIGHT - 6}" '
            f'text-anchor="middle">{escape(x_name)}</text>',
        ]
        for value in y:
            place = self.down(value)
            self.parts.append(
                f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{place:.1f}" y2="{place:.1f}"/>'
                f'<text class="axis" x="{LEFT - 6}" y="{place + 4:.1f}" text-anchor="end">'
                f"{label(value)}</text>"
            )

    def right(self, value: float) -> float:
        low, high = self._x
        return LEFT + (value - low) / ((high - low) or 1.0) * (WIDTH - LEFT - RIGHT)

    def down(self, value: float) -> float:
        low, high = self._y
        return HEIGHT - BOTTOM - (value - low) / ((high - low) or 1.0) * (HEIGHT - TOP - BOTTOM)

    def x_tick(self, place: float, text: str) -> None:
        self.parts.append(
            f'<text class="axis" x="{place:.1f}" y="{HEIGHT - BOTTOM + 17}" text-anchor="middle">'
            f"{escape(text)}</text>"
        )


def _svg(width: float, height: float, parts: Sequence[str], title: str) -> str:
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(title, quote=True)}" '
        f'xmlns="http://www.w3.org/2000/svg"><title>{escape(title)}</title>{"".join(parts)}</svg>'
    )


def _some(count: int, most: int = 10) -> list[int]:
    """Places for at most `most` words among so many."""
    step = max(1, ceil(count / most))
    return list(range(0, count, step))


def line(points: Sequence[tuple[float, float]], title: str, x_name: str, y_name: str) -> str:
    """One line with its points."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    frame = _Frame((min(xs), max(xs)), ticks(min(ys), max(ys)), x_name)
    places = [(frame.right(x), frame.down(y)) for x, y in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    frame.parts.append(f'<polyline class="line" points="{path}"/>')
    for (x, y), (at, down) in zip(points, places, strict=True):
        frame.parts.append(
            f'<circle class="dot" cx="{at:.1f}" cy="{down:.1f}" r="2.6">'
            f"<title>{escape(x_name)} {x:g}: {escape(y_name)} {y:.4f}</title></circle>"
        )
    for place in _some(len(points)):
        frame.x_tick(places[place][0], f"{xs[place]:g}")
    return _svg(WIDTH, HEIGHT, frame.parts, title)


def _legend(series: Sequence[str], left: float, top: float) -> list[str]:
    parts = []
    for number, name in enumerate(series):
        parts.append(
            f'<rect class="s{number}" x="{left:.1f}" y="{top:.1f}" width="10" height="10" rx="2"/>'
            f'<text class="axis" x="{left + 14:.1f}" y="{top + 9:.1f}">{escape(name)}</text>'
        )
        left += 30 + LETTER * len(name)
    return parts


def columns(
    series: Mapping[str, Sequence[float]], names: Sequence[str], title: str, x_name: str, y_name: str
) -> str:
    """Stacked columns, one for each name."""
    totals = [sum(values) for values in zip(*series.values(), strict=True)]
    frame = _Frame((0.0, float(len(names))), ticks(0.0, max(totals) or 1.0), x_name)
    width = max(1.0, 0.72 * (frame.right(1.0) - frame.right(0.0)))
    for place, name in enumerate(names):
        middle, height = frame.right(place + 0.5), 0.0
        for number, (word, values) in enumerate(series.items()):
            top, bottom = frame.down(height + values[place]), frame.down(height)
            frame.parts.append(
                f'<rect class="s{number}" x="{middle - width / 2:.1f}" y="{top:.1f}" width="{width:.1f}" '
                f'height="{max(0.0, bottom - top):.2f}"><title>{escape(name)}: {escape(word)} '
                f"{values[place]:.4g} {escape(y_name)}</title></rect>"
            )
            height += values[place]
    for place in _some(len(names)):
        frame.x_tick(frame.right(place + 0.5), names[place])
    frame.parts += _legend(list(series), LEFT, 2.0)
    return _svg(WIDTH, HEIGHT, frame.parts, title)


def bars(
    rows: Sequence[tuple[str, Sequence[float]]],
    series: Sequence[str],
    title: str,
    show: Callable[[float], str] = label,
) -> str:
    """Stacked horizontal bars, with a name and the total, as `show` writes it, above each."""
    most = max((sum(values) for _, values in rows), default=0.0) or 1.0
    top = 24.0 if len(series) > 1 else 2.0
    parts = _legend(series, 0.0, 2.0) if len(series) > 1 else []
    for name, values in rows:
        parts.append(
            f'<text x="0" y="{top + NAME - 6:.1f}">{escape(name)}</text>'
            f'<text class="axis" x="{WIDTH}" y="{top + NAME - 6:.1f}" text-anchor="end">'
            f"{escape(show(sum(values)))}</text>"
        )
        top, left = top + NAME, 0.0
        for number, value in enumerate(values):
            width = value / most * WIDTH
            parts.append(
                f'<rect class="s{number}" x="{left:.1f}" y="{top:.1f}" width="{max(0.0, width):.1f}" '
                f'height="{BAR}" rx="2"><title>{escape(name)}: {escape(series[number])} '
                f"{escape(show(value))}</title></rect>"
            )
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
    low, high, top, down = 44.0, SIDE - 12.0, 24.0, SIDE - 46.0

    def place(x: float, y: float) -> tuple[float, float]:
        return low + x * (high - low), down - y * (down - top)

    parts = []
    for value in (0.0, 0.25, 0.5, 0.75, 1.0):
        across, level = place(value, value)
        parts.append(
            f'<line class="grid" x1="{low}" x2="{high}" y1="{level:.1f}" y2="{level:.1f}"/>'
            f'<text class="axis" x="{low - 6}" y="{level + 4:.1f}" text-anchor="end">{value:g}</text>'
            f'<text class="axis" x="{across:.1f}" y="{down + 17:.1f}" text-anchor="middle">{value:g}</text>'
        )
    (x0, y0), (x1, y1) = place(0, 0), place(1, 1)
    parts.append(
        f'<line class="rule" x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}">'
        f"<title>{escape(diagonal)}</title></line>"
    )
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
    parts.append(f'<polyline class="line" points="{path}"/>')
    most = max(sizes, default=1)
    for (x, y), count in zip(points, sizes, strict=False):
        at, level = place(x, y)
        parts.append(
            f'<circle class="dot" cx="{at:.1f}" cy="{level:.1f}" r="{3 + 3 * count / most:.1f}"><title>'
            f"{escape(x_name)} {x:.2f}: {escape(y_name)} {y:.2f}, {count} people</title></circle>"
        )
    parts.append(
        f'<text class="axis" x="{(low + high) / 2:.1f}" y="{SIDE - 6}" text-anchor="middle">'
        f'{escape(x_name)}</text><text class="axis" x="{low}" y="{top - 8:.1f}">{escape(y_name)}</text>'
    )
    return _svg(SIDE, SIDE, parts, title)
