"""`securefed party` over lines that are bad: cut, corrupted, slow, between machines, with a wrong clock;
and what somebody sees who sits in front of it and waits.
"""

from __future__ import annotations

import re
import signal
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from tests.cli.test_demo import Screen
from tests.process.parties import PASSPHRASE, Fleet, reached
from tests.process.test_processes import OPEN, TWO, simulated
from tests.transport.network import Proxy
from tests.transport.test_network_processes import two_machines

Make = Callable[..., Fleet]
SETTINGS = {**OPEN, "scheme": "plain", "rounds": 60}


def same_model(made: Fleet, interruptions: int = 0) -> None:
    """As in one process, bit for bit, and both ends have written down the same."""
    expected = simulated(made, **{key: value for key, value in made.run.items() if key != "scheme"})
    for name in TWO:
        assert np.array_equal(made.shard(name)["parameters"], expected[name]["parameters"])
        result = made.result(name)
        assert result["interruptions"] == interruptions and result["rounds"] == made.run["rounds"]
        assert {peer["transcripts"] for peer in result["peers"].values()} == {"agree"}
        assert "Traceback" not in made.log(name)


class Bad:
    """A line that flips a bit now and then, loses half of a piece, or is cut; in between all is well."""

    def __init__(self, every: int) -> None:
        self.every, self.due, self.turn = every, every, 0
        self.done: list[str] = []
        self._lock = threading.Lock()

    def __call__(self, direction: str, count: int, data: bytes) -> bytes | None:
        with self._lock:
            self.due -= len(data)
            if self.due > 0 or count < 4000:  # the handshake passes, so that something is under way
                return data
            self.due, self.turn = self.every, self.turn + 1
            act = ("flip", "lose", "cut")[self.turn % 3]
            self.done.append(act)
        if act == "flip":
            return data[:-1] + bytes([data[-1] ^ 1])
        return data[: len(data) // 2] if act == "lose" else None


@pytest.mark.slow
def test_a_line_that_corrupts_loses_and_cuts_changes_no_model(fleet: Make) -> None:
    """TLS finds it, the message is sent again, and nobody has to go back a round."""
    made, spoil = fleet(TWO, **SETTINGS), Bad(every=20_000)
    with Proxy(made.address("shop"), spoil) as one, Proxy(made.address("bank"), spoil) as other:
        made.ways = {("bank", "shop"): one.address, ("shop", "bank"): other.address}
        for name in TWO:
            made.settings(name)
        made.start_all()
        made.all_good()
    assert len(spoil.done) >= 3 and {"flip", "lose", "cut"} <= set(spoil.done)
    same_model(made)


@pytest.mark.slow
def test_a_peer_that_does_nothing_for_a_while_is_waited_for(fleet: Make) -> None:
    """Stopped, not killed: it does not answer either, and comes back before the patience is over."""
    made = fleet(TWO, **SETTINGS)
    made.start_all()
    made.until("bank", reached(3))
    made.processes["shop"].send_signal(signal.SIGSTOP)
    try:
        time.sleep(6.0)
        assert made.processes["bank"].poll() is None
    finally:
        made.processes["shop"].send_signal(signal.SIGCONT)
    made.all_good()
    same_model(made)


@pytest.mark.slow
def test_two_machines_train_encrypted(fleet: Make) -> None:
    """Each party in a network namespace of its own, with a cable between them."""
    made = fleet(TWO, scheme="ckks", **OPEN)
    with two_machines() as places:
        for name, (start, address) in places.items():
            host, _, port = address.partition(":")
            made.hosts[name], made.ports[name] = host, int(port)
            made.within[name] = [*start, sys.executable, "-m", "securefed"]
        for name in TWO:
            made.settings(name)
        made.start_all()
        made.all_good()
    for name in TWO:
        assert made.result(name)["protected"] and made.result(name)["rounds"] == OPEN["rounds"]


@pytest.mark.slow
def test_a_clock_that_is_off_is_said_and_does_no_harm(fleet: Make) -> None:
    made = fleet(TWO, **{**SETTINGS, "rounds": 3})
    script = made.folder / "late.py"
    script.write_text(
        "import sys, time, types\n"
        "from securefed.cli import main\n"
        "from securefed.transport.network import attempt\n"
        "late = lambda: time.time() + 3600\n"
        "attempt.time = types.SimpleNamespace(time=late, monotonic=time.monotonic)\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    made.within["shop"] = [sys.executable, str(script)]
    made.start_all()
    made.all_good()
    assert re.search(r"note: the clock of shop is 36\d\d s ahead of ours", made.log("bank"))
    same_model(made)


@pytest.mark.slow
def test_who_waits_at_a_terminal_sees_whom_for_and_then_the_rounds(
    fleet: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECUREFED_PASSPHRASE", PASSPHRASE)
    made = fleet(TWO, **{**SETTINGS, "rounds": 5000, "evaluate_every": 1, "holdout": 0.3})
    screen = Screen("party", str(made.folder / "bank" / "party.toml"), cwd=made.folder)
    screen.until(r"bank: round [^\n]*waiting for shop, (4 min \d\d|\d\d) s left \(nobody listens there\)")
    made.start("shop")
    figures = r"left ~[^\r\n]*  AUC [01]\.\d+  sent [\d.]+ [kM]?B  comp [^\r\n]*comm "
    screen.until(rf"bank: round [^\r\n]*[1-9]\d*/5000[^\r\n]*{figures}")
    screen.interrupt()
    assert screen.end() == 1
    last = re.sub(r"\x1b\[\d*m", "", screen.text).strip().split("\n")[-1]
    assert "stopped; round " in last and last.endswith("party.toml --resume")
    made.processes["shop"].send_signal(signal.SIGINT)
    assert made.finish()["shop"] == 1
