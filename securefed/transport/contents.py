"""What a payload consists of, read from its bytes: which frames, under which key, of which shape.

A transcript says what a message *was*, not what its sender says of it. So sender and receiver each read the
headers of the frames inside (securefed.crypto.wire) and look whether the rest looks like ciphertext at all:
encryption that was left off by mistake shows there. Values are never looked at; a header holds none.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt
from typing import Any

import numpy as np

from securefed.crypto.registry import KEY_KINDS, kind_protects
from securefed.crypto.wire import HEADER, MAGIC, Kind, Scheme

__all__ = ["Part", "looks_random", "parts_of"]

NAMES = {int(kind): kind.name.lower().replace("_", "-") for kind in Kind}
PREFIX = 8
"""Bytes of a length field that may stand before a frame."""
SAMPLE = 4096
LEAST_WORDS = 64
FALSE_ALARM = 1e-14
_X = -log(FALSE_ALARM)
# Laurent and Massart 2000, lemma 1: chi-square of 15 degrees of freedom is above this with that probability.
LIMIT = 15 + 2 * sqrt(15 * _X) + 2 * _X


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
    """Whether its bytes look random; None where there are too few to tell."""

    @property
    def protection(self) -> str:
        """What protects it: public-key, ciphertext, masked, opened, disclosure, clear, or bytes."""
        if self.frame in ("public-key", "bytes"):
            return self.frame
        if not kind_protects(self.scheme) or self.random is False:
            return "clear"
        return "ciphertext" if self.frame == "encrypted" else self.frame

    def to_dict(self) -> dict[str, Any]:
        if self.frame == "bytes":
            return {"frame": "bytes", "size": self.size}
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


def parts_of(payload: bytes) -> list[Part]:
    """The frames of a payload in order, and what lies between them."""
    found: list[Part] = []
    place, end = 0, len(payload)
    while place < end:
        if payload[place : place + 4] == MAGIC and end - place >= HEADER.size:
            part = _frame(payload, place)
            if part is not None:
                found.append(part)
                place += part.size
                continue
        prefixed = payload[place + PREFIX : place + PREFIX + 4] == MAGIC
        size = PREFIX if prefixed else end - place
        found.append(Part("bytes", size))
        place += size
    return found


def _frame(payload: bytes, place: int) -> Part | None:
    fields = HEADER.unpack_from(payload, place)
    _, _, kind, scheme, ndim, rows, columns, *_, parameters, key, length, _ = fields
    size = HEADER.size + length
    if place + size > len(payload) or kind not in NAMES or scheme not in Scheme.known or ndim > 2:
        return None
    name = Scheme.known[scheme].name
    body = memoryview(payload)[place + HEADER.size : place + size]
    looks = None if kind == Kind.PUBLIC_KEY or not kind_protects(name) else looks_random(body, name)
    return Part(NAMES[kind], size, name, key.hex(), parameters.hex(), (rows, columns)[:ndim], looks)


def looks_random(body: memoryview | bytes, scheme: str) -> bool | None:
    """Pearson's chi-square on the high halves of bytes, for each place in a word of 8 bytes.

    Ciphertexts, masked values and masks are uniform there (CKKS: but for the last byte, residues have 60
    bits). Floating-point numbers and fixed-point integers are not: their signs and exponents repeat.
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
