"""Layouts: both parties derive the same one, and it costs what it says."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from securefed.crypto.blind import layout as layouts
from securefed.crypto.blind.interface import Product
from securefed.crypto.blind.layout import layout
from securefed.crypto.blind.rlwe import RLWE
from securefed.crypto.lattice.ring import DEGREE

PRODUCTS = [
    Product(1, 1, 1),
    Product(512, 51, 50, 45, 26),
    Product(100_000, 51, 50, 45, 26),
    Product(5000, 301, 300, 45, 26),
    Product(101, 24, 101),
    Product(3, 5000, 2),
    Product(9, 4097, 1),
]


@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_every_entry_has_a_place_of_its_own(product: Product) -> None:
    plan = layout(product)
    assert [panel.first for panel in plan.panels] == [0, *(panel.last for panel in plan.panels[:-1])]
    assert plan.panels[-1].last == product.left
    for panel in plan.panels:
        places, groups = panel.places()
        assert places.max() < panel.span <= DEGREE
        assert groups.max() == panel.responses - 1
        taken = (groups * panel.span + places).reshape(-1)
        assert len(set(taken.tolist())) == panel.width * product.right
        assert panel.group * panel.width <= panel.span


@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_blocks_are_of_about_16_megabytes(product: Product) -> None:
    plan = layout(product)
    places = plan.blocks()
    assert places[0][0] == 0
    assert places[-1][1] == product.inner
    assert all(mine[1] == other[0] for mine, other in pairwise(places))
    assert all(plan.block_bytes(last - first) <= layouts.BLOCK_BYTES * 1.01 for first, last in places)
    for panel in plan.panels:
        assert all(first % panel.rows == 0 for first, _ in places)


@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_chunks_are_added_up_without_a_reduction(product: Product) -> None:
    plan = layout(product)
    chunks = plan.chunks(min(product.inner, plan.blocks()[0][1]))
    assert all(chunk.total * chunk.panel.rows <= 8192 for chunk in chunks)
    assert [chunk.number for chunk in chunks] == list(range(len(chunks)))


def test_301_columns_do_not_become_512_where_there_are_many_rows() -> None:
    plan = layout(Product(100_000, 301, 300, 45, 26))
    assert [panel.width for panel in plan.panels] == [256, 45]
    assert plan.panels[1].span < 256


def test_many_rows_are_packed_tightly() -> None:
    (panel,) = layout(Product(1_000_000, 51, 50, 45, 26)).panels
    assert (panel.span, panel.group) == (64, 1)


def test_padding_is_not_sent_where_a_response_has_one_column() -> None:
    """13 bytes a number of U, where the padding would take 16."""
    product = Product(64_000, 52, 50, 51, 42, digit_bits=43)
    plan = layout(product)
    (panel,) = plan.panels
    assert (panel.span, panel.group, panel.sent) == (64, 1, 52)
    sent = sum(plan.block_bytes(last - first) for first, last in plan.blocks())
    assert sent / (64_000 * 52) == pytest.approx(5 * 8 / 3, rel=0.001)
    shared = layouts.Panel(0, 52, 50, 128)
    assert (shared.group, shared.sent) == (2, 128)


def test_scores_get_a_shorter_c1() -> None:
    fine, coarse = layout(Product(50, 1, 128, 72, 60)), layout(Product(50, 1, 128, 72, 68, digit_bits=69))
    assert (fine.body_bits, coarse.body_bits) == (71, 42)
    assert coarse.response_bytes < 0.61 * fine.response_bytes


def test_few_rows_share_responses() -> None:
    (panel,) = layout(Product(512, 51, 50, 45, 26)).panels
    assert panel.group > 1


def test_sizes_are_those_of_the_messages() -> None:
    product = Product(70, 33, 7, 20, 20)
    key, nonce = RLWE.generate(), bytes(32)
    (message,) = key.encrypt(product, [0], lambda first, last: np.ones((last - first, 33)))
    evaluation = RLWE.load_public(key.public(nonce), nonce).evaluate(product)
    evaluation.add({0: message}, lambda first, last: np.ones((last - first, 7)))
    reply, _ = evaluation.finish()
    assert (len(message), len(reply)) == (layout(product).block_bytes(70), layout(product).reply_bytes())
