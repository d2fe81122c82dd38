"""What people type: `securefed init | party | predict | demo | audit | plan`.

`main` is the entry point. Its modules are loaded when their command is asked for, so that `securefed --help`
answers at once.
"""

from __future__ import annotations

from securefed.cli.entry import main

__all__ = ["main"]
