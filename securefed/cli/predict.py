"""`securefed predict party.toml --rows FILE`: score new rows together with the saved model."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from securefed.cli.entry import Stopped
from securefed.cli.party import Display
from securefed.cli.terminal import Terminal, add_passphrase, in_foreground, read_passphrase
from securefed.engine import started_engine
from securefed.files import RunDirectory, check_writable, only_process, write_json
from securefed.labels.metrics import shown
from securefed.process.attempts import may_return, open_endpoint, run_session, why_it_ended
from securefed.process.keys import Signatures, load_keys
from securefed.process.model_files import Shard, read_shard
from securefed.process.recording import Events
from securefed.process.scoring import Scoring, figures, read_new_rows, write_scores
from securefed.report.page import seconds
from securefed.settings.party import read_party_file
from securefed.transport.message import PeerGone

STABILITY = (
    (0.1, "these people are like those of the training"),
    (0.25, "these people differ a little from those of the training; watch the quality"),
    (float("inf"), "these people differ from those of the training; measure the model again"),
)
"""What a population stability index below each limit says."""

DESCRIPTION = """\
Score new rows with the model of a finished run. All parties of the run take part, each with its own part of
the model and its own columns. They find the common people privately. Only the label party learns the scores,
and it writes them to a CSV file. The other parties learn who is scored."""

EPILOGUE = """\
examples:
  securefed predict bank/party.toml --rows new-clients.csv    at the label party: writes scores.csv
  securefed predict shop/party.toml --rows new-people.csv     at the same time at the other party
  securefed predict notary/party.toml                         at the helper or key-holder, if there is one

A file of new rows has the columns of the training file. If the label party's file has the label too, the
command prints the quality of the scores and a gain table. In transfer learning the label party's file needs
only the id column of the people to score."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="party.toml", help="this party's settings, or its folder")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="the new rows: CSV or Parquet")
    parser.add_argument(
        "--out", type=Path, metavar="CSV", help="where the label party writes; default scores.csv in the run"
    )
    add_passphrase(parser)


def run(args: argparse.Namespace, terminal: Terminal) -> int:
    party = read_party_file(args.file)
    terminal.labels = {"party": party.own.name, "run": party.shared.name}
    directory = RunDirectory(party.run_folder, party.own.name)
    if party.own.name in party.shared.stateful:
        preparation = None if party.is_key_holder else directory.preparation
        shard = read_shard(directory.shard, preparation, party.shared)
    else:
        shard = Shard(str(directory.read()[0]["instance"]))
    rows, unknown = read_new_rows(party, args.rows, shard)
    for line in unknown:
        terminal.warn(f"{args.rows.name}: {line}")
    # Found now and not when the scores are there: they would be lost, and all would have to do it again.
    if party.is_label_party:
        check_writable("out", args.out or directory.folder / "scores.csv")
    keys = load_keys(party, read_passphrase(args.passphrase_file))
    with (
        in_foreground(terminal),
        only_process(directory.lock),
        started_engine(party.own.engine, party.shared.scheme) as mapper,
    ):
        display = Display(terminal, party, 1, "scores")
        scoring = Scoring(party, keys, mapper, shard, rows, Events(None, [display.on_event]))
        try:
            with open_endpoint(party, keys) as endpoint:
                terminal.say(f"{party.own.name} listens on {endpoint.address}; meeting its peers")
                scored, _ = run_session(scoring, endpoint)
            display.line.step(1, f"{len(scored.rows):,} rows")
        except (KeyboardInterrupt, PeerGone) as error:
            if isinstance(error, PeerGone) and not may_return(error):
                raise Stopped(why_it_ended(error)) from None
            word = "stopped" if isinstance(error, KeyboardInterrupt) else why_it_ended(error)
            raise Stopped(f"{word}; nothing was lost: run the same command again") from None
        finally:
            display.line.close()
            keys.keep_count(now=True)
    facts: dict[str, Any] = {
        "party": party.own.name,
        "run": party.shared.name,
        "rows": len(scored.rows),
        "given": 0 if rows is None else rows.count,
        "computation_seconds": scored.path.computation,
        "communication_seconds": scored.path.communication,
        "alignment_seconds": scored.alignment.total,
        "scores": None,
    }
    if scored.scores is not None and rows is not None:
        out = args.out or directory.folder / "scores.csv"
        write_scores(out, rows, scored, shard)
        facts |= {"scores": str(out), **figures(party.own.name, rows, scored, shard)}
    scored.transcript.close()
    signatures = Signatures(keys, scored.transcript, shard.instance)
    write_json(directory.prediction_signatures, signatures.to_file({}))
    for line in _lines(facts, party.shared.label_party):
        terminal.result(line)
    terminal.facts = facts
    return 0


def _lines(facts: dict[str, Any], label_party: str) -> Iterator[str]:
    if facts["scores"] is not None:
        yield f"scores      {facts['scores']}: {facts['rows']:,} of {facts['given']:,} rows were in common"
    elif facts["given"]:
        yield f"scored      {facts['rows']:,} of {facts['given']:,} rows, for {label_party}"
    if quality := facts.get("quality"):
        more = "".join(f", {name} {value:.3g}" for name, value in quality["more"].items())
        value = shown(quality["value"], quality["interval"])
        yield f"quality     {quality['metric']} {value} on {quality['rows']:,} rows with labels{more}"
    for place, group in enumerate(facts.get("gain") or ()):
        head = "gain" if place == 0 else ""
        yield (
            f"{head:<11} {group['people']:>8,} people with the highest scores: {group['found']:>4.0%} of the "
            f"second class, lift {group['lift']:.2f}"
        )
    if (index := facts.get("psi")) is not None:
        words = next(words for limit, words in STABILITY if index < limit)
        yield f"stability   PSI {index:.2f}: {words}"
    computation, communication = facts["computation_seconds"], facts["communication_seconds"]
    yield f"time        {seconds(computation)} computation + {seconds(communication)} communication"
