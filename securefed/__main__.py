"""`python -m securefed` is the same as `securefed`."""

from __future__ import annotations

import sys

from securefed.cli.entry import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
