"""A recorded run: the transcripts of some or all of its parties, and facts derived from them.

Each transcript contains everything public about a run (the event `agreed`, and the headers of frames), so an
audit needs nothing else. A party can audit its own transcript alone. Checks that need both ends of a link are
then reported as skipped.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from itertools import combinations, zip_longest
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

from securefed.errors import DataError
from securefed.files import RunDirectory, read_json, write_json
from securefed.protocols.agreement import Agreement, Member
from securefed.protocols.messages import KINDS, MessageKind
from securefed.protocols.own_gradient.ledger import LedgerEntry
from securefed.protocols.own_gradient.openings import ledger_of
from securefed.protocols.schedules import Batches, Constant, FedBCD, Stopping
from securefed.transport.transcript import Entry, Part, Transcript

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
        """What the sender did to protect it."""
        return dict(self.entry.detail.get("facts", {}))

    @property
    def parts(self) -> list[Part]:
        return self.entry.parts

    @property
    def opens_scores(self) -> bool:
        kind = self.kind
        return kind is not None and kind.scoring and kind.protection in ("opened", "result")

    def __str__(self) -> str:
        e = self.entry
        return f"{e.kind} {self.sender} to {self.receiver} (round {e.round}, step {e.step}, {e.phase})"


class Recorded:
    """The transcripts of one run, by party, and its public facts as the first transcript states them."""

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
        for party in self.transcripts:
            if not self.agreements(party):
                raise DataError(f"audit: the transcript of {party} does not say what was agreed")
        runs = {transcript.run for transcript in self.transcripts.values()}
        if len(runs) > 1:
            raise DataError(f"audit: transcripts of {len(runs)} runs given ({', '.join(sorted(runs))})")
        (self.run,) = runs
        self.agreed = self.agreements(next(iter(self.transcripts)))[0]
        settings: Any = self.agreed.get("settings")
        if not isinstance(settings, dict) or not settings.get("parties"):
            raise DataError("audit: the transcripts do not name the parties of the run")
        self.settings: dict[str, Any] = settings
        numbers = [number for number in _leaves(self.agreed) if isinstance(number, int | float)]
        most = max(int(parameters) for _, parameters, _ in settings["parties"])
        if most > MOST_COLUMNS or not all(abs(number) <= MOST_NUMBER for number in numbers):
            raise DataError("audit: the transcripts agree on a number that no run has")
        self.agreement = agreement = _agreement_of(settings)
        self.blind = agreement.reveal == "nothing"
        self.missing = [name for name in agreement.everybody if name not in self.transcripts]
        """Parties without a transcript here."""
        unseen = agreement.names if agreement.key_holder in self.missing else ()
        self.unseen_openings = [name for name in self.missing if name in unseen]
        """Data parties whose openings neither end recorded here."""

    def agreements(self, party: str) -> list[dict[str, Any]]:
        """Return a party's agreements: one at the start, and one for each resumption."""
        return [entry.detail for entry in self.transcripts[party].of("agreed")]

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

    def of(self, *kinds: str) -> list[Sent]:
        return [message for message in self.everything if message.entry.kind in kinds]

    @cached_property
    def keys(self) -> dict[str, tuple[str, Part]]:
        """The party that sent each public key as its own, and its frame, by key fingerprint."""
        return {
            part.key: (message.sender, part)
            for message in self.everything
            for part in message.parts
            if part.frame == "public-key"
        }

    def owner(self, key: str) -> str:
        """Return the owner of a key, or "" if nobody sent it."""
        return self.keys[key][0] if key in self.keys else ""

    def has_role(self, party: str, role: str, message: Sent) -> bool:
        """Return whether the party has that role of the table of kinds."""
        if role == "data party":
            return party in self.agreement.names
        if role == "label party":
            return party == self.agreement.label_party
        if role == "key-holder":
            keys = [part.key for part in message.parts if part.key]
            return bool(keys) and all(self.owner(key) == party for key in keys)
        return party in self.agreement.everybody

    # The ledger, counted again

    def ledger(self) -> list[LedgerEntry]:
        """Count equations against unknowns at the worst exchange of training, from the messages.

        The end that shows more counts. The program that writes notes may have left one out.
        """
        counts: dict[str, dict[str, Counter[int]]] = {
            name: {"opening-request": Counter(), "opening": Counter()} for name in self.agreement.names
        }
        for message in self.of("opening-request", "opening"):
            entry = message.entry
            party = message.sender if entry.kind == "opening-request" else message.receiver
            if entry.phase == "training" and party in counts:
                numbers = sum(prod(part.shape) for part in message.parts if part.shape)
                counts[party][entry.kind][entry.round] += numbers
        rounds = {name: max(ends.values(), key=Counter.total) for name, ends in counts.items()}
        opened = {name: (max(each.values(), default=0), each.total()) for name, each in rounds.items()}
        return ledger_of(self.agreement, opened)

    def stated_ledger(self) -> list[LedgerEntry]:
        """Return the result's entries about openings that no transcript here shows."""
        stated = (self.result or {}).get("ledger_of_all", ())
        return [
            LedgerEntry(e["party"], e["block"], e["equations"], e["unknowns"], e["advisory"])
            for e in stated
            if e["party"] in self.unseen_openings
        ]


def _agreement_of(settings: Mapping[str, Any]) -> Agreement:
    """Return the agreement that a transcript states, but for the learning rate, which changes no message."""
    read: dict[str, Any] = {
        "members": tuple(Member(*member) for member in settings["parties"]),
        "algorithm": FedBCD(settings["local_steps"], settings["order"]),
        "learning_rate": Constant(1.0),
        "batches": _called("batches", settings, Batches),
        "stopping": _called("stopping", settings, Stopping),
        "details": tuple(settings.items()),
    }
    rest = {field.name: settings[field.name] for field in fields(Agreement) if field.name not in read}
    return Agreement(**read, **rest)


def _called(name: str, settings: Mapping[str, Any], kind: type[Any]) -> Any:
    """Return the value whose `repr` a setting is."""
    call = ast.parse(settings[name], mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != kind.__name__:
        raise DataError(f"{name}: {settings[name]} is no {kind.__name__}")
    return kind(**{str(each.arg): ast.literal_eval(each.value) for each in call.keywords})


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the numbers and words inside a JSON value."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _leaves(inner)
    else:
        yield value


@dataclass(frozen=True)
class Receipt:
    """The comparison of what two parties recorded about the messages between them."""

    first: str
    second: str
    messages: int
    compared: bool
    problems: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "good": not self.problems}

    def __str__(self) -> str:
        pair = f"{self.first} and {self.second}"
        if not self.compared:
            return f"{pair}: not compared, the transcript of {self.second} is not here"
        return f"{pair}: {'; '.join(self.problems) or f'the same {self.messages} messages'}"


def receipts(recorded: Recorded) -> list[Receipt]:
    """Return a receipt for each pair of parties that have a transcript here."""
    listed, here = [], recorded.transcripts
    for pair in combinations(recorded.agreement.everybody, 2):
        first, second = sorted(pair, key=lambda name: name not in here)
        if first not in here:
            continue
        messages = sum(len(here[first].exchanged(event, second)) for event in ("sent", "received"))
        ends = ((first, second), (second, first)) if second in here else ()
        problems = tuple(text for one, other in ends for text in _difference(here[one], here[other]))
        listed.append(Receipt(first, second, messages, second in here, problems))
    return listed


def _difference(sender: Transcript, receiver: Transcript) -> Iterator[str]:
    """Yield the first message that the sender did not send as the receiver received it."""
    sent, received = sender.exchanged("sent", receiver.party), receiver.exchanged("received", sender.party)
    for place, (left, came) in enumerate(zip_longest(sent, received)):
        if left != came:
            kind = (left or came)[1]
            only = f"was {'sent' if left else 'received'} by one of them only"
            yield f"message {place} from {sender.party} ({kind}) {'differs' if left and came else only}"
            return


# A run directory: result.json, and transcript-<party>.jsonl of each party that wrote one.

RESULT = "result.json"


class Result(Protocol):
    """A run's result (securefed.api.result.RunResult)."""

    @property
    def transcripts(self) -> Mapping[str, Transcript]: ...

    def to_dict(self) -> dict[str, Any]: ...


def write_transcripts(folder: str | PathLike[str], result: Result) -> None:
    where = Path(folder)
    where.mkdir(parents=True, exist_ok=True)
    write_json(where / RESULT, result.to_dict())
    for party, transcript in result.transcripts.items():
        transcript.save(RunDirectory(where, party).transcript)


def transcript_paths(folder: str | PathLike[str]) -> list[Path]:
    """Return the transcripts of a run directory. Raises DataError if there are none."""
    paths = sorted(Path(folder).glob("transcript-*.jsonl"))
    if not paths:
        raise DataError(f"{folder}: no such run directory, or no transcript-<party>.jsonl there")
    return paths


def read_run(folder: str | PathLike[str]) -> tuple[list[Transcript], dict[str, Any] | None]:
    """Return the transcripts of a run directory, and its result or None."""
    where, paths = Path(folder), transcript_paths(folder)
    transcripts = [Transcript.read(path) for path in paths]
    for path, transcript in zip(paths, transcripts, strict=True):
        if path != RunDirectory(where, transcript.party).transcript:
            raise DataError(f"{path}: holds the transcript of {transcript.party!r}")
    result = where / RESULT
    return transcripts, read_json(result, "result") if result.exists() else None
