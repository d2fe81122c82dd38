"""What an operation takes on this machine: a few seconds of real work, once for each kind of keys.

Paillier's operations scale with counts, so they are measured small: an encryption, r**n, an opening, a
multiplication mod n**2 (the multi-exponentiation says how many it will take), a squaring. CKKS's depend on
shapes in steps and are fast, so they are measured at the shapes that the run will have; so are those on
hidden arrays under RLWE (securefed.measure.lattice). A local model needs none: a rehearsal runs it.

Seconds are the processor's: a machine that is busy with something else is not slower for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from math import ceil
from time import thread_time
from typing import Any

import numpy as np

from securefed.crypto import FixedPoint, KeyHolder, Mapper, Serial, generate, load_public_key
from securefed.crypto.fixed import PRIVATE_BITS
from securefed.crypto.paillier import PaillierPublicKey
from securefed.crypto.paillier.masking import horner
from securefed.crypto.paillier.multiexp import Column, choose_plan, column_powers
from securefed.crypto.paillier.public import unit_powers
from securefed.crypto.randomness import uniform_units
from securefed.errors import SettingError
from securefed.measure.lattice import RlweCosts
from securefed.measure.meter import Costs, Operation
from securefed.measure.stopwatch import timed

__all__ = ["CkksCosts", "PaillierCosts", "PlainCosts", "calibrate"]

FIXED = FixedPoint(1.0, 32)
SHARED = 64
"""Encryptions below this number are not spread over workers (securefed.crypto.paillier.secret)."""


class PlainCosts:
    """Nothing is encrypted, and all that is computed is computed in a rehearsal."""

    def seconds(self, operation: Operation) -> float:
        raise SettingError(f"plan: costs of unprotected runs given, and there is {operation.name!r} to do")


class PaillierCosts:
    """Per ciphertext, and per multiplication mod n**2."""

    def __init__(self, key_bits: int, mapper: Mapper | None = None, *, allow_small: bool = False) -> None:
        holder = generate("paillier", key_bits=key_bits, allow_small=allow_small)
        public = holder.public
        if not isinstance(public, PaillierPublicKey):
            raise SettingError("calibration: not a Paillier key")
        self.workers = (mapper or Serial()).workers
        begin = thread_time()
        holder.encrypt(np.zeros(1), FIXED)
        load_public_key(public.to_bytes(), allow_small=allow_small)
        self.setup = thread_time() - begin  # the owner's tables and the proof of the peer's key; once
        rng = np.random.default_rng(0)
        values = rng.uniform(-1, 1, 16)
        encrypted = holder.encrypt(values, FIXED)
        blob = encrypted.to_bytes()
        self.encrypt = timed(lambda: holder.encrypt(values, FIXED)) / len(values)
        self.draw = timed(lambda: public.draw(4)) / 4
        self.load = timed(lambda: public.load(blob)) / len(values)
        self.open = self._opening(holder)
        group = list(encrypted._ciphertexts)  # type: ignore[attr-defined]
        width = 120
        self.squaring = timed(lambda: horner((public.square, width, group))) / (width * (len(group) - 1))
        exponents = rng.integers(-(1 << 24), 1 << 24, (8, 48))
        bases = [group[i % len(group)] * (i + 2) % public.square for i in range(48)]
        column = Column(public.n, bases, exponents)
        self._bytes = int(public.n.bit_length()) // 4
        units = choose_plan(exponents.shape, exponents.size, 24, self._bytes).cost
        self.multiplication = timed(lambda: column_powers(column)) / units
        self.efficiency = self._efficiency(public, mapper)

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

    def _efficiency(self, public: PaillierPublicKey, mapper: Mapper | None) -> float:
        """How much of its share a worker gives, measured on r**n: what handing out costs, what workers take
        from each other, and whether there is a core for each.
        """
        if mapper is None or mapper.workers == 1:
            return 1.0
        pieces = [(public.n, uniform_units(public.n, 4)) for _ in range(2 * mapper.workers)]
        begin = thread_time()
        busy = sum(mapper.map(_draw_seconds, pieces))
        handing = thread_time() - begin
        due = self.draw * 4 * len(pieces)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        share = min(1.0, cores / mapper.workers)
        return share * min(1.0, max(0.2, due / (busy + handing * mapper.workers)))

    def _spread(self, seconds: float, pieces: int) -> float:
        """Over the workers that get a piece."""
        if self.workers == 1 or pieces < 2:
            return seconds
        waves = ceil(pieces / self.workers)
        return seconds * waves / pieces / self.efficiency

    def seconds(self, operation: Operation) -> float:
        count = operation.ciphertexts
        if operation.name == "key":
            return self.setup
        if operation.name == "contract":
            outputs, columns = operation.size
            return self._products((columns, outputs, operation.inner), operation.terms, PRIVATE_BITS)
        if operation.name == "multiply" and operation.matrix is not None:
            outputs, columns = operation.size
            integers = np.abs(operation.matrix.integers())
            bits = max(1, int(integers.max(initial=0)).bit_length())
            terms = columns * int(np.count_nonzero(integers))
            return self._products((columns, outputs, operation.inner), terms, bits)
        if operation.name == "pack":
            return self._packed(operation)
        if operation.name == "mask":
            return self._packed(operation) + self._of("draw", count)
        if operation.name not in AS:
            raise SettingError(f"plan: nobody has measured what {operation.name!r} takes under Paillier")
        same = AS[operation.name]
        return 0.0 if same is None else self._of(same, count)

    def _of(self, word: str, count: int) -> float:
        if word == "encrypt":
            pieces = self.workers if count >= SHARED else 1
            return self._spread(self.encrypt * count, pieces)
        if word in ("draw", "open"):
            return self._spread(getattr(self, word) * count, min(count, 4 * self.workers))
        return (self.load if word == "load" else self.multiplication) * count

    def _packed(self, operation: Operation) -> float:
        """As many groups as ciphertexts come out, about one for each slot's share."""
        count, bits = int(np.prod(operation.shape)), operation.width
        groups = max(1, count * max(1, bits) // (8 * self._bytes // 2))
        return self._spread(self.squaring * bits * count, groups)

    def _products(self, shape: tuple[int, int, int], terms: int, bits: int) -> float:
        """Sums of products, of (columns, outputs, rows) multipliers of which so many are not 0."""
        columns, outputs, rows = shape
        slices = min(outputs, ceil(self.workers / columns))
        size = ceil(outputs / slices)
        pieces = columns * ceil(outputs / size)
        plan = choose_plan((size, rows), ceil(terms / pieces), bits, self._bytes)
        each = plan.cost * self.multiplication
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
    "zeros": "draw",
    "load array": "load",
    "array plus": "add",
    "array bytes": None,
    "flatten": None,
    "prepare": None,
    "unfold": None,
    "add sums": "add",
    "sum plus": "add",
    "rerandomise": "draw",
    "sum bytes": None,
    "load sum": "load",
    "read": "open",
    "conceal": "encrypt",
}
"""Operations under Paillier, and what they cost as much as, for each ciphertext; None: nothing worth a
forecast.
"""


def _draw_seconds(piece: tuple[Any, list[Any]]) -> float:
    """The processor's time for r**n of some units; a top-level function, for other processes."""
    begin = thread_time()
    unit_powers(piece)
    return thread_time() - begin


class CkksCosts:
    """Measured at the shapes of the run, each once."""

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
        """Products, masking, opening and unmasking of one gradient; without products where `inner` is 0."""
        public, rng = self._holder.public, np.random.default_rng(0)
        held = (inner, *shape[1:]) if inner else shape
        encrypted = public.load(self._holder.encrypt(np.zeros(held), FIXED).to_bytes())
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


def calibrate(kind: str, key_bits: int, mapper: Mapper | None = None) -> Costs:
    """The costs of a kind of keys (securefed.crypto.key_kind) on this machine; `mapper` is what the run will
    use.
    """
    known: dict[str, Callable[[], Costs]] = {
        "paillier": lambda: PaillierCosts(key_bits, mapper),
        "rlwe": lambda: RlweCosts(1 if mapper is None else mapper.workers),
        "ckks": CkksCosts,
        "plain": PlainCosts,
    }
    if kind not in known:
        raise SettingError(f"plan: nobody has measured what keys of kind {kind!r} cost")
    return known[kind]()
