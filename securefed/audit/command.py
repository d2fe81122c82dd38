"""What `securefed audit RUN` does: read a run directory, check the claims, print what each party saw."""

from __future__ import annotations

import json
import sys
from os import PathLike
from pathlib import Path
from typing import TextIO

from securefed.audit.files import read_run
from securefed.audit.page import whole_page
from securefed.audit.report import audit
from securefed.errors import SettingError

__all__ = ["run"]


def run(
    folder: str | PathLike[str],
    json_path: str | PathLike[str] | None = None,
    out: TextIO | None = None,
    html_path: str | PathLike[str] | None = None,
) -> int:
    """0 if every claim holds, 1 if one fails. What the user got wrong is raised (DataError, SettingError)."""
    for path in (json_path, html_path):
        if path is not None and not Path(path).absolute().parent.is_dir():
            raise SettingError(f"{path}: there is no directory {Path(path).parent}")
    report = audit(*read_run(folder))
    (out or sys.stdout).write(report.to_text())
    if json_path is not None:
        Path(json_path).write_text(json.dumps(report.to_dict(), indent=2) + "\n", encoding="utf-8")
    if html_path is not None:
        Path(html_path).write_text(whole_page(report), encoding="utf-8")
    return 0 if report.passed else 1
