"""Paths and networks: every second is computation or communication."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefed.errors import SettingError
from securefed.transport.message import NETWORKS, Network, Path, get_network

SECONDS = st.floats(0.0, 1e6)


def test_work_and_travel_are_kept_apart() -> None:
    path = Path().work(2.0).travel(0.5).work(1.0).travel(0.25)
    assert path == Path(3.0, 0.75)
    assert path.total == 3.75
    assert path.since(Path(1.0, 0.5)) == Path(2.0, 0.25)


def test_the_later_path_wins_whole_and_a_tie_keeps_ones_own() -> None:
    own, other = Path(1.0, 3.0), Path(4.0, 0.5)
    assert own.later(other) is other
    assert other.later(own) is other
    assert own.later(Path(3.0, 1.0)) is own


@given(st.lists(st.tuples(st.booleans(), SECONDS), max_size=30))
def test_computation_and_communication_add_up_to_the_total(steps: list[tuple[bool, float]]) -> None:
    path = Path()
    for works, seconds in steps:
        path = path.work(seconds) if works else path.travel(seconds)
    assert path.computation + path.communication == path.total
    worked = sum(Fraction(seconds) for works, seconds in steps if works)
    # Each addition of positive floats is off by half a unit in the last place of the sum at most.
    assert abs(Fraction(path.computation) - worked) <= worked * len(steps) * Fraction(1, 2**53)


def test_transfer_is_bits_over_bandwidth() -> None:
    assert Network("x", 8e6, 0.1).transfer(500_000) == 0.5
    assert NETWORKS["lan"].transfer(125_000_000) == 1.0


def test_profiles_and_figures() -> None:
    assert get_network("wan") is NETWORKS["wan"]
    assert get_network(NETWORKS["lan"]) is NETWORKS["lan"]
    assert (get_network("2e6,0.25").bandwidth, get_network("2e6,0.25").latency) == (2e6, 0.25)


@pytest.mark.parametrize("value", ["fast", "1e6", "1e6,", "1,2,3", "a,b"])
def test_unknown_networks_are_refused_with_the_names_there_are(value: str) -> None:
    with pytest.raises(SettingError, match="loopback, lan, wan, paper"):
        get_network(value)


@pytest.mark.parametrize("value", ["0,1", "-1,0", "1e6,-1", "nan,0", "inf,0"])
def test_impossible_networks_are_refused(value: str) -> None:
    with pytest.raises(SettingError, match=r"bandwidth|latency"):
        get_network(value)
