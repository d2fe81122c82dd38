"""Five departments predict an outcome together under CKKS; a key-holder party sees only masked values.

    python examples/five_hospitals.py

Each department sees its own aggregated gradients (protection=OwnGradient(), the paper's way), once a round
however many local steps it makes; the solvability ledger says how much that determines. Built-in breast
cancer data, six columns each.
"""

from __future__ import annotations

from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from securefed import FedBCD, GeneralisedLinear, OwnGradient, Party

DEPARTMENTS = ("imaging", "pathology", "genetics", "ward", "registry")


def main(rounds: int = 15) -> dict[str, float]:
    features, malignant = load_breast_cancer(return_X_y=True)
    features = StandardScaler().fit_transform(features)
    train, test, labels, expected = train_test_split(features, malignant, test_size=0.3, random_state=0)

    def parties(rows: object, known: object = None) -> list[Party]:
        """Six columns each; the registry has the outcomes."""
        return [
            Party(name, rows[:, 6 * i : 6 * i + 6], labels=known if name == "registry" else None)  # type: ignore[index]
            for i, name in enumerate(DEPARTMENTS)
        ]

    model = GeneralisedLinear(
        algorithm=FedBCD(local_steps=5, order="sequential"), rounds=rounds, protection=OwnGradient()
    )
    model.fit(parties(train, labels))
    result = model.result_
    print(result)
    print("\nthe solvability ledger: opened equations against unknowns")
    for entry in result.ledger:
        kind = " (advisory)" if entry.advisory else ""
        facts = f"{entry.equations:>6} / {entry.unknowns:<6} {entry.verdict}"
        print(f"  {entry.party:<10}{entry.block:<26}{facts}{kind}")
    print("\nwhat the key-holder saw:")
    for line in result.seen("key-holder"):
        print(f"  {line}")
    centralised = LogisticRegression().fit(train, labels)
    alone = LogisticRegression().fit(train[:, 24:], labels)
    table = {
        "five departments, encrypted": roc_auc_score(expected, model.decision_function(parties(test))),
        "all data in one place": roc_auc_score(expected, centralised.decision_function(test)),
        "the registry alone": roc_auc_score(expected, alone.decision_function(test[:, 24:])),
    }
    print("\nAUC on held-out patients")
    for name, value in table.items():
        print(f"  {name:<30}{value:.3f}")
    return table


if __name__ == "__main__":
    main()
