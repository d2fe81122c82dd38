"""A key-holder whose RLWE keys have huge errors, to read from noise above the mask what hides multipliers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from securefed.audit import audit
from securefed.crypto import KeyHolder
from securefed.crypto.errors import BadKey, OpeningRefused
from securefed.crypto.hidden import PlainMatrix, Range, Result, Wide
from securefed.crypto.rlwe.arrays import unflat
from securefed.crypto.rlwe.keys import RlwePublicKey, RlweSecretKey, generate_secret_key
from securefed.crypto.rlwe.packing import reversed_bits
from securefed.crypto.rlwe.ring import HIDDEN, SEED_BYTES, Words
from securefed.crypto.rlwe.sealed import sealed
from securefed.crypto.wire import Kind
from securefed.protocols import key_check
from securefed.protocols.blind_algebra import BlindPlan
from securefed.protocols.losses import get_loss
from tests.protocols.test_blind import blind, recipe

Patch = pytest.MonkeyPatch
RING = HIDDEN
STEP = 157
"""Of the noise that a crafted key adds, above masks of 155 bits."""
SLACK, VALUES = 60, Range(66, 93)
PLAN = BlindPlan(get_loss("logistic"), 2, 100, 1e-3, 64.0, 64.0, 64.0, entries=1 << 24)


def constant(value: int) -> Words:
    """(all primes, N) residues of a constant polynomial in NTT form."""
    residues = np.array([value % prime for prime in RING.primes], dtype=np.uint64)[:, None]
    return np.repeat(residues, RING.degree, axis=1)


def crafted() -> RlweSecretKey:
    """The error of its public key is p 2^157, p the switching prime: a zero then carries u 2^157."""
    good = generate_secret_key()
    part = RING.subtract(good.public._part, constant(RING.primes[-1] << STEP))
    return RlweSecretKey(good._secret, RlwePublicKey(good.public._seed, part))


def divided(words: Words) -> Words:
    """(all primes, N) coefficients divided by the switching prime, modulo the others; off by one at most."""
    last = RING.primes[-1]
    rest = words[-1].astype(object)
    rest = rest - (rest > last // 2) * last
    found = RING.subtract(words[:-1], RING.from_wide(rest))
    return RING.scaled(found, pow(last, -1, RING.modulus))


def distance(first: Words, second: Words) -> int:
    return max(abs(int(v)) for v in RING.to_wide(RING.subtract(first, second)))


def undone(secret: RlweSecretKey, c1: Words, seen: Wide) -> Words:
    """c1 without its encryption of zero, if what was read shows its u."""
    public, primes = secret.public, len(RING.primes)
    u = np.array([-round((int(v) - (3 << 152)) / 2**STEP) for v in seen.ravel()], dtype=np.int64).clip(-1, 1)
    u = u[reversed_bits(RING.degree)]  # as they stand among the coefficients
    a = RING.expand(public._seed, 1, primes)[0]
    turned = sealed(RING).to_ntt(RING.from_small(u[None], primes))[0]
    zero = divided(sealed(RING).from_ntt(RING.multiply(a, turned)[None])[0])
    return RING.subtract(c1, zero)


@pytest.mark.parametrize("make", [crafted, generate_secret_key])
def test_a_crafted_key_undoes_what_hides_multipliers(make: Any) -> None:
    """One request of 8,192 rows: with the crafted key c1 is found as it was computed from the columns."""
    secret = make()
    array = secret.conceal(np.array([[12345]], dtype=object), Range(40, 60), 1)
    columns = np.random.default_rng(0).normal(size=(RING.degree, 1))
    sums = (PlainMatrix(columns, 26, 30) @ array).within(VALUES, SLACK)
    before = sums.words[1][0]
    block, _ = sums.hide()
    left = undone(secret, block.c1[0], secret.read(block))
    if make is crafted:
        assert distance(left, before) < 2**8
    else:
        assert distance(left, before) > 2**150


def with_error(secret: RlweSecretKey, blob: bytes, error: int) -> bytes:
    """Switching keys of which the first has one constant error more."""
    frame = secret.public._frame(blob, Kind.SWITCHING)
    body, ring = memoryview(frame.payload), RING
    count = len(body[SEED_BYTES:]) // ring.byte_count(len(ring.primes) * ring.degree)
    parts = ring.from_bytes(body[SEED_BYTES:], (count, len(ring.primes), ring.degree), "keys")
    parts[0] = ring.subtract(parts[0], constant(error))
    return secret.public.frame(Kind.SWITCHING, bytes(body[:SEED_BYTES]) + ring.to_bytes(parts)).to_bytes()


def data() -> tuple[list[np.ndarray], np.ndarray]:
    rng = np.random.default_rng(4)
    return [rng.normal(size=(12, 3)) for _ in range(2)], rng.choice([-1.0, 1.0], 12)


def run(holders: dict[str, KeyHolder] | None = None) -> Any:
    return blind(recipe(rounds=1, batch_size=None, check_every=32), *data(), own=holders)


def _unscrupulous(patch: Patch) -> None:
    """A cheat does not refuse a check of its own keys."""
    patch.setattr(key_check, "NOISE_BITS", 1000)


def test_a_crafted_public_key_is_refused_by_its_makers_name(monkeypatch: Patch) -> None:
    _unscrupulous(monkeypatch)
    with pytest.raises(BadKey, match="p0's keys are crafted"):
        run({"p0": KeyHolder(crafted()), "p1": KeyHolder(generate_secret_key())})


def test_so_are_crafted_switching_keys(monkeypatch: Patch) -> None:
    _unscrupulous(monkeypatch)
    bad = generate_secret_key()
    make = bad.switching

    def switching(strides: Sequence[int]) -> bytes:
        return with_error(bad, make(strides), 1 << 140)

    monkeypatch.setattr(bad, "switching", switching)
    with pytest.raises(BadKey, match="p1's keys are crafted"):
        run({"p0": KeyHolder(generate_secret_key()), "p1": KeyHolder(bad)})


@pytest.mark.parametrize("rough", [True, False])
def test_what_passes_the_check_is_no_nearer_to_the_mask_than_values(rough: bool) -> None:
    """A switching key with the largest error that passes: products of a turned operand multiply what it adds,
    so where keys are checked operands are not turned.
    """
    secret, plan = generate_secret_key(), PLAN
    public, rng = secret.public, np.random.default_rng(0)
    features = rng.normal(size=(4096, 50))
    blocks = public.blocks_for(4096, 50, rough=rough)
    strides = public.strides_for([Result(50, 1, 4096, blocks)])
    public.load_switching(with_error(secret, secret.switching(strides), 1 << 74), strides)
    masked, _ = public.zero_chains(seed := bytes(SEED_BYTES))
    assert public.noise_bits(secret.open_noise(masked)[1], seed) <= key_check.MOST_BITS
    moved, _ = plan.update_matrices(10 * np.eye(50), features, 4096, rough=rough)
    residuals = rng.integers(-(2**30), 2**30, (4096, 1)).astype(object)
    sums = moved @ secret.conceal(residuals, plan.residuals, blocks)
    read = unflat(sums.packing, RING.to_limbs(secret._phase(sums.packing, *sums.words))).wide()
    noise = read - moved.integers().astype(object) @ residuals
    assert (max(abs(int(v)) for v in noise.ravel()) > 2 ** (plan.moved.bits + 20)) == rough


def test_operands_are_turned_only_where_key_holders_are_taken_at_their_word(monkeypatch: Patch) -> None:
    asked: list[bool] = []
    made = PlainMatrix.__post_init__
    monkeypatch.setattr(PlainMatrix, "__post_init__", lambda self: asked.append(self.rough) or made(self))
    for every in (32, 0):
        asked.clear()
        blind(recipe(rounds=1, batch_size=None, check_every=every), *data())
        assert any(asked) == (every == 0)


def test_a_check_of_keys_opens_nothing_but_zeros(monkeypatch: Patch) -> None:
    """A holder that slips something else under the check gets nothing."""
    chains = RlwePublicKey.zero_chains

    def greedy(public: RlwePublicKey, seed: bytes) -> Any:
        masked, mask = chains(public, seed)
        masked.c0[0, 5] = (int(masked.c0[0, 5]) + 1) % RING.primes[0]  # a wide number, modulo q
        return masked, mask

    monkeypatch.setattr(RlwePublicKey, "zero_chains", greedy)
    with pytest.raises(OpeningRefused, match="no zero"):
        run()


def test_the_audit_misses_the_check_where_there_was_none(monkeypatch: Patch) -> None:
    def claims() -> Any:
        done = run()
        return audit({name: link.transcript for name, link in done.run.links.items()})

    assert claims().failed == []
    monkeypatch.setattr(RlwePublicKey, "chains", 0)
    found = claims()
    assert found.failed == ["encrypted"]
    (claim,) = (claim for claim in found.claims if claim.name == "encrypted")
    assert "without a check that its errors are small" in claim.evidence
