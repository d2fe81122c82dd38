"""The plots of Table 2: AUC over rounds and over minutes; bars of computation and communication."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.plots import COLOURS, DASHES, MARKERS, canvas, save
from bench.table2_rows import Cells, Row, training
from securefed.transport.message import Network

WORDS = {
    "overlap": "AUC on the shared people (training AUC)",
    "held-out": "AUC on people held out",
    "linear": "AUC on test rows",
}


NAMES = {
    "overlap": "Credit-FTL (overlap)",
    "held-out": "Credit-FTL (held-out)",
    "linear": "Credit, linear local models",
}


def draw(
    cells: Cells, rows: Sequence[Row], networks: Sequence[Network], folder: Path, name: str
) -> list[Path]:
    """All of them; returns where they are."""
    paths: list[Path] = []
    for network in networks:
        tail = f"{name}-{''.join(c if c.isalnum() else '_' for c in network.name)}"
        own = [row for row in rows if row.network == network.name]
        paths += save(_curves(cells, own, network), folder, f"{tail}-auc")
        if any(row.reached for row in own):
            paths += save(_stacks(cells, own, network), folder, f"{tail}-minutes")
    return paths


def _label(q: int) -> str:
    return "FedSGD" if q == 1 else f"FedBCD-p, Q = {q}"


def _curves(cells: Cells, rows: Sequence[Row], network: Network) -> Any:
    figure, (left, right) = canvas(2)
    seed = cells.seeds[0]
    for place, q in enumerate(cells.steps):
        aucs = cells.aucs(cells.measured[q, seed])
        rounds = cells.replay(q, seed, network).rounds
        minutes = [training(costs).total / 60 for costs in rounds]
        style = {
            "color": COLOURS[place % 7],
            "linestyle": DASHES[place % 7],
            "marker": MARKERS[place % 7],
            "markersize": 3.5,
            "label": _label(q),
        }
        left.plot(range(1, len(aucs) + 1), aucs, **style)
        right.plot(minutes, aucs, **style)
    for axes, what in ((left, "communication rounds"), (right, f"minutes on `{network.name}`")):
        axes.set_xlabel(what)
        axes.set_ylabel(WORDS[cells.kind])
        for target in sorted({row.target_auc for row in rows if row.reached}):
            axes.axhline(target, color="0.6", linewidth=0.8, zorder=0)
        axes.set_xlim(left=0)
    left.legend(loc="lower right")
    figure.suptitle(f"{NAMES[cells.kind]} under {cells.scheme}, seed {seed}, network `{network.name}`")
    return figure


def _stacks(cells: Cells, rows: Sequence[Row], network: Network) -> Any:
    """Ours, and the paper's on its own scale where it has the same cells."""
    papers = [row for row in rows if row.total_paper is not None]
    figure, axes = canvas(2 if papers else 1)
    ours = [
        (row, row.comp_min, row.comm_min)
        for row in rows
        if row.comp_min is not None and row.comm_min is not None
    ]
    workers = max(int(record.settings.get("workers", 1)) for record in cells.measured.values())
    cores = "one core" if workers == 1 else f"{workers} cores"
    _bars(axes[0], ours, f"here: {cells.scheme}, `{network.name}`, {cores} a party")
    if papers:
        theirs = [(row, row.comp_paper, row.comm_paper) for row in papers]
        _bars(axes[1], theirs, "the paper: two machines of 20 cores")
    return figure


def _bars(axes: Any, bars: Sequence[tuple[Row, Any, Any]], title: str) -> None:
    places = [
        index + 0.6 * sorted({row.target_auc for row, *_ in bars}).index(row.target_auc)
        for index, (row, *_) in enumerate(bars)
    ]
    comp, comm = [bar[1] for bar in bars], [bar[2] for bar in bars]
    axes.bar(places, comp, color=COLOURS[0], width=0.8, label="computation")
    axes.bar(
        places,
        comm,
        bottom=comp,
        color=COLOURS[5],
        hatch="//",
        edgecolor="white",
        width=0.8,
        label="communication",
    )
    for place, (_, first, second) in zip(places, bars, strict=True):
        total = first + second
        text = f"{total:.{2 if total < 1 else 3}g}"
        axes.annotate(text, (place, total), ha="center", va="bottom", fontsize=8)
    axes.set_xticks(places, [f"Q={row.Q}\n{100 * row.target_auc:g}%" for row, *_ in bars], fontsize=8)
    axes.set_ylabel("minutes")
    axes.set_title(title)
    axes.margins(y=0.12)
    axes.grid(axis="x", visible=False)
    axes.set_ylim(top=1.25 * axes.get_ylim()[1])  # room for the legend where the first bars are the longest
    axes.legend(loc="upper left")
