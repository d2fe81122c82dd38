"""Keys for the whole session; runs as small as these open too much."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

from securefed.protocols.own_gradient.ledger import LedgerWarning
from tests.protocols.federation import FULL_KEYS, Keys


@pytest.fixture(scope="session")
def keys() -> Keys:
    return FULL_KEYS


@pytest.fixture(autouse=True)
def _quiet_ledger() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LedgerWarning)
        yield
