"""The solvability ledger: what it counts, where its line is, and that nothing is opened past it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefed.api.result import RunResult
from securefed.crypto.keyholder import OpeningMemory
from securefed.protocols.agreement import Agreement, Member
from securefed.protocols.own_gradient.ledger import NEAR, Ledger, LedgerEntry, LedgerRefusal, LedgerWarning
from securefed.protocols.own_gradient.openings import book
from securefed.protocols.schedules import Batches, Constant, FedBCD, FedSGD, Stopping
from tests.protocols import federation
from tests.protocols.federation import KEY_HOLDER, Federation, Keys, Recorder, blobs, shared_people, split

SECRETS = "residuals of a batch"


def linear(keys: Keys, columns: int, batch: int, *, parties: int = 2, **options: Any) -> Federation:
    """Every party has that many columns; as many residuals as the batch has rows."""
    features, labels = blobs(4 * batch, parties * columns)
    return federation.linear(
        split(0.1 * features, parties),
        labels,
        keys,
        batch=batch,
        **{"allow_determined": False, "rate": Constant(0.1), **options},
    )


def blocks(run: Any, agreement: Agreement) -> dict[tuple[str, str], LedgerEntry]:
    return {(e.party, e.block): e for e in RunResult.of(agreement, run).ledger}


# The counting itself.


def determined(ledger: Ledger) -> bool:
    return any(entry.verdict == "determined" for entry in ledger.entries)


@given(st.lists(st.integers(1, 50), max_size=12), st.integers(1, 200))
def test_openings_add_up_and_are_refused_from_the_line_on(openings: list[int], unknowns: int) -> None:
    ledger, total = Ledger(), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LedgerWarning)
        for equations in openings:
            if total + equations >= unknowns:
                with pytest.raises(LedgerRefusal):
                    ledger.count("k", SECRETS, equations, unknowns)
            else:
                ledger.count("k", SECRETS, equations, unknowns)
                total += equations
    assert not determined(ledger)
    assert [e.equations for e in ledger.entries] == ([total] if total else [])


@pytest.mark.filterwarnings("ignore::securefed.protocols.own_gradient.ledger.LedgerWarning")
def test_new_secrets_start_a_new_count_and_the_worst_is_kept() -> None:
    ledger = Ledger()
    for round_, opened in enumerate((3, 5, 2)):
        for _ in range(opened):
            ledger.count("k", SECRETS, 1, 6, round_=round_)
    (entry,) = ledger.entries
    assert (entry.equations, entry.unknowns, entry.verdict) == (5, 6, "near")
    with pytest.raises(LedgerRefusal):  # without new secrets the count goes on
        for _ in range(4):
            ledger.count("k", SECRETS, 1, 6, round_=2)


def test_parties_and_blocks_are_counted_apart() -> None:
    ledger = Ledger()
    for party in ("a", "b"):
        for block in ("x", "y"):
            ledger.count(party, block, 4, 10)
    assert [e.equations for e in ledger.entries] == [4] * 4


def test_it_warns_once_from_near_on() -> None:
    ledger = Ledger()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ledger.count("k", SECRETS, 49, 100)
    assert NEAR == 0.5
    with pytest.warns(LedgerWarning, match=r"k holds 50 equations \(linear\) for 100 unknowns"):
        ledger.count("k", SECRETS, 1, 100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ledger.count("k", SECRETS, 1, 100)
    assert ledger.entries[0].verdict == "near"


def test_an_advisory_count_warns_and_never_refuses() -> None:
    ledger = Ledger()
    with pytest.warns(LedgerWarning, match="an estimate, not linear"):
        ledger.count("k", "labels", 500, 100, advisory=True)
    assert ledger.entries[0].verdict == "possibly determined"
    assert not determined(ledger)


def test_with_permission_it_counts_on_and_says_determined() -> None:
    ledger = Ledger(allow_determined=True)
    with pytest.warns(LedgerWarning):
        ledger.count("k", SECRETS, 100, 100)
    assert determined(ledger)
    assert ledger.entries[0].verdict == "determined"


def test_a_refusal_says_what_to_do_in_one_line() -> None:
    with pytest.raises(LedgerRefusal) as caught:
        Ledger().count("shop", SECRETS, 357, 64)
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith(f"shop would hold 357 equations for 64 unknowns ({SECRETS})")
    assert "allow_determined=True" in line


# In training: both sides of the line.


@pytest.mark.parametrize("scheme", ["plain", "ckks"])
@pytest.mark.parametrize("parties", [2, 3])
def test_as_many_columns_as_rows_are_refused_before_anything_is_opened(
    scheme: str, parties: int, keys: Keys
) -> None:
    recorder = Recorder()
    made = linear(keys, 8, 8, parties=parties, scheme=scheme)
    with pytest.raises(LedgerRefusal, match="would hold 8 equations for 8 unknowns"):
        made.run(tap=recorder)
    assert recorder.of("opening-request") and not recorder.of("opening")
    for holder in made.holders.values():
        assert holder.openings == 0


@pytest.mark.parametrize("parties", [2, 3])
def test_one_column_fewer_is_allowed_with_a_warning(parties: int, keys: Keys) -> None:
    made = linear(keys, 7, 8, parties=parties, algorithm=FedBCD(5), rounds=1)
    with pytest.warns(LedgerWarning, match="holds 7 equations"):
        run = made.run()
    found = blocks(run, made.agreement)
    # Linear models open once a round, so Q does not count; a new round has new residuals.
    for name in made.sides:
        entry = found[name, SECRETS]
        assert (entry.equations, entry.unknowns, entry.verdict) == (7, 8, "near")
    assert not RunResult.of(made.agreement, run).determined


def test_a_bias_is_one_more_column(keys: Keys) -> None:
    with pytest.raises(LedgerRefusal, match="p1 would hold 8 equations"):
        linear(keys, 7, 8, bias=True).run()


def test_few_columns_warn_of_nothing_but_the_labels(keys: Keys) -> None:
    made = linear(keys, 3, 8, rounds=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = made.run()
    found = blocks(run, made.agreement)
    assert found["p0", SECRETS].verdict == "below the line"
    # Two rounds of three sums about the 32 labels; the label party knows its own.
    labels = found["p0", "labels over all rounds"]
    assert (labels.equations, labels.unknowns, labels.advisory) == (6, 32, True)
    assert ("p1", "labels over all rounds") not in found
    with pytest.warns(LedgerWarning, match="labels over all rounds"):
        linear(keys, 3, 8, rounds=6).run()


@pytest.mark.parametrize("parties", [2, 3])
def test_with_permission_it_opens_and_the_result_says_determined(parties: int, keys: Keys) -> None:
    made = linear(keys, 9, 8, parties=parties, allow_determined=True)
    with pytest.warns(LedgerWarning):
        result = RunResult.of(made.agreement, made.run())
    assert result.determined and result.to_dict()["determined"]
    verdicts = {(e.party, e.block): e.verdict for e in result.ledger}
    assert {verdicts[name, SECRETS] for name in made.sides} == {"determined"}


def test_networks_count_every_local_step(keys: Keys) -> None:
    """Two columns, two hidden units: nine parameters, so three steps open 27 sums."""
    with pytest.warns(LedgerWarning):
        made = linear(keys, 2, 28, local="network", hidden=(2,), algorithm=FedBCD(3), rounds=1)
        found = blocks(made.run(), made.agreement)
    assert found["p0", SECRETS].equations == 27
    with pytest.warns(LedgerWarning), pytest.raises(LedgerRefusal, match="27 equations for 27 unknowns"):
        linear(keys, 2, 27, local="network", hidden=(2,), algorithm=FedBCD(3), rounds=1).run()


def test_the_exact_loss_opens_nothing_and_counts_nothing(keys: Keys) -> None:
    made = linear(keys, 9, 8, exact=True)
    result = RunResult.of(made.agreement, made.run())
    assert result.ledger == [] and not result.determined


# The settings of the paper.


def agreement(
    objective: Any, members: tuple[Member, ...], rows: int, batch: int | None, **options: Any
) -> Agreement:
    settings = {"algorithm": FedSGD(), **options}
    return Agreement(
        objective,
        "paillier",
        members,
        learning_rate=Constant(0.1),
        batches=Batches(rows, batch, 0),
        stopping=Stopping(1),
        **settings,
    )


@pytest.mark.filterwarnings("ignore::securefed.protocols.own_gradient.ledger.LedgerWarning")
def test_the_papers_mimic_setting_is_refused() -> None:
    """714 features at two parties, batches of 64 of 17,903 rows: every round determines its residuals."""
    members = (Member("p1", 357, True), Member("p2", 357, True))
    for batch, refused in ((64, True), (357, True), (358, False)):
        ledger, settings = Ledger(), agreement("linear", members, 17_903, batch)
        for name in ("p1", "p2"):
            if refused:
                with pytest.raises(LedgerRefusal, match=f"357 equations for {batch} unknowns"):
                    book(ledger, settings, name)
            else:
                book(ledger, settings, name)


@pytest.mark.parametrize(
    ("steps", "rows", "refused"),
    # (15 + 1) * 32 = 512 sums an opening; n * 32 + 32 * 33 / 2 unknowns: 3,728 of 100 rows.
    [
        (5, 100, None),
        (7, 100, None),
        (8, 100, 8),
        (10, 100, 8),
        (10, 143, 10),
        (10, 144, None),
        (10, 2000, None),
    ],
)
@pytest.mark.filterwarnings("ignore::securefed.protocols.own_gradient.ledger.LedgerWarning")
def test_the_papers_transfer_setting(steps: int, rows: int, refused: int | None) -> None:
    members = (Member("B", 512, False), Member("A", 608, False))
    settings = agreement("transfer", members, rows, None, width=32, algorithm=FedBCD(steps))
    assert settings.unknowns() == rows * 32 + 528
    ledger = Ledger()
    for step in range(1, steps + 1):
        assert settings.opens_at("B", step - 1)
        if step == refused:
            with pytest.raises(LedgerRefusal, match=f"B would hold {512 * step} equations"):
                book(ledger, settings, "B")
            return
        book(ledger, settings, "B")
    assert refused is None
    (entry, labels) = ledger.entries
    assert (entry.equations, entry.unknowns) == (512 * steps, rows * 32 + 528)
    assert (labels.block, labels.unknowns) == ("labels over all rounds", rows)


@pytest.mark.parametrize(("steps", "fine"), [(5, True), (10, False)])
def test_a_transfer_run_in_the_papers_size_stops_where_the_ledger_says(
    steps: int, fine: bool, keys: Keys
) -> None:
    people = shared_people(n=100, more_a=0, more_b=0, d_a=15, d_b=15, unlabelled=0)
    made = federation.transfer(
        people, keys, width=32, algorithm=FedBCD(steps), rounds=1, rate=Constant(0.01), allow_determined=False
    )
    recorder = Recorder()
    with pytest.warns(LedgerWarning):
        if fine:
            made.run(tap=recorder)
        else:
            with pytest.raises(LedgerRefusal, match="4096 equations for 3728 unknowns"):
                made.run(tap=recorder)
    # Each party's eighth opening is the one that is not given.
    assert len(recorder.of("opening")) in ({10} if fine else {14, 15})


def test_the_key_holder_keeps_the_books_of_all(keys: Keys) -> None:
    made = linear(keys, 3, 8, parties=3, rounds=1)
    run = made.run()
    books = run.outcomes[KEY_HOLDER].ledger.entries
    assert {(e.party, e.equations) for e in books if e.block == SECRETS} == {("p0", 3), ("p1", 3), ("p2", 3)}
    assert all(run.outcomes[name].ledger.entries == [] for name in made.sides)


def test_two_parties_keep_each_others_books(keys: Keys) -> None:
    made = linear(keys, 3, 8, rounds=1)
    run = made.run()
    for name, peer in (("p0", "p1"), ("p1", "p0")):
        assert {e.party for e in run.outcomes[name].ledger.entries} == {peer}


def test_past_the_line_linear_algebra_does_find_the_residuals(keys: Keys) -> None:
    """What the refusal prevents: with as many sums as rows a party solves for its peer's secrets."""
    made = linear(keys, 8, 8, allow_determined=True, rounds=1)
    side, peer = made.sides["p0"], made.sides["p1"]
    rows = made.agreement.batches.batch(0)
    side.begin(rows)
    peer.begin(rows)
    secret = peer.contribution()  # p0's model starts at zero, so this is the residual, and shows the labels
    sums = side.multipliers()[0] @ secret
    assert np.abs(np.linalg.solve(side.multipliers()[0], sums) - secret).max() < 1e-9


class TestOverAttempts:
    """A column holder that breaks the connection after each opening and asks for other sums of the same
    batch: its columns are its own to choose, and all others go back to the round's beginning.
    """

    UNKNOWNS, COLUMNS = 12, 5

    def attack(self, file: Path | None) -> tuple[int, float]:
        """How many attempts were answered, and how far off the residuals are that it finds."""
        rng = np.random.default_rng(3)
        residuals = rng.choice([-0.5, 0.5], self.UNKNOWNS)
        members = (Member("shop", self.COLUMNS, True), Member("bank", 2, True))
        settings = agreement("linear", members, self.UNKNOWNS, self.UNKNOWNS)
        columns: list[np.ndarray] = []
        sums: list[np.ndarray] = []
        for _ in range(6):
            memory, ledger = OpeningMemory(), Ledger()  # the key-holder's process, or its attempt, is new
            if file is not None:
                memory.keep(file)
            try:
                book(ledger, settings, "shop", memory, round_=0)
            except LedgerRefusal as refusal:
                assert "15 equations over several attempts at this round for 12 unknowns" in str(refusal)
                break
            columns.append(rng.normal(size=(self.UNKNOWNS, self.COLUMNS)))
            sums.append(columns[-1].T @ residuals)
        found = np.linalg.lstsq(np.hstack(columns).T, np.concatenate(sums), rcond=None)[0]
        return len(sums), float(np.abs(found - residuals).max())

    @pytest.mark.filterwarnings("ignore::securefed.protocols.own_gradient.ledger.LedgerWarning")
    def test_a_naive_key_holder_gives_all_residuals_away(self) -> None:
        attempts, error = self.attack(None)
        assert attempts == 6 and error < 1e-9

    @pytest.mark.filterwarnings("ignore::securefed.protocols.own_gradient.ledger.LedgerWarning")
    def test_one_that_remembers_stops_at_the_line(self, tmp_path: Path) -> None:
        attempts, error = self.attack(tmp_path / "openings.log")
        assert attempts == 2 and error > 0.05

    def test_it_warns_of_what_all_attempts_add_up_to(self, tmp_path: Path) -> None:
        with pytest.warns(LedgerWarning, match="10 equations over several attempts at this round"):
            self.attack(tmp_path / "openings.log")

    def test_the_entries_are_those_of_the_attempt(self) -> None:
        ledger = Ledger()
        ledger.count("shop", SECRETS, 5, 12, over_attempts=5)
        assert [entry.equations for entry in ledger.entries] == [5]
