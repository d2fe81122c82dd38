"""A new user's session: three hospitals with messy files, from paths to a prediction, at the first go."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

COUNT = 240


def write_hospitals(folder: Path) -> None:
    """A lab with semicolons, decimal commas and `<4.0`; a clinic with day-first dates and gaps; a GP."""
    rng = np.random.default_rng(5)
    potassium, age, smokes = rng.normal(4.5, 0.4, COUNT), rng.normal(60, 9, COUNT), rng.random(COUNT) < 0.3
    pressure = rng.normal(130, 12, COUNT)
    margin = 3 * (potassium - 4.5) + (age - 60) / 9 + 1.5 * smokes + (pressure - 130) / 12
    relapse = margin + 0.5 * rng.normal(size=COUNT) > 0.4
    born = np.datetime64("2024-12-31") - (age * 365.25).astype("timedelta64[D]")
    lab, clinic, gp = ["patient;potassium"], ["id,born,pressure"], ["id\tsmokes\trelapse"]
    for n in range(COUNT):
        level = "<4.0" if potassium[n] < 4.0 else f"{potassium[n]:.2f}".replace(".", ",")
        year, month, day = str(born[n]).split("-")
        lab.append(f"P-{n:03d};{level}")
        clinic.append(f"P-{n:03d},{day}/{month}/{year},{'' if n % 17 == 0 else round(pressure[n], 1)}")
        gp.append(f"P-{n:03d}\t{'yes' if smokes[n] else 'no'}\t{'yes' if relapse[n] else 'no'}")
    for name, lines in (("lab", lab), ("clinic", clinic), ("gp", gp)):
        (folder / f"{name}.csv").write_text("\n".join(lines[:201]) + "\n")
        (folder / f"new-{name}.csv").write_text("\n".join([lines[0], *lines[201:]]) + "\n")


SESSION = """\
from securefed import GeneralisedLinear, Party

parties = [
    Party("lab", "lab.csv", ids="patient", missing=["<4.0"], impute="indicator"),
    Party("clinic", "clinic.csv", ids="id", dates={"born": "age"}, impute="median"),
    Party("gp", "gp.csv", ids="id", labels="relapse"),
]
model = GeneralisedLinear().fit(parties)
new = [
    Party("lab", "new-lab.csv", ids="patient"),
    Party("clinic", "new-clinic.csv", ids="id"),
    Party("gp", "new-gp.csv", ids="id", labels="relapse"),
]
right = model.score(new)
"""


@pytest.mark.filterwarnings("ignore::securefed.protocols.scoring.score_ledger.ScoreWarning")
def test_three_hospitals_with_messy_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_hospitals(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert len(SESSION.splitlines()) <= 15
    session: dict[str, object] = {}
    exec(SESSION, session)  # noqa: S102  # the lines that a user types
    assert float(session["right"]) > 0.75  # type: ignore[arg-type]
