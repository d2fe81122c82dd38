"""What a party of a set intersection (securefed.data.psi) computes by itself.

Functions of pieces run in worker processes and take and give bytes. Records are rows of 64-bit words.
`Buckets` deals them out by a number of theirs, so that a sort, a shuffle or a search for repetitions needs
the memory of one bucket.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from math import ceil, sqrt

import numpy as np
from numpy.typing import NDArray

from securefed.data import curve, okvs
from securefed.data.curve import POINT
from securefed.data.ids import normalised_blocks, repeated_ids
from securefed.data.storage import KeyedSpool, Spool

_BLOCK = 8192
BUCKET = 1 << 16
"""Records in a bucket, on average at most."""
TAG = b"securefed-psi-v2-with-curve25519_XMD:SHA-512_ELL2_NU_"
DIGEST = 32
SPREAD = 10
"""Standard deviations of the number of ids in a table that there is room for."""

Rows = NDArray[np.intp]
Words = NDArray[np.uint64]


def words(blob: bytes, columns: int, order: str = "<") -> Words:
    return np.frombuffer(blob, dtype=f"{order}u8").astype(np.uint64).reshape(-1, columns)


def sorted_ids(ids: Collection[object], owner: str, form: str) -> tuple[Spool, Rows]:
    """The SHA-256 of all ids in their order, four words each, and whose row each is. Each occurs once."""
    count = bucket_count(len(ids))
    buckets, start = Buckets(5, count), 0
    for texts in normalised_blocks(ids, owner, form, _BLOCK):
        digests = words(b"".join(hashlib.sha256(text.encode()).digest() for text in texts), 4, ">")
        numbers = np.arange(start, start + len(texts), dtype=np.uint64)
        buckets.add(np.column_stack([digests, numbers]), bucket_of(digests[:, 0], count))
        start += len(texts)
    in_order, rows, twice = spool(4), list[Rows](), list[int]()
    for each in buckets:
        placed = each[np.lexsort(each[:, 3::-1].T)]
        same = (placed[1:, :4] == placed[:-1, :4]).all(axis=1)
        twice += placed[1:, 4][same].tolist()
        in_order.append(placed[:, :4])
        rows.append(placed[:, 4].astype(np.intp))
    if twice:
        raise repeated_ids(ids, owner, form, twice)
    return in_order, np.concatenate(rows)


def check_ids(ids: Collection[object], owner: str) -> None:
    """Refuse ids that no intersection takes, before anybody is called."""
    sorted_ids(ids, owner, "exact")


def shuffled(in_order: Spool) -> Spool:
    """Return the same in an order that nobody can guess, with each one's place as a fifth word."""
    buckets, start = Buckets(5, bucket_count(len(in_order))), 0
    for block in in_order.blocks(_BLOCK):
        places = np.arange(start, start + len(block), dtype=np.uint64)
        buckets.add(np.column_stack([block, places]), bucket_of(_random(len(block)), buckets.count))
        start += len(block)
    mixed = spool(5)
    for each in buckets:
        mixed.append(each[np.argsort(_random(len(each)))])
    return mixed


def _random(count: int) -> Words:
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)


# Points and values of pieces.


def masked(scalar: bytes, digests: bytes) -> bytes:
    """Return scalar H(x) for each."""
    return b"".join(curve.multiply(scalar, _points_of(digests)))


def multiplied(scalar: bytes, points: bytes) -> bytes:
    return b"".join(curve.multiply(scalar, cut(points, POINT)))


def own_values(scalar: bytes, party: str, share_keys: Sequence[bytes], digests: bytes) -> bytes:
    """`values` of own ids, with the share of each under its first two words."""
    each = cut(digests, DIGEST)
    numbers = values(party, each, curve.multiply(scalar, _points_of(digests)))
    for key in share_keys:
        parts = (hashlib.blake2b(digest, key=key, digest_size=okvs.CELL).digest() for digest in each)
        numbers[:, :2] ^= words(b"".join(parts), 2)
    return numbers.astype("<u8").tobytes()


def hub_values(undo: bytes, party: str, piece: tuple[bytes, bytes]) -> bytes:
    """`values` of the hub's ids from what `party` made of its points."""
    digests, points = piece
    numbers = values(party, cut(digests, DIGEST), curve.multiply(undo, cut(points, POINT)))
    return numbers.astype("<u8").tobytes()


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


def table_of(numbers: Words, count: int) -> NDArray[np.intp]:
    """Which table of `count` ids each value belongs to."""
    return bucket_of(numbers[:, 2], bucket_count(count))


def capacity(count: int) -> int:
    """Ids that one table of `count` ids has room for."""
    if bucket_count(count) == 1:
        return count
    mean = count / bucket_count(count)
    return ceil(mean + SPREAD * sqrt(mean))


def table_bytes(count: int) -> int:
    return okvs.CELL * okvs.cells(capacity(count))


def encode_table(room: int, block: Words) -> bytes:
    """A table of these values, which are shares under their first two words."""
    return okvs.encode(okvs.Keys.of(block[:, 2:6], room), block[:, :2], room).astype("<u8").tobytes()


def open_shares(table: bytes, numbers: Words, room: int) -> Words:
    """What the hub's values open in a table: a share of two words, or noise."""
    shares: Words = okvs.decode(words(table, 2), okvs.Keys.of(numbers[:, 2:6], room)) ^ numbers[:, :2]
    return shares


# Records that need not fit into memory


def bucket_count(records: int) -> int:
    return max(1, -(-records // BUCKET))


def bucket_of(words: Words, count: int) -> NDArray[np.intp]:
    """Which of `count` buckets, in the order of the words; even where they are uniform."""
    return ((words >> np.uint64(32)) * np.uint64(count) >> np.uint64(32)).astype(np.intp)


def spool(columns: int) -> Spool:
    """Rows of so many words: a file where they are more than a bucket."""
    return Spool(columns, np.uint64, 8 * columns * BUCKET)


class Buckets(KeyedSpool):
    """Rows of so many words in `count` buckets."""

    def __init__(self, columns: int, count: int) -> None:
        super().__init__(spool(columns))
        self.count = count
        self._waiting: list[tuple[Words, NDArray[np.intp]]] = []

    def add(self, rows: Words, buckets: NDArray[np.intp]) -> None:
        """Each row into the bucket of its number."""
        self._waiting.append((rows, buckets))
        if sum(len(each) for each, _ in self._waiting) >= BUCKET:
            self._deal()

    def _deal(self) -> None:
        if not self._waiting:
            return
        rows, buckets = (np.concatenate(parts) for parts in zip(*self._waiting, strict=True))
        self._waiting = []
        order = np.argsort(buckets, kind="stable")
        edges = np.searchsorted(buckets[order], np.arange(1, self.count))
        for bucket, part in enumerate(np.split(rows[order], edges)):
            if len(part):
                self.append(bucket, part)

    def read(self, key: object) -> Words:
        self._deal()
        return super().read(key)

    def __iter__(self) -> Iterator[Words]:
        return map(self.read, range(self.count))


class RepeatCheck:
    """A test for repeated rows. A secret hash keeps a peer from filling one bucket."""

    def __init__(self, count: int) -> None:
        self._buckets = Buckets(2, bucket_count(count))
        self._factors = np.frombuffer(os.urandom(16), dtype=np.uint64) | np.uint64(1)

    def add(self, rows: Words) -> None:
        """Add rows of two words."""
        mixed = (rows * self._factors).sum(axis=1, dtype=np.uint64)
        self._buckets.add(rows, bucket_of(mixed, self._buckets.count))

    def found(self) -> bool:
        return any(len(np.unique(each, axis=0)) < len(each) for each in self._buckets)
