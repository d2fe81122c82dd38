"""Modules of this folder register what they add when they are imported: here for one test."""

from __future__ import annotations

import importlib
import sys
from typing import Any


def loaded(name: str) -> Any:
    """Import a module of this folder anew."""
    sys.modules.pop(f"tests.extending.{name}", None)
    return importlib.import_module(f"tests.extending.{name}")
