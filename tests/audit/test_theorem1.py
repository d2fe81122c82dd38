"""Theorem 1 on recorded plain runs: other data, the same messages. And where that ends."""

from __future__ import annotations

import numpy as np
import pytest

from research.attacks.linear import features_from_span
from research.attacks.theorem1 import alternative, householder, turning
from research.attacks.views import plain_values
from securefed.errors import DataError
from securefed.protocols.schedules import Algorithm, FedBCD, FedSGD
from securefed.protocols.steps import SGD, Adam, Optimiser
from tests.protocols.federation import KEYS, Recorder, blobs, linear, split

ROWS, ROUNDS = 20, 6


def messages(
    blocks: list[np.ndarray],
    labels: np.ndarray,
    starts: list[np.ndarray],
    algorithm: Algorithm,
    optimiser: Optimiser | None = None,
    exchange: str = "star",
) -> list[np.ndarray]:
    """Every number that crosses a link in a plain run with the exact loss: the paper's own setting."""
    made = linear(
        blocks,
        labels,
        KEYS,
        algorithm=algorithm,
        rounds=ROUNDS,
        batch=12,
        l2=0.01,
        exact=True,
        exchange=exchange,
        optimiser=optimiser,
    )
    for name, start in zip(made.agreement.names, starts, strict=True):
        made.sides[name].parameters = start
    recorder = Recorder()
    made.run(tap=recorder)
    return [plain_values(m) for m in recorder.messages if m.kind in ("contribution", "residual")]


def largest_difference(first: list[np.ndarray], second: list[np.ndarray]) -> float:
    assert [m.shape for m in first] == [m.shape for m in second]
    return max(float(np.abs(a - b).max()) for a, b in zip(first, second, strict=True))


def case(
    columns: int, parties: int = 2, zero: bool = False
) -> tuple[list[np.ndarray], np.ndarray, list[np.ndarray]]:
    features, labels = blobs(ROWS, columns * parties)
    generator = np.random.default_rng(columns)
    starts = [np.zeros(columns) if zero else generator.normal(size=columns) for _ in range(parties)]
    return split(features, parties), labels, starts


@pytest.mark.parametrize("exchange", ["star", "pairwise"])
@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize(
    "algorithm",
    [FedSGD(), FedBCD(3), FedBCD(3, "sequential"), FedBCD(3, proximal=0.1)],
    ids=["FedSGD", "FedBCD-p", "FedBCD-s", "FedPBCD-p"],
)
@pytest.mark.parametrize("party", ["first", "label party"])
def test_other_data_give_the_same_messages(
    algorithm: Algorithm, parties: int, exchange: str, party: str
) -> None:
    blocks, labels, starts = case(4, parties)
    place = 0 if party == "first" else parties - 1
    other = alternative(blocks[place], starts[place], seed=3)
    changed = [other.features if k == place else block for k, block in enumerate(blocks)]
    before = messages(blocks, labels, starts, algorithm, exchange=exchange)
    after = messages(changed, labels, starts, algorithm, exchange=exchange)
    assert largest_difference(before, after) < 1e-12
    # They are other data: not close, not in another order, not with other signs.
    assert np.abs(other.features - blocks[place]).max() > 0.5
    assert np.abs(np.abs(other.features) - np.abs(blocks[place])).max() > 0.1
    assert other.others == "infinitely many"


def test_there_are_many_of_them() -> None:
    blocks, labels, starts = case(4)
    before = messages(blocks, labels, starts, FedBCD(3))
    found = [alternative(blocks[0], starts[0], seed).features for seed in range(5)]
    for features in found:
        assert largest_difference(before, messages([features, blocks[1]], labels, starts, FedBCD(3))) < 1e-12
    for i, one in enumerate(found):
        assert all(np.abs(one - other).max() > 0.1 for other in found[:i])


def test_data_that_are_no_such_alternative_give_other_messages() -> None:
    """The comparison can fail."""
    blocks, labels, starts = case(4)
    before = messages(blocks, labels, starts, FedBCD(3))
    turned = np.linalg.qr(np.random.default_rng(9).normal(size=(4, 4)))[0]  # does not keep the start
    assert (
        largest_difference(before, messages([blocks[0] @ turned, blocks[1]], labels, starts, FedBCD(3))) > 0.1
    )
    scaled = blocks[0] * 1.001
    assert largest_difference(before, messages([scaled, blocks[1]], labels, starts, FedBCD(3))) > 1e-4


# The edges: one column, two columns


def test_one_column_has_no_alternative() -> None:
    blocks, _, starts = case(1)
    with pytest.raises(DataError, match="one column"):
        alternative(blocks[0], starts[0])


def test_one_column_that_starts_at_zero_has_its_mirror_image() -> None:
    blocks, labels, starts = case(1, zero=True)
    other = alternative(blocks[0], starts[0])
    assert other.others == "one"
    assert np.array_equal(other.features, -blocks[0])
    before = messages(blocks, labels, starts, FedBCD(3))
    assert (
        largest_difference(before, messages([other.features, blocks[1]], labels, starts, FedBCD(3))) < 1e-12
    )


def test_two_columns_have_exactly_one_alternative() -> None:
    """V is 1 x 1, so it is -1: a reflection, whatever the seed. Not infinitely many."""
    blocks, labels, starts = case(2)
    found = [alternative(blocks[0], starts[0], seed) for seed in range(4)]
    assert {other.others for other in found} == {"one"}
    assert all(np.array_equal(found[0].turn, other.turn) for other in found)
    assert np.linalg.det(found[0].turn) == pytest.approx(-1.0)
    before = messages(blocks, labels, starts, FedBCD(3))
    after = messages([found[0].features, blocks[1]], labels, starts, FedBCD(3))
    assert largest_difference(before, after) < 1e-12
    # Every orthogonal 2 x 2 matrix that keeps the start is the identity or that reflection.
    for angle in np.linspace(0.1, 2 * np.pi - 0.1, 50):
        c, s = np.cos(angle), np.sin(angle)
        for turn in (np.array([[c, -s], [s, c]]), np.array([[c, s], [s, -c]])):
            if np.allclose(turn @ starts[0], starts[0], atol=1e-6):
                assert np.allclose(turn, found[0].turn, atol=1e-5)


def test_two_columns_that_start_at_zero_have_infinitely_many() -> None:
    """Linear models start at 0 here."""
    blocks, labels, starts = case(2, zero=True)
    before = messages(blocks, labels, starts, FedBCD(3))
    turns = []
    for seed in range(3):
        other = alternative(blocks[0], starts[0], seed)
        assert other.others == "infinitely many"
        turns.append(other.turn)
        after = messages([other.features, blocks[1]], labels, starts, FedBCD(3))
        assert largest_difference(before, after) < 1e-12
    assert np.abs(turns[0] - turns[1]).max() > 0.1


# The Lemma


@pytest.mark.parametrize("columns", [2, 3, 7, 40])
def test_the_lemma(columns: int) -> None:
    generator = np.random.default_rng(columns)
    for start in (
        generator.normal(size=columns),
        np.eye(columns)[0],
        -np.eye(columns)[0],
        np.eye(columns)[-1] * 1e-9,
    ):
        reflection = householder(start)
        assert np.allclose(reflection, reflection.T)
        assert np.allclose(reflection @ reflection, np.eye(columns))
        assert np.allclose(reflection[:, 0] * np.linalg.norm(start), start)
        turn, _ = turning(start, generator)
        assert np.allclose(turn @ turn.T, np.eye(columns))
        assert np.allclose(turn @ start, start)
        assert not np.allclose(turn, np.eye(columns))


# What it does not promise


def test_it_says_nothing_about_lengths_and_angles() -> None:
    """All alternatives have the same distances between people: twins and outliers stay what they are."""
    blocks, _, starts = case(4)
    other = alternative(blocks[0], starts[0]).features
    assert np.allclose(other @ other.T, blocks[0] @ blocks[0].T)


def test_it_says_nothing_about_what_is_known_besides() -> None:
    """One-hot columns: hardly any alternative is one-hot, so whoever knows that has far fewer to choose
    from.
    """
    one_hot = np.eye(3)[np.random.default_rng(0).integers(0, 3, 30)]
    for seed in range(20):
        other = alternative(one_hot, np.array([0.3, -0.2, 0.5]), seed).features
        assert not np.isin(np.round(other, 6), (0.0, 1.0)).all()
    # And a few known people close it altogether.
    features, labels = blobs(ROWS, 8)
    blocks = split(features, 2)
    made = linear(blocks, labels, KEYS, algorithm=FedBCD(3), rounds=12, exact=True)
    recorder = Recorder()
    made.run(tap=recorder)
    sent = [plain_values(m)[:, 0] for m in recorder.messages if m.sender == "p0" and m.kind == "contribution"]
    order = made.agreement.batches.batch(0)
    known = np.arange(6)
    built = features_from_span(np.column_stack(sent), blocks[0][order][known], known, 4)
    assert np.abs(built - blocks[0][order]).max() < 1e-3


def test_it_needs_an_optimiser_that_turns_along() -> None:
    """Adam scales each column by itself: the construction does not carry over."""
    blocks, labels, starts = case(4)
    other = alternative(blocks[0], starts[0])
    for optimiser, same in ((SGD(), True), (Adam(), False)):
        before = messages(blocks, labels, starts, FedBCD(3), optimiser)
        after = messages([other.features, blocks[1]], labels, starts, FedBCD(3), optimiser)
        assert (largest_difference(before, after) < 1e-12) == same


def test_sizes_that_do_not_fit() -> None:
    with pytest.raises(DataError, match="3 columns and 2 parameters"):
        alternative(np.ones((4, 3)), np.ones(2))
