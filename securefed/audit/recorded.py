"""A recorded run: the transcripts of some or all of its parties, and facts derived from them.

Each transcript contains everything public about a run (the event `agreed`, and the headers of frames), so an
audit needs nothing else. A party can audit its own transcript alone. Checks that need both ends of a link are
then reported as skipped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from securefed.errors import DataError
from securefed.protocols.messages import KINDS, MessageKind
from securefed.protocols.objectives import OBJECTIVES, get_objective
from securefed.protocols.own_gradient.ledger import LedgerEntry
from securefed.protocols.own_gradient.openings import ALL_LABELS
from securefed.transport import Entry, Transcript
from securefed.transport.contents import Part

__all__ = ["Recorded", "Sent"]

MOST_COLUMNS = 100_000
MOST_NUMBER = 1 << 40


@dataclass(frozen=True)
class Sent:
    """A message as one end of the link recorded it."""

    sender: str
    receiver: str
    entry: Entry

    @property
    def kind(self) -> MessageKind | None:
        return KINDS.get(self.entry.kind)

    @property
    def facts(self) -> dict[str, Any]:
        facts = self.entry.detail.get("facts", {})
        return facts if isinstance(facts, dict) else {}

    @property
    def parts(self) -> list[Part]:
        return self.entry.parts

    def __str__(self) -> str:
        e = self.entry
        return f"{e.kind} {self.sender} to {self.receiver} (round {e.round}, step {e.step}, {e.phase})"


class Recorded:
    """The transcripts of one run, by party."""

    def __init__(
        self,
        transcripts: Iterable[Transcript] | Mapping[str, Transcript],
        result: Mapping[str, Any] | None = None,
    ) -> None:
        """Check the transcripts. `result` is the run's result.json, for comparison."""
        self.result = result
        listed = transcripts.values() if isinstance(transcripts, Mapping) else transcripts
        self.transcripts = {transcript.party: transcript for transcript in listed}
        if not self.transcripts:
            raise DataError("audit: no transcripts given")
        for transcript in self.transcripts.values():
            if not transcript.of("agreed"):
                raise DataError(f"audit: the transcript of {transcript.party} does not say what was agreed")
            for entry in transcript.of("agreed"):
                _check_numbers(transcript.party, entry.detail)
        runs = {transcript.run for transcript in self.transcripts.values()}
        if len(runs) > 1:
            raise DataError(f"audit: transcripts of {len(runs)} runs given ({', '.join(sorted(runs))})")

    @property
    def run(self) -> str:
        return next(iter(self.transcripts.values())).run

    # What was agreed

    def agreements(self, party: str) -> list[dict[str, Any]]:
        """Return a party's agreements: one at the start, and one for each resumption."""
        return [entry.detail for entry in self.transcripts[party].of("agreed")]

    def agreed(self, party: str) -> dict[str, Any]:
        return self.agreements(party)[0]

    @cached_property
    def settings(self) -> dict[str, Any]:
        settings = next(iter(self.transcripts.values())).of("agreed")[0].detail.get("settings")
        if not isinstance(settings, dict) or not settings.get("parties"):
            raise DataError("audit: the transcripts do not name the parties of the run")
        return settings

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The data parties, the label party last."""
        return tuple(str(member[0]) for member in self.settings["parties"])

    @property
    def label_party(self) -> str:
        return self.names[-1]

    @property
    def key_holder(self) -> str | None:
        name = self.settings.get("key_holder")
        return None if name is None else str(name)

    @property
    def everybody(self) -> tuple[str, ...]:
        return self.names if self.key_holder is None else (*self.names, self.key_holder)

    @property
    def missing(self) -> list[str]:
        """Parties without a transcript here."""
        return [name for name in self.everybody if name not in self.transcripts]

    @property
    def unseen_openings(self) -> list[str]:
        """Data parties whose openings neither end recorded here."""
        return [name for name in self.missing if name in self.names and self.key_holder in self.missing]

    @property
    def blind(self) -> bool:
        """Whether the run was to reveal nothing."""
        return self.settings.get("reveal") == "nothing"

    def equations(self, party: str) -> int:
        return next((int(member[1]) for member in self.settings["parties"] if member[0] == party), 0)

    @property
    def outputs(self) -> int:
        """Columns of labels and scores."""
        objective = OBJECTIVES.get(str(self.settings.get("objective")))
        if objective is None:
            return 1
        return objective.outputs(int(self.settings.get("width", 1)), blind=self.blind)

    @staticmethod
    def agreement_digest(agreed: Mapping[str, Any]) -> str:
        """Compute the digest of the settings in a transcript."""
        text = json.dumps(agreed.get("settings"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    # Messages and keys

    def messages(self, event: str) -> Iterator[Sent]:
        """Yield every message that was `sent` or `received`, as each party recorded it."""
        for party, transcript in self.transcripts.items():
            for entry in transcript.entries:
                if entry.event == event:
                    ends = (party, entry.peer) if event == "sent" else (entry.peer, party)
                    yield Sent(*ends, entry)

    @cached_property
    def everything(self) -> list[Sent]:
        """Each message once: as its sender recorded it, or its receiver if the sender's transcript is
        missing.
        """
        received = [m for m in self.messages("received") if m.sender not in self.transcripts]
        return [*self.messages("sent"), *received]

    @cached_property
    def owners(self) -> dict[str, str]:
        """The party that sent each public key as its own, by key fingerprint."""
        return {
            part.key: message.sender
            for message in self.everything
            for part in message.parts
            if part.frame == "public-key"
        }

    @cached_property
    def parameters(self) -> dict[str, tuple[str, str]]:
        """(scheme, parameter set) by key fingerprint."""
        return {
            part.key: (part.scheme, part.parameters)
            for message in self.everything
            for part in message.parts
            if part.frame == "public-key"
        }

    def has_role(self, party: str, role: str, message: Sent) -> bool:
        """Return whether the party has that role of the table of kinds."""
        if role == "data party":
            return party in self.names
        if role == "label party":
            return party == self.label_party
        if role == "key-holder":
            keys = [part.key for part in message.parts if part.key]
            return bool(keys) and all(self.owners.get(key) == party for key in keys)
        return party in self.everybody

    # The ledger, counted again

    def openings(self) -> dict[str, list[tuple[int, int]]]:
        """Return (round, numbers) of each gradient that was opened for a party in training.

        They are counted from the messages, at the end that shows more. The program that writes notes may have
        left one out.
        """
        asked: dict[str, list[tuple[int, int]]] = {name: [] for name in self.names}
        answered: dict[str, list[tuple[int, int]]] = {name: [] for name in self.names}
        for message in (m for m in self.everything if m.entry.phase == "training"):
            numbers = sum(prod(part.shape) for part in message.parts if part.shape)
            if message.entry.kind == "opening-request" and message.sender in asked:
                asked[message.sender].append((message.entry.round, numbers))
            elif message.entry.kind == "opening" and message.receiver in answered:
                answered[message.receiver].append((message.entry.round, numbers))
        return {
            name: max(asked[name], answered[name], key=lambda listed: sum(count for _, count in listed))
            for name in self.names
        }

    def ledger(self) -> list[LedgerEntry]:
        """Count equations against unknowns at the worst exchange, as protocols.own_gradient.ledger does."""
        agreed = self.agreed(next(iter(self.transcripts)))
        objective = get_objective(str(self.settings["objective"]))
        entries: list[LedgerEntry] = []
        for party, opened in self.openings().items():
            rounds: dict[int, int] = {}
            for round_, numbers in opened:
                rounds[round_] = rounds.get(round_, 0) + numbers
            if not rounds:
                continue
            labels = party == self.label_party
            block = objective.block(labels)
            entries.append(LedgerEntry(party, block, max(rounds.values()), int(agreed["unknowns"]), False))
            if not labels:
                total = sum(rounds.values())
                entries.append(LedgerEntry(party, ALL_LABELS, total, int(agreed["rows"]), True))
        return sorted(entries, key=lambda e: (e.advisory, -e.ratio))

    def stated_ledger(self) -> list[LedgerEntry]:
        """Return the result's entries about openings that no transcript here shows."""
        stated = (self.result or {}).get("ledger_of_all", ())
        return [
            LedgerEntry(e["party"], e["block"], e["equations"], e["unknowns"], e["advisory"])
            for e in stated
            if e["party"] in self.unseen_openings
        ]


def _check_numbers(party: str, agreed: Mapping[str, Any]) -> None:
    """Raise DataError for an agreement with numbers that no run has. Later checks count by them."""
    settings = agreed.get("settings")
    members = settings.get("parties", ()) if isinstance(settings, dict) else ()
    sizes = [size for member in members if isinstance(member, list) for size in member]
    for value, most in [
        *((size, MOST_COLUMNS) for size in sizes),
        *((n, MOST_NUMBER) for n in _leaves(agreed)),
    ]:
        if isinstance(value, int | float) and not abs(value) <= most:
            raise DataError(f"audit: the transcript of {party} agrees on a number that no run has")


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _leaves(inner)
    else:
        yield value
