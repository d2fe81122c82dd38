"""The command line: one parser and one module a command. docs/operations.md says what exit codes mean.

Each command is a module with `add_arguments(parser)` and `run(args, terminal) -> int`. What `run` puts into
`terminal.facts` is written for --json.
"""

from __future__ import annotations

import argparse
import resource
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from securefed.cli.terminal import MOST_LINE, Terminal
from securefed.errors import DataError, KeyFileError, MissingExtra, SecurefedError, SettingError, plain_text
from securefed.files import check_writable, versions, write_json

COMMANDS = {
    "demo": "see it work: all parties as processes on this machine, on built-in data, encrypted",
    "init": "make a party's folder: keys, certificate and a commented party.toml",
    "check": "all that can be known to be wrong before meeting anybody, in one list",
    "party": "join a run as one party: align, train, write the run directory",
    "predict": "score new rows together with the saved model",
    "plan": "how long and how much, for each number of local steps and scheme, before you start",
    "audit": "check what every party saw in a finished run",
    "verify": "check signatures of transcripts, and that all parties tell the same story",
}

DESCRIPTION = """\
Vertical federated learning under homomorphic encryption: organisations that hold different columns about the
same people train one model together. A party that follows the protocol sees nobody else's data or labels."""

EPILOGUE = """\
A first look:           securefed demo
Two organisations:      securefed init NAME at each, exchange certificates, edit party.toml,
                        securefed check NAME/party.toml, then securefed party NAME/party.toml at each.
Exit codes:             0 good, 1 the run failed or was stopped, 2 a setting, file or option is wrong."""

LEAST_ADDRESS_SPACE = 2000
"""MiB. With less, libraries below Python abort a party without a word, wherever they are just then."""
OUT_OF_MEMORY = "this process ran out of memory (machine, container or ulimit -v); give it more"


class Stopped(SecurefedError):
    """The run was stopped on purpose; the message says how to go on."""


def build_parser(commands: Sequence[str] = tuple(COMMANDS)) -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="securefed", description=DESCRIPTION, epilog=EPILOGUE, formatter_class=raw
    )
    version = "print the versions of securefed and of what it runs on, and exit"
    parser.add_argument("--version", action="store_true", help=version)
    subparsers = parser.add_subparsers(dest="command", metavar="command", title="commands")
    for name, summary in COMMANDS.items():
        command = subparsers.add_parser(name, help=summary, formatter_class=raw)
        if name in commands:
            module = import_module(f"securefed.cli.{name}")
            command.description = module.DESCRIPTION
            command.epilog = module.EPILOGUE
            module.add_arguments(command)
            command.set_defaults(run=module.run)
        _common(command)
    return parser


def _common(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE, for machines")
    group.add_argument(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="json: every line on stderr is an object with time, level, party, run and text",
    )
    group.add_argument("-q", "--quiet", action="store_true", help="nothing but the result and errors")
    group.add_argument("-v", "--verbose", action="store_true", help="say more, a line a round")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the result is the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    named = [word for word in words if word in COMMANDS][:1]
    if named and named[0] in ("party", "predict") and (line := _too_little_address_space()):
        with Terminal() as terminal:
            terminal.error(f"securefed {named[0]}: {line}")
        return 2
    args = build_parser(named).parse_args(words)
    if args.version:
        listed = versions()
        print(f"securefed {listed.pop('securefed')}")
        print("\n".join(f"  {name:<14} {version}" for name, version in listed.items()))
        return 0
    if args.command is None:
        build_parser([]).print_help()
        return 2
    json_lines = args.log_format == "json"
    with Terminal(quiet=args.quiet, verbose=args.verbose, json_lines=json_lines) as terminal:
        return _guarded(args, terminal)


def _too_little_address_space() -> str | None:
    """Return why the network cannot be used under this process's limit; before it is even imported."""
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    if most == resource.RLIM_INFINITY or most >= LEAST_ADDRESS_SPACE << 20:
        return None
    return (
        f"memory: the limit of this process (ulimit -v, RLIMIT_AS) is {most >> 20:,} MiB of address space, "
        f"at least {LEAST_ADDRESS_SPACE:,} MiB are needed; raise it"
    )


def _guarded(args: argparse.Namespace, terminal: Terminal) -> int:
    code = 1
    try:
        return _run(args, terminal)
    except SecurefedError as error:
        several = isinstance(error, DataError) and len(error.problems) > 1
        text, code = str(error) if several else plain_text(error, MOST_LINE), 2 if is_user_error(error) else 1
    except BrokenPipeError:
        return code  # whoever read our output has gone
    except OSError as error:
        text = plain_text(error, MOST_LINE)
    except (MemoryError, ImportError) as error:
        # A library that cannot be loaded for want of memory: the dynamic linker has these words for it.
        linker = any(words in str(error) for words in ("failed to map segment", "annot allocate memory"))
        if isinstance(error, ImportError) and not linker:
            raise
        text = OUT_OF_MEMORY
    except KeyboardInterrupt:
        text = "stopped"
    terminal.error(f"securefed {args.command}: {text}")
    return code


def _run(args: argparse.Namespace, terminal: Terminal) -> int:
    """Run the command, and write its result for machines, even where the last word is an error."""
    if args.json is not None:  # checked now: a run is long
        check_writable("json", args.json)
    try:
        return int(args.run(args, terminal))
    finally:
        if args.json is not None and terminal.facts is not None:
            write_json(args.json, terminal.facts)


def is_user_error(error: SecurefedError) -> bool:
    """Return whether a person has to act. Started again as it is, the command would end the same way."""
    from securefed.protocols.own_gradient.ledger import LedgerRefusal
    from securefed.transport.identity import IdentityError

    mistakes = (SettingError, DataError, MissingExtra, KeyFileError, IdentityError, LedgerRefusal)
    return isinstance(error, mistakes)
