"""What the CKKS tests share: the path of an opening, and how far off its result may be."""

from __future__ import annotations

from math import sqrt

import numpy as np

from securefed.crypto import FixedPoint, KeyHolder, load_public_key
from securefed.crypto.ckks.arrays import CkksEncrypted, CkksMasked
from securefed.crypto.ckks.form import DATA_BITS, flood_deviation
from securefed.crypto.ckks.keys import CkksPublicKey, CkksSecretKey, generate_secret_key
from securefed.crypto.ckks.layout import RowLayout, SumLayout
from securefed.crypto.lattice.ring import DEGREE, RING

__all__ = ["ONE", "Desk", "numbers", "tolerance"]

ONE = FixedPoint(bound=1.0, fraction_bits=32)
# Entries of one test lie within so many deviations, but for a chance of 10^-10 at 10^5 entries.
DEVIATIONS = 8.0


def numbers(*shape: int, seed: int = 0, bound: float = 1.0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-bound, bound, shape)


class Desk:
    """A key-holder, and the public key as a peer has it."""

    def __init__(self, secret: CkksSecretKey, public: CkksPublicKey) -> None:
        self.secret = secret
        self.holder = KeyHolder(secret)
        self.public = public

    @classmethod
    def fresh(cls) -> Desk:
        secret = generate_secret_key()
        public = load_public_key(secret.public.to_bytes())
        assert isinstance(public, CkksPublicKey)
        return cls(secret, public)

    def open(self, encrypted: CkksEncrypted) -> np.ndarray:
        """Over bytes, each way."""
        masked, mask = encrypted.mask()
        reply = self.holder.open(self.public.load_masked(masked.to_bytes()))
        return mask.remove(self.public.load_opened(reply.to_bytes()))

    def phase(self, encrypted: CkksEncrypted) -> np.ndarray:
        """What is under mask and flood at the returned coefficients: value + noise, for tests that look."""
        masked, mask = encrypted.mask()
        assert isinstance(masked, CkksMasked)
        return RING.reduced(self.secret._phase(masked) - mask._residues)


def tolerance(encrypted: CkksEncrypted, data_bound: float = 1.0, data_scale: int | None = None) -> float:
    """Derived bound on the error of an opened entry.

    1. Flood and noise: sigma on every returned coefficient. A sum is stride times a combination of 2G
       coefficients whose real part has squared weights adding up to G; a real slot of N/2 coefficients, each
       used with its mirror image, has 2 N/2 = N.
    2. Multipliers: the rounding of a coefficient is uniform in +-1/2, so a coefficient of the product is off
       by the norm of the message over sqrt(12), which is at most its bound (Parseval); then as in 1.
    3. Messages: float64 transforms, 2^-48 of the bound at each value.
    """
    form, layout = encrypted.form, encrypted.form.layout
    flood = flood_deviation(form.noise, layout.coefficients, layout.units, layout.levels)
    spread = layout.stride * sqrt(layout.groups) if isinstance(layout, SumLayout) else sqrt(DEGREE)
    error = DEVIATIONS * 1.001 * flood * spread * 2.0**-form.scale
    exact = 2.0**-48 * encrypted.bound
    if form.product:
        fresh = DATA_BITS - int(np.ceil(np.log2(data_bound)))
        multiplier_scale = form.scale - (fresh if data_scale is None else data_scale)
        error += DEVIATIONS * spread * sqrt(form.noise.blocks / 12) * 2.0**-multiplier_scale * data_bound
    assert isinstance(layout, RowLayout | SumLayout)
    return float(error + exact)
