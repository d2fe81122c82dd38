"""Quality with default settings: several tables and numbers of parties, beside scikit-learn on the joined
table; and hostile tables, which have to be fitted or refused, and never silently worse than a constant.

Runs are emulated (Plain(like="blind"): what blind training trains, in the clear), and two a table encrypted;
with --encrypted all are. Three classes and more are emulated one by one, with other targets than an encrypted
run has: look at encrypted runs there. Tables come as they are, nothing is scaled by hand. Each is split into
70% for the run, which holds rows out by itself, and 30% that only this bench sees. Files are written after
every split.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine, make_classification
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression, PoissonRegressor, RidgeCV
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bench.hostile import Outcome, hostile
from bench.quality_tables import PACKAGED, available, loader
from research.data.sources import VARIABLE
from research.data.tables import read_table
from securefed import Blind, GeneralisedLinear, Labels, Party, Plain
from securefed.errors import SettingError
from securefed.labels.metrics import Answers, main_metric, measure

Array = NDArray[np.float64]
PARTIES = (2, 3, 5)
ENCRYPTED = (2, 5)
"""Numbers of parties that are run encrypted as well, on the first split."""
SHOWN = ("log loss", "Brier", "calibration error")
LOST = 0.005
"""What an encrypted run may be below the emulated one of the same split."""


@dataclass(frozen=True)
class Table:
    """A task: numbers, labels, the least that the metric may be below scikit-learn's, and the metric."""

    name: str
    loss: str
    bar: float
    load: Callable[[], tuple[Array, NDArray[Any]]]
    most_rows: int | None = None
    transform: str | None = None
    """Of every party. With one, the joined table is gradient boosting's, which bends lines by itself."""
    least: float | None = None
    """What the metric itself has to be."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Where they are not the defaults."""
    exposure: bool = False
    """Labels are counts, and the last column their exposure: the label party's offset, or a column of its own
    where no family is set.
    """


@dataclass(frozen=True)
class Row:
    """One run beside scikit-learn."""

    table: str
    parties: int
    scheme: str
    metric: str
    value: float
    joined: float
    more: dict[str, float]
    """Every other metric of the registry."""
    more_joined: dict[str, float]
    holdout: float | None
    seed: int


def _fate(name: str) -> Callable[[], tuple[Array, NDArray[Any]]]:
    """A table of FATE's examples, in two files with the same ids."""

    def load() -> tuple[Array, NDArray[Any]]:
        folder = Path(os.environ[VARIABLE])
        guest, host = (read_table(folder / f"{name}_hetero_{side}.csv") for side in ("guest", "host"))
        order = {id_: row for row, id_ in enumerate(host.column("id"))}
        rows = [order[id_] for id_ in guest.column("id")]
        own = guest.numbers([c for c in guest.header if c not in ("id", "y")])
        other = host.numbers([c for c in host.header if c != "id"])
        return np.hstack([other[rows], own]), guest.numbers(["y"])[:, 0]

    return load


def _credit() -> tuple[Array, NDArray[Any]]:
    from research.data.credit import load_credit

    found = load_credit()
    return np.hstack([found.parts["B"], found.parts["A"]]), found.labels


def _imbalanced() -> tuple[Array, NDArray[Any]]:
    table, labels = make_classification(
        4000, 20, n_informative=6, n_redundant=6, weights=[0.97], class_sep=1.2, random_state=0
    )
    return table, labels


def _five() -> tuple[Array, NDArray[Any]]:
    table, labels = make_classification(
        2000, 20, n_informative=6, n_redundant=6, weights=[0.95], class_sep=1.2, random_state=0
    )
    return table, labels


def policies(rows: int = 20_000, seed: int = 0) -> tuple[Array, NDArray[Any]]:
    """Motor policies in the manner of freMTPL2: columns, the exposure last; and claims, 7% have one."""
    rng = np.random.default_rng(seed)
    exposure = np.clip(rng.beta(1.2, 0.9, rows), 0.02, 1.0)
    malus = np.clip(50 + rng.exponential(12, rows), 50, 230)
    age, vehicle_age = rng.gamma(6, 7, rows).clip(18, 90), rng.exponential(7, rows).clip(0, 40)
    power, area, gas = rng.integers(4, 15, rows), rng.integers(0, 6, rows), rng.integers(0, 2, rows)
    density = np.log(np.clip(rng.lognormal(6, 1.8, rows), 1, 27_000))
    region = rng.normal(size=(rows, 4))
    rate = -2.6 + 0.022 * (malus - 60) + 0.75 * np.exp(-(age - 18) / 8) - 0.02 * (vehicle_age - 7)
    rate += 0.12 * (density - 6) + 0.03 * (power - 7) + 0.1 * gas + 0.05 * area
    rate += region @ [0.1, -0.15, 0.05, 0.2]
    columns = np.column_stack([malus, age, vehicle_age, density, power, gas, area, region, exposure])
    return columns, rng.poisson(exposure * np.exp(rate))


TABLES = (
    Table("breast cancer", "logistic", 0.01, lambda: load_breast_cancer(return_X_y=True)),
    Table("wine, 3 classes", "logistic", 0.01, lambda: load_wine(return_X_y=True)),
    Table("digits, 10 classes", "logistic", 0.015, lambda: load_digits(return_X_y=True)),
    Table("diabetes", "linear", 0.01, lambda: load_diabetes(return_X_y=True)),
    Table("3% positive", "logistic", 0.01, _imbalanced),
    Table("3% positive, balanced", "logistic", 0.01, _imbalanced, settings={"class_weight": "balanced"}),
    Table("5% positive", "logistic", 0.01, _five),
    Table("5% positive, all rows alike", "logistic", 0.02, _five, settings={"class_weight": None}),
    Table("5% positive, balanced", "logistic", 0.01, _five, settings={"class_weight": "balanced"}),
    Table("policies", "linear", 0.01, policies, settings={"family": "poisson"}, exposure=True),
    Table("policies, a linear model", "linear", 1.0, policies, exposure=True),
)
OF_PACKAGES = tuple(
    Table(
        f"{name} ({label})",
        "logistic" if kind in ("two", "classes") else "linear",
        0.01,
        loader(package, name, label, condition, leaks),
        10_000,
        settings={"family": "poisson"} if kind == "counts" else {},
    )
    for package, name, kind, label, condition, leaks in PACKAGED
    if available(package)
)
"""Real tables that packages ship; without the extra "tables" there are none."""
OF_FILES = (
    Table("FATE's breast", "logistic", 0.01, _fate("breast")),
    Table("FATE's vehicle, 4 classes", "logistic", 0.01, _fate("vehicle_scale")),
    Table("Default-Credit", "logistic", 0.01, _credit, 10_000),
    Table("Default-Credit, splines", "logistic", 0.01, _credit, transform="auto", least=0.775),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=3, help="splits of each table; default %(default)s")
    names = [table.name for table in TABLES + OF_PACKAGES + OF_FILES]
    parser.add_argument("--table", choices=names, metavar="NAME", help="one table, and no hostile ones")
    parser.add_argument("--emulated", action="store_true", help="no encrypted runs")
    parser.add_argument("--encrypted", action="store_true", help="no emulated runs")
    parser.add_argument("--markdown", type=Path, help="write the table of docs/choosing.md to this file")
    parser.add_argument("--hostile", type=int, default=200, help="hostile tables; default %(default)s")


def run(args: argparse.Namespace) -> int:
    there = os.environ.get(VARIABLE)
    tables: tuple[Table, ...] = TABLES + OF_PACKAGES + (() if there is None else OF_FILES)
    hostiles = 20 if args.quick else args.hostile
    if args.table is not None:
        tables, hostiles = tuple(table for table in tables if table.name == args.table), 0
        if not tables:
            raise SettingError(
                f"--table: {args.table!r} is read from the folder {VARIABLE}, which is not set"
            )
    seeds = 1 if args.quick else args.seeds
    counts = (2, 5) if args.quick else PARTIES
    rows: list[Row] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        print(f"{'table':<28}{'parties':>8} {'scheme':<7}{'metric':<10}{'ours':>8}{'joined':>8}{'gap':>9}")
        for seed in range(args.seed, args.seed + seeds):
            for table in tables:
                for count in counts:
                    rows.append(measured(table, count, seed, encrypted=args.encrypted))
                    _show(rows[-1:])
                due = seed == args.seed and not args.emulated and not args.encrypted
                due = due and (table.name == "breast cancer" or not args.quick)
                for count in ENCRYPTED[: 1 if args.quick else None] if due else ():
                    rows.append(measured(table, count, seed, encrypted=True))
                    _show(rows[-1:])
            _write(args, tables, rows, [])
        outcomes = [hostile(args.seed + number) for number in range(hostiles)]
    for outcome in sorted({each.outcome for each in outcomes}):
        print(f"hostile tables: {outcome}: {sum(each.outcome == outcome for each in outcomes)}")
    bars = bars_of(tables, rows, [each.outcome for each in outcomes])
    for bar in bars:
        word = "met" if bar["met"] else "MISSED"
        print(f"{word:<7}{bar['name']}: {bar['value']:.4f} ({bar['better']} than {bar['bar']:g} is asked)")
    _write(args, tables, rows, outcomes)
    return 0


def _write(
    args: argparse.Namespace, tables: tuple[Table, ...], rows: list[Row], outcomes: list[Outcome]
) -> None:
    if args.markdown:
        args.markdown.write_text(markdown(tables, rows))
    if args.json:
        bars = bars_of(tables, rows, [each.outcome for each in outcomes])
        report = {"rows": [asdict(row) for row in rows], "bars": bars}
        report["hostile"] = [asdict(each) for each in outcomes]
        args.json.write_text(json.dumps(report, indent=1))


def measured(table: Table, count: int, seed: int, *, encrypted: bool) -> Row:
    """One run with default settings, on raw columns."""
    numbers, labels = table.load()
    if table.most_rows is not None:
        kept = np.random.default_rng(seed).permutation(len(labels))[: table.most_rows]
        numbers, labels = numbers[kept], labels[kept]
    classes = table.loss != "linear"
    train, test = train_test_split(
        np.arange(len(labels)), test_size=0.3, random_state=seed, stratify=labels if classes else None
    )
    offset: Array | None = None
    counts = table.settings.get("family") is not None
    if table.exposure and counts:
        offset, numbers = np.log(numbers[:, -1]), numbers[:, :-1]
    apart = 1 if table.exposure and offset is None else 0
    order = np.random.default_rng(seed).permutation(numbers.shape[1] - apart)
    groups = np.array_split(order, count)
    if apart:
        groups[-1] = np.append(groups[-1], numbers.shape[1] - 1)

    def parties(rows: NDArray[np.intp], known: bool) -> list[Party]:
        return [
            Party(
                f"p{k}",
                numbers[rows][:, group],
                labels[rows] if known and k == count - 1 else None,
                transform=table.transform,
                offset=offset[rows] if offset is not None and k == count - 1 else None,
            )
            for k, group in enumerate(groups)
        ]

    # Plain opens gradients where the encrypted run opens nothing, and would be refused for that.
    protection = Blind() if encrypted else Plain(like="blind", allow_determined=True)
    model = GeneralisedLinear(table.loss, protection=protection, labels=Labels(**table.settings))
    model.fit(parties(train, True))
    new = parties(test, False)
    many = classes and len(np.unique(labels)) > 2
    held = model.result_.holdout
    facts: dict[str, Any] = {
        "table": table.name,
        "parties": count,
        "scheme": model.protection.scheme,
        "seed": seed,
    }
    facts["holdout"] = None if held is None else held.value
    own = _joined(table, numbers, labels, train, seed, None if offset is None else np.exp(offset))
    told = own(test)
    if many or classes:
        names = np.unique(labels)
        truth = np.searchsorted(names, labels[test]).astype(np.float64)
        likely = model.predict_proba(new)
        kind = "classes" if many else "two classes"
        ours, theirs = (
            Answers(
                kind,
                truth,
                None if many else score,
                each if many else each[:, 1],
                np.argmax(each, axis=1).astype(np.float64),
            )
            for each, score in (
                (likely, None if many else model.decision_function(new)),
                (told, None if many else told[:, 1]),
            )
        )
    else:
        kind = "counts" if table.exposure or counts else "numbers"
        exposure = np.asarray(table.load()[0])[test, -1] if table.exposure else None
        found = model.predict(new)
        ours, theirs = (
            Answers(
                kind,
                labels[test].astype(np.float64),
                predictions=np.maximum(each, 1e-3) if kind == "counts" else each,
                exposure=exposure,
            )
            for each in (found, told)
        )
    name = main_metric(ours).name
    first, second = measure(ours), measure(theirs)
    return Row(
        metric=name,
        value=first.pop(name),
        joined=second.pop(name),
        more=first,
        more_joined=second,
        **facts,
    )


def _joined(
    table: Table,
    numbers: Array,
    labels: NDArray[Any],
    train: NDArray[np.intp],
    seed: int,
    exposure: Array | None,
) -> Callable[[NDArray[np.intp]], Array]:
    """Fit scikit-learn's model of all columns in one place, and return what it says of rows."""
    if table.exposure or table.settings.get("family") is not None:
        whole = (
            exposure
            if exposure is not None
            else np.asarray(table.load()[0])[:, -1]
            if table.exposure
            else None
        )
        whole = np.ones(len(labels)) if whole is None else whole
        best = make_pipeline(StandardScaler(), PoissonRegressor(alpha=1e-4, max_iter=500))
        best.fit(numbers[train], (labels / whole)[train], poissonregressor__sample_weight=whole[train])
        return lambda rows: np.asarray(whole[rows] * best.predict(numbers[rows]))
    if table.loss == "linear":
        ridge = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-2, 3, 20))).fit(
            numbers[train], labels[train]
        )
        return lambda rows: np.asarray(ridge.predict(numbers[rows]))
    model: Any = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    if table.transform is not None:
        model = HistGradientBoostingClassifier(random_state=seed)
    model.fit(numbers[train], labels[train])
    return lambda rows: np.asarray(model.predict_proba(numbers[rows]))


def _show(rows: list[Row]) -> None:
    first = rows[0]
    ours, joined = (_median(rows, name) for name in ("value", "joined"))
    more = "".join(
        f"   {name} {_median(rows, name):.4f} {_median(rows, name, joined=True):.4f}"
        for name in SHOWN
        if name in first.more
    )
    print(
        f"{first.table:<28}{first.parties:>8} {first.scheme:<7}{first.metric:<10}{ours:8.4f}{joined:8.4f}"
        f"{ours - joined:+9.4f}{more}",
        flush=True,
    )


def _median(rows: list[Row], name: str, *, joined: bool = False) -> float:
    if name in ("value", "joined"):
        return float(np.median([getattr(row, name) for row in rows]))
    return float(np.median([(row.more_joined if joined else row.more)[name] for row in rows]))


def markdown(tables: tuple[Table, ...], rows: list[Row]) -> str:
    """The table of docs/choosing.md: medians over seeds of emulated runs, or of encrypted ones."""
    main = "plain" if any(row.scheme == "plain" for row in rows) else rows[0].scheme
    counts = sorted({row.parties for row in rows})
    head = ["table", "metric", "joined", *(f"{c} parties" for c in counts)]
    head += [f"{name}, joined / {counts[0]} parties" for name in SHOWN]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for table in tables:
        own = [row for row in rows if row.table == table.name and row.scheme == main]
        by = {c: [row for row in own if row.parties == c] for c in counts}
        if not own or not all(by.values()):
            continue
        first = by[counts[0]]
        cells = [table.name, first[0].metric, f"{_median(first, 'joined'):.4f}"]
        cells += [f"{_median(by[c], 'value'):.4f}" for c in counts]
        for name in SHOWN:
            there = name in first[0].more and name in first[0].more_joined
            pair = (_median(first, name, joined=True), _median(first, name)) if there else ()
            cells.append(" / ".join(f"{value:.4f}" for value in pair))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def bars_of(tables: tuple[Table, ...], rows: list[Row], outcomes: list[str]) -> list[dict[str, Any]]:
    """The worst number of parties of each table, medians over seeds; log loss; the hostile tables."""
    bars: list[dict[str, Any]] = []

    def bar(name: str, value: float, line: float, note: str = "", better: str = "less") -> None:
        met = bool(value <= line if better == "less" else value >= line)
        bars.append({"name": name, "value": value, "bar": line, "better": better, "met": met, "note": note})

    main = "plain" if any(row.scheme == "plain" for row in rows) else "ckks"
    close, sure = list[bool](), list[bool]()
    for table in tables:
        for scheme in sorted({row.scheme for row in rows}):
            own = [row for row in rows if row.table == table.name and row.scheme == scheme]
            if not own:
                continue
            by = {c: [row for row in own if row.parties == c] for c in {row.parties for row in own}}
            gaps = {c: float(np.median([row.joined - row.value for row in each])) for c, each in by.items()}
            worst = max(gaps, key=lambda c: gaps[c])
            note = f"worst of {sorted(gaps)} parties: {worst}"
            bar(f"{table.name}, {scheme}: {own[0].metric} below joined", gaps[worst], table.bar, note)
            if table.least is not None:
                lowest = min(float(np.median([row.value for row in each])) for each in by.values())
                bar(f"{table.name}, {scheme}: {own[0].metric}", lowest, table.least, better="more")
            if scheme == main and table.bar < 1.0:
                close.append(gaps[worst] <= 0.01)
            if "log loss" in own[0].more and scheme == main:
                more = max(
                    float(np.median([row.more["log loss"] - row.more_joined["log loss"] for row in each]))
                    for each in by.values()
                )
                sure.append(more <= 0.01)
    if close:
        note = f"of {len(close)}; the worst number of parties, medians over seeds"
        bar("tables more than 0.01 below the joined model", float(close.count(False)), 2.0, note)
    if sure:
        share = sure.count(True) / len(sure)
        note = f"{sure.count(True)} of {len(sure)} tables; the worst number of parties"
        bar(
            "share of tables whose log loss is within 0.01 of the joined model's",
            share,
            18 / 23,
            note,
            "more",
        )
    emulated = {(row.table, row.parties, row.seed): row.value for row in rows if row.scheme == "plain"}
    lost = {
        key: emulated[key] - row.value
        for row in rows
        if row.scheme != "plain" and (key := (row.table, row.parties, row.seed)) in emulated
    }
    if lost:
        most = max(lost, key=lambda key: lost[key])
        note = f"largest of {len(lost)} runs: {most[0]}, {most[1]} parties"
        bar("encrypted below emulated, the same split", lost[most], LOST, note)
    bad = sum(outcome not in ("fitted", "refused", "announced") for outcome in outcomes)
    if outcomes:
        bar("hostile tables: silently worse than a constant, or an error without a name", float(bad), 0.0)
    return bars
