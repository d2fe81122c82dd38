"""Versions of what a run depends on: for `securefed --version`, and for the report of a run."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

__all__ = ["PACKAGES", "minor_version", "versions"]

PACKAGES = ("securefed", "numpy", "scikit-learn", "cryptography", "gmpy2", "tenseal", "grpcio")
"""What decides about numbers, keys and the wire."""


def minor_version() -> str:
    """Return the release that all parties of a run have to share, such as "0.1"."""
    return ".".join(versions()["securefed"].split(".")[:2])


def versions() -> dict[str, str]:
    """By name; "not installed" where a package is not."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
