"""Transcripts: what is in them, what is not, their chain, their files, receipts and the command."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from shutil import copytree
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from securefed.audit import audit, read_run, write_transcripts
from securefed.cli import main
from securefed.crypto import KEY_KINDS, FixedPoint, generate, shares
from securefed.crypto.blind.interface import Product
from securefed.errors import DataError
from securefed.protocols.schedules import FedBCD
from securefed.transport.message import Message
from securefed.transport.message import Path as Clock
from securefed.transport.transcript import Transcript, looks_random, looks_uniform, parts_of
from tests.audit.runs import PROTOCOLS, blind_scheme, record, report

pytestmark = pytest.mark.filterwarnings("ignore::securefed.protocols.own_gradient.ledger.LedgerWarning")
HEX = re.compile(r"\b[0-9a-f]{24,64}\b")
PROTOCOL = "linear, three, star"


class Run:
    """What write_transcripts takes."""

    def __init__(self, transcripts: dict[str, Transcript], result: dict[str, Any]) -> None:
        self.transcripts, self._result = transcripts, result

    def to_dict(self) -> dict[str, Any]:
        return self._result


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("made") / "run"
    write_transcripts(made, Run(*PROTOCOLS[PROTOCOL]("paillier", FedBCD(2)).run()))
    return made


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return Path(copytree(written, tmp_path / "run"))


# What is in them


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from leaves(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from leaves(inner)
    else:
        yield value


@pytest.mark.parametrize(
    ("protocol", "scheme"),
    [
        ("linear, two parties", "paillier"),
        pytest.param("linear, three, star", "ckks", marks=pytest.mark.slow),
        pytest.param("network, two parties", "paillier", marks=pytest.mark.slow),
        pytest.param("transfer", "paillier", marks=pytest.mark.slow),
        ("transfer", "ckks"),
        pytest.param("blind, two parties", "paillier", marks=pytest.mark.slow),
        ("blind, two parties", "ckks"),
        ("blind, three", "ckks"),
    ],
)
def test_transcripts_of_other_secrets_differ_in_hashes_only(protocol: str, scheme: str) -> None:
    """Other features, labels, keys, masks: the same lines, once hashes and fingerprints are struck out."""
    texts = []
    for data in (0, 1):
        transcripts, _ = PROTOCOLS[protocol](scheme, FedBCD(2), data=data).run()
        rows = {name: list(map(asdict, transcript)) for name, transcript in transcripts.items()}
        texts.append(HEX.sub("#", json.dumps(rows, sort_keys=True)))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("scheme", ["paillier", "ckks"])
def test_there_is_no_place_for_a_value(scheme: str) -> None:
    """Numbers are small counts, fractions stand in the settings only, long words are hashes, but for one."""
    for transcript in record("transfer", scheme).values():
        for row in map(asdict, transcript):
            settings = row["detail"].pop("settings", {})
            found = list(leaves(row))
            assert not [leaf for leaf in found if isinstance(leaf, float)]
            assert all(0 <= leaf < 2**32 for leaf in found if isinstance(leaf, int))
            long = [leaf for leaf in found if isinstance(leaf, str) and len(leaf) > 23]
            assert all(HEX.fullmatch(leaf) or leaf == KEY_KINDS["paillier"].proof for leaf in long)
            assert settings == {} or row["event"] == "agreed"


def test_a_fingerprint_cannot_be_tested_without_its_key() -> None:
    """The key-holder sees value + mask; with an unkeyed hash of the mask it could try values."""
    one, other = Transcript("p0"), Transcript("p0")
    piece = bytes(range(1, 9))
    assert one.mask_print([piece]) == one.mask_print([piece])
    assert one.mask_print([piece]) != other.mask_print([piece])
    assert one.mask_print([piece, bytes(8)])["blank"] == 1
    assert one._secret.hex() not in json.dumps(list(map(asdict, one))) + json.dumps(one.header)


# What the bytes say


def test_contents_are_read_from_the_bytes() -> None:
    holder = generate("ckks")
    encrypted = holder.encrypt(np.linspace(-1, 1, 12).reshape(4, 3), FixedPoint(1.0))
    (part,) = parts_of(encrypted.to_bytes())
    assert (part.frame, part.scheme, part.shape) == ("encrypted", "ckks", (4, 3))
    assert part.key == holder.public.key_id.hex()
    assert part.protection == "ciphertext"
    masked, mask = encrypted.mask()
    request = masked.to_bytes()
    both = len(request).to_bytes(8, "little") + request + mask.disclose()
    assert [p.frame for p in parts_of(both)] == ["bytes", "masked", "disclosure"]
    assert [p.frame for p in parts_of(b"\0")] == ["bytes"]
    assert parts_of(b"") == []
    # A frame that announces more than there is, is no frame.
    assert [p.frame for p in parts_of(request[:-1])] == ["bytes"]
    plain = generate("plain").encrypt(np.ones(4), FixedPoint(1.0)).to_bytes()
    assert parts_of(plain)[0].protection == "clear"


@pytest.mark.parametrize(
    "numbers",
    [
        np.random.default_rng(0).normal(size=64),
        np.random.default_rng(0).uniform(0, 1, 64),
        np.random.default_rng(0).integers(-(2**31), 2**31, 64),
        np.random.default_rng(0).integers(0, 2, 64).astype(float),
    ],
    ids=["normal", "uniform", "fixed point", "labels"],
)
def test_numbers_do_not_look_like_ciphertexts(numbers: np.ndarray) -> None:
    for scheme in ("paillier", "ckks"):
        assert looks_random(numbers.tobytes(), scheme) is False


def test_random_bytes_look_random_and_few_do_not_tell() -> None:
    generator = np.random.default_rng(3)
    for _ in range(2000):
        assert looks_random(generator.bytes(512), "paillier") is True
    assert looks_random(generator.bytes(500), "paillier") is None
    residues = generator.integers(0, 2**60, 4096, dtype=np.uint64)
    assert looks_random(residues.tobytes(), "ckks") is True


def packed(numbers: np.ndarray, fraction_bits: int = 40) -> bytes:
    return shares.to_bytes(shares.from_floats(numbers, fraction_bits))


@pytest.mark.parametrize("count", [2, 7, 64, 2000])
def test_shares_look_uniform_and_numbers_do_not(count: int) -> None:
    """Limbs of 21 bits, three in eight bytes, whatever the length."""
    rng = np.random.default_rng(count)
    for _ in range(50):
        assert looks_uniform(shares.to_bytes(shares.uniform(count)), "numbers:105") is not False
    cut = shares.reduce_bits(shares.uniform(count), 72, first=False)
    assert looks_uniform(shares.to_bytes(cut), "numbers:72") is not False
    if count >= 64:
        assert looks_uniform(shares.to_bytes(cut), "numbers:105") is False
    for numbers in (rng.normal(size=count), rng.integers(0, 2, count).astype(float), np.zeros(count)):
        if count >= 7:
            assert looks_uniform(packed(numbers), "numbers:105") is False
            assert looks_uniform(packed(np.repeat(numbers, 40)), "ciphertext") is False
    assert looks_uniform(b"", "numbers:105") is None


def test_ciphertexts_of_both_products_look_random() -> None:
    product = Product(6, 3, 2, 51, 40)
    for scheme in ("ckks", "paillier"):
        key = blind_scheme(scheme).generate()
        for block in key.encrypt(product, [0], lambda first, last: np.ones((last - first, 3))):
            assert looks_uniform(block, "ciphertext") is True


# The chain


def test_any_change_breaks_the_chain() -> None:
    original = record(PROTOCOL, "paillier")["p0"]
    assert original.fault() == ""
    for change in ("alter", "drop", "insert", "swap"):
        transcript = deepcopy(original)
        entries = transcript.entries
        if change == "alter":
            entries[5] = replace(entries[5], round=entries[5].round + 1)
        elif change == "drop":
            del entries[5]
        elif change == "insert":
            entries.insert(5, entries[4])
        else:
            entries[4], entries[5] = entries[5], entries[4]
        assert "does not fit the chain" in transcript.fault(), change


def test_a_forged_chain_is_found_at_the_other_end() -> None:
    """One party writes its chain anew, as if a message had been another: its peer's receipt differs."""
    transcripts = deepcopy(record(PROTOCOL, "paillier"))
    forged = Transcript("p0", transcripts["p0"].run)
    for entry in transcripts["p0"].entries:
        if entry.event == "received" and entry.kind == "opening":
            entry = replace(entry, digest="0" * 64)
        forged._append(replace(entry, chain=""))
    assert forged.fault() == ""
    transcripts["p0"] = forged
    found = audit(transcripts)
    assert found.failed == ["receipts"]
    assert "message 1 from C (opening) differs" in found.claim("receipts").evidence


def test_a_dropped_end_is_found_at_the_other_end() -> None:
    transcripts = deepcopy(record(PROTOCOL, "paillier"))
    last = max(i for i, entry in enumerate(transcripts["p2"].entries) if entry.event == "sent")
    del transcripts["p2"].entries[last:]
    found = audit(transcripts)
    assert "receipts" in found.failed
    assert "by one of them only" in found.claim("receipts").evidence


# Receipts


def test_two_parties_can_compare_without_showing_anything() -> None:
    transcripts = record(PROTOCOL, "paillier")
    bank, shop = transcripts["p2"].roots("p0"), transcripts["p0"].roots("p2")
    assert (bank["sent"], bank["received"]) == (shop["received"], shop["sent"])
    assert bank["agreement"] == shop["agreement"] and len(bank["sent"]) == len(bank["received"]) == 64
    other = deepcopy(transcripts["p0"])
    place = next(i for i, e in enumerate(other.entries) if (e.event, e.peer) == ("received", "p2"))
    other.entries[place] = replace(other.entries[place], digest="0" * 64)
    assert other.roots("p2")["received"] != bank["sent"] and other.roots("p2")["sent"] == bank["received"]


def test_one_party_alone_audits_what_it_has() -> None:
    """On its own machine a party has its own transcript only."""
    for name in ("p0", "p2", "C"):
        found = audit([record(PROTOCOL, "paillier")[name]])
        assert found.failed == []
        assert set(found.recorded.missing) == {"p0", "p1", "p2", "C"} - {name}
        assert not any(receipt.compared for receipt in found.receipts)
        assert "not compared" in found.to_text()
    assert audit([record(PROTOCOL, "plain")["p0"]]).passed is False


# Files


def test_a_run_directory_reads_as_it_was_written(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    assert names == {"result.json", *(f"transcript-{name}.jsonl" for name in ("p0", "p1", "p2", "C"))}
    transcripts, result = read_run(folder)
    assert result is not None
    assert audit(transcripts, result).failed == []
    for transcript in transcripts:
        again = folder / "again.jsonl"
        transcript.save(again)
        assert again.read_bytes() == (folder / f"transcript-{transcript.party}.jsonl").read_bytes()


def test_a_stream_has_the_lines_up_to_its_last_flush(tmp_path: Path) -> None:
    path = tmp_path / "transcript-p0.jsonl"
    transcript = Transcript("p0", "run-1")
    transcript.stream_to(path)
    message = Message("verdict", "run-1", 0, 0, "p1", "p0", 0, b"\0", Clock())
    for count in range(1, 4):
        transcript.message("received", message, "training")
        transcript.flush()
        assert len(path.read_text().splitlines()) == 1 + count
    transcript.note("opened", "opening", "p1", 0, 0, "training")
    assert len(path.read_text().splitlines()) == 5, "what a key opened is written at once"
    assert Transcript.read(path).fault() == "cut short: its last line is missing"
    transcript.close()
    read = Transcript.read(path)
    assert read.fault() == ""
    assert read.entries == transcript.entries


@pytest.mark.parametrize("damage", ["alter", "cut", "drop"])
def test_a_tampered_file_fails_the_audit(
    folder: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "transcript-p1.jsonl"
    lines = path.read_text().splitlines()
    if damage == "alter":
        lines[6] = lines[6].replace('"round":0', '"round":1')
    elif damage == "cut":
        lines = lines[:-1]
    else:
        del lines[-3]
    path.write_text("\n".join(lines) + "\n")
    assert main(["audit", str(folder)]) == 1
    assert "FAIL  No transcript was altered after it was written." in capsys.readouterr().out


def test_the_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    json_path, html_path = tmp_path / "audit.json", tmp_path / "audit.html"
    assert main(["audit", str(folder), "--json", str(json_path), "--html", str(html_path)]) == 0
    text = capsys.readouterr().out
    assert " checks passed, 0 failed, " in text
    for name in ("p0", "p1", "p2", "C"):
        assert f"what {name} saw" in text
    found = json.loads(json_path.read_text())
    assert found["passed"] is True
    assert len(found["claims"]) == len(report(PROTOCOL, "paillier").claims)
    assert html_path.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda folder: [path.unlink() for path in folder.glob("transcript-*")],
            "no transcript-<party>.jsonl",
        ),
        (lambda folder: (folder / "transcript-p0.jsonl").write_text("nonsense\n"), "not a transcript"),
        (lambda folder: (folder / "transcript-p0.jsonl").write_text('{"party":"p0"}\n'), "of format 2"),
        (lambda folder: (folder / "result.json").write_text("[]"), "not a result"),
        (
            lambda folder: (folder / "transcript-p0.jsonl").rename(folder / "transcript-x.jsonl"),
            "holds the transcript of 'p0'",
        ),
    ],
)
def test_what_the_user_got_wrong_is_said_in_a_line(folder: Path, change: Any, words: str) -> None:
    change(folder)
    with pytest.raises(DataError, match=re.escape(words)) as raised:
        read_run(folder)
    assert "\n" not in str(raised.value)


def test_directories_that_are_not_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError, match="no such run directory"):
        read_run(folder / "nowhere")
    assert main(["audit", str(folder), "--json", str(folder / "nowhere" / "audit.json")]) == 2
    assert "cannot be written: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("event", "detail"),
    [("sent", {"parts": 3}), ("agreed", {"settings": {"parties": [["p0"]]}})],
    ids=["parts", "parties"],
)
def test_what_no_run_writes_has_one_way_to_fail(event: str, detail: dict[str, Any]) -> None:
    transcripts = deepcopy(record(PROTOCOL, "paillier"))
    entries = transcripts["p0"].entries
    place = next(place for place, entry in enumerate(entries) if entry.event == event)
    entries[place] = replace(entries[place], detail=detail)
    with pytest.raises(DataError, match="audit: what the files say is out of form"):
        audit(transcripts)


def test_transcripts_of_two_runs_are_not_mixed() -> None:
    one, other = record(PROTOCOL, "paillier")["p0"], deepcopy(record(PROTOCOL, "paillier")["p1"])
    other.run = "run-2"
    with pytest.raises(DataError, match="transcripts of 2 runs"):
        audit([one, other])
    with pytest.raises(DataError, match="no transcripts"):
        audit([])
    with pytest.raises(DataError, match="does not say what was agreed"):
        audit([Transcript("p0")])


# The page


@pytest.mark.parametrize(
    ("protocol", "scheme"),
    [(PROTOCOL, "paillier"), ("transfer", "ckks"), ("blind, three", "ckks"), (PROTOCOL, "plain")],
)
def test_the_section_is_well_formed_and_needs_nothing_else(protocol: str, scheme: str) -> None:
    found = report(protocol, scheme)
    html = found.to_html()
    tree = ElementTree.fromstring(html.replace("<br>", "<br/>").replace("&middot;", ""))  # noqa: S314
    assert not re.search(r"<script|https?://(?!www\.w3\.org/2000/svg)|url\(|@import", html)
    assert ("<span>clear (" in html) == (scheme == "plain")
    labels = " ".join(text for element in tree.iter() if (text := element.text))
    kinds = {e.kind for t in found.recorded.transcripts.values() for e in t.of("sent")}
    assert all(kind in labels for kind in kinds)


def test_names_are_escaped() -> None:
    transcripts = deepcopy(record("linear, two parties", "paillier"))
    for transcript in transcripts.values():
        for place, entry in enumerate(transcript.entries):
            if entry.event == "sent":
                transcript.entries[place] = replace(entry, kind="<script>alert(1)</script>")
                break
    assert "<script>" not in audit(transcripts).to_html()
