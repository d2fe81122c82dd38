"""The command line with a loss of one's own: `python launcher.py party bank/party.toml`."""

import tempered  # noqa: F401  # registers the loss

from securefed.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
