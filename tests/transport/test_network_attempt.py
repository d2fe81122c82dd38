"""How parties agree that they are all in the same attempt, in every order of greetings and restarts.

No network: hellos are handed over by hand, so that Hypothesis can choose who hears what when, and who dies.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securefed.transport.message import (
    PeerLeft,
    PeerLost,
    PeerRefused,
    PeerRestarted,
    SettingsDiffer,
    TransportError,
    WrongKind,
    WrongRun,
)
from securefed.transport.network import codec
from securefed.transport.network.attempt import Attempt
from securefed.transport.network.codec import FINISHED, GREETING, LEFT, RUNNING, Hello
from securefed.transport.network.host import Host


def make(name: str, names: tuple[str, ...] = ("bank", "shop"), **given: Any) -> Attempt:
    options: dict[str, Any] = {
        "run": "r",
        "kinds": ("number",),
        "settings": {"local_steps": 5},
        "facts": {},
        "host": Host(given.pop("limits", None)),
    }
    return Attempt(name, [n for n in names if n != name], **(options | given))


def greet(caller: Attempt, called: Attempt) -> None:
    """One call and its answer."""
    caller.hear(called.answer(caller.hello(called.name)))


def agreed(*attempts: Attempt) -> None:
    for _ in range(3):
        for caller in attempts:
            for called in attempts:
                if called is not caller:
                    greet(caller, called)
        for attempt in attempts:
            attempt.begin_if_agreed()
    assert {a.state for a in attempts} == {RUNNING}
    assert len({a.attempt for a in attempts}) == 1


class Party:
    """A party as the layer above runs it: when an attempt fails it makes a new one."""

    def __init__(self, name: str, names: tuple[str, ...]) -> None:
        self.name, self._names = name, names
        self.attempt = make(name, names)
        self.attempts = 1

    def again(self) -> None:
        self.attempt = make(self.name, self._names)
        self.attempts += 1

    def step(self) -> None:
        if self.attempt.failure is not None:
            assert isinstance(self.attempt.failure, PeerRestarted | PeerLeft)
            self.again()
        else:
            self.attempt.begin_if_agreed()


@settings(max_examples=100)
@given(
    st.integers(2, 4),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(0, 3)), max_size=60),
)
def test_whatever_happens_all_end_up_in_one_attempt(count: int, events: list[tuple[int, int, int]]) -> None:
    names = ("bank", "shop", "mill", "farm")[:count]
    parties = [Party(name, names) for name in names]
    answers: list[tuple[Attempt, Hello, bytes]] = []
    calls: list[Hello] = []
    for event, first, second in events:
        caller, called = parties[first % count], parties[second % count]
        if event == 0:
            caller.again()  # killed and started again
        elif event == 1 and answers:
            attempt, hello, known = answers.pop(first % len(answers))  # one that took its time
            attempt.hear(hello, known)
        elif event == 2 and calls:
            hello = calls.pop(first % len(calls))  # the same, and its sender may be dead by now
            next(p for p in parties if p.name == hello.receiver).attempt.answer(hello)
        elif event == 3 and caller is not called:
            calls.append(caller.attempt.hello(called.name))
        elif caller is not called:
            known = caller.attempt.others[called.name].session
            hello = called.attempt.answer(caller.attempt.hello(called.name))
            if event < 6:
                answers.append((caller.attempt, hello, known))
            else:
                caller.attempt.hear(hello, known)
        for party in parties:
            party.step()
    restarts = sum(party.attempts for party in parties)
    # From here on nobody dies and everybody greets; it takes a few rounds and a few steps back at most.
    for _ in range(4 * count):
        for caller in parties:
            for called in parties:
                if called is not caller:
                    greet(caller.attempt, called.attempt)
                for party in parties:
                    party.step()
    assert {party.attempt.state for party in parties} == {RUNNING}
    assert len({party.attempt.attempt for party in parties}) == 1
    assert all(party.attempt.failure is None for party in parties)
    assert sum(party.attempts for party in parties) - restarts <= 2 * count


def test_an_answer_of_a_process_that_was_replaced_is_too_late() -> None:
    bank, first, second = make("bank"), make("shop"), make("shop")
    known = bank.others["shop"].session
    answer = first.answer(bank.hello("shop"))
    greet(second, bank)  # the first one was killed meanwhile
    bank.hear(answer, known)
    agreed(bank, second)


def test_a_peer_that_runs_with_us_under_another_session_is_not_overheard() -> None:
    """However it came to that, one of the two has to go back."""
    bank, shop = make("bank"), make("shop")
    agreed(bank, shop)
    other = make("shop")
    other.hear(make("bank").hello("shop"))
    stray = replace(other.hello("bank"), state=RUNNING, sessions=bank.sessions)
    bank.hear(stray)
    assert isinstance(bank.failure, PeerRestarted)


def test_nobody_begins_before_all_know_the_same() -> None:
    names = ("bank", "shop", "mill")
    bank, shop, mill = (make(name, names) for name in names)
    greet(bank, shop)
    greet(bank, mill)
    assert not bank.begin_if_agreed()  # shop and mill do not know each other yet
    greet(shop, mill)
    assert not shop.begin_if_agreed()
    agreed(bank, shop, mill)


def test_every_attempt_has_another_name() -> None:
    seen = set()
    for _ in range(3):
        bank, shop = make("bank"), make("shop")
        agreed(bank, shop)
        seen.add(bank.attempt)
    assert len(seen) == 3


def test_a_running_party_stops_for_one_that_came_back_and_does_not_let_it_begin() -> None:
    bank, shop = make("bank"), make("shop")
    agreed(bank, shop)
    again = make("shop")
    greet(again, bank)
    assert isinstance(bank.failure, PeerRestarted)
    assert str(bank.failure) == "shop has started again"
    for _ in range(3):
        greet(again, bank)
    assert not again.begin_if_agreed()
    fresh = make("bank")
    agreed(fresh, again)


@pytest.mark.parametrize("state", [RUNNING, FINISHED])
def test_a_peer_that_leaves_ends_the_attempt_with_its_reason(state: int) -> None:
    bank, shop = make("bank"), make("shop")
    agreed(bank, shop)
    if state == FINISHED:
        shop.finish()
        greet(shop, bank)
    shop.leave("ZeroDivisionError")
    greet(shop, bank)
    error = bank.failure
    assert isinstance(error, PeerLeft)
    assert (error.peer, error.reason) == ("shop", "ZeroDivisionError")
    assert str(error) == "shop left the run: an error ended it"


def test_late_words_of_an_attempt_that_is_over_change_nothing() -> None:
    bank, shop = make("bank"), make("shop")
    old = make("shop")
    old.leave("PeerLost")
    agreed(bank, shop)
    bank.hear(old.hello("bank"))
    assert bank.failure is None
    # A finished party may greet for the next run.
    shop.finish()
    greet(shop, bank)
    bank.finish()
    bank.hear(make("shop", run="next").hello("bank"))
    assert bank.failure is None
    # Back in this run it has to be joined again.
    bank.hear(make("shop").hello("bank"))
    assert isinstance(bank.failure, PeerRestarted)


def test_settings_and_runs_are_compared_at_both_ends() -> None:
    bank, shop = make("bank"), make("shop", settings={"local_steps": 10})
    greet(bank, shop)
    for attempt, text in (
        (bank, "bank runs local_steps=5, shop runs local_steps=10"),
        (shop, "shop runs local_steps=10, bank runs local_steps=5"),
    ):
        assert isinstance(attempt.failure, SettingsDiffer)
        assert str(attempt.failure).startswith(f"{text}; make them equal")
    bank, shop = make("bank"), make("shop", run="q")
    greet(bank, shop)
    assert isinstance(bank.failure, WrongRun)
    assert isinstance(shop.failure, WrongRun)


def test_the_settings_of_all_peers_are_compared_before_the_start_ends() -> None:
    three = ("bank", "shop", "mill")
    bank, shop, mill = (make(name, three, settings={"q": number}) for number, name in enumerate(three))
    bank.hear(shop.hello("bank"))
    assert bank.failure is None and not bank.begin_if_agreed()
    bank.hear(mill.hello("bank"))
    assert isinstance(bank.failure, SettingsDiffer)
    assert str(bank.failure).startswith("bank runs q=0, shop runs q=1; bank runs q=0, mill runs q=2; make")


def test_a_peer_that_comes_back_with_equal_settings_is_joined() -> None:
    three = ("bank", "shop", "mill")
    bank, shop, mill = (make(name, three) for name in three)
    bank.hear(make("shop", three, settings={"local_steps": 10}).hello("bank"))
    agreed(bank, shop, mill)


def test_a_peer_in_another_run_is_waited_for_while_it_may_still_come() -> None:
    bank = make("bank")
    busy, other = make("shop", run="q"), make("bank", run="q")
    agreed(busy, other)
    bank.hear(busy.hello("bank"))
    assert bank.failure is None
    assert bank.others["shop"].trouble == "it is in run 'q'"
    agreed(bank, make("shop"))


def test_settings_are_named_even_by_one_that_has_left_already() -> None:
    bank, shop = make("bank"), make("shop", settings={"local_steps": 10})
    shop.leave("SettingsDiffer")
    bank.hear(shop.hello("bank"))
    assert isinstance(bank.failure, SettingsDiffer)


def test_the_first_reason_is_kept() -> None:
    bank = make("bank")
    bank.fail(PeerLost("shop", "first"))
    bank.fail(PeerLost("shop", "second"))
    with pytest.raises(PeerLost, match="first"):
        bank.check()
    over = make("bank")
    over.leave("")
    over.fail(TransportError("too late"))
    assert over.failure is None
    assert over.state == LEFT


def test_who_was_lost_is_told_with_the_last_trouble() -> None:
    bank = make("bank")
    bank.others["shop"].trouble = "nobody listens there"
    bank.lose(12.3, "shop")
    assert str(bank.failure) == "shop (nobody listens there) could not be reached for 12 s"


@pytest.mark.parametrize(
    ("skew", "text"),
    [(3600.0, "the clock of shop is 3600 s ahead of ours"), (-90.0, "the clock of shop is 90 s behind ours")],
)
def test_a_clock_that_is_off_is_one_warning(skew: float, text: str, caplog: pytest.LogCaptureFixture) -> None:
    bank = make("bank")
    for trip in (0.2, 0.1, 0.4):
        bank.measured("shop", trip, 1000.0 + skew, 1000.0 + trip / 2)
    assert [record.getMessage() for record in caplog.records] == [text]
    assert bank.others["shop"].skew == pytest.approx(skew)
    assert bank.others["shop"].latency == 0.1


def test_a_clock_that_is_about_right_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    make("bank").measured("shop", 0.2, 1020.0, 1000.0)
    assert caplog.records == []


def test_greeting_is_the_first_state() -> None:
    assert make("bank").state == GREETING


def test_only_who_is_refused_hears_what_was_wrong() -> None:
    bank, shop, mill = (make(name, ("bank", "shop", "mill")) for name in ("bank", "shop", "mill"))
    agreed(bank, shop, mill)
    bank.refuse("shop", WrongKind("shop sent 'gossip', a kind that the protocol does not name"))
    assert isinstance(bank.failure, WrongKind)
    assert bank.hello("shop").refusal == ""
    bank.leave("WrongKind")
    for other in (shop, mill):
        other.hear(codec.decode_hello(codec.encode_hello(bank.hello(other.name))))
    assert isinstance(shop.failure, PeerRefused)
    text = "bank refused: shop sent 'gossip', a kind that the protocol does not name"
    assert (str(shop.failure), shop.failure.reason) == (text, "WrongKind")
    assert isinstance(mill.failure, PeerLeft)
    assert str(mill.failure) == "bank left the run: an error ended it"
