"""Versions of what a run depends on: for `securefed --version`, and for the report of a run."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

__all__ = ["PACKAGES", "versions"]

PACKAGES = ("securefed", "numpy", "scikit-learn", "cryptography", "gmpy2", "tenseal", "grpcio")
"""What decides about numbers, keys and the wire."""


def versions() -> dict[str, str]:
    """By name; "not installed" where a package is not."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
