"""`securefed demo`: every party as a process of its own on this machine, over mutual TLS, on built-in data.

It runs the commands that organisations run, `securefed party` and `securefed predict`, with fresh keys in a
temporary folder. Only this process knows all data. It compares the result with a model of all data.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path
from shutil import copyfile
from typing import Any

from securefed.audit.recorded import read_run
from securefed.audit.report import audit, whole_page
from securefed.cli.demo_parties import HELPER, LABEL_PARTY, TITLE, DemoFailed, DemoRun, demo_data
from securefed.cli.entry import Stopped
from securefed.cli.terminal import Terminal, interruptible
from securefed.crypto import DEFAULT_SCHEME, SCHEMES, protects
from securefed.declare import check_integer
from securefed.errors import SettingError
from securefed.files import RunDirectory, make_folder, read_json
from securefed.labels.metrics import shown
from securefed.protocols.agreement import OBJECTIVES
from securefed.report.page import seconds, size
from securefed.settings.protection import PROTECTIONS, Plain, Protection
from securefed.settings.run import RunSettings

DESCRIPTION = """\
See it work, with nothing to configure. Every party is a process of its own on this machine. The parties talk
over mutual TLS, with fresh keys in a temporary folder. With more than two parties a helper without data takes
part. They find the common people privately, train under encryption and predict for new people. At the end the
result is compared with a model that sees all data."""

EPILOGUE = """\
examples:
  securefed demo                                   two parties; no party sees parameters, not even its own
  securefed demo --parties 4                       four parties and a helper
  securefed demo --protection own-gradient         the paper's protocol: each party sees its own gradients
  securefed demo --objective transfer              two parties that share only some people"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--parties", type=int, default=2, metavar="K", help="how many parties have data; default %(default)s"
    )
    parser.add_argument(
        "--scheme",
        choices=tuple(filter(protects, SCHEMES)),
        default=DEFAULT_SCHEME,
        help="how numbers are encrypted; default %(default)s",
    )
    parser.add_argument(
        "--objective",
        choices=OBJECTIVES,
        default=next(iter(OBJECTIVES)),
        help="linear: all parties know the new people; transfer: only some people are shared",
    )
    parser.add_argument(
        "--protection",
        choices=PROTECTIONS,
        help="blind (the default): training shows the parties nothing; own-gradient: each party sees its own "
        "gradients; plain: no protection",
    )
    # The old name, for one version.
    parser.add_argument("--reveal", choices=("nothing", "own-gradient"), help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, metavar="R", help="rounds of training")
    parser.add_argument("--folder", type=Path, help="where to put all files; default a temporary folder")
    parser.add_argument(
        "--seed", type=int, default=0, help="choose other people for training; default %(default)s"
    )


def run(args: argparse.Namespace, terminal: Terminal) -> int:
    check_integer("parties", args.parties, least=2)
    check_integer("seed", args.seed, least=0)
    if args.reveal is not None:
        terminal.warn("--reveal is called --protection now, and 'nothing' is 'blind'")
    data = demo_data(args.parties, args.seed)
    table = run_table(args, list(data.columns))
    settings = RunSettings.of(table)  # what cannot be run is refused before anything is made
    folder = _folder(args.folder)
    terminal.say(f"securefed demo: {TITLE}", colour="bold")
    columns = ", ".join(f"{name} has {len(own)} columns" for name, own in data.columns.items())
    terminal.say(f"  {columns} and the labels")
    if settings.key_holder is not None:
        terminal.say(f"  {HELPER} has no data; it {'helps' if settings.settings.blind else 'holds the key'}")
    options = ["--log-format", args.log_format, *["-q"] * args.quiet, *["-v"] * args.verbose]
    demo = DemoRun(folder, data, table, terminal, options)
    with interruptible():
        try:
            with demo:
                demo.prepare()
                terminal.say(
                    f"starting {len(demo.everybody)} processes, joined by mutual TLS 1.3; what follows is "
                    f"said by {LABEL_PARTY}"
                )
                demo.together("party")
                terminal.say(f"predicting for {len(data.new)} new people")
                demo.together("predict")
        except KeyboardInterrupt:
            raise Stopped(f"stopped; what was made so far is in {folder}") from None
        except DemoFailed as error:
            raise DemoFailed(f"{error}; logs are in {folder}") from None
    terminal.facts = facts = _facts(demo, args.objective)
    _table(facts, terminal)
    return 0


def run_table(args: argparse.Namespace, parties: list[str]) -> dict[str, Any]:
    """Return [run] of a demonstration that is short and good."""
    if args.rounds is not None:
        check_integer("rounds", args.rounds, least=1)
    if args.objective == "transfer" and args.parties != 2:
        raise SettingError(f"parties: {args.parties} given, the transfer objective takes exactly 2")
    protection = _protection(args)
    values: dict[str, Any] = {"local_steps": 20, "rounds": 8 if SCHEMES[args.scheme].costly else 24}
    if args.objective == "linear":
        values["l2"] = 0.01
    elif protection.kind == "blind":
        values = {"local_steps": 5, "rounds": 3}
    else:
        protection = protection.as_kind(type(protection), activation="tanh")
        values = {"local_steps": 5, "rounds": 12, "hidden": 8, "gamma": 0.05 / 8, "learning_rate": 0.03}
    settings = {key: each for key, each in protection.to_table(args.objective).items() if each is not None}
    return {
        "name": "demo",
        "parties": parties,
        **({"key_holder": HELPER} if len(parties) > 2 else {}),
        "objective": args.objective,
        "seed": args.seed,
        **values,
        **({} if args.rounds is None else {"rounds": args.rounds}),
        "protection": {"kind": protection.kind, **settings},
    }


def _protection(args: argparse.Namespace) -> Protection:
    kind = args.protection or {None: "blind", "nothing": "blind"}.get(args.reveal, args.reveal)
    return Plain() if kind == Plain.kind else PROTECTIONS[kind](scheme=args.scheme)


def _folder(folder: Path | None) -> Path:
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="securefed-demo-"))
    if folder.exists() and any(folder.iterdir()):
        raise SettingError(f"folder: {folder} is not empty")
    make_folder(folder, private=True)
    return folder


def _facts(demo: DemoRun, objective: str) -> dict[str, Any]:
    data = demo.data
    files = {name: RunDirectory(demo.run_folder(name), name).read() for name in demo.everybody}
    results = {name: result for name, (result, _) in files.items()}
    last = results[LABEL_PARTY]
    predicted = read_json(demo.folder / LABEL_PARTY / "predict.json", "prediction")
    slowest = max((timing for _, timing in files.values()), key=lambda timing: timing["total_seconds"])
    kinds: Counter[str] = Counter()
    for result in results.values():
        kinds.update({kind: amount["bytes"] for kind, amount in result["sent"].items()})
    saw = {name: result["saw"] for name, result in results.items()}
    saw[LABEL_PARTY] = f"{predicted['rows']} scores of new people; {saw[LABEL_PARTY]}"
    central, alone = data.baselines(objective)
    return {
        "data": TITLE,
        "settings": last["settings"],
        "protected": last["protected"],
        "auc": predicted["quality"]["value"],
        "auc_interval": predicted["quality"]["interval"],
        "auc_central": central,
        "auc_alone": alone,
        "holdout": last["holdout"],
        "label_party": LABEL_PARTY,
        "new_people": predicted["rows"],
        "rows": last["rows"],
        "rounds": last["rounds"],
        **{name: slowest[name] for name in ("computation_seconds", "communication_seconds", "total_seconds")},
        "wall_seconds": demo.wall,
        "bytes": kinds.total(),
        "bytes_by_kind": kinds,
        "saw": saw,
        "audit": _audit(demo),
        "reports": {name: str(demo.run_folder(name) / "report.html") for name in demo.everybody},
        "folder": str(demo.folder),
    }


def _audit(demo: DemoRun) -> dict[str, Any]:
    """Check all transcripts in one place, as a reviewer would have them."""
    together, page = demo.folder / "audit", demo.folder / "audit.html"
    make_folder(together)
    for name in demo.everybody:
        transcript = f"transcript-{name}.jsonl"
        copyfile(demo.run_folder(name) / transcript, together / transcript)
    copyfile(demo.run_folder(LABEL_PARTY) / "result.json", together / "result.json")
    report = audit(*read_run(together))
    page.write_text(whole_page(report), encoding="utf-8")
    return {"verdict": report.verdict, "folder": str(together), "page": str(page)}


def _table(facts: dict[str, Any], terminal: Terminal) -> None:
    out, between = terminal.result, facts["auc_interval"]
    guard = "encrypted" if facts["protected"] else "NOT PROTECTED (plain)"
    out(f"\nAUC on {facts['new_people']} new people (1 is perfect, 0.5 is guessing)")
    out(f"  {f'together, {guard}':<38} {shown(facts['auc'], between)}", colour="green")
    others = {"all data in one place, no protection": "auc_central", f"{LABEL_PARTY} alone": "auc_alone"}
    for name, key in others.items():
        if facts[key] is not None:
            out(f"  {name:<38} {shown(facts[key], between, between=False)}")
    if facts["auc"] < (facts["auc_alone"] or 0.0):
        out(f"  WORSE THAN {LABEL_PARTY.upper()} ALONE on new people", colour="red")
    if (holdout := facts["holdout"]) is not None:
        measured = shown(holdout["value"], holdout["interval"])
        out(f"  {'together, on held-out people':<38} {measured} on {holdout['rows']} people")
        if holdout["warning"]:
            out(f"  {holdout['warning']}", colour="red")
    out("\nWhat each party saw")
    width = max(len(name) for name in facts["saw"])
    for name, line in facts["saw"].items():
        out(f"  {name:<{width}}  {line}")
    largest = ", ".join(f"{kind} {size(amount)}" for kind, amount in facts["bytes_by_kind"].most_common(3))
    chosen = facts["settings"]
    out("\nWhat it cost")
    total, computation, communication, wall = (
        seconds(facts[f"{name}_seconds"]) for name in ("total", "computation", "communication", "wall")
    )
    out(f"  time    {total} of training ({computation} computation, {communication} communication);")
    out(f"          {wall} with keys, start and prediction")
    out(f"  sent    {size(facts['bytes'])} by all parties ({largest})")
    out(f"  rounds  {facts['rounds']} of {chosen['algorithm']}, {chosen['local_steps']} local steps each")
    out("\nLook at it")
    out(f"  audit   {facts['audit']['verdict']}")
    out(f"          {facts['audit']['page']}")
    out(f"  report  {facts['reports'][LABEL_PARTY]}")
