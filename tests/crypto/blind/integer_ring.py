"""The ring in Python integers, written from the definitions: what the fast code is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import gmpy2
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from securefed.crypto.lattice.ring import PRIMES

__all__ = ["DEGREE", "MODULUS", "WIDTH", "centred", "combined", "expanded", "multiplied", "unpacked"]

DEGREE = 4096
WIDTH = 105
MODULUS = prod(PRIMES)
SLOT = 256


def centred(number: int, modulus: int = MODULUS) -> int:
    rest = number % modulus
    return rest - modulus if rest > modulus // 2 else rest


def combined(residues: Sequence[Sequence[int]]) -> list[int]:
    """Numbers modulo q of their residues, (5, n), by the Chinese remainder theorem."""
    weights = [MODULUS // p * pow(MODULUS // p, -1, p) for p in PRIMES]
    return [
        sum(w * r for w, r in zip(weights, each, strict=True)) % MODULUS
        for each in zip(*residues, strict=True)
    ]


def multiplied(first: Sequence[int], second: Sequence[int], modulus: int = MODULUS) -> list[int]:
    """A product modulo X**4096 + 1, by substitution of 2**256 for X (Kronecker)."""
    product = _packed(first, modulus) * _packed(second, modulus)
    data = gmpy2.to_binary(product)[2:].ljust(2 * DEGREE * SLOT // 8, b"\0")
    size = SLOT // 8
    drawn_words = [int.from_bytes(data[i * size : (i + 1) * size], "little") for i in range(2 * DEGREE)]
    return [
        (low - high) % modulus for low, high in zip(drawn_words[:DEGREE], drawn_words[DEGREE:], strict=True)
    ]


def _packed(numbers: Sequence[int], modulus: int) -> gmpy2.mpz:
    data = b"".join((int(number) % modulus).to_bytes(SLOT // 8, "little") for number in numbers)
    return gmpy2.mpz(int.from_bytes(data, "little"))


def expanded(seed: bytes, label: bytes, index: int, count: int) -> list[int]:
    """Uniform residues of AES-256-CTR: words of 32 bits, those outside replaced by later ones in order."""
    prime = PRIMES[index]
    start = (bytes([index]) + label).ljust(8, b"\0") + bytes(8)
    stream = Cipher(algorithms.AES(seed), modes.CTR(start)).encryptor()

    def words(many: int) -> list[int]:
        data = stream.update(bytes(4 * many))
        return [int.from_bytes(data[4 * i : 4 * i + 4], "little", signed=True) for i in range(many)]

    turns = 2**32 // prime
    most = ((turns if turns % 2 else turns - 1) * prime - 1) // 2
    drawn_words = words(count)
    outside = [i for i, word in enumerate(drawn_words) if abs(word) > most]
    while outside:
        for place, word in zip(outside, words(len(outside)), strict=True):
            drawn_words[place] = word
        outside = [i for i in outside if abs(drawn_words[i]) > most]
    return [word % prime for word in drawn_words]


def unpacked(data: bytes, count: int) -> list[int]:
    """Numbers of 21 bits, three in eight bytes: word w has numbers w, w + words, w + 2 words."""
    words = [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)]
    return [word >> (21 * place) & 0x1FFFFF for place in range(3) for word in words][:count]
