"""What an operation takes on this machine: a few seconds of real work, once for each kind of keys.

Paillier's operations scale with counts, so they are measured small: an encryption, r**n, an opening, a
multiplication mod n**2 (the multi-exponentiation says how many it will take), a squaring. CKKS's depend on
shapes in steps and are fast, so they are measured at the shapes that the run will have; so are those on
hidden arrays under RLWE (securefed.measure.lattice). The local model is run on random numbers of its size.

Seconds are the processor's: a machine that is busy with something else is not slower for it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from math import ceil
from time import thread_time
from typing import Any, Protocol, runtime_checkable

import numpy as np

from securefed.crypto import FixedPoint, KeyHolder, Mapper, Serial, generate, load_public_key
from securefed.crypto.paillier import PaillierPublicKey
from securefed.crypto.paillier.masking import horner
from securefed.crypto.paillier.multiexp import Column, choose_plan, column_powers
from securefed.crypto.paillier.public import unit_powers
from securefed.crypto.randomness import uniform_units
from securefed.errors import SettingError
from securefed.measure.dry import HiddenCosts, Operation
from securefed.measure.lattice import RlweCosts
from securefed.measure.stopwatch import timed
from securefed.measure.workload import Scenario, Work
from securefed.protocols.recipe import LinearRecipe
from securefed.protocols.sides import LinearSide
from securefed.protocols.transfer import TransferSide

__all__ = ["CkksCosts", "Costs", "ModelCosts", "PaillierCosts", "PlainCosts", "calibrate", "hash_rate"]

FIXED = FixedPoint(1.0, 32)
SHARED = 64
"""Encryptions below this number are not spread over workers (securefed.crypto.paillier.secret)."""


@runtime_checkable
class Costs(Protocol):
    """Seconds for a piece of work of one scheme, and for what comes before the first round."""

    setup: float

    def seconds(self, work: Work) -> float: ...


def hash_rate() -> float:
    """Seconds a byte for what both ends of a line do to each message besides: checksums, digests, copies."""
    blob = bytes(1 << 20)
    return 3.0 * timed(lambda: hashlib.sha256(blob).digest()) / len(blob)


class PlainCosts:
    """Nothing is encrypted, and nothing takes time worth a forecast."""

    setup = 0.0

    def seconds(self, work: Work) -> float:
        return 0.0


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

    def seconds(self, work: Work) -> float:
        if work.operation == "encrypt":
            pieces = self.workers if work.count >= SHARED else 1
            return self._spread(self.encrypt * work.count, pieces)
        if work.operation in ("draw", "encrypt-others"):
            return self._spread(self.draw * work.count, min(work.count, 4 * self.workers))
        if work.operation == "open":
            return self._spread(self.open * work.count, min(work.count, 4 * self.workers))
        if work.operation == "load":
            return self.load * work.count
        if work.operation == "add":
            return self.multiplication * work.count
        if work.operation == "pack":
            # Packed results: as many groups as ciphertexts come out, about one for each slot's share.
            groups = max(1, work.count * max(1, work.bits) // (8 * self._bytes // 2))
            return self._spread(self.squaring * work.bits * work.count, groups)
        if work.operation == "products":
            return self._products(work)
        return 0.0

    def _products(self, work: Work) -> float:
        columns, outputs, rows = work.shape
        slices = min(outputs, ceil(self.workers / columns))
        size = ceil(outputs / slices)
        pieces = columns * ceil(outputs / size)
        terms = ceil(work.count / pieces) if work.count else size * rows
        each = choose_plan((size, rows), terms, work.bits, self._bytes).cost * self.multiplication
        if self.workers == 1:
            return each * pieces
        return each * ceil(pieces / self.workers) / self.efficiency

    def hidden(self, operation: Operation) -> float:
        """Operations on hidden arrays, in terms of the others."""
        count, (rows, columns) = operation.ciphertexts, operation.shape
        if operation.name == "key":
            return self.setup
        if operation.name == "multiply" and operation.matrix is not None:
            integers = np.abs(operation.matrix.integers())
            bits = max(1, int(integers.max(initial=0)).bit_length())
            terms = columns * int(np.count_nonzero(integers))
            return self.seconds(Work("products", terms, (columns, rows, operation.inner), bits))
        if operation.name == "pack":
            return self.seconds(Work("pack", rows * columns, bits=operation.width))
        same = HIDDEN_AS.get(operation.name)
        return 0.0 if same is None else self.seconds(Work(same, count))


HIDDEN_AS = {
    "zeros": "encrypt-others",
    "load array": "load",
    "load sum": "load",
    "array plus": "add",
    "add": "add",
    "sum plus": "add",
    "rerandomise": "draw",
    "read": "open",
    "open": "open",
    "conceal": "encrypt",
}
"""Operations on hidden arrays under Paillier, and what they cost as much as."""


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
        self.setup = timed(lambda: load_public_key(blob), 2)
        self._known: dict[tuple[str, tuple[int, ...]], float] = {}

    def seconds(self, work: Work) -> float:
        if work.operation in ("products", "pack", "open", "unmask"):
            return self._of("chain", work.operation, work.shape)
        if work.operation in ("encrypt", "encrypt-others", "load"):
            return self._of("array", work.operation, work.shape)
        if work.operation == "add" and work.shape:
            terms = work.count / int(np.prod(work.shape))
            return terms * self._of("array", "add", work.shape)
        return 0.0

    def _of(self, kind: str, operation: str, shape: tuple[int, ...]) -> float:
        place = (operation, shape)
        if place not in self._known:
            (self._chain if kind == "chain" else self._array)(shape)
        return self._known[place]

    def _chain(self, shape: tuple[int, ...]) -> None:
        """Products, masking, opening and unmasking of one gradient."""
        columns, _, rows = shape
        held = (rows, columns) if columns > 1 else (rows,)
        public = self._holder.public
        encrypted = public.load(self._holder.encrypt(np.zeros(held), FIXED).to_bytes())
        multipliers = np.random.default_rng(0).normal(size=shape)
        marks = dict.fromkeys(("products", "pack", "open", "unmask"), float("inf"))
        for _ in range(2):
            times = [thread_time()]
            sums = encrypted.contract(multipliers)
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
            self._known[name, shape] = taken

    def _array(self, shape: tuple[int, ...]) -> None:
        zeros, public = np.zeros(shape), self._holder.public
        encrypted = self._holder.encrypt(zeros, FIXED)
        blob = encrypted.to_bytes()
        measured: dict[str, Callable[[], object]] = {
            "encrypt": lambda: self._holder.encrypt(zeros, FIXED).to_bytes(),
            "encrypt-others": lambda: public.encrypt(zeros, FIXED).to_bytes(),
            "load": lambda: public.load(blob),
            "add": lambda: (public.load(blob) + encrypted).to_bytes(),
        }
        for name, work in measured.items():
            self._known[name, shape] = timed(work, 2)


class ModelCosts:
    """A party's own model on random numbers of its size."""

    def __init__(self, scenario: Scenario) -> None:
        self._seconds = {name: self._measured(scenario, name) for name in scenario.columns}

    def seconds(self, party: str, work: Work) -> float:
        return self._seconds.get(party, {}).get(work.operation, 0.0)

    @staticmethod
    def _measured(scenario: Scenario, name: str) -> dict[str, float]:
        recipe, rows = scenario.recipe, scenario.batch
        features = np.random.default_rng(0).normal(size=(rows, scenario.columns[name]))
        labels = np.ones(rows) if name == scenario.agreement.label_party else None
        side: LinearSide | TransferSide
        if isinstance(recipe, LinearRecipe):
            model = recipe.model(name, features.shape[1], last=labels is not None, index=0)
            side = LinearSide(
                model,
                features,
                labels,
                recipe.loss_function,
                l2=scenario.agreement.l2,
                exact=recipe.exact,
                margin_bound=recipe.margin_bound,
            )
        else:
            layer = recipe.layer(features.shape[1], 0)
            everybody = np.arange(rows)
            side = recipe.side(layer, features, everybody, everybody >= 0, labels)
        shape = (scenario.size(name) // _columns(scenario), _columns(scenario))
        sums = np.zeros(shape if _columns(scenario) > 1 else shape[:1])
        return {
            "contribution": timed(side.contribution),
            "multipliers": timed(side.multipliers),
            "gradient": timed(lambda: side.gradient(sums, False)),
        }


def _columns(scenario: Scenario) -> int:
    recipe = scenario.recipe
    return 1 if isinstance(recipe, LinearRecipe) else recipe.width


def calibrate(kind: str, key_bits: int, mapper: Mapper | None = None) -> Costs | HiddenCosts:
    """The costs of a kind of keys (securefed.crypto.key_kind) on this machine; `mapper` is what the run will
    use.
    """
    known: dict[str, Callable[[], Costs | HiddenCosts]] = {
        "paillier": lambda: PaillierCosts(key_bits, mapper),
        "rlwe": lambda: RlweCosts(1 if mapper is None else mapper.workers),
        "ckks": CkksCosts,
        "plain": PlainCosts,
    }
    if kind not in known:
        raise SettingError(f"plan: nobody has measured what keys of kind {kind!r} cost")
    return known[kind]()
