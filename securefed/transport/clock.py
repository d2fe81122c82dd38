"""A clock per party, and the network between them.

A party's clock is a path: the seconds of computation and of communication on the chain of events up to now.
Work adds computation. A message leaves with its sender's path and arrives with latency and transfer added as
communication. The receiver's path becomes the later of its own and the arrival's. The path that ends last is
the critical path of the run. Every second on it is one or the other: computation + communication = total,
exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

from securefed.checks import check_number
from securefed.errors import SettingError

__all__ = ["NETWORKS", "Event", "Network", "Path", "get_network"]


@dataclass(frozen=True)
class Path:
    """Seconds of computation and of communication up to an event."""

    computation: float = 0.0
    communication: float = 0.0

    @property
    def total(self) -> float:
        return self.computation + self.communication

    def work(self, seconds: float) -> Path:
        return Path(self.computation + seconds, self.communication)

    def travel(self, seconds: float) -> Path:
        return Path(self.computation, self.communication + seconds)

    def later(self, other: Path) -> Path:
        return other if other.total > self.total else self

    def since(self, start: Path) -> Path:
        return Path(self.computation - start.computation, self.communication - start.communication)


@dataclass(frozen=True)
class Event:
    """An event on a party's clock: `seconds` of work, and what ended them.

    That is a message "sent" or "received", or a "mark" of its program. All parties' events together determine
    the run's time on any network.
    """

    seconds: float
    what: str
    name: str
    """The kind of the message, or the name of the mark."""
    round: int = 0
    step: int = 0
    peer: str = ""
    size: int = 0


@dataclass(frozen=True)
class Network:
    """A link between each two parties: `bandwidth` in bit/s, `latency` in seconds one way."""

    name: str
    bandwidth: float
    latency: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "bandwidth", check_number("bandwidth", self.bandwidth, above=0.0))
        object.__setattr__(self, "latency", check_number("latency", self.latency, least=0.0))

    def transfer(self, size: int) -> float:
        """Return the seconds that `size` bytes occupy the link."""
        return 8.0 * size / self.bandwidth


# `paper`: the paper gives no figures for its network. 10 Mbit/s is what its Table 2 implies: about 0.67
# minutes a round for FATE's FTL layout at its size. `loopback` stands for memory speed in a simulation.
NETWORKS = {
    "loopback": Network("loopback", 16e9, 20e-6),
    "lan": Network("lan", 1e9, 1e-3),
    "wan": Network("wan", 100e6, 20e-3),
    "paper": Network("paper", 10e6, 1e-3),
}


def get_network(value: str | Network) -> Network:
    """Return a profile by its name, or from "BANDWIDTH,LATENCY" in bit/s and seconds."""
    if isinstance(value, Network):
        return value
    if not isinstance(value, str):
        raise SettingError(f"network: {value!r} given, a name or a Network(...) is allowed")
    if value in NETWORKS:
        return NETWORKS[value]
    parts = value.split(",")
    try:
        bandwidth, latency = (float(part) for part in parts)
    except ValueError:
        names = ", ".join(NETWORKS)
        raise SettingError(
            f"network: {value!r} given, one of {names} or BANDWIDTH,LATENCY (bit/s, seconds) is allowed"
        ) from None
    return Network(value, bandwidth, latency)
