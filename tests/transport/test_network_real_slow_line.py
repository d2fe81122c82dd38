"""A large message on a slow line with real connections, which the simulated world cannot show. It takes the
minutes that it takes.
"""

from __future__ import annotations

import pytest

from bench.chaos_wires import Wire
from securefed.transport.link import Link, Program
from securefed.transport.network.host import Timeouts
from tests.transport.network import Town, result

MODEM = 100e3 / 8
SIZE = 1_200_000
"""96 s at that rate."""


def swap(peer: str) -> Program:
    async def program(link: Link) -> int:
        link.send(peer, "number", bytes(SIZE))
        return len(await link.receive("number", peer))

    return program


@pytest.mark.slow
@pytest.mark.nightly
def test_messages_of_minutes_cross_each_other_on_a_slow_line() -> None:
    town = Town("bank", "shop", timeouts=Timeouts(patience=30))
    wires = {name: Wire(int(town.addresses[name].split(":")[1]), MODEM, 0.01) for name in ("bank", "shop")}
    try:
        town.reach("bank", "shop", f"127.0.0.1:{wires['shop'].port}")
        town.reach("shop", "bank", f"127.0.0.1:{wires['bank'].port}")
        found = town.run({"bank": swap("shop"), "shop": swap("bank")})
    finally:
        for wire in wires.values():
            wire.close()
    assert {name: result(run).outcome for name, run in found.items()} == {"bank": SIZE, "shop": SIZE}
