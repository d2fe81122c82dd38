"""Texts that derive from declared settings: party.toml's template, and docstrings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

from securefed.declare import Declared, Setting, declared, in_file
from securefed.settings.party import DataSettings, OwnSettings
from securefed.settings.protection import PROTECTIONS, Blind
from securefed.settings.run import run_settings

WIDTH = 100


def party_toml(name: str, *, key_holder: bool, listen: str, parties: Sequence[str] = ()) -> str:
    """Write a party.toml to edit: every setting with its meaning, those with a default commented out.

    `key_holder`: it is the party without data. `parties`: those with data, the label party last; examples
    where none are named.
    """
    if not parties:
        others = ("shop", "insurer", "bank") if key_holder else ("shop", "bank")
        parties = others if key_holder or name in others else (name, "bank")
    third = None if len(parties) == 2 else name if key_holder else "notary"
    own: dict[str, Any] = {"name": name, "role": "key-holder" if key_holder else "data", "listen": listen}
    data: dict[str, Any] = {"file": f"{name}.csv", "id": "id"}
    if name == parties[-1]:
        data["label"] = "label"
    everybody = [*parties, third] if third is not None else parties
    parts = [
        f"# securefed: the settings of {name}. Edit, then:  securefed party party.toml",
        "# Lines that begin with # are comments. A setting that is commented out shows its default.",
        "# securefed check party.toml lists everything that is still wrong. Paths are relative to this file.",
        "",
        "[party]",
        *_lines(declared(OwnSettings), own),
    ]
    if not key_holder:
        parts += ["", "# This party's data. It never leaves this machine.", "[data]"]
        parts += _lines(declared(DataSettings), data)
    parts += [
        "",
        "# One table for each other party: its address, and the certificate that its operator handed over.",
        f"# Compare fingerprints by telephone: `securefed init {name} --show` prints this party's.",
    ]
    for peer in everybody:
        if peer != name:
            parts += [
                f"[peers.{peer}]",
                f'address = "{peer}.example:7001"',
                f'certificate = "peers/{peer}.pem"',
            ]
    parts += [
        "",
        "# The same at all parties: they compare every value when they meet, and name what differs.",
        "[run]",
        'name = "first-run"',
        "# In the order of their turns; the last one has the labels.",
        f"parties = {toml_value(list(parties))}",
        "# The party without data, with three parties or more.",
        '#key_holder = "notary"' if third is None else f'key_holder = "{third}"',
        '# "linear": all have the same people; "transfer": two parties share some.',
        'objective = "linear"',
        *_lines(run_settings("linear"), {}),
        "",
        "# What training reveals:",
        *(f'#   "{kind.kind}": {kind.summary}' for kind in PROTECTIONS.values()),
        "[run.protection]",
        f'kind = "{Blind.kind}"',
        *_lines(in_file(Blind, "linear"), {"scheme": declared(Blind)["scheme"].default}),
        *_others("linear"),
        "",
    ]
    return "\n".join(parts)


def _others(objective: str) -> list[str]:
    """What other kinds of protection take besides."""
    lines = []
    shown = in_file(Blind, objective)
    for kind in PROTECTIONS.values():
        names = [name for name in in_file(kind, objective) if name not in shown]
        if names:
            lines += _comment(f'kind = "{kind.kind}" also takes {", ".join(names)} (docs/reference.md).')
    return lines


def _lines(settings: Mapping[str, Setting], values: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, each in settings.items():
        lines += _comment(each.doc)
        if name in values:
            lines.append(f"{name} = {toml_value(values[name])}")
        else:
            # An example where TOML cannot write the default.
            lines.append(f"#{name} = {toml_value(each.default if each.example is None else each.example)}")
    return lines


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in wrap(text, WIDTH)]


def toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml_value(item)}" for key, item in value.items()) + " }"
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def toml_lines(table: Mapping[str, Any], name: str) -> list[str]:
    """Write a table with its sub-tables, without its own heading."""
    lines = [f"{key} = {toml_value(value)}" for key, value in table.items() if not isinstance(value, dict)]
    for key, value in table.items():
        if isinstance(value, dict):
            lines += [f"[{name}.{key}]", *toml_lines(value, f"{name}.{key}")]
    return lines


def parameters_text(settings: type[Declared]) -> str:
    """The section Parameters of an estimator's docstring."""
    lines = ["Parameters", "----------"]
    for name, each in declared(settings).items():
        lines += [f"{name} : {each.kind}", *(f"    {line}" for line in wrap(each.doc, WIDTH - 4))]
    return "\n".join(lines)
