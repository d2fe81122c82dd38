"""Charts of the bench: colours that the colour-blind can tell apart, PNG and SVG, drawn without a display."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from securefed.errors import require

# Okabe and Ito's palette, without its yellow, which is too faint for lines on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
# Colour is never the only difference.
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))

STYLE = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.labelsize": 10,
    "legend.fontsize": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "securefed",  # the same drawing has the same bytes
}


def canvas(columns: int, rows: int = 1, *, width: float = 5.2, height: float = 3.9) -> tuple[Any, list[Any]]:
    """A figure and its axes from left to right, top to bottom."""
    matplotlib = require("matplotlib", extra="plot")
    figures = require("matplotlib.figure", extra="plot")
    with matplotlib.rc_context(STYLE):
        figure = figures.Figure(figsize=(width * columns, height * rows), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
    return figure, list(axes.ravel())


def save(figure: Any, folder: Path, name: str) -> list[Path]:
    """Both formats; returns where they are."""
    folder.mkdir(parents=True, exist_ok=True)
    matplotlib = require("matplotlib", extra="plot")
    paths = [folder / f"{name}.png", folder / f"{name}.svg"]
    with matplotlib.rc_context(STYLE):
        figure.savefig(paths[0], dpi=110)
        figure.savefig(paths[1], metadata={"Date": None})
    return paths
