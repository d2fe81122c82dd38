"""`python -m bench attacks`: attacks on recorded views, attack by variant, each with chance and an interval.

Variants: plain FedBCD; gradients of single rows opened under Paillier, as FATE's transfer learning does;
ours with Paillier and with CKKS (own gradients opened); ours blind (nothing opened). Intervals
are 95 %; a cell is marked where the score lies five standard errors above chance and above what the observer
is given by design.
That ours is marked somewhere is part of the result: opened gradients carry information, and the ledger
says when. A second table has parties that do not follow the protocol of blind runs, against naive variants
and ours.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from bench import machine
from bench.attack_variants import BLIND, FULL, QUICK, VARIANTS, Size
from bench.bars import Bar
from bench.blind_attacks import Active, active_attacks, active_table
from bench.linear_attacks import linear_scores
from bench.scenes import Keys
from bench.score_attacks import score_attacks
from bench.transfer_attacks import transfer_scores
from research.attacks.scores import Score
from securefed.errors import SettingError, require


def every_score(keys: Keys, size: Size, seed: int) -> Iterator[Score]:
    yield from transfer_scores(keys, size, seed)
    yield from linear_scores(keys, size, seed)
    yield from score_attacks(seed)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the scores (needs the extra 'plot')")


def run(args: argparse.Namespace) -> int:
    for path in (args.json, args.plot):
        if path is not None and not path.absolute().parent.is_dir():
            raise SettingError(f"{path}: there is no directory {path.parent}")
    if args.plot is not None:
        require("matplotlib", extra="plot")
    facts = machine.describe(("numpy", "gmpy2", "phe", "tenseal"))
    for name, fact in facts.items():
        print(f"{name:<11}{fact}")
    print(flush=True)
    scores = []
    for score in every_score(Keys(), QUICK if args.quick else FULL, args.seed):
        scores.append(score)
        print(line(score), flush=True)
    print()
    print(table(scores))
    print()
    active = list(active_attacks())
    print(active_table(active))
    if args.json is not None:
        report = {
            "machine": facts,
            "rows": [score.to_dict() for score in scores],
            "active": [row.to_dict() for row in active],
            "bars": [asdict(_bar(scores, active))],
        }
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    if args.plot is not None:
        draw(scores, args.plot)
    return 0


def _bar(scores: list[Score], active: list[Active]) -> Bar:
    won = [score.attack for score in scores if score.variant == BLIND and score.succeeded]
    won += [row.attack for row in active if row.ours]
    return Bar.of("attacks that succeed on blind training", len(won), 0.0, "less", ", ".join(won))


def line(score: Score) -> str:
    mark = "SUCCEEDS" if score.succeeded else "fails"
    design = "" if score.by_design is None else f", by design {score.by_design:.2f}"
    interval = f"{score.score:.2f} [{score.low:.2f}, {score.high:.2f}]"
    numbers = f"{score.metric} {interval}, chance {score.chance:.2f}"
    note = f"; {score.note}" if score.note else ""
    return f"{score.attack} ({score.observer}) on {score.variant}: {mark}: {numbers}{design}{note}"


def table(scores: Sequence[Score]) -> str:
    """Markdown: a row for each attack, a column for each variant; ** marks an attack that succeeds."""
    attacks = list(dict.fromkeys(score.attack for score in scores))
    head = ["attack", "observer", "metric", "chance", "by design", *VARIANTS]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for attack in attacks:
        rows = {score.variant: score for score in scores if score.attack == attack}
        first = next(iter(rows.values()))
        designs = [score.by_design for score in rows.values() if score.by_design is not None]
        cells = [attack, first.observer, first.metric, f"{first.chance:.2f}"]
        cells.append(_range(designs))
        for variant in VARIANTS:
            found = rows.get(variant)
            if found is None:
                cells.append("-")
                continue
            text = f"{found.score:.2f} [{found.low:.2f}, {found.high:.2f}]"
            cells.append(f"**{text}**" if found.succeeded else text)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _range(values: Sequence[float]) -> str:
    if not values:
        return "-"
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def draw(scores: Sequence[Score], path: Path) -> None:
    """A panel for each attack: scores with intervals, chance as a line."""
    figures = require("matplotlib.figure", extra="plot")
    attacks = list(dict.fromkeys(score.attack for score in scores))
    columns = 3
    rows = -(-len(attacks) // columns)
    figure = figures.Figure(figsize=(5 * columns, 2.4 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel, attack in zip(panels, attacks, strict=False):
        found = sorted(
            (score for score in scores if score.attack == attack), key=lambda s: VARIANTS.index(s.variant)
        )
        for place, score in enumerate(found):
            colour, marker = ("#D55E00", "X") if score.succeeded else ("#0072B2", "o")  # Okabe-Ito
            panel.plot([score.low, score.high], [place, place], color=colour, linewidth=2)
            panel.plot([score.score], [place], marker, color=colour, markersize=7, clip_on=False)
            if score.by_design is not None:
                panel.plot([score.by_design], [place], "|", color="black", markersize=12)
        panel.axvline(found[0].chance, color="grey", linestyle="--", linewidth=1)
        panel.set_yticks(range(len(found)), [score.variant for score in found], fontsize=8)
        panel.set_xlim(-0.02, 1.02)
        panel.set_ylim(len(found) - 0.5, -0.5)
        panel.set_title(f"{attack} ({found[0].metric})", fontsize=9)
    for panel in panels[len(attacks) :]:
        panel.axis("off")
    key = "orange cross: succeeds; blue dot: fails; dashed: chance; tick: by design"
    figure.suptitle(f"Attacks on recorded views ({key})", fontsize=10)
    figure.savefig(path, dpi=110)
