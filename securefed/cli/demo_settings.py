"""Settings of the demonstration: it ends in some seconds on two cores."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from securefed.checks import check_integer
from securefed.cli.demo_data import DemoData
from securefed.crypto import DEFAULT_SCHEME, KEY_KINDS, SCHEMES, key_kind, protects
from securefed.errors import SettingError
from securefed.process.run_settings import RunSettings, defaults_of
from securefed.protocols.objectives import given_away

__all__ = ["DemoSettings", "choose"]

KEY_HOLDER = "notary"
"""The party without data."""


@dataclass(frozen=True)
class DemoSettings:
    """[run] without names, and the keys' size."""

    values: dict[str, Any]
    objective: str
    key_bits: int
    third: bool = False
    """Two parties have a helper too."""

    @property
    def scheme(self) -> str:
        return str(self.values["scheme"])

    @property
    def blind(self) -> bool:
        """Nothing is revealed."""
        return self.key_kind is None

    @property
    def key_kind(self) -> str | None:
        """The kind of encryption keys that the parties keep in files; None: the run makes its own."""
        return key_kind(self.scheme, str(self.values.get("reveal", "own-gradient")))

    def shared(self, parties: list[str]) -> RunSettings:
        return RunSettings.of(self.table(parties))

    def everybody(self, parties: list[str]) -> list[str]:
        return [*parties, KEY_HOLDER] if len(parties) > 2 or self.third else parties

    def table(self, parties: list[str]) -> dict[str, Any]:
        holder = {"key_holder": KEY_HOLDER} if KEY_HOLDER in self.everybody(parties) else {}
        return {"name": "demo", "parties": parties, **holder, "objective": self.objective, **self.values}

    def lines(self, data: DemoData) -> list[str]:
        """What is about to happen."""
        held = ", ".join(f"{name} has {len(columns)} columns" for name, columns in data.columns.items())
        keys = f" with {self.key_bits}-bit keys" if KEY_KINDS[SCHEMES[self.scheme].opens].sized else ""
        lines = [f"{held} and the labels"]
        if KEY_HOLDER in self.everybody(data.parties):
            lines.append(f"{KEY_HOLDER} has no data; it {'helps' if self.blind else 'holds the key'}")
        if not protects(self.scheme):
            lines.append(f"NO encryption ({self.scheme}): everybody sees everything")
        elif self.blind:
            lines.append(f"Training is encrypted ({self.scheme}{keys}). No party sees another party's data,")
            lines.append(f"or any model parameter. Only {data.label_party} sees predictions.")
        else:
            lines.append(f"Training is encrypted ({self.scheme}{keys}). Each party sees its own gradients.")
            told = given_away(self.scheme, self.values.get("reveal", "own-gradient"), self.objective)
            lines += [told] if told else []
        return lines


def choose(args: argparse.Namespace) -> DemoSettings:
    """From the command line to a run that is short and good."""
    transfer = args.objective == "transfer"
    if transfer and args.parties != 2:
        raise SettingError(f"parties: {args.parties} given, the transfer objective takes exactly 2")
    scheme = args.scheme or DEFAULT_SCHEME
    reveal = args.reveal or ("nothing" if protects(scheme) else "own-gradient")
    if args.local_steps is not None:
        check_integer("local_steps", args.local_steps, least=1)
    if args.rounds is not None:
        check_integer("rounds", args.rounds, least=1)
    values: dict[str, Any] = {"scheme": scheme, "seed": args.seed, "evaluate_every": args.evaluate_every}
    if transfer and reveal == "nothing":
        values |= {"reveal": reveal, "local_steps": args.local_steps or 5, "rounds": args.rounds or 3}
    elif transfer:
        values |= {
            "reveal": reveal,
            "hidden": 8,
            "activation": "tanh",
            "gamma": 0.05 / 8,
            "learning_rate": 0.03,
            "local_steps": args.local_steps or 5,
            "rounds": args.rounds or 12,
        }
    else:
        values |= {
            "reveal": reveal,
            "local_steps": args.local_steps or 20,
            "rounds": args.rounds or (8 if SCHEMES[scheme].costly else 24),
            "l2": 0.01,
        }
    key_bits = 3072 if args.key_bits is None else args.key_bits
    check_integer("key_bits", key_bits, least=2048, most=8192)
    if "key_bits" in defaults_of(args.objective, reveal, scheme):
        values["key_bits"] = key_bits
    return DemoSettings(values, args.objective, key_bits, args.key_holder)
