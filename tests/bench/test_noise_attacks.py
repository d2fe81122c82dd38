"""The table of noise on what is opened: noise makes the attack worse, and its rows are whole."""

from __future__ import annotations

import pytest

from bench.noise_attacks import EPSILONS, noise_rows, noise_table
from bench.scenes import Keys


@pytest.mark.filterwarnings("ignore::securefed.protocols.own_gradient.ledger.LedgerWarning")
@pytest.mark.slow
def test_noise_takes_the_labels_away() -> None:
    rows = list(noise_rows(Keys(), (120,), 1))
    assert [row.epsilon for row in rows] == list(EPSILONS)
    assert rows[0].attack_auc > 0.99 and rows[0].noise == 0.0
    assert rows[-1].attack_high < rows[0].attack_low
    assert rows[1].noise < rows[2].noise < rows[3].noise
    assert noise_table(rows).count("\n") == 1 + len(rows)
    assert "| 120 | no noise | 0.0 |" in noise_table(rows)
