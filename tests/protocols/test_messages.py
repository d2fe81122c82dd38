"""How many messages, openings, ciphertexts and bytes a round takes, and that none of it depends on Q where it
should not.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from securefed.crypto import load_public_key
from securefed.crypto.wire import HEADER, Frame, Kind
from securefed.protocols.messages import KINDS, SCORING, TRAFFIC
from securefed.protocols.schedules import Algorithm, FedBCD, FedSGD
from securefed.transport.link import LocalRun
from tests.protocols import federation
from tests.protocols.federation import KEY_HOLDER, Federation, Keys, Recorder, blobs, shared_people, split
from tests.protocols.scenarios import SCENARIOS

ROUNDS = 2


def linear(
    keys: Keys, parties: int, algorithm: Algorithm, scheme: str = "plain", rows: int = 8, **options: Any
) -> Federation:
    features, labels = blobs(rows, 2 * parties)
    blocks = split(features, parties)
    return federation.linear(
        blocks, labels, keys, scheme=scheme, algorithm=algorithm, rounds=ROUNDS, rate=lambda t: 0.1, **options
    )


def per_round(run: LocalRun, event: str = "sent") -> list[Counter[str]]:
    """Training messages by kind, of all parties together, round by round."""
    rounds = [Counter[str]() for _ in range(ROUNDS)]
    for link in run.links.values():
        for entry in link.transcript:
            if entry.event == event and entry.phase == "training":
                rounds[entry.round][entry.kind] += 1
    return rounds


def bytes_per_round(run: LocalRun) -> list[Counter[tuple[str, str, str]]]:
    """Bytes by kind, sender and receiver."""
    rounds = [Counter[tuple[str, str, str]]() for _ in range(ROUNDS)]
    for name, link in run.links.items():
        for entry in link.transcript:
            if entry.event == "sent" and entry.phase == "training":
                rounds[entry.round][entry.kind, name, entry.peer] += entry.bytes
    return rounds


def ciphertexts_opened(run: LocalRun) -> list[Counter[str]]:
    """Ciphertexts that each party asked to have opened."""
    rounds = [Counter[str]() for _ in range(ROUNDS)]
    for name, link in run.links.items():
        for entry in link.transcript:
            if entry.event == "requested":
                rounds[entry.round][name] += entry.detail["ciphertexts"]
    return rounds


@pytest.mark.parametrize("parties", [2, 3, 5, 17])
@pytest.mark.parametrize("steps", [1, 4])
def test_a_star_takes_two_messages_for_each_other_party(parties: int, steps: int, keys: Keys) -> None:
    for counts in per_round(linear(keys, parties, FedBCD(steps)).run()):
        exchanged = counts["contribution"] + counts["residual"]
        assert exchanged == 2 * (parties - 1)
        if parties > 2:
            assert counts["contribution"] == counts["residual"] == parties - 1


@pytest.mark.parametrize("parties", [2, 3, 5])
def test_pairwise_takes_a_message_for_each_ordered_pair(parties: int, keys: Keys) -> None:
    for counts in per_round(linear(keys, parties, FedBCD(3), exchange="pairwise").run()):
        assert counts["contribution"] == parties**2 - parties
        assert counts["residual"] == 0


@pytest.mark.parametrize("parties", [2, 3, 5])
def test_the_exact_loss_exchanges_as_many_and_opens_nothing(parties: int, keys: Keys) -> None:
    for counts in per_round(linear(keys, parties, FedBCD(3), exact=True).run()):
        assert counts["contribution"] + counts["residual"] == 2 * (parties - 1)
        assert counts["opening"] == counts["opening-request"] == 0


@pytest.mark.parametrize("parties", [2, 3, 5])
def test_messages_of_the_sequential_schedule(parties: int, keys: Keys) -> None:
    """Exchange({k, K}) for each k but K: its new part, and the sum that it needs. With fresh batches, the
    parts of those who wait for their turn (all but the first and the label party) have to be there before.
    """
    for counts in per_round(linear(keys, parties, FedBCD(3, "sequential")).run()):
        assert counts["contribution"] + counts["residual"] == 2 * (parties - 1) + (parties - 2)


def test_transfer_takes_two_messages(keys: Keys) -> None:
    for order in ("parallel", "sequential"):
        made = federation.transfer(shared_people(), keys, algorithm=FedBCD(3, order), rounds=ROUNDS)
        for counts in per_round(made.run()):
            assert counts["contribution"] == 2
            assert counts["residual"] == 0


@pytest.mark.parametrize(
    ("scheme", "parties", "order"),
    [
        ("plain", 2, "parallel"),
        ("plain", 2, "sequential"),
        ("plain", 3, "parallel"),
        ("paillier", 2, "parallel"),
        ("ckks", 2, "sequential"),
        ("ckks", 3, "parallel"),
    ],
)
def test_nothing_in_a_round_of_linear_models_depends_on_q(
    scheme: str, parties: int, order: Any, keys: Keys
) -> None:
    """One exchange and one opening a party, the same bytes and ciphertexts, whether Q is 1 or 6."""
    seen = []
    for steps in (1, 6):
        run = linear(keys, parties, FedBCD(steps, order), scheme, rows=6).run()
        counts = per_round(run)
        for one in counts:
            assert one["opening-request"] == one["opening"] == parties
        assert per_round(run, "opened") == [Counter({"opening": parties})] * ROUNDS
        seen.append((counts, bytes_per_round(run), ciphertexts_opened(run)))
    assert seen[0] == seen[1]


@pytest.mark.parametrize(("scheme", "steps"), [("plain", 1), ("plain", 3), ("paillier", 1), ("ckks", 3)])
def test_networks_and_hidden_layers_open_once_a_local_step(scheme: str, steps: int, keys: Keys) -> None:
    for made in (
        linear(keys, 2, FedBCD(steps), scheme, rows=6, local="network", hidden=(2,)),
        federation.transfer(
            shared_people(n=6), keys, scheme=scheme, width=2, algorithm=FedBCD(steps), rounds=ROUNDS
        ),
    ):
        run = made.run()
        for counts in per_round(run):
            assert counts["opening-request"] == counts["opening"] == 2 * steps
            assert counts["contribution"] == 2
        # An opening concerns parameters: as many sums as the party has of them, never as many as rows.
        for name, link in run.links.items():
            for entry in link.transcript:
                if entry.event == "requested":
                    assert np.prod(entry.detail["shape"]) == made.sides[name].parameters.size


def test_mixed_models_open_each_as_often_as_it_has_to(keys: Keys) -> None:
    made = linear(keys, 2, FedBCD(4), rows=8)
    other = linear(keys, 2, FedBCD(4), rows=8, local="network", hidden=(2,))
    made.sides["p1"] = other.sides["p1"]
    members = (made.agreement.members[0], other.agreement.members[1])
    made.agreement = federation.replaced(made.agreement, members=members)
    for counts in per_round(made.run()):
        assert counts["opening"] == 1 + 4


def test_the_key_holder_gets_requests_and_nothing_else(keys: Keys) -> None:
    run = linear(keys, 3, FedBCD(2)).run()
    kinds = {e.kind for e in run.links[KEY_HOLDER].transcript if e.event == "received"}
    assert kinds == {"opening-request"}


@pytest.mark.parametrize(("n", "width"), [(6, 2), (5, 3)])
def test_transfer_sends_n_h_and_h_squared_paillier_ciphertexts_each_way(
    n: int, width: int, keys: Keys
) -> None:
    recorder = Recorder()
    made = federation.transfer(
        shared_people(n=n), keys, scheme="paillier", bits=2048, width=width, algorithm=FedSGD(), rounds=1
    )
    made.run(tap=recorder)
    publics = {m.sender: load_public_key(m.payload) for m in recorder.of("public-key")}
    assert [m.sender for m in recorder.of("contribution")] == ["B", "A"]
    for message in recorder.of("contribution"):
        assert publics[message.sender].load(message.payload).ciphertexts == n * width + width**2
        assert message.size == HEADER.size + (n * width + width**2) * 512  # 4096 bits each


FRAMES = {"ciphertext": Kind.ENCRYPTED, "masked": Kind.MASKED, "opened": Kind.OPENED}


@pytest.mark.parametrize(
    ("scheme", "scenario"),
    [
        ("paillier", "pair"),
        ("paillier", "transfer"),
        ("ckks", "pair"),
        ("ckks", "star"),
        pytest.param("paillier", "star", marks=pytest.mark.slow),
        pytest.param("ckks", "transfer", marks=pytest.mark.slow),
    ],
)
def test_every_message_is_protected_as_the_table_says(scheme: str, scenario: str, keys: Keys) -> None:
    """Its frame is of the announced form, and under a key that its receiver lacks, or opens for another."""
    recorder, made = Recorder(), SCENARIOS[scenario](keys, scheme)
    made.run(tap=recorder)
    owner = {holder.public.key_id: name for name, holder in made.holders.items()}
    checked: Counter[str] = Counter()
    for message in recorder.messages:
        protection = KINDS[message.kind].protection
        checked[protection] += 1
        if protection in FRAMES:
            frame = Frame.from_bytes(message.payload, FRAMES[protection])
            assert frame.scheme == scheme
            holder = owner[frame.key]
            if protection == "ciphertext":
                assert holder != message.receiver
            else:
                assert holder == (message.receiver if protection == "masked" else message.sender)
    assert {"ciphertext", "masked", "opened", "public"} <= set(checked) or scenario == "transfer"


def test_the_scenarios_send_every_kind_of_message_of_their_protocols(keys: Keys) -> None:
    sent: set[str] = set()
    for make in SCENARIOS.values():
        recorder = Recorder()
        make(keys, "plain").run(tap=recorder)
        sent |= {message.kind for message in recorder.messages}
    assert sent == {
        "public-key",
        "contribution",
        "residual",
        "opening-request",
        "opening",
        "verdict",
        "score-part",
        "score-request",
        "score-opening",
        "score-model",
        "scores",
    }
    assert sent <= set(KINDS)


def test_every_kind_says_what_it_is_sent_for() -> None:
    assert {kind.traffic for kind in KINDS.values()} == set(TRAFFIC)
    for kind in KINDS.values():
        assert (kind.traffic == "opening") == kind.name.startswith("opening")
        assert kind.traffic != "score" or set(kind.phases) <= {*SCORING, "release"}
        assert kind.traffic not in ("setup", "control") or kind.protection == "public"


# The sizes that the project promises at n = 1000, h = 32, with 18 and 15 columns.


@pytest.mark.parametrize(
    "scheme", [pytest.param("paillier", marks=[pytest.mark.slow, pytest.mark.nightly]), "ckks"]
)
def test_openings_are_small_beside_the_exchange_at_full_size(scheme: str, keys: Keys) -> None:
    """Of each party: what one local step opens, request and reply together, is at most a quarter of what one
    exchange sends in either direction; that is 33,024 Paillier ciphertexts, or at most 3 MiB, each way.
    """
    people = shared_people(n=1000, more_a=0, more_b=0, d_a=18, d_b=15, unlabelled=0)
    made = federation.transfer(
        people,
        keys,
        scheme=scheme,
        bits=2048,
        width=32,
        activation="sigmoid",
        algorithm=FedSGD(),
        rounds=1,
    )
    recorder = Recorder()
    made.run(tap=recorder)
    exchanged = {m.sender: m.size for m in recorder.of("contribution")}
    opened = Counter[str]()
    for message in recorder.of("opening-request"):
        opened[message.sender] += message.size
    for message in recorder.of("opening"):
        opened[message.receiver] += message.size
    assert set(exchanged) == set(opened) == {"A", "B"}
    for party in opened:
        assert opened[party] <= 0.25 * min(exchanged.values())
    for size in exchanged.values():
        if scheme == "ckks":
            assert size <= 3 * 2**20
        else:
            assert size == HEADER.size + 33_024 * 512
