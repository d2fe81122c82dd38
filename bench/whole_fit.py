"""One whole default fit, in a process of its own: `python -P bench/whole_fit.py ROWS LEFT RIGHT SEED`.

It imports nothing but the public interface, so that the code of an earlier release runs it too: PYTHONPATH
says whose code it measures. It prints a line of JSON. Counted is everything that `fit` does: keys, held-out
rows and their scores, transcripts. A small fit comes first, for modules and tables that load once.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import securefed
from securefed import GeneralisedLinear, Party


def parties_of(rows: int, left: int, right: int, seed: int) -> list[Party]:
    """Two parties; the margin is a sparse sum over both."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(rows, left + right))
    weights = rng.normal(size=left + right) * (rng.random(left + right) < 0.3)
    labels = features @ weights + 2.0 * rng.normal(size=rows) > 0
    return [Party("shop", features[:, :left]), Party("bank", features[:, left:], labels=labels)]


def one_core() -> dict[str, Any]:
    """Settings for one core without a progress bar, as this release and the last one spell them."""
    words: dict[str, Any] = {"engine": "serial", "progress": False}
    return {"simulation": securefed.Simulation(**words)} if hasattr(securefed, "Simulation") else words


def measure(rows: int, left: int, right: int, seed: int) -> dict[str, Any]:
    GeneralisedLinear(rounds=2, **one_core()).fit(parties_of(64, 3, 3, seed))
    parties = parties_of(rows, left, right, seed)
    began = time.process_time()
    result = GeneralisedLinear(**one_core()).fit(parties).result_
    spent = time.process_time() - began
    return {
        "cpu": spent,
        "bytes": sum(result.bytes(None).values()),
        "messages": sum(result.messages(None).values()),
        "rounds": result.rounds,
        "metric": None if result.holdout is None else result.holdout.value,
        "code": str(Path(securefed.__file__).parent),
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(measure(*map(int, sys.argv[1:5]))))
