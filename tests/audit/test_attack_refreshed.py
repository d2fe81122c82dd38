"""A key-holder that hides other numbers than it read, to see a column above the mask of the next margin; and
a holder that uses the check against it to have something else opened.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np
import pytest

from securefed.audit import audit
from securefed.crypto.errors import OpeningRefused
from securefed.crypto.hidden import HiddenArray, PlainMatrix, Wide
from securefed.crypto.keyholder import KeyHolder
from securefed.crypto.rlwe import keys as rlwe_keys
from securefed.crypto.rlwe.packing import reversed_bits
from securefed.crypto.rlwe.ring import Ring, Words
from securefed.protocols import range_check, refresh
from securefed.protocols.blind_algebra import FEATURE_BITS
from securefed.protocols.range_check import Check, RangeCheckFailed, chosen, sums_for
from securefed.protocols.refresh import Refresher
from securefed.protocols.schedules import FedBCD
from tests.protocols.test_blind import blind, recipe

Patch = pytest.MonkeyPatch
SCHEMES = ["ckks", "paillier"]


EVERY = range_check.CHECK_EVERY


def data(parties: int = 2, rows: int = 12) -> tuple[list[np.ndarray], np.ndarray]:
    rng = np.random.default_rng(4)
    return [rng.normal(size=(rows, 3)) for _ in range(parties)], rng.choice([-1.0, 1.0], rows)


@pytest.fixture(autouse=True)
def _all_are_drawn(monkeypatch: Patch) -> None:
    """Every array is checked, with as many sums as where some are."""
    monkeypatch.setattr(range_check, "drawn", lambda check_every: True)


def run(scheme: str, check_every: int, parties: int = 2, rows: int = 12, order: str = "parallel") -> Any:
    blocks, labels = data(parties, rows)
    made = recipe(
        scheme=scheme, rounds=2, batch_size=None, check_every=check_every, algorithm=FedBCD(2, order)
    )
    return blind(made, blocks, labels)


def unscrupulous(patch: Patch) -> None:
    """A cheat does not refuse a check of its own work: it answers as well as it can."""
    patch.setattr(range_check.Answer, "_judge", lambda *_: None)


class Cheat:
    """Shifts one entry of all parameters that it refreshes, and keeps what it reads afterwards."""

    def __init__(self, patch: Patch, scheme: str) -> None:
        plan = run(scheme, 0).parties["p0"]._plan
        self.unit_bits = plan.margins.bits + plan.slack + 1
        """Of a feature of 1 in the margins to come: as much as a mask."""
        self.shift = 1 << (self.unit_bits - FEATURE_BITS + 2)  # b is 1/4
        self.seen: list[Wide] = []
        conceal = KeyHolder.conceal

        def shifting(holder: KeyHolder, integers: Wide, *rest: Any) -> HiddenArray:
            if integers.shape == (3, 1):  # parameters, not residuals
                integers = integers.copy()
                integers[1, 0] += self.shift
            return conceal(holder, integers, *rest)

        def keeping(refresher: Refresher, blob: bytes, shape: tuple[int, int], *rest: Any) -> Wide:
            raw = refresher.holder.read(refresher.public.load_block(blob, shape, *rest))
            if shape == (12, 1):
                self.seen.append(raw)
            return raw

        patch.setattr(KeyHolder, "conceal", shifting)
        patch.setattr(Refresher, "read", keeping)
        unscrupulous(patch)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_without_a_check_a_column_shows_above_the_mask(scheme: str, monkeypatch: Patch) -> None:
    cheat = Cheat(monkeypatch, scheme)
    blocks, _ = data()
    run(scheme, 0)
    unit = 2.0**cheat.unit_bits
    read = [np.array([float(v) / unit for v in seen.ravel()]) for seen in cheat.seen[2:4]]
    for column in (blocks[0][:, 1], blocks[1][:, 1]):
        assert max(float(np.corrcoef(found, column)[0, 1]) for found in read) > 0.85


@pytest.mark.parametrize(("scheme", "parties"), [("ckks", 3), ("paillier", 2)])
def test_a_check_stops_the_run_and_names_its_maker(scheme: str, parties: int, monkeypatch: Patch) -> None:
    Cheat(monkeypatch, scheme)
    with pytest.raises(RangeCheckFailed, match="hid other values than it was sent"):
        run(scheme, EVERY, parties)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_shifted_residuals_are_found_too(scheme: str, monkeypatch: Patch) -> None:
    conceal = KeyHolder.conceal

    def shifting(holder: KeyHolder, integers: Wide, *rest: Any) -> HiddenArray:
        if integers.shape == (12, 1):
            integers = integers.copy()
            integers[:] += 1 << 104  # spread over all
        return conceal(holder, integers, *rest)

    monkeypatch.setattr(KeyHolder, "conceal", shifting)
    unscrupulous(monkeypatch)
    with pytest.raises(RangeCheckFailed):
        run(scheme, EVERY)


class OutsideEntries:
    """Puts its shift where no entry stands: a product of 128 rows finds it there, one place further down."""

    ROWS = 128

    def __init__(self, patch: Patch) -> None:
        plan = run("ckks", 0, rows=self.ROWS).parties["p0"]._plan
        self.unit_bits = plan.margins.bits + plan.slack + 1
        self.seen: list[Wide] = []
        place, shift = 1 + 8192 // self.ROWS, 1 << (self.unit_bits - FEATURE_BITS + 2)
        encode = rlwe_keys.coefficients

        def shifting(ring: Ring, integers: Wide, *rest: Any) -> Words:
            words = encode(ring, integers, *rest)
            if integers.shape == (3, 1):
                extra = np.zeros((1, ring.degree), dtype=object)
                extra[0, place] = shift
                words = ring.add(words, ring.from_wide(extra))
            return words

        def keeping(refresher: Refresher, blob: bytes, shape: tuple[int, int], *rest: Any) -> Wide:
            raw = refresher.holder.read(refresher.public.load_block(blob, shape, *rest))
            if shape == (self.ROWS, 1):
                self.seen.append(raw)
            return raw

        patch.setattr(rlwe_keys, "coefficients", shifting)
        patch.setattr(Refresher, "read", keeping)
        unscrupulous(patch)


def test_numbers_where_no_entry_stands_are_looked_at(monkeypatch: Patch) -> None:
    """Sums of the entries alone, the naive check, do not see them, and a column shows."""
    cheat = OutsideEntries(monkeypatch)
    with pytest.raises(RangeCheckFailed, match="round 0"):
        run("ckks", EVERY, rows=cheat.ROWS)
    assert len(cheat.seen) == 2  # before it: nothing of the cheat was read
    monkeypatch.setattr(range_check, "chosen", _entries_alone(range_check.chosen))
    cheat.seen.clear()
    with pytest.raises(RangeCheckFailed, match="round 1"):  # too late
        run("ckks", EVERY, rows=cheat.ROWS)
    blocks, _ = data(2, cheat.ROWS)
    unit = 2.0**cheat.unit_bits
    read = [np.array([float(v) / unit for v in seen.ravel()]) for seen in cheat.seen[2:4]]
    order = reversed_bits(cheat.ROWS)  # rows as they stand among the coefficients
    for column in (blocks[0][order, 1], blocks[1][order, 1]):
        assert max(float(np.corrcoef(found[order][1:], column[:-1])[0, 1]) for found in read) > 0.85


def _entries_alone(chosen_: Callable[..., Wide]) -> Callable[..., Wide]:
    def naive(seed: bytes, sums: int, numbers: int) -> Wide:
        weights = chosen_(seed, sums, numbers)
        weights[:, 4:] = 0  # of three parameters; of residuals, those of the first rows
        return weights

    return naive


@pytest.mark.parametrize("check_every", [1, 2, 32])
def test_how_many_sums_a_check_takes(check_every: int) -> None:
    assert sums_for(check_every) == (40 if check_every == 1 else 4)


@pytest.mark.parametrize(
    ("scheme", "parties", "order", "pattern"),
    [
        ("ckks", 2, "parallel", (True, False, False)),
        ("paillier", 2, "parallel", (True, False)),
        pytest.param("ckks", 2, "parallel", (True,), marks=pytest.mark.slow),
        pytest.param("ckks", 2, "sequential", (False, True), marks=pytest.mark.slow),
        pytest.param("ckks", 3, "parallel", (True, False, False), marks=pytest.mark.slow),
        pytest.param("ckks", 3, "sequential", (False, True), marks=pytest.mark.slow),
    ],
)
def test_honest_runs_pass_and_are_what_they_were(
    scheme: str, parties: int, order: str, pattern: tuple[bool, ...], monkeypatch: Patch
) -> None:
    """Whichever arrays are drawn at which party."""
    choices = cycle(pattern)
    monkeypatch.setattr(range_check, "drawn", lambda check_every: next(choices))
    checked, plain = (run(scheme, every, parties, order=order) for every in (EVERY, 0))
    for name in checked.parties:
        np.testing.assert_allclose(checked.opened(name), plain.opened(name), atol=1e-6)


@pytest.mark.slow
def test_the_audit_takes_a_checked_run() -> None:
    made = run("ckks", EVERY, 3)
    found = audit({name: link.transcript for name, link in made.run.links.items()})
    assert found.failed == []
    assert any(row.kind == "range-opening" for row in found.seen["p0"])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_holder_that_asks_for_something_else_gets_nothing(scheme: str, monkeypatch: Patch) -> None:
    """It multiplies what came back, so that the flood does not cover it; and the same for a wrong reveal."""
    begin = Check.begin

    def greedy(check: Check) -> bool:
        monkeypatch.setattr(range_check, "PlainMatrix", _scaled)
        return begin(check)

    def _scaled(values: np.ndarray, *rest: Any) -> PlainMatrix:
        return PlainMatrix(values * 2.0**10, 0, 12)

    monkeypatch.setattr(Check, "begin", greedy)
    answered: list[bytes] = []
    monkeypatch.setattr(range_check.Answer, "_send", _recording(range_check.Answer._send, answered))
    with pytest.raises(OpeningRefused, match="asks in a range check for other sums"):
        run(scheme, EVERY)
    assert "range-opening" not in answered


def _recording(send: Callable[..., None], kinds: list[Any]) -> Callable[..., None]:
    def recording(answer: Any, kind: str, payload: bytes) -> None:
        kinds.append(kind)
        send(answer, kind, payload)

    return recording


def test_an_answer_that_was_not_committed_to(monkeypatch: Patch) -> None:
    send = range_check.Answer._send

    def other(answer: Any, kind: str, payload: bytes) -> None:
        send(answer, kind, bytes(32) if kind == "range-commitment" else payload)

    monkeypatch.setattr(range_check.Answer, "_send", other)
    with pytest.raises(RangeCheckFailed, match="something else than it committed to"):
        run("ckks", EVERY)


@pytest.mark.parametrize("places", [1, 2])
def test_shifts_by_whole_slots_are_found(places: int, monkeypatch: Patch) -> None:
    """Packed into slots of about 110 bits they would show as a small number in another slot."""
    conceal = KeyHolder.conceal

    def shifting(holder: KeyHolder, integers: Wide, *rest: Any) -> HiddenArray:
        if integers.shape == (3, 1):
            integers = integers.copy()
            integers[1, 0] += 1 << (110 * places + 5)
        return conceal(holder, integers, *rest)

    monkeypatch.setattr(KeyHolder, "conceal", shifting)
    unscrupulous(monkeypatch)
    with pytest.raises(RangeCheckFailed):
        run("paillier", EVERY)


def test_signs_would_not_do_modulo_n() -> None:
    """Two entries near n / 2: sums with signs are small whatever the signs, sums of some of them are not."""
    n = (1 << 61) - 1
    entries = np.array([(n + 1) // 2, (n - 1) // 2], dtype=object)

    def size(value: int) -> int:
        return min(value % n, -value % n)

    assert all(size(a * entries[0] + b * entries[1]) <= 1 for a in (1, -1) for b in (1, -1))
    assert max(size(a * entries[0] + b * entries[1]) for a in (0, 1) for b in (0, 1)) > n // 4


def test_the_choice_is_half_of_all_entries() -> None:
    weights = chosen(b"s" * 32, 40, 1000)
    assert weights.shape == (40, 1000) and set(np.unique(weights)) == {0, 1}
    assert abs(weights.mean() - 0.5) < 5 * 0.5 / 200
    assert refresh.Answer is range_check.Answer
