"""One party's program of a run that only predicts: the same for simulations and for party processes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.assembly.base import Assembly, Part
from securefed.crypto import KeyHolder, Mapper
from securefed.protocols.agreement import Agreement
from securefed.protocols.blind.scoring import ModelPart
from securefed.protocols.scoring.blur import ScoreGuard
from securefed.protocols.scoring.prediction_run import blind_program, predict_programs
from securefed.transport import Program

__all__ = ["prediction_program"]


def prediction_program(
    assembly: Assembly[Any],
    agreement: Agreement,
    name: str,
    part: Part | None,
    features: NDArray[np.float64] | None,
    rows: int,
    holder: KeyHolder | None,
    mapper: Mapper,
    guard: ScoreGuard | None,
) -> Program:
    """Return one party's program.

    Parameters
    ----------
    part : the party's part of the model; None at a key-holder.
    features : the columns of the rows, as `Assembly.scored` gives them; None at a party that needs none.
    rows : how many rows are scored.
    guard : of a party that is scored.
    """
    if isinstance(part, ModelPart):
        if features is None and name == agreement.label_party:
            features = np.zeros((rows, 1))  # in transfer learning their number is all that counts
        return blind_program(agreement, part, features, rows, assembly.scheme, mapper, guard)
    programs = predict_programs(
        agreement,
        {} if part is None else {name: part},
        {} if features is None else {name: features},
        {} if holder is None else {name: holder},
        mapper,
        {} if guard is None else {name: guard},
        rows,
    )
    return programs[name]
