"""Write deploy/requirements.txt from a report of pip: each distribution with its version and its file's hash.

    make hashes

The hashes are of the files that pip chose here: those of the container's platform (Python 3.11, Linux,
x86-64). No address goes into the file. The package itself is left out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEAD = """\
# What a container installs, with hashes. `make hashes` writes this file; versions are from constraints.txt.
# Python 3.11, Linux, x86-64. Another platform takes other files: run `make hashes` there.
"""


def lines(report: dict[str, Any]) -> Iterator[str]:
    """Yield a requirement for each distribution of a report, by name."""
    for item in sorted(report["install"], key=lambda item: str(item["metadata"]["name"]).lower()):
        name, version = item["metadata"]["name"], item["metadata"]["version"]
        if name == "securefed":
            continue
        digest = item["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
        if digest is None:
            raise SystemExit(f"hashes: pip gave no hash of {name} {version}; update pip and run it again")
        yield f"{name}=={version} --hash=sha256:{digest}\n"


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text(HEAD + "".join(lines(json.loads(source.read_text(encoding="utf-8")))), encoding="utf-8")
