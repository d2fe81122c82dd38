"""Blind transfer learning on shares, beside the same rounds in the clear."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from research.attacks import clear
from research.attacks.clear import CLEAR
from research.transfer_plain import PlainTransfer
from securefed import Monitoring
from securefed.assembly import TransferAssembly
from securefed.assembly.base import TrainingRows
from securefed.crypto import shares
from securefed.crypto.blind.interface import CrossScheme
from securefed.crypto.blind.rlwe import RLWE
from securefed.errors import DataError, MaskError, SettingError
from securefed.models.local import with_ones
from securefed.protocols.agreement import Member
from securefed.protocols.blind import loop
from securefed.protocols.blind.correlations import Count, Pair, Shape, prepare_all
from securefed.protocols.blind.statistics import MATRIX_BITS, MOST_WRAPS, PART_STEP, PRODUCT_BITS, VALUE_BITS
from securefed.protocols.blind.transfer import transfer_wrap_bound
from securefed.protocols.blind.transfer_algebra import (
    REACH,
    TransferPlan,
    TransferRows,
    with_waves,
)
from securefed.protocols.blind.transfer_round import TransferRound, count_products, fixed_matrices
from securefed.protocols.loop import EvaluationRows, PartyContext, part_of
from securefed.protocols.messages import KINDS
from securefed.protocols.schedules import Algorithm, FedBCD, FedSGD
from securefed.protocols.scoring.score_ledger import ScoreGuard
from securefed.settings import TransferSettings
from securefed.transport import Message, get_network, run_local

Array = NDArray[np.float64]
CLOSE = 1e-6


def data(
    rows: int = 40, columns: tuple[int, int] = (3, 4), seed: int = 0, outputs: int = 1
) -> tuple[Any, ...]:
    """A's and B's columns and A's labels; the first `rows` are shared, both have others, and two of A's
    labels are missing. Of several outputs one is +1 in a row.
    """
    rng = np.random.default_rng(seed)
    all_ = np.clip(rng.normal(size=(rows + 20, sum(columns))), -4, 4)
    labels = np.where(all_.sum(axis=1) + rng.normal(size=len(all_)) > 0, 1.0, -1.0)
    if outputs > 1:
        noisy = all_ @ rng.normal(size=(sum(columns), outputs)) + rng.normal(size=(len(all_), outputs))
        labels = np.where(noisy == noisy.max(axis=1, keepdims=True), 1.0, -1.0)
    labels[[3, rows + 3]] = np.nan
    return all_[:, : columns[0]], all_[: rows + 5, columns[0] :], labels, np.arange(rows)


def assembly(**changes: Any) -> TransferAssembly:
    common = {"algorithm": FedBCD(3), "rounds": 2, "l2": 1e-3}
    return TransferAssembly(TransferSettings(**{**common, **changes}))


class Run:
    """A run of all parties in this process, with everything that it leaves."""

    def __init__(
        self,
        made: TransferAssembly,
        table: tuple[Any, ...],
        scheme: CrossScheme = CLEAR,
        states: dict[str, Any] | None = None,
        evaluated: bool = False,
        tap: Callable[[Message], None] | None = None,
    ) -> None:
        made._scheme = scheme
        features_a, features_b, labels, shared = table
        signs = labels.reshape(len(labels), -1)
        labelled = ~np.isnan(signs[shared, 0])
        members = (Member("B", features_b.shape[1] + 1, True), Member("A", features_a.shape[1] + 1, True))
        agreement = made.agreement(members, len(shared), signs.shape[1])
        self.assembly, self.agreement = made, agreement
        self.scores: list[Array] = []
        self.programs: dict[str, Any] = {}
        for name, columns, known in (("B", features_b, None), ("A", features_a, labels)):
            metric = self._metric if known is not None else None
            evaluation = EvaluationRows(columns[shared][labelled], metric) if evaluated else None
            guard = ScoreGuard(party=name, column_bits=1e6, mode="off")
            context = PartyContext(evaluation=evaluation, guard=guard)
            data = TrainingRows(columns, known, shared, labelled)
            self.programs[name] = made.blind_party(agreement, data, context)
        for name, state in (states or {}).items():
            self.programs[name].restore(state)
        self.rows = self.programs["A"]._rows, self.programs["B"]._rows
        self.plan: TransferPlan = self.programs["A"]._plan
        self.start = self.opened()

        self.scored: dict[str, dict[str, shares.Share]] = {}
        """The shares that the last evaluation was made of, by party."""
        for name, program in self.programs.items():
            self._watch(name, program)

        def seen(message: Message) -> Message:
            if tap is not None:
                tap(message)
            return message

        self.run = run_local(
            {name: program.run for name, program in self.programs.items()},
            run="r",
            kinds=KINDS,
            network=get_network("lan"),
            tap=seen,
        )

    def _watch(self, name: str, program: Any) -> None:
        plain = program._before_scores

        async def watched(link: Any, t: int) -> None:
            await plain(link, t)
            stored, plan = part_of(program._question, f"{loop.BLOCK}0."), program._score_plan
            self.scored[name] = {
                each: shares.from_bytes(array.tobytes(), (shares.LIMBS, plan.size(each), plan.outputs))
                for each, array in stored.items()
            }

        program._before_scores = watched

    def _metric(self, scores: Array) -> float:
        self.scores.append(scores)
        return float(np.mean(scores))

    def opened(self) -> tuple[Array, Array, Array]:
        """What only this test can see: W_A, W_B and Phi from both holders' shares."""
        first, second = self.programs["A"].maps, self.programs["B"].maps
        pairs = ((first.a, second.a), (first.b, second.b), (first.phi, second.phi))
        w_a, w_b, phi = (shares.to_floats(shares.add(*both), VALUE_BITS) for both in pairs)
        return w_a, w_b, phi

    def plain(self, rounds: int | None = None) -> PlainTransfer:
        """The same rounds in the clear."""
        done = PlainTransfer(self.plan, *self.rows)
        for _ in range(self.assembly.settings.rounds if rounds is None else rounds):
            done.round()
        return done

    def sent(self) -> Counter[str]:
        """Messages by kind, all parties."""
        total: Counter[str] = Counter()
        for link in self.run.links.values():
            total.update(link.transcript.count("sent"))
        return total


def assert_as_plain(run: Run, due: PlainTransfer) -> None:
    w_a, w_b, phi = run.opened()
    assert np.abs(w_a - due.w_a).max() < CLOSE and np.abs(w_b - due.w_b).max() < CLOSE
    assert np.abs(phi[0] - due.phi(due.w_a)).max() < CLOSE
    assert np.abs(due.w_b).max() > 1000 * CLOSE  # so that it says something


SCHEDULES: list[Algorithm] = [
    FedSGD(),
    FedBCD(2),
    FedBCD(5),
    FedBCD(9, proximal=0.1),
    FedBCD(1, order="sequential"),
    FedBCD(5, order="sequential", proximal=0.1),
    FedBCD(14, order="sequential"),
]


@pytest.mark.parametrize(
    ("algorithm", "outputs"), [(each, outputs) for each in SCHEDULES for outputs in (1, 3)]
)
def test_the_maps_are_those_of_the_plain_rounds(algorithm: Algorithm, outputs: int) -> None:
    run = Run(assembly(algorithm=algorithm, rounds=3), data(outputs=outputs))
    assert_as_plain(run, run.plain())


@pytest.mark.parametrize("outputs", [1, 3])
def test_scores_go_to_the_label_party_and_are_those_of_the_model(outputs: int) -> None:
    made = assembly(rounds=4, monitoring=Monitoring(evaluate_every=2))
    run = Run(made, data(outputs=outputs), evaluated=True)
    b = run.rows[1]
    for scores, rounds in zip(run.scores, (2, 4), strict=True):
        due = b.shared[b.labelled] @ run.plain(rounds).score_map
        assert scores.shape == due.shape
        assert np.abs(scores - due).max() < 2.0 ** -made.settings.option("score_precision") + CLOSE
    assert run.run.outcomes["B"].history == [] and len(run.run.outcomes["A"].history) == 2


def test_an_interrupted_run_goes_on_from_its_shares() -> None:
    table = data(outputs=3)
    first = Run(assembly(rounds=2), table)
    states = {name: program.state() for name, program in first.programs.items()}
    resumed = Run(assembly(rounds=4), table, states=states)
    assert_as_plain(resumed, resumed.plain())


def test_a_repeated_evaluation_scores_the_shares_that_were_fixed_before() -> None:
    """Computing them again would round them otherwise: another model, and so another question."""
    made, table = assembly(rounds=2, monitoring=Monitoring(evaluate_every=2)), data()
    first = Run(made, table, evaluated=True)
    states = {name: program.checkpoint() for name, program in first.programs.items()}
    again = Run(made, table, states=states, evaluated=True)
    for name in ("A", "B"):
        for kept, asked in zip(first.scored[name].items(), again.scored[name].items(), strict=True):
            assert kept[0] == asked[0] and np.array_equal(kept[1], asked[1])
    assert again.run.outcomes["A"].history[0][0] == 1


def uniform(numbers: shares.Share) -> None:
    """Half of the bits are set, low ones and high ones, up to seven deviations (a chance of 3e-12)."""
    for bit in (0, 10, 20):
        found = (numbers >> bit) & 1
        assert abs(found.mean() - 0.5) < 7 * 0.5 / np.sqrt(found.size)


def test_a_holders_shares_and_all_that_it_gets_are_uniform() -> None:
    """From the first round on, where the maps are still their parties' own. Nothing but uniform numbers, keys
    and ciphertexts is sent in a training without scores.
    """
    seen: list[Message] = []
    made, table = assembly(rounds=2), data(columns=(10, 12), outputs=3)
    run = Run(made, table, tap=seen.append)
    for name in ("A", "B"):
        maps = run.programs[name].maps
        # A truncated share has 34 bits fewer: three whole limbs.
        uniform(np.concatenate([x[:3].reshape(3, -1) for x in (maps.a, maps.b, maps.phi)], axis=1))
        uniform(run.programs[name]._labels[:3])
    for message in seen:
        words = len(message.payload) // 8
        if message.kind == "difference" and words > 100:
            # The last words may be padded.
            uniform(shares.from_bytes(message.payload, (3 * words,))[: 3 * words - 6])
    assert set(run.sent()) == {"nonce", "cross-key", "operand", "reply", "difference"}


def nothing(*shape: int) -> shares.Share:
    """Masks of somebody who left them out."""
    return shares.zeros(*shape)


@pytest.mark.parametrize("naive", [True, False])
def test_a_finds_columns_of_b_in_the_pass_only_if_masks_are_left_out(
    naive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K = F_A'F_B/n: with more columns than rows A solves for F_B."""
    if naive:
        monkeypatch.setattr(clear, "uniform", nothing)
    seen: list[Message] = []
    run = Run(assembly(rounds=1), data(rows=24, columns=(30, 5)), tap=seen.append)
    (reply,) = (m for m in seen if m.kind == "reply" and m.step == PART_STEP + 1)
    a, b = run.rows
    crossed = shares.to_floats(shares.from_bytes(reply.payload, (5, 32, 6)), PRODUCT_BITS)[:31]
    guess = np.linalg.lstsq(a.shared.T / 24, crossed, rcond=None)[0][:, :5].ravel()
    found = abs(np.corrcoef(guess, b.shared[:, :5].ravel())[0, 1])
    # 120 numbers: the standard error of a correlation by chance is 0.09.
    assert found > 0.999 if naive else found < 0.45


@pytest.mark.parametrize("naive", [True, False])
def test_b_finds_the_map_of_a_in_differences_only_if_masks_are_left_out(
    naive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the start W_A is A's own, so A's share of it is W_A itself."""
    if naive:
        monkeypatch.setattr(loop, "prepare_all", partial(prepare_all, draw=nothing))
    seen: list[Message] = []
    run = Run(assembly(rounds=1), data(columns=(30, 5)), tap=seen.append)
    told = next(m for m in seen if m.kind == "difference" and m.sender == "A")
    words = len(told.payload) // 8
    numbers = shares.from_bytes(told.payload, (5, 3 * words // 5))[:, :31]  # K'W_A is asked for first
    guess = shares.to_floats(numbers, VALUE_BITS)
    found = abs(np.corrcoef(guess, run.start[0][:, 0])[0, 1])
    assert found > 0.999 if naive else found < 0.9


@pytest.mark.parametrize("steps", [1, 2, 5, 8])
def test_messages_of_a_round_depend_on_the_local_steps_alone(steps: int) -> None:
    """Both holders send one message a trip: three trips, one more a local step of A, one at the end."""
    counts = []
    for rounds, rows in ((1, 40), (3, 80)):
        run = Run(assembly(algorithm=FedBCD(steps), rounds=rounds), data(rows))
        counts.append(run.sent())
    each = (counts[1]["difference"] - counts[0]["difference"]) / 2
    # A's last product is by a matrix of its own, so that only B sends then.
    assert each == 2 * (steps + 3) - 1
    assert counts[0]["operand"] <= counts[1]["operand"] <= counts[0]["operand"] + 4


def test_bytes_of_a_round_are_those_of_its_differences() -> None:
    """Every number of a factor travels once, in 40/3 bytes. Q = 2, by trips and in both directions:

    K'W_A 2a, Phi by Phi and c 2(b + 2), K W_B 2b, G W_B b; coefficients 3b, powers 4, bases 2a, S 4b; W_B 4b
    + 4, Phi S 6, weights 1; g 4; pushes 2. At the end v: 2(b + 1).
    """
    rounds, a, b = 3, 10, 15
    run = Run(assembly(algorithm=FedBCD(2), rounds=rounds), data(columns=(a - 1, b - 1)))
    sizes = [
        entry.bytes
        for link in run.run.links.values()
        for entry in link.transcript.of("sent")
        if entry.kind == "difference"
    ]
    numbers = rounds * (4 * a + 16 * b + 25) + 2 * (b + 1)
    assert 0 <= sum(sizes) - numbers * 40 / 3 < 8 * len(sizes)


def test_truncated_numbers_of_a_run_stay_below_a_quarter_of_their_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What both holders truncate, opened: it wraps with probability magnitude / 2**105."""
    cut, seen = TransferRound._cut, {True: list[shares.Share](), False: list[shares.Share]()}

    def noted(self: TransferRound, share: shares.Share, bits: int = MATRIX_BITS) -> shares.Share:
        if not isinstance(self._products, Count):
            seen[self._first].append(share)
        return cut(self, share, bits)

    monkeypatch.setattr(TransferRound, "_cut", noted)
    given_a, given_b, labels, shared = data(rows=300, columns=(10, 12))
    waved = with_waves(given_a, np.arange(10)), with_waves(given_b, np.arange(12))
    run = Run(assembly(algorithm=FedBCD(5), rounds=10, l2=0.05), (*waved, labels, shared))
    pairs = zip(seen[True], seen[False], strict=True)
    moved = sum(np.abs(shares.to_floats(shares.add(*both), shares.WIDTH)).sum() for both in pairs)
    a, b = run.rows
    passed = np.abs(a.shared.T @ b.shared / run.plan.rows).sum() * 2.0 ** (PRODUCT_BITS - shares.WIDTH)
    bounds = [transfer_wrap_bound(run.plan, rounds) for rounds in (0, 10)]
    assert passed < bounds[0] and moved < (bounds[1] - bounds[0]) / 4


def test_products_are_counted_without_data() -> None:
    """A round's numbers depend on columns, outputs and steps; none on rows."""
    plan = TransferPlan(5, 4, 40, 0.005, 0.05, 0.0, 5, False)
    constants = fixed_matrices(plan)
    count = count_products(plan, constants, 7, 2)
    assert count.columns[("K",)] == count.columns[("chunk", 0)] == 7
    assert count.triples[Shape(4, 5, 1)] == 7 and count.triples[Shape(5, 1, 1)] == 9
    assert count.columns.keys() <= constants.keys()
    larger = replace(plan, rows=4000)
    again = count_products(larger, fixed_matrices(larger), 7, 2)
    assert (again.columns, again.triples) == (count.columns, count.triples)


def test_a_random_number_serves_once() -> None:
    count = Count({})
    pair: Pair = count.pair(Shape(2, 1, 1), 1)
    values = shares.zeros(1, 1, 1)
    pair.open([(0, values)])
    pair.open([(1, values)], [(0, values)])
    with pytest.raises(MaskError, match="serve twice"):
        pair.open([(0, values)])
    with pytest.raises(MaskError, match="serve twice"):
        pair.open([(2, values)])
    run = Run(assembly(rounds=1), data())
    with pytest.raises(MaskError, match="are left"):
        run.programs["A"]._products.times(("K",), run.programs["A"].maps.b)
    with pytest.raises(MaskError, match="are left"):
        run.programs["A"]._products.pair(Shape(5, 3, 1), 1)


def test_a_run_whose_shares_might_wrap_does_not_start() -> None:
    plan = TransferPlan(120, 120, 1000, 0.005, 0.05, 0.0, 5, False)
    assert transfer_wrap_bound(plan, 10) < 2.0**-22
    assert transfer_wrap_bound(replace(plan, outputs=10), 10) < MOST_WRAPS
    with pytest.raises(SettingError, match="rounds: 100000 rounds with 9 columns"):
        Run(assembly(rounds=100_000), data())


def test_a_run_under_encryption() -> None:
    made = assembly(rounds=2, monitoring=Monitoring(evaluate_every=2))
    run = Run(made, data(outputs=3), RLWE, evaluated=True)
    assert_as_plain(run, run.plain())
    b = run.rows[1]
    due = b.shared[b.labelled] @ run.plain().score_map
    assert np.abs(run.scores[0] - due).max() < 2.0 ** -made.settings.option("score_precision") + CLOSE


@st.composite
def federations(draw: Any) -> Any:
    """Rows, columns, scales, labels and settings of any kind."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows, more = draw(st.integers(3, 40)), draw(st.integers(0, 60))
    d_a, d_b = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    columns = rng.normal(size=(rows + more, d_a + d_b))
    if draw(st.booleans()):
        columns = columns @ rng.normal(size=(d_a + d_b, d_a + d_b))
    columns = columns * 10.0 ** rng.uniform(-2, 2, size=d_a + d_b) ** draw(st.integers(0, 1))
    pull = columns / columns.std(axis=0) @ rng.normal(size=d_a + d_b)
    labels = np.where(
        draw(st.sampled_from([0.0, 1.0, 5.0])) * pull + rng.normal(size=len(pull)) > 0, 1.0, -1.0
    )
    outputs = draw(st.sampled_from([1, 1, 3]))
    if outputs > 1:
        classes = rng.integers(0, outputs, size=len(labels)) if draw(st.booleans()) else labels > 0
        labels = np.where(np.arange(outputs) == classes[:, None], 1.0, -1.0)
    labels = labels.reshape(len(labels), -1)
    labels[rng.random(len(labels)) < draw(st.sampled_from([0.0, 0.6]))] = np.nan
    labels[:2] = np.array([[1.0], [-1.0]])
    labelled, shared = ~np.isnan(labels[:rows, 0]), np.arange(rows)
    a = TransferRows(with_ones(columns[:, :d_a]), shared, labelled, labels)
    b = TransferRows(with_ones(columns[:rows, d_a:]), shared, labelled, None)
    sizes = (d_a + 1, d_b + 1, rows)
    weights = tuple(draw(st.sampled_from([0.0, 0.005, 0.05, 1.0])) for _ in range(2))
    steps, sequential = draw(st.sampled_from([1, 2, 5, 10, 100])), draw(st.booleans())
    plan = TransferPlan(*sizes, *weights, draw(st.sampled_from([0.0, 0.1, 5.0])), steps, sequential, outputs)
    return PlainTransfer(plan, a, b)


@given(federations())
@settings(max_examples=60, deadline=None)
def test_the_loss_falls_in_every_round_whatever_the_columns(run: PlainTransfer) -> None:
    before = run.loss()
    for _ in range(15):
        run.round()
        after = run.loss()
        assert after <= before + 1e-9 * max(1.0, before)
        before = after
        # What the proof takes for granted (docs/proofs.md), of every output.
        for q, reach, w_a, w_b in zip(
            run._a.pull.T,
            run._a.reaches,
            *(np.hsplit(w, run._plan.outputs) for w in (run.w_a, run.w_b)),
            strict=True,
        ):
            square = w_b.T @ run._b.labelled_gram @ w_b
            assert ((w_a.T @ q) ** 2).sum() <= REACH and np.linalg.eigvalsh(square)[-1] * reach <= REACH


def test_what_cannot_be_done_is_refused_by_name() -> None:
    with pytest.raises(SettingError, match="learning_rate: 60 given, a blind run takes 'auto'"):
        assembly(learning_rate=60)
    with pytest.raises(SettingError, match="hidden: 2 given, a blind run takes 1"):
        assembly(hidden=2)
    a, b, *rest = data(columns=(3, 150))
    with pytest.raises(DataError, match="less than 256 is allowed; standardise"):
        Run(assembly(), (a, 1e-4 * b, *rest))
