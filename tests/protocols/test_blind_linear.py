"""Blind linear training on shares, beside the same rounds in the clear."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from research.attacks.clear import CLEAR
from securefed import Blind, Monitoring
from securefed.assembly import LinearAssembly
from securefed.assembly.base import HELPER
from securefed.crypto import shares
from securefed.crypto.blind.interface import CrossScheme
from securefed.errors import SettingError
from securefed.protocols.agreement import Agreement, Member
from securefed.protocols.blind.linear import BlindParty
from securefed.protocols.blind.statistics import VALUE_BITS
from securefed.protocols.loop import EvaluationRows, PartyContext
from securefed.protocols.messages import KINDS
from securefed.protocols.schedules import Automatic, Batches, FedBCD, FedSGD, held_out
from securefed.settings import LinearSettings
from securefed.transport.link import run_local
from securefed.transport.message import get_network

Array = NDArray[np.float64]


def table(parties: int, rows: int = 60, outputs: int = 1, seed: int = 0) -> tuple[list[Array], Array]:
    rng = np.random.default_rng(seed)
    columns = [rng.normal(size=(rows, 3 + k)) for k in range(parties)]
    columns[-1][:, -1] = 1.0
    scores = np.hstack(columns) @ rng.normal(size=(sum(c.shape[1] for c in columns), outputs))
    return columns, np.where(scores + rng.normal(size=scores.shape) > 0, 1.0, -1.0)


class Run:
    """A run of all parties in this process, with everything that it leaves."""

    def __init__(
        self,
        columns: list[Array],
        targets: Array,
        assembly: LinearAssembly,
        scheme: CrossScheme = CLEAR,
        held: int = 0,
        rows: list[Array] | None = None,
        states: dict[str, Any] | None = None,
        tap: Any = None,
        later: Array | None = None,
    ) -> None:
        self.names = [f"p{k}" for k in range(len(columns) - 1)] + ["labels"]
        members = tuple(Member(n, c.shape[1], True) for n, c in zip(self.names, columns, strict=True))
        self.agreement: Agreement = assembly.agreement(members, len(targets), targets.shape[1], holdout=held)
        self.scores: list[Array] = []
        self.first: list[Array] = []
        """Scores that the targets of a second stage, `later`, were made of."""
        self.later = targets if later is None else later
        self.checkpoints: dict[str, list[Any]] = {}
        self.programs: dict[str, Any] = {}
        for name, own in zip(self.names, columns, strict=True):
            last = name == "labels"
            seen = None if rows is None else rows[self.names.index(name)]
            evaluation = None if seen is None else EvaluationRows(seen)
            if evaluation is not None and last:
                evaluation = replace(evaluation, metric=self._metric, aim=self._aim)
            steps = assembly.steps(self.agreement, own)
            context = PartyContext(evaluation=evaluation, on_round=self._keep(name)).guarding(name, own)
            context.guard.mode = "off"  # type: ignore[union-attr]
            self.programs[name] = BlindParty(
                self.agreement,
                assembly.settings.loss_function,
                own,
                targets if last else None,
                context,
                scheme,
                steps=steps,
            )
        if len(columns) > 2:
            self.programs[HELPER] = BlindParty(
                self.agreement,
                assembly.settings.loss_function,
                None,
                None,
                PartyContext(on_round=self._keep(HELPER)),
                scheme,
            )
        for name, state in (states or {}).items():
            self.programs[name].restore(state)
        self.steps = [assembly.steps(self.agreement, own) for own in columns]
        self.run = run_local(
            {name: program.run for name, program in self.programs.items()},
            run="r",
            kinds=KINDS,
            network=get_network("lan"),
            tap=tap,
        )

    def _keep(self, name: str) -> Any:
        kept = self.checkpoints.setdefault(name, [])
        return lambda state: kept.append(self.programs[name].checkpoint())

    def _aim(self, scores: Array) -> Array:
        self.first.append(scores)
        return self.later

    def _metric(self, scores: Array) -> float:
        self.scores.append(scores)
        return float(np.mean(scores))

    @property
    def phi(self) -> Array:
        """The opened parameters, in the basis of the run."""
        second = HELPER if HELPER in self.programs else self.names[0]
        total = shares.add(self.programs["labels"]._phi, self.programs[second]._phi)
        return shares.to_floats(total, VALUE_BITS)[:, -self.agreement.outputs :]


def plain(
    run: Run,
    columns: list[Array],
    targets: Array,
    assembly: LinearAssembly,
    rounds: int | None = None,
    fold: int = -1,
) -> Array:
    """The same rounds in the clear, or the first of them, for the model without that fold."""
    agreement, loss = run.agreement, assembly.settings.loss_function
    roots = [steps.root() for steps in run.steps]
    z = np.hstack([x @ root for x, root in zip(columns, roots, strict=True)])
    sizes = np.cumsum([0, *(x.shape[1] for x in columns)])
    penalty = np.zeros((z.shape[1], z.shape[1]))
    for k, root in enumerate(roots):
        at = slice(sizes[k], sizes[k + 1])
        penalty[at, at] = root @ root
    n = agreement.batches.rows
    phi = previous = np.zeros((z.shape[1], targets.shape[1]))
    rate = agreement.learning_rate
    for t in range(agreement.stopping.rounds if rounds is None else rounds):
        rows, folds = np.arange(n), agreement.batches.left_out(t)
        if folds:
            rows = np.setdiff1d(rows, agreement.batches.held(folds[fold]))
        if agreement.batches.begins_anew(t):
            phi = previous = np.zeros_like(phi)
        share = len(rows) / n
        matrix = loss.margin_weight / n * z[rows].T @ z[rows] + agreement.l2 * share * penalty
        aims = run.later if agreement.batches.stage(t) else targets
        vector = -loss.label_weight / n * z[rows].T @ aims[rows]
        momentum = rate.momentum(t) if isinstance(rate, Automatic) else 0.0
        factor = rate(t) if isinstance(rate, Automatic) else rate(t) / rate(0)
        new = phi.copy()
        for active in agreement.turns:
            at = slice(0, sizes[-1])
            if len(active) < len(run.names):
                k = run.names.index(active[0])
                at = slice(sizes[k], sizes[k + 1])
            new[at] = new[at] + momentum * (phi - previous)[at] - factor * (matrix @ new - vector)[at]
        previous, phi = phi, new
    return phi


SCHEDULES = {
    "sgd": {"algorithm": FedSGD()},
    "bcd-p": {"algorithm": FedBCD(20)},
    "bcd-s": {"algorithm": FedBCD(5, order="sequential")},
    "proximal": {"algorithm": FedBCD(5, proximal=0.1)},
    "given": {"algorithm": FedBCD(3), "learning_rate": 0.05},
    "linear": {"loss": "linear", "algorithm": FedBCD(20)},
}


@pytest.mark.parametrize("parties,outputs", [(2, 1), (2, 3), (3, 1), (5, 2)])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_equals_the_same_rounds_in_the_clear(schedule: str, parties: int, outputs: int) -> None:
    columns, targets = table(parties, outputs=outputs)
    assembly = LinearAssembly(LinearSettings(rounds=10, **SCHEDULES[schedule]))
    run = Run(columns, targets, assembly)
    np.testing.assert_allclose(run.phi, plain(run, columns, targets, assembly), atol=1e-7)


@pytest.mark.parametrize("parties", [2, 3])
def test_the_last_rounds_learn_from_held_out_rows(parties: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("securefed.assembly.linear.FEW_HELD_OUT", 0)
    columns, targets = table(parties)
    assembly = LinearAssembly(LinearSettings(rounds=12))
    _, held = held_out(60, 0.25, 0)
    run = Run(columns, targets, assembly, held=15, rows=[c[held] for c in columns])
    assert run.agreement.batches.holdout_rows == 15
    np.testing.assert_allclose(run.phi, plain(run, columns, targets, assembly), atol=1e-7)
    assert len(run.scores) == 1


@pytest.mark.parametrize("parties,outputs", [(2, 1), (3, 1), (2, 3)])
def test_few_rows_are_held_out_in_turns(parties: int, outputs: int) -> None:
    """A person's score is that of a model of the other folds; the last model is of all rows."""
    columns, targets = table(parties, outputs=outputs)
    assembly = LinearAssembly(LinearSettings(rounds=60, loss="linear"))
    batches = Batches(60, None, 0, False, 60, 40, 5, abreast=True)
    _, held = batches.division
    run = Run(columns, targets, assembly, held=15, rows=[c[held] for c in columns])
    assert run.agreement.batches == batches and run.agreement.stopping.rounds == 60
    np.testing.assert_allclose(run.phi, plain(run, columns, targets, assembly), atol=1e-7)
    (scores,) = run.scores
    z = np.hstack([x @ steps.root() for x, steps in zip(columns, run.steps, strict=True)])
    found = np.split(scores, np.cumsum(batches.fold_sizes)[:-1])
    for fold, own in enumerate(found):
        known, rows = targets.copy(), batches.held(fold)
        known[rows] = 9.0  # a model does not know the labels of the rows that it scores
        expected = z[rows] @ plain(run, columns, known, assembly, 40, fold)
        np.testing.assert_allclose(
            own.reshape(expected.shape), expected, atol=(parties - 1) * 2.0**-11 + 1e-6
        )


@pytest.mark.parametrize("parties,outputs", [(2, 1), (3, 2)])
def test_a_second_stage_has_targets_that_follow_from_the_scores_of_the_first(
    parties: int, outputs: int
) -> None:
    """All rounds are those in the clear. Scores of both stages together show no more than one score does."""
    columns, targets = table(parties, outputs=outputs)
    later = np.random.default_rng(9).normal(size=targets.shape)
    assembly = LinearAssembly(LinearSettings(rounds=6))
    batches = Batches(60, None, 0, False, 60, 8, 5, 2, abreast=True)
    _, held = batches.division
    run = Run(columns, targets, assembly, held=15, rows=[c[held] for c in columns], later=later)
    assert run.agreement.batches == batches and run.agreement.stopping.rounds == 10
    np.testing.assert_allclose(run.phi, plain(run, columns, targets, assembly), atol=1e-7)
    z = np.hstack([x @ steps.root() for x, steps in zip(columns, run.steps, strict=True)])
    blur = (parties - 1) * 2.0**-3
    for stage, scores in enumerate((run.first[-1], run.scores[-1])):
        found = np.split(scores, np.cumsum(batches.fold_sizes)[:-1])
        for fold, own in enumerate(found):
            rows = batches.held(fold)
            expected = z[rows] @ plain(run, columns, targets, assembly, 4 * (stage + 1), fold)
            error = np.abs(own.reshape(expected.shape) - expected).max()
            assert 2.0**-8 < error <= blur + 1e-6
    assert run.agreement.training_precision == 2 and run.agreement.score_precision == 10


@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize("done", [3, 4, 5, 8, 9])
def test_a_run_of_two_stages_goes_on_from_any_checkpoint(parties: int, done: int) -> None:
    """Before the last scores of the first stage, after them, and in the second stage. The targets of the
    second stage follow from scores that the label party kept.
    """
    columns, targets = table(parties)
    later = np.random.default_rng(9).normal(size=targets.shape)
    assembly = LinearAssembly(LinearSettings(rounds=6))
    _, held = Batches(60, None, 0, False, 60, 8, 5, 2, abreast=True).division
    rows = [c[held] for c in columns]
    whole = Run(columns, targets, assembly, held=15, rows=rows, later=later)
    states = {name: kept[done - 1] for name, kept in whole.checkpoints.items()}
    resumed = Run(columns, targets, assembly, held=15, rows=rows, later=later, states=states)
    np.testing.assert_allclose(resumed.phi, whole.phi, atol=1e-7)
    if resumed.first:
        np.testing.assert_allclose(resumed.first[-1], whole.first[-1], atol=(parties - 1) * 2.0**-2)


@pytest.mark.parametrize("precision,stages", [(5, 1), (6, 2), (10, 2)])
def test_a_second_stage_takes_scores_that_can_be_halved(precision: int, stages: int) -> None:
    columns, _ = table(2)
    assembly = LinearAssembly(LinearSettings(rounds=6, protection=Blind(score_precision=precision)))
    members = tuple(Member(f"p{k}", c.shape[1], True) for k, c in enumerate(columns))
    made = assembly.agreement(members, 60, 1, holdout=15)
    assert made.batches.stages == stages
    assert stages * (made.training_precision + 6) <= precision + 6


@pytest.mark.parametrize("parties,outputs", [(2, 1), (2, 3), (4, 2)])
def test_scores_are_right_up_to_the_blur(parties: int, outputs: int) -> None:
    columns, targets = table(parties, outputs=outputs)
    assembly = LinearAssembly(LinearSettings(rounds=6, monitoring=Monitoring(evaluate_every=6)))
    run = Run(columns, targets, assembly, rows=columns)
    z = np.hstack([x @ steps.root() for x, steps in zip(columns, run.steps, strict=True)])
    exact = z @ run.phi
    (found,) = run.scores
    error = found.reshape(exact.shape) - exact
    assert np.abs(error).max() <= (parties - 1) * 2.0**-11 + 1e-8
    assert np.abs(error).max() > 2.0**-14


@pytest.mark.parametrize("parties", [2, 3])
def test_released_parameters_are_right_to_four_digits(parties: int) -> None:
    columns, targets = table(parties)
    assembly = LinearAssembly(LinearSettings(rounds=6, protection=Blind(release=True)))
    run = Run(columns, targets, assembly)
    at = 0
    for name, own, steps in zip(run.names, columns, run.steps, strict=True):
        size = own.shape[1]
        theta = steps.root() @ run.phi[at : at + size]
        np.testing.assert_allclose(run.programs[name].parameters, theta, atol=1e-3)
        at += size


def test_a_release_beyond_the_limit_needs_trust() -> None:
    rng = np.random.default_rng(0)
    columns = [rng.normal(size=(60, 50)), rng.normal(size=(60, 3))]
    targets = np.where(rng.normal(size=(60, 1)) > 0, 1.0, -1.0)
    with pytest.raises(SettingError, match="1200 bits"):
        Run(columns, targets, LinearAssembly(LinearSettings(rounds=2, protection=Blind(release=True))))
    run = Run(columns, targets, LinearAssembly(LinearSettings(rounds=2, protection=Blind(release="trusted"))))
    assert run.programs["p0"].parameters.shape == (50, 1)


@pytest.mark.parametrize("parties", [2, 3])
def test_a_run_goes_on_from_a_checkpoint(parties: int) -> None:
    columns, targets = table(parties)
    assembly = LinearAssembly(LinearSettings(rounds=8))
    states: dict[str, Any] = {}
    whole = Run(columns, targets, assembly)
    short = Run(columns, targets, LinearAssembly(LinearSettings(rounds=4)))
    states = {name: program.state() for name, program in short.programs.items()}
    resumed = Run(columns, targets, assembly, states=states)
    np.testing.assert_allclose(resumed.phi, whole.phi, atol=1e-7)


def test_a_round_is_two_small_messages() -> None:
    columns, targets = table(2)
    run = Run(columns, targets, LinearAssembly(LinearSettings(rounds=8)))
    for link in run.run.links.values():
        sent = [e for e in link.transcript.entries if e.event == "sent" and e.phase == "training"]
        assert [e.kind for e in sent] == ["difference"] * 8
        assert {e.bytes for e in sent} == {8 * -(-7 * 5 // 3)}
