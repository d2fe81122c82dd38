"""An insurer and a garage predict what a policy costs: regression, blind, in the unit of the labels.

    python examples/insurance_costs.py

The insurer knows drivers and claims, the garage the cars' condition. Costs are skewed, so the insurer takes
their logarithm; it standardises what it predicts by itself, and scores come back in its own unit. Generated
data. (Poisson and Gamma losses with exposure, which actuaries would rather have, are not there.)
"""

from __future__ import annotations

import numpy as np
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score

from securefed import GeneralisedLinear, Party


def policies(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The garage's columns, the insurer's, and the logarithm of yearly costs."""
    rng = np.random.default_rng(seed)
    garage = np.column_stack([rng.gamma(3.0, 3.0, count), rng.normal(size=count), rng.poisson(1.0, count)])
    insurer = np.column_stack([rng.uniform(18, 80, count), rng.poisson(0.6, count), rng.normal(size=count)])
    costs = 5.5 + 0.06 * garage[:, 0] + 0.3 * garage[:, 2] + 0.5 * insurer[:, 1] - 0.012 * insurer[:, 0]
    return garage, insurer, costs + 0.4 * rng.normal(size=count)


def main(rows: int = 600, rounds: int = 15) -> dict[str, float]:
    garage, insurer, costs = policies(rows + 300, seed=2)
    train, test = slice(rows), slice(rows, None)
    model = GeneralisedLinear("linear", rounds=rounds)
    model.fit([Party("garage", garage[train]), Party("insurer", insurer[train], labels=costs[train])])
    print(model.result_)
    found = model.predict([Party("garage", garage[test]), Party("insurer", insurer[test])])
    both = np.hstack([garage, insurer])
    table = {
        "both, blind": r2_score(costs[test], found),
        "all data in one place": Ridge().fit(both[train], costs[train]).score(both[test], costs[test]),
        "the insurer alone": Ridge().fit(insurer[train], costs[train]).score(insurer[test], costs[test]),
    }
    print(f"\nR2 of log costs on {len(found)} other policies")
    for name, value in table.items():
        print(f"  {name:<24}{value:.3f}")
    print(f"the first costs {np.exp(costs[test][0]):,.0f}, {np.exp(found[0]):,.0f} were predicted")
    return table


if __name__ == "__main__":
    main()
