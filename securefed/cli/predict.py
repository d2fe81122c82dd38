"""`securefed predict party.toml --rows FILE`: score new rows together with the saved model."""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path

from securefed.cli import passphrase as phrases
from securefed.cli.entry import Stopped
from securefed.cli.foreground import in_foreground, waiting_note
from securefed.cli.terminal import Terminal
from securefed.data.ids import normalise_ids
from securefed.data.preparation import prepared
from securefed.data.rows import read_rows
from securefed.engine import started_engine
from securefed.errors import SettingError
from securefed.files import check_writable, only_process, write_json
from securefed.process.attempts import ALL_KINDS, RELEASE, SIZES, Attempts
from securefed.process.endpoint import load_keys, may_return, open_endpoint, why_it_ended
from securefed.process.own_data import row_numbers
from securefed.process.score_file import score_guard
from securefed.process.scoring import NewRows, Scored, Scoring, write_scores
from securefed.process.shards import Shard, read_shard
from securefed.report.page import seconds
from securefed.report.rundir import RunDirectory
from securefed.settings.party import PartyFile, read_party_file
from securefed.transport.network import Endpoint, PeerGone

__all__ = ["DESCRIPTION", "EPILOGUE", "add_arguments", "run"]

DESCRIPTION = """\
Score new rows with the model of a finished run. All parties of the run take part, each with its own part of
the model and its own columns. They find the common people privately. Only the label party learns the scores,
and it writes them to a CSV file. The other parties learn who is scored."""

EPILOGUE = """\
examples:
  securefed predict bank/party.toml --rows new-clients.csv    at the label party: writes scores.csv
  securefed predict shop/party.toml --rows new-people.csv     at the same time at the other party
  securefed predict notary/party.toml                         at the helper or key-holder, if there is one

A file of new rows has the columns of the training file, without the label. In transfer learning the label
party's file needs only the id column of the people to score."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="party.toml", help="this party's settings")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="the new rows: CSV or Parquet")
    parser.add_argument(
        "--out", type=Path, metavar="CSV", help="where the label party writes; default scores.csv in the run"
    )
    phrases.add_argument(parser)


def run(args: argparse.Namespace, terminal: Terminal) -> int:
    party = read_party_file(args.file)
    terminal.labels = {"party": party.own.name, "run": party.shared.name}
    directory = RunDirectory(party.run_folder, party.own.name)
    shard = None
    if not party.is_key_holder:
        shard = read_shard(directory.shard, directory.preparation, party.shared)
    elif party.shared.helper is not None:
        shard = read_shard(directory.shard, None, party.shared)
    instance = shard.instance if shard is not None else str(directory.read()[0]["instance"])
    rows = _new_rows(party, args.rows, shard, terminal)
    # Found now and not when the scores are there: they would be lost, and all would have to do it again.
    if party.is_label_party:
        check_writable("out", args.out or directory.folder / "scores.csv")
    if args.json is not None:
        check_writable("json", args.json)
    keys = load_keys(party, phrases.read_passphrase(args.passphrase_file))
    with (
        in_foreground(terminal),
        only_process(directory.lock),
        started_engine(party.own.engine, party.shared.scheme) as mapper,
    ):
        scoring = Scoring(
            party.shared,
            party.own.name,
            directory,
            keys.holder,
            mapper,
            shard=shard,
            rows=rows,
            guard=score_guard(party, keys, None if shard is None else shard.score_bits),
        )
        try:
            with open_endpoint(party, keys) as endpoint:
                terminal.say(f"{party.own.name} listens on {endpoint.address}; meeting its peers")
                scored = _meet(endpoint, scoring, party, instance, terminal)
        except (KeyboardInterrupt, PeerGone) as error:
            if isinstance(error, PeerGone) and not may_return(error):
                raise Stopped(why_it_ended(error)) from None
            word = "stopped" if isinstance(error, KeyboardInterrupt) else why_it_ended(error)
            raise Stopped(f"{word}; nothing was lost: run the same command again") from None
        finally:
            keys.keep_count(now=True)
    _report(args, party, directory, shard, rows, scored, terminal)
    return 0


def _new_rows(party: PartyFile, path: Path | None, shard: Shard | None, terminal: Terminal) -> NewRows | None:
    if party.is_key_holder:
        if path is not None:
            raise SettingError(f"rows: {party.own.name} is a party without data; leave --rows out")
        return None
    if path is None or party.data is None or shard is None:
        raise SettingError("rows: missing; --rows FILE names the new rows")
    rows = read_rows(path, party.data.policy)
    ids = None
    if party.data.id is not None:
        ids = rows.ids(party.data.id)
        normalise_ids(ids, party.own.name, party.shared.id_form)
    wanted_alone = not party.shared.same_people and party.is_label_party
    features, unknown = None, dict[str, int]()
    if not wanted_alone:
        features, unknown = prepared(shard.columns, rows)
    for column, count in unknown.items():
        terminal.warn(f"{path.name}: {count} of {rows.count} values of {column!r} were not there in training")
    offset = None
    if shard.labels is not None and shard.labels.wishes.offset:
        if party.data.offset is None:
            raise SettingError("offset: none named in [data], and the model was trained with one")
        offset = row_numbers(rows, party.data.offset, "offset")
    return NewRows(ids, rows.count, features, party.data.peer_ids, offset)


def _meet(
    endpoint: Endpoint, scoring: Scoring, party: PartyFile, instance: str, terminal: Terminal
) -> Scored:
    attempts = Attempts(party.own.wait)
    with closing(terminal.progress(1, f"{party.own.name}: scores")) as progress:
        while True:
            try:
                done = endpoint.run(
                    scoring.program,
                    run=f"{party.shared.name}/predict",
                    kinds=ALL_KINDS,
                    settings={**party.shared.to_dict(), "model": instance, "release": RELEASE},
                    sizes=SIZES,
                    facts=scoring.facts(),
                    on_wait=lambda waiting: progress.note(waiting_note(waiting)),
                )
            except PeerGone as gone:
                if not scoring.begun or not may_return(gone):
                    raise
                attempts.interrupted(gone, None)
                terminal.warn(f"{why_it_ended(gone)}; beginning again and waiting for it")
            else:
                if scoring.refused is not None:
                    raise scoring.refused
                scored: Scored = done.outcome
                progress.step(1, f"{len(scored.rows):,} rows")
                return scored


def _report(
    args: argparse.Namespace,
    party: PartyFile,
    directory: RunDirectory,
    shard: Shard | None,
    rows: NewRows | None,
    scored: Scored,
    terminal: Terminal,
) -> None:
    facts = {
        "party": party.own.name,
        "run": party.shared.name,
        "rows": len(scored.rows),
        "given": 0 if rows is None else rows.count,
        "computation_seconds": scored.path.computation,
        "communication_seconds": scored.path.communication,
        "alignment_seconds": scored.alignment.total,
        "scores": None,
    }
    if scored.scores is not None and shard is not None and rows is not None:
        out = args.out or directory.folder / "scores.csv"
        count = write_scores(out, rows.ids, scored, shard)
        facts["scores"] = str(out)
        terminal.result(f"scores      {out}: {count:,} of {rows.count:,} rows were in common")
    elif rows is not None:
        terminal.result(
            f"scored      {len(scored.rows):,} of {rows.count:,} rows, for {party.shared.label_party}"
        )
    terminal.result(
        f"time        {seconds(scored.path.computation)} computation + "
        f"{seconds(scored.path.communication)} communication"
    )
    if args.json:
        write_json(args.json, facts)
