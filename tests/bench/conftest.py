"""The benches are no part of the package: their tests are nightly ones.

But for one run of each command (test_commands.py), so that a change of the package that breaks one is seen.
"""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and item.path.name != "test_commands.py":
            item.add_marker(pytest.mark.nightly)
