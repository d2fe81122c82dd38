"""Scores: what the label party gets is what the model says, and nobody else gets anything."""

from __future__ import annotations

import struct
from math import ceil, gcd

import numpy as np
import pytest
from numpy.typing import NDArray

from securefed.crypto import KeyHolder
from securefed.crypto.paillier.arrays import PaillierMasked, read_disclosure, unpack
from securefed.crypto.paillier.keys import PaillierPublicKey
from securefed.crypto.wire import Frame, Kind
from securefed.errors import DataError
from securefed.protocols.own_gradient.sides import LinearScorer, TransferScorer
from securefed.protocols.scoring.blur import blur
from securefed.transport.link import LocalRun
from tests.protocols import federation
from tests.protocols.error_bounds import opening_error, power
from tests.protocols.federation import (
    FULL_KEYS,
    KEY_HOLDER,
    Federation,
    Keys,
    Recorder,
    blobs,
    shared_people,
    split,
)
from tests.protocols.scenarios import KEY, prediction

Array = NDArray[np.float64]


@pytest.fixture
def keys() -> Keys:
    """Of full size: a prediction reads no others."""
    return FULL_KEYS


def score_error(scheme: str, *, rows: int, terms: int, bound: float) -> float:
    """On one score of the generalised linear objective, a sum of `terms` values that nobody multiplies.

    Paillier: each is rounded to 32 fraction bits. CKKS: noise of deviation 250 a term and coefficient has,
    over the n = 2048 coefficients that are returned of each of U blocks, a norm of at most
    250 terms (45 sqrt(U) + 9.2 sqrt(U)); the flood is 2^31.8 times that; a slot is a sum over 4096
    coefficients: sqrt(4096) times that at a scale of 2^74 / b. Eight deviations, with the encryption of zero
    that masks: 2^-19 sqrt(U) terms b.
    """
    if scheme == "plain":
        return 1e-13
    if scheme == "paillier":
        return terms * 2.0**-33
    return 2.0**-19 * ceil(rows / 2048) ** 0.5 * terms * power(bound)


def linear_noise(made: Federation, parts: list[Array]) -> Array:
    """What the parties that are scored add: one key at all of them, their own rows and parameters."""
    if not made.agreement.blurs:
        return np.zeros(len(parts[0]))
    total = np.zeros(len(parts[0]))
    for side, part in list(zip(made.sides.values(), parts, strict=True))[:-1]:
        scorer = side.scorer()
        context = bytes(4) + scorer.content()
        noise = blur(part, key=KEY, context=context, precision_bits=10, fraction_bits=32)
        total += np.ldexp(np.array(noise, dtype=np.float64), -32)
    return total


def only_the_label_party_has_scores(run: LocalRun, label_party: str) -> Array:
    for name, outcome in run.outcomes.items():
        assert (outcome is None) == (name != label_party)
    scores: Array = run.outcomes[label_party]
    return scores


def linear(
    keys: Keys, scheme: str, parties: int, rows: int, local: str = "linear"
) -> tuple[Federation, list[Array]]:
    features, labels = blobs(rows, 2 * parties)
    parts = split(features, parties)
    made = federation.linear(
        parts, labels, keys, scheme=scheme, local=local, hidden=(2,), bias=True, margin_bound=32.0
    )
    return made, parts


@pytest.mark.parametrize("scheme", ["plain", "paillier", "ckks"])
@pytest.mark.parametrize("parties", [2, 3, 5])
@pytest.mark.parametrize("local", ["linear", "network"])
def test_linear_scores(scheme: str, parties: int, local: str, keys: Keys) -> None:
    made, parts = linear(keys, scheme, parties, 5, local)
    scenario = prediction(made, {f"p{k}": part for k, part in enumerate(parts)}, start=parties)
    recorder = Recorder()
    run = scenario.run(tap=recorder)
    scores = only_the_label_party_has_scores(run, f"p{parties - 1}")
    expected = sum(side.model.forward(part) for side, part in zip(made.sides.values(), parts, strict=True))
    noise = linear_noise(made, parts)
    assert np.abs(scores - expected - noise).max() <= score_error(scheme, rows=5, terms=parties, bound=32.0)
    assert np.abs(expected).max() > 0.1
    if scheme != "plain":
        # Each of the others blurs its part by up to half a step of 2**-10.
        assert 2.0**-16 < np.abs(noise).max() <= (parties - 1) * 2.0**-11
    # A part from each of the others, one request, one reply.
    assert [len(recorder.of(k)) for k in ("score-part", "score-request", "score-opening")] == [
        parties - 1,
        1,
        1,
    ]
    assert len(recorder.messages) == (2 if parties == 2 else parties) + parties + 1
    opener = "p0" if parties == 2 else KEY_HOLDER
    assert {m.receiver for m in recorder.of("score-request")} == {opener}


@pytest.mark.parametrize("scheme", ["plain", "paillier", "ckks"])
@pytest.mark.parametrize("activation", ["sigmoid", "tanh", "relu"])
def test_transfer_scores(scheme: str, activation: str, keys: Keys) -> None:
    people = shared_people(n=8)
    made = federation.transfer(people, keys, scheme=scheme, width=3, activation=activation)
    rows = people.b[:7]
    recorder = Recorder()
    run = prediction(made, {"B": rows}, start=4).run(tap=recorder)
    scores = only_the_label_party_has_scores(run, "A")
    phi, hidden = made.sides["A"].phi(), made.sides["B"].model.forward(rows)
    bound = opening_error(
        "ckks" if scheme == "ckks" else "paillier",
        rows=3,
        terms=1,
        factor=float(np.abs(hidden).max()),
        total=float(np.abs(phi).sum()),
        bound=16.0 if activation == "relu" else 1.0,
        columns=1,
        outputs=len(rows),
    )
    assert scores.shape == (7,)
    noise = np.zeros(7)
    if scheme != "plain":
        context = bytes(4) + made.sides["B"].scorer().content() + recorder.of("score-model")[0].payload
        bits = 64 if scheme == "paillier" else 52
        made_up = blur(rows, key=KEY, context=context, precision_bits=10, fraction_bits=bits)
        noise = np.ldexp(np.array(made_up, dtype=np.float64), -bits)
    assert np.abs(scores - hidden @ phi - noise).max() <= (1e-13 if scheme == "plain" else bound)
    assert bound < 3e-3 * np.abs(hidden @ phi).max()
    assert [m.kind for m in recorder.messages] == ["public-key", "public-key", "score-model", "scores"]


def test_more_rows_than_a_ciphertext_has_slots(keys: Keys) -> None:
    made, parts = linear(keys, "ckks", 3, 5000)
    run = prediction(made, {f"p{k}": part for k, part in enumerate(parts)}).run()
    expected = sum(side.model.forward(part) for side, part in zip(made.sides.values(), parts, strict=True))
    noise = linear_noise(made, parts)
    assert np.abs(run.outcomes["p2"] - expected - noise).max() <= score_error(
        "ckks", rows=5000, terms=3, bound=32.0
    )
    people = shared_people(n=3000)
    transfer = federation.transfer(people, keys, scheme="ckks", width=3)
    scores = prediction(transfer, {"B": people.b}).run().outcomes["A"]
    exact = transfer.sides["B"].model.forward(people.b) @ transfer.sides["A"].phi()
    assert scores.shape == exact.shape
    assert np.abs(scores - exact).max() < 2.0**-11 + 1e-4


@pytest.mark.parametrize("scheme", ["plain", "paillier", "ckks"])
def test_one_row(scheme: str, keys: Keys) -> None:
    made, parts = linear(keys, scheme, 2, 5)
    run = prediction(made, {"p0": parts[0][:1], "p1": parts[1][:1]}).run()
    assert run.outcomes["p1"].shape == (1,)
    people = shared_people()
    scores = prediction(federation.transfer(people, keys, scheme=scheme), {"B": people.b[:1]}).run()
    assert scores.outcomes["A"].shape == (1,)


def test_a_margin_past_the_declared_bound_is_refused(keys: Keys) -> None:
    made, parts = linear(keys, "plain", 2, 5)
    with pytest.raises(DataError, match=r"a score part is .*, above margin_bound=32"):
        prediction(made, {"p0": parts[0], "p1": 1e3 * parts[1]}).run()


def test_missing_rows_are_refused(keys: Keys) -> None:
    made, parts = linear(keys, "plain", 2, 5)
    with pytest.raises(DataError, match="no rows to score"):
        prediction(made, {"p1": parts[1]}).run()
    with pytest.raises(DataError, match="no rows to score"):
        prediction(federation.transfer(shared_people(), keys), {}).run()


def test_a_score_needs_phi(keys: Keys) -> None:
    made = federation.transfer(shared_people(), keys)
    scorer = made.sides["A"].scorer()
    assert isinstance(scorer, TransferScorer) and scorer.phi is not None
    assert made.sides["B"].scorer().phi is None  # B has nothing of A's
    side = federation.linear(split(blobs(4, 2)[0], 2), blobs(4, 2)[1], keys).sides["p0"].scorer()
    assert isinstance(side, LinearScorer)


def score_message(keys: Keys, scheme: str, scale: float, width: int = 3) -> tuple[Federation, bytes, Array]:
    """B's answer for rows whose representations are tanh of something that small."""
    people = shared_people(n=6)
    made = federation.transfer(people, keys, scheme=scheme, width=width, activation="tanh")
    layer = made.sides["B"].model
    layer.parameters = scale * layer.parameters
    recorder = Recorder()
    prediction(made, {"B": people.b}, start=1).run(tap=recorder)
    ((message),) = recorder.of("scores")
    return made, message.payload, layer.forward(people.b)


@pytest.mark.parametrize("scheme", ["paillier", "ckks"])
def test_the_headers_of_scores_do_not_show_how_large_representations_are(scheme: str, keys: Keys) -> None:
    seen = set()
    for scale in (1.0, 2.0**-4, 2.0**-11):
        _, payload, _ = score_message(keys, scheme, scale)
        (length,) = struct.unpack_from("<Q", payload)
        frame = Frame.from_bytes(payload[8 + length :], Kind.DISCLOSURE)
        seen.add((frame.numbers, frame.shape, len(payload)))
    assert len(seen) == 1


def whole_scores(holder: KeyHolder, payload: bytes) -> list[int]:
    """The integers behind the scores, as the label party can read them."""
    public, found = holder.public, []
    assert isinstance(public, PaillierPublicKey)
    (length,) = struct.unpack_from("<Q", payload)
    masked = public.load_masked(payload[8 : 8 + length])
    assert isinstance(masked, PaillierMasked)
    mask = read_disclosure(masked, payload[8 + length :])
    for opened, hiding in zip(holder._secret._owner.decrypt(masked.integers), mask._masks, strict=True):
        value = (opened - hiding) % public.n
        signed = value - public.n if 2 * value > public.n else value
        found += unpack(signed, mask._layout.width, min(mask._layout.slots, masked.shape[0] - len(found)))
    return found


def test_the_last_bits_of_a_score_do_not_tell_the_representation(keys: Keys) -> None:
    """Two hidden units: t1 Phi1 + t2 Phi2 as a whole number has one solution t of 32 bits, and u is t."""
    made, payload, hidden = score_message(keys, "paillier", 1.0, width=2)
    first, second = (round(float(v) * 2**32) for v in made.sides["A"].phi())
    common = gcd(first, second)
    truth = np.rint(hidden * 2**32).astype(np.int64)
    for (a, b), score in zip(truth.tolist(), whole_scores(made.holders["A"], payload), strict=True):
        assert 2**40 < abs(score - a * first - b * second) <= 2**53  # half a step of 2**-10
        exact = [score, a * first + b * second]
        # For the exact number the second unit is known mod Phi1 / gcd; for what is sent it is another.
        modulus = abs(first) // common
        given, true = (s // common * pow(second // common, -1, modulus) % modulus for s in exact)
        assert true == b % modulus
        assert given != b % modulus
