"""One party's record of what it sent, received, opened and checked, in order. It has digests and sizes, no
values.

Each entry is a line of JSON with a hash of all lines before it and of itself (`chain`). Altering, dropping or
inserting an entry later breaks every entry that follows. Two parties compare `Roots` at the end: what one
sent is what the other received, under the same agreement and keys.

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
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from securefed.errors import DataError, plain_text
from securefed.transport.contents import Part, parts_of
from securefed.transport.message import Message
from securefed.versions import check_release, release

__all__ = ["Entry", "MaskPrint", "Roots", "Transcript", "canonical"]

FORMAT = 2
PRINT_BYTES = 12
MOST_NUMBER = 1 << 62


def canonical(value: Any) -> bytes:
    """Return the one text of a JSON value, to hash."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


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

    def linked(self, before: str) -> Entry:
        """Return the entry with its place in a chain."""
        # Here and in _line `asdict` would copy the details in depth, for every message of a run.
        content = {name: value for name, value in vars(self).items() if name != "chain"}
        digest = hashlib.sha256(before.encode() + canonical(content)).hexdigest()
        return replace(self, chain=digest)


@dataclass(frozen=True)
class MaskPrint:
    """Fingerprints of one mask's independent pieces; `blank` counts pieces that are all zero."""

    pieces: tuple[str, ...]
    blank: int

    def to_dict(self) -> dict[str, Any]:
        return {"pieces": list(self.pieces), "blank": self.blank}


@dataclass(frozen=True)
class Roots:
    """Hashes over what a party sent to a peer and received from it, with the agreement, to compare."""

    party: str
    peer: str
    sent: str
    received: str
    agreement: str


class Transcript:
    """The entries of one party, append-only."""

    def __init__(self, party: str, run: str = "") -> None:
        self.party = party
        self.run = run
        self.release = release()
        self.entries: list[Entry] = []
        self.ending: tuple[int, str] | None = None
        """The last line of its file, if it was read from one: entries, and the end of the chain."""
        self._read = False
        self._secret = os.urandom(32)
        self._stream: IO[str] | None = None

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
        look like (securefed.transport.contents).
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
        linked = entry.linked(self.head)
        self.entries.append(linked)
        if self._stream is not None:
            self._stream.write(_line(linked))
            self._stream.flush()

    def mask_print(self, pieces: Iterable[bytes]) -> MaskPrint:
        """Return the fingerprints of a mask."""
        prints, blank = [], 0
        for piece in pieces:
            if any(piece):
                prints.append(hmac.digest(self._secret, piece, "sha256")[:PRINT_BYTES].hex())
            else:
                blank += 1
        return MaskPrint(tuple(prints), blank)

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

    def rows(self) -> list[dict[str, Any]]:
        return [asdict(entry) for entry in self.entries]

    def fault(self) -> str:
        """Return what is wrong with the chain, in words; empty if it is intact."""
        before = self.start
        for place, entry in enumerate(self.entries):
            if entry.linked(before).chain != entry.chain:
                return f"entry {place} ({entry.event} {entry.kind}) does not fit the chain"
            before = entry.chain
        if self._read and self.ending is None:
            return "cut short: its last line is missing"
        if self._read and self.ending != (len(self.entries), self.head):
            return f"{len(self.entries)} entries are there, its last line says otherwise"
        return ""

    def roots(self, peer: str) -> Roots:
        """Return the summary to compare with that peer's `roots(self.party)`."""
        agreed = [str(entry.detail.get("digest", "")) for entry in self.of("agreed")]
        return Roots(
            self.party, peer, self._root("sent", peer), self._root("received", peer), ",".join(agreed)
        )

    def _root(self, event: str, peer: str) -> str:
        whole = hashlib.sha256(self.run.encode())
        for entry in self.entries:
            if entry.event == event and entry.peer == peer:
                fields = [entry.kind, entry.round, entry.step, entry.bytes, entry.digest]
                whole.update(canonical([entry.detail.get("sequence"), *fields]))
        return whole.hexdigest()

    # Files

    def stream_to(self, path: str | Path) -> None:
        """Write the lines so far, and each further one at once."""
        self.close()
        self._stream = Path(path).open("w", encoding="utf-8")  # noqa: SIM115  # kept open
        self._stream.write(canonical(self.header).decode() + "\n")
        for entry in self.entries:
            self._stream.write(_line(entry))
        self._stream.flush()

    def close(self) -> None:
        """End a file that `stream_to` began. Its last line has the number of entries, so that a cut shows."""
        if self._stream is not None:
            end = {"end": len(self.entries), "chain": self.head}
            self._stream.write(canonical(end).decode() + "\n")
            self._stream.close()
            self._stream = None

    def save(self, path: str | Path) -> None:
        """Write the whole transcript as JSON lines."""
        self.stream_to(path)
        self.close()

    @classmethod
    def read(cls, path: str | Path) -> Transcript:
        """Parse a transcript file and check its form. `fault` detects changes."""
        where = Path(path)
        try:
            lines = [json.loads(line) for line in where.read_text(encoding="utf-8").splitlines() if line]
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(f"{where}: not a transcript ({plain_text(error, 80)})") from None
        if not lines or not all(isinstance(line, dict) for line in lines):
            raise DataError(f"{where}: not a transcript: empty, or a line is not an object")
        head, *rest = lines
        if head.get("transcript") != FORMAT or not isinstance(head.get("party"), str):
            raise DataError(f"{where}: not a transcript of format {FORMAT}: its first line is another")
        check_release(f"{where}: the transcript", head.get("release", ""), "read it with that release")
        end = rest.pop() if rest and "end" in rest[-1] else None
        transcript = cls(head["party"], str(head.get("run", "")))
        transcript.release = str(head["release"])
        try:
            transcript.entries = [_entry(line) for line in rest]
        except (TypeError, ValueError) as error:
            raise DataError(f"{where}: an entry is malformed ({error})") from None
        transcript._read = True
        if end is not None:
            transcript.ending = (end["end"], str(end.get("chain", "")))
        return transcript


FIELDS: dict[str, type] = {
    "event": str,
    "kind": str,
    "peer": str,
    "round": int,
    "step": int,
    "bytes": int,
    "digest": str,
    "phase": str,
    "detail": dict,
    "chain": str,
}


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


def _line(entry: Entry) -> str:
    return canonical(vars(entry)).decode() + "\n"
