"""What a system that was run costs, on which networks: rows of `python -m bench peers --real`.

Networks are modelled alike for all: half of the processor seconds (two parties with a core each, always
busy: the least that it can take), half of the bytes over the bandwidth (both directions carry at once), and
one latency for each message of a party. A protocol may have several messages under way at a time: "floor"
leaves latency out altogether for the peer, and counts it in full for us.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

QUANTITIES = ("cpu", "bytes", "messages")
OURS = "securefed, blind RLWE"
SLOW = "10 Mbit/s, 50 ms"
NETWORKS = {"LAN, 1 ms": (1000.0, 0.001), "100 Mbit/s, 50 ms": (100.0, 0.05), SLOW: (10.0, 0.05)}
"""Mbit/s and seconds of latency."""


@dataclass(frozen=True)
class Cost:
    """Of both parties together; `wall` is what it took here, at the machine's load."""

    cpu: float = 0.0
    wall: float = 0.0
    bytes: float = 0.0
    messages: float = 0.0

    def plus(self, other: Cost, times: float = 1.0) -> Cost:
        return Cost(
            self.cpu + times * other.cpu,
            self.wall + times * other.wall,
            self.bytes + times * other.bytes,
            self.messages + times * other.messages,
        )

    def over(self, count: int) -> Cost:
        return Cost().plus(self, 1.0 / count)

    def seconds(self, network: str, *, floor: bool = False) -> float:
        megabits, latency = NETWORKS[network]
        waits = 0.0 if floor else self.messages / 2 * latency
        return self.cpu / 2 + self.bytes / 2 * 8 / (megabits * 1e6) + waits


@dataclass(frozen=True)
class RealRow:
    """One system; numbers are 0 where a note says why there are none."""

    system: str
    rows: int
    local_steps: int = 1
    once: Cost = Cost()
    """A run of one round, with all that is done once: keys, base transfers, encodings."""
    round: Cost = Cost()
    """Each further round: an exchange and `local_steps` steps."""
    steps: int = 0
    """After so many steps in all the model has this AUC and log loss, both on the training rows."""
    auc: float = 0.0
    loss: float = 0.0
    reveals: str = ""
    note: str = ""
    recorded: str = ""
    """When it was measured, where it could not be run now."""

    @classmethod
    def of(
        cls, system: str, rows: int, once: Cost, whole: Cost, rounds: int, local_steps: int = 1
    ) -> RealRow:
        """From a run of one round and one of `rounds`."""
        each = whole.plus(once, -1.0).over(rounds - 1)
        each = replace(each, cpu=max(each.cpu, 0.0), wall=max(each.wall, 0.0))
        return cls(system, rows, local_steps, once, each, rounds * local_steps)

    @property
    def step(self) -> Cost:
        return self.round.over(self.local_steps)

    def total(self, rounds: int) -> Cost:
        return self.once.plus(self.round, rounds - 1)


HEADING = (
    f"{'system':<30}{'rows':>6}{'cpu s':>9}{'wall s':>9}{'kB':>9}{'msgs':>8}{'once cpu':>10}{'once kB':>9}"
    f"{'steps':>7}{'AUC':>8}{'loss':>8}"
)


def shown(row: RealRow) -> RealRow:
    """The row, printed."""
    if row.note:
        print(f"{row.system:<30}{row.rows:>6,}  {row.note}", flush=True)
        return row
    step, told = row.step, f"  recorded {row.recorded}" if row.recorded else ""
    print(
        f"{row.system:<30}{row.rows:>6,}{step.cpu:>9.3f}{step.wall:>9.3f}{step.bytes / 1e3:>9,.0f}"
        f"{step.messages:>8.1f}{row.once.cpu:>10.2f}{row.once.bytes / 1e3:>9,.0f}"
        f"{row.steps:>7}{row.auc:>8.4f}{row.loss:>8.4f}{told}",
        flush=True,
    )
    return row


def show_networks(rows: list[RealRow]) -> None:
    print("\nmodelled seconds a step, and without latency")
    print(f"{'system':<30}{'rows':>6}" + "".join(f"{name:>24}" for name in NETWORKS))
    for row in rows:
        if not row.note:
            pairs = ((row.step.seconds(n), row.step.seconds(n, floor=True)) for n in NETWORKS)
            cells = "".join(f"{whole:>16.3f}{floor:>8.3f}" for whole, floor in pairs)
            print(f"{row.system:<30}{row.rows:>6,}{cells}")


def show_faster(rows: list[RealRow]) -> None:
    """Where a peer's step takes less than a joint step of ours, or than a local one."""
    print()
    run = [row for row in rows if not row.note]
    for mine in (row for row in run if row.system.startswith(OURS)):
        for other in (row for row in run if row.rows == mine.rows and not row.system.startswith(OURS)):
            pairs = {name: (getattr(other.step, name), getattr(mine.step, name)) for name in QUANTITIES}
            less = ", ".join(name for name, (theirs, own) in pairs.items() if theirs < own)
            if less:
                print(f"{other.system} takes less {less} a step than {mine.system}, {mine.rows:,} rows")
