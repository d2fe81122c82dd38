"""Blind training in fixed point: what is public, and what a party does to its hidden parameters in a round.

With a Taylor loss (residual a y + b H) and a linear local model, the Q local steps of a round are one affine
map,

    theta_Q = theta_0 - P_Q (X' g / S + l2 theta_0),

S the batch size, g the residuals at the round's exchange and P_Q the matrix of securefed.protocols.steps. It
comes from the party's own columns alone, so theta can stay hidden under a key that its party lacks: the party
multiplies the hidden g by the plain matrix P_Q X'/S, and the hidden theta_0 by I - l2 P_Q. The cost does not
depend on Q. theta and g have a column for each output.

Scales (fraction bits): features 26, parameters 40, hence margins 66; residuals 30, update matrix 40, hence
moved parameters 70, and I - l2 P_Q 30. b is a factor of the features when margins are computed for
training, so it may be any number. Scales and ranges are public and the same at all parties, in all schemes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

import numpy as np
from numpy.typing import NDArray

from securefed.crypto.errors import CapacityError, RangeError
from securefed.crypto.hidden import HidingKey, PlainMatrix, Range, Result, Wide, slack_for, to_integers
from securefed.errors import DataError, SettingError
from securefed.protocols.agreement import Agreement
from securefed.protocols.losses import Loss
from securefed.protocols.range_check import sums_for

__all__ = ["BlindPlan", "hidden_entries", "largest_of"]

Array = NDArray[np.float64]

FEATURE_BITS = 26
PARAMETER_BITS = 40
MARGIN_BITS = FEATURE_BITS + PARAMETER_BITS
RESIDUAL_BITS = 30
UPDATE_BITS = 40
MOVED_BITS = RESIDUAL_BITS + UPDATE_BITS
DECAY_BITS = MOVED_BITS - PARAMETER_BITS
HEADROOM_BITS = 8
"""Of parameters above their declared bound: what goes beyond takes bits off the masks, and is reported."""
UPDATE_BOUND_BITS = 6
RELEASE_BITS = 46
SCORED_ENTRIES = 1 << 32
"""Entries that are scored under one key, for the masks of a prediction."""


def hidden_entries(agreement: Agreement) -> int:
    """Entries that key-holders read under masks in a whole run: margins and parameters, every turn."""
    margins = agreement.batches.effective_size * (2 if agreement.mutual else 1)
    moved = sum(member.equations for member in agreement.members)
    turns = len(agreement.turns)
    return agreement.stopping.rounds * (turns * margins + 2 * moved) * agreement.columns


@dataclass(frozen=True)
class BlindPlan:
    """The public ranges of a run, and the matrices that follow from a party's columns."""

    loss: Loss
    parties: int
    columns: int
    """Of all parties together."""
    l2: float
    feature_bound: float
    parameter_bound: float
    margin_bound: float
    outputs: int = 1
    entries: int = SCORED_ENTRIES
    """Entries that are hidden in the run: the masks are as much wider than the values as that takes."""

    @property
    def slack(self) -> int:
        return slack_for(self.entries)

    # Ranges

    @property
    def parameters(self) -> Range:
        return Range(PARAMETER_BITS, PARAMETER_BITS + _bits(self.parameter_bound) + HEADROOM_BITS)

    @property
    def moved(self) -> Range:
        """Parameters after a round, before their refresh."""
        return Range(MOVED_BITS, self.parameters.bits + DECAY_BITS)

    @property
    def margins(self) -> Range:
        """b H of all parties together, and the labels' part."""
        features = FEATURE_BITS + _bits(self.feature_bound * max(1.0, self.loss.margin_weight))
        products = self.parameters.bits + features + _bits(self.columns)
        labels = MARGIN_BITS + _bits(abs(self.loss.label_weight) * self.label_bound)
        return Range(MARGIN_BITS, max(products, labels) + 2)

    @property
    def residuals(self) -> Range:
        return self.margins.cut(MARGIN_BITS - RESIDUAL_BITS)

    @property
    def label_bound(self) -> float:
        return 1.0 if self.loss.binary else self.margin_bound

    def lifted(self, key: HidingKey) -> Range:
        """Parameters for scoring."""
        return self.parameters.cut(-key.scoring_lift)

    def scores(self, key: HidingKey) -> Range:
        return self.margins.cut(-key.scoring_lift)

    def check_room(self, key: HidingKey) -> None:
        """CapacityError where values and their masks do not fit: what cannot be hidden does not start."""
        lacking = -min(
            key.room(self.margins, self.slack),
            key.room(self.moved, self.slack),
            key.room(self.lifted(key), self.slack),
        )
        if lacking > 0:
            raise CapacityError(
                f"values of this run and masks that hide {self.entries:,} of them take {lacking} bits more"
                f" than {key!r} has: lower feature_bound ({self.feature_bound:g}), parameter_bound"
                f" ({self.parameter_bound:g}) or rounds"
            )

    @staticmethod
    def residual_blocks(key: HidingKey, agreement: Agreement) -> int:
        """Pieces of residuals, for whoever makes most of them."""
        most = max(member.equations for member in agreement.members)
        return key.blocks_for(agreement.batches.effective_size, most, rough=agreement.takes_on_trust)

    # What a run computes, for the keys that merges take

    def results(self, key: HidingKey, agreement: Agreement, *, scoring: bool) -> list[Result]:
        rows, outputs = agreement.batches.effective_size, agreement.columns
        residual_blocks = self.residual_blocks(key, agreement)
        found: list[Result] = []
        for member in agreement.members:
            size = member.equations
            blocks = key.blocks_for(size, rows, rough=agreement.takes_on_trust)
            found += [
                Result(rows, outputs, size, blocks),
                Result(size, outputs, rows, residual_blocks),
                Result(size, outputs, size, blocks),
            ]
            if scoring:
                found += [Result(0, outputs, size)]
            for entries, pieces in ((size, blocks), (rows, residual_blocks)) if agreement.check_every else ():
                numbers, _ = key.places(entries, pieces)
                count = key.array_ciphertexts((entries, 1), pieces)
                found += [Result(sums_for(agreement.check_every), outputs, numbers, count)]
        return found

    # Matrices

    def check_features(self, features: Array, party: str) -> None:
        largest = largest_of(features)
        if largest > self.feature_bound:
            raise DataError(
                f"{party}: a feature of magnitude {largest:.4g} given, at most feature_bound="
                f"{self.feature_bound:g} is allowed; standardise the columns or raise it"
            )

    def feature_matrix(self, features: Array, *, keep: bool = False) -> PlainMatrix:
        """X, for scores."""
        return PlainMatrix(features, FEATURE_BITS, FEATURE_BITS + _bits(self.feature_bound) + 1, keep)

    def release_matrix(self, size: int) -> PlainMatrix:
        """I, at a scale that leaves an opening's flooding far below the digits that are shown."""
        return PlainMatrix(np.eye(size), RELEASE_BITS, RELEASE_BITS + 1)

    def released(self, key: HidingKey) -> Range:
        lifted = self.lifted(key)
        return Range(lifted.fraction_bits + RELEASE_BITS, lifted.bits + RELEASE_BITS + 1)

    def margin_matrix(self, features: Array, *, keep: bool = False, rough: bool = False) -> PlainMatrix:
        """b X."""
        weight = self.loss.margin_weight
        bits = FEATURE_BITS + _bits(self.feature_bound * max(1.0, weight)) + 1
        return PlainMatrix(features, FEATURE_BITS, bits, keep, weight=weight, rough=rough)

    def update_matrices(
        self,
        matrix: Array,
        features: Array,
        rows: int,
        momentum: float = 0.0,
        *,
        idle: NDArray[np.bool_] | None = None,
        keep: bool = False,
        rough: bool = False,
    ) -> tuple[PlainMatrix, PlainMatrix]:
        """-P_Q X'/S and (1 + momentum) I - l2 P_Q; `matrix` is P_Q, S the `rows` that are learnt from, `idle`
        the others.
        """
        try:
            moved = PlainMatrix(
                features,
                UPDATE_BITS,
                UPDATE_BITS + UPDATE_BOUND_BITS,
                keep,
                left=matrix,
                weight=-1.0 / rows,
                idle=idle,
                rough=rough,
            )
            decay = (1.0 + momentum) * np.eye(len(matrix)) - self.l2 * matrix
            kept = PlainMatrix(decay, DECAY_BITS, DECAY_BITS + 4, keep)
        except RangeError as error:
            raise SettingError(
                f"learning_rate: the local steps make a party's update too large ({error});"
                " standardise its columns"
            ) from None
        return moved, kept

    def momentum_matrix(self, size: int, momentum: float) -> PlainMatrix:
        """-momentum I, for the parameters of the round before."""
        return PlainMatrix(-momentum * np.eye(size), DECAY_BITS, DECAY_BITS + 4)

    def label_integers(self, labels: Array, fraction_bits: int) -> Wide:
        """a y, at a scale of margins or of residuals."""
        return to_integers(self.loss.label_weight * labels.reshape(len(labels), -1), fraction_bits)


def largest_of(features: Array, block: int = 1 << 16) -> float:
    """The largest magnitude, by blocks of rows."""
    starts = range(0, len(features), block)
    return max(float(np.max(np.abs(features[start : start + block]))) for start in starts)


def _bits(bound: float) -> int:
    """b with bound <= 2**b; at least 0."""
    return max(0, ceil(log2(bound)))
