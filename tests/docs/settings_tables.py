"""The tables of settings in docs/reference.md, from the declarations.

`python -m tests.docs.settings_tables` writes them there.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from securefed.declare import Setting, declared
from securefed.settings.describe import toml_value
from securefed.settings.objectives import OBJECTIVE_SETTINGS
from securefed.settings.party import DataSettings, OwnSettings
from securefed.settings.protection import PROTECTIONS
from securefed.settings.run import run_settings

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"
START, END = "<!-- settings: generated -->\n", "<!-- end of settings -->"


def settings_tables() -> str:
    """Every setting of party.toml in Markdown: a table for each table of the file."""
    parts = ["### [party]", _table(declared(OwnSettings).values())]
    parts += ["### [data]", _table(declared(DataSettings).values())]
    for objective in OBJECTIVE_SETTINGS:
        parts += [f'### [run], objective "{objective}"', _table(run_settings(objective).values())]
    for kind in PROTECTIONS.values():
        settings = [each for each in declared(kind).values() if each.in_file]
        parts += [f'### [run.protection], kind "{kind.kind}"', _table(settings, objectives=True)]
    return "\n\n".join(parts) + "\n"


def _table(settings: Iterable[Setting], *, objectives: bool = False) -> str:
    rows = ["| setting | default | meaning |", "|---|---|---|"]
    for each in settings:
        writable = isinstance(each.default, str | int | float | list | tuple | dict)
        default = f"`{toml_value(each.default)}`" if writable else ""
        only = f" ({' and '.join(each.objectives)} only)" if objectives and each.objectives else ""
        meaning = each.doc.replace("|", "\\|")
        rows.append(f"| `{each.name}` | {default} | {meaning}{only} |")
    return "\n".join(rows)


if __name__ == "__main__":
    before, rest = PAGE.read_text(encoding="utf-8").split(START)
    PAGE.write_text(f"{before}{START}\n{settings_tables()}\n{END}{rest.split(END)[1]}", encoding="utf-8")
