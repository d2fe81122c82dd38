"""Versions of what a run depends on: for `securefed --version`, for reports, and in the files of a run.

Checkpoints, transcripts and model shards name the release that wrote them and the number of their format.
A file of another format is refused. Checkpoints and transcripts of another minor release are refused too.
"""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from securefed.errors import DataError, plain_text

PACKAGES = ("securefed", "numpy", "scikit-learn", "cryptography", "gmpy2", "tenseal", "grpcio")
"""What decides about numbers, keys and the wire."""


@cache
def release() -> str:
    """Return the release of this package, such as "0.1.0"."""
    return versions()["securefed"]


def minor_version(whole: str | None = None) -> str:
    """Return the part of a release that all parties of a run have to share, such as "0.1"."""
    return ".".join((whole or release()).split(".")[:2])


def check_release(what: str, wrote: object, remedy: str) -> None:
    """Refuse a file that another minor release wrote. `what` names it, `remedy` says what to do."""
    if minor_version(str(wrote) or "unknown") != minor_version():
        raise DataError(
            f"{what} was written by securefed {plain_text(wrote, 20)}, this is {release()}; {remedy}"
        )


def versions() -> dict[str, str]:
    """By name; "not installed" where a package is not."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return versions
