"""One party's record of what it sent, received, opened and checked, in order. It has digests and sizes, no
values.

Each entry is a line of JSON with a hash of all lines before it and of itself (`chain`). Altering, dropping or
inserting an entry later breaks every entry that follows. Two parties compare `roots` at the end: what one
sent is what the other received, under the same agreement.

Events:

    agreed      the settings that this party runs by, and their digest
    sent        a message, with what its bytes consist of and what the sender did to protect it
    received    a message, with what its bytes consist of
    checked     what arrived was validated before use; which checks
    requested   an opening was asked for
    opened      an opening was answered, for a peer
    spent       a mask was used: removed or disclosed, and destroyed
    resumed     the run went on from a checkpoint

Masks appear as fingerprints under a key that never leaves this process. Equal masks show, but no reader can
test a guess. With an unkeyed hash the key-holder, who sees value + mask, could try values.

*Contents.* A transcript records what a message *was*, not what its sender claims. So sender and receiver each
read the headers of the frames inside (securefed.crypto.wire) and test whether the rest looks like ciphertext.
That shows encryption that was left off by mistake. Headers contain no values, and values are never examined.

Blind runs send bytes without frames: limbs of 21 bits, three in eight bytes, or ciphertexts. Their lengths
follow from the agreement. Here they are tested by what their kind must look like:

    ciphertext    the lowest 15 bits of every limb are uniform; residues modulo a prime are not, above that
    numbers:n     numbers of five limbs; the lowest n bits of each are uniform
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from math import log, sqrt
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import KEY_KINDS, protects
from securefed.crypto.wire import HEADER, MAGIC, Kind, kind_of_keys
from securefed.errors import DataError, plain_text
from securefed.files import check_release, release, storage_error, write_atomically
from securefed.transport.message import Message

NAMES = {int(kind): kind.name.lower().replace("_", "-") for kind in Kind}
PREFIX = 8
"""Bytes of an optional length field before a frame."""
LIMB_BITS, LIMBS, RESIDUE_BITS = 21, 5, 15
GROUP_BITS = 3
"""Bits that are tested together."""
MOST_WORDS, LEAST_WORDS = 512, 64
_X = -log(1e-14)  # how often random bytes may fail a test
# Laurent and Massart 2000, lemma 1: chi-square of 7 degrees of freedom is above this with that probability.
LIMIT = 7 + 2 * sqrt(7 * _X) + 2 * _X


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
        """Return the fields that say something."""
        fields = {**vars(self), "shape": list(self.shape)}
        return {name: value for name, value in fields.items() if value not in ("", [], None)}

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
    _, _, kind, number, ndim, rows, columns, *_, parameters, key, length, _ = fields
    size, name = HEADER.size + length, kind_of_keys(number)
    if place + size > len(payload) or kind not in NAMES or name is None or ndim > 2:
        return None
    body = memoryview(payload)[place + HEADER.size : place + size]
    looks = None if kind == Kind.PUBLIC_KEY or not protects(name) else looks_random(body, name)
    return Part(NAMES[kind], size, name, key.hex(), parameters.hex(), (rows, columns)[:ndim], looks)


def looks_random(body: memoryview | bytes, scheme: str) -> bool | None:
    """Test the highest bits of bytes, for each place in a word of 8 bytes.

    Ciphertexts, masked values and masks are uniform there, except for CKKS's last byte: residues fill 63 of
    64 bits. Floating-point numbers and fixed-point integers are not: their signs and exponents repeat.
    """
    words = np.frombuffer(body, "<i8", len(body) // 8, len(body) % 8)[-MOST_WORDS:]
    if len(words) < LEAST_WORDS:
        return None
    places = 8 * np.arange(1, 1 + KEY_KINDS[scheme].random_bytes) - GROUP_BITS
    return _uniform(words >> places[:, None])


def looks_uniform(payload: bytes, looks: str) -> bool | None:
    """Test the bits of limbs that a kind of payload without frames must have ("ciphertext", "numbers:n")."""
    words = np.frombuffer(payload, "<i8", len(payload) // 8)
    if looks == "ciphertext":
        limbs = words[:MOST_WORDS] >> LIMB_BITS * np.arange(3)[:, None]
        bits = [RESIDUE_BITS] * 3
    else:  # limb l of all numbers comes before limb l + 1 of any
        count, total = 3 * len(words) // LIMBS, int(looks.partition(":")[2])
        places = count * np.arange(LIMBS)[:, None] + np.arange(min(count, MOST_WORDS))
        slots, places = np.divmod(places, max(len(words), 1))
        limbs = words[places] >> LIMB_BITS * slots
        bits = [min(max(total - LIMB_BITS * limb, 0), LIMB_BITS) for limb in range(LIMBS)]
    groups = [
        limb >> np.arange(0, most - GROUP_BITS + 1, GROUP_BITS)[:, None]
        for limb, most in zip(limbs, bits, strict=True)
    ]
    return _uniform(np.concatenate(groups))


def _uniform(groups: NDArray[np.int64]) -> bool | None:
    """Test the lowest bits by Pearson's chi-square, at each place (row) and over all places together.

    Few numbers are only tested together. Returns None if there are too few for that.
    """
    (places, count), values = groups.shape, 1 << GROUP_BITS
    if places * count < LEAST_WORDS:
        return None
    numbered = groups & (values - 1)
    numbered += values * np.arange(places)[:, None]
    counts = np.bincount(numbered.ravel(), minlength=values * places).reshape(places, values)
    tested = np.vstack([counts.sum(axis=0), *([counts] if count >= LEAST_WORDS else [])])
    # The sum of (count - expected)^2 / expected.
    totals = tested.sum(axis=1)
    statistic = (tested * tested).sum(axis=1) * (values / totals) - totals
    return bool(statistic.max() < LIMIT)


FORMAT = 2
PRINT_BYTES = 12
MOST_NUMBER = 1 << 62
Encoded = bytes
MOST_SECONDS = 1.0
"""A line waits at most so long, until the next entry, before it is written to the file."""
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def canonical(value: Any) -> bytes:
    """Return the one text of a JSON value, to hash."""
    return _ENCODER.encode(value).encode()


@dataclass(frozen=True)
class Entry:
    """One event. The module lists the events."""

    event: str
    kind: str
    peer: str
    round: int
    step: int
    bytes: int
    digest: str
    phase: str
    """training, evaluation, prediction, release or setup"""
    detail: dict[str, Any]
    chain: str = ""

    @property
    def parts(self) -> list[Part]:
        """The parts of the message."""
        return [Part.from_dict(part) for part in self.detail.get("parts", ())]


def _content(entry: Entry) -> bytes:
    """Return the text of an entry that the chain holds: all but `chain`."""
    # `asdict` would copy the details in depth, for every message of a run.
    return canonical({name: value for name, value in vars(entry).items() if name != "chain"})


def _chained(before: str, content: bytes) -> str:
    return hashlib.sha256(before.encode() + content).hexdigest()


def _line(content: bytes, chain: str) -> bytes:
    """Return the canonical text of a whole entry: `chain` comes after `bytes`, which comes first."""
    size, _, rest = content.partition(b",")
    return b'%s,"chain":"%s",%s\n' % (size, chain.encode(), rest)


class Transcript:
    """The entries of one party, append-only. `on_entry` hears of each."""

    def __init__(self, party: str, run: str = "", on_entry: Callable[[Entry], None] | None = None) -> None:
        self.party = party
        self.run = run
        self._on_entry = on_entry
        self.release = release()
        self.entries: list[Entry] = []
        self.ending: tuple[int, str] | None = None
        """The last line of its file, if it was read from one: entries, and the end of the chain."""
        self.path: Path | None = None
        """Its file, if it has one."""
        self._read = False
        self._secret = os.urandom(32)
        self._stream: IO[bytes] | None = None
        self._written = 0.0

    @property
    def header(self) -> dict[str, Any]:
        return {"transcript": FORMAT, "release": self.release, "party": self.party, "run": self.run}

    @property
    def start(self) -> str:
        """The start of the chain."""
        return hashlib.sha256(canonical(self.header)).hexdigest()

    @property
    def head(self) -> str:
        """The end of the chain, a hash of everything before."""
        return self.entries[-1].chain if self.entries else self.start

    def message(
        self,
        event: str,
        message: Message,
        phase: str,
        facts: Mapping[str, Any] | None = None,
        looks: str = "",
    ) -> None:
        """Record a message that was sent or received.

        `facts` say what the sender did to it (origin, mask fingerprints). `looks` says what its bytes must
        look like (securefed.transport.transcript).
        """
        peer = message.receiver if event == "sent" else message.sender
        detail: dict[str, Any] = {
            "sequence": message.sequence,
            "parts": [part.to_dict() for part in parts_of(message.payload, looks)],
        }
        if facts:
            detail["facts"] = dict(facts)
        place = (event, message.kind, peer, message.round, message.step)
        self._append(Entry(*place, message.size, message.digest, phase, detail))

    def note(
        self, event: str, kind: str, peer: str, round_: int, step: int, phase: str, **detail: Any
    ) -> None:
        """Record an event that is not a message."""
        self._append(Entry(event, kind, peer, round_, step, 0, "", phase, detail))

    def _append(self, entry: Entry) -> None:
        content = _content(entry)
        linked = Entry(**{**vars(entry), "chain": _chained(self.head, content)})
        self.entries.append(linked)
        # What a key opened and sends is in the file before it leaves: others may have finished the round with
        # it, and a key-holder that is killed then has no checkpoint of that round.
        answer = entry.event == "opened" or (entry.event == "sent" and entry.kind.endswith("opening"))
        self._write(_line(content, linked.chain), now=answer)
        if self._on_entry is not None:
            self._on_entry(linked)

    def mask_print(self, pieces: Collection[bytes]) -> dict[str, Any]:
        """Return fingerprints of a mask's independent pieces; `blank` counts pieces that are all zero."""
        drawn = [piece for piece in pieces if any(piece)]
        prints = [hmac.digest(self._secret, piece, "sha256")[:PRINT_BYTES].hex() for piece in drawn]
        return {"pieces": prints, "blank": len(pieces) - len(drawn)}

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def of(self, event: str) -> list[Entry]:
        return [entry for entry in self.entries if entry.event == event]

    def count(self, event: str = "sent", phase: str | None = None) -> Counter[str]:
        """Count messages by kind."""
        return Counter(e.kind for e in self.entries if e.event == event and phase in (None, e.phase))

    def bytes(self, event: str = "sent", phase: str | None = None) -> Counter[str]:
        """Count bytes by kind."""
        sizes: Counter[str] = Counter()
        for entry in self.entries:
            if entry.event == event and phase in (None, entry.phase):
                sizes[entry.kind] += entry.bytes
        return sizes

    def fault(self, *, ended: bool = True) -> str:
        """Return what is wrong with the chain, in words, or nothing. `ended`: a file has to have its end."""
        before = self.start
        for place, entry in enumerate(self.entries):
            if _chained(before, _content(entry)) != entry.chain:
                return f"entry {place} ({entry.event} {entry.kind}) does not fit the chain"
            before = entry.chain
        if not self._read or not ended:
            return ""
        if self.ending is None:
            return "cut short: its last line is missing"
        if self.ending != (len(self.entries), self.head):
            return f"{len(self.entries)} entries are there, its last line says otherwise"
        return ""

    def exchanged(self, event: str, peer: str) -> list[list[Any]]:
        """Return what both ends record about each message `sent` to a peer, or `received` from it."""
        return [
            [e.detail.get("sequence"), e.kind, e.round, e.step, e.bytes, e.digest]
            for e in self.entries
            if e.event == event and e.peer == peer
        ]

    def roots(self, peer: str) -> dict[str, str]:
        """Return hashes to compare with that peer's: what one sent is what the other received."""
        listed = {event: [self.run, self.exchanged(event, peer)] for event in ("sent", "received")}
        hashes = {event: hashlib.sha256(canonical(each)).hexdigest() for event, each in listed.items()}
        agreed = ",".join(str(entry.detail.get("digest", "")) for entry in self.of("agreed"))
        return {**hashes, "agreement": agreed}

    # Files

    def stream_to(self, path: str | Path) -> None:
        """Write the lines so far as a whole, and further ones by `flush`. Raises StorageError."""
        self.close()
        self.path, self._written = Path(path), time.monotonic()
        lines = [_line(_content(entry), entry.chain) for entry in self.entries]
        write_atomically(self.path, b"".join([canonical(self.header) + b"\n", *lines]), mode=0o644)
        try:
            self._stream = self.path.open("ab")
        except OSError as error:
            raise storage_error(self.path, error) from None

    def _write(self, line: Encoded, *, now: bool, on_disk: bool = False) -> None:
        """Append a line to the file: `now`, or with one of the next. Raises StorageError.

        `on_disk`: so that a power cut does not lose it.
        """
        if self._stream is None or self.path is None:
            return
        try:
            self._stream.write(line)
            if now or time.monotonic() > self._written + MOST_SECONDS:
                self._stream.flush()
                self._written = time.monotonic()
            if on_disk:
                os.fdatasync(self._stream.fileno())
        except OSError as error:
            self.abandon()
            raise storage_error(self.path, error) from None

    def flush(self, *, on_disk: bool = False) -> None:
        """Write to the file what is not in it yet. Raises StorageError."""
        self._write(b"", now=True, on_disk=on_disk)

    def close(self) -> None:
        """End a file that `stream_to` began. Its last line has the number of entries, so that a cut shows."""
        self._write(canonical({"end": len(self.entries), "chain": self.head}) + b"\n", now=True, on_disk=True)
        self.abandon()

    def abandon(self) -> None:
        """Let go of the file. Without the last line it is whole up to here, and has no end."""
        stream, self._stream = self._stream, None
        if stream is not None:
            with suppress(OSError):
                stream.close()

    def save(self, path: str | Path) -> None:
        """Write the whole transcript as JSON lines."""
        self.stream_to(path)
        self.close()

    @classmethod
    def read(cls, path: str | Path) -> Transcript:
        """Parse a transcript file and check its form. `fault` detects changes."""
        where = Path(path)
        try:
            *texts, last = where.read_text(encoding="utf-8").split("\n")
            lines = [json.loads(text) for text in texts if text]
            with suppress(ValueError):  # nothing after the last line break, or a line that a kill cut short
                lines.append(json.loads(last))
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(f"{where}: not a transcript ({plain_text(error, 80)})") from None
        if not lines or not all(isinstance(line, dict) for line in lines):
            raise DataError(f"{where}: not a transcript: empty, or a line is not an object")
        head, *rest = lines
        transcript = cls(str(head.get("party")), str(head.get("run")))
        transcript.release = str(head.get("release"))
        if canonical(head) != canonical(transcript.header):
            raise DataError(f"{where}: not a transcript of format {FORMAT}: its first line is another")
        check_release(f"{where}: the transcript", transcript.release, "read it with that release")
        end = rest.pop() if rest and "end" in rest[-1] else None
        try:
            transcript.entries = [_entry(line) for line in rest]
        except (TypeError, ValueError) as error:
            raise DataError(f"{where}: an entry is malformed ({error})") from None
        transcript._read = True
        if end is not None:
            transcript.ending = (end["end"], str(end.get("chain", "")))
        return transcript


FIELDS = {field.name: {"str": str, "int": int}.get(str(field.type), dict) for field in fields(Entry)}


def _entry(line: dict[str, Any]) -> Entry:
    if line.keys() != FIELDS.keys():
        raise ValueError(f"fields {', '.join(sorted(line))} given")
    for name, kind in FIELDS.items():
        value = line[name]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(f"{name}: {plain_text(repr(value), 40)} given")
        if isinstance(value, int) and not -1 <= value < MOST_NUMBER:
            raise ValueError(f"{name}: a number that no run has")
    return Entry(**line)
