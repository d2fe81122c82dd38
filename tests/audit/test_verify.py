"""`securefed verify` finds signed transcripts that were altered, cut, reordered, swapped or rewritten."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import securefed.audit.verify
from bench.altered import write_altered
from securefed.audit.verify import verify
from securefed.cli import main
from securefed.process.keys import PartyKeys, Signatures
from securefed.transport.identity import Identity
from securefed.transport.transcript import Transcript
from tests.audit.runs import record

INSTANCE = "0123456789abcdef"
OTHER = "fedcba9876543210"
MANY = 150


@dataclass(frozen=True)
class Keys:
    """The two keys that sign, without the files and the passphrase around them."""

    identity: Identity
    signing_key: Ed25519PrivateKey


def signatures(keys: Keys, transcript: Transcript, instance: str = INSTANCE) -> Signatures:
    return Signatures(cast(PartyKeys, keys), transcript, instance)


@pytest.fixture(scope="module")
def keys() -> dict[str, Keys]:
    names = record("blind, three", "ckks")
    return {name: Keys(Identity.generate(name), Ed25519PrivateKey.generate()) for name in names}


@pytest.fixture
def folder(tmp_path: Path, keys: dict[str, Keys]) -> Path:
    """What the parties of a run leave when it has ended."""
    transcripts = record("blind, three", "ckks")
    signed = {name: signatures(keys[name], each) for name, each in transcripts.items()}
    facts = {name: {"signed": each.to_facts()} for name, each in signed.items()}
    for name, each in signed.items():
        others = {peer: said for peer, said in facts.items() if peer != name}
        (tmp_path / f"signatures-{name}.json").write_text(json.dumps(each.to_file(others)))
        transcripts[name].save(tmp_path / f"transcript-{name}.jsonl")
    return tmp_path


def failed(folder: Path) -> list[str]:
    return [what for verdict, what, _ in verify(folder) if verdict == "FAIL"]


def test_an_honest_run_passes_every_check(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "FAIL" not in out and "skip " not in out
    count = 4 * 4 + 2 * 12  # chain, file, certificate, signature; countersignatures and messages both ways
    assert out.endswith(f"{count} checks passed, 0 failed, 0 skipped\n")


def test_the_file_stands_alone(folder: Path, tmp_path: Path) -> None:
    """A regulator copies one file and runs it where securefed is not installed."""
    source = Path(securefed.audit.verify.__file__)
    copy = shutil.copy(source, tmp_path / "standalone.py")
    done = subprocess.run(
        [sys.executable, "-I", "-X", "importtime", str(copy), str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0 and "0 failed" in done.stdout
    assert "| securefed" not in done.stderr, "it imports nothing of the package"
    assert len(source.read_text().split("\n")) < 250


def lines_of(folder: Path, name: str) -> list[str]:
    return (folder / f"transcript-{name}.jsonl").read_text().split("\n")[:-1]


def write(folder: Path, name: str, lines: list[str]) -> None:
    (folder / f"transcript-{name}.jsonl").write_text("\n".join(lines) + "\n")


def changed(folder: Path) -> None:
    write(folder, "p0", [line.replace('"round":1', '"round":0') for line in lines_of(folder, "p0")])


def truncated(folder: Path) -> None:
    """With a new end that fits the shorter chain."""
    lines = lines_of(folder, "p0")[:-6]
    end = {"end": len(lines) - 1, "chain": json.loads(lines[-1])["chain"]}
    write(folder, "p0", [*lines, json.dumps(end)])


def cut(folder: Path) -> None:
    write(folder, "p0", lines_of(folder, "p0")[:-1])


def reordered(folder: Path) -> None:
    lines = lines_of(folder, "p0")
    lines[5], lines[6] = lines[6], lines[5]
    write(folder, "p0", lines)


def swapped(folder: Path) -> None:
    one, other = folder / "transcript-p0.jsonl", folder / "transcript-p1.jsonl"
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)


def signatures_swapped(folder: Path) -> None:
    shutil.copy(folder / "signatures-p1.json", folder / "signatures-p0.json")


def rewritten(name: str) -> Transcript:
    """Without one of its messages, and with a chain that fits."""
    honest = record("blind, three", "ckks")[name]
    shorter = Transcript(name, honest.run)
    dropped = next(place for place, entry in enumerate(honest.entries) if entry.event == "received")
    for place, entry in enumerate(honest.entries):
        if place != dropped:
            shorter._append(entry)
    return shorter


def rewritten_unsigned(folder: Path) -> None:
    rewritten("p0").save(folder / "transcript-p0.jsonl")


@pytest.mark.parametrize(
    "act",
    [changed, truncated, cut, reordered, swapped, signatures_swapped, rewritten_unsigned],
    ids=lambda act: act.__name__,
)
def test_an_alteration_is_found(folder: Path, act: Callable[[Path], None]) -> None:
    act(folder)
    assert failed(folder)
    assert main(["verify", str(folder), "-q"]) == 1


def sign_again(folder: Path, own: Keys, instance: str = INSTANCE) -> None:
    """A party rewrites its transcript after the run and signs it again, with all its keys."""
    transcript, path = rewritten("p0"), folder / "signatures-p0.json"
    before = json.loads(path.read_text())["countersigned"]
    path.write_text(
        json.dumps({**signatures(own, transcript, instance).to_file({}), "countersigned": before})
    )
    transcript.save(folder / "transcript-p0.jsonl")


def test_a_party_that_rewrites_and_signs_again_is_found_by_its_peers(
    folder: Path, keys: dict[str, Keys]
) -> None:
    sign_again(folder, keys["p0"])
    assert {"p1 countersigned p0", "p2 countersigned p0"} <= set(failed(folder))
    assert "signature of p0" not in failed(folder), "its own signature is valid"


def test_another_key_or_another_start_of_the_run_is_found(folder: Path, keys: dict[str, Keys]) -> None:
    sign_again(folder, Keys(keys["p0"].identity, Ed25519PrivateKey.generate()))
    assert "p1 countersigned p0" in failed(folder)
    sign_again(folder, keys["p0"], OTHER)
    assert "p1 countersigned p0" in failed(folder)


def test_a_key_that_the_certificate_does_not_vouch_for_is_found(folder: Path) -> None:
    path = folder / "signatures-p0.json"
    file = json.loads(path.read_text())
    file["certificate"] = Identity.generate("p0").certificate.pem.decode()
    path.write_text(json.dumps(file))
    assert failed(folder) == ["certificate of p0"]


def test_what_is_not_there_is_skipped_and_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "signatures-p1.json").unlink()
    assert main(["verify", str(folder)]) == 0
    assert "skip  signatures of p1: signatures-p1.json is not there" in capsys.readouterr().out
    for path in folder.iterdir():
        path.unlink()
    assert main(["verify", str(folder)]) == 2


def test_every_altered_transcript_fails_and_none_crashes(folder: Path) -> None:
    honest = {path.name: path.read_bytes() for path in folder.glob("transcript-*.jsonl")}
    chance = random.Random(7)
    for number in range(MANY):
        write_altered(folder, honest, chance)
        same = all((folder / name).read_bytes() == data for name, data in honest.items())
        assert bool(failed(folder)) != same, number


def test_altered_signatures_never_crash(folder: Path) -> None:
    honest = {path.name: path.read_bytes() for path in folder.glob("signatures-*.json")}
    chance = random.Random(8)
    for _ in range(MANY):
        write_altered(folder, honest, chance)
        for verdict, _, more in verify(folder):
            assert verdict in ("pass", "FAIL", "skip") and len(more) < 400


def test_a_peers_statement_about_another_run_is_not_countersigned(keys: dict[str, Keys]) -> None:
    transcripts = record("blind, three", "ckks")
    own = signatures(keys["p0"], transcripts["p0"])
    good = signatures(keys["p1"], transcripts["p1"]).to_facts()
    assert set(own.to_file({"p1": {"signed": good}})["countersigned"]) == {"p1"}
    other = signatures(keys["p1"], transcripts["p1"], OTHER).to_facts()
    bad: list[Any] = [other, None, {"statement": {}}, {"statement": 1}, {**good, "signature": "zz"}, []]
    for said in bad:
        assert own.to_file({"p1": {"signed": said}})["countersigned"] == {}
