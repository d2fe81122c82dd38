"""The libraries that `bench crypto` compares with, each through its own public interface, on one thread.

phe and TenSEAL are dependencies of securefed. FATE's fate_utils is not: it is a binary wheel for a few
platforms, and where it cannot be used its rows are left out with a note.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import tenseal
from numpy.typing import NDArray
from phe import paillier as phe_paillier

# Probed in a process of its own: with a numpy that it does not know it panics, past every except clause.
PROBE = """
import numpy
from fate_utils import paillier
secret, public, coder = paillier.keygen(1024)
sent = coder.encode_f64_vec(numpy.array([1.5, -2.0]))
got = coder.decode_f64_vec(secret.decrypt_to_encoded(public.encrypt_encoded(sent, True)))
assert list(got) == [1.5, -2.0]
"""


def fate_obstacle() -> str | None:
    """Why fate_utils cannot be used here, or None."""
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
    return f"fate_utils left out: {last[0]} (it is in the extra 'peers')"


class Phe:
    """python-paillier: one object a number."""

    def __init__(self, bits: int) -> None:
        self.public, self.private = phe_paillier.generate_paillier_keypair(n_length=bits)

    def encrypt(self, values: NDArray[np.float64]) -> list[Any]:
        return [self.public.encrypt(value) for value in values.tolist()]

    def encrypt_integers(self, values: list[int]) -> list[Any]:
        return [self.public.encrypt(value) for value in values]

    def decrypt(self, numbers: list[Any]) -> list[float]:
        return [self.private.decrypt(number) for number in numbers]

    @staticmethod
    def product(matrix: list[list[int]], numbers: list[Any]) -> list[Any]:
        """Integers times encrypted integers: phe's fastest case, for no exponents have to be aligned."""
        results = []
        for row in matrix:
            total = numbers[0] * row[0]
            for factor, number in zip(row[1:], numbers[1:], strict=True):
                total = total + number * factor
            results.append(total)
        return results


class Fate:
    """FATE's Paillier in Rust: vectors, fixed point with an exponent for each."""

    def __init__(self, bits: int) -> None:
        from fate_utils import paillier

        self._secret, self._public, self._coder = paillier.keygen(bits)

    def encode(self, values: NDArray[np.float64]) -> Any:
        return self._coder.encode_f64_vec(values)

    def encrypt_encoded(self, encoded: Any) -> Any:
        """With obfuscation: without it fate_utils multiplies no randomness in."""
        return self._public.encrypt_encoded(encoded, True)

    def multiply_add(self, encrypted: Any, encoded: Any) -> Any:
        """Entry by entry a product, and its addition to a ciphertext of the same scale."""
        product = encrypted.mul(self._public, encoded)
        return product.add(self._public, product)

    def decrypt(self, encrypted: Any) -> Any:
        return self._coder.decode_f64_vec(self._secret.decrypt_to_encoded(encrypted))


class TensealVector:
    """TenSEAL's high-level CKKS vector, N = 8192, scale 2**40.

    The chain is that of its tutorials, or the shortest on which `v * list`, which rescales, can work: three
    primes, as ours has.
    """

    TUTORIAL = (60, 40, 40, 60)
    SHORTEST = (60, 40, 60)

    def __init__(self, values: NDArray[np.float64], chain: tuple[int, ...] = TUTORIAL) -> None:
        self._context = tenseal.context(
            tenseal.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=list(chain), n_threads=1
        )
        self._context.global_scale = 2.0**40
        self._vector = tenseal.ckks_vector(self._context, values.tolist())

    def times(self, factors: list[float]) -> Any:
        return self._vector * factors
