"""`python -m bench blind`: blind training beside training with own gradients and beside plain, on the same
batches.

Two questions. What does a round cost that reveals nothing (`reveal="nothing"`), against one in which each
party sees its own gradient (`reveal="own-gradient"`)? And what do many local steps bring, where they cost
nothing? Same rows, batches, learning rates and start, so all three follow one trajectory; the bench checks
it.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KBinsDiscretizer, OneHotEncoder, StandardScaler

from bench import machine
from securefed import FedBCD, GeneralisedLinear, InverseSqrt, Party, RunResult
from securefed.crypto import KeyHolder, generate
from securefed.errors import DataError
from securefed.protocols.ledger import LedgerWarning

__all__ = ["Row", "add_arguments", "run"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Row:
    """One training run."""

    task: str
    scheme: str
    reveal: str
    Q: int
    rounds: int
    auc: float
    comp_seconds_per_round: float
    comp_seconds: float
    comm_seconds: float
    bytes_per_round: int
    messages_per_round: int
    ledger: str


def fit_row(
    task: str, model: GeneralisedLinear, parties: list[Party], test: list[Party], keys: dict[str, KeyHolder]
) -> tuple[Row, Floats]:
    """Train, score the held-out rows, and put it in a line."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LedgerWarning)
        model.fit(parties, keys=keys or None)
    result = model.result_
    labels = test[-1].labels
    scores = model.decision_function(test)
    row = Row(
        task,
        model.scheme,
        model.reveal if model.scheme != "plain" else "everything",
        model.algorithm.local_steps,
        result.rounds,
        round(float(roc_auc_score(labels, scores)), 4),
        round(result.computation / result.rounds, 3),
        round(result.computation, 2),
        round(result.communication, 2),
        sum(result.bytes().values()) // result.rounds,
        sum(result.messages().values()) // result.rounds,
        verdict(result),
    )
    return row, scores


def verdict(result: RunResult) -> str:
    if not result.protected:
        return "not protected"
    if not result.ledger:
        return "empty"
    worst = max(result.ledger, key=lambda entry: entry.ratio)
    return f"{worst.verdict} ({worst.ratio:.2f}, {worst.block})"


def generated(rows: int, seed: int) -> tuple[list[Party], list[Party]]:
    """50 + 50 columns; the margin is a sparse sum over both."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(rows + 2000, 100))
    weights = rng.normal(size=100) * (rng.random(100) < 0.3)
    labels = features @ weights + 2.0 * rng.normal(size=rows + 2000) > 0
    return tuple(  # type: ignore[return-value]
        [Party("shop", features[part, :50]), Party("bank", features[part, 50:], labels=labels[part])]
        for part in (slice(rows), slice(rows, None))
    )


def credit(seed: int, folder: Path) -> tuple[list[Party], list[Party], dict[str, float]]:
    """Default-Credit with local transformers: one-hot and five bins, each party on its own columns."""
    path = folder / "UCI_Credit_Card.csv"
    if not path.is_file():
        raise DataError(f"{path}: not there; SECUREFED_DATA names the folder that has UCI_Credit_Card.csv")
    table = np.genfromtxt(path, delimiter=",", names=True, deletechars="")
    names = list(table.dtype.names or ())
    labels = table[names[-1]]
    bank_names = [n for n in names if n.startswith(("PAY_", "BILL_"))]
    shop_names = ["SEX", "EDUCATION", "MARRIAGE", "LIMIT_BAL", "AGE"]
    bank, shop = (np.column_stack([table[n] for n in chosen]) for chosen in (bank_names, shop_names))
    words = {i for i, n in enumerate(bank_names) if n.startswith("PAY_") and not n.startswith("PAY_AMT")}
    order = np.random.default_rng(seed).permutation(len(labels))
    held_out, kept = order[:7500], order[7500:]
    transforms = {"bank": binned(sorted(words), bank.shape[1]), "shop": binned([0, 1, 2], shop.shape[1])}

    def parties(rows: NDArray[np.intp]) -> list[Party]:
        return [
            Party("shop", shop[rows], transform=transforms["shop"]),
            Party("bank", bank[rows], labels=labels[rows], transform=transforms["bank"]),
        ]

    joined = np.hstack([bank, shop])
    scaler = StandardScaler().fit(joined[kept])
    references: dict[str, Callable[[], Any]] = {
        "logistic regression, joined, raw columns": lambda: LogisticRegression(max_iter=2000),
        "gradient boosting, joined": lambda: HistGradientBoostingClassifier(random_state=seed),
    }
    found = {}
    for name, make in references.items():
        model = make().fit(scaler.transform(joined[kept]), labels[kept])
        scores = model.predict_proba(scaler.transform(joined[held_out]))[:, 1]
        found[name] = round(float(roc_auc_score(labels[held_out], scores)), 4)
    return parties(kept), parties(held_out), found


def binned(words: list[int], columns: int) -> Any:
    numbers = [i for i in range(columns) if i not in words]
    encode = OneHotEncoder(handle_unknown="ignore", min_frequency=50, sparse_output=False)
    bins = KBinsDiscretizer(5, encode="onehot-dense", quantile_method="averaged_inverted_cdf")
    return make_pipeline(
        ColumnTransformer([("words", encode, words), ("numbers", bins, numbers)]), StandardScaler()
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--key-bits", type=int, default=2048, help="default %(default)s")
    parser.add_argument("--batch", type=int, default=512, help="of the generated task; default %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds; default %(default)s")
    parser.add_argument("--network", default="lan", help="a profile for the clock; default %(default)s")
    default = os.environ.get("SECUREFED_DATA", ".")
    parser.add_argument("--data", type=Path, default=Path(default), help="folder of the credit data")
    parser.add_argument("--skip-credit", action="store_true", help="only the generated task")


def run(args: argparse.Namespace) -> int:
    facts = machine.describe(("numpy", "gmpy2", "scikit-learn"))
    for name, fact in facts.items():
        print(f"{name:<13}{fact}")
    print(f"{'load':<13}{os.getloadavg()[0]:.1f}\n")
    rows_kept = 2_000 if args.quick else 10_000
    batch = 64 if args.quick else args.batch
    keys = {name: generate("paillier", key_bits=args.key_bits) for name in ("shop", "bank")}
    train, test = generated(rows_kept, args.seed)
    base = GeneralisedLinear(
        scheme="paillier",
        batch_size=batch,
        rounds=args.rounds,
        learning_rate=InverseSqrt(0.3),
        allow_unstable=True,
        seed=args.seed,
    )
    base.set_params(network=args.network, key_bits=args.key_bits, l2=1e-3)
    rows: list[Row] = []
    notes: list[str] = []
    print(HEADING)
    for steps in (1, 10):
        scores = {}
        for scheme, reveal in (("plain", "nothing"), ("paillier", "own-gradient"), ("paillier", "nothing")):
            model = GeneralisedLinear(**base.get_params())
            model.set_params(algorithm=FedBCD(steps), scheme=scheme, reveal=reveal, loss_form="taylor")
            task = f"generated, batch {batch}"
            row, scores[scheme, reveal] = fit_row(
                task, model, train, test, keys if scheme == "paillier" else {}
            )
            show(rows, row)
        apart = np.abs(scores["paillier", "nothing"] - scores["plain", "nothing"]).max()
        notes.append(f"Q = {steps}: blind and plain scores differ by at most {apart:.1e}")
    by = {(row.reveal, row.Q): row for row in rows}
    ratio = by["nothing", 1].comp_seconds_per_round / by["own-gradient", 1].comp_seconds_per_round
    notes.append(f"a blind round takes {ratio:.2f} times the computation of one with own gradients (bar: 4)")
    equal = replace(by["nothing", 1], Q=10, auc=0, comp_seconds=0, comp_seconds_per_round=0, comm_seconds=0)
    ten = replace(by["nothing", 10], auc=0, comp_seconds=0, comp_seconds_per_round=0, comm_seconds=0)
    same = "the same" if equal == ten else "NOT the same"
    notes.append(f"bytes and messages of a blind round at Q = 1 and Q = 10 are {same}")
    references: dict[str, float] = {}
    if not args.skip_credit and not args.quick:
        train, test, references = credit(args.seed, args.data)
        for steps, rounds in ((1, 30), (10, 10)):
            for scheme, reveal in (("plain", "nothing"), ("paillier", "nothing")):
                if scheme == "paillier" and steps == 1:
                    continue
                model = GeneralisedLinear(**base.get_params())
                model.set_params(
                    algorithm=FedBCD(steps),
                    scheme=scheme,
                    reveal=reveal,
                    loss_form="taylor",
                    batch_size=2048,
                    rounds=rounds,
                    learning_rate=InverseSqrt(0.15),
                    l2=1e-2,
                )
                row, _ = fit_row(
                    "credit, one-hot and bins", model, train, test, keys if scheme == "paillier" else {}
                )
                show(rows, row)
        for name, value in references.items():
            notes.append(f"credit, held out: {name} {value:.4f}")
    print()
    for note in notes:
        print(note)
    if args.json is not None:
        report = {"machine": facts, "rows": [asdict(row) for row in rows], "notes": notes}
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


HEADING = (
    f"{'task':<26}{'scheme':<10}{'reveals':<14}{'Q':>3}{'R':>4}{'AUC':>8}{'s/round':>9}{'comp s':>8}"
    f"{'comm s':>8}{'KiB/round':>11}{'msgs':>6}  ledger"
)


def show(rows: list[Row], row: Row) -> None:
    rows.append(row)
    print(
        f"{row.task:<26}{row.scheme:<10}{row.reveal:<14}{row.Q:>3}{row.rounds:>4}{row.auc:>8.4f}"
        f"{row.comp_seconds_per_round:>9.2f}{row.comp_seconds:>8.1f}{row.comm_seconds:>8.2f}"
        f"{row.bytes_per_round / 1024:>11,.0f}{row.messages_per_round:>6}  {row.ledger}",
        flush=True,
    )
