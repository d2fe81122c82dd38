"""`bench crypto` as a program: its rows, its verdicts, its files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench import crypto
from bench.__main__ import main
from bench.crypto import Case, Row
from bench.packing import encrypt_packed, slots_of
from bench.timing import Task
from securefed.crypto import KeyHolder
from securefed.crypto.paillier.keys import generate_secret_key

ROOT = Path(__file__).parent.parent.parent
COLUMNS = ["operation", "scheme", "ours_us", "peer", "peer_us", "ratio", "bar"]

# The promises of the table in docs/performance.md: operation -> {peer: bar}.
BARS = {
    "owner encryption, per ciphertext": {"phe": 15, "fate_utils": 14},
    "owner encryption, packed, per value": {"phe": 400},
    "matrix (32 x 64, 24-bit) times vector, per term": {"phe": 10},
    "opening, packed, per value": {"phe": 25},
    "product, per slot": {"our paillier-2048": 100},
    "product of 4096 slots, no rescale": {"TenSEAL v * list": 2},
}


def test_a_ratio_is_how_often_the_peer_takes_our_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        crypto, "take_turns", lambda tasks, repeats: {"": 2.0, "phe": 30.0, "fate_utils": 5.0}
    )
    task = Task(lambda: None, 1)
    case = Case("operation", "paillier-2048", task, {"phe": (task, 15), "fate_utils": (task, None)}, 3)
    assert list(case.rows()) == [
        Row("operation", "paillier-2048", 2.0, "phe", 30.0, 15.0, 15),
        Row("operation", "paillier-2048", 2.0, "fate_utils", 5.0, 2.5, None),
    ]


def test_a_ratio_just_below_its_bar_is_not_rounded_up_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crypto, "take_turns", lambda tasks, repeats: {"": 1.0, "phe": 14.9999})
    task = Task(lambda: None, 1)
    (found,) = Case("operation", "paillier-2048", task, {"phe": (task, 15)}, 3).rows()
    assert (found.ratio, found.verdict) == (14.99, "MISSED")


def test_a_directory_that_is_not_there_is_said_before_measuring(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crypto", "--json", "no/such/out.json"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "bench crypto: no/such/out.json: there is no directory no/such\n"


def test_peak_memory_grows_by_what_is_held() -> None:
    program = (
        "from bench.memory import peak_rss_mib\n"
        "before = peak_rss_mib()\n"
        "held = b'x' * (200 << 20)\n"
        "print(peak_rss_mib() - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True
    )
    assert 195 < float(done.stdout) < 230


@pytest.mark.slow
def test_the_quick_bench_writes_the_contract(tmp_path: Path) -> None:
    target = tmp_path / "crypto.json"
    command = [sys.executable, "-m", "bench", "crypto", "--quick", "--seed", "3", "--json", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(target.read_text())
    found: dict[str, dict[str, float]] = {}
    for each in report["rows"]:
        assert list(each) == COLUMNS
        assert each["ours_us"] > 0
        assert each["ratio"] == pytest.approx(each["peer_us"] / each["ours_us"], rel=0.02, abs=0.01)
        if each["bar"] is not None:
            found.setdefault(each["operation"], {})[each["peer"]] = each["bar"]
    without_fate = any("fate_utils left out" in note for note in report["notes"])
    expected = {name: dict(peers) for name, peers in BARS.items()}
    if without_fate:
        del expected["owner encryption, per ciphertext"]["fate_utils"]
    assert found == expected
    assert report["memory"]["values"] == 100_000
    assert report["memory"]["peak_rss_mib"] < report["memory"]["limit_mib"] == 1024


def test_packed_values_come_back_exactly() -> None:
    """What the packed rows measure is right: 33 values in a ciphertext, opened under a mask."""
    secret = generate_secret_key(2048)
    values = np.random.default_rng(0).integers(-(2**24), 2**24, 50) / 2**24
    packed = encrypt_packed(secret, values)
    assert (slots_of(secret), len(packed.ciphertexts)) == (33, 2)
    masked, mask = packed.mask()
    assert mask.remove(KeyHolder(secret).open(masked)).tolist() == values.tolist()
