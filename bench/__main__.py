"""`python -m bench <command>`: one parser, one module a command.

A command is a module of this package with `add_arguments(parser)` and `run(args) -> int`, and a line in
COMMANDS. All of them have --quick, --json and --seed. Exit codes: 0 good, 2 for what the user got wrong
(one line on stderr), 1 for a failed run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from securefed.errors import DataError, MissingExtra, SettingError

COMMANDS = {
    "crypto": "our encrypted operations beside phe, FATE's fate_utils and TenSEAL, as ratios",
    "blind": "training that reveals nothing, beside own gradients and beside plain",
    "transport": "messages of 64 MiB over the network carrier beside a bare TLS connection",
    "overhead": "four parties as processes over mutual TLS beside the same training in one process",
    "forecast": "securefed plan beside measured runs: bytes, computation and communication",
    "alignment": "private set intersection of 100,000 ids a side between two processes",
    "table2": "the paper's Table 2: Credit-FTL under real encryption, where its minutes go",
    "table1": "the paper's Table 1: rounds to a target for FedSGD, FedBCD-p and FedBCD-s",
    "figures": "the paper's figures, and total minutes against Q on several networks, as PNG and SVG",
    "quality": "test quality with default settings beside scikit-learn on the joined table; hostile tables",
    "scale": "one round as rows, parties and workers grow",
    "attacks": "attacks on what parties saw: attack by variant, with chance and interval",
    "chaos": "real parties while they are killed, stopped, cut off, slowed down: what survives",
    "wan": "two parties over slow lines: private intersection, training and prediction to their end",
    "peers": "one encrypted round beside what the layout of FATE's FTL takes for the same",
}


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measurements of securefed.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        command.add_argument("--quick", action="store_true", help="fewer repetitions and smaller work")
        command.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE")
        command.add_argument("--seed", type=int, default=0, help="of the data; default %(default)s")
        module = import_module(f"bench.{name}")
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(arguments)
    try:
        return int(args.run(args))
    except (DataError, MissingExtra, SettingError, OSError) as error:
        print(f"bench {args.command}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
