"""Each claim can fail: the protocol broken in one way makes that one claim fail, and no other.

The breaks are made where they would happen: in the crypto layer, in the protocol's steps, on a link.
Everything else of the run stays real.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from gmpy2 import mpz

from securefed.audit import audit
from securefed.crypto import FixedPoint, generate, hidden, load_public_key
from securefed.crypto.ckks import encrypted as ckks_encrypted
from securefed.crypto.ckks.encrypted import CkksEncrypted
from securefed.crypto.memory import OpeningMemory
from securefed.crypto.paillier import encrypted as paillier_encrypted
from securefed.crypto.paillier.hidden import PaillierSum
from securefed.crypto.paillier.public import PaillierPublicKey
from securefed.crypto.paillier.residues import OwnerResidues
from securefed.crypto.registry import find_kind
from securefed.crypto.rlwe.arrays import RlweSum
from securefed.crypto.scheme import Encrypted, Mask
from securefed.crypto.wire import Kind
from securefed.protocols import evidence, loop, openings, training
from securefed.protocols import keyring as keyring_module
from securefed.protocols.agreement import Agreement
from securefed.protocols.blur import ScoreGuard
from securefed.protocols.exchange import Exchange
from securefed.protocols.messages import KINDS
from securefed.protocols.schedules import FedBCD, FedSGD
from securefed.transport import Link, Transcript
from tests.audit.fate_style import PerSample
from tests.audit.runs import PROTOCOLS, Made, keys
from tests.protocols.federation import shared_people, transfer

pytestmark = pytest.mark.filterwarnings("ignore::securefed.protocols.ledger.LedgerWarning")
Patch = pytest.MonkeyPatch
PAIR, STAR = "linear, two parties", "linear, three, star"


def failed(made: Made, **options: Any) -> list[str]:
    return audit(*made.run(**options)).failed


def made(protocol: str, scheme: str = "paillier", **changes: Any) -> Made:
    return PROTOCOLS[protocol](scheme, FedBCD(2), **changes)


@contextmanager
def extra(
    patch: Patch,
    after: str,
    payload: Callable[[Link, bytes], bytes],
    kind: str | None = None,
    to: Callable[[Link, str], str] = lambda link, receiver: receiver,
    facts: dict[str, Any] | None = None,
) -> Iterator[None]:
    """With every message of kind `after`, one more of `kind` goes to somebody, who takes it and checks it."""
    send, receive = Link.send, Link.receive
    word = kind or after

    def sending(self: Link, receiver: str, name: str, blob: bytes, **more: Any) -> None:
        send(self, receiver, name, blob, **more)
        if name == after:
            place = {key: more[key] for key in ("round", "step") if key in more}
            send(self, to(self, receiver), word, payload(self, blob), facts=facts, **place)

    async def receiving(self: Link, name: str, sender: str, **place: Any) -> bytes:
        blob = await receive(self, name, sender, **place)
        if name == after:
            await receive(self, word, sender, **place)
            where = (place.get("round", 0), place.get("step", 0))
            self.transcript.note("checked", word, sender, *where, self.phase, checks=[])
        return blob

    patch.setattr(Link, "send", sending)
    patch.setattr(Link, "receive", receiving)
    yield


def test_without_a_break_nothing_fails() -> None:
    assert failed(made(PAIR)) == []


# clear, encrypted, foreign-key, fresh


@pytest.mark.parametrize("disguise", ["bytes", "frame"])
def test_numbers_in_the_clear(monkeypatch: Patch, disguise: str) -> None:
    """H as floats beside its ciphertext: bare, or in a frame that says it is a ciphertext."""

    def floats(link: Link, blob: bytes) -> bytes:
        numbers = np.random.default_rng(list(blob[-8:])).normal(size=2 * 64)
        if disguise == "bytes":
            return numbers.tobytes()
        holder = keys().holder("paillier", 0 if link.name == "p0" else 1)
        return holder.public.frame(Kind.ENCRYPTED, numbers.tobytes(), (128,)).to_bytes()

    with extra(monkeypatch, "contribution", floats, facts={"origin": "fresh"}):
        assert failed(made(PAIR)) == ["clear"]


def test_keys_that_are_too_small(monkeypatch: Patch) -> None:
    small = {name: generate("paillier", key_bits=1024, allow_small=True) for name in ("p0", "p1")}
    run = made(PAIR)
    for name, program in run.programs.items():
        party = program.__self__  # type: ignore[attr-defined]
        party._holder = small[name]
        party._read_key = partial(load_public_key, allow_small=True)
    assert failed(run) == ["encrypted"]


def test_a_key_that_is_taken_without_its_proof(monkeypatch: Patch) -> None:
    careless = replace(find_kind("paillier"), proof="")
    monkeypatch.setattr(keyring_module, "find_kind", lambda name: careless)
    assert failed(made(PAIR)) == ["encrypted"]


def test_a_ciphertext_under_the_receiver_s_own_key(monkeypatch: Patch) -> None:
    def under_theirs(link: Link, blob: bytes) -> bytes:
        theirs = keys().holder("paillier", 1 if link.name == "p0" else 0)
        return theirs.public.encrypt([0.5], FixedPoint(1.0)).to_bytes()

    with extra(monkeypatch, "contribution", under_theirs, facts={"origin": "fresh"}):
        assert failed(made(PAIR)) == ["foreign-key"]


def test_a_sum_that_is_not_re_randomised(monkeypatch: Patch) -> None:
    """The label party adds its part in the clear to what came in, instead of a fresh ciphertext."""

    def bare(self: Exchange) -> Encrypted:
        return encrypt(self) if self._me != self._label else _Plain(self._side.contribution())  # type: ignore[return-value]

    class _Plain:
        def __init__(self, values: Any) -> None:
            self.values = values

        def __add__(self, other: Encrypted) -> Encrypted:
            return other + self.values

    encrypt = Exchange._encrypt
    monkeypatch.setattr(Exchange, "_encrypt", bare)
    for scheme in ("paillier", "ckks"):
        assert failed(PROTOCOLS[STAR](scheme, FedSGD())) == ["fresh"]


def test_masked_blocks_that_are_not_re_randomised(monkeypatch: Patch) -> None:
    """r**n left off in what goes to the key-holder: values stay masked, multipliers do not."""
    monkeypatch.setattr(PaillierPublicKey, "draw", lambda self, count: [mpz(1)] * count)
    assert failed(made(PAIR)) == ["fresh"]


@pytest.mark.parametrize("scheme", ["paillier", "ckks"])
def test_hidden_sums_that_are_not_re_randomised(monkeypatch: Patch, scheme: str) -> None:
    monkeypatch.setattr(PaillierSum, "rerandomise", lambda self: self)
    monkeypatch.setattr(RlweSum, "rerandomise", lambda self: self)
    # The key-holder would notice by itself that it is asked twice; the audit has to without its memory.
    monkeypatch.setattr(OpeningMemory, "check", lambda self, digests: None)
    assert failed(made("blind, three", scheme)) == ["fresh"]


@pytest.mark.parametrize("protocol", ["transfer", "network, two parties"])
def test_one_randomness_for_all(monkeypatch: Patch, protocol: str) -> None:
    """Each looks random, and two of them divided give the difference of their values to anybody."""
    draw = OwnerResidues.draw
    kept: dict[int, mpz] = {}

    def one(self: OwnerResidues, count: int) -> list[mpz]:
        return [kept.setdefault(id(self), draw(self, 1)[0])] * count

    monkeypatch.setattr(OwnerResidues, "draw", one)
    assert failed(made(protocol)) == ["fresh"]


def test_one_randomness_for_all_under_ckks(monkeypatch: Patch) -> None:
    """More rows than a ciphertext has slots, so that there are two of them; with one c1 it shows."""
    fresh = keys().holder("ckks", 0).public.encrypt(np.zeros(5000), FixedPoint(1.0))
    assert isinstance(fresh, CkksEncrypted) and fresh.ciphertexts == 2 and not fresh.repeated()
    words = fresh.residues()
    words[1, 1] = words[0, 1]
    monkeypatch.setattr(fresh, "residues", lambda: words)
    assert evidence.leaving(fresh)["origin"] not in ("fresh", "re-randomised")


def test_a_ciphertext_that_is_sent_again(monkeypatch: Patch) -> None:
    with extra(monkeypatch, "contribution", lambda link, blob: blob, facts={"origin": "fresh"}):
        assert failed(made(PAIR)) == ["fresh"]


def test_a_ciphertext_passed_back_to_who_made_it(monkeypatch: Patch) -> None:
    """Blind training passes the key-holder's ciphertexts on to others; to the key-holder it must not."""
    leaving = evidence.leaving

    def misnamed(encrypted: Any, *, source: str | None = None) -> dict[str, Any]:
        return leaving(encrypted, source="p1" if source else None)

    monkeypatch.setattr(evidence, "leaving", misnamed)
    assert failed(made("blind, three")) == ["fresh"]


# masked, mask-once


@pytest.mark.parametrize("scheme", ["paillier", "ckks"])
def test_masks_that_are_zero(monkeypatch: Patch, scheme: str) -> None:
    """The key-holder opens the gradient itself."""
    monkeypatch.setattr(paillier_encrypted, "uniform_many_below", lambda n, count: [mpz(0)] * count)
    monkeypatch.setattr(
        ckks_encrypted, "uniform", lambda count, primes=2: np.zeros((primes, count), dtype=np.uint64)
    )
    assert failed(made(PAIR, scheme)) == ["masked"]


@pytest.mark.parametrize("scheme", ["paillier", "ckks"])
def test_hidden_entries_without_masks(monkeypatch: Patch, scheme: str) -> None:
    monkeypatch.setattr(hidden, "_sums_from", lambda source, count, bits: [0] * count)
    assert failed(made("blind, three", scheme)) == ["masked"]


def test_masks_that_are_too_small(monkeypatch: Patch) -> None:
    """Random, all different, and a few bits where there should be as many as the modulus has."""

    def few(count: int, primes: int = 2) -> Any:
        return np.frombuffer(os.urandom(4 * count), np.uint32).astype(np.uint64)[None].repeat(primes, axis=0)

    small = lambda n, count: [mpz(int.from_bytes(os.urandom(8), "big")) for _ in range(count)]  # noqa: E731
    monkeypatch.setattr(paillier_encrypted, "uniform_many_below", small)
    monkeypatch.setattr(ckks_encrypted, "uniform", few)
    assert failed(made(PAIR)) == ["masked"]
    assert failed(made(PAIR, "ckks")) == ["masked"]


@pytest.mark.parametrize("scheme", ["paillier", "ckks"])
def test_hidden_entries_under_masks_that_are_too_small(monkeypatch: Patch, scheme: str) -> None:
    draw = hidden._sums_from
    monkeypatch.setattr(hidden, "_sums_from", lambda source, count, bits: draw(source, count, bits - 64))
    assert failed(made("blind, three", scheme)) == ["masked"]


def test_a_block_that_was_never_masked(monkeypatch: Patch) -> None:
    """`masked` in name only: the facts know of no mask."""
    hidden = evidence.hidden

    def unmasked(*arguments: Any, **more: Any) -> dict[str, Any]:
        facts = hidden(*arguments, **more)
        del facts["mask"]
        return facts

    monkeypatch.setattr(evidence, "hidden", unmasked)
    monkeypatch.setattr(evidence, "spent", lambda *arguments: None)
    assert failed(made(PAIR)) == ["masked"]


@pytest.mark.parametrize("scheme", ["paillier", "ckks"])
def test_one_mask_for_all(monkeypatch: Patch, scheme: str) -> None:
    kept = {1: mpz(int.from_bytes(os.urandom(255), "big"))}
    noise = np.frombuffer(os.urandom(16 * 8192), dtype=np.uint64).reshape(2, -1) >> np.uint64(5)
    monkeypatch.setattr(paillier_encrypted, "uniform_many_below", lambda n, count: [kept[1]] * count)
    monkeypatch.setattr(ckks_encrypted, "uniform", lambda count, primes=2: noise[:, :count])
    assert failed(made(PAIR, scheme)) == ["mask-once"]


def test_masks_that_are_kept(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Mask, "_destroy", lambda self: None)
    assert failed(made(PAIR)) == ["mask-once"]


def test_masks_whose_end_nobody_wrote_down(monkeypatch: Patch) -> None:
    """Neither removed nor forgotten, as far as the transcript goes."""
    monkeypatch.setattr(evidence, "spent", lambda *arguments: None)
    assert failed(made(PAIR)) == ["mask-once"]


@pytest.mark.parametrize("scheme", ["paillier", "ckks"])
def test_one_mask_for_all_hidden_entries(monkeypatch: Patch, scheme: str) -> None:
    drawn = hidden._sums_from(os.urandom, 1, 200)[0]
    monkeypatch.setattr(hidden, "_sums_from", lambda source, count, bits: [drawn >> (200 - bits)] * count)
    assert failed(made("blind, three", scheme)) == ["mask-once"]


@pytest.mark.parametrize("scheme", ["paillier", "ckks"])
def test_masks_of_hidden_entries_that_are_kept(monkeypatch: Patch, scheme: str) -> None:
    monkeypatch.setattr(evidence, "spent_entries", lambda *arguments: None)
    assert failed(made("blind, three", scheme)) == ["mask-once"]


# sums, ledger, scores


@pytest.mark.parametrize("agreed", [True, False])
def test_gradients_of_single_rows(monkeypatch: Patch, agreed: bool) -> None:
    """FATE's way: the gradient by each row's hidden representation is opened. Agreed upon or not."""
    federation = transfer(shared_people(n=10), keys(), scheme="paillier", width=2, rounds=2)
    sides = {name: PerSample(side) for name, side in federation.sides.items()}
    members = tuple(
        replace(member, equations=sides[member.name].equations) for member in federation.agreement.members
    )
    larger = replace(federation.agreement, members=members)
    serve = openings.serve

    async def lenient(link: Link, agreement: Any, *rest: Any) -> None:
        await serve(link, larger, *rest)

    if agreed:
        federation.agreement = larger
    else:
        monkeypatch.setattr(training, "serve", lenient)
    federation.sides = dict(sides)
    programs = {name: party.run for name, party in federation.parties().items()}
    assert failed(Made(federation.agreement, programs, {})) == ["sums"]


def test_past_the_line() -> None:
    """A batch of as many rows as a party has columns: its residuals are determined, and all had agreed."""
    assert failed(made(PAIR, batch=2, allow_determined=True)) == ["ledger"]


def test_past_the_line_without_a_word_about_it(monkeypatch: Patch) -> None:
    """The requester leaves out its own notes; the messages tell all the same."""
    note = Transcript.note

    def silent(self: Transcript, event: str, *place: Any, **detail: Any) -> None:
        if event != "requested":
            note(self, event, *place, **detail)

    monkeypatch.setattr(Transcript, "note", silent)
    assert failed(made(PAIR, batch=2, allow_determined=True)) == ["ledger"]


# nothing


@pytest.mark.parametrize("scheme", [pytest.param("paillier", marks=pytest.mark.slow), "ckks"])
def test_a_product_of_no_share(monkeypatch: Patch, scheme: str) -> None:
    """A key-holder of blind transfer learning gets a second product to read beside the one it asked for."""
    lent: list[Any] = []
    send, receive = Link.send, Link.receive
    for kind in (PaillierSum, RlweSum):
        lend = kind.lend
        monkeypatch.setattr(kind, "lend", lambda self, lend=lend: lent.append((self, lend)) or lend(self))

    def sending(self: Link, receiver: str, name: str, blob: bytes, **more: Any) -> None:
        send(self, receiver, name, blob, **more)
        if name == "share-product":
            sums, lend = lent[-1]
            block, masks = lend(sums)
            t, step = more["round"], more["step"] + 1000
            send(self, receiver, name, block.to_bytes(), round=t, step=step,
                 facts=evidence.hidden(self, block, masks))  # fmt: skip
            evidence.spent_entries(self, name, receiver, t, step, masks)

    async def receiving(self: Link, name: str, sender: str, **place: Any) -> bytes:
        blob = await receive(self, name, sender, **place)
        if name == "share-product":
            where = (place["round"], place["step"] + 1000)
            await receive(self, name, sender, round=where[0], step=where[1])
            self.transcript.note("checked", name, sender, *where, self.phase, checks=[])
        return blob

    monkeypatch.setattr(Link, "send", sending)
    monkeypatch.setattr(Link, "receive", receiving)
    assert failed(made("blind, transfer", scheme)) == ["nothing"]


@pytest.mark.parametrize("to", ["the other", pytest.param("the same", marks=pytest.mark.slow)])
def test_a_product_for_somebody_else(monkeypatch: Patch, to: str) -> None:
    """A key-holder party gives what it read to the one who multiplied too, or once more to the owner."""
    send, receive = Link.send, Link.receive

    def sending(self: Link, receiver: str, name: str, blob: bytes, **more: Any) -> None:
        send(self, receiver, name, blob, **more)
        if name == "product-share" and (more["round"], more["step"]) == (1, 4):
            second = receiver if to == "the same" else "AB".replace(receiver, "")
            send(self, second, name, blob, round=1, step=1000)

    async def receiving(self: Link, name: str, sender: str, **place: Any) -> bytes:
        # Phi, by A's matrix: A multiplies, and B gets what was read.
        who = "B" if to == "the same" else "A"
        if (name, self.name, *place.values()) == ("product-share", who, 1, 5):
            await receive(self, name, sender, round=1, step=1000)
            self.transcript.note("checked", name, sender, 1, 1000, self.phase, checks=[])
        return await receive(self, name, sender, **place)

    monkeypatch.setattr(Link, "send", sending)
    monkeypatch.setattr(Link, "receive", receiving)
    assert failed(made("blind, transfer, key-holder", "ckks")) == ["nothing"]


def test_parameters_that_nobody_agreed_to_release(monkeypatch: Patch) -> None:
    agreed = Agreement.to_dict
    monkeypatch.setattr(Agreement, "to_dict", lambda self: {**agreed(self), "release": False})
    assert failed(made("blind, released", "ckks")) == ["nothing"]


def test_scores_for_somebody_else(monkeypatch: Patch) -> None:
    """The key-holder sends the opened scores to a second party as well."""
    send, receive = Link.send, Link.receive

    def sending(self: Link, receiver: str, name: str, blob: bytes, **more: Any) -> None:
        send(self, receiver, name, blob, **more)
        if name == "score-opening":
            send(self, "p0", name, blob, **more)

    async def receiving(self: Link, name: str, sender: str, **place: Any) -> bytes:
        if self.name == "p0" and name == "verdict" and place["round"] == 1:
            self.phase = "evaluation"
            await receive(self, "score-opening", "C", round=1)
            self.transcript.note("checked", "score-opening", "C", 1, 0, self.phase, checks=[])
            self.phase = "training"
        return await receive(self, name, sender, **place)

    monkeypatch.setattr(Link, "send", sending)
    monkeypatch.setattr(Link, "receive", receiving)
    assert failed(made(STAR)) == ["scores"]


@pytest.mark.parametrize("protocol", [PAIR, STAR, "transfer", "blind, two parties"])
def test_scores_that_nobody_blurred(monkeypatch: Patch, protocol: str) -> None:
    def exact(self: ScoreGuard, rows: Any, context: bytes, outputs: int, **sizes: Any) -> Any:
        noises, facts = noisy(self, rows, context, outputs, **sizes)
        return [[0] * len(each) for each in noises], {"scored": facts["scored"]}

    noisy = ScoreGuard.noises
    monkeypatch.setattr(ScoreGuard, "noises", exact)
    assert failed(made(protocol)) == ["blurred"]


def test_scores_that_are_blurred_less_than_agreed(monkeypatch: Patch) -> None:
    def finer(self: ScoreGuard, rows: Any, context: bytes, outputs: int, **sizes: Any) -> Any:
        return noisy(self, rows, context, outputs, **{**sizes, "precision_bits": 16})

    noisy = ScoreGuard.noises
    monkeypatch.setattr(ScoreGuard, "noises", finer)
    assert failed(made(STAR)) == ["blurred"]


@pytest.mark.parametrize(("mode", "column_bits"), [("off", 1e6), ("warn", 4.0), ("refuse", 4.0)])
def test_scores_of_people_that_nobody_counted_or_of_few_values(mode: str, column_bits: float) -> None:
    run = made(STAR)
    for program in run.programs.values():
        party = program.__self__  # type: ignore[attr-defined]
        if hasattr(party, "guard"):
            party.guard = ScoreGuard(party="p", mode=mode, column_bits=column_bits)
    assert failed(run) == ["score-ledger"]


# named, checked, agreed, receipts, whole, result


def test_a_message_that_the_protocol_does_not_name(monkeypatch: Patch) -> None:
    kinds = {*KINDS, "statistics"}
    with extra(monkeypatch, "contribution", lambda link, blob: b"mean 0.5", kind="statistics"):
        assert failed(made(PAIR), kinds=kinds) == ["named"]


def test_a_named_message_from_somebody_else(monkeypatch: Patch) -> None:
    with extra(monkeypatch, "contribution", lambda link, blob: b"\0", kind="verdict"):
        found = failed(made(STAR))
    assert found == ["named"]


def test_arrivals_that_nobody_checked(monkeypatch: Patch) -> None:
    async def trusting(self: Exchange, kind: str, sender: str, round_: int, step: int = 0) -> Encrypted:
        blob = await self._link.receive(kind, sender, round=round_, step=step)
        return self._keys.public.load(blob)

    monkeypatch.setattr(Exchange, "_receive", trusting)
    assert failed(made(PAIR)) == ["checked"]


def test_parties_that_agreed_on_different_things() -> None:
    one = made(PAIR)
    other = PROTOCOLS[PAIR]("paillier", FedBCD(2, proximal=0.25))
    one.programs["p1"] = other.programs["p1"]
    other.programs["p1"].__self__._agreement = replace(  # type: ignore[attr-defined]
        one.agreement, algorithm=FedBCD(2, proximal=0.25)
    )
    transcripts, _ = one.run()
    assert audit(transcripts).failed == ["agreed"]


def test_a_run_that_went_on_by_other_settings() -> None:
    """Every attempt at a run counts, not the first alone."""
    transcripts, result = made(PAIR).run()
    first = transcripts["p0"].of("agreed")[0].detail
    settings = {**first["settings"], "allow_determined": True}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    again = {**first, "digest": digest, "settings": settings}
    for transcript in transcripts.values():
        transcript.note("agreed", "agreement", "", 0, 0, "setup", **again)
    report = audit(transcripts, result)
    assert report.failed == ["agreed"]
    assert "allow_determined" in next(c.evidence for c in report.claims if c.name == "agreed")


def test_a_message_that_changes_on_the_way(monkeypatch: Patch) -> None:
    """Somebody on the wire swaps the parts of one message for another valid one."""
    holder = keys().holder("paillier", 0)

    def tap(message: Any) -> Any:
        if message.kind != "score-part":
            return message
        other = holder.encrypt(np.full(6, 0.25), FixedPoint(16.0)).to_bytes()
        return replace(message, payload=other)

    assert failed(made(PAIR), tap=tap) == ["receipts"]


def test_an_entry_that_is_altered_later() -> None:
    transcripts, result = made(PAIR).run()
    entries = transcripts["p0"].entries
    place = max(i for i, entry in enumerate(entries) if entry.event == "checked")
    entries[place] = replace(entries[place], detail={"checks": ["everything"]})
    assert audit(transcripts, result).failed == ["whole"]


def test_a_result_that_tells_another_story() -> None:
    transcripts, result = made(PAIR).run()
    result["ledger"][0]["equations"] -= 1
    assert audit(transcripts, result).failed == ["result"]


def test_every_claim_has_a_break_here() -> None:
    """So that a new claim comes with one."""
    from pathlib import Path

    from securefed.audit import CLAIMS

    text = Path(__file__).read_text()
    for statement in CLAIMS:
        assert f'["{statement.name}"]' in text, statement.name


def test_the_breaks_are_in_what_runs() -> None:
    """The names that are patched above are the ones that the protocols call."""
    assert training.ask_sums is openings.ask_sums
    assert keyring_module.distribute_keys is loop.distribute_keys
