"""Logistic regression in SPU (SecretFlow's MPC), two parties in one process: what a step costs.

Run by a Python that has spu 0.9.5 and not by ours: `python spu_step.py ROWS.npz PROTOCOL STEPS RATE` takes
the arrays `features` and `labels` (0 and 1) and prints a line of JSON. Field FM64 and a first-order sigmoid,
as SecretFlow's own regression takes them, with the features as a cached variable, so that a protocol that
can reuses what it has made of them. It prints what a run of one step takes and what one of STEPS does, each
in a process of its own, without compilation.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from typing import Any

import numpy as np


def measure(path: str, protocol: str, steps: int, rate: float) -> dict[str, Any]:
    import spu
    import spu.utils.frontend as frontend
    import spu.utils.simulation as simulation
    from spu.experimental.make_cached_var_impl import make_cached_var

    found = np.load(path)
    features, labels = found["features"].astype(np.float32), found["labels"].astype(np.float32)
    data = features, labels, np.zeros(features.shape[1], np.float32)

    def train(x: Any, y: Any, weights: Any) -> Any:
        x = make_cached_var(x)
        for _ in range(steps):
            residuals = 0.5 + 0.25 * (x @ weights) - y
            weights = weights - rate * (x.T @ residuals) / x.shape[0]
        return weights

    config = spu.RuntimeConfig()
    config.protocol, config.field = getattr(spu.ProtocolKind, protocol), spu.FieldType.FM64
    config.enable_pphlo_profile = True  # for the traffic; a few lines of log
    names, secret = ["x", "y", "weights"], [spu.Visibility.VIS_SECRET] * 3
    compiled, _ = frontend.compile(
        frontend.Kind.JAX, train, data, {}, names, secret, lambda outputs: ["result"] * len(outputs)
    )
    simulator = simulation.Simulator(2, config)
    cpu, wall = time.process_time(), time.perf_counter()
    weights = simulator(compiled, *data)[0]
    spent = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
    return {**spent, "weights": np.asarray(weights).ravel().tolist()}


def run(arguments: list[str], steps: int) -> dict[str, Any]:
    """A run in its own process, with bytes and sends of both parties."""
    command = [sys.executable, __file__, *arguments[:2], str(steps), arguments[3], "here"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return read(done.stdout + done.stderr)


def read(text: str) -> dict[str, Any]:
    """A line of JSON, and the runtime's log: what the first party sent and received."""
    lines = [line for line in text.splitlines() if line.startswith('{"cpu"')]
    found: dict[str, Any] = json.loads(lines[-1])
    pattern = r"total send bytes (\d+), recv bytes (\d+), send actions (\d+), recv actions (\d+)"
    sent, received, sends, receipts = map(int, re.findall(pattern, text)[-1])
    return {**found, "bytes": sent + received, "messages": sends + receipts}


def main() -> None:
    path, protocol, steps, rate = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    if len(sys.argv) > 5:
        print("\n" + json.dumps(measure(path, protocol, steps, rate)), flush=True)
        return
    print(json.dumps({"once": run(sys.argv[1:], 1), "whole": run(sys.argv[1:], steps)}))


if __name__ == "__main__":
    main()
