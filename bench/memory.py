"""Resident memory of large work, in a process of its own; prints one JSON object.

`python -m bench.memory COUNT SEED`: the owner of a 2048-bit Paillier key encrypts that many values, packed,
in blocks. What is kept is the ciphertexts; the peak says whether anything else grew with the count.

`python -m bench.memory step COLUMNS`: B's sums of one own-gradient local step at NUS-FTL's size under CKKS
(h = 64, 1,000 shared rows), whose multipliers would be a tensor of 64 x (COLUMNS + 1) x 1,064 numbers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from bench.packing import encrypt_packed
from securefed.crypto import FixedPoint, generate
from securefed.crypto.paillier.keys import generate_secret_key
from securefed.models import HiddenLayer
from securefed.protocols.own_gradient.openings import levelled
from securefed.protocols.own_gradient.sides import TransferSide

LIMIT_MIB = 1024


def measure(count: int, seed: int) -> dict[str, Any]:
    """Run this module in a fresh process and read what it says. Its progress bar is seen at a terminal."""
    command = [sys.executable, "-m", "bench.memory", str(count), str(seed)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, cwd=Path(__file__).parent.parent
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def peak_rss_mib(process: int | None = None) -> float:
    """The peak of a process, by default of this one; 0 once it has ended. Not getrusage, whose peak a child
    inherits from its parent.
    """
    status = Path(f"/proc/{process or 'self'}/status")
    for line in status.read_text().splitlines() if status.exists() else ():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def step(columns: int) -> None:
    rows, hidden, rng = 1000, 64, np.random.default_rng(0)
    layer, shared = HiddenLayer(columns, hidden, "tanh", seed=0), np.arange(rows)
    features, labelled = rng.normal(size=(rows, columns)), np.ones(rows, dtype=bool)
    side = TransferSide(
        layer, features, shared, labelled, None, gamma=0.05 / hidden, l2=0.0, activation_bound=1.0
    )
    encrypted = generate("ckks").encrypt(rng.uniform(-1, 1, side.peer_shape()), FixedPoint())
    before, begin = peak_rss_mib(), perf_counter()
    multipliers, _ = levelled(side.multipliers())
    masked, _ = encrypted.contract(multipliers).mask()
    result = {
        "tensor_mib": round(8 * int(np.prod(multipliers.shape)) / 2**20, 1),
        "ciphertexts": masked.ciphertexts,
        "seconds": round(perf_counter() - begin, 2),
        "rss_before_mib": round(before, 1),
        "peak_rss_mib": round(peak_rss_mib(), 1),
    }
    json.dump(result, sys.stdout)


def main(count: int, seed: int) -> None:
    values = np.random.default_rng(seed).uniform(-1, 1, count)
    secret = generate_secret_key(2048)
    before = peak_rss_mib()
    begin = perf_counter()
    encrypted = encrypt_packed(secret, values)
    result = {
        "values": count,
        "ciphertexts": len(encrypted.ciphertexts),
        "seconds": round(perf_counter() - begin, 2),
        "rss_before_mib": round(before, 1),
        "peak_rss_mib": round(peak_rss_mib(), 1),
        "limit_mib": LIMIT_MIB,
    }
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    step(int(sys.argv[2])) if sys.argv[1] == "step" else main(int(sys.argv[1]), int(sys.argv[2]))
