"""What a long run keeps in memory: its transcript and its events, which grow by the message."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from securefed.transport.link import Link
from tests.transport.network import Town, result

MESSAGES = 400
MOST = 40
"""Bytes a message that may be left over: counters and caches that have not settled, and no message's own."""


def kept(link: Link) -> int:
    """Bytes in use, without what is meant to grow."""
    link.transcript.entries.clear()
    link.events.clear()
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.slow
def test_nothing_of_a_message_is_left_but_its_line_in_the_transcript() -> None:
    sizes: dict[str, list[int]] = {"with": [], "without": []}

    async def asks(link: Link) -> None:
        for number in range(3 * MESSAGES):
            if number % MESSAGES == 0:
                before = tracemalloc.get_traced_memory()[0]
                sizes["without"].append(kept(link))
                sizes["with"].append(before - sizes["without"][-1])
            link.send("shop", "number", bytes(1000), round=number)
            await link.receive("answer", "shop", round=number)
        sizes["without"].append(kept(link))

    async def echoes(link: Link) -> None:
        for number in range(3 * MESSAGES):
            await link.receive("number", "bank", round=number)
            link.send("bank", "answer", bytes(1000), round=number)
            link.transcript.entries.clear()
            link.events.clear()

    tracemalloc.start()
    try:
        for found in Town("bank", "shop").run({"bank": asks, "shop": echoes}).values():
            result(found)
    finally:
        tracemalloc.stop()
    # The first stretch fills caches; the others are alike.
    growth = (sizes["without"][-1] - sizes["without"][1]) / (2 * MESSAGES)
    assert growth < MOST, sizes
    assert sizes["with"][1] / MESSAGES > 10 * MOST  # what is meant to grow is seen
