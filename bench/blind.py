"""`python -m bench blind`: what training costs that reveals nothing, and whether its result is right.

    release     whole default fits beside the last release's code, in turns (bench.release)
    pass        the one encrypted pass as rows and columns grow (bench.passes)
    emulation   opened parameters beside the same rounds in the clear (bench.emulation)
    round       messages, bytes and waiting of a round on a line of 50 ms
    scores      predictions; with --data the credit data, trained and scored

Work is processor seconds of all parties together, which a busy machine changes less than wall time; ratios
are taken in one run.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from bench import emulation, machine
from bench.bars import Bar, show_bars
from bench.passes import passed, slope
from bench.release import beside_release
from bench.whole_fit import parties_of as generated
from securefed import Blind, FedBCD, GeneralisedLinear, Party, RunResult, Simulation
from securefed.errors import DataError
from securefed.protocols.agreement import Agreement
from securefed.protocols.loop import Round
from securefed.protocols.own_gradient.ledger import LedgerWarning
from securefed.transport.message import Network
from securefed.transport.message import Path as Clock

GROWTH = 1.05
"""The largest exponent with rows that is promised."""
TRIP = 0.05
LINE = Network("50 ms", 100e6, TRIP / 2)
"""100 Mbit/s; a message takes half of a round trip."""
ROUND_BYTES = 5000.0


def fitted(
    parties: list[Party], scheme: str, rounds: int, *, score_ledger: str = "refuse", **more: Any
) -> tuple[float, RunResult, GeneralisedLinear]:
    """Processor seconds, the result and the model of a blind run without a holdout."""
    protection = Blind(scheme=scheme, key_bits=2048, score_ledger=score_ledger)
    settings: dict[str, Any] = {"algorithm": FedBCD(10), "simulation": Simulation(engine="serial")}
    model = GeneralisedLinear(rounds=rounds, holdout=0, protection=protection, **settings | more)
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LedgerWarning)
        model.fit(parties)
    return time.process_time() - began, model.result_, model


@dataclass(frozen=True)
class RoundRow:
    """A round on a line: what both parties send, and how long they wait for it."""

    rows: int
    columns: str
    messages: float
    bytes: float
    seconds: float
    """Communication on the critical path."""

    @property
    def trips(self) -> float:
        return self.seconds / TRIP

    def bars(self) -> list[Bar]:
        shape = f"{self.rows:,} x {self.columns}"
        note = f"{self.messages:g} messages, {1000 * self.seconds:.1f} ms of waiting; both send at once"
        return [
            Bar.of(f"a round on a line of 50 ms, round trips, {shape}", self.trips, 1.0, "less", note),
            Bar.of(f"a round, bytes of both parties, {shape}", self.bytes, ROUND_BYTES, "less"),
        ]


class Timed(GeneralisedLinear):
    """Notes its label party's clock after each round."""

    @contextmanager
    def _bar(self, agreement: Agreement) -> Iterator[Callable[[Round], None]]:
        self.clocks: list[Clock] = []

        def on_round(state: Round) -> None:
            state.link.settle()
            self.clocks.append(state.link.path)

        yield on_round


def round_on_line(rows: int, seed: int) -> RoundRow:
    """Rounds of a default run: from the second one on nothing else is under way."""
    model = Timed(holdout=0, simulation=Simulation(engine="serial", network=LINE, progress=False))
    result = model.fit(generated(rows, 50, 50, seed)).result_
    waited = model.clocks[-1].communication - model.clocks[1].communication
    return RoundRow(
        rows,
        "50+50",
        sum(result.messages().values()) / result.rounds,
        sum(result.bytes().values()) / result.rounds,
        waited / (result.rounds - 2),
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
    fitted = [splines().fit(table[names].iloc[order[7500:]]) for names in (shop_names, bank_names)]

    def parties(rows: NDArray[np.intp]) -> list[Party]:
        shop = fitted[0].transform(table[shop_names].iloc[rows])
        bank = fitted[1].transform(table[bank_names].iloc[rows])
        return [Party("shop", shop), Party("bank", bank, labels=labels[rows])]

    return parties(order[7500:]), parties(order[:7500])


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
    parser.add_argument("--turns", type=int, help="of both codes; default 5, with --quick 1")
    default = os.environ.get("SECUREFED_DATA", ".")
    parser.add_argument("--data", type=Path, default=Path(default), help="folder of the credit data")


def run(args: argparse.Namespace) -> int:
    facts = machine.describe(("numpy", "gmpy2", "scikit-learn"))
    for name, fact in facts.items():
        print(f"{name:<13}{fact}")
    print(f"{'load':<13}{os.getloadavg()[0]:.1f}")
    bars: list[Bar] = []
    report: dict[str, Any] = {"machine": facts}
    for part in (_release, _growth, _emulation, _rounds, _schemes, _scores):
        found, judged = part(args)
        report |= found
        bars += judged
    if not args.quick:
        try:
            bars += _credit(args)
        except DataError as error:
            bars.append(Bar.unmeasured("Default-Credit, held-out AUC", 0.775, "more", str(error)))
    show_bars(bars)
    if args.json is not None:
        report["bars"] = [asdict(bar) for bar in bars]
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


Found = tuple[dict[str, Any], list[Bar]]


def _release(args: argparse.Namespace) -> Found:
    print("\nwhole default fits, 50+50 columns, both parties, beside the last release")
    print(f"{'':>8}{'ours':>31}{'release':>33}")
    print(f"{'rows':>8}{'cpu s':>9}{'MB':>8}{'msgs':>6}{'AUC':>8}{'cpu s':>11}{'MB':>8}{'msgs':>6}{'AUC':>8}")
    rows, bars = [], []
    turns = args.turns or (1 if args.quick else 5)
    try:
        for row in beside_release((512,) if args.quick else (512, 4096), turns, args.seed):
            print(
                f"{row.rows:>8,}{row.cpu_s:>9.2f}{row.bytes / 1e6:>8.1f}{row.messages:>6}{row.metric:>8.4f}"
                f"{row.release_cpu_s:>11.2f}{row.release_bytes / 1e6:>8.1f}{row.release_messages:>6}"
                f"{row.release_metric:>8.4f}",
                flush=True,
            )
            rows.append(row.to_dict())
            bars += row.bars()
    except OSError as error:
        bars.append(Bar.unmeasured("release / ours, whole default fit", 8.0, "more", str(error)))
    return {"release": rows}, bars


def _growth(args: argparse.Namespace) -> Found:
    """The pass with rows and with columns, and the whole run with columns."""
    print("\nthe pass alone, both parties")
    print(f"{'rows':>9}{'columns':>10}{'cpu s':>9}{'MB':>9}{'msgs':>6}")
    passed(512, 5, 5, args.seed)  # tables that are made once
    sizes = (8_192, 32_768) if args.quick else (8_192, 32_768, 131_072)
    widths = (25, 100) if args.quick else (10, 25, 50, 100, 200, 300)
    by_rows = [passed(rows, 50, 50, args.seed) for rows in sizes]
    by_columns = [passed(4096, width, width, args.seed) for width in widths]
    for each in (*by_rows, *by_columns):
        shape = f"{each.left}+{each.right}"
        print(
            f"{each.rows:>9,}{shape:>10}{each.cpu_s:>9.2f}{each.bytes / 1e6:>9.1f}{each.messages:>6}",
            flush=True,
        )
    whole = [fitted(generated(4096, width, width, args.seed), "ckks", 24)[0] for width in widths]
    many = [each.columns for each in by_columns]
    exponents = {
        "pass, rows": slope(sizes, [each.cpu_s for each in by_rows]),
        "pass, columns": slope(many, [each.cpu_s for each in by_columns]),
        "pass, columns, bytes": slope(many, [each.bytes for each in by_columns]),
        "24 rounds with their pass, columns": slope(many, whole),
        "the same, the two widest": slope(many[-2:], whole[-2:]),
    }
    exponents = {name: round(value, 3) for name, value in exponents.items()}
    for name, value in exponents.items():
        print(f"exponent, {name}: {value:.2f}")
    note = f"the pass, processor time, {sizes[0]:,} to {sizes[-1]:,} rows x 50+50; rounds do not read rows"
    bar = Bar.of("growth with rows, exponent", exponents["pass, rows"], GROWTH, "less", note)
    table = [asdict(each) for each in (*by_rows, *by_columns)]
    seconds = dict(zip(map(str, widths), whole, strict=True))
    return {"passes": table, "whole_by_columns": seconds, "exponents": exponents}, [bar]


def _emulation(args: argparse.Namespace) -> Found:
    print("\nopened parameters beside the same rounds in the clear")
    print(f"{'scheme':<10}{'schedule':<11}{'K':>3}{'outputs':>9}{'difference':>12}{'largest':>9}{'cpu s':>8}")
    found = []
    for case in emulation.cases(quick=args.quick):
        each = emulation.measured(case, args.seed)
        found.append(each)
        print(
            f"{case.scheme:<10}{case.schedule:<11}{case.parties:>3}{case.outputs:>9}{each.difference:>12.1e}"
            f"{each.largest:>9.2f}{each.cpu_s:>8.2f}",
            flush=True,
        )
    return {"emulation": [each.to_dict() for each in found]}, emulation.bars(found)


def _rounds(args: argparse.Namespace) -> Found:
    found = [round_on_line(rows, args.seed) for rows in (512, 4096)]
    print("\na round over the network, round trip of 50 ms")
    for row in found:
        print(
            f"  {row.rows:,} x {row.columns}: {row.messages:g} messages, {row.bytes:,.0f} bytes,"
            f" {1000 * row.seconds:.1f} ms of waiting",
            flush=True,
        )
    return {"rounds": [asdict(row) for row in found]}, found[0].bars()


def _schemes(args: argparse.Namespace) -> Found:
    """Both schemes, a whole run; Paillier is for tables of some thousand rows."""
    print("\na run of 24 rounds by scheme")
    table = []
    rows, width = (32, 5) if args.quick else (512, 10)
    for scheme in ("ckks", "paillier"):
        cpu, result, _ = fitted(generated(rows, width, width, args.seed), scheme, 24)
        sent, messages = sum(result.bytes(None).values()), sum(result.messages(None).values())
        table.append({"scheme": scheme, "rows": rows, "cpu_s": cpu, "bytes": sent, "messages": messages})
        print(
            f"  {scheme:<9}{rows:,} x {width}+{width}: {cpu:.2f} processor s, {sent / 1e6:.1f} MB,"
            f" {messages} messages",
            flush=True,
        )
    return {"schemes": table}, []


def _scores(args: argparse.Namespace) -> Found:
    count = 1000 if args.quick else 10_000
    _, _, model = fitted(generated(512, 50, 50, args.seed), "ckks", 1)
    rows = generated(count, 50, 50, args.seed + 1)
    rows[-1].labels = None
    began = time.process_time()
    model.decision_function(rows)
    seconds = time.process_time() - began
    name = f"blind scores of {count:,} rows x 50+50, s"
    return {}, [Bar.of(name, seconds, 5.0, "less", "processor seconds")]


def _credit(args: argparse.Namespace) -> list[Bar]:
    train, test = credit(args.seed, args.data)
    began = time.perf_counter()
    seconds, result, model = fitted(train, "ckks", 12, algorithm=FedBCD(20), l2=1e-4, score_ledger="off")
    scores = model.decision_function(test)
    wall = time.perf_counter() - began
    auc = float(roc_auc_score(test[-1].labels if test[-1].labels is not None else [], scores))
    print(f"\nDefault-Credit, 22,500 rows, splines: held-out AUC {auc:.4f}, {seconds:.1f} processor seconds")
    return [
        Bar.of("Default-Credit, held-out AUC", auc, 0.775, "more", f"{result.rounds} rounds"),
        Bar.of("Default-Credit, training and 7,500 scores, s", wall, 60.0, "less", "wall, one core"),
    ]
