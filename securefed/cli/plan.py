"""`securefed plan`: how long and how much, for each number of local steps and scheme, before you start."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from securefed.assembly import assembly_of
from securefed.cli.terminal import Terminal
from securefed.crypto import SCHEMES, protects
from securefed.declare import check_integer
from securefed.engine import started_engine
from securefed.errors import SettingError
from securefed.plan.planner import Estimate, RoundsModel, best, estimates
from securefed.plan.rehearsal import Scenario
from securefed.process.own_data import load_data
from securefed.protocols.agreement import OBJECTIVES, needed_trust
from securefed.protocols.schedules import held_out
from securefed.report.page import seconds, size
from securefed.settings.party import PartyFile, read_party_file
from securefed.settings.protection import OwnGradient
from securefed.settings.run import RunSettings
from securefed.transport import NETWORKS, Network, get_network

DESCRIPTION = """\
Forecast what a run will take: megabytes, memory, and minutes of computation and communication, for each
scheme. The forecast needs no peer. It rehearses small runs on this machine and assumes a network. That takes
seconds; with Paillier, and with a thousand columns or more, minutes. --scheme ckks leaves Paillier out. With
own gradients it also says which number of local steps (Q) is likely fastest, and when the solvability ledger
would refuse. In blind training of linear models local steps cost nothing."""

EPILOGUE = """\
examples:
  securefed plan bank/party.toml --columns shop=20 --network wan
  securefed plan --rows 30000 --columns shop=15,bank=18 --batch-size 512 --rounds 40
  securefed plan --objective transfer --rows 1000 --columns b=15,a=18 --network 100e6,0.02

How many rounds Q local steps need depends on the data. The plan assumes R(Q) = max(R(1) / Q^alpha, floor
R(1)), fitted to the rounds and the Q that you give. Sizes are exact; with own gradients of many rows they are
within 5%. Times are forecasts."""

LOCAL_STEPS = (1, 2, 5, 10, 20, 50)
HEAD = (
    "    Q   rounds | once: bytes      time | a round: ciphertexts     bytes      comp      comm |"
    " in all: bytes      time"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, nargs="?", metavar="party.toml", help="settings to plan for")
    group = parser.add_argument_group("instead of, or on top of, party.toml")
    group.add_argument("--rows", type=int, metavar="N", help="people in common; default: the file's rows")
    group.add_argument(
        "--columns",
        metavar="NAME=D,...",
        help="columns of each party, the label party last; splines and one-hot columns count each",
    )
    group.add_argument("--objective", choices=OBJECTIVES)
    group.add_argument("--scheme", choices=SCHEMES, action="append", help="default: all that fit")
    group.add_argument("--batch-size", type=int, metavar="S")
    group.add_argument("--rounds", type=int, metavar="R", help="that you expect at --local-steps")
    group.add_argument("--local-steps", type=int, metavar="Q")
    group.add_argument("--hidden", type=int, metavar="H", help="width of the transfer objective")
    group.add_argument("--classes", type=int, metavar="C", help="of the labels; default 2")
    group.add_argument("--key-bits", type=int, default=3072, help="of Paillier keys; default %(default)s")
    group = parser.add_argument_group("what to assume")
    group.add_argument(
        "--network",
        default="lan",
        help=f"{', '.join(NETWORKS)}, or BIT/S,SECONDS one way; default %(default)s",
    )
    group.add_argument("--alpha", type=float, default=0.8, help="of R(Q); default %(default)s")
    group.add_argument("--floor", type=float, help="of R(Q); default 0.15 linear, 0.04 transfer")
    group.add_argument(
        "--engine", help="workers of the run: serial, processes or a number; default all cores"
    )


def run(args: argparse.Namespace, terminal: Terminal) -> int:
    network = get_network(args.network)
    party = read_party_file(args.file) if args.file is not None else None
    shared, columns, rows, assumed = _situation(args, party)
    settings = shared.settings
    rounds = RoundsModel.through(
        settings.rounds,
        settings.algorithm.local_steps,
        alpha=args.alpha,
        floor=settings.rounds_floor if args.floor is None else args.floor,
    )
    if settings.learning_rate != "auto":
        assumed.append(
            "learning_rate 'auto', which diverges for no Q, instead of the file's "
            f"{shared.to_dict()['learning_rate']:g}, which may for some"
        )
    variants = _variants(replace(shared, settings=replace(settings, learning_rate="auto")), args.scheme)
    terminal.say("rehearsing small runs on this machine: seconds, with Paillier or 1,000 columns minutes")
    tables: list[tuple[str, list[Estimate]]] = []
    refused: SettingError | None = None
    for title, variant in variants:
        with started_engine(_engine(args.engine, party), variant.scheme) as mapper:
            scenario = _scenario(variant, columns, rows, args.key_bits)
            own = variant.settings.algorithm.local_steps
            steps = (own,) if scenario.blind and variant.settings.free_steps else LOCAL_STEPS
            terminal.detail(f"{title}: Q = {', '.join(map(str, steps))}")
            try:
                tables.append((title, estimates(scenario, steps, network, rounds, mapper.workers)))
            except SettingError as error:
                refused = error
                assumed.append(f"{title}: {error}")
    for line in assumed:
        terminal.warn(line)
    if refused is not None and not tables:
        raise refused
    _show(tables, columns, rows, network, rounds, terminal)
    terminal.facts = _facts(tables, columns, rows, network, rounds)
    return 0


def _scenario(shared: RunSettings, columns: dict[str, int], rows: int, key_bits: int) -> Scenario:
    settings = shared.settings
    assembly = assembly_of(settings)
    used = {name: assembly.columns(count) for name, count in columns.items()}
    _, holdout = held_out(rows, settings.holdout if settings.blind else 0.0, settings.seed)
    holder = shared.key_holder or "key-holder"
    return Scenario(settings, used, rows, key_bits, holder, shared.outputs, len(holdout))


def _engine(word: str | None, party: PartyFile | None) -> str | int | None:
    if word is not None:
        return int(word) if word.isdigit() else word
    return party.own.engine if party is not None else None


def _situation(
    args: argparse.Namespace, party: PartyFile | None
) -> tuple[RunSettings, dict[str, int], int, list[str]]:
    """Settings, columns and rows: from the file where there is one, and from the flags on top; and what had
    to be assumed.
    """
    columns, assumed = _columns(args.columns), list[str]()
    if party is not None:
        table = party.shared.run_table()
        rows = args.rows
        own = 0
        if party.data is not None:
            data = load_data(party)
            own = data.features.shape[1]
            if rows is None:
                rows = len(data.features)
                assumed.append(f"all {rows:,} rows of {party.data.file} are common; --rows N if not")
        names = party.shared.parties
        unknown = [name for name in columns if name not in names]
        if unknown:
            raise SettingError(f"columns: {unknown[0]} given, the parties are {', '.join(names)}")
        guessed = [name for name in names if name not in columns and name != party.own.name]
        if own and guessed:
            assumed.append(
                f"{own} columns at {', '.join(guessed)}, as many as here; --columns {guessed[0]}=D if not"
            )
        columns = {name: columns.get(name, own) for name in names}
        if not all(columns.values()):
            raise SettingError("columns: missing; --columns NAME=D for each party with data")
    else:
        if not columns:
            raise SettingError("columns: missing; give party.toml, or --rows N --columns shop=20,bank=10")
        table = {"name": "plan", "parties": list(columns), "objective": args.objective or "linear"}
        if len(columns) > 2:
            table["key_holder"] = "key-holder"
        rows = args.rows
    if rows is None:
        raise SettingError("rows: missing; --rows N says how many people are in common")
    for key in ("rounds", "local_steps", "hidden", "classes"):
        if getattr(args, key) is not None:
            table[key] = getattr(args, key)
    if args.batch_size is not None:  # blind rounds read no rows, and have no batches
        chosen = table.get("protection", {})
        chosen = chosen if chosen.get("kind") == OwnGradient.kind else {"kind": OwnGradient.kind}
        table["protection"] = {**chosen, "batch_size": args.batch_size}
    shared = RunSettings.of(table)
    return shared, columns, check_integer("rows", rows, least=2), assumed


def _columns(text: str | None) -> dict[str, int]:
    columns: dict[str, int] = {}
    for part in (text or "").split(","):
        if not part:
            continue
        name, equals, number = part.partition("=")
        if not equals or not number.isdigit() or int(number) < 1:
            raise SettingError(f"columns: {part!r} given, NAME=D with D of at least 1 is allowed")
        columns[name.strip()] = int(number)
    return columns


def _variants(shared: RunSettings, schemes: list[str] | None) -> list[tuple[str, RunSettings]]:
    """What could be run instead: schemes, and what training reveals."""
    wanted = schemes or [*filter(protects, SCHEMES)]
    variants: list[tuple[str, RunSettings]] = []
    refused: SettingError | None = None
    for scheme in wanted:
        for title, settings in shared.settings.alternatives(scheme):
            try:
                variants.append((f"{scheme}, {title}", replace(shared, settings=settings)))
            except SettingError as error:
                refused = error
    if refused is not None and not variants:
        raise refused
    return variants


def _show(
    tables: list[tuple[str, list[Estimate]]],
    columns: dict[str, int],
    rows: int,
    network: Network,
    rounds: RoundsModel,
    terminal: Terminal,
) -> None:
    out = terminal.result
    listed = ", ".join(f"{name} {count}" for name, count in columns.items())
    out(f"{rows:,} people in common; columns: {listed}; network {network.name}")
    for title, table in tables:
        fastest = best(table)
        out("")
        out(f"{title}")
        out(HEAD)
        for row in table:
            mark = "*" if row is fastest else " "
            once = seconds(row.setup + row.setup_communication)
            out(
                f"  {row.local_steps:>3}{mark} {row.rounds:>7} | {size(row.setup_bytes):>11} {once:>9} | "
                f"{row.ciphertexts:>20,} {size(row.bytes):>9} {seconds(row.computation):>9} "
                f"{seconds(row.communication):>9} | {size(row.total_bytes):>13} {seconds(row.total):>9}",
                colour="green" if row is fastest else None,
            )
        if table[0].memory:
            out(f"  {size(table[0].memory)} of memory at each of the two parties that hold shares")
        for line in dict.fromkeys(line for row in table for line in row.warnings):
            terminal.warn(line)
        refused = next((row for row in table if row.refused), None)
        if refused is not None:
            terminal.warn(f"from Q = {refused.local_steps} on the ledger refuses: {refused.refused}")
    every = [row for _, table in tables for row in table]
    fastest = best(every)
    out("")
    if fastest is None:
        out('The ledger refuses all of these: take larger batches, or protection "blind".')
        return
    hidden = best(row for row in every if row.reveal == "nothing")
    if hidden is not None and hidden is not fastest:
        out(f"Likely fastest of what reveals nothing: {_choice(hidden)}")
        out(f"Likely fastest where each party may see its own gradients: {_choice(fastest)}")
    else:
        out(f"Likely fastest: {_choice(fastest)}")
    trust = needed_trust(fastest.scheme, fastest.reveal)
    if trust is not None:
        out(f"But {trust}.")
    out(_why(fastest, every, rounds))


def _choice(row: Estimate) -> str:
    return f"{row.scheme}, Q = {row.local_steps}, {seconds(row.total)} in all."


def _why(fastest: Estimate, every: list[Estimate], rounds: RoundsModel) -> str:
    same = [r for r in every if (r.scheme, r.reveal) == (fastest.scheme, fastest.reveal)]
    if fastest.reveal == "nothing" and len(same) == 1:
        return (
            "Why: the work is done once, before the rounds. A round is two small messages whatever Q is, so "
            "local steps cost nothing: keep Q = 20 or more. learning_rate = 'auto'."
        )
    one = next(r for r in same if r.local_steps == 1)
    share = fastest.communication / (fastest.seconds or 1.0)
    if fastest.local_steps == 1 and len(same) > 1:
        reason = "more local steps cost more than the rounds that they save"
    elif one.computation and fastest.seconds < 1.2 * one.seconds:
        reason = "a round costs the same whatever Q is, so local steps save rounds until they save no more"
    else:
        reason = (
            f"a round grows from {seconds(one.seconds)} at Q = 1 to {seconds(fastest.seconds)}, "
            f"against {one.rounds} rounds that become {fastest.rounds}"
        )
    return (
        f"Why: {reason}; {share:.0%} of a round is communication. Rounds by R(Q) = "
        f"max(R(1) / Q^{rounds.alpha:g}, {rounds.floor:g} R(1)) with R(1) = {rounds.at_one:.0f}, "
        "an assumption about the data; learning_rate = 'auto'."
    )


def _facts(
    tables: list[tuple[str, list[Estimate]]],
    columns: dict[str, int],
    rows: int,
    network: Network,
    rounds: RoundsModel,
) -> dict[str, Any]:
    fastest = best(row for _, table in tables for row in table)
    return {
        "rows": rows,
        "columns": columns,
        "network": {"name": network.name, "bandwidth": network.bandwidth, "latency": network.latency},
        "rounds_model": {"at_one": rounds.at_one, "alpha": rounds.alpha, "floor": rounds.floor},
        "estimates": [{"title": title, **row.to_dict()} for title, table in tables for row in table],
        "fastest": None if fastest is None else fastest.to_dict(),
    }
