"""A run directory: result.json, and transcript-<party>.jsonl of each party that wrote one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

from securefed.errors import DataError
from securefed.transport import Transcript

__all__ = ["RESULT", "Result", "read_run", "transcript_path", "transcript_paths", "write_transcripts"]

RESULT = "result.json"


class Result(Protocol):
    """A run's result (securefed.api.result.RunResult)."""

    @property
    def transcripts(self) -> Mapping[str, Transcript]: ...

    def to_dict(self) -> dict[str, Any]: ...


def transcript_path(folder: str | PathLike[str], party: str) -> Path:
    return Path(folder) / f"transcript-{party}.jsonl"


def write_transcripts(folder: str | PathLike[str], result: Result) -> list[Path]:
    """Write result.json and the transcripts. Return the paths."""
    where = Path(folder)
    where.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result.to_dict(), indent=2) + "\n"
    (where / RESULT).write_text(text, encoding="utf-8")
    written = [where / RESULT]
    for party, transcript in result.transcripts.items():
        transcript.save(transcript_path(where, party))
        written.append(transcript_path(where, party))
    return written


def transcript_paths(folder: str | PathLike[str]) -> list[Path]:
    """Return the transcripts of a run directory. Raises DataError if there are none."""
    where = Path(folder)
    if not where.is_dir():
        raise DataError(f"{where}: there is no such run directory")
    paths = sorted(where.glob("transcript-*.jsonl"))
    if not paths:
        raise DataError(f"{where}: no transcript-<party>.jsonl there")
    return paths


def read_run(folder: str | PathLike[str]) -> tuple[list[Transcript], dict[str, Any] | None]:
    """Return the transcripts of a run directory, and its result or None."""
    where, paths = Path(folder), transcript_paths(folder)
    transcripts = [Transcript.read(path) for path in paths]
    for path, transcript in zip(paths, transcripts, strict=True):
        if path != transcript_path(where, transcript.party):
            raise DataError(f"{path}: holds the transcript of {transcript.party!r}")
    return transcripts, _result(where / RESULT)


def _result(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from None
    if not isinstance(result, dict):
        raise DataError(f"{path}: not a result")
    return result
