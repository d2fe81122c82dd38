"""The cost of each operation on this machine: a few seconds of real work, once for each kind of keys.

Paillier's costs scale with counts, so a few small operations are measured: an encryption, r**n, an opening, a
multiplication mod n**2 (the multi-exponentiation counts those) and a squaring. CKKS's costs depend on shapes
in steps and are small, so they are measured at the run's shapes. So are encrypted products by RLWE, on some
ciphertexts and columns; the others count in proportion. Local models need no calibration: a rehearsal runs
them.

Seconds are processor time, so other work on the machine does not count.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from math import ceil
from os import urandom
from time import thread_time

import numpy as np

from securefed.crypto import FixedPoint, KeyHolder, Mapper, generate, load_public_key
from securefed.crypto.blind.evaluation import multiplied, responded
from securefed.crypto.blind.interface import NONCE_BYTES, Product
from securefed.crypto.blind.layout import Layout, Panel, layout
from securefed.crypto.blind.paillier import (
    PaillierCrossKey,
    Slots,
    exponent_bits,
    paillier_scheme,
)
from securefed.crypto.blind.rlwe import RLWE, RlweKey, RlwePublic, encrypted_block, read_reply
from securefed.crypto.fixed import PRIVATE_BITS
from securefed.crypto.paillier.keys import PaillierPublicKey
from securefed.crypto.paillier.masking import horner
from securefed.crypto.paillier.powers import PowerColumn, choose_cut, column_powers
from securefed.crypto.paillier.primes import WORTH_TABLES
from securefed.crypto.randomness import SEED_BYTES, secret_bytes
from securefed.crypto.shares import Floats, Share, from_integers
from securefed.engine.processes import cores
from securefed.errors import SettingError
from securefed.plan.fake_keys import EFFICIENCY, Costs, Operation, timed

FIXED = FixedPoint(1.0, 32)
SHARED = 64
"""Encryptions below this number are not spread over workers (securefed.crypto.paillier.keys)."""
MOST_CIPHERTEXTS = 64
MOST_COLUMNS = 96
LARGEST = 1 << 24
"""Largest of the numbers that RLWE is measured with. Times do not depend on it."""


class PlainCosts:
    """Costs of a plain run. A rehearsal computes everything itself."""

    def seconds(self, operation: Operation) -> float:
        raise SettingError(f"plan: costs of unprotected runs given, and there is {operation.name!r} to do")


class PaillierCosts:
    """Costs per ciphertext and per multiplication mod n**2."""

    def __init__(self, key_bits: int, workers: int = 1, *, allow_small: bool = False) -> None:
        self.workers, self.bits, self._bytes = workers, key_bits, key_bits // 4
        self.efficiency = EFFICIENCY * min(1.0, cores() / workers) if workers > 1 else 1.0
        scheme, nonce, keys = (
            paillier_scheme(key_bits, allow_small),
            bytes(NONCE_BYTES),
            list[PaillierCrossKey](),
        )
        self.keys = {"generate": timed(lambda: keys.append(scheme.generate()), 2)}  # type: ignore[arg-type]
        blob = keys[0].public(nonce)
        self.keys["public"] = timed(lambda: keys[0].public(nonce), 1)
        self.keys["load public"] = timed(lambda: scheme.load_public(blob, nonce), 1)
        secret = keys[0]._secret
        residues = secret._owner
        self.tables = timed(lambda: residues.draw_from(urandom, 1, residues.tables), 1)
        """Cost of the owner's tables, once a key."""
        self.power = timed(lambda: residues.draw_from(urandom, 2, residues.powers)) / 2
        """Cost of an owner's r**n without tables."""
        holder = KeyHolder(secret)
        public = holder.public
        if not isinstance(public, PaillierPublicKey):
            raise SettingError("calibration: not a Paillier key")
        self.keys["key"] = self.tables + timed(
            lambda: load_public_key(public.to_bytes(), allow_small=allow_small), 1
        )
        rng = np.random.default_rng(0)
        values = rng.uniform(-1, 1, 16)
        encrypted = holder.encrypt(values, FIXED)
        sent = encrypted.to_bytes()
        self.encrypt = timed(lambda: holder.encrypt(values, FIXED)) / len(values)
        self.draw = timed(lambda: public.draw(4)) / 4
        self.load = timed(lambda: public.load(sent)) / len(values)
        self.open = self._opening(holder)
        group = list(encrypted._ciphertexts)  # type: ignore[attr-defined]
        width = 120
        self.squaring = timed(lambda: horner((public.square, width, group))) / (width * (len(group) - 1))
        exponents = rng.integers(-(1 << 24), 1 << 24, (8, 48))
        bases = [group[i % len(group)] * (i + 2) % public.square for i in range(48)]
        cut = choose_cut(48, 8, 24, key_bits)
        column, units = PowerColumn(public.n, bases, exponents, cut), cut.cost(48, 8)
        self.multiplication = timed(lambda: column_powers(column)) / units

    @staticmethod
    def _opening(holder: KeyHolder) -> float:
        count = 4
        best = float("inf")
        for _ in range(2):
            # Values that do not pack: one ciphertext each.
            parts = [holder.public.encrypt(np.zeros(1), FIXED).mask()[0] for _ in range(count)]
            begin = thread_time()
            for part in parts:
                holder.open(part)
            best = min(best, thread_time() - begin)
        return best / count

    def _spread(self, seconds: float, pieces: int) -> float:
        """Return the time with the pieces spread over the workers."""
        if self.workers == 1 or pieces < 2:
            return seconds
        waves = ceil(pieces / self.workers)
        return seconds * waves / pieces / self.efficiency

    def seconds(self, operation: Operation) -> float:
        count = operation.ciphertexts
        if operation.name in self.keys:
            return self.keys[operation.name]
        if operation.product is not None:
            return self._blind(operation, operation.product)
        if operation.name == "contract":
            outputs, columns = operation.size
            return self._products((columns, outputs, operation.inner), PRIVATE_BITS)
        if operation.name == "mask":
            return self._packed(operation) + self._of("draw", count)
        if operation.name not in AS:
            raise SettingError(f"plan: nobody has measured what {operation.name!r} takes under Paillier")
        same = AS[operation.name]
        return 0.0 if same is None else self._of(same, count)

    def _blind(self, operation: Operation, product: Product) -> float:
        """Return the time of an operation of an encrypted product."""
        slots = Slots.of(product, self.bits)
        count, right = operation.inner * slots.groups, product.right
        if operation.name == "encrypt":
            if product.inner * slots.groups < WORTH_TABLES:
                return self.power * count
            return self.tables * operation.inner / product.inner + self._of("encrypt", count)
        if operation.name == "multiply":
            bits = exponent_bits(product)
            return self.load * count + self._products((slots.groups, right, operation.inner), bits)
        if operation.name == "respond":
            moves = slots.width * slots.columns * slots.groups * (right - slots.chunks)
            return self._spread(self.squaring * moves, slots.replies) + self._of("draw", slots.replies)
        return self._of("open", slots.replies)

    def _of(self, word: str, count: int) -> float:
        if word == "encrypt":
            pieces = self.workers if count >= SHARED else 1
            return self._spread(self.encrypt * count, pieces)
        if word in ("draw", "open"):
            return self._spread(getattr(self, word) * count, min(count, 4 * self.workers))
        return (self.load if word == "load" else self.multiplication) * count

    def _packed(self, operation: Operation) -> float:
        """Return the time of packing, with as many groups as ciphertexts."""
        count, bits = int(np.prod(operation.shape)), operation.width
        groups = max(1, count * max(1, bits) // (8 * self._bytes // 2))
        return self._spread(self.squaring * bits * count, groups)

    def _products(self, shape: tuple[int, int, int], bits: int) -> float:
        """Return the time of sums of products with (columns, outputs, rows) multipliers."""
        columns, outputs, rows = shape
        slices = min(outputs, ceil(self.workers / columns))
        size = ceil(outputs / slices)
        pieces = columns * ceil(outputs / size)
        each = choose_cut(rows, size, bits, self.bits).cost(rows, size) * self.multiplication
        if self.workers == 1:
            return each * pieces
        return each * ceil(pieces / self.workers) / self.efficiency


AS: dict[str, str | None] = {
    "encrypt": "encrypt",
    "encrypt for another": "draw",
    "load": "load",
    "add": "add",
    "plus": "add",
    "draw": "draw",
    "open": "open",
    "unmask": None,
    "sum bytes": None,
    "load sum": "load",
}
"""The measured cost of each Paillier operation, per ciphertext. None: too small to count."""


class CkksCosts:
    """Costs measured at the shapes of the run, each once."""

    def __init__(self) -> None:
        self._holder = generate("ckks")
        blob = self._holder.public.to_bytes()
        self._known: dict[tuple[str, tuple[int, ...], int], float] = {
            ("key", (), 0): timed(lambda: load_public_key(blob), 2)
        }

    def seconds(self, operation: Operation) -> float:
        name, shape, inner = operation.name, operation.shape, operation.inner
        if name in ("sum bytes", "load sum"):
            return 0.0  # measured with masks and openings
        if name == "key":
            shape = ()
        place = (name, shape, inner)
        if place not in self._known:
            if name in ("contract", "mask", "open", "unmask"):
                self._chain(shape, inner)
            elif name in ("encrypt", "encrypt for another", "load", "add", "plus"):
                self._array(shape)
        if place not in self._known:
            raise SettingError(f"plan: nobody has measured what {name!r} takes under CKKS")
        return self._known[place]

    def _chain(self, shape: tuple[int, ...], inner: int) -> None:
        """Measure products, masking, opening and unmasking of one gradient; no products if `inner` is 0."""
        public, rng = self._holder.public, np.random.default_rng(0)
        operand = (inner, *shape[1:]) if inner else shape
        encrypted = public.load(self._holder.encrypt(np.zeros(operand), FIXED).to_bytes())
        multipliers = rng.normal(size=((*shape, 1)[1], shape[0], inner))
        marks = dict.fromkeys(("contract", "mask", "open", "unmask"), float("inf"))
        for _ in range(2):
            times = [thread_time()]
            sums = encrypted.contract(multipliers) if inner else encrypted
            times.append(thread_time())
            masked, mask = sums.mask()
            request = masked.to_bytes()
            times.append(thread_time())
            reply = self._holder.open(public.load_masked(request)).to_bytes()
            times.append(thread_time())
            mask.remove(public.load_opened(reply))
            times.append(thread_time())
            for place, name in enumerate(marks):
                marks[name] = min(marks[name], times[place + 1] - times[place])
        for name, taken in marks.items():
            self._known[name, shape, inner] = taken

    def _array(self, shape: tuple[int, ...]) -> None:
        zeros, public = np.zeros(shape), self._holder.public
        encrypted = self._holder.encrypt(zeros, FIXED)
        blob = encrypted.to_bytes()
        measured: dict[str, Callable[[], object]] = {
            "encrypt": lambda: self._holder.encrypt(zeros, FIXED).to_bytes(),
            "encrypt for another": lambda: public.encrypt(zeros, FIXED).to_bytes(),
            "load": lambda: public.load(blob),
            "add": lambda: (public.load(blob) + encrypted).to_bytes(),
            "plus": lambda: public.load(blob) + zeros,
        }
        for name, work in measured.items():
            self._known[name, shape, 0] = timed(work, 2)


class RlweCosts:
    """Costs by ciphertexts, and by columns or responses."""

    def __init__(self, workers: int = 1) -> None:
        nonce, key = os.urandom(NONCE_BYTES), RlweKey(os.urandom(SEED_BYTES))
        blob = key.public(nonce)
        public = RLWE.load_public(blob, nonce)
        if not isinstance(public, RlwePublic):
            raise SettingError("calibration: not an RLWE key")
        self._workers, self._secret, self._rerandomiser = workers, key._secret, public._rerandomiser
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


def calibrate(kind: str, key_bits: int, mapper: Mapper | None = None) -> Costs:
    """Measure the cost of one kind of work (`Scenario.cost_kind`) on this machine.

    Only Paillier uses `key_bits`. `mapper` is the run's. Raises SettingError for an unknown kind.
    """
    workers = 1 if mapper is None else mapper.workers
    known: dict[str, Callable[[], Costs]] = {
        "paillier": lambda: PaillierCosts(key_bits, workers),
        "ckks": CkksCosts,
        "rlwe": lambda: RlweCosts(workers),
        "plain": PlainCosts,
    }
    if kind not in known:
        raise SettingError(f"plan: nobody has measured what keys of kind {kind!r} cost")
    return known[kind]()
