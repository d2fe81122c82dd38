"""Two laboratories tell three cultivars of wine apart, blind: one run, each class against the rest.

    python examples/three_classes.py

The first laboratory has six measurements, the second seven and the cultivar. Nobody sees the other's
measurements, nor any parameter; scikit-learn's bundled wine data.
"""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from securefed import GeneralisedLinear, Party


def main(rounds: int = 10) -> dict[str, float]:
    wine = load_wine()
    names = np.array(["barolo", "grignolino", "barbera"])[wine.target]
    train, test, known, expected = train_test_split(
        wine.data, names, test_size=0.3, random_state=0, stratify=names
    )
    model = GeneralisedLinear(rounds=rounds)
    model.fit([Party("chemistry", train[:, :6]), Party("colour", train[:, 6:], labels=known)])
    print(model.result_.holdout)
    for run in [model.result_]:
        print(run)
    found = model.predict([Party("chemistry", test[:, :6]), Party("colour", test[:, 6:])])
    alone = make_pipeline(StandardScaler(), LogisticRegression()).fit(train[:, 6:], known)
    joined = make_pipeline(StandardScaler(), LogisticRegression()).fit(train, known)
    table = {
        "both, blind": float(np.mean(found == expected)),
        "all data in one place": float(joined.score(test, expected)),
        "colour alone": float(alone.score(test[:, 6:], expected)),
    }
    print(f"\naccuracy on {len(test)} other wines")
    for name, value in table.items():
        print(f"  {name:<24}{value:.3f}")
    return table


if __name__ == "__main__":
    main()
