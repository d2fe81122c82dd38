"""Openings: what is returned, what is refused, what each side sees."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from securefed.crypto import FixedPoint
from securefed.crypto.ckks.arrays import CkksEncrypted, CkksMasked, CkksOpened
from securefed.crypto.ckks.form import flood_deviation
from securefed.crypto.ckks.keys import CkksSecretKey
from securefed.crypto.ckks.layout import SumLayout, sums
from securefed.crypto.lattice.ring import DEGREE, PRIMES, RING
from securefed.crypto.scheme import Encrypted
from securefed.crypto.wire import HEADER, Frame, Kind
from securefed.errors import CryptoError, FormatError, MaskError, OpeningRefused, ShapeError
from tests.crypto.ckks_cases import ONE, Desk, numbers, tolerance


@pytest.fixture(scope="module")
def desk() -> Desk:
    return Desk.fresh()


def masked_of(encrypted: Encrypted) -> CkksMasked:
    masked, _ = encrypted.mask()
    assert isinstance(masked, CkksMasked)
    return masked


def test_sums_come_back_and_nothing_finer(desk: Desk) -> None:
    """Two inputs of equal sums: what is returned differs by less than the flood, all the rest by much."""
    matrix = np.ones((1, 2048))
    values = numbers(2048)
    other = np.roll(values, 1)
    phases, whole = [], []
    for chosen in (values, other):
        result = matrix @ desk.holder.encrypt(chosen, ONE)
        assert isinstance(result, CkksEncrypted)
        phases.append(desk.phase(result))
        c0, c1 = np.moveaxis(result.residues, 1, 0)
        whole.append(RING.reduced(c0 + desk.secret._times(c1)))
    layout = result.form.layout
    flood = flood_deviation(result.form.noise, layout.coefficients, layout.units, layout.levels)
    assert phases[0].shape == (5, 2)
    assert np.abs(RING.centred(RING.reduced(phases[0] - phases[1]))).max() < flood
    elsewhere = np.abs(RING.centred(RING.reduced(whole[0] - whole[1])))
    assert np.median(elsewhere) > 2.0**10 * flood


@pytest.mark.parametrize(("rows", "outputs"), [(60, 33), (100, 5), (50, 17), (512, 6), (512, 7), (2048, 3)])
def test_places_without_an_output_show_no_further_sums(desk: Desk, rows: int, outputs: int) -> None:
    """Rounding makes multipliers there that the requester knows: uncounted equations of several bits each."""
    result = numbers(outputs, rows, seed=1) @ desk.holder.encrypt(numbers(rows), ONE)
    assert isinstance(result, CkksEncrypted)
    layout = result.form.layout
    assert isinstance(layout, SumLayout)
    flood = flood_deviation(result.form.noise, layout.coefficients, layout.units, layout.levels)
    found = sums(RING.centred(desk.phase(result)).reshape(layout.units, 2 * layout.groups), layout.stride)
    spare = np.stack([found.real, found.imag], axis=1).ravel()[outputs:]
    assert np.abs(spare).max(initial=0.0) < 2.0**-10 * flood * layout.stride * layout.groups**0.5


def test_sizes_of_the_messages(desk: Desk) -> None:
    exchange = desk.holder.encrypt(numbers(1032, 32), ONE)
    sent = exchange.to_bytes()
    assert exchange.ciphertexts == 17
    assert len(sent) < 0.89 * 2**20
    masked, _ = exchange.contract(numbers(32, 19, 1032)).mask()
    request = masked.to_bytes()
    reply = desk.holder.open(masked).to_bytes()
    assert masked.ciphertexts == 1
    assert len(request) + len(reply) < 0.14 * len(sent)
    # Of c0 only what will be returned is sent.
    assert isinstance(masked, CkksMasked)
    assert masked.c0.shape == (5, 640)
    assert masked.c1.shape == (5, 1, DEGREE)


def test_what_the_key_holder_sees_is_uniform(desk: Desk) -> None:
    """The same value many times: the opened residues fill every prime evenly, high bits and low bits."""
    encrypted = desk.holder.encrypt(np.full(2048, 0.75), ONE)
    sums = np.full((1024, 4), 0.5) @ desk.holder.encrypt(np.full(4, 0.75), ONE)
    for source in (encrypted, sums):
        seen = [desk.secret._phase(masked_of(source)) for _ in range(6)]
        residues = np.concatenate(seen, axis=1)
        count = residues.shape[1]
        for centred, prime in zip(residues.astype(np.int64), PRIMES, strict=True):
            row = centred % prime
            for cells in (row // (prime // 64 + 1), row & 63):
                histogram = np.bincount(cells.astype(np.intp), minlength=64)
                chi = float(((histogram - count / 64) ** 2).sum() / (count / 64))
                assert 63 - 60 < chi < 63 + 90


def test_masked_blocks_of_one_array_have_nothing_in_common(desk: Desk) -> None:
    result = numbers(3, 50) @ desk.holder.encrypt(numbers(50), ONE)
    first, second = masked_of(result), masked_of(result)
    assert np.count_nonzero(first.c0 == second.c0) <= 1
    assert np.count_nonzero(first.c1 == second.c1) <= 4


def test_a_masked_block_shows_nothing_of_the_multipliers(desk: Desk) -> None:
    encrypted = desk.holder.encrypt(numbers(50), ONE)
    headers = set()
    for factor in (1e-20, 0.3, 0.0, 1.0, 7e15):
        blob = masked_of((numbers(3, 50) * factor) @ encrypted).to_bytes()
        headers.add((len(blob), blob[: HEADER.size - 16]))  # the checksum is of the payload, too
    assert len(headers) == 1


def test_answers_belong_to_their_question(desk: Desk) -> None:
    encrypted = desk.holder.encrypt(numbers(5), ONE)
    first, mask = encrypted.mask()
    second, _ = encrypted.mask()
    with pytest.raises(MaskError, match="another question"):
        mask.remove(desk.holder.open(second))
    with pytest.raises(MaskError, match="used already"):
        mask.remove(desk.holder.open(first))


def test_an_answer_is_read_once_and_exactly(desk: Desk) -> None:
    masked, mask = desk.holder.encrypt(numbers(5), ONE).mask()
    opened = desk.holder.open(masked)
    assert isinstance(opened, CkksOpened)
    again = desk.public.load_opened(opened.to_bytes())
    assert isinstance(again, CkksOpened)
    assert (again.residues == opened.residues).all()
    assert again.digest == opened.digest
    assert np.abs(mask.remove(again) - numbers(5)).max() < 1e-6


def test_a_ciphertext_is_opened_once_whatever_stands_beside_it(desk: Desk) -> None:
    """The same c1 under another c0 would be the same noise under another flood."""
    first, mask = desk.public.encrypt(numbers(5), ONE).mask()
    second = masked_of(desk.public.encrypt(numbers(5), ONE))
    assert isinstance(first, CkksMasked)
    desk.holder.open(first)
    changed = CkksMasked(desk.public, first.layout, first.noise, second.c0, first.c1)
    with pytest.raises(OpeningRefused, match="opened before"):
        desk.holder.open(desk.public.load_masked(changed.to_bytes()))
    with pytest.raises(OpeningRefused, match="opened before"):
        desk.holder.receive(first, mask.disclose())
    twice = masked_of(desk.public.encrypt(numbers(5000), ONE))
    twice.c1[:, 1] = twice.c1[:, 0]
    with pytest.raises(OpeningRefused, match="opened before"):
        desk.holder.open(twice)


def test_replies_are_counted_and_capped(desk: Desk) -> None:
    secret = CkksSecretKey(desk.secret._seed)
    secret.most_replies = 2
    encrypted = desk.public.encrypt(numbers(3), ONE)
    for _ in range(2):
        secret.open(masked_of(encrypted))
    with pytest.raises(OpeningRefused, match="has answered 2 openings, at most 2 are safe: replace the key"):
        secret.open(masked_of(encrypted))
    assert secret.replies == 2


def test_the_cap_holds_over_a_key_file(desk: Desk) -> None:
    secret = CkksSecretKey(desk.secret._seed, replies=(1 << 20) - 1)
    secret.open(masked_of(desk.public.encrypt(numbers(3), ONE)))
    again = CkksSecretKey.from_frame(Frame.from_bytes(secret.to_bytes(), Kind.SECRET_KEY))
    assert again.replies == 1 << 20
    with pytest.raises(OpeningRefused, match="replace the key"):
        again.open(masked_of(desk.public.encrypt(numbers(3), ONE)))


@pytest.mark.parametrize("fixed", [None, FixedPoint(2.0, 20)])
def test_a_result_for_the_key_holder(desk: Desk, fixed: FixedPoint | None) -> None:
    values, multipliers = numbers(32), numbers(1, 40, 32, seed=1)
    result = desk.public.load(desk.holder.encrypt(values, ONE).to_bytes()).contract(multipliers, fixed)
    masked, mask = result.mask()
    scores = desk.holder.receive(desk.public.load_masked(masked.to_bytes()), mask.disclose())
    assert np.abs(scores - multipliers[0] @ values).max() <= tolerance(result)


def test_a_disclosure_is_flooded(desk: Desk) -> None:
    """The key-holder knows its own errors: without a flood it would see them times the multipliers."""
    result = numbers(1, 2048) @ desk.holder.encrypt(np.zeros(2048), ONE)
    assert isinstance(result, CkksEncrypted)
    layout = result.form.layout
    flood = flood_deviation(result.form.noise, layout.coefficients, layout.units, layout.levels)
    seen = []
    for _ in range(40):
        masked, mask = result.mask()
        blob = mask.disclose()
        disclosed = CkksOpened.from_frame(masked.public, Frame.from_bytes(blob, Kind.DISCLOSURE))
        seen.append(RING.centred(RING.reduced(desk.secret._phase(masked) - disclosed.residues)))
    spread = float(np.std(seen))
    assert 0.6 * flood < spread < 1.5 * flood


def test_disclosures_that_do_not_fit(desk: Desk) -> None:
    encrypted = desk.holder.encrypt(numbers(6), ONE)
    masked, _ = encrypted.mask()
    _, other = encrypted.mask()
    with pytest.raises(MaskError, match="another masked block"):
        desk.secret.receive(masked, other.disclose())
    _, longer = desk.holder.encrypt(numbers(7), ONE).mask()
    with pytest.raises(ShapeError, match=r"shape \(7,\) given, \(6,\) expected"):
        desk.secret.receive(masked, longer.disclose())
    with pytest.raises(CryptoError):
        desk.secret.receive(masked, b"")


def test_a_disclosed_scale_that_no_float_has_room_for(desk: Desk) -> None:
    masked, mask = (numbers(1, 6) @ desk.holder.encrypt(numbers(6), ONE)).mask()
    frame = Frame.from_bytes(mask.disclose(), Kind.DISCLOSURE)
    grown = replace(frame, numbers=(-1200, *frame.numbers[1:]))
    with pytest.raises(FormatError, match="too large for float64"):
        desk.secret.receive(masked, grown.to_bytes())


def test_seeded_ciphertexts_are_half_the_size_and_the_same_when_written_out(desk: Desk) -> None:
    encrypted = desk.holder.encrypt(numbers(300), ONE)
    blob = encrypted.to_bytes()
    assert len(blob) < 0.51 * len(desk.public.encrypt(numbers(300), ONE).to_bytes())
    loaded = desk.public.load(blob)
    assert isinstance(loaded, CkksEncrypted) and isinstance(encrypted, CkksEncrypted)
    assert (loaded.residues == encrypted.residues).all()
    assert loaded.to_bytes() == blob
    assert desk.holder.encrypt(numbers(300), ONE).to_bytes() != blob
