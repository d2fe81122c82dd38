"""Blurred scores: each scored party adds noise to its part, so that a score shows only its leading digits.

The noise is uniform over one step of the public precision,

    opened = exact + n,   n uniform in [-2**(w-1), 2**(w-1)) integer units,   w = fraction - precision bits,

at the full resolution of the integers. Modulo 2**w the opened number is uniform and independent of the exact
one, so it shows nothing below the precision. docs/proofs.md says why less does not suffice, and
tests/audit/test_attack_scores.py finds columns from scores then.

Repeated questions must not average the noise away. So n is a keyed function (BLAKE2b under a secret of the
scored party) of everything this party holds that determines the exact number. The same question gets the same
answer. If the exact number may differ, by however little, the noise differs too: the difference of two scores
under the same noise would be exact. Near-identical models scored on the same people still average.
`score_ledger` counts that.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from securefed.crypto.fixed import Floats
from securefed.data.columns import column_bits
from securefed.declare import check_integer
from securefed.errors import SettingError
from securefed.protocols.scoring.score_ledger import ScoreLedger, ScoreRefusal

PRECISION = 10
"""Bits after the point that a score shows: 2**-10, three digits."""
MOST_PRECISION = 24
KEY_BYTES = 32
KNOWN_AT_ONCE = 1 << 14
"""Rows per block."""


def blur(
    rows: Floats,
    *,
    key: bytes,
    context: bytes,
    precision_bits: int,
    fraction_bits: int,
    placed: bool = False,
) -> list[int]:
    """Return the noise for the scores of `rows`, in integer units of 2**-fraction_bits.

    `key`: the secret of the scored party. `context`: the bytes that determine the exact score besides the
    row. `placed`: the context covers all these rows together. Each place then has noise of its own, since
    equal rows may have different scores.
    """
    check_integer("precision_bits", precision_bits, least=0, most=MOST_PRECISION)
    width = fraction_bits - precision_bits
    if not 1 <= width <= 8 * blake2b.MAX_DIGEST_SIZE:
        raise SettingError(
            f"fraction_bits: {fraction_bits} given, 1 to {8 * blake2b.MAX_DIGEST_SIZE} more than the"
            f" precision's {precision_bits} are allowed"
        )
    # Noise of two widths from one stream would share bits, so the widths are part of the question.
    stream = _keyed(key, _sizes(precision_bits, fraction_bits) + context, b"score context", 32)
    size, most, half = -(-width // 8), 1 << width, 1 << (width - 1)
    contents = row_contents(rows)
    if placed:
        contents = [place.to_bytes(8, "little") + row for place, row in enumerate(contents)]
    return [
        int.from_bytes(_keyed(stream, row, b"score blur", size), "little") % most - half for row in contents
    ]


def _sizes(precision_bits: int, fraction_bits: int) -> bytes:
    return precision_bits.to_bytes(2, "little") + fraction_bits.to_bytes(2, "little")


def _keyed(key: bytes, message: bytes, purpose: bytes, size: int) -> bytes:
    return blake2b(message, key=key, person=purpose, digest_size=size).digest()


def row_contents(rows: Floats) -> list[bytes]:
    """Return each row's numbers as bytes. 0 and -0 are the same number."""
    return [row.tobytes() for row in np.ascontiguousarray(rows + 0.0, dtype="<f8")]


def _hashed(content: bytes) -> bytes:
    return blake2b(content, digest_size=16).digest()


def on_grid(values: Floats, noise: Sequence[int], fraction_bits: int) -> Floats:
    """Round values to multiples of 2**-fraction_bits and add the noise."""
    integers = np.rint(np.ldexp(values, fraction_bits)) + np.array(noise, dtype=np.float64)
    blurred: Floats = np.ldexp(integers, -fraction_bits)
    return blurred


class ScoreGuard:
    """A scored party's secret for its noise, and its ledger of what scores have shown.

    Keep both for as long as people are scored: with another secret the same question gets a second answer.
    `column_bits` is the entropy of a row (securefed.data.columns).
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
        self.party, self.column_bits = party, column_bits
        self.ledger = ScoreLedger(self.key, mode, path)
        self._people: dict[bytes, bytes | tuple[bytes, ...]] = {}
        """People by the hash of their row; several where rows are equal."""

    def know(self, rows: Floats, people: Sequence[bytes]) -> None:
        """Register the people of these rows. The ledger counts people by id, even if their columns change."""
        for start in range(0, len(rows), KNOWN_AT_ONCE):
            some = slice(start, start + KNOWN_AT_ONCE)
            for content, person in zip(row_contents(rows[some]), people[some], strict=True):
                known = self._people.setdefault(_hashed(content), person)
                same = known if isinstance(known, tuple) else (known,)
                if person not in same:
                    self._people[_hashed(content)] = (*same, person)

    def _about(self, rows: Floats) -> list[bytes]:
        """Return the people of these rows. Without ids, each of several equal rows is another person.

        Raises ScoreRefusal for a person that occurs twice: each place has noise of its own, which would
        average out.
        """
        people: list[bytes] = []
        times: Counter[bytes] = Counter()
        for content in row_contents(rows):
            known = self._people.get(_hashed(content))
            again, times[content] = times[content], times[content] + 1
            if known is None:
                people.append(content + again.to_bytes(4, "little") if again else content)
                continue
            same = known if isinstance(known, tuple) else (known,)
            if again >= len(same):
                raise ScoreRefusal(f"{self.party}: a question names the same person twice, once is allowed")
            people += same
        return people

    def expect(
        self, rows: Floats, scorings: int, precision_bits: int, outputs: int = 1, scoring: bytes = b""
    ) -> None:
        """Raise ScoreRefusal if a training may not evaluate on these rows `scorings` times."""
        people, sizes = self._about(rows), (precision_bits, self._entropy(rows), outputs)
        self.ledger.expect(self.party, people, scorings, *sizes, scoring)

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

        The facts state the width of the noise, never the noise. The ledger identifies a model by every byte
        of `context`. Another ciphertext of the same model is another question: nothing proves that it hides
        the same parameters. `placed`: see `blur`. `scoring`, `place`: see `ScoreLedger.book`.
        """
        question, entropy = _sizes(precision_bits, fraction_bits) + context, self._entropy(rows)
        state = self.ledger.book(
            self.party, self._about(rows), question, precision_bits, entropy, outputs, scoring, place
        )
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
        return noises, {"blur": facts, "ledger": state.mode}

    def release_stream(self, receiver: str, question: bytes, bits: int, limit: int | None) -> bytes:
        """Book a release and return the secret that its noise derives from."""
        self.ledger.book_release(self.party, receiver, question, bits, limit)
        return _keyed(self.key, receiver.encode() + question, b"release blur", 32)

    def _entropy(self, rows: Floats) -> float:
        if self.column_bits is None:  # nobody said; what is scored is all that is known of the columns
            self.column_bits = column_bits(rows)
        return self.column_bits

    def __repr__(self) -> str:
        return f"<score guard of {self.party}, {self.ledger.mode}>"
