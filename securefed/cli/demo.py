"""`securefed demo`: every party as a process of its own on this machine, over mutual TLS, on built-in data.

It runs the commands that organisations run, `securefed party` and `securefed predict`, with fresh keys in a
temporary folder. Only this process knows all data. It compares the result with a model of all data.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections import Counter
from pathlib import Path
from shutil import copyfile
from typing import Any

from securefed.audit.page import whole_page
from securefed.audit.recorded import read_run
from securefed.audit.report import audit
from securefed.cli.demo_data import DATA, Baselines, DemoData, demo_data
from securefed.cli.demo_parties import HELPER, DemoFailed, DemoRun
from securefed.cli.entry import Stopped
from securefed.cli.terminal import Terminal, interruptible
from securefed.crypto import DEFAULT_SCHEME, KEY_KINDS, SCHEMES, protects
from securefed.declare import check_integer
from securefed.errors import SettingError
from securefed.files import RunDirectory, make_folder, read_json
from securefed.labels.metrics import get_metric, shown
from securefed.labels.quality import curves
from securefed.protocols.agreement import OBJECTIVES, get_objective
from securefed.report.page import render, seconds, size
from securefed.settings.protection import PROTECTIONS, Blind, Plain, Protection
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
        "--scheme", choices=SCHEMES, help=f"how numbers are encrypted; default {DEFAULT_SCHEME}"
    )
    parser.add_argument(
        "--local-steps", type=int, metavar="Q", help="updates that a party makes between two exchanges"
    )
    parser.add_argument(
        "--objective",
        choices=OBJECTIVES,
        default=next(iter(OBJECTIVES)),
        help="linear: all parties know the new people; transfer: only some people are shared",
    )
    parser.add_argument("--data", choices=DATA, default="breast", help="which data set; default %(default)s")
    parser.add_argument(
        "--protection",
        choices=PROTECTIONS,
        help="blind (the default): training shows the parties nothing; own-gradient: each party sees its own "
        "gradients; plain: no protection",
    )
    # The old name, for one version.
    parser.add_argument("--reveal", choices=("nothing", "own-gradient"), help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, metavar="R", help="rounds of training")
    parser.add_argument(
        "--key-bits", type=int, default=3072, help="size of Paillier keys; default %(default)s"
    )
    parser.add_argument(
        "--evaluate-every",
        type=int,
        default=0,
        metavar="N",
        help="let the label party see scores of held-out people every N rounds; default 0: never",
    )
    parser.add_argument("--folder", type=Path, help="where to put all files; default a temporary folder")
    parser.add_argument(
        "--seed", type=int, default=0, help="choose other people for training; default %(default)s"
    )


def run(args: argparse.Namespace, terminal: Terminal) -> int:
    check_integer("parties", args.parties, least=2)
    check_integer("seed", args.seed, least=0)
    if args.reveal is not None:
        terminal.warn("--reveal is called --protection now, and 'nothing' is 'blind'")
    data = demo_data(args.data, args.parties, args.objective, args.seed)
    table = run_table(args, data.parties)
    run = RunSettings.of(table)  # what cannot be run is refused before anything is made
    baselines = data.baselines(args.objective)
    folder = _folder(args.folder)
    terminal.say(f"securefed demo: {data.title}", colour="bold")
    for line in _announcement(run, data, args.key_bits):
        terminal.say(f"  {line}")
    demo = DemoRun(folder, data, table, args.key_bits, terminal)
    with interruptible():
        try:
            with demo:
                demo.prepare()
                demo.train()
                demo.predict()
        except KeyboardInterrupt:
            raise Stopped(f"stopped; what was made so far is in {folder}") from None
        except DemoFailed as error:
            raise DemoFailed(f"{error}; logs are in {folder}") from None
    terminal.facts = facts = _facts(demo, data, baselines)
    _add_joined(demo, facts)
    _table(facts, terminal)
    return 0


def run_table(args: argparse.Namespace, parties: list[str]) -> dict[str, Any]:
    """Return [run] of a demonstration that is short and good."""
    for name in ("local_steps", "rounds"):
        if getattr(args, name) is not None:
            check_integer(name, getattr(args, name), least=1)
    check_integer("key_bits", args.key_bits, least=2048, most=8192)
    transfer, protection = args.objective == "transfer", _protection(args)
    if transfer and args.parties != 2:
        raise SettingError(f"parties: {args.parties} given, the transfer objective takes exactly 2")
    steps, rounds = (5, 12) if transfer else (20, 8 if SCHEMES[protection.scheme].costly else 24)
    values: dict[str, Any] = {} if transfer else {"l2": 0.01}
    if transfer and protection.kind == Blind.kind:
        rounds = 3
    elif transfer:
        protection = protection.as_kind(type(protection), activation="tanh")
        values = {"hidden": 8, "gamma": 0.05 / 8, "learning_rate": 0.03}
    settings = {key: each for key, each in protection.to_table(args.objective).items() if each is not None}
    return {
        "name": "demo",
        "parties": parties,
        **({"key_holder": HELPER} if len(parties) > 2 else {}),
        "objective": args.objective,
        "seed": args.seed,
        "evaluate_every": args.evaluate_every,
        **values,
        "local_steps": args.local_steps or steps,
        "rounds": args.rounds or rounds,
        "protection": {"kind": protection.kind, **settings},
    }


def _protection(args: argparse.Namespace) -> Protection:
    kind = args.protection or {None: "blind", "nothing": "blind"}.get(args.reveal, args.reveal)
    if args.scheme is not None and not protects(args.scheme):
        kind = Plain.kind
    options = {"scheme": args.scheme, "key_bits": args.key_bits if kind == Blind.kind else None}
    return PROTECTIONS[kind](**{name: value for name, value in options.items() if value is not None})


def _announcement(run: RunSettings, data: DemoData, key_bits: int) -> list[str]:
    """Say what is about to happen."""
    columns = ", ".join(f"{name} has {len(own)} columns" for name, own in data.columns.items())
    keys = f" with {key_bits}-bit keys" if KEY_KINDS[SCHEMES[run.scheme].opens].sized else ""
    lines = [f"{columns} and the labels"]
    if run.key_holder is not None:
        lines.append(f"{HELPER} has no data; it {'helps' if run.blind else 'holds the key'}")
    if not protects(run.scheme):
        lines.append(f"NO encryption ({run.scheme}): everybody sees everything")
    elif run.blind:
        lines.append(f"Training is encrypted ({run.scheme}{keys}). No party sees another party's data,")
        lines.append(f"or any model parameter. Only {data.label_party} sees predictions.")
    else:
        lines.append(f"Training is encrypted ({run.scheme}{keys}). Each party sees its own gradients.")
        warning = get_objective(run.objective).given_away
        lines += [warning] if warning else []
    return lines


def _folder(folder: Path | None) -> Path:
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="securefed-demo-"))
    if folder.exists() and any(folder.iterdir()):
        raise SettingError(f"folder: {folder} is not empty")
    make_folder(folder, private=True)
    return folder


def _facts(demo: DemoRun, data: DemoData, baselines: Baselines) -> dict[str, Any]:
    """Everything that the table shows."""
    files = {name: RunDirectory(demo.run_folder(name), name).read() for name in demo.everybody}
    results = {name: result for name, (result, _) in files.items()}
    with (demo.run_folder(data.label_party) / "scores.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    scores = {row["id"]: float(row["score"]) for row in rows}
    likely = {row["id"]: float(row["probability"]) for row in rows if row.get("probability")}
    predicted = read_json(demo.folder / data.label_party / "predict.json", "prediction")
    last = results[data.label_party]
    slowest = max((timing for _, timing in files.values()), key=lambda timing: timing["total_seconds"])
    kinds: Counter[str] = Counter()
    for result in results.values():
        kinds.update({kind: amount["bytes"] for kind, amount in result["sent"].items()})
    saw = {name: result["saw"] for name, result in results.items()}
    saw[data.label_party] = f"{len(scores)} scores of new people; {saw[data.label_party]}"
    return {
        "data": data.title,
        "settings": last["settings"],
        "protected": last["protected"],
        "auc": data.auc(scores),
        "auc_interval": list(get_metric("AUC").between(data.answers(scores))),
        "curves": curves(data.answers(scores, likely)),
        "psi": predicted.get("psi"),
        "auc_central": baselines.central,
        "auc_alone": baselines.alone,
        "holdout": last["holdout"],
        "label_party": data.label_party,
        "new_people": len(scores),
        "rows": last["rows"],
        "rounds": last["rounds"],
        "computation_seconds": slowest["computation_seconds"],
        "communication_seconds": slowest["communication_seconds"],
        "total_seconds": slowest["total_seconds"],
        "wall_seconds": demo.wall,
        "bytes": kinds.total(),
        "bytes_by_kind": kinds,
        "saw": saw,
        "audit": _audit(demo, data.label_party),
        "reports": {name: str(demo.run_folder(name) / "report.html") for name in demo.everybody},
        "folder": str(demo.folder),
    }


def _audit(demo: DemoRun, label_party: str) -> dict[str, Any]:
    """All transcripts in one place, as a reviewer would have them."""
    together = demo.folder / "audit"
    make_folder(together)
    for name in demo.everybody:
        transcript = f"transcript-{name}.jsonl"
        copyfile(demo.run_folder(name) / transcript, together / transcript)
    copyfile(demo.run_folder(label_party) / "result.json", together / "result.json")
    report = audit(*read_run(together))
    page = demo.folder / "audit.html"
    page.write_text(whole_page(report), encoding="utf-8")
    facts = {"verdict": report.verdict, "claims": len(report.claims)}
    return {**facts, "folder": str(together), "page": str(page)}


def _add_joined(demo: DemoRun, facts: dict[str, Any]) -> None:
    """To the label party's report, what all data in one place would give: only a demonstration knows."""
    folder = demo.run_folder(facts["label_party"])
    directory = RunDirectory(folder, facts["label_party"])
    result, timing = directory.read()
    result["new_people"] = {
        "metric": "AUC",
        "rows": facts["new_people"],
        "value": facts["auc"],
        "interval": facts["auc_interval"],
        "curves": facts["curves"],
        "psi": facts["psi"],
        "central": facts["auc_central"],
        "alone": facts["auc_alone"],
    }
    directory.write(result, timing, render(result, timing, audit(*read_run(folder)).to_html()))


def _table(facts: dict[str, Any], terminal: Terminal) -> None:
    out, between = terminal.result, facts["auc_interval"]
    label_party = facts["label_party"]
    out("")
    out(f"AUC on {facts['new_people']} new people (1 is perfect, 0.5 is guessing)")
    guard = "encrypted" if facts["protected"] else "NOT PROTECTED (plain)"
    out(f"  {f'together, {guard}':<38} {shown(facts['auc'], between)}", colour="green")
    rows = [("all data in one place, no protection", facts["auc_central"])]
    if facts["auc_alone"] is not None:
        rows.append((f"{label_party} alone", facts["auc_alone"]))
    for name, value in rows:
        out(f"  {name:<38} {shown(value, between, between=False)}")
    if facts["auc_alone"] is not None and facts["auc"] < facts["auc_alone"]:
        out(f"  WORSE THAN {label_party.upper()} ALONE on new people", colour="red")
    holdout = facts["holdout"]
    if holdout is not None:
        measured = shown(holdout["value"], holdout["interval"])
        out(f"  {'together, on held-out people':<38} {measured} on {holdout['rows']} people")
        if holdout["warning"]:
            out(f"  {holdout['warning']}", colour="red")
    out("")
    out("What each party saw")
    width = max(len(name) for name in facts["saw"])
    for name, line in facts["saw"].items():
        out(f"  {name:<{width}}  {line}")
    out("")
    out("What it cost")
    chosen = facts["settings"]
    out(
        f"  time    {seconds(facts['total_seconds'])} of training ({seconds(facts['computation_seconds'])} "
        f"computation, {seconds(facts['communication_seconds'])} communication); "
        f"{seconds(facts['wall_seconds'])} with keys, start and prediction"
    )
    largest = facts["bytes_by_kind"].most_common(3)
    words = ", ".join(f"{kind} {size(amount)}" for kind, amount in largest)
    out(f"  sent    {size(facts['bytes'])} by all parties ({words})")
    out(f"  rounds  {facts['rounds']} of {chosen['algorithm']}, {chosen['local_steps']} local steps each")
    checked = facts["audit"]
    out("")
    out("Look at it")
    out(f"  audit   {checked['verdict']}")
    out(f"          {checked['page']}")
    out(f"  report  {facts['reports'][label_party]}")
