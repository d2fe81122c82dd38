"""The loaders' tests, each with an empty data folder of its own."""

from __future__ import annotations

from tests.data.conftest import data, real

__all__ = ["data", "real"]
