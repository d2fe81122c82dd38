"""An insurer and a garage predict what a policy costs, and how many claims it will have: both blind.

    python examples/insurance_costs.py

The insurer knows drivers and claims, the garage the cars' condition. Costs are skewed, so the insurer takes
their logarithm; it standardises what it predicts by itself, and scores come back in its own unit. Claims are
counts of policies that ran for different times: a Poisson model whose offset, the logarithm of the exposure,
stays with the insurer. Generated data.
"""

from __future__ import annotations

import numpy as np
from sklearn.linear_model import PoissonRegressor, Ridge
from sklearn.metrics import d2_tweedie_score, r2_score
from sklearn.preprocessing import StandardScaler

from securefed import GeneralisedLinear, Labels, Party

Table = dict[str, float]


def policies(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The garage's columns, the insurer's, the logarithm of yearly costs, years insured, and claims."""
    rng = np.random.default_rng(seed)
    garage = np.column_stack([rng.gamma(3.0, 3.0, count), rng.normal(size=count), rng.poisson(1.0, count)])
    insurer = np.column_stack([rng.uniform(18, 80, count), rng.poisson(0.6, count), rng.normal(size=count)])
    risk = 0.06 * garage[:, 0] + 0.3 * garage[:, 2] + 0.5 * insurer[:, 1] - 0.012 * insurer[:, 0]
    costs, years = 5.5 + risk + 0.4 * rng.normal(size=count), rng.uniform(0.2, 2.0, count)
    return garage, insurer, costs, years, rng.poisson(years * np.exp(risk - 1.0)).astype(float)


def main(rows: int = 600, rounds: int = 15) -> tuple[Table, Table]:
    garage, insurer, costs, years, claims = policies(rows + 300, seed=2)
    train, test = slice(rows), slice(rows, None)
    both = np.hstack([garage, insurer])

    model = GeneralisedLinear("linear", rounds=rounds)
    model.fit([Party("garage", garage[train]), Party("insurer", insurer[train], labels=costs[train])])
    print(model.result_)
    found = model.predict([Party("garage", garage[test]), Party("insurer", insurer[test])])
    of_costs = {
        "both, blind": r2_score(costs[test], found),
        "all data in one place": Ridge().fit(both[train], costs[train]).score(both[test], costs[test]),
        "the insurer alone": Ridge().fit(insurer[train], costs[train]).score(insurer[test], costs[test]),
    }
    show(f"R2 of log costs on {len(found)} other policies", of_costs)
    print(f"the first costs {np.exp(costs[test][0]):,.0f}, {np.exp(found[0]):,.0f} were predicted")

    def insured(part: slice, labels: np.ndarray | None = None) -> list[Party]:
        return [
            Party("garage", garage[part]),
            Party("insurer", insurer[part], labels=labels, offset=np.log(years[part])),
        ]

    counts = GeneralisedLinear("linear", rounds=rounds, labels=Labels(family="poisson"))
    expected = counts.fit(insured(train, claims[train])).predict(insured(test))

    def joined(columns: np.ndarray) -> float:
        scaled = StandardScaler().fit(columns[train]).transform(columns)
        fit = PoissonRegressor(alpha=1e-3).fit(scaled[train], (claims / years)[train], years[train])
        return d2_tweedie_score(claims[test], fit.predict(scaled[test]) * years[test], power=1)

    of_claims = {
        "both, blind": d2_tweedie_score(claims[test], expected, power=1),
        "all data in one place": joined(both),
        "the insurer alone": joined(insurer),
    }
    show("D2 of claims, years insured as exposure", of_claims)
    return of_costs, of_claims


def show(title: str, table: Table) -> None:
    print(f"\n{title}")
    for name, value in table.items():
        print(f"  {name:<24}{value:.3f}")


if __name__ == "__main__":
    main()
