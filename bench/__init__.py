"""Measurements, run from a checkout: `python -m bench <command>`. Not part of the installed package."""

from __future__ import annotations

__all__: list[str] = []
