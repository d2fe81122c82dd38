"""The contract of hidden arrays: one suite, every kind of keys that hides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from securefed.crypto import KeyHolder, generate, load_public_key
from securefed.crypto.errors import (
    CapacityError,
    CryptoError,
    OpeningRefused,
    RangeError,
    ShapeError,
    WrongKey,
)
from securefed.crypto.hidden import PlainMatrix, Range, draw_masks, slack_for, to_integers
from securefed.crypto.rlwe.packing import operand_length, strides_of
from securefed.crypto.rlwe.ring import HIDDEN

KINDS = ("paillier", "rlwe")
SLACK = 52
PARAMETERS = Range(40, 54)
MARGINS = Range(66, 84)


class Setting:
    """A key-holder, and somebody who works on arrays under its key."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.holder = generate(kind, key_bits=1024, allow_small=True)
        self.public: Any = load_public_key(self.holder.public.to_bytes(), allow_small=True)

    def allow(self, *results: tuple[int, int, int]) -> None:
        """Switching keys for results (rows, columns, rows of the operand)."""
        if self.kind == "rlwe":
            lengths = {(r, c, operand_length(inner, 1, HIDDEN.degree)) for r, c, inner in results}
            strides = strides_of(lengths, HIDDEN.degree)
            self.public.load_switching(self.holder.switching(strides), strides)

    def hidden(self, values: Any, range_: Range = PARAMETERS, blocks: int = 1) -> Any:
        """An array on its way from the key-holder to its holder."""
        concealed = self.holder.conceal(to_integers(values, range_.fraction_bits), range_, blocks)
        return self.public.load_array(concealed.to_bytes(), values.shape, range_, blocks)

    def read(self, sums: Any) -> Any:
        """What is in sums, by way of the key-holder, without the masks."""
        block, masks = sums.hide()
        arrived = self.public.load_block(block.to_bytes(), sums.shape, sums.range, sums.slack)
        arrived.public = self.holder.public
        return (self.holder.read(arrived) - masks).astype(float) / 2.0**sums.range.fraction_bits


@pytest.fixture(scope="module", params=KINDS)
def setting(request: pytest.FixtureRequest) -> Setting:
    return Setting(request.param)


def table(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 3, 1), (20, 5, 3), (5, 33, 2)])
def test_a_matrix_times_an_array(setting: Setting, shape: tuple[int, int, int]) -> None:
    rows, inner, columns = shape
    setting.allow((rows, columns, inner))
    x, theta = table(rows, inner), table(inner, columns, seed=1)
    sums = (PlainMatrix(x, 26, 32) @ setting.hidden(theta)).within(MARGINS, SLACK)
    # Rounding of both factors, and noise below 2^40 at 66 fraction bits.
    bound = inner * (2.0**-27 * 6 + 2.0**-41 * 6) + 2.0**-26
    assert np.abs(setting.read(sums) - x @ theta).max() < bound


def test_rows_of_zeros(setting: Setting) -> None:
    setting.allow((40, 1, 3))
    x, theta = table(40, 3), table(3, 1, seed=1)
    for zeros in (slice(0, 30), slice(0, 40)):
        x[zeros] = 0.0
        sums = (PlainMatrix(x, 26, 32) @ setting.hidden(theta)).within(MARGINS, SLACK)
        assert np.abs(setting.read(sums) - x @ theta).max() < 1e-5


def test_parts_of_parties_with_other_columns_add_up(setting: Setting) -> None:
    setting.allow((40, 2, 3), (40, 2, 70))
    x, z, theta, psi = table(40, 3), table(40, 70, seed=2), table(3, 2, seed=3), table(70, 2, seed=4)
    one = (PlainMatrix(x, 26, 32) @ setting.hidden(theta)).within(MARGINS, SLACK)
    other = (PlainMatrix(z, 26, 32) @ setting.hidden(psi)).within(MARGINS, SLACK).rerandomise()
    arrived = setting.public.load_sum(other.to_bytes(), (40, 2), MARGINS, SLACK)
    labels = table(40, 2, seed=5)
    total = (one + arrived).add_plain(to_integers(labels, 66))
    assert np.abs(setting.read(total) - (x @ theta + z @ psi + labels)).max() < 1e-5


def test_a_refresh_cuts_the_scale_and_nobody_sees_a_value(setting: Setting) -> None:
    values = table(12, 2)
    setting.allow((12, 2, 12))
    sums = setting.hidden(values, Range(60, 70)).packed().within(Range(60, 70), SLACK)
    block, masks = sums.hide()
    arrived = setting.public.load_block(block.to_bytes(), (12, 2), Range(60, 70), SLACK)
    arrived.public = setting.holder.public
    seen = setting.holder.read(arrived)
    assert all(abs(int(v)).bit_length() > 70 + SLACK - 20 for v in seen.ravel())
    wide = Range(60, 70).masked(SLACK).cut(20)
    fresh = setting.holder.conceal(seen >> 20, wide)
    back = setting.public.load_array(fresh.to_bytes(), (12, 2), wide).add_plain(-(masks >> 20), Range(40, 51))
    result = setting.read(back.packed().within(Range(40, 51), SLACK))
    assert np.abs(result - values).max() < 2.0**-28  # noise of merges below 2^12


def test_an_array_in_blocks(setting: Setting) -> None:
    setting.allow((9, 1, 100), (9, 1, 25))
    x, theta = table(9, 100), table(100, 1, seed=1)
    sums = (PlainMatrix(x, 26, 32) @ setting.hidden(theta, blocks=4)).within(MARGINS, SLACK)
    assert np.abs(setting.read(sums) - x @ theta).max() < 1e-5


def test_zeros_are_zeros(setting: Setting) -> None:
    setting.allow((3, 2, 3))
    zeros = setting.public.hidden_zeros((3, 2), PARAMETERS)
    assert np.abs(setting.read(zeros.packed().within(PARAMETERS, SLACK))).max() < 2.0**-20


def test_an_opening_goes_to_the_one_with_the_mask(setting: Setting) -> None:
    """Scores: lifted parameters, so that the key-holder's flooding stays below what is shown."""
    lift = setting.public.scoring_lift
    lifted = Range(40 + lift, 54 + lift)
    setting.allow((6, 1, 4))
    x, theta = table(6, 4), table(4, 1, seed=1)
    array = setting.hidden(theta, lifted)
    sums = (PlainMatrix(x, 26, 32) @ array).within(Range(66 + lift, 84 + lift), 0)
    masked, mask = sums.mask()
    opened = setting.holder.open(setting.holder.public.load_masked(masked.to_bytes()))
    values = mask.remove(setting.public.load_opened(opened.to_bytes()))
    # The flooding: three halves of 2^96 at 110 fraction bits.
    assert np.abs(values - x @ theta).max() < 2.0**-13


def test_the_same_block_is_read_once(setting: Setting) -> None:
    setting.allow((2, 1, 2))
    block, _ = setting.hidden(table(2, 1)).packed().within(PARAMETERS, SLACK).hide()
    arrived = setting.public.load_block(block.to_bytes(), (2, 1), PARAMETERS, SLACK)
    arrived.public = setting.holder.public
    setting.holder.read(arrived)
    with pytest.raises(OpeningRefused, match="opened before"):
        setting.holder.read(arrived)


def test_a_layout_that_was_not_agreed_is_refused(setting: Setting) -> None:
    setting.allow((4, 1, 4))
    sums = setting.hidden(table(4, 1)).packed().within(PARAMETERS, SLACK)
    blob = sums.hide()[0].to_bytes()
    for shape, range_, slack in (
        ((2, 2), PARAMETERS, SLACK),
        ((4, 1), Range(40, 55), SLACK),
        ((4, 1), Range(41, 54), SLACK),
        ((4, 1), PARAMETERS, SLACK - 1),
    ):
        with pytest.raises(CryptoError):
            setting.public.load_block(blob, shape, range_, slack)
    with pytest.raises(CryptoError):
        setting.public.load_array(setting.hidden(table(4, 1)).to_bytes(), (4, 1), Range(39, 54))
    for cut in (0, 50, len(blob) // 2, len(blob) - 1):
        with pytest.raises(CryptoError):
            setting.public.load_block(blob[:cut], (4, 1), PARAMETERS, SLACK)


def test_arrays_under_two_keys_do_not_mix(setting: Setting) -> None:
    other = Setting(setting.kind)
    for one in (setting, other):
        one.allow((2, 1, 2))
    mine = setting.hidden(table(2, 1)).packed().within(PARAMETERS, SLACK)
    theirs = other.hidden(table(2, 1)).packed().within(PARAMETERS, SLACK)
    with pytest.raises(WrongKey):
        mine + theirs
    with pytest.raises(WrongKey):
        setting.public.load_sum(theirs.to_bytes(), (2, 1), PARAMETERS, SLACK)


def test_what_does_not_fit_is_refused(setting: Setting) -> None:
    setting.allow((2, 1, 2))
    assert setting.public.room(PARAMETERS, SLACK) > 0
    huge = Range(40, 2000)
    assert setting.public.room(huge, SLACK) < 0
    with pytest.raises(CapacityError):
        setting.hidden(table(2, 1)).packed().within(huge, SLACK)
    with pytest.raises(RangeError, match="below 64 is allowed"):
        PlainMatrix(np.full((1, 1), 64.0), 26, 32)
    with pytest.raises(ShapeError, match=r"\(any, 2\) expected"):
        PlainMatrix(np.ones((1, 3)), 26, 32) @ setting.hidden(table(2, 1))


def test_fresh_randomness_for_everything_that_leaves(setting: Setting) -> None:
    setting.allow((3, 1, 3))
    array = setting.hidden(table(3, 1))
    sums = array.packed().within(PARAMETERS, SLACK)
    assert sums.origin == "computed"
    assert sums.rerandomise().origin == "re-randomised"
    assert sums.rerandomise().to_bytes() != sums.rerandomise().to_bytes()
    block, masks = sums.hide()
    assert block.origin == "re-randomised"
    assert block.narrow(masks) == 0 and block.narrow(masks * 0) == 3
    assert array.origin == "arrived"


def test_masks_are_as_wide_as_the_run_is_long() -> None:
    assert slack_for(1) == 46
    assert slack_for(1 << 24) == 58
    masks = draw_masks((400, 5), 80)
    values = masks.astype(float) / 2.0**80
    # The sum of three uniforms: mean 3/2, variance 1/4; five standard errors.
    assert abs(values.mean() - 1.5) < 5 * 0.5 / np.sqrt(2000)
    assert abs(values.std() - 0.5) < 5 * 0.5 / np.sqrt(2000)
    assert min(masks.ravel()) >= 0 and max(masks.ravel()) < 3 << 80


def test_three_uniforms_hide_as_well_as_the_docstring_says() -> None:
    """The exact Hellinger distance of a shift by v, against v^2 I / 8 with I = 4.57 (naive: one uniform)."""
    width, shift = 4096, 16
    one = np.ones(width) / width
    three = np.convolve(np.convolve(one, one), one)

    def hellinger(density: Any) -> float:
        left = np.concatenate([density, np.zeros(shift)])
        right = np.concatenate([np.zeros(shift), density])
        return float(1.0 - np.sqrt(left * right).sum())

    bound = (shift / width) ** 2 * 4.57 / 8
    assert hellinger(three) < bound * 1.01
    assert hellinger(one) > 100 * bound


def test_a_key_without_the_secret_half_reads_nothing(setting: Setting) -> None:
    for thing in (setting.public, setting.hidden(table(2, 1))):
        assert not any("decrypt" in name or name in ("read", "open") for name in dir(thing))
    assert isinstance(setting.holder, KeyHolder) and setting.holder.hides
    assert not generate("plain").hides
