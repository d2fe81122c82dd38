"""`securefed party party.toml`: one party of a run, from its data file to its run directory."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from securefed.cli.entry import OUT_OF_MEMORY, Stopped, is_user_error
from securefed.cli.terminal import MOST_LINE, Terminal, add_passphrase, clock, in_foreground, read_passphrase
from securefed.engine import WorkerDied, started_engine
from securefed.errors import SecurefedError, plain_text
from securefed.files import RunDirectory, StorageError, only_process
from securefed.labels.metrics import shown
from securefed.process.attempts import (
    DIFFERENT,
    check_folder,
    close_run,
    open_endpoint,
    run_session,
    throw_away,
    why_it_ended,
    write_run,
)
from securefed.process.keys import PartyKeys, load_keys
from securefed.process.model_files import score_guard
from securefed.process.own_data import load_data
from securefed.process.party_run import Session
from securefed.process.recording import EventListener, Events
from securefed.protocols.agreement import trust_lines
from securefed.report.page import facts, seconds, size
from securefed.report.summary import PartyAccount
from securefed.settings.party import PartyFile, read_party_file
from securefed.transport.message import PeerGone
from securefed.transport.network.run import Waiting

DESCRIPTION = """\
Join a run as one party. Meet the other parties over mutual TLS, compare settings, find the common people
privately, and train under encryption. Write the run directory: result.json, timing.json, report.html, this
party's transcript and its part of the model. Every round is checkpointed. After an interruption continue with
--resume."""

EPILOGUE = """\
examples:
  securefed party bank/party.toml            at the bank
  securefed party bank/party.toml --resume   after an interruption, or for a first start
  securefed party bank/party.toml --restart  delete the run and start again (all parties must)
  securefed party bank/party.toml --metrics 9464    serve figures for Prometheus on 127.0.0.1:9464

The passphrase of the keys comes from --passphrase-file, SECUREFED_PASSPHRASE or a prompt."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="party.toml", help="this party's settings, or its folder")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--resume", action="store_true", help="go on after the last checkpoint, if any")
    group.add_argument("--restart", action="store_true", help="throw away what is there of this run")
    parser.add_argument("--events", type=Path, metavar="FILE", help="append what happens as lines of JSON")
    parser.add_argument(
        "--metrics",
        metavar="ADDRESS",
        help="serve /metrics (Prometheus), /health and /ready at HOST:PORT, or at this PORT of 127.0.0.1",
    )
    add_passphrase(parser)


def run(args: argparse.Namespace, terminal: Terminal) -> int:
    party = read_party_file(args.file)
    terminal.labels = {"party": party.own.name, "run": party.shared.name}
    for line in trust_lines(party.shared.scheme, party.shared.reveal, party.shared.objective):
        terminal.warn(line)
    data = None if party.is_key_holder else load_data(party)
    keys = load_keys(party, read_passphrase(args.passphrase_file))
    with ExitStack() as stack:
        stack.enter_context(in_foreground(terminal))
        stack.enter_context(only_process(RunDirectory(party.run_folder, party.own.name).lock))
        mapper = stack.enter_context(started_engine(party.own.engine, party.shared.scheme))
        display = Display(terminal, party, int(party.shared.settings.rounds), "round")
        address = args.metrics or party.own.metrics
        listeners = [display.on_event, *_served(party, keys, address, terminal, stack)]
        events = stack.enter_context(Events(args.events, listeners))
        session = Session(party, keys, mapper, data, events)
        if check_folder(session, args.resume, args.restart):
            terminal.say(f"{session.directory.folder}: this run is finished, and nothing is left to do")
            _report(session, *session.directory.read(), terminal, events)
            return 0
        try:
            account = _take_part(session, terminal, display, restart=args.restart)
        except (KeyboardInterrupt, MemoryError, PeerGone, StorageError, WorkerDied) as error:
            text = _how_to_go_on(args.file, session, error)
            events.tell("stopped" if isinstance(error, KeyboardInterrupt) else "failed", reason=text, exit=1)
            raise Stopped(text) from None
        except SecurefedError as error:
            code = 2 if is_user_error(error) else 1
            events.tell("failed", reason=plain_text(error, MOST_LINE), exit=code)
            raise
        finally:
            display.line.close()
        _report(session, account.result(), account.timing(), terminal, events)
    different = [name for name, peer in account.peers.items() if peer["transcripts"] == DIFFERENT]
    if different:
        raise Stopped(
            f"the transcripts of {party.own.name} and {', '.join(different)} differ: one of them did not see "
            "what the other says it sent; compare the files, and do not use the model before it is clear why"
        )
    return 0


def _served(
    party: PartyFile, keys: PartyKeys, address: str | None, terminal: Terminal, stack: ExitStack
) -> list[EventListener]:
    """Serve figures at this address, if any; return who has to hear of events for that."""
    if address is None:
        return []
    from securefed.cli.metrics import Monitor, serve

    guard, scored = score_guard(party, keys), not party.is_label_party and not party.is_key_holder
    monitor = Monitor(party, lambda: guard.total_bits if scored else None)
    base = stack.enter_context(serve(monitor.answer, address))
    terminal.say(f"metrics at {base}/metrics, state at {base}/ready and {base}/health")
    return [monitor.on_event]


def _take_part(session: Session, terminal: Terminal, display: Display, *, restart: bool) -> PartyAccount:
    party, events = session.party, session.events
    with open_endpoint(party, session.keys) as endpoint:
        events.tell("opened", endpoint=endpoint)
        try:
            if restart:
                throw_away(session)
            others = ", ".join(party.peers)
            terminal.say(f"{party.own.name} listens on {endpoint.address}; meeting {others}")
            events.tell("listening", address=endpoint.address)
            account: PartyAccount
            account, over = run_session(session, endpoint)
            display.line.close()
            write_run(session, account)
            if over:
                account = close_run(endpoint, session, account)
                write_run(session, account)
                session.store.clear()
        finally:
            events.tell("closing")
    return account


def _report(
    session: Session, result: dict[str, Any], timing: dict[str, Any], terminal: Terminal, events: Events
) -> None:
    lines = [f"{name:<11} {text}" for name, text in facts(result, timing)]
    if result["settings"]["parties"][-1][0] == result["party"]:
        lines.insert(2, f"quality     {quality_line(result['holdout'])}")
    for line in lines:
        terminal.result(line)
    if result["holdout"] is not None and result["holdout"]["warning"]:
        terminal.warn(result["holdout"]["warning"])
    terminal.result(f"report      {session.directory.report}")
    terminal.facts = {"result": result, "timing": timing, "folder": str(session.directory.folder)}
    events.tell("finished", rounds=result["rounds"], reason=result["reason"])


def quality_line(holdout: dict[str, Any] | None) -> str:
    """How good the model is, by the label party's held-out rows."""
    if holdout is None:
        return "not measured (holdout = 0, or too few rows in common)"
    between = holdout.get("interval")
    alone, chance = (shown(holdout[name], between, between=False) for name in ("alone", "chance"))
    more = "".join(f", {name} {value:.3g}" for name, value in holdout.get("more", {}).items())
    return (
        f"{holdout['metric']} {shown(holdout['value'], between)} on {holdout['rows']:,} held-out rows; alone "
        f"{alone}, chance {chance}{more}"
    )


def _how_to_go_on(file: Path, session: Session, error: BaseException) -> str:
    word = "stopped" if isinstance(error, KeyboardInterrupt) else why_it_ended(error)
    word = OUT_OF_MEMORY if isinstance(error, MemoryError) else word
    if session.store.aligned or session.directory.finished:
        kept = f"round {session.last_round} of {session.shared.settings.rounds} is kept"
        return f"{word}; {kept}; go on with: securefed party {file} --resume"
    return f"{word}; nothing has begun yet; start again with: securefed party {file}"


def waiting_note(waiting: Waiting) -> str:
    """A countdown; or, while a large message is on its way, how much of it has come."""
    if waiting.moved is not None:
        part, whole = waiting.moved
        way = f"to {waiting.peer}" if waiting.outgoing else f"from {waiting.peer}"
        return f"{size(part)} of {size(whole)} {way}"
    left = clock(max(0.0, waiting.left))
    trouble = f" ({waiting.trouble})" if waiting.trouble else ""
    return f"waiting for {waiting.peer}, {left} left{trouble}"


class Display:
    """The progress of a run or a prediction, for a person."""

    def __init__(self, terminal: Terminal, party: PartyFile, rounds: int, what: str) -> None:
        self._terminal, self._settings = terminal, party.shared
        self.line = terminal.progress(rounds, f"{party.own.name}: {what}")

    def on_event(self, event: str, facts: Mapping[str, Any]) -> None:
        shared = self._settings
        if event == "training":
            start = facts["start"]
            what = f"going on after round {start}" if start else "training"
            how = f"{shared.scheme}, reveals {shared.reveal}"
            self._terminal.say(f"{what} on {facts['rows']:,} common rows, {how}")
            self.line.begin(start, facts["rounds"])
        elif event == "round":
            name, metric = shared.settings.metric_name, facts["metric"]
            quality = "" if metric is None else f"{name} {metric:.4f}  "
            self.line.step(
                facts["round"],
                f"{quality}sent {size(facts['sent'])}  comp {seconds(facts['computation'])}  "
                f"comm {seconds(facts['communication'])}",
            )
        elif event == "note":
            self._terminal.warn(facts["text"])
        elif event == "waiting":
            self.line.note(waiting_note(facts["waiting"]))
