"""The drawings of `python -m bench figures`. A title states a finding only if the numbers show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from bench.figures_minutes import Minutes
from bench.figures_runs import Curve, optimum
from bench.plots import COLOURS, DASHES, MARKERS, canvas

STAR = {"marker": "*", "markersize": 17, "markeredgecolor": "black", "linestyle": "none", "zorder": 5}


def _style(place: int, points: int) -> dict[str, Any]:
    """Colour, dashes and marker all differ; some ten markers a line."""
    return {
        "color": COLOURS[place % len(COLOURS)],
        "linestyle": DASHES[place % len(DASHES)],
        "marker": MARKERS[place % len(MARKERS)],
        "markersize": 5,
        "linewidth": 1.6,
        "markevery": (place * max(1, points // 30), max(1, points // 10)),
    }


def _line(axes: Any, place: int, values: Sequence[float], label: str, **other: Any) -> None:
    axes.plot(range(1, len(values) + 1), values, label=label, **{**_style(place, len(values)), **other})


def _rounds_axis(axes: Any) -> None:
    axes.set_xlabel("communication rounds")
    axes.set_xlim(left=0)
    axes.xaxis.get_major_locator().set_params(integer=True)


def _panels(curves: Sequence[Curve]) -> list[str]:
    return list(dict.fromkeys(curve.panel for curve in curves))


def draw_curves(curves: Sequence[Curve], data: str, title: str) -> Any:
    """A row for each algorithm: AUC on the left, loss on the right."""
    panels = _panels(curves)
    figure, axes = canvas(2, len(panels), width=5.6, height=3.7)
    for row, panel in enumerate(panels):
        left, right = axes[2 * row], axes[2 * row + 1]
        for place, curve in enumerate(c for c in curves if c.panel == panel):
            _line(left, place, curve.auc, curve.label)
            _line(right, place, curve.loss, curve.label)
        left.set_ylabel("AUC on test rows")
        right.set_ylabel("loss on training rows")
        for side in (left, right):
            side.set_title(f"{panel}, {data}")
            _rounds_axis(side)
        left.legend(loc="lower right")
        left.set_ylim(min(min(c.auc) for c in curves) - 0.01, max(max(c.auc) for c in curves) + 0.01)
        # A large Q begins with a loss far above the others', which would flatten them all.
        usual = max(curve.loss[len(curve.loss) // 10] for curve in curves)
        low = min(min(curve.loss) for curve in curves)
        right.set_ylim(low - 0.1 * (usual - low), usual + 0.6 * (usual - low))
        right.legend(loc="upper right")
    figure.suptitle(title)
    return figure


def draw_optimum(panels: Sequence[tuple[str, Mapping[float, Mapping[int, float]]]], title: str) -> Any:
    """Rounds against Q, a line for each target; the fewest rounds have a star."""
    figure, axes = canvas(len(panels), width=5.6, height=4.1)
    for side, (words, by_target) in zip(axes, panels, strict=True):
        grid = sorted({steps for rounds in by_target.values() for steps in rounds})
        for place, (target, rounds) in enumerate(by_target.items()):
            there = {steps: number for steps, number in rounds.items() if number < inf}
            if not there:
                continue
            label = f"AUC {100 * target:g}%"
            best = optimum(rounds)
            if best is not None:
                label += f": best Q = {best} ({rounds[best]:g} rounds)"
            style = {**_style(place, len(there)), "markevery": 1}
            side.plot(list(there), list(there.values()), label=label, **style)
            if best is not None:
                side.plot([best], [rounds[best]], color=COLOURS[place], **STAR)
            beyond = [steps for steps in grid if rounds[steps] == inf]
            if beyond:
                side.annotate(f"Q = {', '.join(map(str, beyond))}: {100 * target:g}% not reached",
                              (0.97, 0.6 - 0.07 * place), xycoords="axes fraction", ha="right",
                              fontsize=9, color=COLOURS[place])  # fmt: skip
        side.set_xscale("log")
        side.set_yscale("log")
        side.set_xticks(grid, [str(steps) for steps in grid])
        side.minorticks_off()
        ticks = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]
        numbers = [n for rounds in by_target.values() for n in rounds.values() if n < inf]
        shown = [t for t in ticks if numbers and min(numbers) * 0.75 <= t <= max(numbers) * 1.35]
        side.set_yticks(shown, [str(tick) for tick in shown])
        if numbers:
            # Room for the legend above the lines.
            side.set_ylim(top=max(numbers) * (max(numbers) / min(numbers)) ** 0.45)
        side.set_xlabel("local steps Q in a round")
        side.set_ylabel("communication rounds")
        side.set_title(words)
        side.legend(loc="upper right")
    figure.suptitle(title)
    return figure


def draw_panels(
    curves: Sequence[Curve],
    words: Mapping[str, tuple[str, str]],
    title: str,
    *,
    pairs: bool = False,
    legend: str = "lower right",
) -> Any:
    """AUC against rounds, one panel after the other; `words`: its title and what its AUC is of. With `pairs`
    two lines after each other are one case without and with something: one colour, open markers for the
    second.
    """
    panels = _panels(curves)
    columns = 2 if len(panels) > 1 else 1
    figure, axes = canvas(columns, -(-len(panels) // columns), width=5.6, height=3.9)
    for side, panel in zip(axes, panels, strict=True):
        own = [c for c in curves if c.panel == panel]
        for place, curve in enumerate(own):
            if pairs:
                second = place % 2 == 1
                other = {"linestyle": "--" if second else "-", "markerfacecolor": "white" if second else None}
                _line(side, place // 2, curve.auc, curve.label, **{k: v for k, v in other.items() if v})
            else:
                _line(side, place, curve.auc, curve.label)
        heading, what = words[panel]
        side.set_title(heading)
        _rounds_axis(side)
        side.set_ylabel(what)
        if pairs:
            # Six lines leave no corner free: below the axes, a pair in each column.
            side.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3 if len(own) > 4 else 2)
        else:
            side.legend(loc=legend)
    if not pairs:
        low = min(min(curve.auc) for curve in curves)
        high = max(max(curve.auc) for curve in curves)
        for side in axes:
            side.set_ylim(low - 0.02, high + 0.02)
    figure.suptitle(title)
    return figure


def draw_minutes(found: Sequence[Minutes], words: str, title: str) -> Any:
    """A panel for each network: minutes with measured rounds, the planner's guess beside."""
    figure, axes = canvas(len(found), width=4.7, height=4.3)
    for side, one in zip(axes, found, strict=True):
        grid = list(one.measured)
        side.plot(grid, [one.measured[q] for q in grid], color=COLOURS[0], marker="o", markersize=5,
                  linestyle="-", label="measured rounds, line through costs")  # fmt: skip
        side.plot(list(one.encrypted), list(one.encrypted.values()), color="black",
                  marker="x", markersize=8, markeredgewidth=2, linestyle="none", zorder=4,
                  label="encrypted runs")  # fmt: skip
        side.plot(grid, [one.guessed[q] for q in grid], color=COLOURS[1], marker="s", markersize=4,
                  linestyle="--", label="planner's forecast")  # fmt: skip
        side.plot([one.best], [one.measured[one.best]], color=COLOURS[0],
                  label=f"best: Q = {one.best}", **STAR)  # fmt: skip
        side.plot([one.guess], [one.guessed[one.guess]], marker="D", markersize=10, color=COLOURS[1],
                  markeredgecolor="black", linestyle="none", zorder=5,
                  label=f"planner's choice: Q = {one.guess}")  # fmt: skip
        side.set_xscale("log")
        side.set_xticks(grid, [str(q) for q in grid])
        side.minorticks_off()
        top = max(*one.measured.values(), *one.guessed.values())
        side.set_ylim(0, 1.55 * top)
        side.set_xlabel("local steps Q in a round")
        side.set_ylabel(f"total minutes to {100 * one.target:g}% AUC")
        side.set_title(f"{one.network}: {one.bandwidth / 1e6:g} Mbit/s, {1e3 * one.latency:g} ms")
        side.legend(loc="upper center", fontsize=8.5)
    figure.suptitle(f"{title}\n{words}")
    return figure
