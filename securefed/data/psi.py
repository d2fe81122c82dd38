"""Private set intersection: which people all parties have, in one agreed order, and nothing of the rest.

docs/protocols.md (alignment) has the steps, what each party learns, and what does not hold: a party that
guesses ids, the hub together with one other party, a party that lies. The agreed order is that of the ids'
SHA-256.

Ids are worked on in blocks and lie in files (docs/performance.md has figures). A table holds the ids that a
value of F_j puts into it, some 65,000, and has room for ten standard deviations more (missed with a chance
below 2^-60), so that its size says nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from securefed.crypto.scheme import SERIAL, Mapper, progress
from securefed.data import curve
from securefed.data import psi_local as psi_work
from securefed.data.curve import POINT, PRIME, SmallOrder
from securefed.data.psi_local import BUCKET, Places, Words, cut, records, words
from securefed.declare import check_integer
from securefed.errors import SettingError
from securefed.transport.link import Link
from securefed.transport.message import IllegalMessage

PSI_KINDS: Mapping[str, str] = {
    "psi-size": "how many ids the sender has",
    "psi-seed": "nothing: an X25519 public key, for shares that the hub cannot tell from noise",
    "psi-blinded": "nothing without the hub's scalar: its ids on the curve, masked and shuffled",
    "psi-evaluated": "the pseudorandom values of the hub's own ids, to the hub",
    "psi-table": "with all other tables, which of the hub's ids everybody has; without, nothing",
    "psi-common": "which of the receiver's ids all parties have",
}
"""The messages of an alignment and what each reveals to its receiver."""

MAX_IDS = 20_000_000
"""The largest number of ids that anybody may have."""
PEER_FACTOR, PEER_FLOOR = 10, 100_000
"""How many ids a peer may have unless said otherwise: so many times one's own, or this if it is more."""

BLOCK = 8192
"""Ids a message."""
WINDOW = 8
"""Blocks that the hub is ahead of the answers."""
_PIECE = 512
"""Ids a piece of work: some tens of milliseconds."""
_CHUNK = 1 << 20
_CUT = 16

MOST_PSI_BYTES: Mapping[str, int] = {
    "psi-size": 8,
    "psi-seed": POINT,
    "psi-blinded": POINT * BLOCK,
    "psi-evaluated": POINT * BLOCK,
    # A table of a bucket has some room besides, by chance.
    "psi-table": 2 * psi_work.table_bytes(BUCKET),
    "psi-common": _CHUNK,
}
"""The most bytes of a message of each kind."""

T = TypeVar("T")


class BadAlignment(IllegalMessage):
    """A peer sent something in the set intersection that no honest party sends."""


async def intersect(
    link: Link,
    parties: Sequence[str],
    ids: Collection[object],
    mapper: Mapper = SERIAL,
    *,
    form: str = "exact",
    peer_ids: int | None = None,
) -> Places:
    """Return the rows of `ids` that all `parties` have, in the order that they all get.

    `parties` are the names of all, in the same order at each; the first is the hub. `form`: which ids are the
    same (securefed.data.ids). `peer_ids`: how many ids a peer may put in.
    """
    names = list(parties)
    if len(names) < 2 or len(set(names)) < len(names) or link.name not in names:
        raise SettingError(
            f"parties: {', '.join(names)} given, two or more names with {link.name} among them are allowed"
        )
    if len(ids) > MAX_IDS:
        raise SettingError(f"ids: {len(ids)} given, at most {MAX_IDS} are allowed")
    limit = default_peer_ids(len(ids)) if peer_ids is None else check_peer_ids(peer_ids)
    side = _Side(link, mapper, ids, form, limit)
    if link.name == names[0]:
        return await _hub(side, names[1:], curve.draw_pair())
    return await _answer(side, names[0], [n for n in names[1:] if n != link.name], curve.draw_scalar())


def default_peer_ids(own: int) -> int:
    return min(MAX_IDS, max(PEER_FLOOR, PEER_FACTOR * own))


def check_peer_ids(value: int) -> int:
    return check_integer("peer_ids", value, least=1, most=MAX_IDS)


class _Side:
    """A party's ids in the agreed order, and its way to compute and to talk."""

    def __init__(self, link: Link, mapper: Mapper, ids: Collection[object], form: str, limit: int) -> None:
        self.link, self.limit = link, limit
        self.mapper = mapper.local  # pieces of work have this party's scalar
        with link.activity("alignment"):
            self._digests, self.rows = psi_work.sorted_ids(ids, link.name, form)

    def __len__(self) -> int:
        return len(self.rows)

    def blocks(self) -> Iterable[slice]:
        """The places of blocks of ids, with a bar at a terminal."""
        steps = _steps(len(self))
        return progress(map(_block, range(steps)), "masking ids", steps)

    def pieces(self, places: slice | Places) -> list[bytes]:
        """The SHA-256 of the ids at these places of the agreed order, as pieces of work."""
        return cut(self._digests[self.rows[places]].tobytes(), 32 * _PIECE)

    def run(self, work: Callable[[T], bytes], pieces: Sequence[T], sender: str = "") -> bytes:
        try:
            with self.link.activity("alignment"):
                return b"".join(self.mapper.map(work, pieces))
        except SmallOrder as error:
            raise BadAlignment(f"{sender}: {error}") from None

    # Sizes are announced before and everything that arrives has exactly the announced one.

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

    async def receive_due(self, kind: str, sender: str, step: int, due: int) -> bytes:
        blob = await self.link.receive(kind, sender, step=step)
        if len(blob) != due:
            raise BadAlignment(f"{sender}: a block of {len(blob)} bytes in {kind}, {due} are due")
        return blob


class _Points:
    """Blocks of points from one sender, `count` in all, no two of them the same."""

    def __init__(self, side: _Side, kind: str, sender: str, count: int) -> None:
        self._side, self._kind, self._sender, self._count = side, kind, sender, count
        self._halves = records(count, 2)
        """Half of each point."""

    async def receive(self, step: int) -> bytes:
        count = min(BLOCK, self._count - BLOCK * step)
        blob = await self._side.receive_due(self._kind, self._sender, step, POINT * count)
        if not all(0 < int.from_bytes(point, "little") < PRIME for point in cut(blob, POINT)):
            raise BadAlignment(f"{self._sender}: a point in {self._kind} is zero or not reduced")
        self._halves[_block(step)] = words(blob, 4)[:, :2]
        return blob

    def check(self) -> None:
        if psi_work.repeated(self._halves)[1]:
            raise BadAlignment(f"{self._sender}: the same point twice in {self._kind}")


async def _hub(side: _Side, others: Sequence[str], scalars: tuple[bytes, bytes]) -> Places:
    mask, undo = scalars
    for other in others:
        side.send_size(other)
    counts = {other: await side.receive_size(other) for other in others}
    order, blinded = psi_work.shuffled(len(side)), records(len(side), 4)
    for at in side.blocks():  # the others make their tables in the meantime
        blinded[at] = words(side.run(partial(psi_work.masked, mask), side.pieces(order[at])), 4)
    values = {other: records(len(side), 8) for other in others}
    points = {other: _Points(side, "psi-evaluated", other, len(side)) for other in others}
    steps = _steps(len(side))
    for step in progress(range(steps + WINDOW), "comparing ids", steps + WINDOW):
        if step < steps:
            blob = blinded[_block(step)].tobytes()
            for other in others:
                side.link.send(other, "psi-blinded", blob, step=step)
        if (due := step - WINDOW) >= 0:
            for other in others:
                evaluated = await points[other].receive(due)
                work = partial(psi_work.hub_values, undo, other)
                both = zip(side.pieces(order[_block(due)]), cut(evaluated, POINT * _PIECE), strict=True)
                values[other][_block(due)] = words(side.run(work, list(both), other), 8)
    total = np.zeros((len(side), 2), dtype=np.uint64)
    for other in others:
        points[other].check()
        await _open(side, other, counts[other], values[other], total)
    common = np.flatnonzero(total.max(axis=1) == 0)
    common = common[np.argsort(order[common])]
    for other in others:
        side.link.send(other, "psi-common", (_CUT * len(common)).to_bytes(8, "big"))
        for step, start in enumerate(range(0, len(common), _CHUNK // _CUT), 1):
            names = values[other][common[start : start + _CHUNK // _CUT], 6:]
            side.link.send(other, "psi-common", names.tobytes(), step=step)
    return side.rows[order[common]]


async def _open(side: _Side, other: str, count: int, values: Words, total: Words) -> None:
    """Add to `total` what this party's ids, by their values, open in the tables of `other`."""
    for step, rows in enumerate(psi_work.by_table(values, count)):
        table = await side.receive_due("psi-table", other, step, psi_work.table_bytes(count))
        with side.link.activity("alignment"):
            total[rows] ^= psi_work.open_shares(table, values[rows], psi_work.capacity(count))


async def _answer(side: _Side, hub: str, others: Sequence[str], scalar: bytes) -> Places:
    side.send_size(hub)
    count = await side.receive_size(hub)
    keys = await _share_keys(side, others)
    own, work = records(len(side), 8), partial(psi_work.own_values, scalar, side.link.name, keys)
    for at in side.blocks():
        own[at] = words(side.run(work, side.pieces(at)), 8)
    points = _Points(side, "psi-blinded", hub, count)
    for step in progress(range(_steps(count)), "comparing ids", _steps(count)):
        blob = await points.receive(step)
        done = side.run(partial(psi_work.multiplied, scalar), cut(blob, POINT * _PIECE), hub)
        side.link.send(hub, "psi-evaluated", done, step=step)
    points.check()
    _send_tables(side, hub, own)
    return await _receive_common(side, hub, own, count)


async def _share_keys(side: _Side, others: Sequence[str]) -> list[bytes]:
    """Agree on a key with each other party. The keys make shares of an id that sum to 0."""
    scalars = {other: curve.draw_scalar() for other in others}
    for other, scalar in scalars.items():
        side.link.send(other, "psi-seed", curve.public(scalar))
    keys = []
    for other, scalar in scalars.items():
        point = await _Points(side, "psi-seed", other, 1).receive(0)
        secret = side.run(partial(psi_work.multiplied, scalar), [point], other)
        keys.append(hashlib.sha256(b"securefed-psi-share-v1" + secret).digest())
    return keys


def _send_tables(side: _Side, hub: str, own: Words) -> None:
    """Send tables in batches, one table per worker."""
    work = partial(psi_work.encode_table, psi_work.capacity(len(side)))
    tables, at_once = psi_work.by_table(own, len(side)), max(1, side.mapper.workers)
    for start in range(0, len(tables), at_once):
        with side.link.activity("alignment"):
            results = side.mapper.map(work, [own[rows] for rows in tables[start : start + at_once]])
        for step, table in enumerate(results, start):
            side.link.send(hub, "psi-table", table, step=step)


async def _receive_common(side: _Side, hub: str, own: Words, hub_size: int) -> Places:
    """Return the rows of the ids that the hub names, in the agreed order."""
    size, most = _number(await side.link.receive("psi-common", hub), hub), _CUT * min(len(side), hub_size)
    if size > most:
        raise BadAlignment(f"{hub}: {size} bytes of psi-common announced, at most {most} are allowed")
    if size % _CUT:
        raise BadAlignment(f"{hub}: {size} bytes of psi-common, a multiple of {_CUT} is due")
    names = psi_work.texts(np.ascontiguousarray(own[:, 6:]))
    order, common = np.argsort(names), [np.empty(0, dtype=np.intp)]
    for step, start in enumerate(range(0, size, _CHUNK), 1):
        blob = await side.receive_due("psi-common", hub, step, min(_CHUNK, size - start))
        named = psi_work.texts(words(blob, 2))
        places = order[np.searchsorted(names, named, sorter=order) % len(order)]
        if (names[places] != named).any():
            raise BadAlignment(f"{hub}: named an id as common that {side.link.name} does not have")
        common.append(places)
    in_order = np.concatenate(common)
    if (np.diff(in_order) <= 0).any():
        raise BadAlignment(f"{hub}: the common ids are not in the agreed order, each once")
    return side.rows[in_order]


def _steps(count: int) -> int:
    return -(-count // BLOCK)


def _block(step: int) -> slice:
    return slice(BLOCK * step, BLOCK * (step + 1))


def _number(blob: bytes, sender: str) -> int:
    if len(blob) != 8:
        raise BadAlignment(f"{sender}: a number of {len(blob)} bytes, 8 are due")
    return int.from_bytes(blob, "big")
