"""NPZ files: named arrays of plain numbers and text, and nothing that runs when it is read."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from securefed.errors import DataError

# What numpy raises on damaged files and on files of another kind.
_DAMAGED = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    AttributeError,
    KeyError,
    zipfile.BadZipFile,
    zlib.error,
)


def read_npz(path: Path, required: Sequence[str]) -> dict[str, NDArray[np.generic]]:
    """All arrays of the file, which has the required ones."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            content = {name: arrays[name] for name in arrays.files}
    except _DAMAGED as error:
        line = str(error).split("\n")[0]
        raise DataError(f"{path.name}: not an NPZ file that can be read ({line})") from None
    missing = [name for name in required if name not in content]
    if missing:
        raise DataError(f"{path.name}: no array {', '.join(missing)}; {', '.join(required)} are expected")
    return content
