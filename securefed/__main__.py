"""`python -m securefed` is the same as `securefed`."""

from __future__ import annotations

import sys

from securefed.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
