"""Blind transfer learning follows the plain trajectory, shows nobody anything, and does not depend on rows.

How far it may be from the plain run. A party's own matrix is rounded to 2^-29, so a product with `inner`
numbers of size up to X is off by inner X 2^-29; sharing and truncating add at most 4 units of 2^-32 to any
product, and products of two shared factors carry each factor's error on, times the other. A turn has 4 + 2Q
trips, so it adds at most

    E = (4 + 2Q) A (3d X 2^-29 + 4 * 2^-32)

to the maps, with A the largest factor that an error meets within the turn (row sums of the own matrices, of
K, and X). Errors of earlier turns are carried on by the turn's map, whose Jacobian the test takes by
differences.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from research.attacks.shares import Reading
from securefed.crypto import KeyHolder, key_kind
from securefed.crypto.errors import Diverged
from securefed.crypto.rlwe.ring import HIDDEN
from securefed.crypto.shares import centred
from securefed.errors import DataError, SettingError
from securefed.protocols.blind_transfer import BlindTransferParty
from securefed.protocols.blur import ScoreGuard
from securefed.protocols.recipe import Surroundings
from securefed.protocols.schedules import Algorithm, FedBCD, FedSGD
from securefed.protocols.training import Evaluation
from securefed.protocols.transfer_algebra import REACH, OwnMaps, TransferPlan, TransferRows, with_ones
from securefed.protocols.transfer_plain import PlainTransfer
from securefed.protocols.transfer_recipe import TransferRecipe
from securefed.transport import LocalRun
from tests.protocols.federation import KEYS, MUCH, run_parties

Array = NDArray[np.float64]


@dataclass
class Blind:
    """A blind run, after it."""

    recipe: TransferRecipe
    parties: dict[str, BlindTransferParty]
    run: LocalRun

    @property
    def maps(self) -> tuple[Array, Array]:
        """What only this test can see: both shares added up."""
        a, b = self.parties["A"], self.parties["B"]
        return _value(a.share_a + b.share_a), _value(a.share_b + b.share_b)


def _value(total: Any) -> Array:
    return np.asarray(centred(total).astype(np.float64) / 2.0**32)


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


def recipe(**settings: Any) -> TransferRecipe:
    common = {"scheme": "ckks", "reveal": "nothing", "algorithm": FedBCD(3), "rounds": 2, "l2": 1e-3}
    return TransferRecipe(**{**common, **settings})


def blind(
    made: TransferRecipe,
    given: tuple[Any, ...],
    states: Any = None,
    metric: Any = None,
    key_holder: str | None = None,
    holder: KeyHolder | None = None,
) -> Blind:
    """`key_holder`: a party, with that key where one is given."""
    features_a, features_b, labels, shared = given
    signs = labels.reshape(len(labels), -1)
    labelled = ~np.isnan(signs[shared, 0])
    members = (made.blind_member("B", features_b.shape[1]), made.blind_member("A", features_a.shape[1]))
    agreement = replace(made.agreement(members, len(shared), signs.shape[1]), key_holder=key_holder)
    parties = {}
    for place, (name, columns, known) in enumerate((("B", features_b, None), ("A", features_a, labels))):
        own = KEYS.holder(key_kind(made.scheme, "nothing"), place) if key_holder is None else None
        seen = Evaluation(columns[shared], None if known is None else metric) if metric else None
        guard = ScoreGuard(party=name, column_bits=MUCH)
        around = Surroundings(own, None, seen, None, guard)
        parties[name] = made.blind_party(agreement, columns, shared, labelled, known, around)
        if states is not None:
            parties[name].restore(states[name])
    if key_holder is None:
        return Blind(made, parties, run_parties(parties))  # type: ignore[arg-type]
    third = made.key_holder(
        agreement, Surroundings(holder or KEYS.holder(key_kind(made.scheme, "nothing"), 2))
    )
    if states is not None:
        third.first_round = parties["A"].first_round
    return Blind(made, parties, run_parties({**parties, key_holder: third}))  # type: ignore[dict-item]


def gradients(made: TransferRecipe, a: TransferRows, b: TransferRows, w_a: Array, w_b: Array) -> Any:
    """Of the loss of securefed.protocols.transfer, row by row and output by output: the naive oracle."""
    n, labels = len(a.overlap), a.labels.reshape(len(a.labels), -1)
    known, w = ~np.isnan(labels[:, 0]), a.labelled.astype(np.float64)
    found: list[list[Array]] = [[], []]
    for output, (own_a, own_b) in enumerate(
        zip(*(np.hsplit(x, labels.shape[1]) for x in (w_a, w_b)), strict=True)
    ):
        rows, signs = a.features[known], labels[known, output]
        y = np.where(a.labelled, labels[a.overlap, output], 0.0)
        u_a, u_b, phi = a.shared @ own_a, b.shared @ own_b, signs @ (rows @ own_a) / len(signs)
        residual = w * (-y / 2 + (u_b @ phi) / 4)
        by_a = np.outer(rows.T @ signs / len(signs), u_b.T @ residual / n)
        found[0].append(by_a + 2 * made.pull * a.shared.T @ (u_a - u_b) / n + made.l2 * own_a)
        pulled = np.outer(residual, phi) + 2 * made.pull * (u_b - u_a)
        found[1].append(b.shared.T @ pulled / n + made.l2 * own_b)
    return np.hstack(found[0]), np.hstack(found[1])


def turn(
    made: TransferRecipe, plan: TransferPlan, rows: Any, w_a: Array, w_b: Array, eta: float, active: str
) -> Any:
    """Q plain local steps of whoever is active, on what the other had."""
    a, b = rows
    new_a, new_b, mu = w_a, w_b, made.algorithm.proximal
    rates, holds = [eta / x.curvature(plan) for x in rows], [x.hold(plan) for x in rows]
    for _ in range(made.algorithm.local_steps):
        if "A" in active:
            by_a, _ = gradients(made, a, b, new_a, w_b)
            moved = new_a - w_a
            new_a = new_a - rates[0] * (a.inverse @ (by_a + mu * moved) + holds[0] * moved)
        if "B" in active:
            _, by_b = gradients(made, a, b, w_a, new_b)
            moved = new_b - w_b
            new_b = new_b - rates[1] * (b.inverse @ (by_b + mu * moved) + holds[1] * moved)
    return new_a, new_b


def plain_and_bound(done: Blind) -> tuple[Array, Array, float]:
    made, a, b = done.recipe, done.parties["A"]._rows, done.parties["B"]._rows
    plan, rate = done.parties["A"]._plan, done.parties["A"]._agreement.learning_rate
    starts = a.start(plan, made.seed * 1000 + 1), b.start(plan, made.seed * 1000)
    shapes, cut = [start.shape for start in starts], starts[0].size

    def parts(flat: Array) -> tuple[Array, Array]:
        return flat[:cut].reshape(shapes[0]), flat[cut:].reshape(shapes[1])

    def move(flat: Array, eta: float, active: str) -> Array:
        return np.concatenate([x.ravel() for x in turn(made, plan, (a, b), *parts(flat), eta, active)])

    flat = np.concatenate([start.ravel() for start in starts])
    errors, nudges = np.zeros(len(flat)), 1e-6 * np.eye(len(flat))
    for t in range(made.rounds):
        eta = rate(t)
        for active in ("AB",) if made.algorithm.order == "parallel" else ("B", "A"):
            columns = [(move(flat + e, eta, active) - move(flat - e, eta, active)) / 2e-6 for e in nudges]
            moved = move(flat, eta, active)
            size = 2 * max(float(np.abs(flat).max()), float(np.abs(moved).max()), 1.0)
            own_a, own_b = (OwnMaps(rows, plan, eta) for rows in (a, b))
            matrices = [own_a.bases(), own_a.pushes, own_b.step(), own_b.constants(), own_b.base(1)]
            largest = max([float(np.abs(m).sum(axis=1).max()) for m in matrices] + [size])
            inner = 3 * max(plan.size_a, plan.size_b)
            added = (4 + 2 * plan.local_steps) * largest * (inner * size * 2.0**-29 + 4 * 2.0**-32)
            errors = np.abs(np.array(columns).T) @ errors + added
            flat = moved
    return *parts(flat), float(errors.max())


IN_TURN = FedBCD(2, order="sequential", proximal=0.1)
CASES: list[tuple[str | None, str, Algorithm, int, int]] = [
    (None, "ckks", FedBCD(3), 1, 1),
    (None, "ckks", IN_TURN, 2, 1),
    (None, "ckks", FedSGD(), 1, 1),
    (None, "ckks", FedBCD(3), 1, 4),
    (None, "ckks", IN_TURN, 2, 3),
    (None, "paillier", FedBCD(2), 1, 1),
    (None, "paillier", IN_TURN, 2, 1),
    (None, "paillier", FedSGD(), 1, 3),
    ("C", "ckks", FedBCD(3), 1, 4),
    ("C", "ckks", IN_TURN, 2, 1),
    ("C", "ckks", FedSGD(), 1, 1),
    ("C", "paillier", FedBCD(2, proximal=0.1), 1, 1),
    ("C", "paillier", IN_TURN, 1, 1),
    ("C", "paillier", FedSGD(), 2, 1),
]


@pytest.mark.slow
@pytest.mark.parametrize(("key_holder", "scheme", "algorithm", "hidden", "outputs"), CASES)
def test_the_hidden_maps_follow_the_plain_ones(
    key_holder: str | None, scheme: str, algorithm: Algorithm, hidden: int, outputs: int
) -> None:
    """With a key-holder party, whose public key gives 2**7 times the noise, products are off by 3 units of
    2**-60 here: far below what truncation makes of them, so the bound is the same.
    """
    made = recipe(scheme=scheme, algorithm=algorithm, hidden=hidden)
    columns = (2, 2) if key_holder and scheme == "paillier" else (3, 4)  # public keys take their time
    done = blind(made, data(columns=columns, outputs=outputs), key_holder=key_holder)
    plain_a, plain_b, bound = plain_and_bound(done)
    assert bound < 1e-3  # so that it says something
    for found, plain in zip(done.maps, (plain_a, plain_b), strict=True):
        assert np.abs(found - plain).max() < bound
    assert np.abs(plain_b).max() > 100 * bound


@pytest.mark.parametrize("outputs", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_nothing_is_opened_and_a_share_tells_nothing(outputs: int) -> None:
    """Labels from c = F_B'(w y)/n by least squares: found where c is in the clear, chance in B's share of it.

    And everything that a key-holder reads is uniform: of the top bits of what A and B read half are set.
    """
    done = blind(recipe(rounds=1), data(rows=40, columns=(3, 30), outputs=outputs))
    a, b = done.parties["A"]._rows, done.parties["B"]._rows
    told = a.targets().reshape(40, -1)[:, 0]
    y = told[b.labelled]
    rows = b.shared[b.labelled]

    def guess(c: Array) -> float:
        return float(roc_auc_score(y, rows @ np.linalg.lstsq(b.labelled_gram, c, rcond=None)[0]))

    naive = b.shared.T @ told / len(a.overlap)
    assert guess(naive) > 0.95
    # Around their mean: truncated shares modulo 2^112 are 2^112 to 15 digits, which says nothing of anything.
    held = np.asarray(centred(done.parties["B"]._c[:, 0]).astype(np.float64))
    held = (held - held.mean()) / held.std()
    # At least 13 positives and negatives: the standard error of an AUC by chance is 0.1; four of them.
    assert abs(guess(held) - 0.5) < 0.4
    assert all(not outcome.ledger.entries for outcome in done.run.outcomes.values())
    for link in done.run.links.values():
        assert not {"opening", "opening-request", "scores"} & set(link.transcript.count("sent"))
    plan = done.parties["A"]._plan
    due = sum(2 if shape.wide else 1 for shape in plan.setup() + plan.round() + plan.scoring())
    assert sum(link.transcript.count("sent")["share-product"] for link in done.run.links.values()) == due
    shares = [done.parties[name] for name in "AB"]
    bits = [int(v) >> 111 for party in shares for x in (party.share_a, party.share_b) for v in x.ravel()]
    assert abs(np.mean(bits) - 0.5) < 5 * 0.5 / np.sqrt(len(bits))


@pytest.mark.slow
@pytest.mark.parametrize("outputs", [1, 3])
def test_a_key_holder_party_reads_uniform_numbers_for_the_owners_of_the_shares(outputs: int) -> None:
    """Messages as the plan says: shares between A and B, products to C, and C's readings to the other one. Of
    the top bits of all that C reads half are set.
    """
    seen = Reading(KEYS.holder("rlwe", 2))
    made = recipe(rounds=1, hidden=2)
    done = blind(made, data(rows=20, outputs=outputs), key_holder="C", holder=seen)
    assert all(not outcome.ledger.entries for outcome in done.run.outcomes.values())
    sent = {name: link.transcript.count("sent") for name, link in done.run.links.items()}
    plan = done.parties["A"]._plan
    shapes = plan.setup() + plan.round() + plan.scoring()
    by = {"A": sum(s.by != "b" for s in shapes), "B": sum(s.by != "a" for s in shapes)}
    for name, peer in ("AB", "BA"):
        last = name == "A"  # its share of v, for scores
        assert (sent[name]["share-product"], sent[name]["share"]) == (by[name], by[peer] + last)
    assert sent["C"]["product-share"] == sum(by.values())
    assert (sent["B"]["refresh-request"], sent["C"]["refreshed"]) == (1, 1)
    for name, link in done.run.links.items():
        assert {"opening", "score-opening", "scores"}.isdisjoint(sent[name]), name
        kinds = {entry.kind for entry in link.transcript.of("received")}
        assert ("share-product" in kinds) == (name == "C")
    q = HIDDEN.modulus
    high = [int(v) % q >= q // 2 for block in seen.readings for v in block.ravel()]
    assert len(high) > 150 and abs(np.mean(high) - 0.5) < 5 * 0.5 / np.sqrt(len(high))


@pytest.mark.parametrize("outputs", [1, 5])
def test_a_round_takes_the_same_products_whatever_the_rows(outputs: int) -> None:
    """Exactly: entries that pass a key-holder in a local step, O(d c h); none of them a row."""
    plans = []
    for rows in (100, 2000):
        made = recipe(algorithm=FedBCD(4), hidden=2)
        agreement = made.agreement((made.blind_member("B", 30), made.blind_member("A", 20)), rows, outputs)
        plans.append(made.blind_plan(agreement))
    assert plans[0].round() == plans[1].round() and len(plans[0].trips()) == 2 * 4 + 3
    binary = made.agreement(agreement.members, 100)  # as many messages for two classes as for five

    def entries(steps: int) -> int:
        plan = recipe(algorithm=FedBCD(steps), hidden=2).blind_plan(
            recipe(algorithm=FedBCD(steps), hidden=2).agreement(agreement.members, 100, outputs)
        )
        return sum(shape.entries * (2 if shape.wide else 1) for shape in plan.round())

    d, c, width = 31, outputs, 2 * outputs
    # B: M Z, M v, N G v, and the product of two hidden factors |Phi|^2 x. A: S Phi, Phi's sums, one base.
    assert entries(5) - entries(4) == 3 * d * c + 2 * d * c + 2 * width + c * width + c * width
    assert len(plans[0].round()) == len(recipe(algorithm=FedBCD(4)).blind_plan(binary).round())


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "key_holder"), [("ckks", None), ("ckks", "C"), ("paillier", "C")])
def test_scores_go_to_the_label_party_and_are_those_of_the_model(scheme: str, key_holder: str | None) -> None:
    seen: list[Array] = []

    def metric(scores: Array) -> float:
        seen.append(scores)
        return 0.5

    algorithm, rounds = (FedBCD(3), 2) if scheme == "ckks" else (FedSGD(), 1)
    made = recipe(evaluate_every=rounds, rounds=rounds, scheme=scheme, algorithm=algorithm)
    given = data(rows=40 if scheme == "ckks" else 20, columns=(3, 4) if scheme == "ckks" else (2, 2))
    done = blind(made, given, metric=metric, key_holder=key_holder)
    w_a, w_b = done.maps
    due = done.parties["B"]._rows.shared @ w_b @ (w_a.T @ done.parties["A"]._rows.pull)
    assert len(seen) == 1 and np.abs(seen[0] - due[:, 0]).max() < 2.0**-9  # the blur
    assert done.run.outcomes["B"].history == []


@pytest.mark.slow
@pytest.mark.parametrize(("key_holder", "outputs"), [(None, 3), ("C", 1)])
def test_an_interrupted_run_goes_on_from_its_shares(key_holder: str | None, outputs: int) -> None:
    once, given = recipe(rounds=3, algorithm=FedSGD()), data(outputs=outputs)
    whole = blind(once, given, key_holder=key_holder).maps
    first = blind(recipe(rounds=1, algorithm=FedSGD()), given, key_holder=key_holder)
    states = {name: party.state() for name, party in first.parties.items()}
    resumed = blind(once, given, states=states, key_holder=key_holder).maps
    assert max(np.abs(x - y).max() for x, y in zip(whole, resumed, strict=True)) < 2.0**-20
    broken = {**states["A"], "share_a": states["A"]["share_a"][:-1]}
    with pytest.raises(DataError, match="bytes of shares"):
        first.parties["A"].restore(broken)


@pytest.mark.slow
def test_values_that_leave_their_range_show_in_the_first_score() -> None:
    """A rate that both were told to take, sixty times what their columns allow."""
    wild = recipe(learning_rate=60.0, allow_unstable=True, algorithm=FedBCD(8), rounds=2, evaluate_every=2)
    with pytest.raises(Diverged, match="left their declared range"):
        blind(wild, data(rows=12, columns=(2, 3)), metric=lambda scores: 0.5)


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
    sizes = (d_a + 1, d_b + 1, draw(st.integers(1, 3)), rows)
    weights = tuple(draw(st.sampled_from([0.0, 0.005, 0.05, 1.0])) for _ in range(2))
    steps, sequential = draw(st.sampled_from([1, 2, 5, 10, 100])), draw(st.booleans())
    plan = TransferPlan(
        *sizes, *weights, draw(st.sampled_from([0.0, 0.1, 5.0])), steps, sequential, True, outputs
    )
    return PlainTransfer(plan, a, b, 0)


@given(federations())
@settings(max_examples=60, deadline=None)
def test_the_loss_falls_in_every_round_whatever_the_columns(run: PlainTransfer) -> None:
    before = run.loss()
    for _ in range(15):
        run.round(1.0)
        after = run.loss()
        assert after <= before + 1e-9 * max(1.0, before)
        before = after
        # What the proof takes for granted (docs/protocols.md), of every output.
        for q, reach, w_a, w_b in zip(
            run._a.pull.T,
            run._a.reaches,
            *(np.hsplit(w, run._plan.outputs) for w in (run.w_a, run.w_b)),
            strict=True,
        ):
            square = w_b.T @ run._b.labelled_gram @ w_b
            assert ((w_a.T @ q) ** 2).sum() <= REACH and np.linalg.eigvalsh(square)[-1] * reach <= REACH


def test_what_cannot_be_done_is_refused_by_name() -> None:
    with pytest.raises(SettingError, match="batch_size: 8 given"):
        recipe(batch_size=8)
    with pytest.raises(DataError, match="feature_bound"):
        blind(recipe(feature_bound=0.5), data())
    with pytest.raises(SettingError, match="learning_rate: 60 given; with the columns of B"):
        blind(recipe(learning_rate=60.0), data())
