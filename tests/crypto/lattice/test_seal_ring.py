"""SEAL's serialised form, written and read."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
import tenseal.sealapi as seal

from securefed.crypto.ckks.layout import RING
from securefed.crypto.lattice import seal_ring
from securefed.crypto.lattice.seal_ring import (
    DATA_PRIMES,
    PRIMES,
    add,
    check_residues,
    ciphertext,
    engine,
    from_ntt,
    multiply,
    plaintext,
    read,
    to_ntt,
    uniform,
)
from securefed.crypto.randomness import secret_bytes
from securefed.errors import BadCiphertext


def polynomials(count: int, primes: int = 2) -> np.ndarray:
    return (
        uniform(secret_bytes(), count * RING, primes).reshape(primes, count, RING).transpose(1, 0, 2).copy()
    )


def test_ciphertexts_and_plaintexts_come_back() -> None:
    words = polynomials(2)
    block = ciphertext(words)
    assert block.is_ntt_form() and block.scale == 1.0
    assert (read(block.dyn_array()).reshape(words.shape) == words).all()
    plain = plaintext(words[0])
    assert (read(plain.dyn_array()).reshape(2, RING) == words[0]).all()


def test_what_seal_compresses_is_read_all_the_same() -> None:
    words = np.zeros((2, 2, RING), dtype=np.uint64)
    words[..., :5] = 77
    block = ciphertext(words)
    handle, path = seal_ring._SCRATCH.file()
    block.save(path)
    assert os.fstat(handle).st_size < words.nbytes / 2
    assert (read(block.dyn_array()).reshape(words.shape) == words).all()


def test_seal_adds_and_multiplies_what_was_written() -> None:
    a, b, t = polynomials(2), polynomials(2), uniform(secret_bytes(), RING)
    evaluator, total, product = engine().evaluator, seal.Ciphertext(), seal.Ciphertext()
    evaluator.add(ciphertext(a), ciphertext(b), total)
    assert (read(total.dyn_array()).reshape(a.shape) == add(a, b)).all()
    evaluator.multiply_plain(ciphertext(a), plaintext(t), product)
    expected = np.stack([multiply(part, t) for part in a])
    assert (read(product.dyn_array()).reshape(a.shape) == expected).all()


@pytest.mark.parametrize("primes", [2, 3])
@pytest.mark.parametrize("count", [1, 2, 15, 16, 31])
def test_transforms_are_inverse(count: int, primes: int) -> None:
    words = polynomials(count, primes)
    assert (from_ntt(to_ntt(words)) == words).all()


def test_the_transform_turns_products_of_polynomials_into_products_of_values() -> None:
    # (1 + 2 X^3) * X^(N-1) = X^(N-1) - 2 X^2
    a, b, c = (np.zeros((1, 2, RING), dtype=np.uint64) for _ in range(3))
    a[..., 0], a[..., 3], b[..., RING - 1], c[..., RING - 1] = 1, 2, 1, 1
    c[..., 2] = np.array(DATA_PRIMES, dtype=np.uint64) - np.uint64(2)
    assert (from_ntt(multiply(to_ntt(a), to_ntt(b))) == c).all()


def test_structured_polynomials_are_read_at_full_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    sparse = np.zeros((2, 2, RING), dtype=np.uint64)
    sparse[0, :, ::1024] = 7
    expected = seal_ring._transform(sparse, True)
    slow: list[int] = []
    monkeypatch.setattr(seal_ring.np, "fromiter", lambda *args, **kwargs: slow.append(1))
    assert (to_ntt(sparse) == expected).all()
    assert slow == []


def test_zero_is_transformed_too() -> None:
    zero = np.zeros((3, 2, RING), dtype=np.uint64)
    assert not to_ntt(zero).any()


def test_residues_are_checked_against_their_own_prime() -> None:
    words = polynomials(1, 3)
    for row, prime in enumerate(PRIMES):
        words[0, row, 9] = prime - 1
        check_residues(words, "words")
        words[0, row, 9] = prime
        with pytest.raises(BadCiphertext, match="words: 1 residues are not below their prime"):
            check_residues(words, "words")
        words[0, row, 9] = 0


def test_threads_have_files_of_their_own() -> None:
    paths: list[str] = []
    thread = threading.Thread(target=lambda: paths.append(seal_ring._SCRATCH.file()[1]))
    thread.start()
    thread.join()
    assert paths[0] != seal_ring._SCRATCH.file()[1]


def test_nothing_is_left_in_the_file() -> None:
    words = polynomials(2)
    block = ciphertext(words)
    handle, _ = seal_ring._SCRATCH.file()
    assert os.fstat(handle).st_size == 0
    read(block.dyn_array())
    assert os.fstat(handle).st_size == 0
    to_ntt(words)
    assert os.fstat(handle).st_size == 0
