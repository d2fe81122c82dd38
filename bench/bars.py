"""A promise of this package, and whether a measurement keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Bar:
    """One promise. `better` says on which side of the bar the value has to be: "less" or "more"."""

    name: str
    value: float
    bar: float
    better: str
    met: bool
    note: str = ""

    @classmethod
    def of(cls, name: str, value: float, bar: float, better: str, note: str = "") -> Bar:
        met = value <= bar if better == "less" else value >= bar
        return cls(name, float(f"{value:.5g}"), bar, better, met, note)

    @classmethod
    def unmeasured(cls, name: str, bar: float, better: str, note: str) -> Bar:
        """A bar without a measurement is not met; the note says why there is none."""
        return cls(name, 0.0, bar, better, False, f"not measured: {note}")


def show_bars(bars: Sequence[Bar]) -> None:
    print()
    for bar in bars:
        sign = "at most" if bar.better == "less" else "at least"
        verdict = "met   " if bar.met else "MISSED"
        print(f"{verdict}  {bar.name}: {bar.value:g} ({sign} {bar.bar:g}) {bar.note}".rstrip())
