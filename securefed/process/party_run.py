"""One party's run: meet the others, align, train, and go on after whatever interrupts it.

An *attempt* is one meeting of all parties on the network. If a peer is lost, restarts or leaves, the attempt
is over for everybody; each goes back to its checkpoints and greets again, and all continue after the last
round that they have in common. `Session.program` is what one meeting runs:

    1. from what all said of themselves when they met: start anew, go on after a round, or refuse
    2. at a new start, find the people whom all parties have
    3. agree on what follows from sizes and settings
    4. open the transcript, or cut it where the run goes on
    5. train; every round ends with a checkpoint
    6. write the party's part of the model, then the mark that the run is over

A program ends only when its part is on disk, and an attempt ends only when all programs have: who is let go
knows that everybody is done. Besides the protocol's messages the others get to know of this party: its name,
how many numbers its model has, and the rounds that it has checkpoints of.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from secrets import randbits, token_hex
from typing import Any, TypeVar

import numpy as np

from securefed.assembly import assembly_of
from securefed.assembly.base import Array, Model, read_arrays, write_arrays
from securefed.assembly.build import Measured, build
from securefed.crypto import Mapper
from securefed.data.ids import FEW_MEET
from securefed.errors import DataError, SettingError
from securefed.files import RunDirectory
from securefed.labels.quality import Holdout
from securefed.plan.planner import check_memory
from securefed.process.checkpoints import Checkpoint, CheckpointStore, ResumePlan, ResumeState, decide
from securefed.process.keys import PartyKeys
from securefed.process.message_sizes import training_sizes
from securefed.process.model_files import label_arrays, save_shard, score_guard, take_labels
from securefed.process.own_data import AllRefuse, OwnData, agreement_of, align, hear_count
from securefed.process.recording import Events, RunRecorder, RunTotals, resume_transcript, start_transcript
from securefed.protocols.agreement import Agreement
from securefed.protocols.loop import Outcome, PartyContext, PartyLoop, Round
from securefed.protocols.own_gradient.openings import ledger_after, refusal
from securefed.report.summary import PartyAccount
from securefed.settings.party import PartyFile
from securefed.transport.message import Path
from securefed.transport.network.run import NetworkLink
from securefed.transport.transcript import Transcript

LITTLE = 0.05
"""A smaller part of the own people in common is told."""

T = TypeVar("T")
States = Mapping[str, ResumeState]


class Session:
    """A party's part in one run, over all its attempts.

    A party without data is the helper of a blind run or a key-holder. A helper holds second shares, has
    checkpoints of them and keeps a part of the model. A key-holder has nothing that a run needs to go on.
    """

    def __init__(
        self, party: PartyFile, keys: PartyKeys, mapper: Mapper, data: OwnData | None, events: Events
    ) -> None:
        self.party, self.shared, self.name = party, party.shared, party.own.name
        self.run, self.compared = self.shared.name, self.shared.to_dict()
        self.keys, self.events, self._mapper, self._data = keys, events, mapper, data
        self.directory = RunDirectory(party.run_folder, self.name)
        self.store = CheckpointStore(
            self.directory.checkpoints,
            keys.checkpoint_key,
            party=self.name,
            run=self.shared.name,
            lockstep=self.shared.lockstep,
        )
        self._state = ResumeState(0)
        self._started = time.monotonic()
        self._measured: Measured | None = None

    def state(self) -> ResumeState:
        """Return what to tell the others, from what is on disk now."""
        state, data = ResumeState(0), self._data
        if data is not None:
            model = self._model(data, 0)
            state = ResumeState(
                model.size,
                model.is_linear,
                rows=len(data.features) if self.shared.alignment == "rows" else 0,
                proposal=token_hex(8) if self.party.is_label_party else "",
                columns=data.preparation.weight if model.is_linear else 0,
            )
        if self.name not in self.shared.stateful or not self.store.aligned:
            return state
        meta, rounds = self.store.read_alignment().meta, self.store.rounds()
        return replace(
            state,
            rows=int(meta["rows"]),
            instance=str(meta["instance"]),
            rounds=(0, *rounds),
            ended=self.store.read(rounds[-1]).meta["ended"] if rounds else None,
        )

    def _model(self, data: OwnData, seed: int) -> Model:
        assembly = assembly_of(self.shared.settings)
        return assembly.party_model(self.name, self.shared.parties, data.features.shape[1], seed)

    # One attempt

    @property
    def last_round(self) -> int:
        """Rounds that a new attempt can go on from."""
        return max(self.store.rounds(), default=0)

    @property
    def position(self) -> object:
        """How far this party has got."""
        return self.store.aligned, self.last_round

    def facts(self) -> dict[str, Any]:
        """Return what to tell the others in the next attempt."""
        self._state = self.state()
        return self._state.to_facts()

    async def program(self, link: NetworkLink) -> PartyAccount:
        """Take part in one meeting, to the end of the run."""
        try:
            return await self._train(link)
        finally:
            link.transcript.abandon()

    async def _train(self, link: NetworkLink) -> PartyAccount:
        shared = self.shared
        states = {
            name: self._state if name == self.name else ResumeState.from_facts(name, link.hello[name])
            for name in shared.stateful
        }
        plan = self._all_alike(decide, states, shared.label_party, shared.alignment, lockstep=shared.lockstep)
        if plan.start is None:
            self.directory.make()
            link.transcript = start_transcript(self.directory.alignment, self.name, self.run, self.events)
            common = await self._find_common(link, plan.instance)
            link.transcript.close()
        else:
            common = plan.rows if self._data is None else int(self.store.read_alignment().meta["rows"])
            if not self.store.aligned:  # who only holds a key has lost nothing that the run needs
                self.store.write_alignment(Checkpoint({}, {"instance": plan.instance, "rows": common}))
        agreement = self._all_alike(self._agreement, states, common)
        link.bound(training_sizes(agreement, shared.settings.option("key_bits"), plan.start or 0))
        totals = self._open_transcript(link, plan, agreement)
        rounds = agreement.stopping.rounds  # with several folds more than the settings' own
        self.events.tell("training", rows=agreement.batches.rows, start=plan.start or 0, rounds=rounds)
        recorder = RunRecorder(self.store, agreement, totals, link, self.events)
        program = self._program(agreement, plan, recorder)
        outcome: Outcome = await program.run(link)
        link.settle()
        rounds, reason = max(plan.start or 0, outcome.rounds), outcome.reason
        if plan.ended is not None:
            rounds, reason = plan.start or 0, plan.ended
        # The shard first and then the mark: a kill in between repeats the end of the run alone.
        if self.name in shared.stateful:
            save_shard(self.directory.shard, self.name, shared, plan.instance, program)
        self._save_preparation(None)
        self.keys.keep_count(now=True)
        link.transcript.close()
        # Twice: the others may be gone after this, and a damaged record would ask for them again.
        recorder.write(rounds, reason, done=True)
        recorder.write(rounds, reason, done=True)
        return self._account(self.store.read(rounds).meta)

    @staticmethod
    def _all_alike(judge: Callable[..., T], *facts: Any, **options: Any) -> T:
        """Judge by what all parties know, so that none of them hears of another's refusal before its own."""
        try:
            return judge(*facts, **options)
        except (SettingError, DataError) as error:
            raise AllRefuse(error) from None

    def _agreement(self, states: States, common: int) -> Agreement:
        agreement = agreement_of(self.shared, states, common)
        if self.shared.settings.blind:
            check_memory(agreement)
        entry = refusal(agreement)
        if entry is not None:
            raise SettingError(
                f"batch_size: {entry.party} would open {entry.equations} equations about {entry.unknowns} "
                f"unknowns ({entry.block}), which determines them; larger batches, fewer local steps or "
                'protection "blind" stay below this line, and allow_determined=true crosses it'
            )
        return agreement

    def _open_transcript(self, link: NetworkLink, plan: ResumePlan, agreement: Agreement) -> RunTotals:
        """Begin the transcript, or go on in its file; return the totals so far."""
        path, start = self.directory.transcript, plan.start
        if start is None:
            link.transcript = start_transcript(path, self.name, self.shared.name, self.events)
            return RunTotals(alignment=link.paused, activities=link.activities)
        totals, entries, question = RunTotals(), None, start > 0 and agreement.evaluates_after(start - 1)
        self.store.go_back(start)
        if start in self.store.rounds():
            checkpoint = self.store.read(start)
            meta = checkpoint.meta
            totals, entries = RunTotals.from_meta(meta), meta["entries"]
            if meta["done"]:  # a peer came back, and the transcript has no end again until it is done, too
                again = Checkpoint(checkpoint.arrays, {**meta, "done": False})
                self.store.write(start, again, question=question)
        totals.interruptions += 1
        link.transcript = resume_transcript(
            path, self.name, self.shared.name, start, entries, evaluates=question, events=self.events
        )
        totals.timeline.resumed(link.transcript)
        self.events.tell("resumed", start=start)
        return totals

    def _context(self, recorder: RunRecorder) -> PartyContext:
        def on_round(state: Round) -> None:
            self._judge()
            recorder.on_round(state)
            self.keys.keep_count()

        data = self._data
        bits = None if data is None else data.preparation.row_bits(data.features)
        return PartyContext(
            self.keys.holder,
            self._mapper,
            on_round=on_round,
            on_scoring=recorder.on_scoring,
            guard=score_guard(self.party, self.keys, bits),
        )

    # The end

    def finished_before(self) -> PartyAccount | None:
        """Return the account of a run that is over here, and only not yet reported."""
        meta = self.store.read(rounds[-1]).meta if (rounds := self.store.rounds()) else {"done": False}
        return self._account(meta) if meta["done"] else None

    def _account(self, meta: Mapping[str, Any]) -> PartyAccount:
        """Return the account of the run by its last checkpoint."""
        states = {
            name: ResumeState(size, is_linear, columns=columns)
            for name, size, is_linear, columns in meta["members"]
        }
        begun, totals, rounds = self.store.read_alignment().meta, RunTotals.from_meta(meta), self.last_round
        agreement = agreement_of(self.shared, states, int(begun["rows"]))
        holdout, scored = None, self._data is not None and not self.party.is_label_party
        if self._data is not None and self.directory.preparation.exists():
            _, holdout = take_labels(read_arrays(self.directory.preparation, "preparation"), self.shared)
        transcript = Transcript.read(self.directory.transcript)
        if fault := transcript.fault():
            raise DataError(
                f"{self.directory.transcript}: {fault}; it was changed or cut after the run had ended, and "
                "cannot be compared with the others'"
            )
        return PartyAccount(
            party=self.name,
            run=self.shared.name,
            instance=begun["instance"],
            agreement=agreement,
            rounds=rounds,
            reason=meta["ended"],
            rows=agreement.common_rows,
            history=totals.timeline.history,
            timeline=totals.timeline,
            transcript=transcript,
            path=Path(*meta["path"]),
            evaluation=totals.evaluation,
            alignment=totals.alignment,
            activities=totals.activities,
            ledger=ledger_after(agreement, rounds),
            metric_name=self.shared.settings.metric_name,
            holdout=holdout,
            score_bits=score_guard(self.party, self.keys).total_bits if scored else None,
            interruptions=totals.interruptions,
            wall=time.monotonic() - self._started,
            finished=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        )

    # What a party with data does

    def check_unchanged(self) -> None:
        """Refuse to go on with other data or settings than the run began with."""
        data, meta = self._data, self.store.read_alignment().meta
        if data is None:
            return
        if meta["digest"] != data.digest:
            raise SettingError(
                f"{data.settings.file} has changed since the run began; put the old file back, or start all "
                "parties with --restart"
            )
        before = meta["settings"]
        differing = [
            f"{key}: {value!r} given, and the run began with {before.get(key)!r}"
            for key, value in self._settings(data).items()
            if before.get(key) != value
        ]
        if differing:
            raise SettingError(f"{'; '.join(differing)}; set back, or start all parties with --restart")

    @property
    def inputs(self) -> str:
        """A fingerprint of the settings and of the party's data, for its result.json."""
        data = self._data
        own = {} if data is None else {"columns": data.preparation.names, "digest": data.digest}
        return self.keys.fingerprint({**self.compared, **own})

    def _settings(self, data: OwnData) -> dict[str, Any]:
        """Return what a checkpoint would give back."""
        settings: dict[str, Any] = json.loads(
            json.dumps({**self.compared, "columns": data.preparation.names})
        )
        return settings

    async def _find_common(self, link: NetworkLink, instance: str) -> int:
        """Align at a new start; return how many people are in common."""
        data, seed = self._data, self.party.own.start_seed
        if data is None:
            common = await hear_count(link, self.shared.label_party)
            self.store.write_alignment(Checkpoint({}, {"instance": instance, "rows": common}))
            return common
        self.directory.preparation.unlink(missing_ok=True)  # of an earlier instance
        alignment = await align(
            link,
            self.shared,
            data.ids,
            len(data.features),
            data.known,
            self._mapper,
            tally=self.directory.alignments,
            peer_ids=data.settings.peer_ids,
        )
        meta = {
            "instance": instance,
            # Drawn once: an attempt that started elsewhere would open other sums of the same residuals.
            "start_seed": randbits(63) if seed is None else seed,
            "rows": len(alignment),
            "digest": data.digest,
            "settings": self._settings(data),
        }
        arrays = {"rows": alignment.rows, "labelled": alignment.labelled}
        self.store.write_alignment(Checkpoint(arrays, meta))
        self.events.tell("aligned", rows=len(alignment))
        if data.ids is not None and len(alignment) < LITTLE * len(data.ids):
            share = f"only {len(alignment):,} of {len(data.ids):,} ids of {self.name}"
            self.events.tell("note", text=f"{share} are in common: {FEW_MEET}")
        return len(alignment)

    def _program(self, agreement: Agreement, plan: ResumePlan, recorder: RunRecorder) -> PartyLoop:
        """Return the program of the training, restored where the run goes on and checkpointed."""
        context, data, assembly = self._context(recorder), self._data, assembly_of(self.shared.settings)
        if data is not None:
            before = self.store.read_alignment()
            rows, labelled = before.arrays["rows"], before.arrays["labelled"]
            aligned = rows.astype(np.intp), labelled.astype(np.bool_)
            seed = int(before.meta["start_seed"])
            model = self._model(data, seed)
            program, self._measured = build(assembly, agreement, self.name, data, *aligned, model, context)
        else:
            program = assembly.key_holder(agreement, context)
        over = plan.ended is not None
        if self.name in self.shared.stateful:
            recorder.state = program.checkpoint
            if plan.start:
                program.restore(self.store.read(plan.start).arrays, over=over)
        elif plan.start:
            program.go_on_after(plan.start, evaluates=agreement.evaluates_after(plan.start - 1), over=over)
        return program

    def _judge(self) -> None:
        """Measure the model as soon as held-out scores are there: on disk before the round counts as done."""
        data, measured = self._data, self._measured
        if data is not None and data.labels is not None and measured is not None and measured.quality.scores:
            scores = measured.quality.scores.pop()
            holdout = data.labels.learn(measured.quality, scores, measured.own, data.settings.threshold)
            self._save_preparation(holdout, scores)

    def _save_preparation(self, holdout: Holdout | None, scores: Array | None = None) -> None:
        """Write how columns and labels were prepared; a measurement that is there already stays."""
        data = self._data
        if data is None or (holdout is None and self.directory.preparation.exists()):
            return
        arrays = data.preparation.to_arrays()
        if data.labels is not None:
            arrays |= label_arrays(data.labels, holdout, scores)
        write_arrays(self.directory.preparation, arrays)
