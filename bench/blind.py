"""`python -m bench blind`: what training costs that reveals nothing, under both schemes, and what it reaches.

Work is counted as processor seconds of all parties together, which a busy machine changes less than wall
time; ratios are taken in one run. "critical path" is what parties on machines of their own would wait for.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from bench import machine
from securefed import FedBCD, GeneralisedLinear, Party, RunResult
from securefed.crypto import KeyHolder, generate, key_kind
from securefed.errors import DataError
from securefed.protocols.ledger import LedgerWarning
from securefed.protocols.range_check import CHECK_EVERY

__all__ = ["Bar", "Row", "add_arguments", "run"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Row:
    """One measurement."""

    task: str
    scheme: str
    rows: int
    columns: str
    cpu_seconds_per_round: float
    critical_seconds_per_round: float
    bytes_per_round: int
    messages_per_round: int
    setup_seconds: float
    """Keys, and encoding columns once."""


@dataclass(frozen=True)
class Bar:
    name: str
    value: float
    bar: float
    better: str
    met: bool
    note: str = ""

    @classmethod
    def of(cls, name: str, value: float, bar: float, better: str, note: str = "") -> Bar:
        met = value <= bar if better == "less" else value >= bar
        return cls(name, round(value, 4), bar, better, met, note)


def generated(rows: int, left: int, right: int, seed: int) -> list[Party]:
    """Two parties; the margin is a sparse sum over both."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(rows, left + right))
    weights = rng.normal(size=left + right) * (rng.random(left + right) < 0.3)
    labels = features @ weights + 2.0 * rng.normal(size=rows) > 0
    return [Party("shop", features[:, :left]), Party("bank", features[:, left:], labels=labels)]


class Keys:
    """Made once for all measurements."""

    def __init__(self, key_bits: int) -> None:
        self._bits, self._made = key_bits, {}  # type: tuple[int, dict[str, dict[str, KeyHolder]]]

    def of(self, scheme: str) -> dict[str, KeyHolder]:
        kind = key_kind(scheme, "nothing")
        if kind not in self._made:
            self._made[kind] = {name: generate(kind, key_bits=self._bits) for name in ("shop", "bank")}
        return self._made[kind]


def fitted(
    parties: list[Party], keys: Keys, scheme: str, rounds: int, **more: Any
) -> tuple[float, RunResult, Any]:
    """Processor seconds, the result and the model of a blind run without a holdout."""
    settings: dict[str, Any] = {"algorithm": FedBCD(10), "engine": "serial", "network": "lan"}
    settings |= {"check_every": 1 << 62, **more}  # checks come at random: `_checks` measures them
    model = GeneralisedLinear(scheme=scheme, rounds=rounds, **settings)
    model.set_params(**{name: 0 for name in ("holdout",) if name in model.get_params()})
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LedgerWarning)
        model.fit(parties, keys=keys.of(scheme))
    return time.process_time() - began, model.result_, model


def measured(task: str, parties: list[Party], keys: Keys, scheme: str, rounds: int, **more: Any) -> Row:
    """A round, as the difference of two runs: keys and encodings are made in both."""
    few = [party.take(np.arange(16)) for party in parties]
    fitted(few, keys, scheme, 1, **more)  # tables that a key makes once
    once, short, _ = fitted(parties, keys, scheme, 1, **more)
    whole, result, _ = fitted(parties, keys, scheme, 1 + rounds, **more)
    columns = "+".join(str(np.shape(party.features)[1]) for party in parties)
    return Row(
        task,
        scheme,
        parties[0].rows,
        columns,
        round((whole - once) / rounds, 4),
        round((result.path.total - short.path.total) / rounds, 4),
        sum(result.bytes().values()) // (1 + rounds),
        sum(result.messages().values()) // (1 + rounds),
        round(once, 3),
    )


def credit(seed: int, folder: Path) -> tuple[list[Party], list[Party]]:
    """Default-Credit, 22,500 rows to train and 7,500 held out; splines and one-hot by each party itself."""
    path = folder / "UCI_Credit_Card.csv"
    if not path.is_file():
        raise DataError(f"{path}: not there; SECUREFED_DATA names the folder that has UCI_Credit_Card.csv")
    import pandas as pd

    table = pd.read_csv(path)
    labels = table.iloc[:, -1].to_numpy()
    shop_names = ["SEX", "EDUCATION", "MARRIAGE", "LIMIT_BAL", "AGE"]
    bank_names = [name for name in table.columns[1:-1] if name not in shop_names]
    order = np.random.default_rng(seed).permutation(len(labels))

    def parties(rows: NDArray[np.intp], transform: Any) -> list[Party]:
        shop, bank = table[shop_names].iloc[rows], table[bank_names].iloc[rows]
        return [
            Party("shop", shop, transform=transform),
            Party("bank", bank, labels=labels[rows], transform=transform),
        ]

    return parties(order[7500:], splines()), parties(order[:7500], None)


def splines() -> Any:
    from sklearn.compose import make_column_transformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, SplineTransformer, StandardScaler

    def few(table: Any) -> list[str]:
        return [name for name in table.columns if table[name].nunique() <= 12]

    def many(table: Any) -> list[str]:
        return [name for name in table.columns if table[name].nunique() > 12]

    words = OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=50, sparse_output=False)
    numbers = SplineTransformer(5, degree=2, knots="quantile", extrapolation="constant")
    return make_pipeline(make_column_transformer((words, few), (numbers, many)), StandardScaler())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--key-bits", type=int, default=2048, help="of Paillier; default %(default)s")
    default = os.environ.get("SECUREFED_DATA", ".")
    parser.add_argument("--data", type=Path, default=Path(default), help="folder of the credit data")


def run(args: argparse.Namespace) -> int:
    facts = machine.describe(("numpy", "gmpy2", "scikit-learn"))
    for name, fact in facts.items():
        print(f"{name:<13}{fact}")
    print(f"{'load':<13}{os.getloadavg()[0]:.1f}\n\n{HEADING}")
    keys, rows, bars = Keys(args.key_bits), [], []  # type: tuple[Keys, list[Row], list[Bar]]
    small = 128 if args.quick else 512
    task = generated(small, 50, 50, args.seed)
    ratios = []
    for _ in range(1 if args.quick else 3):  # in turns: a busy moment slows both
        ours = show(rows, measured("a round", task, keys, "ckks", 10))
        theirs = show(rows, measured("a round", task, keys, "paillier", 1))
        ratios.append(theirs.cpu_seconds_per_round / ours.cpu_seconds_per_round)
    ratio = median(ratios)
    note = f"{small} rows x 50+50, Paillier-{args.key_bits} against RLWE, processor seconds, median of turns"
    bars.append(Bar.of("Paillier / RLWE, a round", ratio, 40.0, "more", note))
    if not args.quick:
        large = show(rows, measured("a round", generated(8192, 50, 50, args.seed), keys, "ckks", 3))
        whole, note = large.critical_seconds_per_round, "both parties at work at once, a core each, and a LAN"
        bars.append(Bar.of("8,192 rows x 50+50, a round, wall s", whole, 1.0, "less", note))
        wide = show(rows, measured("one pass", generated(100_000, 30, 300, args.seed), keys, "ckks", 1))
        whole = wide.critical_seconds_per_round
        bars.append(Bar.of("100,000 rows x 30+300, one pass, s", whole, 30.0, "less", "critical path"))
        bars += _credit(args, keys)
        bars.append(_checks(generated(8192, 50, 50, args.seed), keys, "ckks", large, 3))
    bars.append(_checks(task, keys, "ckks", ours, 6))
    bars.append(_checks(task, keys, "paillier", theirs, 1))
    bars += _scores(args, keys)
    print()
    for bar in bars:
        print(f"{'met   ' if bar.met else 'MISSED'}  {bar.name}: {bar.value:g} (bar {bar.bar:g}) {bar.note}")
    if args.json is not None:
        report = {"machine": facts, "rows": [asdict(row) for row in rows], "bars": [asdict(b) for b in bars]}
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


def _credit(args: argparse.Namespace, keys: Keys) -> list[Bar]:
    train, test = credit(args.seed, args.data)
    began = time.perf_counter()
    seconds, result, model = fitted(train, keys, "ckks", 12, algorithm=FedBCD(20), l2=1e-4)
    scores = model.decision_function(test)
    wall = time.perf_counter() - began
    auc = float(roc_auc_score(test[-1].labels if test[-1].labels is not None else [], scores))
    print(f"\nDefault-Credit, 22,500 rows, splines: held-out AUC {auc:.4f}, {seconds:.1f} processor seconds")
    return [
        Bar.of("Default-Credit, held-out AUC", auc, 0.775, "more", f"{result.rounds} rounds"),
        Bar.of("Default-Credit, training and 7,500 scores, s", wall, 60.0, "less", "wall, one core"),
    ]


def _checks(parties: list[Party], keys: Keys, scheme: str, row: Row, rounds: int) -> Bar:
    """What checks of key-holders add to a round at the default rate: half of all arrays are checked here."""
    seconds, result, _ = fitted(parties, keys, scheme, 1 + rounds, check_every=2)
    without, _, _ = fitted(parties, keys, scheme, 1 + rounds)
    messages = result.messages()
    each = (seconds - without) / max(1, messages["range-check"])
    added = each * messages["range-choice"] / (1 + rounds) / CHECK_EVERY
    note = f"one array in {CHECK_EVERY}, {1000 * each:.0f} ms a check; {row.rows:,} rows x {row.columns}"
    return Bar.of(
        f"checks of key-holders, share of a round, {scheme}",
        added / row.cpu_seconds_per_round,
        0.1,
        "less",
        note,
    )


def _scores(args: argparse.Namespace, keys: Keys) -> list[Bar]:
    count = 1000 if args.quick else 10_000
    _, _, model = fitted(generated(512, 50, 50, args.seed), keys, "ckks", 1)
    rows = generated(count, 50, 50, args.seed + 1)
    rows[-1].labels = None
    began = time.process_time()
    model.decision_function(rows)
    seconds = time.process_time() - began
    return [Bar.of(f"blind scores of {count:,} rows x 50+50, s", seconds, 5.0, "less", "processor seconds")]


HEADING = (
    f"{'task':<12}{'scheme':<10}{'rows':>8}{'columns':>10}{'cpu s/round':>13}{'critical s':>12}"
    f"{'KiB/round':>12}{'msgs':>6}{'setup s':>9}"
)


def show(rows: list[Row], row: Row) -> Row:
    rows.append(row)
    print(
        f"{row.task:<12}{row.scheme:<10}{row.rows:>8,}{row.columns:>10}{row.cpu_seconds_per_round:>13.3f}"
        f"{row.critical_seconds_per_round:>12.3f}{row.bytes_per_round / 1024:>12,.0f}"
        f"{row.messages_per_round:>6}{row.setup_seconds:>9.2f}",
        flush=True,
    )
    return row
