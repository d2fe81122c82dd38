"""`python -m tests.transport.generate_wire`: wire_pb2.py and wire_pb2.pyi from wire.proto.

Needs grpcio-tools (the extra `dev`). What protoc writes is kept as it is between a header and a declaration
of the public names; a test makes both files again and compares.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from securefed.errors import require

__all__ = ["generate", "main"]

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "securefed/transport/network"
SCHEMA = "securefed/transport/network/wire.proto"
HEADER = """\
# Generated from wire.proto by `python -m tests.transport.generate_wire`. Do not edit.
# ruff: noqa
# fmt: off
# mypy: ignore-errors
"""


def generate() -> dict[str, str]:
    """The text of each generated file, by its name."""
    protoc = require("grpc_tools.protoc", extra="dev")
    with tempfile.TemporaryDirectory() as folder:
        # Relative to the root of the checkout, so that the schema's registered name does not clash.
        arguments = [f"-I{ROOT}", f"--python_out={folder}", f"--pyi_out={folder}", SCHEMA]
        if protoc.main(["protoc", *arguments]) != 0:
            raise OSError(f"protoc could not compile {SCHEMA}")
        written = sorted(Path(folder).rglob("wire_pb2.*"))
        texts = {path.name: path.read_text() for path in written}
    return {name: HEADER + text for name, text in texts.items()}


def main() -> int:
    for name, text in generate().items():
        (TARGET / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
