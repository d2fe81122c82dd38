"""Keys for the whole session, and fleets that end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process.parties import Fleet, People


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys")


@pytest.fixture
def fleet(tmp_path: Path, keys: Path) -> Iterator[Callable[..., Fleet]]:
    """Makes fleets: `fleet({"shop": 3, "bank": 2}, scheme="plain", rounds=3)`."""
    made: list[Fleet] = []

    def make(columns: dict[str, int], *, people: dict[str, Any] | None = None, **run: Any) -> Fleet:
        folder = tmp_path / f"fleet-{len(made)}"
        folder.mkdir()
        made.append(Fleet(folder, keys, People(columns, **(people or {})), run))
        return made[-1]

    yield make
    for each in made:
        each.end()
