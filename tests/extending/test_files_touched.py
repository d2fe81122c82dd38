"""The recipes of docs/extending.md, done to a copy of the package: how many files each changes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import securefed
from tests.docs.pages import ROOT, blocks

HERE, PACKAGE = Path(__file__).parent, Path(securefed.__file__).parent
SETTING = """
    l2_factor: float = setting(1.0, number(above=0.0), "The penalty is this many times l2.")
"""[1:]
USE = """
import numpy as np
from securefed import GeneralisedLinear, Party, Plain
from securefed.api.weighted import WeightedLeastSquares
from securefed.settings.describe import party_toml
from tests.docs.settings_tables import settings_tables

assert "/copy/" in str(securefed.__file__)
rng = np.random.default_rng(0)
minutes, own = rng.integers(1, 600, size=80), rng.normal(size=(80, 1))
path.write_text("stay\\n" + "".join(f"{each // 60}:{each % 60:02d}\\n" for each in minutes))
parties = [
    Party("ward", path, dates={"stay": "hours"}), Party("bank", own, labels=(minutes > 300).astype(int))
]
found = []
for factor in (1.0, 50.0):
    model = GeneralisedLinear(protection=Plain(like="blind"), rounds=9, refit=False, l2_factor=factor)
    found.append(model.fit(parties).coef_["ward"]["stay.hours"])
assert 0.0 < found[1] < found[0], found
assert model.result_.holdout.more["Youden"] > 0.5
assert "#l2_factor = 1.0" in party_toml("ward", key_holder=False, listen="127.0.0.1:7001")
assert "| `l2_factor` | `1.0` | The penalty" in settings_tables()
weighted = WeightedLeastSquares(protection=Plain(), rounds=4).fit(parties)
assert weighted.predict(parties).shape == (80,)
"""


def changed(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, f"{path}: {old!r}"
    path.write_text(text.replace(old, new))


def a_setting(package: Path) -> None:
    refit = "    refit: bool = setting(\n"
    changed(package / "settings" / "objectives.py", refit, SETTING + refit)
    penalty = '("l2", settings.penalty('
    penalised = penalty.replace("settings.", "settings.l2_factor * settings.")
    changed(package / "assembly" / "linear.py", penalty, penalised)


def a_metric(package: Path) -> None:
    _, entry = (HERE / "youden.py").read_text().split("import Answers, Metric, register\n")
    with (package / "labels" / "metrics.py").open("a") as file:
        file.write(entry)


def a_column_type(package: Path) -> None:
    shutil.copy(HERE / "durations.py", package / "data" / "durations.py")
    with (package / "data" / "column_types.py").open("a") as file:
        file.write("\nfrom securefed.data import durations as durations\n")


def an_estimator(package: Path) -> None:
    shutil.copy(HERE / "weighted.py", package / "api" / "weighted.py")


def contents(package: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in package.rglob("*.py")}


def run(code: str, *paths: Path) -> None:
    """Run Python code in a process of its own, which looks for modules in these folders first."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-P", "-W", "ignore", "-c", code]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_each_recipe_changes_few_files_and_works(tmp_path: Path) -> None:
    package = tmp_path / "copy" / "securefed"
    shutil.copytree(PACKAGE, package)
    counts, before = {}, contents(package)
    for recipe in (a_setting, a_metric, a_column_type, an_estimator):
        recipe(package)
        after = contents(package)
        counts[recipe.__name__] = sum(before.get(path) != text for path, text in after.items())
        before = after
    assert counts == {"a_setting": 2, "a_metric": 1, "a_column_type": 2, "an_estimator": 1}
    head = f"from pathlib import Path\nimport securefed\npath = Path({str(tmp_path / 'stays.csv')!r})"
    run(head + USE, package.parent, ROOT)
    run("import securefed.data.durations", package.parent, ROOT)


def test_blocks_that_begin_with_imports_run_as_they_are() -> None:
    page = [block.code for block in blocks(Path("docs/extending.md")) if block.language == "python"]
    whole = [code for code in page if code.startswith("import ")]
    assert len(whole) == 4 and whole[0].startswith("import tempered")
    whole[1] = whole[1].replace("register(TEMPERED)", "")  # the first block has registered it
    run("\n".join(f"exec({code!r}, {{'__name__': 'pasted'}})" for code in whole), ROOT, HERE)
