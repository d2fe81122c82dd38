"""`python -m bench blind`: what it compares is the same work, and a bar without a measurement is missed."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench import blind, emulation, release
from bench.bars import Bar
from bench.emulation import Case
from bench.passes import passed, slope
from bench.release import Beside, released_code, whole_fit
from securefed.assembly import LinearAssembly
from securefed.settings import LinearSettings

SMALL = Case("ckks", "FedBCD-p", 2, 1, rows=30, rounds=4, columns=2)


@pytest.mark.parametrize("schedule", emulation.SCHEDULES)
@pytest.mark.parametrize("parties", [2, 3])
def test_opened_parameters_are_those_of_plain_rounds(schedule: str, parties: int) -> None:
    found = emulation.measured(replace(SMALL, schedule=schedule, parties=parties, outputs=2), seed=0)
    assert found.difference < emulation.BAR < 0.1 < found.largest
    (bar,) = emulation.bars([found])
    assert bar.met and schedule in bar.note


def test_another_rate_is_found_to_differ() -> None:
    columns, targets = emulation.table(SMALL, 0)
    assembly = LinearAssembly(LinearSettings(rounds=4, l2=0.01))
    agreement = emulation.agreement_of(columns, targets, assembly)
    right = emulation.emulated(agreement, columns, targets, assembly)
    other = LinearAssembly(replace(assembly.settings, l2=0.011))
    wrong = emulation.emulated(emulation.agreement_of(columns, targets, other), columns, targets, other)
    assert np.abs(right - wrong).max() > 1000 * emulation.BAR


def test_cases_cover_every_combination_under_both_schemes() -> None:
    found = {
        (case.scheme, case.schedule, case.parties, case.outputs) for case in emulation.cases(quick=False)
    }
    assert len(found) == 2 * len(emulation.SCHEDULES) * 3 * 3
    assert {case.scheme for case in emulation.cases(quick=True)} == {"ckks", "paillier"}


def test_a_pass_sends_more_for_more_rows_and_an_exponent_is_a_slope() -> None:
    few, many = (passed(rows, 3, 4, seed=0) for rows in (500, 20_000))
    assert few.bytes < many.bytes and few.messages <= many.messages
    assert slope([10, 100, 1000], [2.0, 20.0, 200.0]) == pytest.approx(1.0)


def test_a_round_is_two_messages_and_half_a_round_trip() -> None:
    row = blind.round_on_line(64, seed=0)
    assert row.messages == 2 and row.bytes < blind.ROUND_BYTES
    assert 0.5 <= row.trips < 0.6
    assert all(bar.met for bar in row.bars())


def test_bars_are_ratios_of_the_release_to_ours() -> None:
    row = Beside(512, 0.5, 6_000_000, 60, 0.9, 5.0, 30_000_000, 300, 0.9, 3)
    processor, sent = row.bars()
    assert (processor.value, processor.met, sent.value, sent.met) == (10.0, True, 5.0, False)


def test_a_release_that_is_not_there_meets_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "COMMIT", "0" * 40)
    found, bars = blind._release(argparse.Namespace(quick=True, turns=1, seed=0))
    assert found == {"release": []} and [bar.met for bar in bars] == [False]
    assert bars[0].note.startswith("not measured: commit 000")
    assert not Bar.unmeasured("a", 1.0, "less", "why").met


def test_the_code_that_is_measured_is_the_one_in_the_folder(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="was measured in its place"):
        whole_fit(tmp_path, 64, 0)


@pytest.mark.slow
def test_both_codes_fit_and_ours_sends_less() -> None:
    try:
        with released_code() as earlier:
            ours, theirs = (whole_fit(code, 64, 0) for code in (release.ROOT, earlier))
    except OSError as error:
        pytest.skip(str(error))
    assert theirs["rounds"] == 24 and ours["bytes"] < theirs["bytes"]
