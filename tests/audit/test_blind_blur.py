"""Ways past the blur, the ledger and the limit of a release that were found and closed.

Each repeats what a party could do: replay ciphertexts, compare equal rows, go on from a checkpoint. The naive
variants know a question by its operand alone, a person by the columns alone, and draw releases afresh.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import Any

import pytest

from research.attacks.blind_cheats import BLUR_BITS, MUCH, centred, people, replayed_model, score_run
from research.attacks.clear import CLEAR
from securefed.assembly.base import HELPER
from securefed.crypto import shares
from securefed.crypto.blind.interface import CrossScheme
from securefed.crypto.blind.rlwe import RLWE
from securefed.crypto.shares import LIMBS
from securefed.protocols.blind import scoring
from securefed.protocols.blind.cross import At, Encryptor
from securefed.protocols.blind.scoring import RELEASE_LIMIT, release_bits
from securefed.protocols.blind.statistics import ROW_BITS
from securefed.protocols.scoring import score_ledger as guard_module
from securefed.protocols.scoring.blur import row_contents
from securefed.protocols.scoring.score_ledger import ScoreGuard, ScoreRefusal, score_bits
from securefed.transport.link import Link
from tests.protocols.told import told

FEW = 1 << 50
"""Far below the blur: of 2**85 numbers, chance gives one in 2**34 of these."""
ERRORS = 1 << 76
"""Below the blur, and above the errors of products."""
both = pytest.mark.parametrize("naive", [False, True], ids=["as it is", "naive"])


def by_operand_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Naive: blur and ledger know a question by the operand, whatever model it is about."""
    monkeypatch.setattr(scoring, "_context", lambda question, keys, part, own: shares.to_bytes(own)[:64])


@both
def test_the_same_ciphertexts_for_another_model_are_another_question(
    monkeypatch: pytest.MonkeyPatch, naive: bool
) -> None:
    """The label party sends its first [[phi^L]] and the same rows again in every evaluation. The other share
    of the model has moved on, so that the difference of two answers under one blur would be exact.
    """
    if naive:
        by_operand_alone(monkeypatch)
    columns, labels = people(24, (3, 2))
    with replayed_model():
        done = score_run(columns, labels)
    first, second = done.seen.totals[:2]
    roots = [done.programs[name]._own.root for name in ("p0", "L")]
    z = [shares.from_floats(own @ root, ROW_BITS) for own, root in zip(columns, roots, strict=True)]
    moved = shares.zeros(24, 1)
    for number, sign in ((1, 1), (0, -1)):
        parts = done.shares_at[number]
        mine = shares.matmul(z[1], parts["L"]["L"])
        both = [shares.matmul(own, parts["p0"][name]) for own, name in zip(z, ("p0", "L"), strict=True)]
        total = shares.add(mine, *both)
        moved = shares.add(moved, total if sign > 0 else shares.negate(total))
    exact = shares.to_integers(moved[:, :, 0])
    left = [abs(centred(b - a - e)) for a, b, e in zip(first, second, exact, strict=True)]
    booked = done.guards["p0"].total_bits
    exactly = f"exact to 2**{max(left).bit_length()} of 2**{BLUR_BITS}; {booked} bits booked"
    assert max(left) < ERRORS if naive else min(left) > FEW, exactly
    assert len(done.seen.totals) == 3
    assert booked == (1 if naive else 3) * 24 * score_bits(10)


@both
def test_equal_rows_of_one_question_have_blurs_of_their_own(
    monkeypatch: pytest.MonkeyPatch, naive: bool
) -> None:
    """Two people with the same columns at p0: under one blur the difference of their scores would be the
    label party's own parameters, exactly, for rows of its choice.
    """
    if naive:
        own = guard_module.blur
        monkeypatch.setattr(guard_module, "blur", lambda rows, placed, **more: own(rows, **more))
    columns, labels = people(24, (3, 2))
    columns[0][12:] = columns[0][:12]
    done = score_run(columns, labels, rounds=1)
    (totals,) = done.seen.totals
    root = done.programs["L"]._own.root
    z = shares.from_floats(columns[1] @ root, ROW_BITS)
    parts = done.shares_at[0]
    phi = shares.add(parts["L"]["L"], parts["p0"]["L"])
    own = shares.to_integers(shares.matmul(z, phi)[:, :, 0])
    left = [abs(centred((totals[i] - totals[i + 12]) - (own[i] - own[i + 12]))) for i in range(12)]
    exactly = f"exact to 2**{max(left).bit_length()} of 2**{BLUR_BITS}"
    assert max(left) < ERRORS if naive else min(left) > FEW, exactly


@both
def test_equal_rows_of_one_question_are_all_counted(monkeypatch: pytest.MonkeyPatch, naive: bool) -> None:
    """People who are known by their columns alone."""
    if naive:
        monkeypatch.setattr(ScoreGuard, "_about", lambda self, rows: row_contents(rows))
    columns, labels = people(24, (3, 2))
    columns[0][:] = columns[0][0]
    columns[0][1::2] += 1.0
    done = score_run(columns, labels, rounds=1)
    assert done.guards["p0"].total_bits == (2 if naive else 24) * score_bits(10)


def test_a_person_stays_the_same_person_in_another_model() -> None:
    """Another penalty makes another step matrix, and z = x P^(1/2) of the same person another row."""
    columns, labels = people(24, (3, 2))
    guards = {name: ScoreGuard(party=name, column_bits=MUCH) for name in ("p0", "L")}
    for penalty in (0.1, 1.0, 10.0):
        score_run(columns, labels, rounds=1, guards=guards, l2=penalty, know=True)
    ledger = guards["p0"]
    scorings = [each for each, _ in told(ledger).values()]
    assert (len(scorings), max(scorings)) == (24, 3)


@both
@pytest.mark.parametrize("parties", [2, 3])
def test_a_release_from_the_same_checkpoint_has_the_same_answer(
    parties: int, monkeypatch: pytest.MonkeyPatch, naive: bool
) -> None:
    """A party that fails after its release and goes on gets it again: fresh blurs would average out."""
    if naive:
        monkeypatch.setattr(ScoreGuard, "release_stream", lambda *given: os.urandom(32))
    columns, labels = people(24, (3, 2, 2)[-parties:])
    names = [f"p{k}" for k in range(parties - 1)] + ["L"]
    guards = {name: ScoreGuard(party=name, column_bits=MUCH) for name in names}
    settings: dict[str, Any] = {"evaluate_every": 0, "release": True, "guards": guards}
    done = score_run(columns, labels, **settings)
    states = {name: program.state() for name, program in done.programs.items()}
    again = [
        score_run(columns, labels, states=states, **settings).programs["p0"].parameters for _ in range(2)
    ]
    assert (again[0] == again[1]).all() != naive


@both
def test_another_share_of_the_model_is_another_question(monkeypatch: pytest.MonkeyPatch, naive: bool) -> None:
    """A label party and a helper that collude: the helper hands p0 its share with one unit more in one entry,
    under the same question. The difference of two answers under one blur would be p0's column, exactly.
    """
    if naive:
        by_operand_alone(monkeypatch)
    columns, labels = people(24, (3, 2, 2))
    send, read = Link.send, Encryptor.read
    handed: list[bytes] = []
    halves: dict[str, list[list[int]]] = {"L": [], HELPER: []}

    def sending(self: Link, receiver: str, kind: str, blob: bytes, **more: Any) -> None:
        if (kind, receiver) == ("model-share", "p0"):
            handed.append(blob)
            share = shares.from_bytes(handed[0], (LIMBS, 3, 1))
            share[0, 0, 0] += len(handed) - 1
            blob = shares.to_bytes(shares.carry(share))
        if (kind, self.name) == ("score-share", "p0"):
            halves[HELPER].append(shares.to_integers(shares.from_bytes(blob, (LIMBS, 24))))
        send(self, receiver, kind, blob, **more)

    async def reading(self: Encryptor, peer: str, *given: Any, at: At) -> Any:
        share = await read(self, peer, *given, at=at)
        if peer == "p0" and self.link.phase == "evaluation":
            halves["L"].append(shares.to_integers(share[:, 0, :24]))
        return share

    with replayed_model(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Link, "send", sending)
        patch.setattr(Encryptor, "read", reading)
        done = score_run(columns, labels)
    first, second = (
        [a + b for a, b in zip(halves["L"][number], halves[HELPER][number], strict=True)]
        for number in range(2)
    )
    moved = [centred(b - a, shares.WIDTH) for a, b in zip(first, second, strict=True)]
    z = shares.from_floats(columns[0] @ done.programs["p0"]._own.root, ROW_BITS)
    truth = [centred(v, shares.WIDTH) for v in shares.to_integers(z[:, :, 0])]
    left = [abs(a - b) for a, b in zip(moved, truth, strict=True)]
    assert max(left) < ERRORS if naive else min(left) > FEW, max(left).bit_length()


@both
def test_releases_are_counted_over_all_attempts(monkeypatch: pytest.MonkeyPatch, naive: bool) -> None:
    """New shares of the same model have a new blur: a party that breaks off again and again is refused."""
    if naive:
        monkeypatch.setattr(ScoreGuard, "book_release", lambda *given: None)
    columns, labels = people(24, (10, 2))
    guards = {name: ScoreGuard(party=name, column_bits=MUCH) for name in ("p0", "L")}
    for _ in range(RELEASE_LIMIT // release_bits(10, 1)):
        score_run(columns, labels, evaluate_every=0, release=True, guards=guards)
    with nullcontext() if naive else pytest.raises(ScoreRefusal, match="releases to p0"):
        score_run(columns, labels, evaluate_every=0, release=True, guards=guards)


@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize("scheme", [CLEAR, RLWE], ids=["clear", "rlwe"])
def test_an_evaluation_that_is_repeated_from_its_checkpoint_is_the_same_question(
    parties: int, scheme: CrossScheme
) -> None:
    """A party killed after its ledger was written asks the same question: same scores, booked once."""
    columns, labels = people(24, (3, 2, 2)[-parties:])
    names = [f"p{k}" for k in range(parties - 1)] + ["L"]
    guards = {name: ScoreGuard(party=name, column_bits=MUCH) for name in names}
    settings: dict[str, Any] = {"rounds": 2, "evaluate_every": 2, "guards": guards, "scheme": scheme}
    done = score_run(columns, labels, **settings)
    states = {name: program.checkpoint() for name, program in done.programs.items()}
    again = score_run(columns, labels, states=states, **settings)
    ((_, first),) = done.run.outcomes["L"].history
    ((_, second),) = again.run.outcomes["L"].history
    assert second == first
    for name in names[:-1]:
        assert {scorings for scorings, _ in told(guards[name]).values()} == {1}
    # The naive way: the state after the evaluation holds no question, and training goes on without one.
    naive = {name: program.state() for name, program in done.programs.items()}
    assert score_run(columns, labels, states=naive, **settings).run.outcomes["L"].history == []
