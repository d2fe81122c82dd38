"""What is checked before memory is taken for it, and what a party says when there is none."""

from __future__ import annotations

import io
import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from securefed.cli import main
from securefed.cli.check import check_party
from securefed.cli.entry import LEAST_ADDRESS_SPACE, OUT_OF_MEMORY
from securefed.cli.terminal import Terminal
from securefed.data.psi import MAX_IDS
from securefed.errors import DataError
from securefed.plan import planner as limits
from securefed.process.checkpoints import Checkpoint, CheckpointStore
from securefed.process.message_sizes import SIZES
from securefed.process.own_data import hear_count
from securefed.protocols.messages import KINDS
from securefed.transport.link import run_local
from securefed.transport.message import IllegalMessage, OtherRelease, TransportError, get_network
from securefed.transport.network import codec
from tests.process.parties import PASSPHRASE, ROOT, Fleet

Make = Callable[..., Fleet]


def test_small_kinds_have_their_size_as_a_limit() -> None:
    assert SIZES["verdict"] == 1 and SIZES["aligned"] == 8 and SIZES["nonce"] == 32
    assert set(KINDS) <= set(SIZES)


@pytest.mark.parametrize("count", [MAX_IDS + 1, 10**9, 2**64 - 1])
def test_a_number_of_people_that_cannot_be_is_refused_before_memory_is_taken(count: int) -> None:
    async def label_party(link: object) -> None:
        link.send("helper", "aligned", count.to_bytes(8, "big"))  # type: ignore[attr-defined]

    async def helper(link: object) -> int:
        return await hear_count(link, "bank")  # type: ignore[arg-type]

    with pytest.raises((IllegalMessage, TransportError)) as caught:
        run_local(
            {"bank": label_party, "helper": helper}, run="r", kinds={"aligned"}, network=get_network("lan")
        )  # type: ignore[dict-item]
    text = f"{caught.value} {caught.value.__cause__}"
    assert f"bank says in 'aligned' that {count} people are common" in text


def test_another_protocol_is_a_mistake_of_settings() -> None:
    with pytest.raises(OtherRelease, match="all parties need the same release"):
        codec.decode_hello(bytes([codec.MARK, 99]))


def test_memory_is_the_least_of_machine_container_and_process(monkeypatch: pytest.MonkeyPatch) -> None:
    most = limits.machine_memory()
    monkeypatch.setattr(resource, "getrlimit", lambda which: (most // 2, most))
    assert limits.machine_memory() == most // 2


def test_check_says_how_much_memory_a_run_takes(
    fleet: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = fleet({"shop": 2, "bank": 2}, scheme="plain", reveal="own-gradient", rounds=2)
    path = made.folder / "bank" / "party.toml"
    found = {check.about: check for check in check_party(path, lambda: PASSPHRASE)}
    assert "a run on this table takes about" in found["memory"].text
    monkeypatch.setattr("securefed.cli.check.machine_memory", lambda: 1 << 20)
    found = {check.about: check for check in check_party(path, lambda: PASSPHRASE)}
    assert found["memory"].verdict == "problem"


def test_a_process_without_memory_ends_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def starve(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("securefed.cli.check.check_party", starve)
    assert main(["check", str(tmp_path / "party.toml")]) == 1
    assert capsys.readouterr().err == f"securefed check: {OUT_OF_MEMORY}\n"


def test_a_damaged_newest_checkpoint_gives_way_to_an_older_one(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints.sfc"
    store = CheckpointStore(path, bytes(32), party="bank", run="r")
    store.write_alignment(Checkpoint({}, {"instance": "i"}))
    for number in (1, 2, 3):
        store.write(number, Checkpoint({}, {"number": number}))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    damaged = store.set_aside_damage()
    assert damaged is not None and damaged.name == "checkpoints.sfc.damaged"
    assert store.rounds() == [1, 2] and store.read(2).meta["number"] == 2
    assert store.set_aside_damage() is None
    other = CheckpointStore(path, bytes(31) + b"1", party="bank", run="r")
    assert other.set_aside_damage() is None, "another key damages nothing"
    with pytest.raises(DataError):
        other.read(2)


def test_whoever_reads_the_output_and_leaves_does_not_end_a_command() -> None:
    program = "from securefed.cli.terminal import Terminal\n" + (
        "with Terminal() as t:\n for i in range(5000): t.result('x' * 100)\n t.say('done')\n"
    )
    done = subprocess.run(
        ["/bin/sh", "-c", f'"{sys.executable}" -c "$1" | head -1; echo', "sh", program],
        env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stderr == "done\n"


def test_a_stream_that_is_no_file_is_printed_to() -> None:
    text = io.StringIO()
    Terminal(out=text).result("x")
    assert text.getvalue() == "x\n"


def test_a_run_that_fails_says_so_in_its_events(
    fleet: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SECUREFED_PASSPHRASE", PASSPHRASE)
    made = fleet({"shop": 2, "bank": 2}, scheme="plain", reveal="own-gradient", rounds=2)
    path = made.settings("bank", {"wait": 1, "patience": 1})
    events = made.events_file("bank")
    assert main(["party", str(path), "--events", str(events), "--log-format", "json"]) == 1
    last = made.events("bank")[-1]
    assert last["event"] == "failed" and last["exit"] == 1
    assert "(nobody listens there) could not be reached" in last["reason"]
    line = json.loads(capsys.readouterr().err.strip().split("\n")[-1])
    assert (line["level"], line["party"], line["run"]) == ("error", "bank", "trial")
    with socket.create_server(("127.0.0.1", made.ports["bank"])):
        assert main(["party", str(path), "--events", str(events)]) == 2
    last = made.events("bank")[-1]
    assert (last["event"], last["exit"]) == ("failed", 2)


SHORT = """
import resource, sys
from securefed.cli import main, party

load = party.load_data

def limited(*arguments):
    now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + (60 << 20),) * 2)
    return load(*arguments)

party.load_data = limited
sys.exit(main(sys.argv[1:]))
"""
LIMITED = """
import resource, runpy, sys
limit = int(sys.argv.pop(1)) << 20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
runpy.run_module("securefed", run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.parametrize("mebibytes", [300, 700, 1100])
def test_a_party_with_too_little_address_space_ends_in_one_line(fleet: Make, mebibytes: int) -> None:
    """With so little, libraries below Python would abort the process in silence."""
    parties = fleet({"shop": 2, "bank": 2}, rounds=2)
    parties.within["bank"] = [sys.executable, "-c", LIMITED, str(mebibytes)]
    parties.start("bank")
    assert parties.finish() == {"bank": 2}
    (line,) = parties.log("bank").splitlines()
    assert line.startswith("securefed party: memory: the limit of this process (ulimit -v, RLIMIT_AS) is ")
    assert line.endswith("MiB are needed; raise it")


@pytest.mark.slow
def test_a_table_that_does_not_fit_into_the_limit_ends_in_one_line(fleet: Make) -> None:
    """A real limit and a real table: reading and preparing it runs out of memory."""
    parties = fleet({"shop": 2, "bank": 2}, rounds=2)
    numbers = ",".join(f"{place}.5" for place in range(40))
    with (parties.folder / "bank" / "data.csv").open("w") as file:
        file.write("id," + ",".join(f"c{place}" for place in range(40)) + ",label\n")
        for row in range(60_000):
            file.write(f"{row},{row}{numbers},{row % 2}\n")
    parties.within["bank"] = [sys.executable, "-c", SHORT]
    parties.start("bank")
    assert parties.finish() == {"bank": 1}
    assert parties.log("bank") == f"securefed party: {OUT_OF_MEMORY}\n"


@pytest.mark.slow
def test_two_parties_work_within_the_least_address_space(fleet: Make) -> None:
    parties = fleet({"shop": 3, "bank": 2}, people={"rows": 400}, rounds=3)
    for name in parties.everybody:
        parties.within[name] = [sys.executable, "-c", LIMITED, str(LEAST_ADDRESS_SPACE)]
    parties.start_all()
    parties.all_good()
