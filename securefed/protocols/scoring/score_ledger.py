"""The score ledger: how much of a person's row its scores have shown. Each scored party keeps one.

A score at precision 2**-p that is opened modulo 2**m shows at most p + m bits, whatever the question. The
ledger compares this with the entropy of the columns (securefed.data.columns). The line is drawn at half,
since correlated columns hold less than each by itself (docs/proofs.md has measurements):

    allowed = max(2, floor(bits that the columns hold / (MARGIN (p + m))))      scorings of one person

The ledger warns past half of that and refuses past it. Two scorings are always answered: one measures the
model on held-out people, the other is the model's use. Where the columns hold less than one score shows, the
ledger warns at the first scoring: patterns of values then show as clusters of scores.

The ledger counts *questions*: people, and all bytes of the question. The same question again has the same
answer (protocols.scoring.blur) and costs nothing. Evaluations during training are questions too.

One *scoring* may take several questions: chunks of rows, or folds that models of their own score. Everybody
is in one of them. People with equal rows are not told apart, so that each of them may be counted in several.
That is still one scoring, and all its bits count. A scoring asks once at each of its *places* (a chunk of a
round). Another question at the same place is another scoring: a label party could interrupt a run after every
answer, and ask otherwise when it goes on. Places that were asked as often belong to the same scorings: a run
that goes back and asks anew at all of its places makes two.

A dishonest label party can aim every opening at one person, so the ledger also has a total over all people
(`total_bits`). It identifies people by a keyed hash of their id, or of their row if they have none.

    record    magic 4 b"SCOR" | bits 4 | people 4 | name 16 | people x 16 | checksum 8
    name      question 8 | scoring 4 | place 4
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from hashlib import blake2b
from math import floor
from typing import Protocol

from securefed.declare import check_choice
from securefed.errors import DataError
from securefed.protocols.own_gradient.ledger import LedgerRefusal, LedgerWarning

MODES = ("refuse", "warn", "off")
MARGIN = 2.0
RANGE_BITS = 6
"""m: a score is opened modulo 2**m."""
LEAST_ALLOWED = 2
DIGEST = 16
QUESTION, SCORING = slice(0, 8), slice(8, 12)
PLACE = slice(8, 16)
"""Parts of a record's name; a place is one of a scoring."""
HEAD = struct.Struct(f"<4sII{DIGEST}s")
MAGIC = b"SCOR"
CHECK = 8


class ScoreRefusal(LedgerRefusal):
    """A refusal of more scores of a person than its columns allow."""


class ScoreWarning(LedgerWarning):
    """A warning that scores come close to showing a party's columns, or show them."""


def score_bits(precision_bits: int, outputs: int = 1) -> int:
    """Return the bits that one scoring shows about a row."""
    return outputs * (precision_bits + RANGE_BITS)


def allowed_scorings(column_bits: float, precision_bits: int, outputs: int = 1) -> int:
    """Return the scorings of one person that the ledger allows."""
    return max(LEAST_ALLOWED, floor(column_bits / (MARGIN * score_bits(precision_bits, outputs))))


class ScoreStore(Protocol):
    """Durable storage for the records of a ledger."""

    def read(self) -> bytes:
        """Return all bytes that any process appended since the last call."""

    def append(self, record: bytes) -> None:
        """Append a record. It is durable when the call returns."""

    def held(self) -> AbstractContextManager[object]:
        """Lock the store, so that no other process appends between reading and booking."""


@dataclass(frozen=True)
class ScoringState:
    """The state of the most-scored person after a scoring."""

    mode: str
    scorings: int
    bits: int
    column_bits: float
    precision_bits: int
    outputs: int = 1

    @property
    def allowed(self) -> int:
        return allowed_scorings(self.column_bits, self.precision_bits, self.outputs)

    @property
    def verdict(self) -> str:
        if self.mode == "off":
            return "not counted"
        # Bits shown, as a fraction of what the ledger allows
        ratio = MARGIN * self.bits / self.column_bits if self.column_bits > 0 else float("inf")
        if self.scorings <= 1 and score_bits(self.precision_bits, self.outputs) > self.column_bits:
            return "shown"
        if self.scorings > LEAST_ALLOWED and ratio > 1.0:
            return "past"
        return "near" if ratio > 0.5 else "below the line"


class ScoreLedger:
    """A count of what scores have told about each person. Each scored party keeps one."""

    def __init__(self, key: bytes, mode: str = "refuse", store: ScoreStore | None = None) -> None:
        self.mode = check_choice("score_ledger", mode, MODES)
        self._key, self._store = key, store
        self._told: dict[bytes, tuple[int, int]] = {}
        """(scorings, bits) by person."""
        self._answered: dict[bytes, set[bytes]] = {}
        """People by question."""
        self._scored: dict[bytes, dict[bytes, int]] = {}
        """People by scoring, and how often each was asked about at one place of it."""
        self._placed: dict[bytes, set[bytes]] = {}
        """Questions by place."""
        self._records = b""
        self._warned: set[str] = set()

    @property
    def total_bits(self) -> int:
        """The most that all scores together have told."""
        self._catch_up()
        return sum(bits for _, bits in self._told.values())

    def expect(
        self,
        party: str,
        people: Sequence[bytes],
        scorings: int,
        precision_bits: int,
        column_bits: float,
        outputs: int = 1,
        scoring: bytes = b"",
    ) -> None:
        """Warn or raise ScoreRefusal before a training that will score these people `scorings` times.

        Whoever was counted in `scoring` before an interruption is not counted again.
        """
        if self.mode == "off" or not scorings:
            return
        self._catch_up()
        scored = self._scored.get(self._name(b"", scoring, b"")[SCORING], {})
        hashes = [each for each in map(self._person, people) if each not in scored]
        step = scorings * score_bits(precision_bits, outputs)
        told = [self._told.get(each, (0, 0)) for each in hashes]
        after = _most([(before + scorings, bits + step) for before, bits in told])
        state = ScoringState(self.mode, *after, column_bits, precision_bits, outputs)
        self._judge(party, state, f"{scorings} evaluations are planned")

    def book(
        self,
        party: str,
        people: Sequence[bytes],
        question: bytes,
        precision_bits: int,
        column_bits: float,
        outputs: int = 1,
        scoring: bytes = b"",
        place: bytes = b"",
    ) -> ScoringState:
        """Record a question before it is answered, or raise ScoreRefusal.

        `scoring`: the same for all questions of a scoring, drawn by the scored party. Empty: the question is
        a scoring of its own. `place`: where in the scoring it is asked.
        """
        sizes = column_bits, precision_bits, outputs
        if self.mode == "off":
            return ScoringState("off", 0, 0, *sizes)
        with self._locked():
            name = self._name(question, scoring, place)
            before = self._answered.get(name[QUESTION], set())
            hashes = dict.fromkeys(self._person(each) for each in people)
            new = [each for each in hashes if each not in before]
            step = score_bits(precision_bits, outputs)
            after = {each: self._after(each, name, step) for each in new}
            scorings, bits = _most([after.get(each) or self._told[each] for each in hashes])
            state = ScoringState(self.mode, scorings, bits, *sizes)
            if new:
                self._judge(party, state, "a score was asked for")
                self._write(_record(name, new, step))
            return state

    def book_release(self, party: str, receiver: str, question: bytes, bits: int, limit: int | None) -> None:
        """Record a release of `bits` bits of a model before it is answered, in every mode.

        Repeating a question costs nothing. Raises ScoreRefusal beyond `limit` bits over all runs.
        """
        with self._locked():
            name = self._name(question, b"", b"")
            person = self._person(b"release " + receiver.encode())
            if person in self._answered.get(name[QUESTION], set()):
                return
            total = self._told.get(person, (0, 0))[1] + bits
            if limit is not None and total > limit:
                raise ScoreRefusal(
                    f"{party}: releases to {receiver} would show {total} bits in all, at most {limit} are"
                    " allowed; release='trusted' at all parties says that they trust each other"
                )
            self._write(_record(name, [person], bits))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Let no other process append between reading and booking."""
        with nullcontext() if self._store is None else self._store.held():
            self._catch_up()
            yield

    def _write(self, record: bytes) -> None:
        if self._store is None:
            self._records += record
            self._take(record)
        else:
            self._store.append(record)
            self._catch_up()

    def _judge(self, party: str, state: ScoringState, why: str) -> None:
        if state.verdict == "below the line" or (state.verdict == "near" and state.scorings <= 1):
            return
        allowed = state.allowed
        times = "once" if state.scorings == 1 else f"{state.scorings} times"
        numbers = (
            f"{party}: {why}, and a person would be scored {times}: {state.bits} bits,"
            f" where {party}'s columns hold {state.column_bits:.0f}"
        )
        if state.verdict == "past" and self.mode == "refuse":
            raise ScoreRefusal(
                f"{numbers}; at most {allowed} at 2**-{state.precision_bits} are allowed: evaluate more"
                f" seldom, set a smaller score_precision, or score_ledger='warn' at {party} to go on"
            )
        if state.verdict not in self._warned:
            self._warned.add(state.verdict)
            remark = {
                "near": f"At most {allowed} scorings are allowed",
                "shown": "Scores then show patterns of these columns",
                "past": "The columns can then be found from scores",
            }[state.verdict]
            remedy = "Score people less often, or set a smaller score_precision: each bit less shows less"
            warnings.warn(f"{numbers}. {remark}. {remedy}", ScoreWarning, stacklevel=4)

    # Records: question, precision, people; each whole or not there

    def to_bytes(self) -> bytes:
        """Return the records of a ledger in memory."""
        return self._records

    def restore(self, records: bytes) -> None:
        """Continue from the result of `to_bytes`."""
        self._records += records
        self._take(records)

    def _catch_up(self) -> None:
        if self._store is not None:
            self._take(self._store.read())

    def _take(self, records: bytes) -> None:
        for name, bits, people in read_records(records):
            answered = self._answered.setdefault(name[QUESTION], set())
            after = {each: self._after(each, name, bits) for each in people if each not in answered}
            self._told.update(after)
            scored = self._scored.setdefault(name[SCORING], {})
            scored |= {each: max(scored.get(each, 0), self._times(each, name)) for each in after}
            answered.update(people)
            self._placed.setdefault(name[PLACE], set()).add(name[QUESTION])

    def _after(self, person: bytes, name: bytes, bits: int) -> tuple[int, int]:
        """Return the scorings and bits of a person after a new question."""
        scorings, before = self._told.get(person, (0, 0))
        known = self._scored.get(name[SCORING], {}).get(person, 0)
        return scorings + (self._times(person, name) > known), before + bits

    def _times(self, person: bytes, name: bytes) -> int:
        """Return how often a person is asked about at a place, with a new question there."""
        return 1 + sum(person in self._answered[each] for each in self._placed.get(name[PLACE], ()))

    def _name(self, question: bytes, scoring: bytes, place: bytes) -> bytes:
        """Return hashes of the question, of the scoring that it belongs to, and of its place there."""
        parts = (question, 8), (scoring or question, 4), (place, 4)
        return b"".join(self._hashed(part, b"score question")[:size] for part, size in parts)

    def _person(self, content: bytes) -> bytes:
        return self._hashed(content, b"score person")

    def _hashed(self, content: bytes, purpose: bytes) -> bytes:
        return blake2b(content, key=self._key, person=purpose, digest_size=DIGEST).digest()


def _most(told: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return the scorings and bits of the person nearest to a refusal.

    People with equal rows may have many bits of few scorings; they do not stand for the others.
    """
    return max(told, key=lambda pair: (pair[0] > LEAST_ALLOWED, pair[1]), default=(0, 0))


def _record(question: bytes, people: Sequence[bytes], bits: int) -> bytes:
    body = HEAD.pack(MAGIC, bits, len(people), question) + b"".join(people)
    return body + _check(body)


def _check(body: bytes) -> bytes:
    return blake2b(body, digest_size=CHECK).digest()


def whole_records(data: bytes) -> int:
    """Return how many bytes of `data` are whole records. An interrupted write leaves a partial record
    behind them.
    """
    return sum(HEAD.size + len(people) * DIGEST + CHECK for _, _, people in read_records(data))


def read_records(data: bytes) -> list[tuple[bytes, int, list[bytes]]]:
    """Return the question, the bits told of each person, and the people of each whole record."""
    records, place = [], 0
    while len(data) - place >= HEAD.size:
        magic, bits, count, question = HEAD.unpack_from(data, place)
        first, last = place + HEAD.size, place + HEAD.size + count * DIGEST
        if magic == MAGIC and len(data) - last < CHECK:
            break
        if magic != MAGIC or _check(data[place:last]) != data[last : last + CHECK]:
            raise DataError(f"score ledger: damaged at byte {place}")
        records.append((question, bits, [data[i : i + DIGEST] for i in range(first, last, DIGEST)]))
        place = last + CHECK
    return records
