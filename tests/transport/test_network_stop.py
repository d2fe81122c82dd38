"""A stop at the worst moment: grpc has begun a call, and the thread that would end it is not there yet."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from securefed.transport import Link
from securefed.transport.network import endpoint
from tests.transport.network import Town


async def program(link: Link) -> None:
    await link.receive("number", "shop")


def test_a_stop_while_grpc_begins_a_call_ends_the_party(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "CLOSING", 0.2)

    def stopped(state: Any) -> None:
        raise KeyboardInterrupt

    town = Town("bank", "shop")
    monkeypatch.setattr(import_module("grpc._channel"), "_run_channel_spin_thread", stopped)
    with pytest.raises(KeyboardInterrupt):
        town.alone("bank", program)
