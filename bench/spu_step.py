"""One step of logistic regression in SPU (SecretFlow's MPC) under Cheetah, two parties in one process.

Run by a Python that has spu 0.9.5 and not by ours: `python spu_step.py ROWS COLUMNS` prints a line of JSON.
Field FM64 and a first-order sigmoid, as SecretFlow's own regression takes them; compilation is left out of
the time.
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


def step(features: Any, labels: Any, weights: Any) -> Any:
    predicted = 0.5 + 0.25 * (features @ weights)
    return weights - 0.1 * (features.T @ (predicted - labels)) / features.shape[0]


def measure(rows: int, columns: int, profile: bool) -> dict[str, float]:
    import spu
    import spu.utils.simulation as simulation

    rng = np.random.default_rng(0)
    data = (
        rng.normal(size=(rows, columns)).astype(np.float32),
        (rng.random(rows) > 0.5).astype(np.float32),
        np.zeros(columns, np.float32),
    )
    config = spu.RuntimeConfig()
    config.protocol, config.field = spu.ProtocolKind.CHEETAH, spu.FieldType.FM64
    config.enable_pphlo_profile = profile
    function = simulation.sim_jax(simulation.Simulator(2, config), step)
    if not profile:
        function(*data)
    cpu, wall = time.process_time(), time.perf_counter()
    found = function(*data)
    off = float(np.abs(found - step(*data)).max())
    return {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall, "off": off}


def main() -> None:
    rows, columns = int(sys.argv[1]), int(sys.argv[2])
    if len(sys.argv) > 3:
        measure(rows, columns, True)
        return
    # The runtime writes its traffic to its log, one line for each kind of operation and party.
    command = [sys.executable, __file__, str(rows), str(columns), "profile"]
    log = subprocess.run(command, capture_output=True, text=True, check=True)
    sent = re.findall(r"send bytes (\d+).*send actions (\d+)", log.stdout + log.stderr)
    result = measure(rows, columns, False)
    result["bytes"] = float(sum(int(size) for size, _ in sent))
    result["messages"] = float(sum(int(actions) for _, actions in sent))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
