"""The contents of a payload, read from its bytes: which frames, under which key, of which shape.

A transcript records what a message *was*, not what its sender claims. So sender and receiver each read the
headers of the frames inside (securefed.crypto.wire) and test whether the rest looks like ciphertext. That
shows encryption that was left off by mistake. Headers contain no values, and values are never examined.

Blind runs send bytes without frames: limbs of 21 bits, three in eight bytes, or ciphertexts. Their lengths
follow from the agreement. Here they are tested by what their kind must look like:

    ciphertext    the lowest 15 bits of every limb are uniform; residues modulo a prime are not, above that
    numbers:n     numbers of five limbs; the lowest n bits of each are uniform
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import KEY_KINDS, protects
from securefed.crypto.wire import HEADER, MAGIC, Kind, Scheme

__all__ = ["Part", "looks_random", "looks_uniform", "parts_of"]

NAMES = {int(kind): kind.name.lower().replace("_", "-") for kind in Kind}
PREFIX = 8
"""Bytes of an optional length field before a frame."""
SAMPLE = 4096
LEAST_WORDS = 64
FALSE_ALARM = 1e-14
_X = -log(FALSE_ALARM)
# Laurent and Massart 2000, lemma 1: chi-square of 15 degrees of freedom is above this with that probability.
LIMIT = 15 + 2 * sqrt(15 * _X) + 2 * _X
LIMB_BITS, LIMBS = 21, 5
GROUP_BITS = 3
"""Bits of limbs that are tested together."""
GROUP_LIMIT = 7 + 2 * sqrt(7 * _X) + 2 * _X
RESIDUE_BITS = 15
MOST_NUMBERS, LEAST_GROUPS = 512, 64


@dataclass(frozen=True)
class Part:
    """A frame, or bytes outside of any (frame "bytes")."""

    frame: str
    size: int
    scheme: str = ""
    key: str = ""
    parameters: str = ""
    shape: tuple[int, ...] = ()
    random: bool | None = None
    """Whether its bytes look random; None if there are too few to tell."""

    @property
    def protection(self) -> str:
        """Its protection: public-key, ciphertext, masked, opened, disclosure, clear, or bytes."""
        if self.frame == "bytes" and self.random is False:
            return "clear"
        if self.frame in ("public-key", "bytes"):
            return self.frame
        if not protects(self.scheme) or self.random is False:
            return "clear"
        return "ciphertext" if self.frame == "encrypted" else self.frame

    def to_dict(self) -> dict[str, Any]:
        if self.frame == "bytes":
            looks = {} if self.random is None else {"random": self.random}
            return {"frame": "bytes", "size": self.size, **looks}
        return {
            "frame": self.frame,
            "size": self.size,
            "scheme": self.scheme,
            "key": self.key,
            "parameters": self.parameters,
            "shape": list(self.shape),
            "random": self.random,
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Part:
        return cls(**{**fields, "shape": tuple(fields.get("shape", ()))})


def parts_of(payload: bytes, looks: str = "") -> list[Part]:
    """Return the frames of a payload in order, and the bytes between them.

    `looks` says what a payload without frames must look like ("ciphertext", "numbers:n"), if anything.
    """
    if looks:
        return [Part("bytes", len(payload), random=looks_uniform(payload, looks))]
    parts: list[Part] = []
    place, end = 0, len(payload)
    while place < end:
        if payload[place : place + 4] == MAGIC and end - place >= HEADER.size:
            part = _frame(payload, place)
            if part is not None:
                parts.append(part)
                place += part.size
                continue
        prefixed = payload[place + PREFIX : place + PREFIX + 4] == MAGIC
        size = PREFIX if prefixed else end - place
        parts.append(Part("bytes", size))
        place += size
    return parts


def _frame(payload: bytes, place: int) -> Part | None:
    fields = HEADER.unpack_from(payload, place)
    _, _, kind, scheme, ndim, rows, columns, *_, parameters, key, length, _ = fields
    size = HEADER.size + length
    if place + size > len(payload) or kind not in NAMES or scheme not in Scheme.known or ndim > 2:
        return None
    name = Scheme.known[scheme].name
    body = memoryview(payload)[place + HEADER.size : place + size]
    looks = None if kind == Kind.PUBLIC_KEY or not protects(name) else looks_random(body, name)
    return Part(NAMES[kind], size, name, key.hex(), parameters.hex(), (rows, columns)[:ndim], looks)


def looks_random(body: memoryview | bytes, scheme: str) -> bool | None:
    """Test the high halves of bytes by Pearson's chi-square, for each place in a word of 8 bytes.

    Ciphertexts, masked values and masks are uniform there, except for CKKS's last byte: residues have 60
    bits. Floating-point numbers and fixed-point integers are not: their signs and exponents repeat.
    """
    tail = np.frombuffer(body, dtype=np.uint8)[-SAMPLE:]
    words = len(tail) // 8
    if words < LEAST_WORDS:
        return None
    columns = KEY_KINDS[scheme].random_bytes
    halves = (tail[len(tail) - 8 * words :].reshape(words, 8)[:, :columns] >> 4).astype(np.intp)
    counts = np.bincount((halves + 16 * np.arange(columns)).ravel(), minlength=16 * columns)
    expected = words / 16
    statistic = ((counts.reshape(columns, 16) - expected) ** 2).sum(axis=1) / expected
    return bool(statistic.max() < LIMIT)


def looks_uniform(payload: bytes, looks: str) -> bool | None:
    """Test groups of three bits of limbs by Pearson's chi-square, at each place and over all places together.

    Few numbers are only tested together. Returns None if there are too few for that.
    """
    words = np.frombuffer(payload[: len(payload) // 8 * 8], dtype="<u8")
    if looks == "ciphertext":
        limbs, bits = _slots(words), [RESIDUE_BITS] * 3
    else:
        total = int(looks.partition(":")[2])
        limbs, bits = _numbers(words), [min(max(total - LIMB_BITS * i, 0), LIMB_BITS) for i in range(LIMBS)]
    groups = [
        (limb >> np.uint64(place)) & np.uint64((1 << GROUP_BITS) - 1)
        for limb, most in zip(limbs, bits, strict=True)
        for place in range(0, most - GROUP_BITS + 1, GROUP_BITS)
    ]
    if not groups or sum(map(len, groups)) < LEAST_GROUPS:
        return None
    tested = [np.concatenate(groups)]
    if len(groups[0]) >= LEAST_GROUPS:
        tested += groups
    return all(_statistic(each) < GROUP_LIMIT for each in tested)


def _statistic(groups: NDArray[np.uint64]) -> float:
    expected = len(groups) / (1 << GROUP_BITS)
    counts = np.bincount(groups.astype(np.intp), minlength=1 << GROUP_BITS)
    return float(((counts - expected) ** 2).sum() / expected)


def _slots(words: NDArray[np.uint64]) -> list[NDArray[np.uint64]]:
    """Return the three limbs of each of the first words."""
    some, mask = words[:MOST_NUMBERS], np.uint64((1 << LIMB_BITS) - 1)
    return [(some >> np.uint64(LIMB_BITS * slot)) & mask for slot in range(3)]


def _numbers(words: NDArray[np.uint64]) -> list[NDArray[np.uint64]]:
    """Return the five limbs of the first numbers. Limb l of all numbers comes before limb l + 1 of any."""
    count, mask = 3 * len(words) // LIMBS, np.uint64((1 << LIMB_BITS) - 1)
    limbs = []
    for limb in range(LIMBS):
        place = limb * count + np.arange(min(count, MOST_NUMBERS))
        shift = (place // max(len(words), 1) * LIMB_BITS).astype(np.uint64)
        limbs.append((words[place % max(len(words), 1)] >> shift) & mask)
    return limbs
