"""Estimators' parameters are the declared settings: type checkers, editors and scikit-learn see them."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from securefed import GeneralisedLinear, TransferLearner
from securefed.declare import declared
from securefed.settings import LinearSettings, TransferSettings

SCRIPT = """
from securefed import GeneralisedLinear, Plain, TransferLearner

GeneralisedLinear("linear", rounds=3, protection=Plain(), holdout=0.1).fit([])
TransferLearner(4, gamma=0.1)
GeneralisedLinear(roundz=3)
GeneralisedLinear(holdout="much")
TransferLearner(4, gama=0.1)
"""


@pytest.mark.slow
def test_a_type_checker_sees_the_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api = pytest.importorskip("mypy.api")
    monkeypatch.chdir(Path(__file__).parents[2])
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    out, _, status = api.run(["--strict", f"--cache-dir={tmp_path}", "--hide-error-context", str(file)])
    errors = [line.split(": ", 1) for line in out.splitlines() if ": error: " in line]
    assert status == 1 and [where.rsplit(":", 1)[-1] for where, _ in errors] == ["6", "7", "8"], out
    assert 'Unexpected keyword argument "roundz"' in errors[0][1]
    assert '"holdout" to "GeneralisedLinear" has incompatible type "str"; expected "float"' in errors[1][1]
    assert 'Unexpected keyword argument "gama"' in errors[2][1]


@pytest.mark.parametrize(
    ("estimator", "settings"), [(GeneralisedLinear, LinearSettings), (TransferLearner, TransferSettings)]
)
def test_the_signature_is_the_declaration(estimator: type, settings: type) -> None:
    seen = inspect.signature(estimator).parameters
    assert seen.keys() == declared(settings).keys()
    for name, each in declared(settings).items():
        assert seen[name].default == each.default and seen[name].annotation == each.kind
        assert f"{name} : {each.kind}" in str(estimator.__doc__)
    places = [name for name, each in seen.items() if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert len(places) == 1, "the first by its place, the others by their names"
