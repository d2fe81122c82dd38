"""Ray over two nodes of this machine: the same ciphertexts, arrays placed once, a lost node survived."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securefed.crypto import shares
from securefed.crypto.blind.interface import NONCE_BYTES, Product
from securefed.crypto.blind.rlwe import RLWE
from securefed.crypto.scheme import SERIAL
from securefed.engine import Ray
from securefed.errors import SettingError

ray = pytest.importorskip("ray", reason='Ray is not installed: pip install "securefed[ray]"')
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=1)
    yield made
    ray.shutdown()
    made.shutdown()


def where(pair: tuple[np.ndarray, int]) -> tuple[str, float]:
    return ray.get_runtime_context().get_node_id(), float(pair[0][pair[1]])


def dies_once(mark: Path) -> str:
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), 9)
    return mark.name


def test_two_nodes(cluster: Any, tmp_path: Path) -> None:
    values = np.arange(50_000.0)
    with Ray(cluster.address) as engine:
        assert engine.workers == 2
        found = engine.map(where, [(values, i) for i in range(40)])
        assert [value for _, value in found] == list(range(40))
        assert engine.map(dies_once, [tmp_path / "mark"]) == ["mark"], "a lost worker's piece is done again"
        assert engine.local.workers >= 1 and engine.local is not engine


def test_products_are_the_same_as_here(cluster: Any) -> None:
    rng = np.random.default_rng(0)
    product = Product(3000, 6, 4, 40, 20)
    left = np.rint(rng.uniform(-1, 1, (3000, 6)) * 2.0**39)
    right = np.rint(rng.uniform(-1, 1, (3000, 4)) * 2.0**19)
    key, nonce = RLWE.generate(), bytes(NONCE_BYTES)
    public = RLWE.load_public(key.public(nonce), nonce)
    places = range(len(key.lengths.blocks(product)))
    totals = []
    with Ray(cluster.address) as engine:
        for mapper in (SERIAL, engine):
            blocks = key.encrypt(product, places, lambda a, b: left[a:b], mapper, repeatable=True)
            evaluation = public.evaluate(product)
            evaluation.add(dict(enumerate(blocks)), lambda a, b: right[a:b], mapper)
            reply, share = evaluation.finish()
            total = shares.add(key.read(product, reply), share)
            totals.append((blocks, shares.to_floats(total, 59)))
    (here, first), (there, second) = totals
    assert here == there
    assert np.abs(first - second).max() < 1e-5
    assert np.abs(second - left.T @ right / 2.0**59).max() < 1e-5


def test_a_cluster_that_is_not_there_is_one_line() -> None:
    ray.shutdown()
    with pytest.raises(SettingError, match=r"engine: no Ray cluster at 127\.0\.0\.1:1: ") as caught:
        Ray("127.0.0.1:1").map(abs, [1])
    assert "\n" not in str(caught.value)
