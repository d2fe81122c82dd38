"""Table 2 as text: the paper's layout with the paper's numbers beside ours, the bars, and notes: where local
steps do not pay, which Q would, and what the ledger says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.planner import Guess
from bench.table2_rows import Bar, Best, Cells, Row
from securefed.transport.message import Network

HEAD = (
    "AUC",
    "algorithm",
    "Q",
    "R",
    "comp.",
    "comm.",
    "total",
    "against FedSGD",
    "R paper",
    "comp. paper",
    "comm. paper",
    "total paper",
    "R plain",
    "MB exchanged",
    "MB opened",
    "ciphertexts",
    "messages",
    "AUC here",
    "held-out AUC",
    "label inference AUC",
)

REVEALED = {"own-gradient": "", "nothing": "nothing revealed, "}


def markdown(
    rows: Sequence[Row],
    networks: Sequence[Network],
    bars: Sequence[Bar],
    notes: Sequence[str],
    ceiling: float | None = None,
) -> str:
    """A table for each network, in minutes; bars and notes below. `ceiling`: what a strong model gets in the
    clear, told beside targets that it does not reach either.
    """
    lines: list[str] = []
    for network in networks:
        own = [row for row in rows if row.network == network.name]
        counted = "included" if own[0].reveal == "nothing" else "once"
        firsts = {row.target_auc: row.total_min for row in own if row.Q == 1}
        lines += [
            f"**{own[0].scheme}, {REVEALED[own[0].reveal]}network `{network.name}`**"
            f" ({network.bandwidth / 1e6:g} Mbit/s, {network.latency * 1e3:g} ms), minutes;"
            f" setup {own[0].setup_min:.3f} min, {counted}; {_seeds(own[0].seeds)}",
            "",
            *_grid([_fields(row, firsts.get(row.target_auc), ceiling) for row in own]),
            "",
        ]
    lines += [f"- {bar.verdict}: {bar.name}: {bar.detail}" for bar in bars]
    lines += [f"- {note}" for note in notes]
    return "\n".join(lines) + "\n"


def _grid(fields: Sequence[Sequence[str]]) -> list[str]:
    """Without columns that have nothing to say: the paper's, where it has no such table."""
    used = [place for place in range(len(HEAD)) if any(line[place] for line in fields)]
    rules = ["---" if HEAD[place] == "algorithm" else "---:" for place in used]
    lines = ([line[place] for place in used] for line in (HEAD, *fields))
    head, *rest = ("| " + " | ".join(line) + " |" for line in lines)
    return [head, "|" + "|".join(rules) + "|", *rest]


def _seeds(seeds: Sequence[int]) -> str:
    listed = ", ".join(map(str, seeds))
    return f"seed {listed}" if len(seeds) == 1 else f"medians over seeds {listed}"


def _fields(row: Row, first: float | None, ceiling: float | None) -> list[str]:
    beyond = ceiling is not None and row.target_auc > ceiling
    rounds = "no model" if beyond else "not reached"
    return [
        f"{100 * row.target_auc:g}%",
        row.algorithm,
        str(row.Q),
        rounds if row.R is None else f"{row.R:g}",
        *(_minutes(value) for value in (row.comp_min, row.comm_min, row.total_min)),
        _change(row, first),
        "" if row.R_paper is None else str(row.R_paper),
        *(
            "" if value is None else f"{value:.2f}"
            for value in (row.comp_paper, row.comm_paper, row.total_paper)
        ),
        _plain(row),
        *("" if value is None else f"{value / 1e6:.2f}" for value in (row.bytes_exchange, row.bytes_open)),
        *("" if value is None else f"{value:,}" for value in (row.ciphertexts, row.messages)),
        f"{row.auc:.3f}" + (f" (boosting {ceiling:.3f})" if beyond else ""),
        "" if row.held_out_auc is None else f"{row.held_out_auc:.3f}",
        "" if row.label_inference_auc is None else f"{row.label_inference_auc:.2f}",
    ]


def _minutes(value: float | None) -> str:
    return "" if value is None else f"{value:.{3 if value >= 0.1 else 4}f}"


def _change(row: Row, first: float | None) -> str:
    """Of the total; more than FedSGD's is said in a word besides."""
    if row.Q == 1 or row.total_min is None or not first:
        return ""
    part = row.total_min / first - 1
    return f"{100 * part:+.0f}%" + (" (longer)" if part >= 0 else "")


def _plain(row: Row) -> str:
    if row.R_plain is None:
        return ""
    low, high = row.R_plain_interval
    ends = f"{low:g} to {high:g}" if low is not None and high is not None else f"{low:g} and more"
    return f"{row.R_plain:g} ({ends})" if low != high else f"{row.R_plain:g}"


def notes(
    cells: Cells,
    networks: Sequence[Network],
    targets: Sequence[float],
    best: Mapping[str, Mapping[float, Best | None]],
    guesses: Mapping[str, Mapping[float, Guess]],
) -> list[str]:
    """Where more local steps do not pay, which Q would; and what the ledger says."""
    lines = []
    if (count := len(cells.plain_seeds)) > 1:
        interval = "their range" if count < 9 else "where the median of all seeds lies, 95%"
        lines.append(f"R plain: the median over {count} seeds in plain ({interval})")
    for network in networks:
        for target in targets:
            where = f"{network.name}, {100 * target:g}%"
            lines += [f"{where}: {line}" for line in _payoff(cells, network, target)]
            found, guess = best[network.name][target], guesses.get(network.name, {}).get(target)
            lines += [f"{where}: {line}" for line in _choice(cells, found, guess, target)]
    return lines + _ledger(cells)


def _ledger(cells: Cells) -> list[str]:
    lines = []
    for entry in cells.ledger():
        count = (
            f"at Q = {entry['Q']} {entry['party']} opens {entry['equations']:,} sums over"
            f" {entry['unknowns']:,} unknowns ({entry['block']})"
        )
        if entry["verdict"] == "determined":
            lines.append(
                f"ledger, determined: {count} between two exchanges; it runs because allow_determined is set"
            )
        elif entry["verdict"] == "possibly determined":
            lines.append(f"ledger, possibly determined: {count} in the whole run")
    if not lines and cells.scheme != "plain":
        lines.append("ledger: nothing is determined")
    return lines


def _payoff(cells: Cells, network: Network, target: float) -> list[str]:
    rows = cells.rows(network, [target])
    first = next((row.total_min for row in rows if row.Q == 1), None)
    if first is None:
        return []
    longer = [row for row in rows if row.Q > 1 and row.total_min is not None and row.total_min >= first]
    if not longer:
        return []
    listed = ", ".join(f"Q = {row.Q} ({row.total_min:.3f} min)" for row in longer)
    return [
        f"FedBCD-p does not lower the total at {listed}; FedSGD takes {first:.3f}: local steps cost more than"
        " the exchanges that they save"
    ]


def _choice(cells: Cells, best: Best | None, guess: Guess | None, target: float) -> list[str]:
    lines = []
    if best is not None:
        seeds = cells.grid_seeds
        median = "the rounds" if len(seeds) == 1 else "the median rounds"
        lines.append(
            f"Q = {best.Q} has the shortest total of Q = {', '.join(map(str, best.all_min))}"
            f" ({best.total_min:.3f} min, from {median} in plain of {_listed(seeds)} and the measured costs)"
        )
    if guess is not None:
        rounds = cells.plain_median(1, target, cells.grid_seeds)
        lines.append(
            f"the planner, told FedSGD's {rounds:g} rounds and no more, would choose Q = {guess.Q}"
            f" ({guess.minutes[guess.Q]:.3f} min by its estimate)"
        )
    return lines


def _listed(seeds: Sequence[int]) -> str:
    if len(seeds) > 5:
        return f"{len(seeds)} seeds"
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}"
