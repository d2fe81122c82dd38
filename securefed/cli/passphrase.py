"""The passphrase that the keys at rest are under: from a file, the environment or a prompt, in this order.

It is asked for once a command and goes to the key files and nowhere else.
"""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from pathlib import Path

from securefed.errors import SettingError

VARIABLE, NEW_VARIABLE = "SECUREFED_PASSPHRASE", "SECUREFED_NEW_PASSPHRASE"
LEAST = 8


def add_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--passphrase-file",
        type=Path,
        metavar="FILE",
        help=f"file whose first line is the passphrase of the keys; else ${VARIABLE}, else a prompt",
    )


def read_passphrase(file: Path | None, *, new: bool = False) -> str:
    """The passphrase; `new` asks twice at a prompt and refuses a short one."""
    return _read(file, VARIABLE, "--passphrase-file", "Passphrase of the keys: ", new=new)


def read_new_passphrase(file: Path | None) -> str:
    """The one that is to take the other's place."""
    return _read(file, NEW_VARIABLE, "--new-passphrase-file", "New passphrase of the keys: ", new=True)


def _read(file: Path | None, variable: str, option: str, prompt: str, *, new: bool) -> str:
    passphrase, where = _given(file, variable)
    if passphrase is None:
        if not sys.stdin.isatty():
            raise SettingError(
                f"passphrase: none given; set {variable}, give {option}, or run this at a terminal"
            )
        passphrase, where = getpass.getpass(prompt), "what was typed"
        if new and getpass.getpass("Once more: ") != passphrase:
            raise SettingError("passphrase: the two entries differ")
    if not passphrase:
        raise SettingError(f"passphrase: {where} is empty")
    if new and len(passphrase) < LEAST:
        raise SettingError(
            f"passphrase: {len(passphrase)} characters in {where}, at least {LEAST} are needed"
        )
    return passphrase


def _given(file: Path | None, variable: str) -> tuple[str | None, str]:
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not text"
            raise SettingError(f"passphrase: cannot read {file}: {reason}") from None
        return (lines[0] if lines else ""), str(file)
    return os.environ.get(variable), variable
