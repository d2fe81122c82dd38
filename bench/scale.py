"""`python -m bench scale`: what a round costs as rows, parties and workers grow.

Logistic regression with linear local models, Q = 5, all rows in every round, one scheme and way of revealing
at a time. Computation is on the critical path (parties work at once). `growth` is the slope on a log-log
scale from one row of the table to the next: 1 where twice the rows cost twice as much. Below it, what is
fixed (a ciphertext that is not full, the parameters' openings, the start of workers) still shows. A small run
goes ahead unmeasured: tables of powers are made once a key.
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from bench import machine
from securefed import FedBCD, GeneralisedLinear, Party
from securefed.crypto import KeyHolder, generate
from securefed.engine.local import cores
from securefed.protocols.ledger import LedgerWarning

__all__ = ["Case", "Row", "add_arguments", "cases", "growth", "run"]

BAR = 1.15
"""The largest growth with rows that is promised: nothing is quadratic in them."""
FORMS = {"ckks": ("ckks", "own-gradient"), "paillier": ("paillier", "own-gradient"),
         "blind": ("paillier", "nothing")}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One setting."""

    sweep: str
    form: str
    rows: int
    parties: int = 2
    workers: int = 1


@dataclass(frozen=True)
class Row:
    """One setting, measured; per round."""

    sweep: str
    form: str
    rows: int
    parties: int
    workers: int
    computation_s: float
    bytes: int
    messages: int
    growth: float | None = None


def cases(quick: bool) -> Iterator[Case]:
    sizes = {
        "ckks": (1024, 4096) if quick else (1024, 4096, 16384, 65536),
        "paillier": (128, 256) if quick else (1024, 4096, 16384),
        "blind": (128, 256) if quick else (1024, 4096, 16384),
    }
    for form, rows in sizes.items():
        yield from (Case("rows", form, number) for number in rows)
    for form in FORMS:
        number = 4096 if form == "ckks" else 128 if quick else 1024
        yield from (Case("parties", form, number, parties) for parties in ((2, 3) if quick else (2, 3, 5, 9)))
    pools = sorted({1, cores(), *(() if quick else (max(1, cores() // 2),))})
    yield from (Case("workers", "paillier", 256 if quick else 4096, workers=workers) for workers in pools)


def measure(case: Case, keys: dict[str, dict[str, KeyHolder]], seed: int, rounds: int) -> Row:
    """The mean of so many rounds."""
    scheme, reveal = FORMS[case.form]
    names = [f"p{number}" for number in range(case.parties)]
    holders = names if case.parties == 2 else ["key-holder"]
    pool = keys.setdefault(scheme, {})
    for place in range(len(pool), len(holders)):
        pool[f"k{place}"] = generate(scheme, key_bits=2048)
    given = {name: pool[f"k{place}"] for place, name in enumerate(holders)}
    model = GeneralisedLinear(
        algorithm=FedBCD(local_steps=5),
        scheme=scheme,
        reveal=reveal,
        rounds=rounds,
        key_bits=2048,
        engine=case.workers,
        allow_determined=True,
        seed=seed,
        progress=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LedgerWarning)
        model.fit(_parties(names, 32, seed), keys=given)
        result = model.fit(_parties(names, case.rows, seed), keys=given).result_
    return Row(
        **asdict(case),
        computation_s=round(result.computation / rounds, 4),
        bytes=sum(result.bytes().values()) // rounds,
        messages=sum(result.messages().values()) // rounds,
    )


def _parties(names: Sequence[str], rows: int, seed: int) -> list[Party]:
    rng = np.random.default_rng(seed)
    blocks = [rng.uniform(-1, 1, size=(rows, 10)) for _ in names]
    labels = np.sum([block[:, 0] for block in blocks], axis=0) > 0
    return [
        Party(name, block, labels=labels if name == names[-1] else None)
        for name, block in zip(names, blocks, strict=True)
    ]


def growth(before: Row, now: Row) -> float | None:
    """The exponent between two rows of one sweep and form."""
    if (before.sweep, before.form) != (now.sweep, now.form) or now.sweep == "workers":
        return None
    larger = now.rows / before.rows if now.sweep == "rows" else now.parties / before.parties
    return round(math.log(now.computation_s / before.computation_s) / math.log(larger), 2)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a bar is missed")


def run(args: argparse.Namespace) -> int:
    facts = machine.describe(("numpy", "gmpy2", "tenseal"))
    for name, fact in facts.items():
        print(f"{name:<11}{fact}")
    print("\nlogistic regression, 10 columns a party, Q = 5, one round over all rows, 2048 bits or CKKS")
    heads = ("sweep", "form", "rows", "parties", "workers", "comp s", "kB", "messages", "growth")
    print("{:<9}{:<10}{:>8}{:>9}{:>9}{:>10}{:>11}{:>10}{:>8}".format(*heads))
    keys: dict[str, dict[str, KeyHolder]] = {}
    rows: list[Row] = []
    for case in cases(args.quick):
        found = measure(case, keys, args.seed, 1 if args.quick else 3)
        if rows:
            found = replace(found, growth=growth(rows[-1], found))
        rows.append(found)
        slope = "" if found.growth is None else f"{found.growth:.2f}"
        print(
            f"{found.sweep:<9}{found.form:<10}{found.rows:>8,}{found.parties:>9}{found.workers:>9}"
            f"{found.computation_s:>10.3f}{found.bytes / 1e3:>11,.0f}{found.messages:>10}{slope:>8}",
            flush=True,
        )
    worst = max(row.growth for row in rows if row.sweep == "rows" and row.growth is not None)
    verdict = "pass" if worst <= BAR else "MISSED"
    print(f"\nlargest growth with rows {worst:.2f}, at most {BAR:g} promised: {verdict}")
    if args.json is not None:
        report = {"machine": facts, "bar": BAR, "worst_growth": worst, "rows": [asdict(row) for row in rows]}
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    return 1 if args.strict and verdict == "MISSED" else 0
