"""Where peers have to be trusted not to cheat, it is said; and what a cheat gets there."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from securefed import GeneralisedLinear, OwnGradient, Party, Plain
from securefed.crypto import FixedPoint, KeyHolder, generate
from securefed.crypto.ckks.arrays import CkksMasked
from securefed.crypto.ckks.keys import CkksSecretKey
from securefed.crypto.lattice.ring import DEGREE, PRIMES, RING
from securefed.protocols.agreement import TrustWarning, trust_lines
from securefed.protocols.own_gradient.openings import check_sums
from securefed.settings import Protection
from tests.audit.test_attack_opening_layout import COLUMNS, ROWS, agreed

DIGITS = 16


@pytest.mark.parametrize(
    ("scheme", "reveal", "said"),
    [
        ("ckks", "own-gradient", True),
        ("ckks", "nothing", False),
        ("paillier", "own-gradient", False),
        ("plain", "own-gradient", False),
    ],
)
def test_the_line_is_there_where_it_is_true(scheme: str, reveal: str, said: bool) -> None:
    lines = trust_lines(scheme, reveal, "linear")
    assert len(lines) == said
    for line in lines:
        assert "trusted not to cheat" in line and "whole secret key" in line
        assert "neither protection=Blind() nor scheme='paillier' shows a key" in line


@pytest.mark.parametrize("protection", [OwnGradient(), Plain()])
def test_fit_says_it(protection: Protection) -> None:
    rng = np.random.default_rng(0)
    parties = [Party("a", rng.normal(size=(40, 2))), Party("b", rng.normal(size=(40, 2)), labels=[0, 1] * 20)]
    model = GeneralisedLinear(rounds=1, learning_rate=0.1, protection=protection)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TrustWarning)
        model.fit(parties)
    assert sum(issubclass(w.category, TrustWarning) for w in caught) == (protection == OwnGradient())


def crafted(honest: CkksMasked) -> CkksMasked:
    """c1 = 2^75 (1 + 3 X^-1 + 9 X^-2 + ...), c0 = 0: every returned coefficient of the phase is a number of
    16 digits in base 3, and the digits are coefficients of the secret key.
    """
    c1 = [0] * DEGREE
    for k in range(DIGITS):
        # X^-k = -X^(N - k)
        c1[(DEGREE - k) % DEGREE] = 3**k << 75 if k == 0 else -(3**k << 75)
    residues = RING.reduced(np.array([[float(value % prime) for value in c1] for prime in PRIMES]))
    blocks = np.stack([residues] * honest.ciphertexts, axis=1)
    return CkksMasked(honest.public, honest.layout, honest.noise, np.zeros_like(honest.c0), blocks)


def test_one_crafted_request_reads_the_secret_key() -> None:
    """Held to its layout, and the form of an honest one: it is answered. This is what the line is about."""
    holder: KeyHolder = generate("ckks")
    agreement = agreed("ckks")
    held = holder.public.load(holder.encrypt(np.zeros(ROWS), FixedPoint(17.0, 32)).to_bytes())
    honest, _ = held.contract(np.ones((1, COLUMNS, ROWS))).mask()
    assert isinstance(honest, CkksMasked)
    request = holder.public.load_masked(crafted(honest).to_bytes())
    check_sums(request, agreement, agreement.members[0])
    answer = np.rint(np.ldexp(RING.centred(holder.open(request).residues), -75)).astype(np.int64)
    secret = holder._secret
    assert isinstance(secret, CkksSecretKey)
    places = np.concatenate(honest.layout.places)
    assert len(answer) == len(places)
    for value, place in zip(answer.tolist(), places.tolist(), strict=True):
        for k in range(DIGITS):
            digit = (value + 1) % 3 - 1
            value = (value - digit) // 3
            at = place + k
            assert digit == (secret._secret[at] if at < DEGREE else -secret._secret[at - DEGREE])
