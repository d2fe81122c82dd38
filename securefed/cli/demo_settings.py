"""Settings of the demonstration: it ends in some seconds on two cores."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from securefed.checks import check_integer
from securefed.cli.demo_data import DemoData
from securefed.crypto import DEFAULT_SCHEME, KEY_KINDS, SCHEMES, key_kind, protects
from securefed.errors import SettingError
from securefed.protocols.agreement import given_away
from securefed.settings.protection import Blind, OwnGradient, Plain, Protection
from securefed.settings.run import RunSettings

__all__ = ["DemoSettings", "choose"]

KEY_HOLDER = "notary"
"""The party without data."""


@dataclass(frozen=True)
class DemoSettings:
    """[run] without names, and the keys' size."""

    values: dict[str, Any]
    protection: Protection
    objective: str
    key_bits: int
    third: bool = False
    """Two parties have a helper too."""

    @property
    def scheme(self) -> str:
        return self.protection.scheme

    @property
    def blind(self) -> bool:
        """Nothing is revealed."""
        return isinstance(self.protection, Blind)

    @property
    def key_kind(self) -> str | None:
        """The kind of encryption keys that the parties keep in files; None: the run makes its own."""
        return key_kind(self.scheme, self.protection.reveal)

    def run(self, parties: list[str]) -> RunSettings:
        return RunSettings.of(self.table(parties))

    def everybody(self, parties: list[str]) -> list[str]:
        return [*parties, KEY_HOLDER] if len(parties) > 2 or self.third else parties

    def table(self, parties: list[str]) -> dict[str, Any]:
        holder = {"key_holder": KEY_HOLDER} if KEY_HOLDER in self.everybody(parties) else {}
        chosen = self.protection.to_table(self.objective)
        protection = {key: value for key, value in chosen.items() if value is not None}
        return {
            "name": "demo",
            "parties": parties,
            **holder,
            "objective": self.objective,
            **self.values,
            "protection": {"kind": self.protection.kind, **protection},
        }

    def lines(self, data: DemoData) -> list[str]:
        """What is about to happen."""
        shares = ", ".join(f"{name} has {len(columns)} columns" for name, columns in data.columns.items())
        keys = f" with {self.key_bits}-bit keys" if KEY_KINDS[SCHEMES[self.scheme].opens].sized else ""
        lines = [f"{shares} and the labels"]
        if KEY_HOLDER in self.everybody(data.parties):
            lines.append(f"{KEY_HOLDER} has no data; it {'helps' if self.blind else 'holds the key'}")
        if not protects(self.scheme):
            lines.append(f"NO encryption ({self.scheme}): everybody sees everything")
        elif self.blind:
            lines.append(f"Training is encrypted ({self.scheme}{keys}). No party sees another party's data,")
            lines.append(f"or any model parameter. Only {data.label_party} sees predictions.")
        else:
            lines.append(f"Training is encrypted ({self.scheme}{keys}). Each party sees its own gradients.")
            told = given_away(self.scheme, self.protection.reveal, self.objective)
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
    key_bits = 3072 if args.key_bits is None else args.key_bits
    check_integer("key_bits", key_bits, least=2048, most=8192)
    protection: Protection = Plain(scheme=scheme) if not protects(scheme) else OwnGradient(scheme=scheme)
    if reveal == "nothing" and protects(scheme):
        protection = Blind(scheme=scheme, key_bits=key_bits)
    values: dict[str, Any] = {"seed": args.seed, "evaluate_every": args.evaluate_every}
    if transfer and isinstance(protection, Blind):
        values |= {"local_steps": args.local_steps or 5, "rounds": args.rounds or 3}
    elif transfer:
        protection = protection.as_kind(type(protection), activation="tanh")
        values |= {
            "hidden": 8,
            "gamma": 0.05 / 8,
            "learning_rate": 0.03,
            "local_steps": args.local_steps or 5,
            "rounds": args.rounds or 12,
        }
    else:
        values |= {
            "local_steps": args.local_steps or 20,
            "rounds": args.rounds or (8 if SCHEMES[scheme].costly else 24),
            "l2": 0.01,
        }
    return DemoSettings(values, protection, args.objective, key_bits, args.key_holder)
