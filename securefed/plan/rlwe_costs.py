"""The cost of encrypted products by RLWE on this machine, measured at the shapes of the run.

Each shape is measured at first use, with a real key, on some of its ciphertexts and columns. The others count
in proportion.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from securefed.crypto.blind.evaluation import multiplied, responded
from securefed.crypto.blind.interface import NONCE_BYTES, Product
from securefed.crypto.blind.layout import Layout, Panel, layout
from securefed.crypto.blind.rlwe import RLWE, RlweKey, RlwePublic, encrypted_block, read_reply
from securefed.crypto.randomness import SEED_BYTES, secret_bytes
from securefed.crypto.shares import Floats, Share, from_integers
from securefed.engine.local import cores
from securefed.errors import SettingError
from securefed.plan.meter import EFFICIENCY, Operation, timed

__all__ = ["RlweCosts"]

MOST_CIPHERTEXTS = 64
MOST_COLUMNS = 96
LARGEST = 1 << 24
"""Largest of the measured numbers. Times do not depend on it."""


class RlweCosts:
    """Costs by ciphertexts, and by columns or responses."""

    def __init__(self, workers: int = 1) -> None:
        nonce, key = os.urandom(NONCE_BYTES), RlweKey(os.urandom(SEED_BYTES))
        blob = key.public(nonce)
        public = RLWE.load_public(blob, nonce)
        if not isinstance(public, RlwePublic):
            raise SettingError("calibration: not an RLWE key")
        self._workers, self._secret, self._rerandomiser = workers, key._held(), public._rerandomiser
        self._keys = {
            "generate": timed(RLWE.generate),
            "public": timed(lambda: key.public(nonce)),
            "load public": timed(lambda: RLWE.load_public(blob, nonce)),
        }
        self._known: dict[tuple[str, Layout, bool], float] = {}

    def seconds(self, operation: Operation) -> float:
        product = operation.product
        if product is None:
            if operation.name not in self._keys:
                raise SettingError(f"plan: nobody has measured what {operation.name!r} takes under RLWE")
            return self._keys[operation.name]
        seconds = sum(self._panel(operation, product, panel) for panel in layout(product).panels)
        sharing = min(self._workers, operation.blocks, cores())
        return seconds / (EFFICIENCY * sharing if sharing > 1 else 1.0)

    def _panel(self, operation: Operation, product: Product, panel: Panel) -> float:
        rows = max(1, -(-operation.inner // operation.blocks))
        count = min(panel.ciphertexts(rows), MOST_CIPHERTEXTS)
        groups = min(panel.responses, max(2, MOST_COLUMNS // panel.group))

        def measured(groups: int) -> float:
            right = min(product.right, groups * panel.group)
            small = replace(product, inner=min(rows, count * panel.rows), left=panel.width, right=right)
            plan = Layout(small, (Panel(0, panel.width, right, panel.span),))
            place = (operation.name, plan, operation.exact)
            if place not in self._known:
                self._known[place] = timed(self._work(*place), 2)
            return self._known[place]

        seconds = measured(groups)
        if panel.responses > groups and operation.name != "encrypt":
            # The part that does not grow with the columns is in both.
            half = groups // 2
            seconds += (seconds - measured(half)) * (panel.responses - groups) / (groups - half)
        if operation.name in ("encrypt", "multiply"):
            seconds *= panel.ciphertexts(operation.inner) / count
        return seconds

    def _work(self, name: str, plan: Layout, exact: bool) -> Callable[[], object]:
        """Return the real work on a small product."""
        product, secret = plan.product, self._secret
        if name == "read":
            return lambda: read_reply(secret, plan, bytes(plan.reply_bytes()))
        left, right = (_rows((product.inner, count), exact) for count in (product.left, product.right))
        if name == "encrypt":
            return lambda: encrypted_block(secret_bytes(), secret, plan, left)
        message = encrypted_block(secret_bytes(), secret, plan, left)
        if name == "multiply":
            return lambda: multiplied(plan, message, right)
        sums = multiplied(plan, message, right)
        return lambda: responded(secret_bytes(), plan, sums, self._rerandomiser)


def _rows(shape: tuple[int, int], exact: bool) -> Floats | Share:
    integers = np.random.default_rng(0).integers(-LARGEST, LARGEST, shape)
    return from_integers(integers) if exact else integers.astype(np.float64)
