"""Fleets of parties, for what a command says about them."""

from __future__ import annotations

from tests.process.conftest import fleet, keys

__all__ = ["fleet", "keys"]
