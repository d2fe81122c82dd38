"""Fleets of parties, for code of one's own in `securefed party`."""

from __future__ import annotations

from tests.process.conftest import fleet, keys

__all__ = ["fleet", "keys"]
