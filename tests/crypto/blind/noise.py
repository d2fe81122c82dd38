"""How far shares of the lattice scheme are from U'V: bounds that follow from the parameters.

All numbers are in units of the last bit of U'V. An entry's error is a sum of many independent terms. With
2**105 / q = 1.49, errors of variance 10.5 and a secret of variance 2/3 their deviations are:

| term | deviation | in figures |
|---|---|---|
| errors and rounding of ciphertexts, times V | 1.49 sqrt(10.5 + 1/4) |V| | 4.88 |V| |
| re-randomisation: sum e_i x_i - x_0 s | 1.49 * 500,000 sqrt(4096 (7 * 10.5 + 2/3)) | 2**28.6 |
| c1 rounded to 71 bits, times s | 2**34 sqrt(4096 * 2/3 / 12) | 2**37.9 |
| c1 rounded to 42 bits, where digits have 67 bits or more | | 2**66.9 |
| the rest of switching | below 4 | |

|V| is the Euclidean norm of all numbers of V, in digits, that are multiplied into one response: the columns
that share it, all rows, all digits.

| product | size of V | deviation of an entry |
|---|---|---|
| a pass of 512 rows | 2**27.5 | 2**37.9: rounding of c1 |
| a uniform V of 101 rows | 3 digits of 35 bits | 2**40.2 |
| shares of 70 bits, 101 rows, 10 columns in a response | 2 digits of 36 bits | 2**42.0 |
| numbers of 72 bits in one piece, 51 rows | 2**71.2 | 2**76.3 |

`error_bound` takes 12 deviations: a sum of independent bounded terms is beyond that with a chance below
2**-100.
"""

from __future__ import annotations

from math import log2, sqrt

from securefed.crypto.blind.evaluation import PAIRS
from securefed.crypto.blind.interface import Product
from securefed.crypto.blind.layout import layout
from securefed.crypto.lattice.ring import DEGREE, HALF, RING
from securefed.crypto.randomness import ERROR_DEVIATION, NORMAL_DEVIATION
from securefed.crypto.shares import WIDTH

__all__ = ["convolution_error", "deviation", "error_bound"]

TERNARY_VARIANCE = 2 / 3
DEVIATIONS = 12


def deviation(product: Product, right_size: float | None = None) -> float:
    """Return the standard deviation of an entry's error.

    Parameters
    ----------
    product: the public shape.
    right_size: the root mean square of V's entries. By default what `right_bits` allows, or that of uniform
        digits.
    """
    if product.digits > 1:
        size = 2.0**product.digit_size / sqrt(12)
    else:
        size = 2.0**product.right_bits if right_size is None else right_size
    plan = layout(product)
    group = max(panel.group for panel in plan.panels)
    norm = size * sqrt(product.inner * product.digits * group)
    unit = 2.0**WIDTH / RING.modulus
    products = unit * sqrt(ERROR_DEVIATION**2 + 1 / 4) * norm
    pairs = PAIRS * ERROR_DEVIATION**2 + TERNARY_VARIANCE
    fresh = unit * NORMAL_DEVIATION * sqrt(DEGREE * pairs)
    rounded = 2.0 ** (WIDTH - plan.body_bits) * sqrt(DEGREE * TERNARY_VARIANCE / 12)
    return sqrt(products**2 + fresh**2 + rounded**2) + 4


def error_bound(product: Product, right_size: float | None = None) -> float:
    """Return what no entry's error exceeds, but with a chance below 2**-100."""
    return DEVIATIONS * deviation(product, right_size)


def convolution_error(first_norm: float, second_norm: float) -> float:
    """Bound the error of a product of two polynomials, by their Euclidean norms, before it is rounded."""
    return 3 * 7 * log2(HALF) * 2.0**-53 * first_norm * second_norm
