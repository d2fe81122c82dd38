"""Messages between parties: the message, a party's link, the clock, and the in-process transport."""

from __future__ import annotations

from securefed.transport.clock import NETWORKS, Event, Network, Path, get_network
from securefed.transport.link import Link
from securefed.transport.local import LocalRun, Program, run_local
from securefed.transport.message import (
    Deadlock,
    IllegalMessage,
    Message,
    OutOfOrder,
    TransportError,
    WrongKind,
    WrongRound,
    WrongRun,
    WrongSender,
)
from securefed.transport.transcript import Entry, Transcript

__all__ = [
    "NETWORKS",
    "Deadlock",
    "Entry",
    "Event",
    "IllegalMessage",
    "Link",
    "LocalRun",
    "Message",
    "Network",
    "OutOfOrder",
    "Path",
    "Program",
    "Transcript",
    "TransportError",
    "WrongKind",
    "WrongRound",
    "WrongRun",
    "WrongSender",
    "get_network",
    "run_local",
]
