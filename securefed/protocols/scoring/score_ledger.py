"""The score ledger: how much of a person's row its scores have shown. Each scored party keeps one.

A score at precision 2**-p that is opened modulo 2**m shows at most p + m bits, whatever the question. The
ledger compares this with the entropy of the columns (docs/proofs.md says why the line is there):

    allowed = max(2, floor(bits that the columns hold / (MARGIN (p + m))))      scorings of one person

The ledger warns past half of that and refuses past it. Where the columns hold less than one score shows, it
warns at the first scoring: patterns of values then show as clusters of scores.

The ledger counts *questions*: people, and all bytes of the question. The same question again has the same
answer (protocols.scoring.blur) and costs nothing. One *scoring* may take several questions: chunks of rows,
or folds that models of their own score. People with equal rows are not told apart, so each may be counted in
several of these. That is one scoring, and all its bits count. A scoring asks once at each of its *places* (a
chunk of a round). Another question at the same place is another scoring: a label party could interrupt a run
after every answer, and ask otherwise when it goes on. A run that goes back and asks anew at all of its places
makes two scorings.

With mode "off" the ledger counts all the same, and neither warns nor refuses. A dishonest label party can aim
every opening at one person, so there is also a total over all people (`total_bits`).

Records are rows of an SQLite database, each with a keyed checksum. A booking is one transaction, on disk
before the scores that it is about leave. A file has a `.mark` beside it that says how many bookings there
were. A ledger with fewer of them, or under another key, is refused.
"""

from __future__ import annotations

import secrets
import sqlite3
import warnings
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from math import floor
from pathlib import Path
from typing import Any

from securefed.crypto.fixed import Floats
from securefed.data.columns import column_bits
from securefed.declare import check_choice
from securefed.errors import DataError, SettingError
from securefed.files import StorageError, storage_error, write_atomically
from securefed.protocols.own_gradient.ledger import LedgerRefusal, LedgerWarning
from securefed.protocols.scoring.blur import KEY_BYTES, blur, keyed, row_contents, sizes

MODES = ("refuse", "off")
MARGIN = 2.0
RANGE_BITS = 6
"""m: a score is opened modulo 2**m."""
LEAST_ALLOWED = 2
DIGEST, SEAL = 16, 8
KNOWN_AT_ONCE = 1 << 14
"""Rows that `know` looks at at once."""
PATIENCE = 3600.0
"""Seconds to wait for other processes of the same party."""

TABLES = """
PRAGMA synchronous = EXTRA;
PRAGMA temp_store = MEMORY;
CREATE TEMP TABLE asked (person BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS told (
    person BLOB, question BLOB, scoring BLOB, place BLOB, bits INTEGER, seal BLOB,
    PRIMARY KEY (person, question)
) WITHOUT ROWID;
"""
BOOK = """
INSERT OR IGNORE INTO told
SELECT person, :question, :scoring, :place, :bits, seal(person, :question, :scoring, :place, :bits) FROM asked
"""
UNSEALED = "SELECT COUNT(*) FROM told WHERE seal IS NOT seal(person, question, scoring, place, bits)"
UNCOUNTED = """
DELETE FROM asked
WHERE EXISTS (SELECT 1 FROM told WHERE told.person = asked.person AND scoring = :scoring)
"""
TOLD = """
SELECT person, SUM(scorings), SUM(bits) FROM (
    SELECT person, MAX(times) AS scorings, SUM(bits) AS bits FROM (
        SELECT person, scoring, COUNT(*) AS times, SUM(bits) AS bits FROM asked CROSS JOIN told USING (person)
        GROUP BY person, scoring, place
    ) GROUP BY person, scoring
) GROUP BY person
"""
"""Scorings and bits of the people asked about. A scoring counts its most questions at one place."""


class ScoreRefusal(LedgerRefusal):
    """A refusal of more scores of a person than its columns allow."""


class ScoreWarning(LedgerWarning):
    """A warning that scores come close to showing a party's columns, or show them."""


def score_bits(precision_bits: int, outputs: int = 1) -> int:
    return outputs * (precision_bits + RANGE_BITS)


def allowed_scorings(column_bits: float, precision_bits: int, outputs: int = 1) -> int:
    return max(LEAST_ALLOWED, floor(column_bits / (MARGIN * score_bits(precision_bits, outputs))))


@dataclass(frozen=True)
class ScoringState:
    """The state of the most-scored person after a scoring."""

    scorings: int
    bits: int
    column_bits: float
    precision_bits: int
    outputs: int = 1

    @property
    def verdict(self) -> str:
        # Bits shown, as a fraction of what the ledger allows
        ratio = MARGIN * self.bits / self.column_bits if self.column_bits > 0 else float("inf")
        if self.scorings <= 1 and score_bits(self.precision_bits, self.outputs) > self.column_bits:
            return "shown"
        if self.scorings > LEAST_ALLOWED and ratio > 1.0:
            return "past"
        return "near" if ratio > 0.5 else "below the line"


class ScoreGuard:
    """What a scored party keeps: the secret of its noise, and the ledger of what scores have shown.

    Keep it for as long as people are scored: with another secret the same question gets a second answer.
    `column_bits` is the entropy of a row (securefed.data.columns). `path`: the file that the ledger lasts in;
    None: it is in memory.
    """

    def __init__(
        self,
        key: bytes | None = None,
        *,
        party: str = "a party that is scored",
        mode: str = "refuse",
        path: Path | None = None,
        column_bits: float | None = None,
    ) -> None:
        self.key = secrets.token_bytes(KEY_BYTES) if key is None else key
        if len(self.key) != KEY_BYTES:
            raise SettingError(f"score key: {len(self.key)} bytes given, {KEY_BYTES} are allowed")
        self.mode = check_choice("score_ledger", mode, MODES)
        self.party, self.column_bits, self._path = party, column_bits, path
        self._people: dict[bytes, tuple[bytes, ...]] = {}
        """People by the hash of their row; several where rows are equal."""
        self._memory = self._connected(":memory:")
        weakref.finalize(self, self._memory.close)
        self._checked = False
        self._warned: set[str] = set()

    def know(self, rows: Floats, people: Sequence[bytes]) -> None:
        """Register the people of these rows. The ledger counts people by id, even if their columns change."""
        for start in range(0, len(rows), KNOWN_AT_ONCE):
            some = slice(start, start + KNOWN_AT_ONCE)
            for content, person in zip(row_contents(rows[some]), people[some], strict=True):
                known = self._people.get(_row_hash(content), ())
                if person not in known:
                    self._people[_row_hash(content)] = (*known, person)

    def _about(self, rows: Floats) -> list[bytes]:
        """Return the people of these rows. Without ids, each of several equal rows is another person.

        Raises ScoreRefusal for a person that occurs twice: each place has noise of its own, which would
        average out.
        """
        people: list[bytes] = []
        times: Counter[bytes] = Counter()
        for content in row_contents(rows):
            known = self._people.get(_row_hash(content), ())
            again, times[content] = times[content], times[content] + 1
            if not known:
                people.append(content + again.to_bytes(4, "little") if again else content)
            elif again >= len(known):
                raise ScoreRefusal(f"{self.party}: a question names the same person twice, once is allowed")
            people += known
        return people

    def _entropy(self, rows: Floats) -> float:
        if self.column_bits is None:  # nobody said; what is scored is all that is known of the columns
            self.column_bits = column_bits(rows)
        return self.column_bits

    @property
    def total_bits(self) -> int:
        """The most that all scores together have told."""
        with self._opened() as database:
            return int(database.execute("SELECT TOTAL(bits) FROM told").fetchone()[0])

    def expect(
        self, rows: Floats, scorings: int, precision_bits: int, outputs: int = 1, scoring: bytes = b""
    ) -> None:
        """Warn or raise ScoreRefusal before a training that will evaluate on these rows `scorings` times.

        Whoever was counted in `scoring` before an interruption is not counted again.
        """
        people, entropy = self._about(rows), self._entropy(rows)
        if self.mode == "off" or not scorings:
            return
        with self._opened() as database:
            self._ask(database, people)
            database.execute(UNCOUNTED, self._name(b"", scoring, b""))
            if not database.execute("SELECT COUNT(*) FROM asked").fetchone()[0]:
                return
            after = _most(database, scorings, scorings * score_bits(precision_bits, outputs))
        state = ScoringState(*after, entropy, precision_bits, outputs)
        self._judge(state, f"{scorings} evaluations are planned")

    def noises(
        self,
        rows: Floats,
        context: bytes,
        outputs: int = 1,
        *,
        precision_bits: int,
        fraction_bits: int,
        placed: bool = False,
        scoring: bytes = b"",
        place: bytes = b"",
    ) -> tuple[list[list[int]], dict[str, Any]]:
        """Book a question; return the noise for each output, and the facts for the transcript.

        The ledger identifies a model by every byte of `context`. Another ciphertext of the same model is
        another question: nothing proves that it hides the same parameters. `placed`: see `blur`. `scoring`,
        `place`: see `book`.
        """
        question, entropy = sizes(precision_bits, fraction_bits) + context, self._entropy(rows)
        self.book(self._about(rows), question, precision_bits, entropy, outputs, scoring, place)
        noises = [
            blur(
                rows,
                key=self.key,
                context=output.to_bytes(4, "little") + context,
                precision_bits=precision_bits,
                fraction_bits=fraction_bits,
                placed=placed,
            )
            for output in range(outputs)
        ]
        facts = {"precision_bits": precision_bits, "noise_bits": fraction_bits - precision_bits}
        return noises, {"blur": facts, "ledger": self.mode}

    def book(
        self,
        people: Sequence[bytes],
        question: bytes,
        precision_bits: int,
        column_bits: float,
        outputs: int = 1,
        scoring: bytes = b"",
        place: bytes = b"",
    ) -> ScoringState:
        """Record a question before it is answered, or raise ScoreRefusal.

        `scoring`: what the scored party drew for all questions of a scoring. Empty: this is a scoring of its
        own. `place`: where in the scoring it is asked.
        """
        with self._opened() as database:
            self._ask(database, people)
            name = self._name(question, scoring, place)
            new = self._write(database, name, score_bits(precision_bits, outputs))
            state = ScoringState(*_most(database), column_bits, precision_bits, outputs)
            if new:
                self._judge(state, "a score was asked for")  # a refusal takes the booking back
        return state

    def release_stream(self, receiver: str, question: bytes, bits: int, limit: int | None) -> bytes:
        """Book a release of `bits` bits of a model; return the secret that its noise derives from."""
        self.book_release(receiver, question, bits, limit)
        return keyed(self.key, receiver.encode() + question, b"release blur", 32)

    def book_release(self, receiver: str, question: bytes, bits: int, limit: int | None) -> None:
        """Record a release, in every mode, or raise ScoreRefusal beyond `limit` bits over all runs."""
        with self._opened() as database:
            self._ask(database, [b"release " + receiver.encode()])
            new = self._write(database, self._name(question, b"", b""), bits)
            _, total = _most(database)
            if new and limit is not None and total > limit:
                raise ScoreRefusal(
                    f"{self.party}: releases to {receiver} would show {total} bits in all, at most {limit}"
                    " are allowed; release='trusted' at all parties says that they trust each other"
                )

    def _judge(self, state: ScoringState, why: str) -> None:
        if self.mode == "off" or state.verdict == "below the line":
            return
        if state.verdict == "near" and state.scorings <= 1:
            return
        party = self.party
        allowed = allowed_scorings(state.column_bits, state.precision_bits, state.outputs)
        times = "once" if state.scorings == 1 else f"{state.scorings} times"
        numbers = (
            f"{party}: {why}, and a person would be scored {times}: {state.bits} bits,"
            f" where {party}'s columns hold {state.column_bits:.0f}"
        )
        if state.verdict == "past":
            raise ScoreRefusal(
                f"{numbers}; at most {allowed} at 2**-{state.precision_bits} are allowed: evaluate more"
                f" seldom, set a smaller score_precision, or score_ledger='off' at {party} to go on"
            )
        if state.verdict not in self._warned:
            self._warned.add(state.verdict)
            remark = f"At most {allowed} scorings are allowed"
            if state.verdict == "shown":
                remark = "Scores then show patterns of these columns"
            remedy = "Score people less often, or set a smaller score_precision: each bit less shows less"
            warnings.warn(f"{numbers}. {remark}. {remedy}", ScoreWarning, stacklevel=4)

    def _ask(self, database: sqlite3.Connection, people: Sequence[bytes]) -> None:
        """Note whom the next question is about."""
        database.execute("DELETE FROM asked")
        hashes = ((keyed(self.key, person, b"score person", DIGEST),) for person in people)
        database.executemany("INSERT OR IGNORE INTO asked VALUES (?)", hashes)

    @staticmethod
    def _write(database: sqlite3.Connection, name: dict[str, bytes], bits: int) -> bool:
        """Book a question about the people asked about; return whether it is new for any of them."""
        new = database.execute(BOOK, {**name, "bits": bits}).rowcount > 0
        if new:
            database.execute(f"PRAGMA user_version = {_bookings(database) + 1}")
        return new

    def _name(self, question: bytes, scoring: bytes, place: bytes) -> dict[str, bytes]:
        """Return hashes of the question, of the scoring that it belongs to, and of its place there."""
        parts = {"question": (question, 8), "scoring": (scoring or question, 4), "place": (place, 4)}
        return {
            what: keyed(self.key, part, b"score question", DIGEST)[:size]
            for what, (part, size) in parts.items()
        }

    # The database

    def to_bytes(self) -> bytes:
        """Return a ledger in memory."""
        return self._memory.serialize()

    def restore(self, ledger: bytes) -> None:
        self._memory.deserialize(ledger)
        self._checked = False
        with self._opened():
            pass

    def _connected(self, name: str) -> sqlite3.Connection:
        database = sqlite3.connect(name, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
        database.create_function("seal", 5, partial(_seal, self.key), deterministic=True)
        database.executescript(TABLES)
        return database

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Open the ledger for one transaction. An exception takes back what was booked."""
        try:
            if self._path is None:
                with self._transaction(self._memory):
                    yield self._memory
                return
            self._path.touch(0o600)  # to open and close it would end a lock that another thread holds
            with closing(self._connected(str(self._path))) as database:
                with self._transaction(database):
                    yield database
                with self._transaction(database) as bookings:  # all of them are on disk
                    self._write_mark(self._path, bookings)
        except sqlite3.OperationalError as error:
            raise StorageError(f"cannot write {self._path}: {error}") from None
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise self._fault(f"is no score ledger, or damaged ({error})") from None
        except OSError as error:
            raise storage_error(self._path or Path(), error) from None

    @contextmanager
    def _transaction(self, database: sqlite3.Connection) -> Iterator[int]:
        """Lock the database and check it; yield how many bookings it has."""
        with database:
            database.execute("BEGIN IMMEDIATE")
            bookings, due = _bookings(database), self._marked()
            if bookings < due:
                raise self._fault(f"has {bookings} bookings, by its mark {due} are due")
            if not self._checked:
                whole = database.execute("PRAGMA quick_check").fetchone()[0] == "ok"
                if not whole or database.execute(UNSEALED).fetchone()[0]:
                    raise self._fault("is damaged, or under another checkpoint-key.skf than this party's")
                self._checked = True
            yield bookings

    def _fault(self, text: str) -> DataError:
        return DataError(
            f"{self._path or 'score ledger'} {text}; put the file back from a backup. Only if records of what"
            " scores have shown are lost for good, move it and its .mark away: scores then count anew"
        )

    def _marked(self) -> int:
        mark = None if self._path is None else self._path.with_suffix(".mark")
        if mark is None or not mark.exists():
            return 0
        blob = mark.read_bytes()
        bookings = int.from_bytes(blob[:-DIGEST], "big")
        if blob != self._mark(bookings):
            raise self._fault("has a damaged mark")
        return bookings

    def _mark(self, bookings: int) -> bytes:
        count = bookings.to_bytes(8, "big")
        return count + keyed(self.key, count, b"score mark", DIGEST)

    def _write_mark(self, path: Path, bookings: int) -> None:
        if bookings > self._marked():
            write_atomically(path.with_suffix(".mark"), self._mark(bookings))


def _bookings(database: sqlite3.Connection) -> int:
    return int(database.execute("PRAGMA user_version").fetchone()[0])


def _row_hash(content: bytes) -> bytes:
    return blake2b(content, digest_size=DIGEST).digest()


def _seal(key: bytes, *row: bytes | int) -> bytes:
    return keyed(key, repr(row).encode(), b"score record", DIGEST)[:SEAL]


def _most(database: sqlite3.Connection, more: int = 0, bits: int = 0) -> tuple[int, int]:
    """Return the scorings and bits of the person nearest to a refusal, of those asked about.

    People with equal rows may have many bits of few scorings; they do not stand for the others. `more`,
    `bits`: scorings that come on top, and their bits.
    """
    sums = [(scorings + more, before + bits) for _, scorings, before in database.execute(TOLD)]
    return max(sums, key=lambda pair: (pair[0] > LEAST_ALLOWED, pair[1]), default=(more, bits))
