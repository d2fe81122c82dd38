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
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gmpy2 import mpz

from research.attacks.blind_cheats import replayed_model
from research.attacks.clear import CLEAR
from securefed import Monitoring
from securefed.audit import CLAIMS, audit
from securefed.audit.blind import BLIND
from securefed.crypto import FixedPoint, find_kind, generate, load_public_key, shares
from securefed.crypto.blind.paillier import paillier_scheme
from securefed.crypto.ckks.arrays import CkksEncrypted
from securefed.crypto.lattice.ring import PRIMES, RING
from securefed.crypto.paillier import arrays as paillier_encrypted
from securefed.crypto.paillier.keys import PaillierPublicKey
from securefed.crypto.paillier.primes import Owner
from securefed.crypto.scheme import Encrypted, Mask
from securefed.crypto.wire import Kind
from securefed.protocols import channel as keyring_module
from securefed.protocols.agreement import Agreement
from securefed.protocols.channel import Channel
from securefed.protocols.messages import KINDS
from securefed.protocols.own_gradient import openings, training
from securefed.protocols.own_gradient.training import Exchange
from securefed.protocols.schedules import FedBCD, FedSGD
from securefed.protocols.scoring.score_ledger import ScoreGuard
from securefed.transport.link import Link
from securefed.transport.transcript import Transcript
from tests.audit.fate_style import PerSample
from tests.audit.runs import PROTOCOLS, Made, keys
from tests.protocols.federation import shared_people, transfer

pytestmark = pytest.mark.filterwarnings("ignore::securefed.protocols.own_gradient.ledger.LedgerWarning")
Patch = pytest.MonkeyPatch
PAIR, STAR, PAIRED = "linear, two parties", "linear, three, star", "blind, two parties"


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
        party._context = replace(party._context, holder=small[name])
    monkeypatch.setattr(keyring_module, "load_public_key", partial(load_public_key, allow_small=True))
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


@pytest.mark.parametrize("protocol", ["transfer", "network, two parties"])
def test_one_randomness_for_all(monkeypatch: Patch, protocol: str) -> None:
    """Each looks random, and two of them divided give the difference of their values to anybody."""
    draw = Owner.draw
    kept: dict[int, mpz] = {}

    def one(self: Owner, count: int, *, keep: bool = True) -> list[mpz]:
        return [kept.setdefault(id(self), draw(self, 1)[0])] * count

    monkeypatch.setattr(Owner, "draw", one)
    assert failed(made(protocol)) == ["fresh"]


def test_one_randomness_for_all_under_ckks() -> None:
    """More rows than a ciphertext has slots, so that there are two of them; with one c1 it shows."""
    fresh = keys().holder("ckks", 0).public.encrypt(np.zeros(3000), FixedPoint(1.0))
    assert isinstance(fresh, CkksEncrypted) and fresh.ciphertexts == 2 and not fresh.repeated()
    fresh.residues[:, 1, 1] = fresh.residues[:, 1, 0]
    assert fresh.repeated() == 1


def test_a_ciphertext_that_is_sent_again(monkeypatch: Patch) -> None:
    with extra(monkeypatch, "contribution", lambda link, blob: blob, facts={"origin": "fresh"}):
        assert failed(made(PAIR)) == ["fresh"]


# masked, mask-once


@pytest.mark.parametrize("scheme", ["paillier", "ckks"])
def test_masks_that_are_zero(monkeypatch: Patch, scheme: str) -> None:
    """The key-holder opens the gradient itself."""
    monkeypatch.setattr(paillier_encrypted, "uniform_many_below", lambda n, count: [mpz(0)] * count)
    monkeypatch.setattr(RING, "uniform", lambda source, count: np.zeros((len(PRIMES), count)))
    assert failed(made(PAIR, scheme)) == ["masked"]


def test_masks_that_are_too_small(monkeypatch: Patch) -> None:
    """Random, all different, and a few bits where there should be as many as the modulus has."""

    def few(source: object, count: int) -> Any:
        return RING.whole(np.frombuffer(os.urandom(4 * count), np.uint32).astype(np.int64), 0)

    small = lambda n, count: [mpz(int.from_bytes(os.urandom(8), "big")) for _ in range(count)]  # noqa: E731
    monkeypatch.setattr(paillier_encrypted, "uniform_many_below", small)
    monkeypatch.setattr(RING, "uniform", few)
    assert failed(made(PAIR)) == ["masked"]
    assert failed(made(PAIR, "ckks")) == ["masked"]


def test_a_block_that_was_never_masked(monkeypatch: Patch) -> None:
    """`masked` in name only: the facts know of no mask."""
    hidden = Channel._hidden

    def unmasked(*arguments: Any) -> dict[str, Any]:
        facts = hidden(*arguments)
        del facts["mask"]
        return facts

    monkeypatch.setattr(Channel, "_hidden", unmasked)
    monkeypatch.setattr(Channel, "_spent", lambda *arguments: None)
    assert failed(made(PAIR)) == ["masked"]


@pytest.mark.parametrize("scheme", ["paillier", "ckks"])
def test_one_mask_for_all(monkeypatch: Patch, scheme: str) -> None:
    kept = {1: mpz(int.from_bytes(os.urandom(255), "big"))}
    noise = RING.uniform(os.urandom, 8192)
    monkeypatch.setattr(paillier_encrypted, "uniform_many_below", lambda n, count: [kept[1]] * count)
    monkeypatch.setattr(RING, "uniform", lambda source, count: noise[:, :count])
    assert failed(made(PAIR, scheme)) == ["mask-once"]


def test_masks_that_are_kept(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Mask, "_destroy", lambda self: None)
    assert failed(made(PAIR)) == ["mask-once"]


def test_masks_whose_end_nobody_wrote_down(monkeypatch: Patch) -> None:
    """Neither removed nor forgotten, as far as the transcript goes."""
    monkeypatch.setattr(Channel, "_spent", lambda *arguments: None)
    assert failed(made(PAIR)) == ["mask-once"]


# sums, ledger, scores


@pytest.mark.parametrize("agreed", [True, False])
def test_gradients_of_single_rows(monkeypatch: Patch, agreed: bool) -> None:
    """FATE's way: the gradient by each row's hidden representation is opened. Agreed upon or not."""
    federation = transfer(shared_people(n=10), keys(), scheme="paillier", width=2, rounds=2)
    sides = {name: PerSample(side) for name, side in federation.sides.items()}
    members = tuple(
        replace(member, parameters=sides[member.name].equations) for member in federation.agreement.members
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


# Blind runs: clear, encrypted, foreign-key, fresh, mask-once, due, outputs


def blind_made(protocol: str = PAIRED, **changes: Any) -> Made:
    return PROTOCOLS[protocol]("ckks", FedBCD(2), **changes)


def changed(
    patch: Patch,
    kind: str,
    change: Callable[[Link, bytes], bytes],
    chosen: Callable[..., bool] = lambda **_: True,
) -> None:
    """Bytes of one kind leave a party as others; whoever gets them takes them."""
    send = Link.send

    def sending(self: Link, receiver: str, name: str, blob: bytes, **more: Any) -> None:
        if name == kind and chosen(link=self, receiver=receiver, **more):
            blob = change(self, blob)
        send(self, receiver, name, blob, **more)

    patch.setattr(Link, "send", sending)


def test_a_blind_run_without_encryption() -> None:
    """The product in the clear: columns and labels as numbers in the place of ciphertexts."""
    assert failed(blind_made(cross=CLEAR)) == ["clear", "fresh", "due"]


@pytest.mark.parametrize("kind", ["difference", "part", "score-share", "reply"])
def test_shares_that_are_not_random(monkeypatch: Patch, kind: str) -> None:
    """Numbers as they are, where a uniform share is due."""

    def bare(link: Link, blob: bytes) -> bytes:
        count = 3 * (len(blob) // 8) // 5
        numbers = shares.to_bytes(shares.from_floats(np.linspace(-1.0, 2.0, count), 40))
        return numbers + bytes(len(blob) - len(numbers))

    changed(monkeypatch, kind, bare)
    found = failed(blind_made("blind, three"))
    assert "clear" in found and set(found) <= {"clear", "mask-once"}


def test_keys_of_a_blind_run_that_are_too_small() -> None:
    made_ = PROTOCOLS[PAIRED]("paillier", FedBCD(2), cross=paillier_scheme(512, allow_small=True))
    assert failed(made_) == ["encrypted"]


def test_an_operand_under_no_key(monkeypatch: Patch) -> None:
    """Transcripts that know of no key for what one party encrypted for another."""
    transcripts, result = blind_made("blind, three").run()
    for transcript in transcripts.values():
        transcript.entries = [
            replace(entry, peer="helper") if keyed(transcript, entry) else entry
            for entry in transcript.entries
        ]
    found = audit(transcripts, result).failed
    assert "foreign-key" in found


def keyed(transcript: Transcript, entry: Any) -> bool:
    ends = {transcript.party, entry.peer}
    return entry.kind == "cross-key" and ends == {"p0", "p1"}


def test_a_model_share_that_is_encrypted_once_for_all_evaluations() -> None:
    """The label party sends the ciphertexts of an earlier model again."""
    with replayed_model():
        assert failed(blind_made(rounds=3, monitoring=Monitoring(evaluate_every=1))) == ["fresh"]


def test_the_same_difference_twice(monkeypatch: Patch) -> None:
    """A random column serves two rounds, for a share that has not moved."""
    kept: dict[str, bytes] = {}
    changed(monkeypatch, "difference", lambda link, blob: kept.setdefault(link.name, blob))
    assert failed(blind_made()) == ["mask-once"]


def one_more(
    patch: Patch, after: str, kind: str, payload: Callable[[bytes], bytes], sender: str, to: str
) -> None:
    """With the first message of a kind goes another one, which is taken."""
    send, receive = Link.send, Link.receive
    state = {"sent": False, "taken": False}

    def sending(self: Link, receiver: str, name: str, blob: bytes, **more: Any) -> None:
        send(self, receiver, name, blob, **more)
        if name == after and (self.name, receiver) == (sender, to) and not state["sent"]:
            state["sent"] = True
            send(
                self, to, kind, payload(blob), **{key: more[key] for key in ("round", "step") if key in more}
            )

    async def receiving(self: Link, name: str, peer: str, **place: Any) -> bytes:
        blob = await receive(self, name, peer, **place)
        if name == after and (peer, self.name) == (sender, to) and not state["taken"]:
            state["taken"] = True
            await receive(self, kind, peer, **place)
        return blob

    patch.setattr(Link, "send", sending)
    patch.setattr(Link, "receive", receiving)


def test_a_key_of_a_party_that_encrypts_nothing(monkeypatch: Patch) -> None:
    """The party without labels sends a key of its own."""
    one_more(monkeypatch, "reply", "cross-key", lambda blob: bytes(382_296), "p0", "p1")
    assert failed(blind_made()) == ["due"]


@pytest.mark.parametrize("kind", ["operand", "reply", "difference", "part", "question"])
def test_one_message_more_than_is_due(monkeypatch: Patch, kind: str) -> None:
    sender, to = {"operand": ("p2", "p0"), "reply": ("p0", "p2"), "difference": ("helper", "p2"),
                  "part": ("p1", "helper"), "question": ("helper", "p1")}[kind]  # fmt: skip
    one_more(monkeypatch, kind, kind, _fresh, sender, to)
    assert failed(blind_made("blind, three")) == ["due"]


def _fresh(blob: bytes) -> bytes:
    """As many bytes, of shares that nobody has."""
    return shares.to_bytes(shares.uniform_from(os.urandom, 3 * (len(blob) // 8) // 5 + 1))[: len(blob)]


def test_one_message_more_than_is_due_in_transfer_learning(monkeypatch: Patch) -> None:
    one_more(monkeypatch, "difference", "difference", _fresh, "B", "A")
    assert failed(blind_made("blind, transfer")) == ["due"]


@pytest.mark.parametrize(
    ("after", "kind", "sender", "to", "claims"),
    [
        ("reply", "cross-key", "B", "A", {"due"}),
        ("score", "score", "B", "A", {"due", "outputs", "blurred", "score-ledger"}),
    ],
)
def test_keys_and_scores_that_are_not_due_in_transfer_learning(
    monkeypatch: Patch, after: str, kind: str, sender: str, to: str, claims: set[str]
) -> None:
    one_more(monkeypatch, after, kind, _fresh if kind == "score" else lambda _: bytes(382_296), sender, to)
    assert set(failed(blind_made("blind, transfer"))) == claims


def test_an_operand_with_more_columns(monkeypatch: Patch) -> None:
    """One end sends more than is due, and the other cuts it off without a word."""
    changed(monkeypatch, "operand", lambda link, blob: blob + _fresh(bytes(4096)))
    receive = Link.receive

    async def cutting(self: Link, name: str, peer: str, **place: Any) -> bytes:
        blob = await receive(self, name, peer, **place)
        return blob[:-4096] if name == "operand" else blob

    monkeypatch.setattr(Link, "receive", cutting)
    assert failed(blind_made()) == ["due"]


def test_a_second_score(monkeypatch: Patch) -> None:
    one_more(monkeypatch, "score", "score", _fresh, "p0", "p1")
    assert set(failed(blind_made())) == {"outputs", "blurred", "score-ledger"}


def test_scores_of_another_evaluation_than_agreed() -> None:
    """The parties evaluate after every round, and the agreement says after the last."""
    transcripts, result = blind_made(rounds=2, monitoring=Monitoring(evaluate_every=1)).run()
    settings = {**result["settings"], "evaluate_every": 2}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    for transcript in transcripts.values():
        (agreed,) = transcript.of("agreed")
        agreed.detail.update(settings=settings, digest=digest)
        entries, transcript.entries = transcript.entries, []
        for entry in entries:
            transcript._append(replace(entry, chain=""))
    found = audit(transcripts, {**result, "settings": settings}).failed
    assert set(found) == {"due", "outputs"}


def test_parameters_that_nobody_agreed_to_release(monkeypatch: Patch) -> None:
    agreed = Agreement.to_dict
    monkeypatch.setattr(Agreement, "to_dict", lambda self: {**agreed(self), "release": False})
    assert failed(made("blind, released", "ckks")) == ["outputs"]


def test_an_opening_in_a_blind_run(monkeypatch: Patch) -> None:
    one_more(monkeypatch, "difference", "opening", lambda blob: b"", "p1", "p0")
    assert "outputs" in failed(blind_made())


def test_every_claim_about_blind_runs_has_a_break_here() -> None:
    text = Path(__file__).read_text()
    for statement in BLIND:
        assert f'"{statement.name}"' in text, statement.name


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


@pytest.mark.parametrize(
    ("protocol", "scheme"),
    [
        (PAIR, "paillier"),
        (STAR, "paillier"),
        ("transfer", "ckks"),
        (PAIRED, "ckks"),
        ("blind, three", "ckks"),
    ],
)
def test_scores_that_nobody_blurred(monkeypatch: Patch, protocol: str, scheme: str) -> None:
    def exact(self: ScoreGuard, rows: Any, context: bytes, outputs: int = 1, **sizes: Any) -> Any:
        noises, facts = noisy(self, rows, context, outputs, **sizes)
        return [[0] * len(each) for each in noises], {"ledger": facts["ledger"]}

    noisy = ScoreGuard.noises
    monkeypatch.setattr(ScoreGuard, "noises", exact)
    assert failed(made(protocol, scheme)) == ["blurred"]


def test_scores_that_are_blurred_less_than_agreed(monkeypatch: Patch) -> None:
    def finer(self: ScoreGuard, rows: Any, context: bytes, outputs: int = 1, **sizes: Any) -> Any:
        return noisy(self, rows, context, outputs, **{**sizes, "precision_bits": 16})

    noisy = ScoreGuard.noises
    monkeypatch.setattr(ScoreGuard, "noises", finer)
    assert failed(made(STAR)) == ["blurred"]


@pytest.mark.parametrize("protocol", [STAR, PAIRED])
def test_scores_of_people_that_nobody_counted(protocol: str) -> None:
    run = made(protocol, "ckks")
    for program in run.programs.values():
        party = program.__self__  # type: ignore[attr-defined]
        if hasattr(party, "guard"):
            party.guard = ScoreGuard(party="p", mode="off", column_bits=1e6)
    assert failed(run) == ["score-ledger"]


# named, checked, agreed, receipts, whole, result


def test_a_message_that_the_protocol_does_not_name(monkeypatch: Patch) -> None:
    kinds = {*KINDS, "statistics"}
    with extra(monkeypatch, "contribution", lambda link, blob: b"mean 0.5", kind="statistics"):
        done = made(PAIR).done(kinds=kinds)
    assert audit({name: link.transcript for name, link in done.links.items()}).failed == ["named"]


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
    text = Path(__file__).read_text()
    for statement in CLAIMS:
        assert f'"{statement.name}"' in text, statement.name


def test_the_breaks_are_in_what_runs() -> None:
    """The names that are patched above are the ones that the protocols call."""
    assert training.ask_sums is openings.ask_sums
    assert keyring_module.distribute_keys is training.distribute_keys
