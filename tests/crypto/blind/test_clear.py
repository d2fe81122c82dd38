"""The unprotected stand-in computes what the interface promises."""

from __future__ import annotations

import numpy as np

from research.attacks.clear import CLEAR
from securefed.crypto import shares
from securefed.crypto.blind.interface import NONCE_BYTES, Product


def test_shares_add_up_to_the_product() -> None:
    rng = np.random.default_rng(0)
    product = Product(7, 3, 2, 40, 20)
    left = np.rint(rng.normal(size=(7, 3)) * 1e9)
    right = np.rint(rng.normal(size=(7, 2)) * 1e5)
    key, nonce = CLEAR.generate(), bytes(NONCE_BYTES)
    evaluation = CLEAR.load_public(key.public(nonce), nonce).evaluate(product)
    (block,) = key.encrypt(product, [0], lambda first, last: left[first:last])
    evaluation.add({0: block}, lambda first, last: right[first:last])
    reply, second = evaluation.finish()
    total = shares.add(key.read(product, reply), second)
    np.testing.assert_array_equal(shares.to_floats(total, 0), left.T @ right)
