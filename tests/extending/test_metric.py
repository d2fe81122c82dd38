"""A metric from outside of the package: one registration shows it everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from securefed import GeneralisedLinear, Party, Plain
from securefed.cli.party import quality_line
from securefed.labels.metrics import METRICS, Answers
from securefed.report.page import render
from tests.extending.loading import loaded
from tests.report.test_run_files import CLEAR, account


@pytest.fixture
def youden() -> Iterator[Any]:
    yield loaded("youden").youden
    METRICS.pop("Youden")


def test_one_entry_adds_a_metric_everywhere(youden: Any) -> None:
    rng = np.random.default_rng(0)
    shop, bank = rng.normal(size=(300, 2)), rng.normal(size=(300, 2))
    labels = (shop[:, 0] + bank[:, 0] + 0.5 * rng.normal(size=300) > 0).astype(int)
    parties = [Party("shop", shop), Party("bank", bank, labels=labels)]
    model = GeneralisedLinear(protection=Plain(like="blind")).fit(parties)
    held = model.result_.holdout
    assert held is not None and 0.5 < held.more["Youden"] < 1.0
    expected = youden(Answers("two classes", labels.astype(float), predictions=model.predict(parties)))
    assert model.score(parties, "Youden") == pytest.approx(expected)
    told = held.to_dict()
    assert f"Youden {told['more']['Youden']:.3g}" in quality_line(told)
    run = account(CLEAR)
    page = render({**run.result(), "holdout": told}, run.timing())
    assert "Youden" in page and "Sensitivity + specificity - 1, at a probability of a half." in page
