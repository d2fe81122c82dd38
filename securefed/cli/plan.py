"""`securefed plan`: how long and how much, for each scheme and number of local steps, before you start."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from securefed.assembly import assembly_of
from securefed.cli.terminal import Terminal
from securefed.crypto import SCHEMES
from securefed.declare import check_integer
from securefed.engine import started_engine
from securefed.errors import SettingError
from securefed.plan.planner import Estimate, RoundsModel, best, estimates
from securefed.plan.rehearsal import Scenario
from securefed.process.own_data import load_data
from securefed.protocols.agreement import trust_lines
from securefed.protocols.schedules import held_out
from securefed.report.page import seconds, size
from securefed.settings.objectives import ObjectiveSettings
from securefed.settings.party import PartyFile, read_party_file
from securefed.settings.run import RunSettings
from securefed.transport.message import NETWORKS, get_network

DESCRIPTION = """\
Forecast what a run will take: megabytes, memory, and minutes of computation and communication, for each
scheme. The forecast needs no peer. It rehearses small runs on this machine and assumes a network. That takes
seconds; with Paillier, and with a thousand columns or more, minutes. --scheme ckks leaves Paillier out. With
own gradients it also says which number of local steps (Q) is likely fastest, and when the solvability ledger
would refuse. In blind training of linear models local steps cost nothing."""

EPILOGUE = """\
examples:
  securefed plan bank/party.toml --columns shop=20 --network wan
  securefed plan --rows 30000 --columns shop=15,bank=18       default settings, without a file

How many rounds Q local steps need depends on the data. The plan assumes R(Q) = max(R(1) / Q^0.8, floor R(1)),
through the rounds and the Q of the file, with floor 0.15, or 0.04 for transfer learning, and learning_rate
"auto". Sizes are exact; with own gradients of many rows they are within 5%. Times are forecasts."""

LOCAL_STEPS = (1, 2, 5, 10, 20, 50)
HEAD = (
    "    Q   rounds | once: bytes      time | a round: ciphertexts     bytes      comp      comm |"
    " in all: bytes      time"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, nargs="?", metavar="party.toml", help="settings to plan for")
    parser.add_argument("--rows", type=int, metavar="N", help="people in common; default: the file's rows")
    parser.add_argument(
        "--columns",
        default="",
        metavar="NAME=D,...",
        help="columns of each party, the label party last; splines and one-hot columns count each",
    )
    parser.add_argument("--scheme", choices=SCHEMES, help="default: all that fit the protection")
    parser.add_argument(
        "--network",
        default="lan",
        help=f"{', '.join(NETWORKS)}, or BIT/S,SECONDS one way; default %(default)s",
    )


def run(args: argparse.Namespace, terminal: Terminal) -> int:
    network = get_network(args.network)
    party = read_party_file(args.file, peers=False) if args.file is not None else None
    shared, columns, rows, assumed = _situation(args, party)
    settings = shared.settings
    terminal.say("rehearsing small runs on this machine: seconds, with Paillier or 1,000 columns minutes")
    rounds = RoundsModel.through(settings.rounds, settings.algorithm.local_steps, settings.rounds_floor)
    free = settings.blind and settings.free_steps
    steps = (settings.algorithm.local_steps,) if free else LOCAL_STEPS
    tables: dict[str, list[Estimate]] = {}
    for scheme in [args.scheme] if args.scheme else filter(settings.protection.fits, SCHEMES):
        protection = replace(settings.protection, scheme=scheme)
        scenario = _scenario(replace(settings, protection=protection), shared, columns, rows)
        with started_engine(None if party is None else party.own.engine, scheme) as mapper:
            tables[scheme] = estimates(scenario, steps, network, rounds, mapper.workers)
    for line in assumed:
        terminal.warn(line)
    listed = ", ".join(f"{name} {count}" for name, count in columns.items())
    terminal.result(f"{rows:,} people in common; columns: {listed}; network {network.name}")
    for scheme, table in tables.items():
        _show(scheme, table, terminal)
    fastest = best(row for table in tables.values() for row in table)
    terminal.result("")
    if fastest is None:
        terminal.result('The ledger refuses all of these: take larger batches, or protection "blind".')
    else:
        chosen = f"{fastest.scheme}, Q = {fastest.local_steps}, {seconds(fastest.total)} in all"
        terminal.result(f"Likely fastest: {chosen}.")
        for line in trust_lines(fastest.scheme, fastest.reveal, shared.objective):
            terminal.result(f"But {line}.")
        if free:
            terminal.result("Local steps cost nothing: a round is two small messages whatever Q is.")
    terminal.facts = {
        "rows": rows,
        "columns": columns,
        "network": {"name": network.name, "bandwidth": network.bandwidth, "latency": network.latency},
        "rounds_model": {"at_one": rounds.at_one, "floor": rounds.floor},
        "estimates": [row.to_dict() for table in tables.values() for row in table],
        "fastest": None if fastest is None else fastest.to_dict(),
    }
    return 0


def _scenario(
    settings: ObjectiveSettings, shared: RunSettings, columns: dict[str, int], rows: int
) -> Scenario:
    assembly = assembly_of(settings)
    return Scenario(
        settings,
        {name: assembly.columns(count) for name, count in columns.items()},
        rows,
        settings.option("key_bits"),
        shared.key_holder or "key-holder",
        shared.outputs,
        holdout_rows=len(held_out(rows, settings.holdout if settings.blind else 0.0, settings.seed)[1]),
    )


def _situation(
    args: argparse.Namespace, party: PartyFile | None
) -> tuple[RunSettings, dict[str, int], int, list[str]]:
    """Return settings, columns and rows, by the file and the options, and what had to be assumed."""
    columns, rows, assumed = _columns(args.columns), args.rows, list[str]()
    if party is None:
        if not columns:
            raise SettingError("columns: missing; give party.toml, or --rows N --columns shop=20,bank=10")
        table = {"name": "plan", "parties": list(columns)}
        shared = RunSettings.of({**table, "key_holder": "key-holder"} if len(columns) > 2 else table)
    else:
        shared, own = party.shared, 0
        if party.data is not None:
            count, own = load_data(party).features.shape
            if rows is None:
                rows = count
                assumed.append(f"all {rows:,} rows of {party.data.file} are common; --rows N if not")
        if unknown := [name for name in columns if name not in shared.parties]:
            raise SettingError(f"columns: {unknown[0]} given, the parties are {', '.join(shared.parties)}")
        guessed = [name for name in shared.parties if name not in columns and name != party.own.name]
        if own and guessed:
            assumed.append(
                f"{own} columns at {', '.join(guessed)}, as many as here; --columns {guessed[0]}=D if not"
            )
        columns = {name: columns.get(name, own) for name in shared.parties}
        if not all(columns.values()):
            raise SettingError("columns: missing; --columns NAME=D for each party with data")
    if rows is None:
        raise SettingError("rows: missing; --rows N says how many people are in common")
    return shared, columns, check_integer("rows", rows, least=2), assumed


def _columns(text: str) -> dict[str, int]:
    columns: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        name, equals, number = part.partition("=")
        if not equals or not number.isdigit() or int(number) < 1:
            raise SettingError(f"columns: {part!r} given, NAME=D with D of at least 1 is allowed")
        columns[name.strip()] = int(number)
    return columns


def _show(scheme: str, table: list[Estimate], terminal: Terminal) -> None:
    fastest = best(table)
    terminal.result(f"\n{scheme}, {'reveals nothing' if table[0].reveal == 'nothing' else 'own gradients'}")
    terminal.result(HEAD)
    for row in table:
        once = seconds(row.setup + row.setup_communication)
        terminal.result(
            f"  {row.local_steps:>3}{'*' if row is fastest else ' '} {row.rounds:>7} | "
            f"{size(row.setup_bytes):>11} {once:>9} | "
            f"{row.ciphertexts:>20,} {size(row.bytes):>9} {seconds(row.computation):>9} "
            f"{seconds(row.communication):>9} | {size(row.total_bytes):>13} {seconds(row.total):>9}",
            colour="green" if row is fastest else None,
        )
    if table[0].memory:
        memory = size(table[0].memory)
        terminal.result(f"  {memory} of memory at each of the two parties that hold shares")
    if (refused := next((row for row in table if row.refused), None)) is not None:
        terminal.warn(f"from Q = {refused.local_steps} on the ledger refuses: {refused.refused}")
