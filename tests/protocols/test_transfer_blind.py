"""Blind transfer learning: linear training of B's columns, on targets that A makes of all that it knows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bench.emulation import plain_rounds
from research.attacks.clear import CLEAR
from securefed.assembly import TransferAssembly
from securefed.assembly.base import TrainingRows
from securefed.assembly.transfer import CONSTANT
from securefed.crypto import shares
from securefed.crypto.blind.interface import CrossScheme
from securefed.crypto.blind.rlwe import RLWE
from securefed.errors import SettingError
from securefed.labels.base_model import transfer_targets
from securefed.models import LinearModel
from securefed.protocols.agreement import Agreement, Member
from securefed.protocols.blind.linear import BlindParty
from securefed.protocols.blind.statistics import VALUE_BITS
from securefed.protocols.loop import PartyContext
from securefed.protocols.messages import KINDS
from securefed.protocols.schedules import Algorithm, FedBCD, FedSGD
from securefed.protocols.steps import OwnSteps
from securefed.settings import TransferSettings
from securefed.transport.link import run_local
from securefed.transport.message import get_network

Array = NDArray[np.float64]
CLOSE = 1e-6
ROWS, MORE = 40, 20


def table(outputs: int = 1) -> tuple[Array, Array, Array]:
    """A's columns of 60 people, B's of the first 40, and labels, two of which are missing."""
    rng = np.random.default_rng(0)
    columns = rng.normal(size=(ROWS + MORE, 7))
    labels = columns @ rng.normal(size=(7, outputs)) + rng.normal(size=(len(columns), outputs))
    signs = np.where(labels > 0, 1.0, -1.0)
    signs[[3, ROWS + 3]] = np.nan
    return columns[:, :3], columns[:ROWS, 3:], signs


def trained(
    scheme: CrossScheme, algorithm: Algorithm, outputs: int
) -> tuple[dict[str, BlindParty], Agreement, list[Array], Array, Any]:
    """Both parties after a run, what they put in, and the settings."""
    a, b, signs = table(outputs)
    assembly = TransferAssembly(TransferSettings(algorithm=algorithm, rounds=6), scheme)
    agreement = assembly.agreement((Member("B", 4, True), Member("A", 1, True)), ROWS, outputs)
    rows, programs = np.arange(ROWS), dict[str, BlindParty]()
    for name, columns, known in (("B", b, None), ("A", a, signs)):
        data = TrainingRows(columns, known, rows, ~np.isnan(signs[rows, 0]))
        party = assembly.program(agreement, name, LinearModel(1), data, PartyContext())
        assert isinstance(party, BlindParty)
        programs[name] = party
    run_local(
        {name: party.run for name, party in programs.items()},
        run="r",
        kinds=KINDS,
        network=get_network("lan"),
    )
    share = 8 * dict(agreement.details)["gamma"] / (1 + 8 * dict(agreement.details)["gamma"])
    targets = transfer_targets(a, signs, rows, share)
    return programs, agreement, [b, np.full((ROWS, 1), CONSTANT)], targets, assembly.settings


@pytest.mark.parametrize(
    ("algorithm", "outputs", "scheme"),
    [
        (FedSGD(), 1, CLEAR),
        (FedBCD(5), 3, RLWE),
        (FedBCD(9, proximal=0.1), 1, CLEAR),
        (FedBCD(5, order="sequential"), 3, CLEAR),
    ],
)
def test_the_parameters_are_those_of_plain_rounds(
    algorithm: Algorithm, outputs: int, scheme: CrossScheme
) -> None:
    programs, agreement, columns, targets, settings = trained(scheme, algorithm, outputs)
    loss = settings.loss_function
    roots = [OwnSteps(agreement, loss, block, l2=agreement.l2).root() for block in columns]
    *_, theta = plain_rounds(agreement, columns, targets, loss, roots)
    phi = shares.to_floats(shares.add(programs["A"]._phi, programs["B"]._phi), VALUE_BITS)
    opened = np.vstack([root @ part for root, part in zip(roots, np.vsplit(phi, [4]), strict=True)])
    assert np.abs(opened - theta).max() < CLOSE < np.abs(theta).max() / 1000


def test_targets_are_labels_and_what_the_own_columns_say_without_them() -> None:
    a, _, signs = table()
    rows = np.arange(ROWS)
    labels, expected, mixed = (transfer_targets(a, signs, rows, share)[:, 0] for share in (0.0, 1.0, 0.25))
    known = ~np.isnan(signs[rows, 0])
    assert np.array_equal(labels[known], signs[rows, 0][known])
    assert np.allclose(mixed[known], 0.75 * labels[known] + 0.25 * expected[known])
    # A person without a label has the own fit alone.
    assert labels[3] == expected[3] == mixed[3] and abs(expected[3]) < 1.0
    # The fit that a person's expectation comes from has not seen that person's label.
    changed = signs.copy()
    changed[5] *= -1.0
    assert transfer_targets(a, changed, rows, 1.0)[5, 0] == expected[5]
    assert np.abs(transfer_targets(a, changed, rows, 1.0)[6:, 0] - expected[6:]).max() > 1e-6
    # Columns that tell the label say so.
    clear = transfer_targets(a, np.where(a[:, :1] > 0, 1.0, -1.0), rows, 1.0)[:, 0]
    assert np.corrcoef(clear, a[rows, 0])[0, 1] > 0.9 and np.abs(clear).max() < 1.0


def test_gamma_weighs_the_own_fit() -> None:
    """Without it B learns the labels alone; left out it is less for several classes."""
    alone = TransferSettings(gamma=0.0)
    assert alone.blind_weights(100, 1)[0] == 0.0
    left_out = TransferSettings()
    assert left_out.blind_weights(100, 1) == (0.125, pytest.approx(0.0125))
    assert left_out.blind_weights(100, 3) == (0.03, pytest.approx(0.0025))
    assert TransferSettings(gamma=1.0, l2=0.5).blind_weights(100, 3) == (1.0, 0.5)


def test_beyond_300_shared_people_the_own_fit_weighs_less() -> None:
    settings = TransferSettings()
    for outputs, usual in ((1, 0.125), (3, 0.03)):
        assert settings.blind_weights(300, outputs)[0] == usual
        assert settings.blind_weights(3000, outputs)[0] == pytest.approx(usual / 10)
    assert TransferSettings(gamma=0.5).blind_weights(3000, 1)[0] == 0.5


def test_many_columns_of_b_weigh_more() -> None:
    few, many = (TransferSettings().blind_weights(1000, 1, columns)[1] for columns in (60, 650))
    assert few == pytest.approx(5 * 0.25 / 1000) and many == pytest.approx(60 * few)
    assert TransferSettings(l2=0.1).blind_weights(1000, 1, 620)[1] == 0.1


def test_what_cannot_be_done_is_refused_by_name() -> None:
    with pytest.raises(SettingError, match="learning_rate: 60 given, a blind run takes 'auto'"):
        TransferSettings(learning_rate=60)
    with pytest.raises(SettingError, match="hidden: 2 given, a blind run takes 1"):
        TransferSettings(hidden=2)
