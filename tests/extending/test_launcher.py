"""The command line with code from outside the package (docs/extending.md)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from tests.process.parties import Fleet

LAUNCHER = Path(__file__).parent / "launcher.py"


def test_a_launcher_makes_a_loss_known_to_the_command_line(fleet: Callable[..., Fleet]) -> None:
    """`securefed` by itself refuses the file; with the launcher two parties train and score."""
    made = fleet({"shop": 3, "bank": 2}, loss="tempered", rounds=3)
    made.start("shop", "plan")
    assert made.finish() == {"shop": 2}
    assert "loss must be one of 'logistic', 'linear', 'squared_hinge', not 'tempered'" in made.log("shop")
    made.within = {name: [sys.executable, str(LAUNCHER)] for name in made.parties}
    made.start_all()
    made.all_good()
    assert made.result("bank")["holdout"]["metric"] == "AUC"
