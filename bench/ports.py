"""Ports of this machine for parties that start in a moment: no two processes of ours get the same one.

They are below those that the system gives to outgoing connections, which could take one in the meantime.
A lock on a byte of a common file reserves a port until this process ends.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

__all__ = ["free_ports"]

FIRST, COUNT = 20_000, 12_000
_reserved: set[int] = set()
_locks: list[int] = []
"""The common file, once it is open. It stays so."""


def free_ports(count: int) -> list[int]:
    """Return so many ports that nobody listens on and nobody else was given."""
    if not _locks:
        path = Path(tempfile.gettempdir()) / f"securefed-ports-{os.getuid()}"
        _locks.append(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    ports: list[int] = []
    while len(ports) < count:
        port = FIRST + secrets.randbelow(COUNT)
        if port in _reserved:
            continue
        with suppress(OSError):
            fcntl.lockf(_locks[0], fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            with socket.create_server(("127.0.0.1", port)):
                _reserved.add(port)
                ports.append(port)
    return ports
