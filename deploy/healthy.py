"""Whether the party of a party.toml is up: somebody accepts connections on its port. Exit code 0 or 1.

It shows no certificate and sends nothing: the party takes such a caller for a stranger who leaves again, with
one line in its log (at most 60 a minute). A party listens while it runs, and not before its data and keys
were found good.
"""

from __future__ import annotations

import socket
import sys
import tomllib
from pathlib import Path


def main(path: str) -> int:
    listen = tomllib.loads(Path(path).read_text(encoding="utf-8"))["party"].get("listen", "0.0.0.0:7001")
    host, _, port = listen.rpartition(":")
    host = {"0.0.0.0": "127.0.0.1", "[::]": "::1"}.get(host, host.strip("[]"))  # noqa: S104  # to connect to
    try:
        with socket.create_connection((host, int(port)), timeout=3):
            return 0
    except OSError:
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
