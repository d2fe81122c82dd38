"""`securefed completion SHELL`: what a shell needs to complete commands and options, from the parser."""

from __future__ import annotations

import argparse

from securefed.cli.terminal import Terminal
from securefed.files import write_json

__all__ = ["DESCRIPTION", "EPILOGUE", "SHELLS", "add_arguments", "run", "script"]

SHELLS = ("bash", "zsh", "fish")

DESCRIPTION = "Print what your shell needs to complete the commands and options of securefed."

EPILOGUE = """\
examples:
  securefed completion bash > ~/.local/share/bash-completion/completions/securefed
  securefed completion zsh > ~/.zfunc/_securefed        with ~/.zfunc in fpath, before compinit
  securefed completion fish > ~/.config/fish/completions/securefed.fish"""

BASH = """\
_securefed() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" command="${{COMP_WORDS[1]}}" options=""
  if [ "$COMP_CWORD" -eq 1 ]; then COMPREPLY=($(compgen -W "{commands}" -- "$word")); return; fi
  case "$command" in
{cases}
  esac
  if [[ "$word" == -* ]]; then COMPREPLY=($(compgen -W "$options" -- "$word"))
  else COMPREPLY=($(compgen -f -- "$word")); fi
}}
complete -o filenames -F _securefed securefed
"""

ZSH = """\
#compdef securefed
_securefed() {{
  local -a commands options
  commands=({commands})
  if (( CURRENT == 2 )); then _describe command commands; return; fi
  case "$words[2]" in
{cases}
  esac
  if [[ "$PREFIX" == -* ]]; then _describe option options; else _files; fi
}}
_securefed "$@"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="which shell")


def run(args: argparse.Namespace, terminal: Terminal) -> int:
    made = script(args.shell)
    terminal.result(made.rstrip("\n"))
    if args.json is not None:
        write_json(args.json, {"shell": args.shell, "script": made})
    return 0


def script(shell: str) -> str:
    """The whole file for one shell."""
    from securefed.cli.entry import COMMANDS, build_parser

    options = _options(build_parser())
    if shell == "bash":
        cases = "\n".join(f'    {name}) options="{" ".join(o)}" ;;' for name, o in options.items())
        return BASH.format(commands=" ".join(COMMANDS), cases=cases)
    if shell == "zsh":
        listed = " ".join(f"'{name}:{text.replace(':', ',')}'" for name, text in COMMANDS.items())
        words = {name: " ".join(f"'{option}:{_plain(text)}'" for option, text in o.items())
                 for name, o in options.items()}  # fmt: skip
        cases = "\n".join(f"    {name}) options=({o}) ;;" for name, o in words.items())
        return ZSH.format(commands=listed, cases=cases)
    lines = ["complete -c securefed -n __fish_use_subcommand -f"]
    for name, summary in COMMANDS.items():
        lines.append(f"complete -c securefed -n __fish_use_subcommand -f -a {name} -d '{summary}'")
        for option, text in options[name].items():
            way = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
            seen = f"-n '__fish_seen_subcommand_from {name}'"
            lines.append(f"complete -c securefed {seen} {way} -d '{_plain(text)}'")
    return "\n".join(lines) + "\n"


def _options(parser: argparse.ArgumentParser) -> dict[str, dict[str, str]]:
    """Options of each command, with what they are for."""
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return {
        name: {option: str(action.help or "") for action in sub._actions for option in action.option_strings}
        for name, sub in commands.choices.items()
    }


def _plain(text: str) -> str:
    """Nothing that a shell or a list of words would take for its own."""
    kept = "".join(c for c in text.replace("%(default)s", "") if c.isalnum() or c in " -,;.()/=")
    return kept[:70]
