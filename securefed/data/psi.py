"""Private set intersection: which people all parties have, in one agreed order, and nothing of the rest.

One party, the first of the agreed order, is the hub; the others answer. With H the hash of an id to
Curve25519 (securefed.data.curve), a the hub's secret scalar and k_j party j's, all fresh for each run:

    hub -> j    a H(x) for each of its ids x, shuffled, in blocks                       psi-blinded
    j -> hub    k_j a H(x) for each, in the order received                              psi-evaluated
    hub         undoes a and has k_j H(x), hence F_j(x), for its own ids and no others
    j -> hub    a table in which F_j(y) opens a share s_j(y) for each of its own ids y  psi-table
    hub         adds up what its x open in all tables: 0 if and only if all parties have x
    hub -> j    F_j(x), cut to 16 bytes, for each common x                              psi-common

The shares s_j(y) of one id add up to 0 over all parties but the hub and are otherwise random: each two of
those parties agree on a key with each other (psi-seed). With two parties the one share is 0. The tables
are oblivious (securefed.data.okvs): an id that is not in one opens noise, and noise and a share look
alike. So the hub sees only whether *all* have x, and not who lacks it (Kolesnikov, Matania, Pinkas,
Rosulek and Trieu 2017).

What each party learns, if all follow the protocol and no two collude:

- everybody: the ids that all parties have, which is the purpose; the agreed order is that of their SHA-256;
- the hub: how many ids each other party has;
- the others: how many ids the hub has; neither each other's number nor any intersection of fewer than all.

What does not hold: a party can put in ids that it only guesses and learn whether they are common. The brake
is a limit on how many ids a peer may put in, ten times one's own unless said otherwise: a peer that has no
more people than that cannot try all telephone numbers. It cannot stop a few guesses. The hub together with
one other party learns what the remaining ones share with the hub. A party that lies can make the result
wrong; but the hub cannot name an id as common that it did not put in itself, for it would lack F_j.

Values cut to 16 bytes meet by chance with probability n m / 2^128: below 2^-80 for 16 million ids a side.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from securefed.checks import check_integer
from securefed.crypto.scheme import SERIAL, Mapper
from securefed.data import curve, okvs
from securefed.data.curve import POINT, PRIME, SmallOrder
from securefed.data.ids import normalise_ids
from securefed.errors import SettingError
from securefed.transport.link import Link
from securefed.transport.message import IllegalMessage

__all__ = ["MAX_IDS", "PSI_KINDS", "BadAlignment", "check_peer_ids", "default_peer_ids", "intersect"]

PSI_KINDS: Mapping[str, str] = MappingProxyType(
    {
        "psi-size": "how many ids the sender has",
        "psi-seed": "nothing: an X25519 public key, for shares that the hub cannot tell from noise",
        "psi-blinded": "nothing without the hub's scalar: its ids on the curve, masked and shuffled",
        "psi-evaluated": "the pseudorandom values of the hub's own ids, to the hub",
        "psi-table": "with all other tables, which of the hub's ids everybody has; without, nothing",
        "psi-common": "which of the receiver's ids all parties have",
    }
)
"""The messages of an alignment and what each reveals to its receiver."""

MAX_IDS = 20_000_000
"""The largest number of ids that anybody may have."""
PEER_FACTOR, PEER_FLOOR = 10, 100_000
"""How many ids a peer may have unless said otherwise: so many times one's own, or this if it is more. Few
rows that are to be predicted meet a peer's whole table.
"""

BLOCK = 8192
"""Ids a message."""
_PIECE = 512
"""Ids a piece of work: some tens of milliseconds."""
_CHUNK = 1 << 20
_TAG = b"securefed-psi-v1-with-curve25519_XMD:SHA-512_ELL2_NU_"
_CUT = 16

Rows = NDArray[np.intp]
Words = NDArray[np.uint64]


class BadAlignment(IllegalMessage):
    """A peer sent something in the set intersection that no honest party sends."""


async def intersect(
    link: Link,
    parties: Sequence[str],
    ids: Iterable[object],
    mapper: Mapper = SERIAL,
    *,
    peer_ids: int | None = None,
) -> Rows:
    """The rows of `ids` that all `parties` have, in the order that they all get.

    `parties` are the names of all, in the same order at each; the first is the hub. `mapper` runs the scalar
    multiplications in other processes of this party. Rows that are not common stay with their owner (transfer
    learning uses them): only row numbers are returned. `peer_ids`: how many ids a peer may put in; by default
    ten times one's own, 100,000 at least.
    """
    names = list(parties)
    if len(names) < 2 or len(set(names)) < len(names) or link.name not in names:
        raise SettingError(
            f"parties: {', '.join(names)} given, two or more names with {link.name} among them are allowed"
        )
    texts = [text.encode() for text in normalise_ids(ids, link.name)]
    if len(texts) > MAX_IDS:
        raise SettingError(f"ids: {len(texts)} given, at most {MAX_IDS} are allowed")
    limit = default_peer_ids(len(texts)) if peer_ids is None else check_peer_ids(peer_ids)
    side = _Side(link, mapper, texts, limit)
    if link.name == names[0]:
        return await _hub(side, names[1:], curve.draw_pair())
    return await _answer(side, names[0], [n for n in names[1:] if n != link.name], curve.draw_scalar())


def default_peer_ids(own: int) -> int:
    """How many ids a peer of a party with `own` ids may have."""
    return min(MAX_IDS, max(PEER_FLOOR, PEER_FACTOR * own))


def check_peer_ids(value: int) -> int:
    return check_integer("peer_ids", value, least=1, most=MAX_IDS)


class _Side:
    """A party's ids, shuffled, and its way to compute and to talk."""

    def __init__(self, link: Link, mapper: Mapper, texts: list[bytes], limit: int) -> None:
        self.link, self.mapper, self.limit = link, mapper, limit
        self.rows = list(range(len(texts)))
        secrets.SystemRandom().shuffle(self.rows)
        self.texts = [texts[row] for row in self.rows]
        self.digests = [hashlib.sha256(text).digest() for text in self.texts]

    def __len__(self) -> int:
        return len(self.texts)

    def masked(self, scalar: bytes) -> Iterator[list[bytes]]:
        """scalar H(id) for each of the party's ids, by blocks."""
        for start in range(0, len(self), BLOCK):
            yield self._run(partial(_hash_and_multiply, scalar), self.texts[start : start + BLOCK])

    def multiply(self, scalar: bytes, points: list[bytes], sender: str) -> list[bytes]:
        try:
            return self._run(partial(curve.multiply, scalar), points)
        except SmallOrder as error:
            raise BadAlignment(f"{sender}: {error}") from None

    def _run(self, work: partial[list[bytes]], items: list[bytes]) -> list[bytes]:
        pieces = [items[start : start + _PIECE] for start in range(0, len(items), _PIECE)]
        with self.link.activity("alignment"):
            return [point for done in self.mapper.map(work, pieces) for point in done]

    def ordered(self, places: Iterable[int]) -> list[int]:
        """Places in the agreed order."""
        return sorted(places, key=lambda place: self.digests[place])

    def result(self, places: Iterable[int]) -> Rows:
        return np.array([self.rows[place] for place in places], dtype=np.intp)

    # Messages. Sizes are announced before and everything that arrives has exactly the announced one.

    def send_size(self, receiver: str) -> None:
        self.link.send(receiver, "psi-size", len(self).to_bytes(8, "big"))

    async def receive_size(self, sender: str) -> int:
        count = _number(await self.link.receive("psi-size", sender), sender)
        if not 1 <= count <= self.limit:
            raise BadAlignment(
                f"{sender}: {count} ids announced, 1 to {self.limit} are allowed; who has many more than "
                f"this party ({len(self)}) may be guessing, and peer_ids allows it"
            )
        return count

    async def receive_points(self, kind: str, sender: str, count: int) -> AsyncIterator[list[bytes]]:
        """Blocks of points, `count` in all, no two of them the same."""
        seen: set[bytes] = set()
        for step, start in enumerate(range(0, count, BLOCK)):
            block = await self.receive_block(kind, sender, step, min(BLOCK, count - start))
            seen.update(block)
            if len(seen) < start + len(block):
                raise BadAlignment(f"{sender}: the same point twice in {kind}")
            yield block

    async def receive_block(self, kind: str, sender: str, step: int, count: int) -> list[bytes]:
        blob = await self.link.receive(kind, sender, step=step)
        if len(blob) != POINT * count:
            raise BadAlignment(f"{sender}: a block of {len(blob)} bytes in {kind}, {POINT * count} are due")
        points = [blob[start : start + POINT] for start in range(0, len(blob), POINT)]
        for point in points:
            value = int.from_bytes(point, "little")
            if not 0 < value < PRIME:
                raise BadAlignment(f"{sender}: a point in {kind} is zero or not reduced")
        return points

    def send_long(self, receiver: str, kind: str, blob: bytes) -> None:
        self.link.send(receiver, kind, len(blob).to_bytes(8, "big"))
        for step, start in enumerate(range(0, len(blob), _CHUNK), 1):
            self.link.send(receiver, kind, blob[start : start + _CHUNK], step=step)

    async def receive_long(self, kind: str, sender: str, most: int) -> bytes:
        size = _number(await self.link.receive(kind, sender), sender)
        if size > most:
            raise BadAlignment(f"{sender}: {size} bytes of {kind} announced, at most {most} are allowed")
        parts: list[bytes] = []
        for step, start in enumerate(range(0, size, _CHUNK), 1):
            part = await self.link.receive(kind, sender, step=step)
            due = min(_CHUNK, size - start)
            if len(part) != due:
                raise BadAlignment(f"{sender}: {len(part)} bytes of {kind}, {due} are due")
            parts.append(part)
        return b"".join(parts)


async def _hub(side: _Side, others: Sequence[str], scalars: tuple[bytes, bytes]) -> Rows:
    mask, undo = scalars
    for other in others:
        side.send_size(other)
    for step, block in enumerate(side.masked(mask)):
        blob = b"".join(block)
        for other in others:
            side.link.send(other, "psi-blinded", blob, step=step)
    total = np.zeros((len(side), 2), dtype=np.uint64)
    cuts: dict[str, list[bytes]] = {}
    for other in others:
        count = await side.receive_size(other)
        table = await _receive_table(side, other, count)
        points: list[bytes] = []
        async for block in side.receive_points("psi-evaluated", other, len(side)):
            points += side.multiply(undo, block, other)
        with side.link.activity("alignment"):
            values = _values(other, side.digests, points)
            total ^= okvs.decode(table, okvs.Keys.of(values[:, 2:6], count)) ^ values[:, :2]
            cuts[other] = [row.tobytes() for row in values[:, 6:]]
    common = side.ordered(np.flatnonzero(~total.any(axis=1)).tolist())
    for other in others:
        side.send_long(other, "psi-common", b"".join(cuts[other][place] for place in common))
    return side.result(common)


async def _answer(side: _Side, hub: str, others: Sequence[str], scalar: bytes) -> Rows:
    name = side.link.name
    shares = await _shares(side, others)
    # The own ids first: the hub masks its ids in the meantime.
    own = [point for block in side.masked(scalar) for point in block]
    with side.link.activity("alignment"):
        values = _values(name, side.digests, own)
        keys = okvs.Keys.of(values[:, 2:6], len(side))
        table = okvs.encode(keys, shares ^ values[:, :2])
    side.send_size(hub)
    side.send_long(hub, "psi-table", table.astype("<u8").tobytes())
    count = await side.receive_size(hub)
    step = 0
    async for block in side.receive_points("psi-blinded", hub, count):
        done = side.multiply(scalar, block, hub)
        side.link.send(hub, "psi-evaluated", b"".join(done), step=step)
        step += 1
    return await _receive_common(side, hub, [row.tobytes() for row in values[:, 6:]], count)


async def _shares(side: _Side, others: Sequence[str]) -> Words:
    """One share an id: they add up to 0 over all parties but the hub."""
    scalars = {other: curve.draw_scalar() for other in others}
    for other, scalar in scalars.items():
        side.link.send(other, "psi-seed", curve.public(scalar))
    shares = np.zeros((len(side), 2), dtype=np.uint64)
    for other, scalar in scalars.items():
        (point,) = await side.receive_block("psi-seed", other, 0, 1)
        (secret,) = side.multiply(scalar, [point], other)
        key = hashlib.sha256(b"securefed-psi-share-v1" + secret).digest()
        parts = [hashlib.blake2b(digest, key=key, digest_size=okvs.CELL).digest() for digest in side.digests]
        shares ^= _words(b"".join(parts), 2)
    return shares


async def _receive_table(side: _Side, sender: str, count: int) -> Words:
    size = okvs.CELL * okvs.cells(count)
    blob = await side.receive_long("psi-table", sender, size)
    if len(blob) != size:
        raise BadAlignment(f"{sender}: a table of {len(blob)} bytes for {count} ids, {size} are due")
    return _words(blob, 2)


async def _receive_common(side: _Side, hub: str, cuts: list[bytes], hub_size: int) -> Rows:
    blob = await side.receive_long("psi-common", hub, _CUT * min(len(side), hub_size))
    if len(blob) % _CUT:
        raise BadAlignment(f"{hub}: {len(blob)} bytes of psi-common, a multiple of {_CUT} is due")
    places = {cut: place for place, cut in enumerate(cuts)}
    common: list[int] = []
    for start in range(0, len(blob), _CUT):
        place = places.get(blob[start : start + _CUT])
        if place is None:
            raise BadAlignment(f"{hub}: named an id as common that {side.link.name} does not have")
        common.append(place)
    if len(set(common)) < len(common) or common != side.ordered(common):
        raise BadAlignment(f"{hub}: the common ids are not in the agreed order, each once")
    return side.result(common)


def _hash_and_multiply(scalar: bytes, texts: Sequence[bytes]) -> list[bytes]:
    return curve.multiply(scalar, curve.hash_to_curve(texts, _TAG))


def _values(party: str, digests: Sequence[bytes], points: Sequence[bytes]) -> Words:
    """F_j of each id, eight words: two hide its share, four are its place in the table, two name it to j."""
    start = hashlib.sha512(b"securefed-psi-value-v1" + hashlib.sha256(party.encode()).digest())
    found: list[bytes] = []
    for digest, point in zip(digests, points, strict=True):
        state = start.copy()
        state.update(digest + point)
        found.append(state.digest())
    return _words(b"".join(found), 8)


def _words(blob: bytes, columns: int) -> Words:
    return np.frombuffer(blob, dtype="<u8").astype(np.uint64).reshape(-1, columns)


def _number(blob: bytes, sender: str) -> int:
    if len(blob) != 8:
        raise BadAlignment(f"{sender}: a number of {len(blob)} bytes, 8 are due")
    return int.from_bytes(blob, "big")
