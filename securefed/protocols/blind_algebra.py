"""Blind training in fixed point: what stays public, and what one party does to its encrypted parameters in
a round.

With a Taylor loss (residual a y + b H) and a linear local model, the Q local steps of a round are one
affine map,

    theta_Q = theta_0 - P (X' g / S + l2 theta_0),

S the batch size, g the residuals at the round's exchange and P the matrix of securefed.protocols.steps. P
comes from the party's own columns alone, so theta can stay encrypted under a key that its party lacks: the
party multiplies the encrypted g by the plaintext matrix P X'/S, and the encrypted theta_0 by I - l2 P. The
cost does not depend on Q.

Scales (fraction bits): features 20, residuals 24, update matrix 32, hence parameters 56 and margins 76.
All of them, and the ranges, are public and the same at all parties.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import FixedPoint
from securefed.crypto.errors import RangeError
from securefed.crypto.paillier import PaillierEncrypted, PaillierPublicKey
from securefed.crypto.paillier.extent import Extent
from securefed.crypto.paillier.slots import SLACK, PaillierSlots, bits_of
from securefed.errors import DataError, SettingError
from securefed.protocols.losses import Loss

__all__ = ["BlindPlan"]

Array = NDArray[np.float64]

FEATURE_BITS = 20
RESIDUAL_BITS = 24
UPDATE_BITS = 32
PARAMETER_BITS = RESIDUAL_BITS + UPDATE_BITS
MARGIN_BITS = PARAMETER_BITS + FEATURE_BITS


@dataclass(frozen=True)
class BlindPlan:
    """The public ranges of a run. Honest values stay within them; what leaves them by far stops the run."""

    loss: Loss
    parties: int
    columns: int
    """Of all parties together."""
    l2: float
    feature_bound: float
    parameter_bound: float
    margin_bound: float
    update_bound: float = 64.0

    @property
    def margin_shift(self) -> int:
        """Low bits cut off when margins become residuals. b is a power of two: b H is H at another scale."""
        return MARGIN_BITS - int(log2(self.loss.margin_weight)) - RESIDUAL_BITS

    @property
    def margin_total(self) -> float:
        """Bound on what the residual's slots hold, in units of H: all margins, and the labels' part."""
        labels = 1.0 if self.loss.binary else self.margin_bound
        return (
            self.parties * self.margin_bound + abs(self.loss.label_weight) / self.loss.margin_weight * labels
        )

    @property
    def margin_reach(self) -> int:
        """Bits that margins can take when parameters and features are in range; the same at all parties."""
        products = self.columns * self.parameter_extent().magnitude << self.features.magnitude_bits
        return max(products.bit_length(), bits_of(self.margin_total, MARGIN_BITS)) + 1

    @property
    def features(self) -> FixedPoint:
        return FixedPoint(self.feature_bound, FEATURE_BITS)

    @property
    def update(self) -> FixedPoint:
        return FixedPoint(self.update_bound, UPDATE_BITS)

    def residual_extent(self) -> Extent:
        bits = bits_of(self.margin_total, MARGIN_BITS) - self.margin_shift + 1
        return Extent(RESIDUAL_BITS, 1 << bits, float(2.0 ** (bits - RESIDUAL_BITS)))

    def parameter_extent(self) -> Extent:
        bits = bits_of(self.parameter_bound, PARAMETER_BITS) + 1
        return Extent(PARAMETER_BITS, 1 << bits, float(2.0 ** (bits - PARAMETER_BITS)))

    @property
    def decay_shift(self) -> int:
        """Low bits cut off when parameters are refreshed: those that the l2 term added."""
        return UPDATE_BITS if self.l2 > 0 else 0

    def hidden_extent(self, plain: Extent, shift: int) -> Extent:
        """Of value + mask after the shift, as the key-holder encrypts it again."""
        wide = plain.magnitude << (SLACK + 2)
        return Extent(plain.fraction_bits, wide, plain.bound * 2.0 ** (SLACK + 2))

    def check_features(self, features: Array, party: str) -> None:
        largest = float(np.max(np.abs(features)))
        if largest > self.feature_bound:
            raise DataError(
                f"{party}: a feature of magnitude {largest:.4g} given, at most feature_bound="
                f"{self.feature_bound:g} is allowed; standardise the columns or raise it"
            )

    def start(self, public: PaillierPublicKey, size: int) -> PaillierEncrypted:
        """Encrypted zeros: theta before the first round."""
        extent = self.parameter_extent()
        return PaillierEncrypted(public, (size,), public.combine([0] * size, public.draw(size)), extent)

    def margins(self, parameters: PaillierEncrypted, features: Array) -> PaillierSlots:
        """[[X theta]], packed."""
        margins = parameters.contract(features[None], self.features)
        return PaillierSlots.pack(margins, self.margin_total, self.margin_reach)  # type: ignore[arg-type]

    def label_integers(self, labels: Array, fraction_bits: int, *, margin_units: bool) -> list[int]:
        """a y, at a scale of margins (in units of H, so divided by b) or of residuals."""
        weight = self.loss.label_weight / (self.loss.margin_weight if margin_units else 1.0)
        scale = 1 << fraction_bits
        return [round(weight * float(label) * scale) for label in labels]

    def updated(
        self,
        parameters: PaillierEncrypted,
        residuals: PaillierEncrypted,
        features: Array,
        matrix: Array,
    ) -> PaillierSlots:
        """[[theta_Q]], packed for a refresh; `matrix` is P."""
        try:
            moved = residuals.contract(-(matrix @ features.T)[None] / len(features), self.update)
            kept = parameters
            if self.l2 > 0:
                decay = np.eye(len(matrix)) - self.l2 * matrix
                kept = parameters.contract(decay[None], self.update)  # type: ignore[assignment]
        except RangeError as error:
            raise SettingError(
                f"learning_rate: the local steps make a party's update too large ({error});"
                " standardise its columns"
            ) from None
        return PaillierSlots.pack(kept + moved, self.parameter_bound)  # type: ignore[arg-type]

    def describe(self) -> dict[str, float]:
        return {
            "feature_bound": self.feature_bound,
            "parameter_bound": self.parameter_bound,
            "margin_bound": self.margin_bound,
            "mask_slack_bits": float(SLACK),
            "margin_slot_bits": float(ceil(self.margin_reach + SLACK + 2)),
        }
