"""A bank's labels serve a shop's customers of whom the bank knows nothing: federated transfer learning.

    python examples/transfer.py

The two share some people. On these the shop's columns are fitted to the bank's labels, and to what the bank's
own columns say. Afterwards the shop's other customers are scored, and the bank learns the scores. Nobody sees
a gradient or a parameter. With OwnGradient(), the paper's way, the shop could infer labels over the rounds.
The data are generated.
"""

from __future__ import annotations

import numpy as np
from sklearn.metrics import roc_auc_score

from securefed import FedBCD, Party, TransferLearner


def people(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What the bank sees of people, what the shop sees, and who defaults: both see the same two traits."""
    rng = np.random.default_rng(seed)
    traits = rng.normal(size=(count, 2))
    bank = traits @ rng.normal(size=(2, 5)) + 0.3 * rng.normal(size=(count, 5))
    shop = traits @ rng.normal(size=(2, 4)) + 0.3 * rng.normal(size=(count, 4))
    return bank, shop, traits[:, 0] + 0.5 * traits[:, 1] + 0.3 * rng.normal(size=count) > 0


def main(shared: int = 300, rounds: int = 24) -> dict[str, float]:
    bank, shop, defaulted = people(shared + 600, seed=3)
    ids = np.arange(len(bank))
    clients, customers = slice(shared + 300), np.r_[0:shared, shared + 300 : shared + 600]
    model = TransferLearner(algorithm=FedBCD(local_steps=5), rounds=rounds)
    model.fit(
        [
            Party("shop", shop[customers], ids=ids[customers]),
            Party("bank", bank[clients], labels=defaulted[clients].astype(int), ids=ids[clients]),
        ]
    )
    print(model.result_)
    print("\nwhat the shop saw:")
    for line in model.result_.seen("shop"):
        print(f"  {line}")
    strangers = slice(shared + 300, shared + 600)
    scores = model.decision_function(Party("shop", shop[strangers]))
    table = {"customers that the bank has never seen": roc_auc_score(defaulted[strangers], scores)}
    for name, value in table.items():
        print(f"\nAUC on {len(scores)} {name}: {value:.3f}")
    return table


if __name__ == "__main__":
    main()
