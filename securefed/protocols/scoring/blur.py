"""Blurred scores: each scored party adds noise to its part, so that a score shows only its leading digits.

    opened = exact + n,   n uniform in [-2**(w-1), 2**(w-1)) integer units,   w = fraction - precision bits

Modulo 2**w the opened number is uniform and independent of the exact one. docs/proofs.md says why less does
not suffice (the line of the score ledger).

Repeated questions must not average the noise away. So n is a keyed function (BLAKE2b under a secret of the
scored party) of everything this party holds that determines the exact number. If the exact number may differ,
by however little, the noise differs too: the difference of two scores under the same noise would be exact.
Near-identical models scored on the same people still average: `score_ledger` counts that.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from securefed.crypto.fixed import Floats
from securefed.declare import check_integer
from securefed.errors import SettingError

PRECISION = 10
"""Bits after the point that a score shows: 2**-10, three digits."""
MOST_PRECISION = 24
KEY_BYTES = 32


def blur(
    rows: Floats,
    *,
    key: bytes,
    context: bytes,
    precision_bits: int,
    fraction_bits: int,
    placed: bool = False,
) -> list[int]:
    """Return the noise for the scores of `rows`, in integer units of 2**-fraction_bits.

    `key`: the secret of the scored party. `context`: the bytes that determine the exact score besides the
    row. `placed`: the context covers all these rows together. Each place then has noise of its own, since
    equal rows may have different scores.
    """
    check_integer("precision_bits", precision_bits, least=0, most=MOST_PRECISION)
    width = fraction_bits - precision_bits
    if not 1 <= width <= 8 * blake2b.MAX_DIGEST_SIZE:
        raise SettingError(
            f"fraction_bits: {fraction_bits} given, 1 to {8 * blake2b.MAX_DIGEST_SIZE} more than the"
            f" precision's {precision_bits} are allowed"
        )
    # Noise of two widths from one stream would share bits, so the widths are part of the question.
    stream = keyed(key, sizes(precision_bits, fraction_bits) + context, b"score context", 32)
    size, most, half = -(-width // 8), 1 << width, 1 << (width - 1)
    contents = row_contents(rows)
    if placed:
        contents = [place.to_bytes(8, "little") + row for place, row in enumerate(contents)]
    return [
        int.from_bytes(keyed(stream, row, b"score blur", size), "little") % most - half for row in contents
    ]


def sizes(precision_bits: int, fraction_bits: int) -> bytes:
    """Return the widths of scores and noise as a part of a question."""
    return precision_bits.to_bytes(2, "little") + fraction_bits.to_bytes(2, "little")


def keyed(key: bytes, message: bytes, purpose: bytes, size: int) -> bytes:
    """Return `size` bytes that nobody foretells without the key."""
    return blake2b(message, key=key, person=purpose, digest_size=size).digest()


def row_contents(rows: Floats) -> list[bytes]:
    """Return each row's numbers as bytes. 0 and -0 are the same number."""
    return [row.tobytes() for row in np.ascontiguousarray(rows + 0.0, dtype="<f8")]


def on_grid(values: Floats, noise: Sequence[int], fraction_bits: int) -> Floats:
    """Round values to multiples of 2**-fraction_bits and add the noise."""
    integers = np.rint(np.ldexp(values, fraction_bits)) + np.array(noise, dtype=np.float64)
    blurred: Floats = np.ldexp(integers, -fraction_bits)
    return blurred
