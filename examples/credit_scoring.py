"""A shop and a bank score credit together, and neither sees the other's columns, labels or even its own
gradients.

    python examples/credit_scoring.py

Two parties, blind training under Paillier: the model stays encrypted for the whole training. The data are
generated, so that nothing has to be downloaded; with the real Default-Credit file, see `python -m bench
blind`.
"""

from __future__ import annotations

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import KBinsDiscretizer, StandardScaler

from securefed import Blind, FedBCD, GeneralisedLinear, Party


def people(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What the shop knows, what the bank knows, and who defaulted: not linear, and in need of both."""
    rng = np.random.default_rng(seed)
    shop, bank = rng.normal(size=(count, 4)), rng.normal(size=(count, 5))
    risk = 1.2 * shop[:, 0] - 1.5 * np.abs(shop[:, 1]) + 1.4 * bank[:, 0] + bank[:, 1] - 1.2 * bank[:, 2] ** 2
    return shop, bank, risk + rng.logistic(size=count) > -1.5


def bins() -> Pipeline:
    """Each party bins its own columns: a linear model of bins can bend."""
    binner = KBinsDiscretizer(4, encode="onehot-dense", quantile_method="averaged_inverted_cdf")
    return make_pipeline(binner, StandardScaler())


def main(rows: int = 600, rounds: int = 8, key_bits: int = 2048) -> dict[str, float]:
    # 2048 bits keep the example short; the default of 3072 is what to use for real data.
    shop, bank, defaulted = people(rows + 500, seed=1)
    train, test = slice(rows), slice(rows, None)
    model = GeneralisedLinear(
        algorithm=FedBCD(local_steps=10), rounds=rounds, protection=Blind(key_bits=key_bits)
    )
    shop_bins, bank_bins = bins().fit(shop[train]), bins().fit(bank[train])
    shop_columns, bank_columns = shop_bins.transform(shop), bank_bins.transform(bank)
    model.fit(
        [Party("shop", shop_columns[train]), Party("bank", bank_columns[train], labels=defaulted[train])]
    )
    print(model.result_)
    for party in model.parties_:
        print(f"\nwhat {party} saw:")
        for line in model.result_.seen(party):
            print(f"  {line}")
    scores = model.decision_function([Party("shop", shop_columns[test]), Party("bank", bank_columns[test])])
    together = np.hstack([shop_columns, bank_columns])
    joined = LogisticRegression(max_iter=1000).fit(together[train], defaulted[train])
    single = LogisticRegression(max_iter=1000).fit(bank_columns[train], defaulted[train])
    table = {
        "both, blind": roc_auc_score(defaulted[test], scores),
        "both, all data in one place": roc_auc_score(
            defaulted[test], joined.decision_function(together[test])
        ),
        "the bank alone": roc_auc_score(defaulted[test], single.decision_function(bank_columns[test])),
    }
    print("\nAUC on 500 people that were not trained on")
    for name, value in table.items():
        print(f"  {name:<28}{value:.3f}")
    return table


if __name__ == "__main__":
    main()
