"""`python -m bench crypto`: our encrypted operations beside other libraries', as ratios of one run.

Both sides of a row get the same numbers, work on one thread and take turns (timing.py); the peers are used
through their own public interface (rivals.py). A row with a bar promises at least that ratio. Times include
what a user waits for: encoding, packing, checks; not what was computed ahead or belongs to another row.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import floor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import machine, memory
from bench.bars import Bar
from bench.packing import FIXED, encrypt_packed, slots_of
from bench.rivals import Fate, Phe, TensealVector, fate_obstacle
from bench.timing import Task, take_turns
from securefed.crypto import KeyHolder, generate, load_public_key
from securefed.crypto.paillier.keys import PaillierSecretKey, generate_secret_key, prove
from securefed.errors import SettingError, require

Floats = NDArray[np.float64]

PACKAGES = ("numpy", "gmpy2", "phe", "tenseal", "fate_utils")
SLOTS = 4096


@dataclass(frozen=True)
class Size:
    """How much work a row does in one turn, and how many turns count."""

    repeats: int
    ciphertexts: int
    matrix: tuple[int, int]
    matrix_repeats: int
    million: int


FULL = Size(repeats=9, ciphertexts=32, matrix=(32, 256), matrix_repeats=3, million=1_000_000)
QUICK = Size(repeats=3, ciphertexts=8, matrix=(32, 64), matrix_repeats=2, million=100_000)


@dataclass(frozen=True)
class Row:
    """One comparison, in microseconds an item; `bar` is the least ratio promised."""

    operation: str
    scheme: str
    ours_us: float
    peer: str
    peer_us: float
    ratio: float
    bar: float | None

    @property
    def verdict(self) -> str:
        if self.bar is None:
            return ""
        return "pass" if self.ratio >= self.bar else "MISSED"


@dataclass(frozen=True)
class Case:
    """One operation of ours and who it is compared with: peer -> (its task, the bar)."""

    operation: str
    scheme: str
    ours: Task
    peers: dict[str, tuple[Task, float | None]]
    repeats: int

    def rows(self) -> Iterator[Row]:
        tasks = {"": self.ours} | {name: task for name, (task, _) in self.peers.items()}
        times = take_turns(tasks, self.repeats)
        ours = times[""]
        for name, (_, bar) in self.peers.items():
            ratio = floor(100 * times[name] / ours) / 100  # down, so that no bar is reached by rounding
            yield Row(self.operation, self.scheme, round(ours, 3), name, round(times[name], 3), ratio, bar)


def paillier_cases(size: Size, seed: int, with_fate: bool) -> Iterator[Case]:
    rng = np.random.default_rng(seed)
    phe = Phe(2048)
    secret = generate_secret_key(2048)
    holder = KeyHolder(secret)
    secret.draw(1)  # the owner's tables are part of the key
    values = rng.uniform(-1, 1, size.ciphertexts)
    phe_encrypt = Task(lambda: phe.encrypt(values), len(values))

    peers: dict[str, tuple[Task, float | None]] = {"phe": (phe_encrypt, 15)}
    if with_fate:
        fate = Fate(2048)
        peers["fate_utils"] = (Task(fate.encrypt_encoded, len(values), lambda: (fate.encode(values),)), 14)
    ours = Task(lambda: holder.encrypt(values, FIXED), len(values))
    yield Case("owner encryption, per ciphertext", "paillier-2048", ours, peers, size.repeats)

    slots = slots_of(secret)
    many = rng.uniform(-1, 1, size.ciphertexts * slots)
    ours = Task(lambda: encrypt_packed(secret, many), len(many))
    yield Case(
        "owner encryption, packed, per value",
        "paillier-2048",
        ours,
        {"phe": (phe_encrypt, 400)},
        size.repeats,
    )
    yield public_case(secret, phe_encrypt, values, size)
    yield from product_cases(secret, phe, rng, size)
    yield opening_case(holder, secret, phe, many, size)
    yield from proof_cases(size)


def proof_cases(size: Size) -> Iterator[Case]:
    """The proof that comes with a key, at the default size, beside what making a key costs."""
    secret = generate_secret_key(3072)
    public, (p, q) = secret.public, (secret._primes.p.p, secret._primes.q.p)
    blob = public.to_bytes()
    peers: dict[str, tuple[Task, float | None]] = {"phe key generation": (Task(lambda: Phe(3072), 1), None)}
    for operation, task in (
        ("proof of a key, made by its owner", Task(lambda: prove(p, q), 1)),
        ("a key that arrives, its proof checked", Task(lambda: load_public_key(blob), 1)),
    ):
        yield Case(operation, "paillier-3072", task, peers, size.matrix_repeats)


def public_case(secret: PaillierSecretKey, phe_encrypt: Task, values: Floats, size: Size) -> Case:
    """What somebody without the secret key pays."""
    few = values[: max(1, len(values) // 4)]
    ours = Task(lambda: secret.public.encrypt(few, FIXED), len(few))
    operation = "anybody's encryption, per ciphertext"
    return Case(operation, "paillier-2048", ours, {"phe": (phe_encrypt, None)}, size.repeats)


def product_cases(
    secret: PaillierSecretKey, phe: Phe, rng: np.random.Generator, size: Size
) -> Iterator[Case]:
    """A matrix of 24-bit numbers times an encrypted vector, per term. Neither side re-randomises here.

    phe is given the matrix as real numbers, as we are, and then as integers, which it multiplies faster:
    to it a real number always has 53 bits or more, and exponents that have to be aligned.
    """
    outputs, rows = size.matrix
    integers = rng.integers(-(2**24) + 1, 2**24, size.matrix)
    matrix = integers / 2**24
    values = rng.uniform(-1, 1, rows)
    encrypted = secret.encrypt(values, FIXED)
    reals = phe.encrypt(values)
    wholes = phe.encrypt_integers(FIXED.encode(values).tolist())
    as_reals = Task(lambda: phe.product(matrix.tolist(), reals), outputs * rows)
    as_integers = Task(lambda: phe.product(integers.tolist(), wholes), outputs * rows)
    peers = {"phe": (as_reals, 10.0), "phe on integers": (as_integers, None)}
    operation = f"matrix ({outputs} x {rows}, 24-bit) times vector, per term"
    ours = Task(lambda: matrix @ encrypted, outputs * rows)
    yield Case(operation, "paillier-2048", ours, peers, size.matrix_repeats)


def opening_case(holder: KeyHolder, secret: PaillierSecretKey, phe: Phe, many: Floats, size: Size) -> Case:
    """The key-holder's decryption and the requester's unmasking together, against decryption alone."""

    def fresh() -> tuple[object, ...]:
        """A key-holder opens nothing twice."""
        return encrypt_packed(secret, many).mask()

    ours = Task(lambda masked, mask: mask.remove(holder.open(masked)), len(many), fresh)
    numbers = phe.encrypt(many[: size.ciphertexts])
    peer = Task(lambda: phe.decrypt(numbers), len(numbers))
    return Case("opening, packed, per value", "paillier-2048", ours, {"phe": (peer, 25)}, size.repeats)


def ckks_cases(size: Size, seed: int) -> Iterator[Case]:
    """Products with plain numbers, encoding of those included; ours do not rescale.

    TenSEAL's are entry by entry. Ours are added up, as runs need them, and two outputs share a ciphertext.
    """
    rng = np.random.default_rng(seed)
    repeats = 11 * size.repeats  # a turn takes a millisecond, and is the more easily disturbed
    values, factors = rng.uniform(-1, 1, SLOTS), rng.uniform(-1, 1, (2, SLOTS))
    encrypted = generate("ckks").encrypt(values, FIXED)
    ours = Task(lambda: factors @ encrypted, 2 * SLOTS)

    few = slice(size.ciphertexts)
    by_paillier = generate_secret_key(2048).encrypt(values[few], FIXED)
    paillier = Task(lambda: factors[:, few] @ by_paillier, 2 * size.ciphertexts)
    yield Case("product, per slot", "ckks-4096", ours, {"our paillier-2048": (paillier, 100)}, repeats)

    listed = factors[0].tolist()
    usual, short = TensealVector(values), TensealVector(values, TensealVector.SHORTEST)
    peers: dict[str, tuple[Task, float | None]] = {
        "TenSEAL v * list": (Task(lambda: usual.times(listed), 1), 2),
        "TenSEAL, 3 primes": (Task(lambda: short.times(listed), 1), None),
    }
    ours = Task(lambda: factors @ encrypted, 2)
    operation = f"product of {SLOTS} slots, no rescale"
    yield Case(operation, "ckks-4096", ours, peers, repeats)


def _bars(rows: list[Row], used: dict[str, Any]) -> list[Bar]:
    found = [
        Bar.of(f"{row.operation}, {row.scheme} beside {row.peer}", row.ratio, row.bar, "more")
        for row in rows
        if row.bar is not None
    ]
    return [*found, Bar.of("peak memory, MiB", used["peak_rss_mib"], used["limit_mib"], "less")]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the ratios (needs the extra 'plot')")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a bar is missed")


def run(args: argparse.Namespace) -> int:
    for path in (args.json, args.plot):
        if path is not None and not path.parent.is_dir():
            raise SettingError(f"{path}: there is no directory {path.parent}")
    if args.plot is not None:
        require("matplotlib", extra="plot")  # before minutes of measuring, not after
    size = QUICK if args.quick else FULL
    obstacle = fate_obstacle()
    facts = machine.describe(PACKAGES)
    for name, fact in facts.items():
        print(f"{name:<11}{fact}")
    print()
    print(HEADING)
    rows: list[Row] = []
    for cases in (paillier_cases(size, args.seed, obstacle is None), ckks_cases(size, args.seed)):
        for case in cases:
            for row in case.rows():
                rows.append(row)
                print(line(row), flush=True)
    used = memory.measure(size.million, args.seed)
    within = used["peak_rss_mib"] < used["limit_mib"]
    verdict = "pass" if within else "MISSED"
    print(
        f"\nmemory: {used['values']:,} values encrypted (packed, by the owner) in {used['seconds']} s, "
        f"peak {used['peak_rss_mib']} MiB resident, limit {used['limit_mib']} MiB: {verdict}"
    )
    if obstacle is not None:
        print(f"note: {obstacle}")
    if args.json is not None:
        report = {
            "machine": facts,
            "rows": [asdict(row) for row in rows],
            "memory": used,
            "notes": [obstacle] if obstacle else [],
            "bars": [asdict(bar) for bar in _bars(rows, used)],
        }
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    if args.plot is not None:
        draw(rows, args.plot)
    missed = [row for row in rows if row.verdict == "MISSED"]
    return 1 if args.strict and (missed or not within) else 0


TIMES = f"{'ours us':>11}  {'peer':<18}{'peer us':>11}{'ratio':>9}{'bar':>6}"
HEADING = f"{'operation':<52}{'scheme':<15}{TIMES}  verdict"


def line(row: Row) -> str:
    bar = "" if row.bar is None else f"{row.bar:g}"
    times = f"{row.ours_us:>11.2f}  {row.peer:<18}{row.peer_us:>11.2f}{row.ratio:>9.2f}{bar:>6}"
    return f"{row.operation:<52}{row.scheme:<15}{times}  {row.verdict}".rstrip()


def draw(rows: list[Row], path: Path) -> None:
    """Ratios on a logarithmic axis, with a mark at each bar."""
    figures = require("matplotlib.figure", extra="plot")
    figure = figures.Figure(figsize=(10, 0.5 * len(rows) + 1.5), layout="constrained")
    axes = figure.subplots()
    places = list(range(len(rows)))[::-1]
    axes.barh(places, [row.ratio for row in rows], color="#4878a8", height=0.6)
    for place, row in zip(places, rows, strict=True):
        axes.annotate(f" {row.ratio:.1f}x", (row.ratio, place), va="center")
        if row.bar is not None:
            axes.plot([row.bar, row.bar], [place - 0.4, place + 0.4], color="#c44e52", linewidth=2)
    axes.set_yticks(places, [f"{row.operation}\n{row.scheme} against {row.peer}" for row in rows], fontsize=8)
    axes.set_xscale("log")
    axes.set_xlim(left=0.5, right=max(row.ratio for row in rows) * 3)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("times faster than the peer, in one run (red: at least promised)")
    figure.savefig(path, dpi=120)
