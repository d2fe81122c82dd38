"""The parties of a blind run: public sizes, and who holds shares."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Parties"]


@dataclass(frozen=True)
class Parties:
    """Names and numbers of parameters. The label party and a second holder share all numbers."""

    names: tuple[str, ...]
    """The parties with data, the label party last."""
    sizes: tuple[int, ...]
    helper: str | None
    """The second holder of more than two parties; it has no data."""
    outputs: int

    @property
    def label_party(self) -> str:
        return self.names[-1]

    @property
    def second(self) -> str:
        """The second holder: the other party of two, or the helper."""
        return self.names[0] if self.helper is None else self.helper

    @property
    def holders(self) -> tuple[str, str]:
        return self.label_party, self.second

    @property
    def columns(self) -> int:
        return sum(self.sizes)

    def peer(self, name: str) -> str:
        """Return the other holder."""
        return self.holders[name == self.label_party]

    def size(self, name: str) -> int:
        return self.sizes[self.names.index(name)]

    def block(self, name: str) -> slice:
        """Return the places of a party's parameters among all."""
        place = self.names.index(name)
        start = sum(self.sizes[:place])
        return slice(start, start + self.sizes[place])
