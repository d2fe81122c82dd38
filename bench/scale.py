"""`python -m bench scale`: what a blind run costs as rows, columns, classes, parties and workers grow.

Logistic regression, Q = 5, a whole training of 24 rounds, every setting in a process of its own that holds
all its parties (bench.scale_case). Engines are compared by the pass alone, which is what workers share. Work
is processor seconds of all parties together, which a busy machine changes less than wall time; a second of it
takes half a second on two free cores. `growth` is the exponent from one row of the table to the next: 1 where
twice the rows cost twice as much; below it, what is fixed (keys, prepared rounds) still shows. The projection
at the end is computed from the fits, and no measurement.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from bench import machine, scale_parties
from bench.bars import Bar, show_bars
from bench.plots import COLOURS, MARKERS, canvas
from bench.scale_case import Case, Row, measured
from securefed.engine.processes import cores
from securefed.errors import require

GROWTH = 1.05
"""The largest exponent with rows that is promised."""
FITTED_FROM = 8192
"""Rows from which on the pass is most of the work, and an exponent says something."""
PROCESSES, RAY = 1.6, 1.25
"""Two processes beside one, at least; Ray beside processes, at most."""
CLUSTER = {"parties": 2, "cores_a_party": 64, "mbit_s": 1000.0}
PROJECTED = (100_000_000, 200)


def cases(quick: bool, most_rows: int = 1_000_000) -> Iterator[Case]:
    for rows in (1_000, 8_192, 24_576) if quick else (1_000, 10_000, 100_000, 1_000_000):
        if rows <= most_rows:
            yield Case("rows", "ckks", rows, (10, 10) if quick else (50, 50))
    for rows in (64, 128) if quick else (256, 1024):
        yield Case("rows", "paillier", rows, (10, 10))
    size = min(most_rows, 2_048 if quick else 10_000)
    for columns in (10, 40) if quick else (10, 50, 100, 300):
        yield Case("columns", "ckks", size, (columns, columns))
    for classes in (2, 3) if quick else (2, 3, 5, 10):
        yield Case("classes", "ckks", size, (10, 10), classes=classes)
    for parties in (2, 3) if quick else (2, 3, 5, 9, 17):
        yield Case("parties", "ckks", size, (10,) * parties)
    if not quick and most_rows >= 100_000:
        yield Case("shape", "ckks", 100_000, (30, 300))
    for workers in (1, max(2, cores())):
        most = min(most_rows, 32_768 if quick else 1_000_000)
        yield Case("workers", "ckks", most, (50, 50), workers=workers)
    for workers in (1, max(2, cores())):
        yield Case("workers", "paillier", 64 if quick else 512, (10, 10), workers=workers)
    if not quick and find_spec("ray") is not None:
        several = max(2, cores())
        yield Case("workers", "ckks", min(most_rows, 1_000_000), (50, 50), workers=several, engine="ray")
        yield Case("workers", "paillier", 512, (10, 10), workers=several, engine="ray")


def quantity(case: Case) -> int:
    """What grows in a sweep."""
    if case.sweep == "columns":
        return sum(case.columns)
    if case.sweep == "classes":
        return case.classes if case.classes > 2 else 1  # outputs of the model, one for two classes
    return {"rows": case.rows, "parties": case.parties}.get(case.sweep, case.workers)


def growth(before: Row, now: Row) -> float | None:
    """The exponent between two rows of one sweep and scheme."""
    kind = (before.case.sweep, before.case.scheme)
    if kind != (now.case.sweep, now.case.scheme) or now.case.sweep in ("workers", "shape"):
        return None
    larger = quantity(now.case) / quantity(before.case)
    return round(float(np.log(now.cpu_s / before.cpu_s) / np.log(larger)), 3)


def chosen(rows: Sequence[Row], sweep: str, scheme: str = "ckks") -> list[Row]:
    return [row for row in rows if (row.case.sweep, row.case.scheme) == (sweep, scheme)]


def exponent(rows: Sequence[Row], value: str = "cpu_s") -> float | None:
    """Of a straight line through the logarithms."""
    if len(rows) < 2:
        return None
    sizes = np.log([quantity(row.case) for row in rows])
    slope, _ = np.polyfit(sizes, np.log([max(getattr(row, value), 1e-9) for row in rows]), 1)
    return round(float(slope), 3)


def projection(rows: Sequence[Row]) -> dict[str, Any] | None:
    """Hours and GiB of a pass over far more rows, on a cluster of a stated size: computed, not measured."""
    by_rows, by_columns = chosen(rows, "rows"), chosen(rows, "columns")
    large = [row for row in by_rows if row.case.rows >= FITTED_FROM]
    slope, wider = exponent(large), exponent(by_columns)
    if slope is None or wider is None:
        return None
    last, (people, columns) = large[-1], PROJECTED
    more = max(1.0, slope)  # nobody is promised that more rows cost less each
    cpu = last.cpu_s * (people / last.case.rows) ** more * (columns / sum(last.case.columns)) ** wider
    sent = last.bytes * people / last.case.rows
    seconds = cpu / (CLUSTER["parties"] * CLUSTER["cores_a_party"] * efficiency(rows))
    return {
        "what": "computed from the fits below, not measured",
        "rows": people,
        "columns": columns,
        **CLUSTER,
        "cpu_hours": round(cpu / 3600, 1),
        "hours": round(seconds / 3600, 2),
        "gib_sent": round(sent / 2**30, 1),
        "hours_sending": round(sent * 8 / (CLUSTER["mbit_s"] * 1e6) / 3600, 2),
    }


def efficiency(rows: Sequence[Row], scheme: str = "ckks") -> float:
    """What each of several workers adds beside one alone."""
    found = by_processes(rows, scheme)
    if len(found) != 2:
        return 1.0
    one, several = (row.critical_s or row.cpu_s for row in found)
    return min(1.0, one / several / found[-1].case.workers)


def by_processes(rows: Sequence[Row], scheme: str) -> list[Row]:
    """One process, and several."""
    return [row for row in chosen(rows, "workers", scheme) if row.case.engine == "processes"]


def bars(rows: Sequence[Row]) -> list[Bar]:
    """What was promised, as far as it was measured; load as it is said beside."""
    load = f"load {os.getloadavg()[0]:.1f}"
    made: list[Bar] = []
    large = [row for row in chosen(rows, "rows") if row.case.rows >= FITTED_FROM]
    slope = exponent(large)
    if slope is not None:
        made.append(Bar.of("growth with rows, exponent", slope, GROWTH, "less", "processor seconds"))
    for scheme in ("ckks", "paillier"):
        found = by_processes(rows, scheme)
        if len(found) != 2:
            continue
        one, several = found
        note = f"the pass, {one.case.rows:,} rows, processor seconds on the critical path; {load}"
        ratio = (one.critical_s or one.cpu_s) / (several.critical_s or several.cpu_s)
        name = f"{several.case.workers} processes beside one, {scheme}"
        made.append(Bar.of(name, ratio, PROCESSES, "more", note))
        for row in chosen(rows, "workers", scheme):
            if row.case.engine == "ray":
                note = f"the pass, {row.case.rows:,} rows, wall time after start-up; {load}"
                ratio = row.wall_s / several.wall_s
                made.append(Bar.of(f"Ray beside processes, {scheme}", ratio, RAY, "less", note))
    return made


def draw(rows: Sequence[Row], path: Path) -> None:
    """Log-log: processor seconds and peak memory against what grows."""
    figure, axes = canvas(2)
    values = (("cpu_s", "processor seconds, all parties"), ("peak_mib", "peak memory, MiB"))
    for axis, (value, name) in zip(axes, values, strict=True):
        for place, sweep in enumerate(("rows", "columns", "classes", "parties")):
            found = chosen(rows, sweep)
            sizes = [quantity(row.case) for row in found]
            style: dict[str, Any] = {"color": COLOURS[place], "marker": MARKERS[place]}
            axis.plot(sizes, [getattr(row, value) for row in found], label=sweep, **style)
        axis.set(xscale="log", yscale="log", xlabel="how many", ylabel=name)
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter("{x:g}")
        axis.legend()
    figure.savefig(path)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a bar is missed")
    parser.add_argument("--rows", type=int, default=1_000_000, help="at most so many; default %(default)s")
    parser.add_argument(
        "--parties",
        action="store_true",
        help="whole trainings by two party processes with files on disk, and no sweeps",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it (needs the extra 'plot')")


def run(args: argparse.Namespace) -> int:
    if args.plot is not None:
        require("matplotlib", extra="plot")
    facts = machine.describe(("numpy", "gmpy2", "tenseal"))
    facts["load"] = f"{os.getloadavg()[0]:.1f} at the beginning"
    for name, fact in facts.items():
        print(f"{name:<11}{fact}")
    if args.parties:
        return _by_parties(args, facts)
    print("\nblind logistic regression, Q = 5, 24 rounds; RLWE (ckks) or Paillier-2048")
    heads = (
        "sweep",
        "scheme",
        "rows",
        "columns",
        "classes",
        "workers",
        "cpu s",
        "wall s",
        "kB",
        "MiB",
        "growth",
    )
    print("{:<9}{:<9}{:>10}{:>12}{:>8}{:>8}{:>9}{:>9}{:>11}{:>8}{:>8}".format(*heads))
    rows: list[Row] = []
    for case in cases(args.quick, args.rows):
        found = measured(case, args.seed)
        slope = growth(rows[-1], found) if rows else None
        rows.append(found)
        width = (
            f"{case.parties}x{case.columns[0]}"
            if len(set(case.columns)) == 1
            else "+".join(map(str, case.columns))
        )
        print(
            f"{case.sweep:<9}{case.scheme:<9}{case.rows:>10,}{width:>12}{case.classes:>8}{case.workers:>8}"
            f"{found.cpu_s:>9.2f}{found.wall_s:>9.2f}{found.bytes / 1e3:>11,.0f}{found.peak_mib:>8,.0f}"
            f"{'' if slope is None else f'{slope:.2f}':>8}",
            flush=True,
        )
    fits = {
        sweep: {value: exponent(_fitted(rows, sweep), value) for value in ("cpu_s", "bytes", "peak_mib")}
        for sweep in ("rows", "columns", "classes", "parties")
    }
    print("\nfitted exponents (rows: from 8,192 on)")
    for sweep, values in fits.items():
        print(f"  {sweep:<9}" + "  ".join(f"{name} {value}" for name, value in values.items()))
    further = projection(rows)
    if further is not None:
        where = f"{CLUSTER['parties']} parties of {CLUSTER['cores_a_party']} cores, 1 Gbit/s"
        sending = f"{further['hours_sending']} h sending {further['gib_sent']} GiB"
        print(
            f"\nprojection, {further['what']}: {further['rows']:,} rows x {further['columns']} columns, "
            f"{where}: {further['hours']} h computing, {sending}"
        )
    judged = bars(rows)
    show_bars(judged)
    if args.plot is not None:
        draw(rows, args.plot)
    if args.json is not None:
        report = {
            "machine": facts,
            "rows": [row.to_dict() for row in rows],
            "exponents": fits,
            "projection": further,
            "bars": [vars(bar) for bar in judged],
        }
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    return 1 if args.strict and not all(bar.met for bar in judged) else 0


def _by_parties(args: argparse.Namespace, facts: dict[str, str]) -> int:
    shapes = ((8_192, (10, 10)),) if args.quick else scale_parties.SHAPES
    passes, judged = [], []  # type: tuple[list[dict[str, Any]], list[Bar]]
    for rows, columns in shapes:
        found = scale_parties.measure(min(rows, args.rows), columns, args.seed)
        print(
            f"\n{scale_parties.shape(found)}, two processes, a whole training: {found['seconds']:.1f} s, "
            f"{found['cpu_seconds']:.1f} processor s, {found['mb_sent']:.0f} MB sent; peak MiB "
            f"{found['peak_mib']}, the larger file {found['file_mib']:.0f} MiB"
        )
        passes.append(found)
        judged += scale_parties.bars(found)
    show_bars(judged)
    if args.json is not None:
        report = {"machine": facts, "rows": passes, "bars": [vars(bar) for bar in judged]}
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    return 1 if args.strict and not all(bar.met for bar in judged) else 0


def _fitted(rows: Sequence[Row], sweep: str) -> list[Row]:
    return [row for row in chosen(rows, sweep) if sweep != "rows" or row.case.rows >= FITTED_FROM]
