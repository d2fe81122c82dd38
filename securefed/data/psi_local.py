"""What a party of a set intersection (securefed.data.psi) computes by itself.

Functions of pieces run in worker processes and take and give bytes. Records are rows of 64-bit words in
tables, which are files where they are large. A sort, a shuffle or a search for repetitions keeps 8 bytes a
row in memory: the order of the rows.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from math import ceil, sqrt

import numpy as np
from numpy.typing import NDArray

from securefed.data import curve, okvs
from securefed.data.curve import POINT
from securefed.data.ids import normalised, repeated_ids
from securefed.data.storage import new_table

_BLOCK = 8192
BUCKET = 1 << 16
"""Ids in a table of shares, on average at most, and records that stay in memory."""
TAG = b"securefed-psi-v2-with-curve25519_XMD:SHA-512_ELL2_NU_"
DIGEST = 32
SPREAD = 10
"""Standard deviations of the number of ids in a table that there is room for."""

Places = NDArray[np.intp]
Words = NDArray[np.uint64]


def words(blob: bytes, columns: int) -> Words:
    return np.frombuffer(blob, "<u8").reshape(-1, columns)


def records(rows: int, columns: int) -> Words:
    """Return a table of so many words: a file where it has more rows than a bucket."""
    return new_table(rows, columns, "<u8", 8 * columns * BUCKET)


def texts(rows: Words) -> NDArray[np.bytes_]:
    """The bytes of each row as one text, which numpy sorts and compares."""
    return rows.view(f"S{8 * rows.shape[1]}")[:, 0]


def repeated(rows: Words) -> tuple[Places, list[int]]:
    """Return the order of these rows by their bytes, and which are the same as one before."""
    each, twice = texts(rows), list[int]()
    order = np.argsort(each, kind="stable")
    for start in range(0, len(order), _BLOCK):
        some = order[start : start + _BLOCK + 1]
        twice += some[1:][each[some[1:]] == each[some[:-1]]].tolist()
    return order, twice


def sorted_ids(ids: Collection[object], owner: str, form: str) -> tuple[Words, Places]:
    """The SHA-256 of all ids, four words each, and the rows in the order of those. Each occurs once."""
    digests, start, names = records(len(ids), 4), 0, normalised(ids, owner, form)
    while block := list(islice(names, _BLOCK)):
        hashed = words(b"".join(hashlib.sha256(name.encode()).digest() for name in block), 4)
        digests[start : start + len(block)] = hashed
        start += len(block)
    order, twice = repeated(digests)
    if twice:
        raise repeated_ids(ids, owner, form, twice)
    return digests, order


def shuffled(count: int) -> Places:
    """Return the numbers below `count` in an order that nobody can guess."""
    return np.argsort(np.frombuffer(os.urandom(8 * count), dtype=np.uint64))


# Points and values of pieces.


def masked(scalar: bytes, digests: bytes) -> bytes:
    return b"".join(curve.multiply(scalar, _points_of(digests)))


def multiplied(scalar: bytes, points: bytes) -> bytes:
    return b"".join(curve.multiply(scalar, cut(points, POINT)))


def own_values(scalar: bytes, party: str, share_keys: Sequence[bytes], digests: bytes) -> bytes:
    """`values` of own ids, with the share of each under its first two words."""
    each = cut(digests, DIGEST)
    numbers = values(party, each, curve.multiply(scalar, _points_of(digests))).copy()
    for key in share_keys:
        parts = (hashlib.blake2b(digest, key=key, digest_size=okvs.CELL).digest() for digest in each)
        numbers[:, :2] ^= words(b"".join(parts), 2)
    return numbers.tobytes()


def hub_values(undo: bytes, party: str, piece: tuple[bytes, bytes]) -> bytes:
    """`values` of the hub's ids from what `party` made of its points."""
    digests, points = piece
    numbers = values(party, cut(digests, DIGEST), curve.multiply(undo, cut(points, POINT)))
    return numbers.tobytes()


def values(party: str, digests: Iterable[bytes], points: Iterable[bytes]) -> Words:
    """F_j of each id, eight words: two hide its share, four are its place in a table, two name it to j."""
    start = b"securefed-psi-value-v1" + hashlib.sha256(party.encode()).digest()
    each = (
        hashlib.sha512(start + digest + point).digest() for digest, point in zip(digests, points, strict=True)
    )
    return words(b"".join(each), 8)


def _points_of(digests: bytes) -> list[bytes]:
    return curve.hash_to_curve(cut(digests, DIGEST), TAG)


def cut(blob: bytes, width: int) -> list[bytes]:
    return [blob[start : start + width] for start in range(0, len(blob), width)]


# Tables. How many there are and how large they are follows from the number of ids alone.


def table_count(ids: int) -> int:
    return max(1, -(-ids // BUCKET))


def by_table(numbers: Words, count: int) -> list[Places]:
    """Return which of these values belong to each table of `count` ids."""
    tables = (numbers[:, 2] >> np.uint64(32)) * np.uint64(table_count(count)) >> np.uint64(32)
    order = np.argsort(tables, kind="stable")
    return np.split(order, np.searchsorted(tables[order], np.arange(1, table_count(count))))


def capacity(count: int) -> int:
    """Ids that one table of `count` ids has room for."""
    if table_count(count) == 1:
        return count
    mean = count / table_count(count)
    return ceil(mean + SPREAD * sqrt(mean))


def table_bytes(count: int) -> int:
    return okvs.CELL * okvs.cells(capacity(count))


def encode_table(room: int, block: Words) -> bytes:
    """A table of these values, which are shares under their first two words."""
    return okvs.encode(block[:, 2:6], block[:, :2], room).astype("<u8").tobytes()


def open_shares(table: bytes, numbers: Words, room: int) -> Words:
    """What the hub's values open in a table: a share of two words, or noise."""
    shares: Words = okvs.decode(words(table, 2), numbers[:, 2:6], room) ^ numbers[:, :2]
    return shares
