"""One party's run: meet the others, align, train, and go on after whatever interrupts it.

An *attempt* is one meeting of all parties on the network. If a peer is lost, restarts or leaves, the attempt
is over for everybody; each goes back to its checkpoints and greets again, and all continue after the last
round that they have in common. A party's program ends only when its part is on disk, and an attempt ends only
when all programs have: who is let go knows that everybody is done.

In a run that reveals nothing every attempt makes new keys, a new pass over the rows and new random numbers.
Only the shares of the model go on from a checkpoint. A helper holds such shares too: it keeps checkpoints and
a part of the finished model like the parties with data.

What the others get to know of this party besides the protocol's messages: its name, how many numbers its
model has, the rounds that it has checkpoints of, in one word of a fixed list of what shape its ids are
(whole numbers, e-mail addresses, ...), so that all can be told why ids do not meet.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from secrets import randbits, token_hex
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from securefed.assembly import Trained, assembly_of
from securefed.crypto import Mapper
from securefed.data.columns import FittedColumns, column_bits
from securefed.data.ids import id_hint, id_shape
from securefed.errors import DataError, SecurefedError, SettingError
from securefed.labels.quality import Holdout
from securefed.plan.limits import check_memory
from securefed.process.alignment import Alignment, NothingInCommon, align, hear_count
from securefed.process.building import Measured, agreement_of, build, make_model
from securefed.process.checkpoints import Checkpoint, CheckpointStore
from securefed.process.keys import PartyKeys
from securefed.process.message_sizes import training_sizes
from securefed.process.own_data import OwnData
from securefed.process.recording import RunRecorder, RunTotals
from securefed.process.resumption import ResumePlan, ResumeState, decide
from securefed.process.score_file import score_guard
from securefed.process.shards import label_arrays, read_arrays, save_shard, take_labels, write_arrays
from securefed.process.transcripts import Events, FileTranscript, resume_transcript, start_transcript
from securefed.protocols.agreement import Agreement
from securefed.protocols.loop import Outcome, PartyContext, PartyLoop, Round
from securefed.protocols.own_gradient.openings import ledger_after, refusal
from securefed.protocols.schedules import Reason
from securefed.protocols.scoring.blur import ScoreGuard
from securefed.report.rundir import RunDirectory
from securefed.report.summary import PartyAccount, Timeline
from securefed.settings.party import PartyFile
from securefed.transport import Link, Path, Transcript
from securefed.transport.network import NetworkLink

__all__ = ["DataSession", "KeyHolderSession", "Session"]

LITTLE = 0.05
"""A smaller part of the own people in common is told, with what may be said of the ids."""

T = TypeVar("T")
Array = NDArray[np.float64]


class _AllRefuse(Exception):
    """Carries a refusal that every party comes to, out of the program."""

    def __init__(self, error: SecurefedError) -> None:
        super().__init__(str(error))
        self.error = error


class Session(ABC):
    """What parties with and without data have in common."""

    def __init__(self, party: PartyFile, keys: PartyKeys, mapper: Mapper, events: Events) -> None:
        self.party, self.shared, self.name = party, party.shared, party.own.name
        self.directory = RunDirectory(party.run_folder, self.name)
        self.store = CheckpointStore(
            self.directory.checkpoints,
            keys.checkpoint_key,
            party=self.name,
            run=self.shared.name,
            lockstep=self.shared.lockstep,
        )
        self.begun = False
        """The current attempt has got as far as its program."""
        self.account: PartyAccount | None = None
        """Once the run is over here."""
        self.refused: SecurefedError | None = None
        """Why this run cannot be. All parties see it alike; each ends its program well and says it itself."""
        self.keys, self._mapper, self.events = keys, mapper, events
        self._said, self._shapes = ResumeState(0), dict[str, str]()
        self._started = time.monotonic()

    @abstractmethod
    def standing(self) -> ResumeState:
        """What to tell the others, from what is on disk now."""

    @abstractmethod
    async def _part(
        self, link: NetworkLink, decision: ResumePlan, standings: Mapping[str, ResumeState]
    ) -> None:
        """This party's part of the run."""

    @property
    def last_round(self) -> int:
        """Rounds that a new attempt can go on from."""
        return max(self.store.rounds(), default=0)

    def facts(self) -> dict[str, Any]:
        """What to tell the others in the next attempt."""
        self.account, self.refused, self.begun, self._said = None, None, False, self.standing()
        return self._said.to_facts()

    async def attempt(self, link: Link) -> None:
        """The program of one meeting."""
        self.begun = True
        self.events.tell("met")
        if not isinstance(link, NetworkLink):
            raise SettingError("a session runs over the network; in one process the estimators do the same")
        standings = {
            name: self._said if name == self.name else ResumeState.from_facts(name, link.hello[name])
            for name in self.shared.stateful
        }
        if self.keys.holder is not None:
            self.directory.make()
            self.keys.holder.memory.keep(self.directory.openings)
        try:
            decision = self._together(self._decide, standings)
            self._shapes = {name: standings[name].ids for name in self.shared.parties}
            await self._part(link, decision, standings)
        except _AllRefuse as refusal:
            self.refused = refusal.error
        except NothingInCommon as nothing:
            self.refused = DataError(f"{nothing}: {id_hint(self._shapes, self.shared.id_form)}")
        finally:
            if isinstance(link.transcript, FileTranscript):
                link.transcript.abandon()

    def _decide(self, standings: Mapping[str, ResumeState]) -> ResumePlan:
        shared = self.shared
        return decide(standings, shared.label_party, shared.alignment, lockstep=shared.lockstep)

    @staticmethod
    def _together(judge: Callable[..., T], *known: Any) -> T:
        """Judge by what all parties know, so that none of them hears of another's refusal before its own."""
        try:
            return judge(*known)
        except (SettingError, DataError) as error:
            raise _AllRefuse(error) from None

    # Transcript and sums, over interruptions

    def _open(
        self, link: NetworkLink, decision: ResumePlan, agreement: Agreement
    ) -> tuple[FileTranscript, RunTotals]:
        """The transcript goes on in its file, and the sums where they stood."""
        if decision.start is None:
            made = start_transcript(self.directory.transcript, self.name, self.shared.name, self.events)
            link.transcript = made
            return made, RunTotals(alignment=link.paused)
        tally, entries, start = RunTotals(), None, decision.start
        if start in self.store.rounds():
            tally, entries = self._tally(start), self.store.read(start).meta["entries"]
        tally.interruptions += 1
        made = resume_transcript(
            self.directory.transcript,
            self.name,
            self.shared.name,
            start,
            entries,
            evaluates=start > 0 and agreement.evaluates_after(start - 1),
            events=self.events,
        )
        link.transcript = made
        tally.timeline.resumed(made)
        self.events.tell("resumed", start=decision.start)
        return made, tally

    def _tally(self, rounds: int) -> RunTotals:
        """The sums as of so many rounds."""
        newest = {int(row["number"]): row for row in self.store.records()}
        timeline = Timeline.from_list(newest[number] for number in sorted(newest) if number < rounds)
        return RunTotals.from_meta(self.store.read(rounds).meta.get("tally"), timeline)

    def _agreement(self, standings: Mapping[str, ResumeState], common: int) -> Agreement:
        agreement = agreement_of(self.shared, standings, common)
        if self.shared.blind:
            check_memory(agreement)
        entry = refusal(agreement)
        if entry is not None:
            raise SettingError(
                f"batch_size: {entry.party} would open {entry.equations} equations about {entry.unknowns} "
                f"unknowns ({entry.block}), which determines them; larger batches, fewer local steps or "
                'protection "blind" stay below this line, and allow_determined=true crosses it'
            )
        return agreement

    def _begin(self, decision: ResumePlan, agreement: Agreement) -> None:
        start = decision.start or 0
        self.events.tell("training", rows=agreement.batches.rows, start=start)

    def _settle(
        self, instance: str, agreement: Agreement, rounds: int, reason: Reason, tally: RunTotals, path: Path
    ) -> PartyAccount:
        """The account of a run that is over."""
        transcript = Transcript.read(self.directory.transcript)
        if fault := transcript.fault():
            raise DataError(
                f"{self.directory.transcript}: {fault}; it was changed or cut after the run had ended, and "
                "cannot be compared with the others'"
            )
        return PartyAccount(
            party=self.name,
            run=self.shared.name,
            instance=instance,
            agreement=agreement,
            rounds=rounds,
            reason=reason,
            rows=agreement.common_rows,
            history=tally.timeline.history,
            timeline=tally.timeline,
            transcript=transcript,
            path=path,
            evaluation=tally.evaluation,
            alignment=tally.alignment,
            activities=tally.activities,
            ledger=ledger_after(agreement, rounds),
            metric_name=self.shared.settings.metric_name,
            holdout=self._holdout(),
            score_bits=self._score_bits(),
            interruptions=tally.interruptions,
            wall=time.monotonic() - self._started,
            finished=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        )

    def _holdout(self) -> dict[str, Any] | None:
        """What the label party measured."""
        return None

    def _score_bits(self) -> int | None:
        """What scores have told of this party's people at most, over all runs of its folder."""
        return None

    def _run_on(self, program: PartyLoop, keeper: RunRecorder, decision: ResumePlan) -> None:
        """Checkpoint a program from now on, and restore it where the run goes on."""
        keeper.state = program.checkpoint
        start = decision.start or 0
        if not start:
            return
        arrays = self.store.read(start).arrays
        keeper.resume(arrays)
        program.restore(arrays, over=decision.ended is not None)

    def _finish(
        self,
        link: NetworkLink,
        keeper: RunRecorder,
        agreement: Agreement,
        decision: ResumePlan,
        outcome: Outcome,
        trained: Trained | None,
    ) -> None:
        """Write the shard first and then the mark: a kill in between repeats the end of the run alone."""
        link.settle()
        start = decision.start or 0
        rounds = start if decision.ended is not None else max(start, outcome.rounds)
        reason = decision.ended if decision.ended is not None else outcome.reason
        if trained is not None:
            save_shard(self.directory.shard, self.shared, decision.instance, trained)
        self._save_preparation(None)
        self.keys.keep_count(now=True)
        link.transcript.close()
        keeper.write(rounds, reason, done=True)
        self.account = self._settle(decision.instance, agreement, rounds, reason, keeper.tally, keeper.path)

    def _save_preparation(self, holdout: Holdout | None) -> None:  # noqa: B027  # nothing to do is allowed
        """How columns and labels were prepared, at a party that has some."""

    def finished_before(self) -> PartyAccount | None:
        """The account of a run that was over here when this process began, and only not yet reported."""
        rounds = self.store.rounds()
        if not self.store.aligned or not rounds:
            return None
        meta = self.store.read(rounds[-1]).meta
        if not meta["done"]:
            return None
        standings = {
            name: ResumeState(parameters, is_linear) for name, parameters, is_linear in meta["members"]
        }
        common = int(self.store.read_alignment().meta["rows"])
        agreement = agreement_of(self.shared, standings, common)
        tally = self._tally(rounds[-1])
        return self._settle(
            meta["instance"], agreement, rounds[-1], meta["ended"], tally, Path(*meta["path"])
        )


class DataSession(Session):
    """A party with columns."""

    def __init__(
        self,
        party: PartyFile,
        keys: PartyKeys,
        mapper: Mapper,
        data: OwnData,
        preparation: FittedColumns,
        digest: str,
        events: Events,
    ) -> None:
        super().__init__(party, keys, mapper, events)
        self._data, self._preparation, self._digest = data, preparation, digest
        self._columns = data.features.shape[1]
        model = make_model(self.shared, self.name, self._columns, 0)
        self._parameters, self._is_linear = model.size, model.is_linear
        assembly_of(self.shared.settings).check_columns(data.features)

    def standing(self) -> ResumeState:
        proposal = token_hex(8) if self.party.is_label_party else ""
        rows = len(self._data.features) if self.shared.alignment == "rows" else 0
        shape = "" if self._data.ids is None else id_shape(self._data.ids)
        if not self.store.aligned:
            return ResumeState(self._parameters, self._is_linear, rows, proposal=proposal, ids=shape)
        meta, rounds = self.store.read_alignment().meta, self.store.rounds()
        ended: Reason | None = self.store.read(rounds[-1]).meta["ended"] if rounds else None
        return ResumeState(
            self._parameters,
            self._is_linear,
            int(meta["rows"]),
            str(meta["instance"]),
            (0, *rounds),
            ended,
            proposal,
            shape,
        )

    def check_unchanged(self) -> None:
        """The data and settings of a run that is to go on are those that it began with."""
        meta = self.store.read_alignment().meta
        if meta["digest"] != self._digest:
            file = self.party.data.file if self.party.data is not None else "the data"
            raise SettingError(
                f"{file} has changed since the run began; put the old file back, or start all parties with "
                "--restart"
            )
        before = meta["settings"]
        differing = [
            f"{key}: {value!r} given, and the run began with {before.get(key)!r}"
            for key, value in self._settings().items()
            if before.get(key) != value
        ]
        if differing:
            raise SettingError(f"{'; '.join(differing)}; set back, or start all parties with --restart")

    def _settings(self) -> dict[str, Any]:
        made = {**self.shared.to_dict(), "columns": self._preparation.names}
        compared: dict[str, Any] = json.loads(json.dumps(made))
        return compared

    def _guard(self) -> ScoreGuard:
        """Rows are known to it by their ids, where there are any."""
        data, guard = self._data, score_guard(self.party, self.keys, column_bits(self._data.features))
        if data.ids is not None:
            guard.know(data.features, [each.encode() for each in data.ids])
        return guard

    async def _part(
        self, link: NetworkLink, decision: ResumePlan, standings: Mapping[str, ResumeState]
    ) -> None:
        if decision.start is None:
            alignment = await self._align(link, decision)
        else:
            arrays = self.store.read_alignment().arrays
            alignment = Alignment(arrays["rows"].astype(np.intp), arrays["labelled"].astype(np.bool_))
        agreement = self._together(self._agreement, standings, len(alignment))
        link.bound(training_sizes(agreement, self.shared.settings.option("key_bits")))
        _, tally = self._open(link, decision, agreement)
        self._begin(decision, agreement)
        keeper = RunRecorder(
            self.store,
            agreement,
            decision.instance,
            tally,
            link,
            judges=self.party.is_label_party,
            events=self.events,
        )
        measured: list[Measured | None] = []
        context = PartyContext(
            self.keys.holder,
            self._mapper,
            on_round=self._on_round(keeper, measured),
            on_scoring=keeper.on_scoring,
            guard=self._guard(),
        )
        start_seed = int(self.store.read_alignment().meta["start_seed"])
        model = make_model(self.shared, self.name, self._columns, start_seed)
        trained, held = build(self.shared, agreement, self.name, self._data, alignment, model, context)
        measured.append(held)
        self._run_on(trained.program, keeper, decision)
        outcome: Outcome = await trained.program.run(link)
        self._finish(link, keeper, agreement, decision, outcome, trained)

    def _on_round(self, keeper: RunRecorder, measured: list[Measured | None]) -> Callable[[Round], None]:
        def on_round(state: Round) -> None:
            self._judge(measured[0])
            keeper.on_round(state)
            self.keys.keep_count()

        return on_round

    async def _align(self, link: NetworkLink, decision: ResumePlan) -> Alignment:
        self.directory.make()
        self.directory.preparation.unlink(missing_ok=True)  # of an earlier instance
        link.transcript = start_transcript(self.directory.alignment, self.name, self.shared.name, self.events)
        data = self._data
        most = self.party.data.peer_ids if self.party.data is not None else None
        alignment = await align(
            link, self.shared, data.ids, len(data.features), data.known, self._mapper, peer_ids=most
        )
        link.transcript.close()
        given = self.party.own.start_seed
        meta = {
            "instance": decision.instance,
            # Drawn once: an attempt that started elsewhere would open other sums of the same residuals.
            "start_seed": randbits(63) if given is None else given,
            "rows": len(alignment),
            "digest": self._digest,
            "settings": self._settings(),
        }
        arrays = {"rows": alignment.rows, "labelled": alignment.labelled}
        self.store.write_alignment(Checkpoint(arrays, meta))
        self.events.tell("aligned", rows=len(alignment))
        if data.ids is not None and len(alignment) < LITTLE * len(data.ids):
            self.events.tell(
                "note",
                text=f"only {len(alignment):,} of {len(data.ids):,} ids of {self.name} are in common: "
                f"{id_hint(self._shapes, self.shared.id_form)}",
            )
        return alignment

    def _judge(self, measured: Measured | None) -> None:
        """At the label party, as soon as held-out scores are there: what they say is on disk before the round
        counts as done.
        """
        labels, settings = self._data.labels, self.party.data
        if measured is None or not measured.quality.scores or labels is None or settings is None:
            return
        scores = measured.quality.scores.pop()
        holdout = labels.learn(measured.quality, scores, measured.own, settings.threshold)
        self._save_preparation(holdout, scores)

    def _save_preparation(self, holdout: Holdout | None, scores: Array | None = None) -> None:
        """How columns and labels were prepared; a measurement that is there already stays."""
        if holdout is None and self.directory.preparation.exists():
            return
        arrays = self._preparation.to_arrays()
        if self._data.labels is not None:
            arrays |= label_arrays(self._data.labels, holdout, scores)
        write_arrays(self.directory.preparation, arrays)

    def _holdout(self) -> dict[str, Any] | None:
        if not self.directory.preparation.exists():
            return None
        return take_labels(read_arrays(self.directory.preparation, "preparation"), self.shared)[1]

    def _score_bits(self) -> int | None:
        return None if self.party.is_label_party else score_guard(self.party, self.keys).ledger.total_bits


class KeyHolderSession(Session):
    """The party without data of three or more. It learns how many rows are in common.

    Where nothing is revealed it is the helper: it holds the second shares of the model, has checkpoints of
    them, and keeps a part of the finished model. Where own gradients are revealed it only holds the key, and
    has nothing that a run needs to go on.
    """

    def standing(self) -> ResumeState:
        if self.shared.helper is None or not self.store.aligned:
            return ResumeState(0)
        meta, rounds = self.store.read_alignment().meta, self.store.rounds()
        return ResumeState(0, rows=int(meta["rows"]), instance=str(meta["instance"]), rounds=(0, *rounds))

    async def _part(
        self, link: NetworkLink, decision: ResumePlan, standings: Mapping[str, ResumeState]
    ) -> None:
        if decision.start is None:
            self.directory.make()
            link.transcript = start_transcript(
                self.directory.alignment, self.name, self.shared.name, self.events
            )
            common = await hear_count(link, self.shared.label_party)
            link.transcript.close()
            meta = {"instance": decision.instance, "rows": common}
            self.store.write_alignment(Checkpoint({}, meta))
        else:
            common = decision.rows
        agreement = self._together(self._agreement, standings, common)
        link.bound(training_sizes(agreement, self.shared.settings.option("key_bits")))
        _, tally = self._open(link, decision, agreement)
        self._begin(decision, agreement)
        keeper = RunRecorder(
            self.store, agreement, decision.instance, tally, link, judges=False, events=self.events
        )

        def on_round(state: Round) -> None:
            keeper.on_round(state)
            self.keys.keep_count()

        context = PartyContext(
            self.keys.holder,
            self._mapper,
            on_round=on_round,
            on_scoring=keeper.on_scoring,
            guard=score_guard(self.party, self.keys),
        )
        program = assembly_of(self.shared.settings).key_holder(agreement, context)
        helps = self.shared.helper is not None
        if helps:
            self._run_on(program, keeper, decision)
        elif start := decision.start:
            evaluates = agreement.evaluates_after(start - 1)
            program.go_on_after(start, evaluates=evaluates, over=decision.ended is not None)
        outcome: Outcome = await program.run(link)
        trained = Trained(program, None) if helps else None
        self._finish(link, keeper, agreement, decision, outcome, trained)
