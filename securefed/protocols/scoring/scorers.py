"""A party's part of the model for scoring, without training data."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import FixedPoint
from securefed.errors import DataError
from securefed.models import HiddenLayer, LocalModel

__all__ = ["LinearScorer", "Scorer", "TransferScorer"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class LinearScorer:
    """A party's part of H in the generalised linear objective."""

    model: LocalModel
    margin_bound: float
    fraction_bits: int = 32

    @property
    def fixed(self) -> FixedPoint:
        return FixedPoint(self.margin_bound, self.fraction_bits)

    def content(self) -> bytes:
        """Return the bytes that determine the part besides the row."""
        return type(self.model).__name__.encode() + self.model.parameters.tobytes()

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        """For a file."""
        return dict(self.model.to_arrays())

    def part(self, features: Array) -> Array:
        part = self.model.forward(features)
        largest = float(np.max(np.abs(part)))
        if largest > self.margin_bound:
            raise DataError(
                f"margin_bound: |H| is {largest:.4g} for a row, at most {self.margin_bound:.4g} was declared"
            )
        return part


@dataclass(frozen=True)
class TransferScorer:
    """A's Phi, or B's hidden layer, in the transfer objective."""

    layer: HiddenLayer
    phi: Array | None
    bound: float
    fraction_bits: int = 32
    sealed: dict[bytes, bytes] = field(default_factory=dict, repr=False, compare=False)
    """A's first encryption of Phi, by key, so that the same question looks the same to B."""

    @property
    def fixed(self) -> FixedPoint:
        return FixedPoint(self.bound, self.fraction_bits)

    def content(self) -> bytes:
        """Return B's bytes that determine a score besides the row."""
        return self.layer.activation.encode() + self.layer.parameters.tobytes()

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        """For a file."""
        phi = {} if self.phi is None else {"phi": self.phi}
        return {**self.layer.to_arrays(), **phi}

    def hidden(self, features: Array) -> Array:
        """Return u of each row (B)."""
        hidden = self.layer.forward(features)
        largest = float(np.max(np.abs(hidden)))
        if largest > self.bound:
            raise DataError(
                f"activation_bound: |u| is {largest:.4g} for a row, at most {self.bound:.4g} was declared"
            )
        return hidden


Scorer = LinearScorer | TransferScorer
