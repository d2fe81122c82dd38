"""Blind training follows the plain trajectory, shows nobody anything, and costs the same whatever Q is.

How far it may be from the plain run. Features are rounded to 2^-27, update matrices to 2^-41, what
multiplies the parameters to 2^-31, residuals to units of 2^-30 by at most three roundings (two shifts off
by one unit, and the labels), parameters likewise to units of 2^-40. Under RLWE noise comes in: of margins
below 2^40 at 66 fraction bits, of moved parameters below 2^42 at 70 (six deviations of errors times the
largest multipliers). So a turn adds at most

    |P X'/S| (d 2^-27 |theta| + 3 * 2^-30 + 2^-26) + S 2^-41 |g| + d 2^-31 |theta| + 2^-28

to the error of the parameters that it moves, and carries older errors on by the linear map of the turn. The
test multiplies those maps up beside the plain run, and adds every turn's share through all that follow.
Second-order terms (an error times a rounding) are covered by taking |theta| and |g| larger by 2^-10, which
the bound in the end has to stay below.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from securefed.crypto import KeyHolder, key_kind
from securefed.crypto.errors import CapacityError, Diverged
from securefed.crypto.hidden import Range
from securefed.errors import DataError, SettingError
from securefed.models import Linear
from securefed.protocols.blind import BlindKeyHolder, BlindParty
from securefed.protocols.blur import ScoreGuard
from securefed.protocols.losses import get_loss
from securefed.protocols.recipe import KEY_HOLDER, LinearRecipe, Surroundings
from securefed.protocols.schedules import FedBCD, FedSGD, InverseSqrt
from securefed.protocols.steps import LocalProblem
from securefed.protocols.training import Evaluation
from securefed.transport import LocalRun
from tests.protocols.federation import KEYS, MUCH, blobs, run_parties, split

Array = NDArray[np.float64]
SCHEMES = ("ckks", "paillier")


@dataclass
class Blind:
    """A blind run, after it."""

    parties: dict[str, BlindParty]
    run: LocalRun
    holders: dict[str, KeyHolder]

    @property
    def flat(self) -> Array:
        """What only this test can see: the parameters, read with the secret keys."""
        return np.concatenate([self.opened(name) for name in self.parties])

    def opened(self, name: str) -> Array:
        theta: Any = self.parties[name].theta
        sums = theta.packed().within(Range(40, 60), 40)
        block, masks = sums.hide()
        block.public = self.holders[name].public
        return np.asarray((self.holders[name].read(block) - masks).astype(np.float64) / 2.0**40)


def recipe(**settings: object) -> LinearRecipe:
    common: dict[str, object] = {
        "scheme": "ckks",
        "learning_rate": InverseSqrt(0.4),
        "batch_size": 12,
        "rounds": 4,
        "fit_intercept": False,
        "algorithm": FedBCD(),
        "l2": 0.0,
        "seed": 3,
        "allow_unstable": True,
        "feature_bound": 8.0,
        "parameter_bound": 16.0,
        "check_every": 0,  # drawn at random: tests/audit/test_attack_refreshed.py has them
    }
    return LinearRecipe(**{**common, **settings})  # type: ignore[arg-type]


def blind(
    made: LinearRecipe,
    blocks: list[Array],
    labels: Array,
    *,
    bits: int = 2048,
    evaluate: bool = False,
    states: dict[str, Any] | None = None,
    own: dict[str, KeyHolder] | None = None,
) -> Blind:
    names = [f"p{k}" for k in range(len(blocks))]
    models = [Linear(block.shape[1]) for block in blocks]
    members = tuple(made.member(name, model) for name, model in zip(names, models, strict=True))
    agreement = made.agreement(members, len(labels), 1 if labels.ndim == 1 else labels.shape[1])
    kind = key_kind(made.scheme, "nothing")
    if own is None:
        made_now = enumerate(names if agreement.mutual else ())
        own = {name: KEYS.holder(kind, k, bits=bits) for k, name in made_now}
    parties: dict[str, BlindParty] = {}
    for k, name in enumerate(names):
        last = name == names[-1]
        metric = (lambda scores: float(roc_auc_score(labels, scores))) if last else None
        seen = Evaluation(blocks[k], metric) if evaluate else None
        around = Surroundings(own.get(name), None, seen, None, ScoreGuard(party=name, column_bits=MUCH))
        party = made.party(agreement, name, models[k], blocks[k], labels if last else None, around)
        assert isinstance(party, BlindParty)
        if states is not None:
            party.restore(states[name])
        parties[name] = party
    everybody: dict[str, BlindParty | BlindKeyHolder] = dict(parties)
    if agreement.mutual:
        holders = {names[0]: own[names[1]], names[1]: own[names[0]]}
    else:
        third = KEYS.holder(kind, 0, bits=bits)
        key_holder = made.key_holder(agreement, Surroundings(third))
        assert isinstance(key_holder, BlindKeyHolder)
        everybody[KEY_HOLDER] = key_holder
        holders = dict.fromkeys(names, third)
    return Blind(parties, run_parties(everybody), holders)  # type: ignore[arg-type]


def plain_and_bound(made: LinearRecipe, blocks: list[Array], labels: Array) -> tuple[Array, float]:
    """The trajectory by plain local steps (not by the matrix of blind training), and the error bound."""
    loss, algorithm = get_loss(made.loss), made.algorithm
    b = loss.margin_weight
    ends = np.cumsum([0, *(block.shape[1] for block in blocks)])
    places = [slice(*pair) for pair in pairwise(ends)]
    y_all = labels.reshape(len(labels), -1)
    theta = np.zeros((ends[-1], y_all.shape[1]))
    shares: list[tuple[Array, Array]] = []  # (map from that turn to now, what that turn added at most)
    batches = made.batches(len(labels))
    for t in range(made.rounds):
        batch, eta = batches.batch(t), made.learning_rate(t)  # type: ignore[operator]
        local, y = [block[batch] for block in blocks], y_all[batch]
        everybody = range(len(blocks))
        for active in [everybody] if algorithm.order == "parallel" else [[k] for k in everybody]:
            margins = [x @ theta[place] for x, place in zip(local, places, strict=True)]
            largest = float(np.abs(theta).max()) + 2.0**-10
            residual = loss.taylor_residual(np.sum(margins, axis=0), y)
            off = len(theta) * 2.0**-27 * largest + 3 * 2.0**-30 + 2.0**-26
            turn, added, moved = np.eye(len(theta)), np.zeros(len(theta)), theta.copy()
            for k in active:
                x, place = local[k], places[k]
                others = np.sum(margins, axis=0) - margins[k]
                start = own = theta[place]
                for _ in range(algorithm.local_steps):
                    gradient = x.T @ loss.taylor_residual(others + x @ own, y) / len(batch)
                    own = own - eta * (gradient + made.l2 * own + algorithm.proximal * (own - start))
                moved[place] = own
                problem = LocalProblem.of(x, b, l2=made.l2, proximal=algorithm.proximal)
                matrix = problem.update_matrix(eta, algorithm.local_steps)
                weights = matrix @ x.T / len(batch)
                turn[place] = -b * weights @ np.hstack(local)
                turn[place, place] += np.eye(len(matrix)) - made.l2 * matrix
                rounding = len(batch) * (np.abs(residual).max() + 2.0**-10) * 2.0**-41
                rounding += len(matrix) * largest * 2.0**-31 + 2.0**-28
                added[place] = np.abs(weights).sum(axis=1) * off + rounding
            shares = [(turn @ since, share) for since, share in shares] + [(np.eye(len(theta)), added)]
            theta = moved
    return theta, float(np.max(np.sum([np.abs(since) @ share for since, share in shares], axis=0)))


def data(parties: int, columns: int = 2, rows: int = 30) -> tuple[list[Array], Array]:
    features, labels = blobs(rows, parties * columns, seed=parties)
    return split(np.clip(features, -4, 4), parties), labels


def check(made: LinearRecipe, parties: int, bits: int = 2048, outputs: int = 1) -> None:
    blocks, labels = data(parties)
    if outputs > 1:
        labels = np.where(np.random.default_rng(5).normal(size=(len(labels), outputs)) > 0, 1.0, -1.0)
    expected, bound = plain_and_bound(made, blocks, labels)
    found = blind(made, blocks, labels, bits=bits).flat
    assert bound < 2.0**-10, "a bound this loose would hold for anything"
    assert np.abs(found - expected).max() <= bound
    assert np.abs(expected).max() > 1e-2


QUICK = [
    (2, FedBCD(5), 1e-2),
    (2, FedBCD(5, order="sequential"), 1e-2),
    (3, FedBCD(5, proximal=0.1), 1e-2),
    (3, FedBCD(5, order="sequential"), 1e-2),
    (3, FedSGD(), 0.0),
]


BOTH = [("ckks", *case) for case in QUICK] + [("paillier", *case) for case in (QUICK[0], QUICK[3])]


@pytest.mark.parametrize(("scheme", "parties", "algorithm", "l2"), BOTH)
def test_the_blind_trajectory_is_the_plain_one(
    scheme: str, parties: int, algorithm: FedBCD | FedSGD, l2: float
) -> None:
    check(recipe(algorithm=algorithm, l2=l2, scheme=scheme), parties)


@pytest.mark.parametrize(("scheme", "parties"), [("ckks", 3), ("paillier", 2)])
def test_several_outputs_at_once(scheme: str, parties: int) -> None:
    check(recipe(algorithm=FedBCD(5), l2=1e-2, scheme=scheme, rounds=2), parties, outputs=3)


@pytest.mark.slow
@pytest.mark.parametrize("parties", [2, 3, 5])
@pytest.mark.parametrize("order", ["parallel", "sequential"])
@pytest.mark.parametrize("steps", [1, 5, 50])
@pytest.mark.parametrize(("l2", "proximal"), [(0.0, 0.0), (1e-2, 0.1)])
def test_the_whole_matrix(parties: int, order: str, steps: int, l2: float, proximal: float) -> None:
    algorithm = FedBCD(steps, order=order, proximal=proximal)  # type: ignore[arg-type]
    check(recipe(algorithm=algorithm, l2=l2), parties)


@pytest.mark.slow
@pytest.mark.parametrize("parties", [2, 3, 5])
@pytest.mark.parametrize("order", ["parallel", "sequential"])
@pytest.mark.parametrize("outputs", [3, 10])
def test_the_whole_matrix_of_outputs(parties: int, order: str, outputs: int) -> None:
    algorithm = FedBCD(5, order=order, proximal=0.1)  # type: ignore[arg-type]
    check(recipe(algorithm=algorithm, l2=1e-2), parties, outputs=outputs)


@pytest.mark.slow
@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize("order", ["parallel", "sequential"])
def test_with_paillier_keys_of_3072_bits(parties: int, order: str) -> None:
    algorithm = FedBCD(50, order=order)  # type: ignore[arg-type]
    check(recipe(scheme="paillier", algorithm=algorithm, l2=1e-2, rounds=3), parties, bits=3072)


@pytest.mark.parametrize("loss", ["linear", "squared_hinge"])
def test_other_losses(loss: str) -> None:
    check(recipe(algorithm=FedBCD(3), loss=loss, learning_rate=InverseSqrt(0.05), l2=1e-3), 2)


@pytest.mark.parametrize("parties", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_round_costs_the_same_whatever_q_is(parties: int) -> None:
    blocks, labels = data(parties)
    sizes = []
    for steps in (1, 50):
        made = recipe(algorithm=FedBCD(steps), learning_rate=InverseSqrt(0.05), rounds=2, l2=1e-2)
        done = blind(made, blocks, labels)
        sizes.append(
            {
                name: (link.transcript.count("sent", "training"), link.transcript.bytes("sent", "training"))
                for name, link in done.run.links.items()
            }
        )
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("parties", [2, 3])
def test_nothing_is_opened_and_the_ledger_stays_empty(parties: int) -> None:
    blocks, labels = data(parties)
    done = blind(recipe(algorithm=FedBCD(5), rounds=2), blocks, labels)
    assert all(not outcome.ledger.entries for outcome in done.run.outcomes.values())
    assert all(party.parameters is None for party in done.parties.values())
    for link in done.run.links.values():
        assert not {"opening", "opening-request"} & set(link.transcript.count("sent"))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("parties", [2, 3])
def test_scores_go_to_the_label_party_and_are_those_of_the_model(parties: int, scheme: str) -> None:
    blocks, labels = data(parties)
    made = recipe(algorithm=FedBCD(5), rounds=2, evaluate_every=2, l2=1e-3, scheme=scheme)
    names = [f"p{k}" for k in range(parties)]
    done = blind(made, blocks, labels, evaluate=True)
    margins = sum(x @ done.opened(name)[:, 0] for x, name in zip(blocks, names, strict=True))
    ((after, found),) = done.run.outcomes[names[-1]].history
    # Scores are blurred by 2^-11 a party: pairs of rows that are closer than that may change places.
    apart = np.abs(margins[labels > 0][:, None] - margins[labels < 0][None]) > parties * 2.0**-10
    assert after == 1 and abs(found - roc_auc_score(labels, margins)) <= 1 - apart.mean()
    assert all(not done.run.outcomes[name].history for name in names[:-1])


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("parties", [2, 3])
def test_parameters_are_released_to_their_own_party_if_all_agree(parties: int, scheme: str) -> None:
    blocks, labels = data(parties)
    done = blind(recipe(algorithm=FedBCD(5), rounds=2, release=True, scheme=scheme), blocks, labels)
    for name, party in done.parties.items():
        # The flooding of an opening under RLWE is below 2^-32, the noise of reading it here below 2^-26.
        assert np.abs(party.parameters - done.opened(name)).max() < 2.0**-25


def test_a_target_stops_everybody() -> None:
    blocks, labels = data(3)
    done = blind(recipe(algorithm=FedBCD(5), target=0.55, rounds=6), blocks, labels, evaluate=True)
    assert {outcome.reason for outcome in done.run.outcomes.values()} == {"target"}
    assert len({outcome.rounds for outcome in done.run.outcomes.values()}) == 1


@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.slow
def test_divergence_is_found_and_said_at_the_end(parties: int) -> None:
    """Nobody hears of it before: the last round is answered like the first."""
    blocks, labels = data(parties)
    made = recipe(algorithm=FedSGD(), learning_rate=100.0, rounds=16)
    with pytest.raises(Diverged, match="learning_rate"):
        blind(made, blocks, labels)
    with pytest.raises(SettingError, match="learning_rate"):
        blind(recipe(algorithm=FedSGD(), learning_rate=1e6, rounds=2), blocks, labels)


def test_what_blind_training_cannot_do_is_refused_by_name() -> None:
    for setting, words in (
        ({"local_model": "network"}, "linear"),
        ({"optimiser": "adam"}, "optimiser 'sgd', 'adam' given"),
        ({"exchange": "pairwise"}, "'pairwise' given"),
    ):
        with pytest.raises(SettingError, match=words):
            recipe(**setting)
    blocks, labels = data(2)
    with pytest.raises(DataError, match="feature_bound"):
        blind(recipe(feature_bound=0.5), blocks, labels)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.slow
def test_a_run_that_was_interrupted_goes_on_from_its_hidden_parameters(scheme: str) -> None:
    blocks, labels = data(2)
    settings = {"algorithm": FedBCD(3), "l2": 1e-2, "scheme": scheme}
    whole = blind(recipe(**settings, rounds=4), blocks, labels).flat
    first = blind(recipe(**settings, rounds=2), blocks, labels)
    states = {name: party.state() for name, party in first.parties.items()}
    resumed = blind(recipe(**settings, rounds=4), blocks, labels, states=states)
    # Refreshes are off by one unit here and there, and noise is drawn anew, as in any two runs.
    assert np.abs(resumed.flat - whole).max() < 2.0**-20


def test_a_run_that_cannot_be_hidden_does_not_start() -> None:
    blocks, labels = data(2)
    with pytest.raises(CapacityError, match="lower feature_bound"):
        blind(recipe(feature_bound=2.0**40, parameter_bound=2.0**40), blocks, labels)


def test_a_margin_weight_that_is_no_power_of_two_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(get_loss("linear")), "margin_weight", 0.3)
    check(recipe(loss="linear", learning_rate=InverseSqrt(0.2), l2=1e-3), 2)
