"""The peers compute what they are compared for: a wrong use of them would make a ratio worthless."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from bench import rivals
from bench.rivals import Fate, Phe, TensealVector, fate_obstacle


def test_phe_products_are_right_for_reals_and_integers() -> None:
    phe = Phe(512)
    rng = np.random.default_rng(0)
    values, matrix = rng.uniform(-1, 1, 5), rng.uniform(-1, 1, (3, 5))
    products = phe.decrypt(phe.product(matrix.tolist(), phe.encrypt(values)))
    np.testing.assert_allclose(products, matrix @ values, atol=1e-12)
    numbers = phe.encrypt_integers([7, -8, 9])
    assert phe.decrypt(phe.product([[1, 2, 3], [-4, 0, 6]], numbers)) == [18, 26]


@pytest.mark.parametrize("chain", [TensealVector.TUTORIAL, TensealVector.SHORTEST])
def test_tenseal_multiplies_entry_by_entry(chain: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    values, factors = rng.uniform(-1, 1, 4096), rng.uniform(-1, 1, 4096)
    product = TensealVector(values, chain).times(factors.tolist())
    np.testing.assert_allclose(product.decrypt(), values * factors, atol=1e-5)


@pytest.mark.skipif(fate_obstacle() is not None, reason="fate_utils cannot be used here")
def test_fate_encrypts_and_decrypts_under_randomness() -> None:
    fate = Fate(1024)
    values = np.array([0.5, -1.25, 3.0])
    encoded = fate.encode(values)
    np.testing.assert_array_equal(fate.decrypt(fate.encrypt_encoded(encoded)), values)
    first, second = (fate.encrypt_encoded(encoded).__getstate__() for _ in range(2))
    assert first != second


def test_a_fate_that_cannot_be_imported_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        assert command[:2] == [sys.executable, "-c"]
        return subprocess.CompletedProcess(command, 1, "", "Traceback ...\nModuleNotFoundError: No module\n")

    monkeypatch.setattr(rivals.subprocess, "run", missing)
    assert fate_obstacle() == (
        "fate_utils left out: ModuleNotFoundError: No module (it is in the extra 'peers')"
    )


def test_a_fate_that_kills_its_process_is_an_obstacle_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rivals, "PROBE", "import os; os.abort()")
    assert fate_obstacle() == "fate_utils left out: exit code -6 (it is in the extra 'peers')"
