"""Logistic regression in SPU (SecretFlow's MPC), two parties in one process: what a step costs.

Run by a Python that has spu 0.9.5 and not by ours: `python spu_step.py ROWS.npz PROTOCOL STEPS RATE` takes
the arrays `features` and `labels` (0 and 1) and prints a line of JSON. Field FM64 and a first-order sigmoid,
as SecretFlow's own regression takes them, with the features as a cached variable, so that a protocol that
can reuses what it has made of them. A step is the difference between a run of 1 + STEPS steps and one of a
single step: what is done once for a run is left out of it, and compilation of both.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from typing import Any

import numpy as np

__all__: list[str] = []


def measure(path: str, protocol: str, steps: int, rate: float, profile: bool) -> dict[str, Any]:
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
    config.enable_pphlo_profile = profile
    names, secret = ["x", "y", "weights"], [spu.Visibility.VIS_SECRET] * 3
    compiled, _ = frontend.compile(
        frontend.Kind.JAX, train, data, {}, names, secret, lambda outputs: ["result"] * len(outputs)
    )
    simulator = simulation.Simulator(2, config)
    cpu, wall = time.process_time(), time.perf_counter()
    weights = simulator(compiled, *data)[0]
    spent = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
    return {**spent, "weights": np.asarray(weights).ravel().tolist()}


def traffic(arguments: list[str], steps: int) -> tuple[int, int]:
    """Bytes and sends of both parties. The runtime writes those of the first to its log, both ways."""
    command = [sys.executable, __file__, *arguments[:2], str(steps), arguments[3], "profile"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    pattern = r"total send bytes (\d+), recv bytes (\d+), send actions (\d+), recv actions (\d+)"
    sent, received, sends, receipts = map(int, re.findall(pattern, done.stdout + done.stderr)[-1])
    return sent + received, sends + receipts


def main() -> None:
    path, protocol, steps, rate = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    if len(sys.argv) > 5:
        measure(path, protocol, steps, rate, True)
        return
    (few_bytes, few_sends), (bytes_, sends) = (traffic(sys.argv[1:], count) for count in (1, 1 + steps))
    short = measure(path, protocol, 1, rate, False)
    long = measure(path, protocol, 1 + steps, rate, False)
    result = {
        "cpu": (long["cpu"] - short["cpu"]) / steps,
        "wall": (long["wall"] - short["wall"]) / steps,
        "bytes": (bytes_ - few_bytes) / steps,
        "messages": (sends - few_sends) / steps,
        "once_cpu": short["cpu"],
        "once_bytes": few_bytes,
        "weights": long["weights"],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
