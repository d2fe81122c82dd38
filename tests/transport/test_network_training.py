"""Training over the network gives the models that training in one process gives, and the same messages."""

from __future__ import annotations

import numpy as np
import pytest

from securefed.protocols.messages import KINDS
from securefed.protocols.schedules import FedBCD
from tests.protocols.federation import FULL_KEYS, Federation, blobs, linear, split
from tests.transport.network import Town, result


def build(parties: int, scheme: str) -> Federation:
    features, labels = blobs(24, 2 * parties, seed=3)
    return linear(
        split(features, parties),
        labels,
        FULL_KEYS,
        scheme=scheme,
        rounds=2,
        batch=8,
        algorithm=FedBCD(local_steps=2),
    )


@pytest.mark.parametrize(
    ("parties", "scheme"),
    [
        (2, "plain"),
        (3, "plain"),
        pytest.param(2, "paillier", marks=pytest.mark.slow),
        pytest.param(3, "paillier", marks=pytest.mark.slow),
    ],
)
def test_the_carrier_changes_no_model(parties: int, scheme: str) -> None:
    here, there = build(parties, scheme), build(parties, scheme)
    local = here.run()
    programs = {name: party.run for name, party in there.parties().items()}
    found = Town(*programs).run(programs, run="run-1", kinds=tuple(KINDS), settings=there.agreement.to_dict())
    for name, run in found.items():
        link = result(run).link
        assert link.transcript.count("sent") == local.links[name].transcript.count("sent")
        assert link.transcript.count("received") == local.links[name].transcript.count("received")
        assert link.path.computation + link.path.communication == link.path.total
    # Exact schemes: bit for bit.
    for name, parameters in here.parameters.items():
        np.testing.assert_array_equal(there.parameters[name], parameters)
