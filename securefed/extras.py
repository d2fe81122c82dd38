"""Optional packages: imported where they are used, with a one-line hint when they are missing.

    pyplot = require("matplotlib.pyplot", extra="plot")

raises `MissingExtra` with the command that installs it. Only the absence of the package itself is translated:
an error inside an installed package is a fault of that installation and passes through as it is.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from securefed.errors import MissingExtra


def require(module: str, *, extra: str) -> ModuleType:
    """The module of that name, from a package that securefed[extra] installs."""
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise MissingExtra(
            f"{package} is not installed and is needed here: pip install 'securefed[{extra}]'", name=package
        ) from None
