"""The package as a thing to install: what it declares and contains."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import securefed
from securefed.errors import MissingExtra, require

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
PINS = {
    canonicalize_name(pin.name): pin
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
    for pin in [Requirement(line)]
}


def test_the_version_is_declared_once() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", securefed.__version__)
    assert PROJECT["dynamic"] == ["version"]


def test_pins_name_one_version_each() -> None:
    for pin in PINS.values():
        assert re.fullmatch(r"==[\w.]+", str(pin.specifier)), pin


@pytest.mark.parametrize("extra", ["", *EXTRAS])
def test_what_is_declared_is_a_range_and_its_pin_lies_in_it(extra: str) -> None:
    for text in EXTRAS[extra] if extra else PROJECT["dependencies"]:
        declared = Requirement(text)
        if declared.name == "securefed":
            assert declared.extras <= set(EXTRAS), text
            continue
        assert declared.specifier, f"{text} has no bounds"
        pin = PINS[canonicalize_name(declared.name)]
        (exact,) = pin.specifier
        assert declared.specifier.contains(exact.version), f"{pin} is outside {text}"


def test_what_is_installed_by_make_is_pinned() -> None:
    """Every package that a declared one needs, however indirectly, has a pin."""

    def needed(name: str) -> set[str]:
        found = [Requirement(text) for text in requires(name) or []]
        here = [each for each in found if each.marker is None or each.marker.evaluate({"extra": ""})]
        return {canonicalize_name(each.name) for each in here}

    todo = {canonicalize_name(Requirement(text).name) for text in PROJECT["dependencies"] + EXTRAS["dev"]}
    seen: set[str] = set()
    while todo:
        name = todo.pop()
        seen.add(name)
        try:
            todo |= needed(name) - seen
        except PackageNotFoundError:
            continue  # not part of this environment: an extra that was not asked for
    assert seen - {"securefed"} <= set(PINS)


def test_the_wheel_holds_the_package_and_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    from hatchling.builders.wheel import WheelBuilder

    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(f"securefed-{securefed.__version__}.dist-info/METADATA").decode()
    assert {name.split("/")[0] for name in names} == {
        "securefed",
        f"securefed-{securefed.__version__}.dist-info",
    }
    assert "securefed/py.typed" in names
    assert "License-Expression: Apache-2.0" in metadata
    assert "Requires-Python: >=3.11" in metadata


def test_a_missing_extra_is_one_line_with_the_command() -> None:
    with pytest.raises(MissingExtra) as caught:
        require("no_such_package.part", extra="plot")
    assert str(caught.value) == (
        "no_such_package is not installed and is needed here: pip install 'securefed[plot]'"
    )
    assert caught.value.name == "no_such_package"


def test_a_fault_inside_an_installed_package_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_package.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError) as caught:
        require("broken_package", extra="plot")
    assert not isinstance(caught.value, MissingExtra)


def test_what_is_there_is_returned() -> None:
    assert require("json.decoder", extra="plot").__name__ == "json.decoder"


def test_importing_the_package_leaves_the_optional_ones_alone() -> None:
    program = (
        "import sys, securefed.crypto\n"
        "print([name for name in ('phe', 'torch', 'ray', 'matplotlib', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"
