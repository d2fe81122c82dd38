"""Questions that look alike: the same bytes about other people, for another number of rows, under another
key, or simply again. Under one blur the difference of two answers would be exact, and nothing booked.

The naive variants key blur and ledger on the bytes of the question and the shares of the model alone, draw
replies afresh, hand a helper all bits of a share, and count all questions of a run as one scoring.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import numpy as np
import pytest
from gmpy2 import mpz, next_prime

from research.attacks.blind_cheats import (
    BLUR_BITS,
    MUCH,
    SHOWN_BITS,
    Scored,
    ask_again,
    centred,
    people,
    score_run,
)
from research.attacks.clear import CLEAR
from securefed import Party, TransferLearner
from securefed.assembly import build
from securefed.crypto import shares
from securefed.crypto.blind.interface import CrossPublic, CrossScheme, Product
from securefed.crypto.blind.paillier import PaillierCrossKey, Slots, paillier_scheme
from securefed.crypto.blind.rlwe import RLWE
from securefed.crypto.paillier.keys import PaillierSecretKey
from securefed.crypto.paillier.primes import FactoredPrime, Owner, PrimePair
from securefed.crypto.shares import LIMBS, WIDTH, Share
from securefed.errors import SecurefedError
from securefed.protocols.blind import scoring
from securefed.protocols.blind.cross import At, Encryptor, Multiplier
from securefed.protocols.blind.linear import BLOCK, BlindParty
from securefed.protocols.blind.scoring import ModelPart
from securefed.protocols.blind.statistics import ROW_BITS, SCORE_BITS
from securefed.protocols.loop import PartyLoop
from securefed.protocols.scoring.score_ledger import ScoreGuard, ScoreRefusal, score_bits
from securefed.transport.link import Link
from tests.protocols.told import told

FEW = 1 << 76
"""Below the blur, and above the errors of products."""
SMALL = paillier_scheme(1024, allow_small=True)
PRIMES = [next_prime(mpz(top) << 508) for top in (13, 14, 15)]
Patch = pytest.MonkeyPatch
both = pytest.mark.parametrize("naive", [False, True], ids=["as it is", "naive"])


def by_question_alone(question: bytes, keys: Multiplier, part: ModelPart, own: Share) -> bytes:
    return scoring._hash([question, *part.sealed, *map(shares.to_bytes, part.blocks.values())])


def with_(monkeypatch: Patch, naive: bool) -> None:
    if naive:
        monkeypatch.setattr(scoring, "_context", by_question_alone)


@contextmanager
def asking_with(blocks: list[bytes]) -> Iterator[list[bytes]]:
    """The label party asks with these bytes; with its own, which are kept, as long as there are none."""
    send = Encryptor.send

    async def sending(self: Encryptor, peer: str, *given: Any, at: At, **more: Any) -> None:
        if blocks:
            for block in blocks:
                self.link.send(peer, "operand", block, round=at.round, step=at.step)
            return
        before = len(self.link.outbox)
        await send(self, peer, *given, at=at, **more)
        blocks.extend(each.payload for each in self.link.outbox[before:] if each.kind == "operand")

    with Patch.context() as patch:
        patch.setattr(Encryptor, "send", sending)
        yield blocks


def trained(sizes: tuple[int, ...], rows: int = 24, scheme: CrossScheme = RLWE) -> Scored:
    columns, labels = people(rows, sizes)
    return score_run(columns, labels, rounds=1, evaluate_every=0, scheme=scheme)


def key_of(p: mpz, q: mpz) -> PaillierCrossKey:
    primes = PrimePair(FactoredPrime(p), FactoredPrime(q))
    return PaillierCrossKey(PaillierSecretKey(primes, allow_small=True))


def ciphertext(number: mpz) -> bytes:
    return bytes(number.to_bytes(256, "big"))


def total_of(public: CrossPublic, key: Any, product: Product, blocks: list[bytes], right: Share) -> Share:
    """For the verdict: U'V of these bytes, exact up to the errors of a product."""
    evaluation = public.evaluate(product)
    evaluation.add(dict(enumerate(blocks)), lambda first, last: right[:, first:last])
    reply, share = evaluation.finish()
    return shares.add(key.read(product, reply), share)


@both
def test_the_same_bytes_about_people_in_other_places(monkeypatch: Patch, naive: bool) -> None:
    """The label party's rows are all the same, so that its bytes are. It asks about 16 of 24 people, then
    about 16 others: common people are in the order of their ids, and whoever comes before somebody moves that
    person's place. Each place has a blur of its own, so that nine answers average.
    """
    with_(monkeypatch, naive)
    done = trained((3, 2))
    theirs = np.random.default_rng(1).normal(size=(24, 3))
    mine = np.zeros((16, 2))
    answers = set()
    for first in range(9):
        told = ask_again(done, [theirs[first : first + 16], mine], RLWE)
        answers |= {(first + place, total) for place, total in enumerate(told)}
    booked = done.guards["p0"].total_bits
    assert (booked < len(answers) * score_bits(10)) == naive
    assert len(answers) == 9 * 16


@both
def test_the_same_bytes_for_another_number_of_rows(monkeypatch: Patch, naive: bool) -> None:
    """45 and 60 rows of 10 columns take messages of one length that are read in another way. The difference
    is a known number times the other share of the label party's parameters, far below the blur.
    """
    with_(monkeypatch, naive)
    done = trained((3, 10))
    plan, part = done.programs["p0"].part.plan, done.programs["p0"].part
    theirs, mine = np.random.default_rng(1).normal(size=(60, 3)), np.zeros((60, 10))
    with asking_with([]) as blocks:
        first = ask_again(done, [theirs[:45], mine[:45]], RLWE)
        second = ask_again(done, [theirs, mine], RLWE)
    key, public = RLWE.load_key(done.programs["L"].part.key), RLWE.load_public(part.key, part.nonce)
    exact = [
        shares.to_integers(total_of(public, key, plan.rows_product(rows), blocks, part.blocks["L"])[:, :, 0])
        for rows in (45, 60)
    ]
    left = [abs(centred(second[i] - first[i] - exact[1][i] + exact[0][i])) for i in range(45)]
    assert all(each < FEW for each in left) == naive, max(left).bit_length()
    assert done.guards["p0"].total_bits == (60 if naive else 45 + 60) * score_bits(10)


@both
def test_the_same_bytes_under_another_key(monkeypatch: Patch, naive: bool) -> None:
    """After an interruption the label party answers the nonce with another key. 1 hides 0 under any Paillier
    key, and 1 + n hides 1 under n and some large number under n'. So the model changes under the same bytes,
    and the difference of two answers is that number times a row of the other party's, to the last bit.
    """
    with_(monkeypatch, naive)
    done = trained((1, 1), scheme=CLEAR)
    mine, theirs = done.programs["L"].part, done.programs["p0"].part
    theirs.nonce = bytes(32)
    product = theirs.plan.sealed_product("p0")
    keys = [key_of(*PRIMES[:2]), key_of(*PRIMES[1:])]
    n, other = PRIMES[0] * PRIMES[1], PRIMES[1] * PRIMES[2]
    theirs.sealed, nothing = [ciphertext(1 + n)], [ciphertext(mpz(1))]
    rows = np.array([[0.5], [-1.25], [2.0]])
    right = scoring._padded(shares.from_floats(rows, ROW_BITS))
    told, exact = [], []
    for key in keys:
        theirs.key, mine.key = key.public(theirs.nonce), key.to_bytes()
        with asking_with(list(nothing)):
            told.append(ask_again(done, [rows, np.zeros((3, 1))], SMALL))
        public = SMALL.load_public(theirs.key, theirs.nonce)
        exact.append(shares.to_integers(total_of(public, key, product, theirs.sealed, right)[:, 0, :3]))
    # What is hidden fills the modulus, so that a sum may wrap.
    width, left = Slots.of(product, 1024).width, []
    for i in range(3):
        moved = told[1][i] - told[0][i] - exact[1][i] + exact[0][i]
        wraps = [a * (n >> width * i) + b * (other >> width * i) for a in (-1, 0, 1) for b in (-1, 0, 1)]
        left.append(min(abs(centred(int(moved + wrap))) for wrap in wraps))
    # The difference of two blurs of 86 bits is below FEW in one row of 500 by chance, in three of 10^8.
    assert all(each < FEW for each in left) == naive
    assert done.guards["p0"].total_bits == (1 if naive else 2) * 3 * score_bits(10)


@both
def test_the_same_question_again_and_again(monkeypatch: Patch, naive: bool) -> None:
    """Slots of a Paillier reply carry into the next one if the label party fills them. Under one blur a carry
    shows as one unit more: it compares what the label party reads with the sum in the slot below. With fresh
    masks each time the sum is found by and by, and nothing is booked.
    """
    if naive:
        seeds = (bytes([number]) * 32 for number in range(256))
        monkeypatch.setattr(scoring, "_reply_seed", lambda secret, context, place: next(seeds))
    done = trained((1, 1), scheme=CLEAR)
    mine, theirs = done.programs["L"].part, done.programs["p0"].part
    key, n = key_of(*PRIMES[:2]), PRIMES[0] * PRIMES[1]
    theirs.nonce, mine.key = bytes(32), key.to_bytes()
    theirs.key = key.public(theirs.nonce)
    slots = Slots.of(theirs.plan.sealed_product("p0"), 1024)
    other = Slots.of(theirs.plan.rows_product(2), 1024)
    large = mpz(1) << (slots.width - ROW_BITS - 2)
    theirs.sealed, nothing = [ciphertext(1 + n * large)], [ciphertext(mpz(1))]
    decrypt, opened = Owner.decrypt, list[int]()

    def decrypting(self: Owner, ciphertexts: list[mpz]) -> list[mpz]:
        numbers = decrypt(self, ciphertexts)
        opened.append(int(numbers[0]))
        return numbers

    monkeypatch.setattr(Owner, "decrypt", decrypting)
    rows = np.array([[0.75], [0.25]])
    told, below = [], []
    for _ in range(12 if naive else 2):
        opened.clear()
        with asking_with(list(nothing)):
            score = ask_again(done, [rows, np.zeros((2, 1))], SMALL)[1]
        below.append(opened[0] % (1 << slots.width))
        # The label party's own rows are 0, so that it knows when their slots carry.
        told.append(score - (opened[1] % (1 << other.width) < 1 << other.offset_bits))
    assert done.guards["p0"].total_bits == 2 * score_bits(10)
    assert (len(set(told)), len(set(below))) == ((2, 12) if naive else (1, 1))
    if naive:
        least = min(told, key=lambda each: centred(each - told[0]))
        carried = max(b for t, b in zip(told, below, strict=True) if t != least)
        stayed = min(b for t, b in zip(told, below, strict=True) if t == least)
        # The sum of the first row lies between them, and one of 64 bits and more was hidden.
        low, high = ((b - (1 << slots.offset_bits)) / float(large << ROW_BITS) for b in (carried, stayed))
        assert low <= 0.75 <= high < low + 1.0


@both
def test_a_label_party_and_a_helper_read_a_share_modulo_what_is_booked(
    monkeypatch: Patch, naive: bool
) -> None:
    """Together they have both shares of a party's part of a score. All 105 bits would be p + 9 bits of it."""
    if naive:
        monkeypatch.setattr(scoring, "_cut_score", lambda total: total)
    columns, labels = people(24, (3, 2, 2))
    send, read = Link.send, Encryptor.read
    halves: list[list[int]] = []

    def sending(self: Link, receiver: str, kind: str, blob: bytes, **more: Any) -> None:
        if (kind, self.name) == ("score-share", "p0"):
            halves.append(shares.to_integers(shares.from_bytes(blob, (LIMBS, 24))))
        send(self, receiver, kind, blob, **more)

    async def reading(self: Encryptor, peer: str, *given: Any, at: At) -> Any:
        share = await read(self, peer, *given, at=at)
        if peer == "p0" and self.link.phase == "evaluation":
            halves.append(shares.to_integers(share[:, 0, :24]))
        return share

    monkeypatch.setattr(Link, "send", sending)
    monkeypatch.setattr(Encryptor, "read", reading)
    done = score_run(columns, labels, rounds=1)
    z = shares.from_floats(columns[0] @ done.programs["p0"]._own.root, ROW_BITS)
    parts = [done.shares_at[0][name]["p0"] for name in ("L", "p0")]
    exact = shares.to_integers(shares.matmul(z, shares.add(*parts))[:, :, 0])
    sums = [a + b - e for a, b, e in zip(*halves, exact, strict=True)]
    assert all(abs(centred(each, SHOWN_BITS)) < 1 << BLUR_BITS for each in sums)
    assert all(abs(centred(each, WIDTH)) < 1 << BLUR_BITS for each in sums) == naive


@both
def test_other_answers_to_a_question_get_no_second_verdict(monkeypatch: Patch, naive: bool) -> None:
    """A party without labels answers with numbers that depend on one coefficient of the label party's key,
    sees in the verdict whether the model is the best so far, breaks off and goes on to the next coefficient.
    The key of an evaluation is the same in every attempt, so that the bits would add up.
    """
    columns, labels = people(24, (3, 2))
    settings: dict[str, Any] = {"rounds": 1, "target": 1e9}
    send, shift, verdicts = Link.send, [0.0], list[bytes]()

    def sending(self: Link, receiver: str, kind: str, blob: bytes, **more: Any) -> None:
        if kind == "score":
            share = shares.from_bytes(blob, (LIMBS, 24, 1))
            moved = shares.add(share, shares.from_floats(np.full((24, 1), shift[0]), SCORE_BITS))
            blob = shares.to_bytes(scoring._cut_score(moved))
        if kind == "verdict":
            verdicts.append(blob)
        send(self, receiver, kind, blob, **more)

    monkeypatch.setattr(Link, "send", sending)
    done = score_run(columns, labels, **settings)
    states = {name: program.checkpoint() for name, program in done.programs.items()}
    states["L"]["stopping.best"] = np.array(done.run.outcomes["L"].history[0][1] + 1.0)
    if naive:
        del states["L"]["metric"]
    for shift[0] in (-8.0, 8.0):
        score_run(columns, labels, states={name: dict(s) for name, s in states.items()}, **settings)
    assert (verdicts[1] != verdicts[2]) == naive


@both
def test_going_back_a_round_gets_no_second_verdict_under_one_key(monkeypatch: Patch, naive: bool) -> None:
    """A party without labels sees the verdict of the second evaluation, breaks off, and says that it has the
    checkpoint of the first one alone. The second evaluation comes again, and no metric of it is known.
    """
    if naive:
        monkeypatch.setattr(BlindParty, "_forget_question", lambda self: None)
    columns, labels = people(24, (3, 2))
    settings: dict[str, Any] = {"rounds": 2, "target": 1e9, "scheme": RLWE}
    send, judge, shift = Link.send, PartyLoop._verdict, [0.0]
    states, verdicts, keys = dict[str, Any](), list[bytes](), list[bytes]()

    def sending(self: Link, receiver: str, kind: str, blob: bytes, *, round: int = 0, **more: Any) -> None:
        if kind == "score" and round == 1:
            share = shares.from_bytes(blob, (LIMBS, 24, 1))
            moved = shares.add(share, shares.from_floats(np.full((24, 1), shift[0]), SCORE_BITS))
            blob = shares.to_bytes(scoring._cut_score(moved))
        if kind == "verdict" and round == 1:
            verdicts.append(blob)
        send(self, receiver, kind, blob, round=round, **more)

    async def judging(self: BlindParty, link: Link, t: int, metric: float | None) -> Any:
        verdict = await judge(self, link, t, metric)
        if t == 0:
            states.setdefault(link.name, dict(self.checkpoint()))
        elif link.name == "L":
            keys.append(self._score_secret)
        return verdict

    monkeypatch.setattr(Link, "send", sending)
    monkeypatch.setattr(PartyLoop, "_verdict", judging)
    for shift[0] in (0.0, -8.0, 8.0):
        score_run(columns, labels, states={name: dict(state) for name, state in states.items()}, **settings)
    assert verdicts[1] != verdicts[2]
    assert len(set(keys)) == (1 if naive else 3)


def test_nobody_books_a_question_that_another_party_has_not_stored(monkeypatch: Patch) -> None:
    """p1 stops before it stores the question of the second evaluation. The run will go on from an earlier
    round and ask another question, so p0 must not have booked this one.
    """
    before = PartyLoop._before_scores

    async def stopping(self: PartyLoop, link: Link, t: int) -> None:
        if link.name == "p1" and t == 1:
            await link.receive("part", "p0")  # which never comes
        await before(self, link, t)

    monkeypatch.setattr(PartyLoop, "_before_scores", stopping)
    columns, labels = people(24, (3, 2, 2))
    guards = {name: ScoreGuard(party=name, column_bits=MUCH) for name in ("p0", "p1", "L")}
    with pytest.raises(SecurefedError):
        score_run(columns, labels, guards=guards)
    assert {scorings for scorings, _ in told(guards["p0"]).values()} == {1}


@both
@pytest.mark.parametrize("folds", [False, True], ids=["rows", "folds"])
@pytest.mark.parametrize("sizes", [(3, 2), (3, 2, 2)], ids=["two parties", "helper"])
def test_another_question_after_each_interruption(
    monkeypatch: Patch, sizes: tuple[int, ...], folds: bool, naive: bool
) -> None:
    """The label party breaks off after each answer and asks with another share of the model when the run goes
    on. All of it belongs to one scoring of that run, and each answer shows p + m bits more of everybody.
    """
    if naive:
        name = ScoreGuard._name
        monkeypatch.setattr(ScoreGuard, "_name", lambda *given: name(*given[:3], place=given[1]))
    columns, labels = people(40, sizes)
    settings: dict[str, Any] = {"rounds": 3, "evaluate_every": 0, "held_out": 10} if folds else {"rounds": 1}
    guards = {name: ScoreGuard(party=name, column_bits=20.0) for name in ("p0", "p1", "L")}
    states, before = dict[str, Any](), PartyLoop._before_scores

    async def keeping(self: PartyLoop, link: Link, t: int) -> None:
        await before(self, link, t)
        states.setdefault(link.name, dict(self._prior or {}))

    monkeypatch.setattr(PartyLoop, "_before_scores", keeping)
    score_run(columns, labels, guards=guards, **settings)
    attempts = 1
    with suppress(ScoreRefusal):
        for attempts in range(2, 6):
            share = states["L"][f"{BLOCK}0.p0"].copy()
            share[5] ^= attempts
            states["L"][f"{BLOCK}0.p0"] = share
            given = {name: dict(state) for name, state in states.items()}
            score_run(columns, labels, guards=guards, states=given, **settings)
    assert attempts == (5 if naive else 3)
    scorings = {each for each, _ in told(guards["p0"]).values()}
    assert scorings == ({1} if naive else {2})


@both
def test_people_of_transfer_learning_under_other_columns(monkeypatch: Patch, naive: bool) -> None:
    """A training and two predictions are three scorings of whoever was held out. A blind training adds random
    features to a row, so that it is not the row of the file. People who are known by rows alone count anew.
    """
    if naive:
        monkeypatch.setattr(build, "_people", lambda *given: None)
    (theirs, mine), labels = people(60, (3, 2))
    ids = [f"person {row}" for row in range(60)]
    bank = Party("bank", mine, labels=labels[:, 0], ids=ids)
    model = TransferLearner(rounds=1, holdout=0.2).fit([Party("shop", theirs, ids=ids), bank])
    model.decision_function(Party("shop", theirs, ids=ids))
    asked = Party("shop", 1.01 * theirs, ids=ids)
    with nullcontext() if naive else pytest.raises(ScoreRefusal, match="scored 3 times"):
        model.decision_function(asked)
    counted = told(model.score_guards_["shop"])
    assert len(counted) == (60 + 12 if naive else 60)


@pytest.mark.parametrize("folds", [False, True], ids=["rows", "folds"])
def test_going_back_uses_up_the_scorings_of_others(monkeypatch: Patch, folds: bool) -> None:
    """p1, or the helper, says after each evaluation that it has the checkpoint of the first round alone. The
    label party asks again, about other shares, and p0 counts another scoring of everybody. Then it refuses.
    """
    columns, labels = people(60, (3, 2, 2))
    settings: dict[str, Any] = {"rounds": 4, "evaluate_every": 4}
    if folds:
        settings = {"rounds": 4, "evaluate_every": 0, "held_out": 12}
    guards = {name: ScoreGuard(party=name, column_bits=20.0) for name in ("p0", "p1", "L")}
    states, move = dict[str, Any](), BlindParty._round

    async def keeping(self: BlindParty, link: Link, t: int) -> None:
        await move(self, link, t)
        if t == 0:
            states[link.name] = {**self.state(), "round": np.array(1)}

    monkeypatch.setattr(BlindParty, "_round", keeping)
    for scorings in (1, 2):
        score_run(columns, labels, guards=guards, states=dict(states), **settings)
        counted = told(guards["p0"])
        assert set(counted.values()) == {(scorings, scorings * score_bits(10))} and len(counted) == 60
    with pytest.raises(ScoreRefusal, match="scored 3 times"):
        score_run(columns, labels, guards=guards, states=dict(states), **settings)
    assert guards["p0"].total_bits == 60 * 2 * score_bits(10)
