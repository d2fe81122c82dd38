"""`securefed completion SHELL`: what a shell needs to complete commands and options, from the parser."""

from __future__ import annotations

import argparse

from securefed.cli.terminal import Terminal
from securefed.errors import require

SHELLS = ("bash", "zsh", "fish", "tcsh", "powershell")

DESCRIPTION = "Print what your shell needs to complete the commands and options of securefed."

EPILOGUE = """\
examples:
  pip install 'securefed[completion]'
  securefed completion bash > ~/.local/share/bash-completion/completions/securefed
  securefed completion zsh > ~/.zfunc/_securefed        with ~/.zfunc in fpath, before compinit
  securefed completion fish > ~/.config/fish/completions/securefed.fish"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="which shell")


def run(args: argparse.Namespace, terminal: Terminal) -> int:
    from securefed.cli.entry import build_parser

    script = require("shtab", extra="completion").complete(build_parser(), args.shell)
    terminal.result(script.rstrip("\n"))
    terminal.facts = {"shell": args.shell, "script": script}
    return 0
