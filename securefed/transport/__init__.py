"""Messages between parties: the message, a party's link, the clock, and the in-process transport."""

from __future__ import annotations

from securefed.transport.link import Link, LocalRun, Program, run_local
from securefed.transport.message import (
    NETWORKS,
    Deadlock,
    IllegalMessage,
    Message,
    Network,
    OutOfOrder,
    Path,
    TransportError,
    WrongKind,
    WrongRound,
    WrongRun,
    WrongSender,
    get_network,
)
from securefed.transport.transcript import Entry, Transcript

__all__ = [
    "NETWORKS",
    "Deadlock",
    "Entry",
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
