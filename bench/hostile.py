"""Tables that nobody would make on purpose: scales from 1e-9 to 1e9, the same column twice, constants, heavy
tails, more columns than rows. A run has to fit them, announce that the model is bad, or refuse with a name.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securefed import GeneralisedLinear, Party, Plain
from securefed.errors import SecurefedError
from securefed.labels.quality import HeldOut, QualityWarning

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Outcome:
    """What became of one table."""

    seed: int
    rows: int
    columns: int
    parties: int
    loss: str
    outcome: str
    """"fitted", "announced", "refused", or what must not be: "silently bad", "crashed"."""
    detail: str


def made(seed: int) -> tuple[Array, Array, str, int]:
    """A table, its labels, the loss, the number of parties."""
    rng = np.random.default_rng(seed)
    rows = int(np.exp(rng.uniform(np.log(20), np.log(5000))))
    columns = int(np.exp(rng.uniform(np.log(2), np.log(400))))
    parties = int(rng.integers(2, min(10, columns) + 1))
    base = rng.normal(size=(rows, max(1, columns // 3)))
    table = base @ rng.normal(size=(base.shape[1], columns)) + rng.normal(size=(rows, columns))
    for column in range(columns):
        kind = rng.integers(0, 6)
        if kind == 0:
            table[:, column] = rng.standard_cauchy(rows)
        elif kind == 1:
            table[:, column] = rng.normal()
        elif kind == 2 and column:
            table[:, column] = table[:, column - 1] * rng.normal()
        elif kind == 3:
            table[:, column] = np.exp(2.5 * table[:, column] / (np.abs(table[:, column]).max() + 1e-9) * 4)
        elif kind == 4:
            table[:, column] = (rng.random(rows) < 0.02).astype(float)
    signal = np.tanh(table[:, : max(1, columns // 2)]).sum(axis=1)
    signal = (signal - signal.mean()) / (signal.std() or 1.0) + rng.normal(size=rows)
    table = table * 10.0 ** rng.uniform(-9, 9, columns)
    if rng.random() < 0.5:
        share = rng.choice([0.5, 0.2, 0.03])
        return table, (signal > np.quantile(signal, 1 - share)).astype(float), "logistic", parties
    return table, signal * 10.0 ** rng.uniform(-9, 9), "linear", parties


def hostile(seed: int) -> Outcome:
    """Train on four fifths, and look at the rest: new rows, which the run has not seen."""
    table, labels, loss, parties = made(seed)
    rows, columns = table.shape
    cut = rows - max(4, rows // 5)
    groups = np.array_split(np.arange(columns), parties)

    def people(part: slice, known: bool) -> list[Party]:
        last = parties - 1
        return [
            Party(f"p{k}", table[part][:, group], labels[part] if known and k == last else None)
            for k, group in enumerate(groups)
        ]

    model = GeneralisedLinear(loss, protection=Plain(like="blind", allow_determined=True))
    facts = (seed, rows, columns, parties, loss)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            model.fit(people(slice(0, cut), True))
            found = model.decision_function(people(slice(cut, None), False))
        except SecurefedError as error:
            return Outcome(*facts, "refused", f"{type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001  # whatever it is, it is what this looks for
            return Outcome(*facts, "crashed", f"{type(error).__name__}: {error}")
    announced = any(issubclass(each.category, QualityWarning) for each in told)
    held = model.result_.holdout
    if not np.isfinite(found).all():
        return Outcome(*facts, "silently bad", "scores that are no numbers")
    if announced or held is None:
        return Outcome(*facts, "announced", "not measured" if held is None else str(held))
    seen = HeldOut(
        np.where(labels[cut:] > 0, 1.0, -1.0) if loss == "logistic" else labels[cut:],
        binary=loss == "logistic",
    )
    value, chance = seen.value(found), 0.5 if seen.name == "AUC" else 0.0
    if value < chance - 2.0 / np.sqrt(len(found)):
        return Outcome(*facts, "silently bad", f"{seen.name} {value:.3f} on new rows; {held}")
    return Outcome(*facts, "fitted", f"{seen.name} {value:.3f} on new rows; {held}")
