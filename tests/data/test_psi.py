"""Private set intersection against the naive one, for two, three and four parties over the in-process
transport.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securefed.crypto.scheme import Mapper
from securefed.data import psi, psi_local
from securefed.data.ids import normalise_ids
from securefed.data.psi import PSI_KINDS, BadAlignment, intersect
from securefed.engine import Processes
from securefed.errors import DataError, SettingError
from securefed.transport.link import Link, LocalRun, run_local
from securefed.transport.message import Message, get_network


def align(
    sets: Mapping[str, Sequence[object]],
    tap: Callable[[Message], Message] | None = None,
    mapper: Mapper | None = None,
    **options: Any,
) -> LocalRun:
    names = list(sets)

    def program(name: str) -> Callable[[Link], Any]:
        more = {} if mapper is None else {"mapper": mapper}
        return lambda link: intersect(link, names, sets[name], **more, **options)

    programs = {name: program(name) for name in names}
    return run_local(programs, run="r", kinds=PSI_KINDS, network=get_network("lan"), tap=tap)


def found(run: LocalRun, sets: Mapping[str, Sequence[object]]) -> dict[str, list[object]]:
    return {name: [ids[row] for row in run.outcomes[name]] for name, ids in sets.items()}


@pytest.mark.parametrize("parties", [2, 3, 4])
@settings(max_examples=12)
@given(data=st.data())
def test_it_is_the_intersection_in_one_order(parties: int, data: st.DataObject) -> None:
    ids = st.lists(st.integers(0, 12), unique=True, min_size=1)
    sets = {f"party{i}": data.draw(ids) for i in range(parties)}
    lists = found(align(sets), sets)
    common = set.intersection(*map(set, sets.values()))
    assert all(set(each) == common and len(each) == len(common) for each in lists.values())
    assert len({tuple(each) for each in lists.values()}) == 1


@settings(max_examples=15)
@given(
    st.sets(st.text(max_size=6).map(str.strip).filter(str.isprintable).filter(bool), min_size=1, max_size=8)
)
def test_text_ids_meet_in_their_agreed_form(texts: set[str]) -> None:
    try:
        bank = normalise_ids(sorted(texts), "bank")
    except DataError:
        return  # two spellings of one id in the drawn set
    shop = [f"  {text}\t" for text in reversed(bank)]
    run = align({"bank": bank, "shop": shop})
    assert [bank[i] for i in run.outcomes["bank"]] == [shop[i].strip() for i in run.outcomes["shop"]]
    assert len(run.outcomes["bank"]) == len(bank)


def test_integers_and_text_are_the_same_people() -> None:
    sets = {"bank": np.array([17, 4, 23]), "shop": ["23", " 17", "x"], "hospital": [17.0, 23.0, 99.0]}
    run = align(sets)
    assert [sets["bank"][i] for i in run.outcomes["bank"]] == [
        int(sets["shop"][i]) for i in run.outcomes["shop"]
    ]
    assert sorted(sets["hospital"][run.outcomes["hospital"][i]] for i in range(2)) == [17.0, 23.0]


@pytest.mark.parametrize("sets", [{"a": [1, 2], "b": [3]}, {"a": [1], "b": [1, 2], "c": [2]}])
def test_nothing_in_common(sets: dict[str, list[int]]) -> None:
    run = align(sets)
    assert all(rows.shape == (0,) and rows.dtype == np.intp for rows in run.outcomes.values())


def test_the_order_depends_on_nobody() -> None:
    """Who is the hub, how rows lie and which run it is: the common ids come in the same order."""
    people = [f"p{i}" for i in range(40)]
    one = {"a": people[:30], "b": people[10:]}
    other = {"b": people[:9:-1], "a": people[29::-1]}
    assert found(align(one), one)["a"] == found(align(other), other)["b"]


def test_blocks_and_pieces_and_processes_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sets = {"a": list(range(0, 50)), "b": list(range(20, 90)), "c": list(range(10, 45))}
    expected = found(align(sets), sets)
    monkeypatch.setattr(psi, "BLOCK", 16)
    monkeypatch.setattr(psi, "_PIECE", 5)
    monkeypatch.setattr(psi, "_CHUNK", 96)
    monkeypatch.setattr(psi, "WINDOW", 2)
    monkeypatch.setattr(psi_local, "BUCKET", 7)
    assert found(align(sets), sets) == expected
    with Processes(2) as mapper:
        assert found(align(sets, mapper=mapper), sets) == expected


def test_the_hub_alone_learns_sizes_and_each_kind_is_named() -> None:
    sets = {"hub": list(range(5)), "b": list(range(7)), "c": list(range(9))}
    run = align(sets)
    received = {name: run.links[name].transcript.count("received") for name in sets}
    assert set().union(*received.values()) == set(PSI_KINDS)
    # b and c tell each other nothing but a public key.
    talk = [e.kind for e in run.links["b"].transcript if e.event == "received" and e.peer == "c"]
    assert talk == ["psi-seed"]
    assert [e.bytes for e in run.links["b"].transcript if e.kind == "psi-seed"] == [32, 32]


def test_work_is_booked_as_alignment() -> None:
    run = align({"a": [1, 2, 3], "b": [2]})
    assert all(link.activities["alignment"] > 0 for link in run.links.values())


@pytest.mark.parametrize("names", [["a"], ["a", "a"], ["b", "c"]])
def test_the_parties_are_named_once_each_and_include_oneself(names: list[str]) -> None:
    async def program(link: Link) -> object:
        return await intersect(link, names, [1])

    with pytest.raises(SettingError, match="parties"):
        run_local({"a": program}, run="r", kinds=PSI_KINDS, network=get_network("lan"))


def test_more_ids_than_allowed() -> None:
    with pytest.raises(BadAlignment, match=r"a: 3 ids announced, 1 to 2 .* \(1\) may be guessing"):
        align({"a": [1, 2, 3], "b": [1]}, peer_ids=2)
    with pytest.raises(BadAlignment, match="b: 3 ids announced"):
        align({"a": [1], "b": [1, 2, 3]}, peer_ids=2)
    for wrong in (0, psi.MAX_IDS + 1, 2.5):
        with pytest.raises(SettingError, match="peer_ids"):
            align({"a": [1], "b": [1]}, peer_ids=wrong)


def test_the_limit_follows_the_own_size() -> None:
    assert [psi.default_peer_ids(own) for own in (1, 10_000, 20_000, 10_000_000)] == [
        100_000,
        100_000,
        200_000,
        psi.MAX_IDS,
    ]


def test_own_ids_have_a_limit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psi, "MAX_IDS", 2)
    with pytest.raises(SettingError, match="ids: 3 given, at most 2"):
        align({"a": [1, 2, 3], "b": [1]})


def test_duplicates_are_refused_before_anything_is_sent() -> None:
    with pytest.raises(DataError, match="a: 1 ids occur more than once"):
        align({"a": [1, "1"], "b": [1]})


def test_transfer_learning_keeps_its_other_rows() -> None:
    """Only row numbers come back: features of people that are not shared stay where they are."""
    bank = ["u1", "u2", "u3", "u4"]
    run = align({"bank": bank, "shop": ["u3", "u9"]})
    assert run.outcomes["bank"].tolist() == [2]
    assert run.outcomes["shop"].tolist() == [0]
