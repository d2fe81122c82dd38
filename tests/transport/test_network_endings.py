"""How a run ends and the next one begins, when answers are late, are lost, or come from a new process.

No network and no time: hellos are handed over by hand. What a party believes of a peer follows what it has
received from it, never what was sent to it.
"""

from __future__ import annotations

from securefed.transport.message import PeerLeft, PeerRestarted, WrongRun
from securefed.transport.network.attempt import Register
from securefed.transport.network.codec import ABSENT, FINISHED, GREETING, Hello
from tests.transport.test_network_attempt import agreed, greet, make

PAIR = ("bank", "shop")


class Side:
    """A party's process: one attempt after the other, and what answers for them."""

    def __init__(self, name: str, names: tuple[str, ...] = PAIR) -> None:
        self.name, self._names = name, names
        self.register = Register(name)
        self.enter("r")

    def enter(self, run: str) -> None:
        self.register.end()
        self.attempt = make(self.name, self._names, run=run, done=self.register.done)
        self.register.begin(self.attempt)

    def ask(self, called: Side) -> Hello:
        """A greeting, and the answer while it is still on its way."""
        return called.register.answer(self.attempt.hello(called.name))

    def greet(self, called: Side) -> None:
        known = self.attempt.others[called.name].session
        self.attempt.hear(self.ask(called), known)


def running(*names: str) -> tuple[Side, ...]:
    sides = tuple(Side(name, names) for name in names)
    agreed(*(side.attempt for side in sides))
    return sides


def test_an_answer_that_is_on_its_way_is_not_yet_heard() -> None:
    bank, shop = running(*PAIR)
    bank.attempt.finish()
    shop.attempt.finish()
    answer = bank.ask(shop)
    assert not shop.attempt.may_part
    bank.attempt.hear(answer, bank.attempt.others["shop"].session)
    assert bank.attempt.may_part
    assert not shop.attempt.may_part
    shop.greet(bank)
    assert shop.attempt.may_part


def test_who_goes_on_to_the_next_run_has_not_started_again() -> None:
    """The answer that says FINISHED takes longer than the greeting for the next run."""
    bank, shop = running(*PAIR)
    bank.attempt.finish()
    shop.attempt.finish()
    answer = bank.ask(shop)
    known = bank.attempt.others["shop"].session
    shop.enter("next")
    shop.ask(bank)
    assert bank.attempt.failure is None
    bank.attempt.hear(answer, known)
    assert bank.attempt.failure is None
    assert bank.attempt.may_part
    bank.enter("next")
    agreed(bank.attempt, shop.attempt)


def test_a_last_answer_that_was_lost_is_given_again_from_the_next_run() -> None:
    bank, shop = running(*PAIR)
    bank.attempt.finish()
    shop.attempt.finish()
    bank.ask(shop)  # its answer is lost
    shop.enter("next")
    assert not bank.attempt.may_part
    bank.greet(shop)
    assert bank.attempt.failure is None
    assert bank.attempt.may_part
    assert shop.attempt.failure is None


def test_the_same_run_again_is_not_taken_for_its_end() -> None:
    bank, shop = running(*PAIR)
    bank.attempt.finish()
    shop.attempt.finish()
    bank.ask(shop)
    shop.enter("r")
    bank.greet(shop)
    assert bank.attempt.may_part
    bank.enter("r")
    agreed(bank.attempt, shop.attempt)


def test_a_new_process_in_another_run_cannot_answer_for_the_old_one() -> None:
    bank, _ = running(*PAIR)
    bank.attempt.finish()
    replaced = Side("shop")
    replaced.enter("next")
    replaced.ask(bank)
    assert bank.attempt.failure is None  # a greeting for another run says nothing about this one
    bank.greet(replaced)
    assert isinstance(bank.attempt.failure, PeerRestarted)
    assert str(bank.attempt.failure) == "shop has started again, and is in run 'next'"


def test_a_party_that_came_back_to_a_run_that_is_over_is_shown_on_and_not_refused() -> None:
    """Killed between its last mark on disk and the closing that its peer is in already."""
    bank, shop = running(*PAIR)
    for side, other in ((bank, shop), (shop, bank)):
        side.attempt.finish()
        other.attempt.finish()
        side.greet(other)
    bank.enter("r/closing")
    back = Side("shop")
    back.greet(bank)
    assert isinstance(back.attempt.failure, WrongRun)
    assert str(back.attempt.failure).endswith("bank is in run 'r/closing'")
    assert bank.attempt.failure is None
    assert bank.attempt.others["shop"].trouble == "it is still in run 'r'"
    back.enter("r/closing")
    agreed(bank.attempt, back.attempt)


def test_two_parties_that_greet_for_runs_of_their_own_are_both_told() -> None:
    bank, shop = Side("bank"), Side("shop")
    shop.enter("q")
    bank.greet(shop)
    for side, run in ((bank, "q"), (shop, "r")):
        assert isinstance(side.attempt.failure, WrongRun)
        assert str(side.attempt.failure).endswith(f"is in run {run!r}")


def test_between_runs_the_end_of_the_last_one_is_told() -> None:
    bank, shop = running(*PAIR)
    bank.attempt.finish()
    shop.attempt.finish()
    bank.ask(shop)
    shop.register.end()
    assert bank.ask(shop).state == FINISHED
    assert Side("bank").ask(shop).state == ABSENT


def test_an_attempt_that_failed_answers_only_until_there_is_a_new_one() -> None:
    bank, shop = running(*PAIR)
    shop.attempt.leave("PeerLost")
    shop.register.end()
    bank.greet(shop)
    assert isinstance(bank.attempt.failure, PeerLeft)
    bank, shop = running(*PAIR)
    shop.attempt.leave("PeerLost")
    shop.enter("r")
    assert bank.ask(shop).state == GREETING
    bank.greet(shop)
    assert isinstance(bank.attempt.failure, PeerRestarted)


def test_nobody_parts_before_all_have_finished() -> None:
    bank, shop, mill = running("bank", "shop", "mill")
    for side in (bank, shop):
        side.attempt.finish()
    bank.greet(shop)
    shop.greet(bank)
    assert not bank.attempt.may_part
    mill.attempt.finish()
    for one in (bank, shop, mill):
        for other in (bank, shop, mill):
            if one is not other:
                one.greet(other)
    assert all(side.attempt.may_part for side in (bank, shop, mill))


def test_a_peer_that_finished_and_cannot_be_told_is_told_from_one_that_can() -> None:
    bank, shop = running(*PAIR)
    shop.attempt.finish()
    greet(shop.attempt, bank.attempt)
    bank.attempt.finish()
    assert bank.attempt.all_finished
    assert not bank.attempt.may_part
