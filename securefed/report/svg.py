"""Draw a curve in the unit square with its axes as inline SVG.

A report is one file that needs no plotting package, script, font or network. Colours are the page's CSS
variables, so that they follow its light or dark scheme.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

SIDE = 340
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 26, 44
QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)


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
