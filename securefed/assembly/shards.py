"""A party's part of a model on disk: its own arrays, and beside them what all parties know of the model.

Parts of a blind model are shares, uniform by themselves; a helper has one too. A file has mode 0600: a part
is its owner's alone.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from securefed.errors import DataError, plain_text
from securefed.files import UNREADABLE, write_atomically
from securefed.versions import release

Arrays = dict[str, NDArray[np.generic]]
PUBLIC = "public"
FORMAT = 1
"""Of the files; raised when an older release could not read a part rightly."""


def shard_file(party: str) -> str:
    """Return the name of a party's file."""
    return f"shard-{party}.npz"


def write_arrays(path: Path, arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Write arrays by name into one file, whole or not at all."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    write_atomically(path, buffer.getvalue())


def read_arrays(path: Path, what: str) -> Arrays:
    """Return the arrays of a file; DataError where it is not `what` it should be."""
    try:
        archive = np.load(io.BytesIO(path.read_bytes()), allow_pickle=False)
        if not isinstance(archive, NpzFile):
            raise ValueError("one array without a name")
        with archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise DataError(f"{path}: no {what} there; train first") from None
    except UNREADABLE as error:
        line = str(error).strip().split("\n", 1)[0]
        raise DataError(f"{path}: not a {what} ({line})") from None


def write_part(path: Path, public: Mapping[str, Any], arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Write a party's part of a model. `public` has the parties and the estimator's word."""
    note = np.array(json.dumps({**public, "format": FORMAT, "release": release()}, sort_keys=True))
    write_arrays(path, {**arrays, PUBLIC: note})


def read_part(path: Path) -> tuple[dict[str, Any], Arrays]:
    """Return what all know of a model, and the party's arrays."""
    arrays = read_arrays(path, "model shard")
    try:
        public = json.loads(str(arrays.pop(PUBLIC)))
        if not isinstance(public["parties"], list) or not isinstance(public["estimator"], str):
            raise ValueError("no parties")
    except (KeyError, ValueError, TypeError):
        raise DataError(f"{path}: not a model shard") from None
    if public.get("format") != FORMAT:
        wrote = plain_text(public.get("release", "of an earlier release"), 30)
        raise DataError(
            f"{path}: a model shard of format {plain_text(public.get('format'), 10)}, written by securefed "
            f"{wrote}; securefed {release()} reads format {FORMAT}: use that release, or train again"
        )
    return public, arrays
