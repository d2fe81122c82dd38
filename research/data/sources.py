"""Where data files are, and where to get them.

A loader looks in the folder that SECUREFED_DATA names, then in the cache ($XDG_CACHE_HOME/securefed, by
default ~/.cache/securefed). securefed downloads nothing by itself: what is missing is named in one line,
with its source and checksum.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

from securefed.errors import DataError

VARIABLE = "SECUREFED_DATA"


def data_folders() -> list[Path]:
    """The folders that are searched, in this order."""
    folders: list[Path] = []
    named = os.environ.get(VARIABLE)
    if named:
        folder = Path(named).expanduser()
        if not folder.is_dir():
            raise DataError(f"{VARIABLE} names {named}, which is not a folder")
        folders.append(folder)
    cache = os.environ.get("XDG_CACHE_HOME")
    return [*folders, (Path(cache) if cache else Path.home() / ".cache") / "securefed"]


@dataclass(frozen=True)
class Source:
    """A published data set: the names that its file may have, and where it comes from."""

    title: str
    names: tuple[str, ...]
    where: str
    sha256: dict[str, str] = field(default_factory=dict)
    """Checksum by name, where the published file is always the same."""

    def find(self, given: str | PathLike[str] | None = None) -> Path:
        """The file (or folder) that was given, or the first that is there."""
        if given is not None:
            path = Path(given).expanduser()
            if not path.exists():
                raise DataError(f"{self.title}: {path} does not exist")
            return path
        folders = data_folders()
        for folder in folders:
            for name in self.names:
                if (folder / name).exists():
                    return folder / name
        raise DataError(self.missing(folders))

    def missing(self, folders: Sequence[Path]) -> str:
        names = " or ".join(self.names)
        sums = "".join(f" (sha256 of {name}: {value})" for name, value in self.sha256.items())
        hint = "" if os.environ.get(VARIABLE) else f"; {VARIABLE} can name another folder"
        places = " or ".join(map(str, folders))
        return f"{self.title}: no {names} in {places}{hint}; get it from {self.where}{sums}"
