"""Keys for the whole session."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

from securefed.protocols.own_gradient.ledger import LedgerWarning
from tests.protocols.federation import KEYS, Keys


@pytest.fixture(scope="session")
def keys() -> Keys:
    return KEYS


@pytest.fixture(autouse=True)
def _small_runs_cross_the_line(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs small enough for tests open too much; only the ledger's own tests want its warnings."""
    with warnings.catch_warnings():
        if "ledger" not in request.node.path.name:
            warnings.simplefilter("ignore", LedgerWarning)
        yield
