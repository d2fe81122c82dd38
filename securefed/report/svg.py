"""Draw a curve with its axes as inline SVG.

A report is one file that needs no plotting package, script, font or network. Colours are the page's CSS
variables, so that they follow its light or dark scheme.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10

WIDTH, HEIGHT = 440, 230
"""As wide as half a page or a whole telephone, so that words are neither huge nor tiny on either."""
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 26, 44
SIDE = 340
"""Of a plot in the unit square."""
QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)


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


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text class="axis" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _line(start: tuple[float, float], end: tuple[float, float], kind: str, tip: str = "") -> str:
    (x1, y1), (x2, y2) = start, end
    title = f"<title>{escape(tip)}</title>" if tip else ""
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}">{title}</line>'


def curve(
    points: Sequence[tuple[float, float]],
    title: str,
    x_name: str,
    y_name: str,
    *,
    diagonal: str = "",
    sizes: Sequence[int] | None = None,
) -> str:
    """Draw a curve.

    `diagonal`: what the diagonal stands for, of a curve in the unit square.
    `sizes`: how many people each point is of. Without sizes all points are of the same size.
    """
    xs, ys = [x for x, _ in points], [y for _, y in points]
    width, height, across, up = WIDTH, HEIGHT, xs, ticks(min(ys), max(ys))
    if diagonal:
        width, height, across, up = SIDE, SIDE, list(QUARTERS), list(QUARTERS)

    def place(x: float, y: float) -> tuple[float, float]:
        right = (x - across[0]) / ((across[-1] - across[0]) or 1.0) * (width - LEFT - RIGHT)
        above = (y - up[0]) / ((up[-1] - up[0]) or 1.0) * (height - TOP - BOTTOM)
        return LEFT + right, height - BOTTOM - above

    parts = [_text((LEFT + width - RIGHT) / 2, height - 6, x_name, "middle")]
    for value in up:
        start, end = place(across[0], value), place(across[-1], value)
        parts.append(_line(start, end, "grid") + _text(LEFT - 6, start[1] + 4, f"{value:.4g}", "end"))
    for x in across[:: max(1, ceil(len(across) / 10))]:
        parts.append(_text(place(x, 0.0)[0], height - BOTTOM + 17, f"{x:g}", "middle"))
    parts.append(_text(LEFT, TOP - 10, y_name))
    if diagonal:
        parts.append(_line(place(0, 0), place(1, 1), "rule", diagonal))
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
    parts.append(f'<polyline class="line" points="{path}"/>')
    for (x, y), people in zip(points, [None] * len(points) if sizes is None else sizes, strict=False):
        tip = f"{x_name} {x:.4g}: {y_name} {y:.4g}" + ("" if people is None else f", {people} people")
        radius = 2.6 if people is None else 3 + 3 * people / max(sizes or [1])
        right, down = place(x, y)
        parts.append(
            f'<circle class="dot" cx="{right:.1f}" cy="{down:.1f}" r="{radius:.1f}">'
            f"<title>{escape(tip)}</title></circle>"
        )
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title, quote=True)}" '
        f'xmlns="http://www.w3.org/2000/svg"><title>{escape(title)}</title>{"".join(parts)}</svg>'
    )
