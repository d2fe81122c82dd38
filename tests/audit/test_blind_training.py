"""Parties of blind training that go back, make replies up, collude, or send what is not due."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import pytest

from research.attacks import clear
from research.attacks.blind_cheats import people, score_run
from securefed.assembly import LinearAssembly
from securefed.assembly.base import HELPER
from securefed.crypto import shares
from securefed.crypto.blind.interface import Evaluation
from securefed.crypto.blind.layout import Layout, bodies_to_bytes, kept_limbs, layout
from securefed.crypto.blind.rlwe import RLWE, RlweEvaluation, RlweKey, Secret
from securefed.crypto.lattice.ring import DEGREE
from securefed.crypto.randomness import key_stream
from securefed.crypto.shares import LIMBS, WIDTH, Share
from securefed.errors import FormatError, MaskError, SettingError
from securefed.protocols.agreement import Member
from securefed.protocols.blind import linear, statistics
from securefed.protocols.blind.correlations import prepare_all
from securefed.protocols.blind.scoring import RELEASE_LIMIT, release_bits
from securefed.protocols.blind.statistics import (
    MATRIX_BITS,
    MOST_WRAPS,
    PRODUCT_BITS,
    SCALAR_BITS,
    VALUE_BITS,
    wrap_bound,
)
from securefed.protocols.messages import KINDS
from securefed.protocols.schedules import FedBCD
from securefed.settings import LinearSettings
from securefed.transport.link import Link
from securefed.transport.message import WrongKind
from tests.audit.runs import PROTOCOLS

Patch = pytest.MonkeyPatch


# Going back


@contextmanager
def seeded_masks(patch: Patch) -> Iterator[None]:
    """Naive: all masks and correlations of an attempt follow from the run's seed and the party."""
    stream = key_stream(hashlib.sha256(b"seed 0").digest())

    def drawn(*shape: int) -> Share:
        return shares.uniform_from(stream, *shape)

    patch.setattr(clear, "uniform", drawn)
    patch.setattr(linear, "prepare_all", partial(prepare_all, draw=drawn))
    yield


def differences_of_label_party(shift: int | None, patch: Patch) -> tuple[list[bytes], Any]:
    """Two rounds. The second holder may add `shift` to the first entry of its first difference."""
    seen: list[bytes] = []
    send = Link.send

    def sending(self: Link, receiver: str, kind: str, blob: bytes, **more: Any) -> None:
        if kind == "difference" and self.name == "p0" and more["round"] == 0 and shift is not None:
            numbers = shares.from_bytes(blob, (LIMBS, 5, 1))
            numbers[:, 0] = shares.add(numbers[:, 0], shares.from_integer(shift)[:, None])
            blob = shares.to_bytes(numbers)
        if kind == "difference" and self.name == "L":
            seen.append(blob)
        send(self, receiver, kind, blob, **more)

    columns, labels = people(16, (3, 2))
    with patch.context() as inner:
        inner.setattr(Link, "send", sending)
        done = score_run(columns, labels, rounds=2, evaluate_every=0)
    return seen, done


@pytest.mark.parametrize("naive", [True, False])
def test_going_back_with_another_difference(naive: bool, monkeypatch: Patch) -> None:
    """The second holder plays the first round again and shifts one entry of v. Under the same masks the label
    party's next difference shows a column of its matrix: the moments of its columns and labels.
    """
    found = []
    shift = 1 << 60
    for each in (None, shift):
        with monkeypatch.context() as patch:
            if naive:
                with seeded_masks(patch):
                    seen, done = differences_of_label_party(each, patch)
            else:
                seen, done = differences_of_label_party(each, patch)
        found.append(shares.from_bytes(seen[1], (LIMBS, 5, 1)))
    matrix = done.programs["L"]._products._prepared[0, 0].share.astype(np.int64)
    moved = shares.times(
        shares.truncate(_times(matrix, shift), MATRIX_BITS, first=True),
        -round(done.programs["L"]._agreement.learning_rate(0) * 2**SCALAR_BITS),
    )
    due = shares.truncate(moved, SCALAR_BITS, first=True)
    left = shares.subtract(shares.subtract(found[1], found[0]), due)
    # Truncations of shares leave multiples of what a wrap is worth besides the value.
    rate = done.programs["L"]._agreement.learning_rate(0)
    steps = [round(rate * 2**SCALAR_BITS) << (WIDTH - MATRIX_BITS - SCALAR_BITS), 1 << (WIDTH - SCALAR_BITS)]
    near = [_near(number, steps) for number in shares.to_integers(left)]
    assert all(near) if naive else not any(near)


def _times(matrix: Share, factor: int) -> Share:
    column = shares.zeros(matrix.shape[2], 1)
    column[:, 0, 0] = shares.from_integer(factor)
    return shares.matmul(matrix, column)


def _near(number: int, steps: list[int]) -> bool:
    """Whether a number is within 2**12 of a small combination of steps."""
    shifts = [0]
    for step in steps:
        shifts = [s + m * step for s in shifts for m in range(-2, 3)]
    distances = [(number - s) % (1 << WIDTH) for s in shifts]
    return any(min(d, (1 << WIDTH) - d) < 1 << 12 for d in distances)


# The second holder against the label party's key


@pytest.mark.parametrize("size", [4, 41])
def test_what_a_release_shows_of_the_label_partys_key_is_bounded(size: int, monkeypatch: Patch) -> None:
    """A reply with c1 = K and c0 = 0 is read as K s. In the place of Z'y it makes the second holder's
    parameters, which a release shows it: coefficients of the pass key, one each here.
    """
    keys: list[Secret] = []
    scale = 1 << PRODUCT_BITS
    finish = RlweEvaluation.finish
    replies = count()

    def crafted(self: RlweEvaluation) -> tuple[bytes, Share]:
        data, share = finish(self)
        if next(replies):
            return data, share
        plan: Layout = self._plan
        (panel,) = plan.panels
        kept = kept_limbs(plan.body_bits)
        c1 = np.zeros((kept, panel.responses, DEGREE), dtype=np.int64)
        c1[:, :, 0] = shares.from_integer(scale)[LIMBS - kept :, None]
        product = plan.product
        return (
            bodies_to_bytes(c1, plan.body_bits) + shares.to_bytes(shares.zeros(product.left, product.right)),
            shares.zeros(product.left, product.right),
        )

    def noting() -> Any:
        key = RlweKey(bytes([1 + len(keys)]) * 32)
        keys.append(key._secret.copy())
        return key

    monkeypatch.setattr(RlweEvaluation, "finish", crafted)
    scheme = type(RLWE)(RLWE.name, noting, RLWE.load_public, RLWE.load_key)
    columns, labels = people(60, (size, 1))
    done = score_run(columns, labels, scheme=scheme, rounds=1, evaluate_every=0, release=True)
    bits = release_bits(size, 1)
    assert bits <= RELEASE_LIMIT
    root = done.programs["p0"]._own.root
    phi = np.linalg.solve(root, done.programs["p0"].parameters)[:, 0]
    (panel,) = layout(done.programs["p0"]._plan.product("L", "p0", 0)).panels
    places, _ = panel.places()
    secret = keys[0][places[1]].astype(float)  # the row of y
    factor = np.abs(phi).max()
    assert factor > 0.01
    np.testing.assert_array_equal(np.sign(np.where(np.abs(phi) > factor / 2, phi, 0)), secret)


def test_more_than_a_thousand_bits_are_refused_by_name() -> None:
    """42 parameters of 24 bits. Without the limit 171 parties' worth of runs would show all 4,096."""
    columns, labels = people(60, (42, 1))
    with pytest.raises(SettingError, match="1008 bits, at most 1000 are allowed"):
        score_run(columns, labels, rounds=1, evaluate_every=0, release=True)


# Parties that put their parts together


def parts_of_run(patch: Patch) -> tuple[dict[tuple[str, str], list[bytes]], Any]:
    """All parts by sender and receiver, in order."""
    kept: dict[tuple[str, str], list[bytes]] = {}
    send = Link.send

    def sending(self: Link, receiver: str, kind: str, blob: bytes, **more: Any) -> None:
        if kind in ("part", "model-share"):
            kept.setdefault((self.name, receiver), []).append(blob)
        send(self, receiver, kind, blob, **more)

    with patch.context() as inner:
        inner.setattr(Link, "send", sending)
        found: dict[str, dict[Any, Any]] = {}
        originals = statistics.pass_products

        async def noting(tools: Any, *more: Any) -> Any:
            found[tools.link.name] = await originals(tools, *more)
            return found[tools.link.name]

        inner.setattr(statistics, "pass_products", noting)
        columns, labels = people(16, (2, 2, 2))
        done = score_run(columns, labels, rounds=2, evaluate_every=0)
    return kept, (done, found)


@pytest.mark.parametrize("naive", [True, False])
@pytest.mark.parametrize("pair", [(HELPER, "p1"), ("L", "p0")], ids=["{S, j}", "{L, i}"])
def test_a_holder_and_one_party_do_not_rebuild_a_block_of_two_others(
    pair: tuple[str, str], naive: bool, monkeypatch: Patch
) -> None:
    """Z_0'Z_1: one of the two and a holder put their parts together. Without the split they have it all."""
    if naive:
        holder = pair[0]

        def whole(link: Link, plan: Any, given: list[Share], t: int) -> None:
            other = next(name for name in plan.holders if name != holder)
            statistics.send_parts(link, holder, given, t)
            statistics.send_parts(link, other, [shares.zeros(*each.shape[1:]) for each in given], t)

        monkeypatch.setattr(statistics, "split_parts", whole)
    kept, (_, found) = parts_of_run(monkeypatch)
    holder, member = pair
    other = "p0" if member == "p1" else "p1"
    own = found[member]["p0", "p1"][0]
    blobs = [shares.from_bytes(each, (LIMBS, 2, 2)) for each in kept[other, holder] if len(each) == 56]
    truth = found["p0"]["p0", "p1"][0], found["p1"]["p0", "p1"][0]
    exact = shares.to_floats(shares.add(*truth), PRODUCT_BITS)
    guesses = [shares.to_floats(shares.add(own, blob), PRODUCT_BITS) for blob in blobs]
    near = [bool(np.abs(guess - exact).max() < 1e-9) for guess in guesses]
    assert any(near) == naive


def test_the_label_party_and_a_party_know_that_partys_parameters(monkeypatch: Patch) -> None:
    """A limit, and documented: {L, k} have both shares of phi_k."""
    kept, (done, _) = parts_of_run(monkeypatch)
    theirs = shares.from_bytes(kept[HELPER, "p0"][-1], (LIMBS, 2, 1))
    total = shares.add(done.programs["L"].part.blocks["p0"], theirs)
    both = shares.add(done.programs["L"]._phi, done.programs[HELPER]._phi)[:, :2]
    found, due = (shares.to_floats(each, VALUE_BITS) for each in (total, both))
    np.testing.assert_allclose(found, due, atol=1e-9)


def test_a_helper_alone_has_uniform_numbers(monkeypatch: Patch) -> None:
    """Twice the same run: nothing that it got is the same, or near."""
    first, second = (parts_of_run(monkeypatch)[0] for _ in range(2))
    for ends in first:
        for one, other in zip(first[ends], second[ends], strict=True):
            a, b = (shares.from_bytes(each, (LIMBS, 3 * len(each) // 40)) for each in (one, other))
            assert all(abs(x - y) > 1 << 40 for x, y in zip(*map(shares.to_integers, (a, b)), strict=True))


# Wraps


@pytest.mark.parametrize("room", [4, 7])
def test_truncated_shares_wrap_as_often_as_the_bound_says(room: int) -> None:
    """Numbers of 2**(105 - room): one in 2**room goes wrong."""
    trials = 40_000
    number = shares.from_integer(1 << (WIDTH - room))
    value = np.repeat(number[:, None], trials, axis=1)
    one = shares.uniform(trials)
    other = shares.subtract(value, one)
    total = shares.add(shares.truncate(one, 34, first=True), shares.truncate(other, 34, first=False))
    due = 1 << (WIDTH - room - 34)
    wrong = sum(
        min((v - due) % (1 << WIDTH), (due - v) % (1 << WIDTH)) > 1 for v in shares.to_integers(total)
    )
    expected = trials / 2**room
    assert abs(wrong - expected) < 6.0 * np.sqrt(expected)


def test_the_budget_holds_at_105_bits_and_not_at_80() -> None:
    """50 and 50 columns, 24 rounds; the bound falls by a bit for each bit of width."""
    bound = wrap_bound([50, 50], 24, 1)
    assert bound < MOST_WRAPS
    assert bound < wrap_bound([50, 50], 24, 1, systems=6) < MOST_WRAPS
    assert bound * 2.0 ** (WIDTH - 80) > 2.0**-10


# What the former construction was attacked through


GONE = (
    "margin", "masked-margin", "converted", "refresh", "refreshed", "share", "share-product", "product-share",
    "range-check", "range-sums", "switching-keys", "key-check", "columns", "release-request",
)  # fmt: skip
FOREIGN = ("score-request", "score-part", "opening-request", "opening", "score-opening", "public-key")


@pytest.mark.parametrize("kind", GONE)
def test_kinds_of_the_former_construction_are_refused_by_name(kind: str) -> None:
    assert kind not in KINDS
    made = PROTOCOLS["blind, two parties"]("ckks", FedBCD(2), cross=clear.CLEAR)

    async def sends(link: Link) -> None:
        link.send("p0", kind, b"\0")

    made.programs["p1"] = sends
    with pytest.raises(WrongKind, match=f"names no message '{kind}'"):
        made.run()


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("after", ["nonce", "cross-key", "operand", "difference", "reply", "score"])
def test_nobody_opens_anything_on_request(kind: str, after: str) -> None:
    """A request in the place of any message of a blind run ends it by name."""
    made = PROTOCOLS["blind, two parties"]("ckks", FedBCD(2), cross=clear.CLEAR)
    done: list[str] = []

    def tap(message: Any) -> Any:
        if message.kind == after and not done:
            done.append(kind)
            return type(message)(**{**vars(message), "kind": kind})
        return message

    with pytest.raises(WrongKind, match=f"sent '{kind}', '{after}' is due"):
        made.run(tap=tap)


LENGTHS = ("nonce", "cross-key", "operand", "reply", "difference", "score", "released", "part", "model-share",
           "question", "score-share")  # fmt: skip


@pytest.mark.parametrize("kind", LENGTHS)
@pytest.mark.parametrize(
    "change", [lambda blob: blob + bytes(8), lambda blob: blob[:-8]], ids=["more", "less"]
)
def test_other_lengths_are_refused(kind: str, change: Callable[[bytes], bytes]) -> None:
    """More columns than agreed, more rows, another key: every length follows from the agreement."""
    protocol = (
        "blind, three" if kind in ("part", "model-share", "question", "score-share") else "blind, watched"
    )
    made = PROTOCOLS[protocol]("ckks", FedBCD(2), cross=clear.CLEAR)

    def tap(message: Any) -> Any:
        if message.kind != kind:
            return message
        return type(message)(**{**vars(message), "payload": change(message.payload)})

    with pytest.raises((FormatError, Exception), match=r"bytes given|another nonce"):
        made.run(tap=tap)


def test_a_prepared_column_serves_once() -> None:
    """Asking for more rounds than were prepared is refused, whatever the peer wishes."""
    columns, labels = people(16, (3, 2))
    done = score_run(columns, labels, rounds=2, evaluate_every=0)
    program = done.programs["L"]
    with pytest.raises(MaskError, match="1 prepared columns are needed, 0 are left"):
        program._products._take((0, 0), 1)
    assert not {"random", "products", "prepared"} & set(done.programs["L"].state())


def test_an_evaluation_is_answered_once() -> None:
    evaluation: Evaluation = RlweEvaluation.__new__(RlweEvaluation)
    evaluation._finished = True  # type: ignore[attr-defined]
    with pytest.raises(FormatError, match="answered before"):
        evaluation.finish()


def test_recipes_cannot_ask_for_what_was_taken_out() -> None:
    for words in ({"check_every": 1}, {"refresh": 1}, {"key_check": True}):
        with pytest.raises(TypeError):
            LinearSettings(**words)


# Refusals


@pytest.mark.parametrize("rate", [1.0, "auto"])
def test_a_refusal_of_a_rate_tells_one_bit_of_a_person(rate: Any) -> None:
    """The label party brings one id to the alignment. Whether the other party begins depends on that row."""
    rows, assembly = (
        np.random.default_rng(0).normal(size=(100, 4)),
        LinearAssembly(LinearSettings(learning_rate=rate)),
    )
    agreement = assembly.agreement((Member("p0", 4, True), Member("L", 2, True)), 1)
    began = []
    for row in rows:
        with suppress(SettingError):
            assembly.steps(agreement, row[None])
            began.append(float(row @ row))
    refused = {float(row @ row) for row in rows} - set(began)
    assert refused == set() if rate == "auto" else len(refused) > 10 and max(began) < min(refused)
