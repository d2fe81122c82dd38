"""The command line, `securefed COMMAND`: demo, init, check, party, predict, plan, audit and verify.

`main` is the entry point. It loads a command's module only for that command, so `--help` answers at once.
"""

from __future__ import annotations

from securefed.cli.entry import main

__all__ = ["main"]
