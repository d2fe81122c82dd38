"""Blurred scores: whoever is scored adds noise to its part, so that a score shows a score and no more.

An exact score is a whole number of many bits, sum_j x_j theta_j in integer units. Far more than its leading
digits is in it: from one exact prediction of 40 people a label party found the other party's columns, bit by
bit, by reducing a lattice (tests/audit/test_attack_scores.py). So every party but the label party adds to its
own part, before the part leaves it, a number uniform over one whole step of the public precision,

    opened = exact + n,   n uniform in [-2**(w-1), 2**(w-1)) integer units,   w = fraction - precision bits,

at the full resolution of the integers: modulo 2**w what is opened is uniform and independent of what is
exact, so nothing below the precision is left in it. Cutting low bits off instead would not do: the label
party knows its own part and its mask, and each carry would compare its low bits with the hidden ones.

Asking twice must not average the noise away, so n is a keyed function (BLAKE2b under a secret of the party
that is scored) of everything that the exact number follows from, as far as this party holds it: the row's
content, its own part of the model and, in transfer learning, the other's part as it arrived. The same
question gets the same answer; where the exact number may be another one, by however little, the noise is
another one too, since the difference of two scores under the same noise would be exact again. People whose
rows are equal get equal noise.

What is left: near-identical models scored on the same people still average. `score_ledger` counts that.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np

from securefed.checks import check_integer
from securefed.crypto.scheme import Floats
from securefed.errors import SettingError

__all__ = ["KEY_BYTES", "MOST_PRECISION", "PRECISION", "ScoreGuard", "blur", "on_grid", "row_contents"]

PRECISION = 10
"""Bits after the point that a score shows: 2**-10, three digits."""
MOST_PRECISION = 24
KEY_BYTES = 32


def blur(rows: Floats, *, key: bytes, context: bytes, precision_bits: int, fraction_bits: int) -> list[int]:
    """What to add to the scores of `rows`, in integer units of 2**-fraction_bits.

    `key`: the secret of the party that is scored. `context`: what besides the row the exact score follows
    from, in bytes; it is hashed, so it may be long.
    """
    check_integer("precision_bits", precision_bits, least=0, most=MOST_PRECISION)
    width = fraction_bits - precision_bits
    if not 1 <= width <= 8 * blake2b.MAX_DIGEST_SIZE:
        raise SettingError(
            f"fraction_bits: {fraction_bits} given, 1 to {8 * blake2b.MAX_DIGEST_SIZE} more than the"
            f" precision's {precision_bits} are allowed"
        )
    # Noise of two widths from one stream would share bits, so the widths are part of the question.
    sizes = precision_bits.to_bytes(2, "little") + fraction_bits.to_bytes(2, "little")
    stream = _keyed(key, sizes + context, b"score context", 32)
    size, most, half = -(-width // 8), 1 << width, 1 << (width - 1)
    return [
        int.from_bytes(_keyed(stream, row, b"score blur", size), "little") % most - half
        for row in row_contents(rows)
    ]


def _keyed(key: bytes, message: bytes, purpose: bytes, size: int) -> bytes:
    return blake2b(message, key=key, person=purpose, digest_size=size).digest()


def row_contents(rows: Floats) -> list[bytes]:
    """Each row's numbers as bytes; 0 and -0 are one number."""
    return [row.tobytes() for row in np.ascontiguousarray(rows + 0.0, dtype="<f8")]


def on_grid(values: Floats, noise: Sequence[int], fraction_bits: int) -> Floats:
    """values, rounded to whole multiples of 2**-fraction_bits, with the noise added."""
    integers = np.rint(np.ldexp(values, fraction_bits)) + np.array(noise, dtype=np.float64)
    blurred: Floats = np.ldexp(integers, -fraction_bits)
    return blurred


@dataclass(frozen=True)
class ScoreGuard:
    """What a party that is scored keeps about that: the secret that its noise follows from.

    It has to survive for as long as the model, else the same question gets a second answer.
    """

    key: bytes = field(default_factory=lambda: secrets.token_bytes(KEY_BYTES), repr=False)

    def __post_init__(self) -> None:
        if len(self.key) != KEY_BYTES:
            raise SettingError(f"score key: {len(self.key)} bytes given, {KEY_BYTES} are allowed")

    def noise(
        self, rows: Floats, context: bytes, *, precision_bits: int, fraction_bits: int
    ) -> tuple[list[int], dict[str, Any]]:
        """The noise for one scoring, and what the transcript says of it: its size, never the noise."""
        noise = blur(
            rows,
            key=self.key,
            context=context,
            precision_bits=precision_bits,
            fraction_bits=fraction_bits,
        )
        facts = {"precision_bits": precision_bits, "noise_bits": fraction_bits - precision_bits}
        return noise, {"blur": facts}
