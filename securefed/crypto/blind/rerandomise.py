"""Statistical re-randomisation: what makes a reply independent of V, whatever the encryptor sent.

The multiplier's nonce gives uniform polynomials a_1..a_7, and the public key is b_i = -(a_i s + e_i). For
every outgoing ciphertext the multiplier draws x_0..x_7, rounded normals of deviation 500,000, and adds

    x_0 + sum_i a_i x_i    to c1,        sum_i b_i x_i    to c0.

Claim: given the nonce, c1 of one response is uniform up to a statistical distance of 2**-66 on average over
nonces, for any b_i and any ciphertexts of the encryptor. m responses are uniform together up to m 2**-66. c0
is masked afterwards, so nothing is asked of it. "Uniform a_i" treats AES-256 under a random key as a random
function: the encryptor knows the key, and it did not choose it.

Why. N = 4096, and q is a product of 5 primes p that split into N ideals each, so that R/q is a product of
fields with p elements. Let d = x - x' be the difference of two independent draws. The leftover hash lemma
bounds the squared distance from uniform, on average over a, by

    (q**N Pr[d_0 + sum a_i d_i = 0] - 1) / 4.

For one ideal P the chance over a is 1/p unless d_1..d_7 are all 0 modulo P, and then d_0 has to be 0 too. The
ideals are independent because a_i is uniform in each field. So q**N Pr[..] is at most the mean of the product
over all P of 1 + p [all d_i in P]. Expanding that product bounds q**N Pr[..] - 1 by the sum over ideals I !=
1 that divide q of

    norm(I) Pr[d_0 in I]**8.

Let I have norm M. Its dual, in coefficients, is the conjugate of its inverse. The norm of an element of that
is at least 1/M, and at most the N-th power of its length. So the dual has no vector shorter than M**(-1/N).
d_0 is the difference of two rounded normals. Its probabilities are values of a function on real vectors,
whose Fourier transform is at most that of a normal with Gaussian parameter S = sqrt(2) 500,000 sqrt(2 pi) =
2**20.76: rounding multiplies it by squares of sinc. By Poisson summation and Banaszczyk's lemma

    Pr[d_0 in I] <= (1 + 2**-N) max(1 / M, (sqrt(N) / S)**N).

The terms with 1/M add up to less than 5 N p**-7 = 2**-131. The others add up to at most (prod (1 + p)
(sqrt(N) / S)**8)**N = 2**((104.4 - 118.1) N). The square root of 2**-131 / 4 is below 2**-66. The lemma of
Lyubashevsky, Peikert and Regev ("A Toolkit for Ring-LWE Cryptography", corollary 7.5) asks for a parameter of
2 sqrt(N) q**(1/8 + 2/(8 N)) = 2**20.06 in coefficients. Ours is 500,000 sqrt(2 pi) = 2**20.26, and the lemma
gives 2**-Omega(N) for exact discrete Gaussians.

How accurate the sampler has to be. The argument uses only upper bounds on probabilities. A normal that is
wider in some coefficients satisfies the same bounds. So it is enough that a pair of coefficients has each
value with a probability of at most

    (1 + 2**-18) normal + 2**-18 normal of three times the deviation.

d has 32,768 pairs, and (1 + 2**-17)**32768 is below 1.3. So the sum grows by less than that factor, and
2**-66 still holds. The pairs of `sampling.normals` are that accurate (tests compute it):

- *Radii* lie on a grid. A ray from 0 crosses the unit square of a value, and the mass of the grid on that
  part of the ray is off by less than one grid point. So the probability is off by less than 1.5 times the
  distance of neighbouring radii, in units. That is below 2**-18 from 12 units to 6.2 deviations. Farther out
  it grows to 2**17 at the end, 9.42 deviations, where the wider normal allows 2**35.
- *Within 12 units* of 0 float64 makes the grid coarser. Summing over the grid, the probability of 0 is off by
  2**-21.7, and those of other values by less than 2**-23.
- *Angles* and roundings in float64 move a pair by less than 2**-23 of a unit, which changes probabilities by
  about as much.

The products are transforms in float64. Errors of rounding add up to a deviation of 0.023 for uniform a_i and
honest keys, so one half is 21 deviations away (tests). An encryptor can craft b_i to make rounding fail. That
changes c0 alone, which is masked afterwards.
"""

from __future__ import annotations

import numpy as np

from securefed.crypto.blind.shares import Floats
from securefed.crypto.lattice.convolution import DEGREE, HALF, Spectra, inverse, spectrum
from securefed.crypto.lattice.ring import RING
from securefed.crypto.lattice.sampling import normals
from securefed.crypto.randomness import ByteSource

__all__ = ["BATCH", "PAIRS", "Rerandomiser", "Zeros", "nonce_polynomials"]

PAIRS = 7
BATCH = 4
"""Responses at a time: what they need stays in the processor's cache."""


def nonce_polynomials(nonce: bytes) -> Floats:
    """Expand a_1..a_7 from the multiplier's nonce: residues of coefficients, (5, 7, 4096)."""
    count = len(RING.primes)
    polynomials = [RING.expand(nonce, b"nonce", index, PAIRS * DEGREE) for index in range(count)]
    return np.stack(polynomials).reshape(count, PAIRS, DEGREE)


class Rerandomiser:
    """The spectra of a public key, ready for any number of responses."""

    def __init__(self, nonce: bytes, public: Floats) -> None:
        """`public`: b_1..b_7, centred residues of coefficients, (5, 7, 4096)."""
        # Frequencies first: at each of them a matrix of 7 rows, with the primes for c1 and then for c0.
        self.spectra: Spectra = np.empty((HALF, PAIRS, 2, len(RING.primes)), dtype=np.complex128)
        for side, polynomials in enumerate((nonce_polynomials(nonce), public)):
            self.spectra[:, :, side] = spectrum(polynomials).transpose(2, 1, 0)

    def zeros(self, source: ByteSource, span: int) -> Zeros:
        """Begin to draw ciphertexts that are added to responses.

        Parameters
        ----------
        source: secret bytes.
        span: how many coefficients of c0 are needed.
        """
        return Zeros(self.spectra, source, span)


class Zeros:
    """Encryptions of zero, drawn a few at a time in the same memory.

    Fresh pages of memory take longer than transforms.
    """

    def __init__(self, spectra: Spectra, source: ByteSource, span: int) -> None:
        primes = len(RING.primes)
        self._keys, self._source, self._span = spectra.reshape(HALF, PAIRS, -1), source, span
        self._drawn = np.empty((PAIRS + 1) * BATCH * DEGREE)
        self._spectra = np.empty((PAIRS, BATCH, HALF), dtype=np.complex128)
        self._turned = np.empty((HALF, BATCH, PAIRS), dtype=np.complex128)
        self._mixed = np.empty((HALF, BATCH, 2 * primes), dtype=np.complex128)
        self._sums = np.empty((primes, BATCH, HALF), dtype=np.complex128)
        self._bodies, self._heads = np.empty(primes * BATCH * DEGREE), np.empty(primes * BATCH * span)

    def draw(self, count: int) -> tuple[Floats, Floats]:
        """Draw ciphertexts for the next responses, at most `BATCH`.

        Returns
        -------
        Whole numbers below 2**51 that are c1, (5, count, 4096), and c0, (5, count, span), modulo the primes.
        The next draw overwrites them.
        """
        primes = len(RING.primes)
        drawn = self._drawn[: (PAIRS + 1) * count * DEGREE].reshape(PAIRS + 1, count, DEGREE)
        normals(self._source, drawn.size, drawn)
        turned, mixed = self._turned[:, :count], self._mixed[:, :count]
        turned[...] = spectrum(drawn[1:], self._spectra[:, :count]).transpose(2, 1, 0)
        np.matmul(turned, self._keys, out=mixed)
        bodies = self._bodies[: primes * count * DEGREE].reshape(primes, count, DEGREE)
        heads = self._heads[: primes * count * self._span].reshape(primes, count, self._span)
        sums = self._sums[:, :count]
        for side, target in enumerate((bodies, heads)):
            sums[...] = mixed[:, :, side * primes : (side + 1) * primes].transpose(2, 1, 0)
            inverse(sums, target.shape[-1], target)
        bodies += drawn[0]
        return bodies, heads
