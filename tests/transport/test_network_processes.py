"""Parties as real processes on loopback: rounds, kill -9 and restart, Ctrl-C, and messages of 200 MiB."""

from __future__ import annotations

import hashlib
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from securefed.transport.identity import Identity
from tests.transport.network import place, wait_until
from tests.transport.party import block

ROOT = Path(__file__).parent.parent.parent


class Group:
    """Folders with identities and settings for some parties, and their processes."""

    def __init__(
        self,
        folder: Path,
        names: tuple[str, ...],
        *,
        addresses: Mapping[str, str] | None = None,
        within: Mapping[str, Sequence[str]] | None = None,
        **settings: Any,
    ) -> None:
        self.folder, self.names, self._within = folder, names, dict(within or {})
        addresses = addresses or {name: place() for name in names}
        self.running: dict[str, subprocess.Popen[str]] = {}
        for name in names:
            own = folder / name
            own.mkdir()
            identity = Identity.generate(name)
            identity.save(own, "a passphrase")
            (folder / f"{name}.pem").write_bytes(identity.certificate.pem)
            plan = {
                "name": name,
                "folder": str(own),
                "listen": addresses[name],
                "peers": {other: addresses[other] for other in names if other != name},
            }
            (own / "plan.json").write_text(json.dumps(plan | settings))

    def start(self, *names: str) -> None:
        for name in names or self.names:
            plan = str(self.folder / name / "plan.json")
            command = [*self._within.get(name, ()), sys.executable, "-m", "tests.transport.party", plan]
            self.running[name] = subprocess.Popen(
                command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )

    def rounds(self, name: str) -> int:
        return sum(path.name.isdigit() for path in (self.folder / name / "checkpoints").glob("*"))

    def kill(self, name: str) -> None:
        process = self.running[name]
        process.send_signal(signal.SIGKILL)
        process.communicate()

    def outcomes(self, seconds: float = 60) -> dict[str, dict[str, Any]]:
        found = {}
        for name, process in self.running.items():
            out, err = process.communicate(timeout=seconds)
            assert process.returncode == 0, f"{name}: {err}"
            found[name] = json.loads(out)
        return found

    def end(self) -> None:
        for process in self.running.values():
            if process.poll() is None:
                process.kill()
            process.communicate()


def expected(names: tuple[str, ...], rounds: int, size: int) -> dict[str, str]:
    """The same rounds, without any transport."""
    states = dict.fromkeys(names, "")
    for turn in range(rounds):
        after = {}
        for name in names:
            whole = hashlib.sha256(states[name].encode())
            for peer in sorted(set(names) - {name}):
                whole.update(block(peer, name, turn, size, states[peer]))
            after[name] = whole.hexdigest()
        states = after
    return states


def test_processes_play_rounds(tmp_path: Path) -> None:
    group = Group(tmp_path, ("bank", "shop"), rounds=5, size=100_000)
    try:
        group.start()
        found = group.outcomes()
    finally:
        group.end()
    assert {name: run["state"] for name, run in found.items()} == expected(("bank", "shop"), 5, 100_000)
    for run in found.values():
        computation, communication, total = run["paths"]
        assert computation + communication == total
        assert computation > 0
        assert communication > 0


@pytest.mark.slow
def test_a_killed_party_that_comes_back_changes_no_result(tmp_path: Path) -> None:
    names = ("bank", "shop", "mill")
    group = Group(tmp_path, names, rounds=12, size=50_000, work=0.05)
    try:
        group.start()
        wait_until(lambda: group.rounds("shop") >= 3, 30)
        group.kill("shop")
        group.start("shop")
        found = group.outcomes()
    finally:
        group.end()
    assert {name: run["state"] for name, run in found.items()} == expected(names, 12, 50_000)
    assert all(run["began"] >= 2 for run in found.values())


@pytest.mark.slow
def test_killing_anybody_at_any_moment_changes_no_result(tmp_path: Path) -> None:
    """Ten times, with a fixed seed; also while they greet, and while the last ones are killed already.

    All rounds take longer than all kills: whoever comes back after the end would wait for parties that are
    gone.
    """
    names, rng = ("bank", "shop", "mill"), random.Random(5)
    group = Group(tmp_path, names, rounds=200, size=20_000, work=0.05)
    try:
        group.start()
        for _ in range(10):
            time.sleep(rng.uniform(0.1, 1.5))
            victim = rng.choice(names)
            group.kill(victim)
            time.sleep(rng.uniform(0.0, 0.5))
            group.start(victim)
        found = group.outcomes(120)
    finally:
        group.end()
    assert {name: run["state"] for name, run in found.items()} == expected(names, 200, 20_000)


@pytest.mark.slow
def test_a_worker_that_outlives_a_killed_party_does_not_hold_its_port(tmp_path: Path) -> None:
    """The pool was forked while the door was open."""
    group = Group(tmp_path, ("bank", "shop"), rounds=3, size=1000, fork=True)
    try:
        group.start("bank")
        wait_until(lambda: (tmp_path / "bank" / "worker").exists(), 30)
        worker = int((tmp_path / "bank" / "worker").read_text())
        os.kill(worker, signal.SIGSTOP)  # so that it cannot notice and end, however long this takes
        killed = group.running["bank"]
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        os.kill(worker, 0)  # it is still there
        group.start("bank", "shop")
        found = group.outcomes()
        os.kill(worker, signal.SIGKILL)
        killed.communicate()
    finally:
        group.end()
    assert {name: run["state"] for name, run in found.items()} == expected(("bank", "shop"), 3, 1000)


@pytest.mark.slow
def test_ctrl_c_ends_at_once_and_the_other_one_knows(tmp_path: Path) -> None:
    group = Group(tmp_path, ("bank", "shop"), rounds=1000, size=1000, work=0.02)
    try:
        group.start()
        wait_until(lambda: group.rounds("bank") >= 2, 30)
        shop = group.running["shop"]
        shop.send_signal(signal.SIGINT)
        _, err = shop.communicate(timeout=10)
        assert shop.returncode != 0
        assert err.rstrip().endswith("KeyboardInterrupt")
        # The other party goes back to greeting, and waits.
        bank = group.running["bank"]
        assert bank.stderr is not None
        said = next(line for line in bank.stderr if line.startswith("again: "))
        assert said == "again: shop left the run: its operator stopped it\n", err
        assert bank.poll() is None
        bank.send_signal(signal.SIGINT)
        bank.communicate(timeout=10)
    finally:
        group.end()


@contextmanager
def two_machines() -> Iterator[dict[str, tuple[list[str], str]]]:
    """Two network namespaces with a cable between them; for each, how to start something there, and its
    address.
    """
    ip = shutil.which("ip")
    mark = secrets.token_hex(2)

    def act(*words: str) -> None:
        subprocess.run([str(ip), *words], check=True, capture_output=True)

    spaces = {"bank": f"sf-{mark}-a", "shop": f"sf-{mark}-b"}
    if ip is None:
        pytest.skip("the command ip is not installed")
    made: list[str] = []
    try:
        try:
            for space in spaces.values():
                act("netns", "add", space)
                made.append(space)
            act("link", "add", f"va{mark}", "type", "veth", "peer", "name", f"vb{mark}")
        except subprocess.CalledProcessError:
            pytest.skip("this machine does not allow network namespaces")
        places = {}
        for number, (name, space) in enumerate(spaces.items(), 1):
            device, host = f"v{'ab'[number - 1]}{mark}", f"10.213.71.{number}"
            act("link", "set", device, "netns", space)
            act("-n", space, "addr", "add", f"{host}/24", "dev", device)
            act("-n", space, "link", "set", device, "up")
            act("-n", space, "link", "set", "lo", "up")
            places[name] = ([ip, "netns", "exec", space], f"{host}:7001")
        yield places
    finally:
        for space in made:
            act("netns", "del", space)  # the cable goes with it


def test_parties_in_separate_network_namespaces(tmp_path: Path) -> None:
    with two_machines() as places:
        group = Group(
            tmp_path,
            ("bank", "shop"),
            addresses={name: address for name, (_, address) in places.items()},
            within={name: start for name, (start, _) in places.items()},
            rounds=3,
            size=100_000,
        )
        try:
            group.start()
            found = group.outcomes()
        finally:
            group.end()
    assert {name: run["state"] for name, run in found.items()} == expected(("bank", "shop"), 3, 100_000)


@pytest.mark.slow
def test_a_message_of_200_mib(tmp_path: Path) -> None:
    size = 200 << 20
    group = Group(tmp_path, ("bank", "shop"), rounds=1, size=size)
    try:
        group.start()
        found = group.outcomes(120)
    finally:
        group.end()
    assert {name: run["state"] for name, run in found.items()} == expected(("bank", "shop"), 1, size)
