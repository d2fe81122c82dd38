"""The shape of the package: imports go downwards, and each foreign package is used in one place.

The source is read, not run, so that an import inside a function counts as well.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from securefed.crypto import KEY_KINDS, SCHEMES

ROOT = Path(__file__).parent.parent

# Lowest first. Layers on one line do not import each other; what lies directly under securefed/ and is not
# named here is the API.
LAYERS = [
    ("errors",),
    ("declare",),
    ("files", "pages"),
    ("crypto",),
    ("transport", "engine"),
    ("models", "data"),
    ("protocols",),
    ("labels",),
    ("settings",),
    ("assembly",),
    ("audit", "report"),
    ("plan",),
    ("api", "process"),
    ("research",),
    ("cli", "bench"),
]
BESIDE = ("research", "bench")
"""In the checkout, and not in the installed package."""
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

# Foreign package -> the part of securefed that may import it.
HOMES: dict[str, str | tuple[str, ...]] = {
    "phe": "tests",  # GPLv3: the package does not use it
    "tenseal": "tests",
    "gmpy2": ("securefed.crypto", "securefed.data.curve"),
}
# Where schemes are told apart outside of crypto: what a user writes, and what one costs.
BY_NAME = {
    "securefed.audit.blind": "sizes of keys",
    "securefed.settings.protection": "the scheme and the word of Plain",
}
LOADS_CODE = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
WEAK_RANDOM = {"random", "numpy.random"}
PROTECTING = ("crypto", "transport")


def modules(package: str) -> Iterator[tuple[str, Path]]:
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


SOURCES = dict(modules("securefed")) | dict(modules("research")) | dict(modules("bench"))
OURS = {name: path.read_text() for name, path in SOURCES.items()}
parsed = cache(ast.parse)
OF_PACKAGE = {name: source for name, source in OURS.items() if name.split(".")[0] == "securefed"}


def imports(source: str, name: str, is_package: bool = False) -> set[str]:
    """Every module that the source names in an import, relative ones resolved, `from a import b` as a.b."""
    found: set[str] = set()
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = name.split(".")
            keep = len(parts) - node.level + (1 if is_package else 0)
            base = [*parts[:keep]] if node.level else []
            target = ".".join([*base, *(node.module.split(".") if node.module else [])])
            found.update(f"{target}.{alias.name}" for alias in node.names)
    return found


def layer(name: str) -> str:
    """The layer of a module of ours, from its dotted name."""
    parts = name.split(".")
    if parts[0] in BESIDE:
        return parts[0]
    if name == "securefed.__main__":
        return "cli"
    return parts[1] if len(parts) > 1 and parts[1] in RANK else "api"


def within(name: str, home: str | tuple[str, ...]) -> bool:
    homes = (home,) if isinstance(home, str) else home
    return any(name == each or name.startswith(f"{each}.") for each in homes)


def upward_imports(source: str, name: str, is_package: bool = False) -> list[str]:
    own = layer(name)
    targets = sorted(imports(source, name, is_package))
    return [
        f"{name} ({own}) imports {target} ({layer(target)})"
        for target in targets
        if target.split(".")[0] in ("securefed", *BESIDE)
        and layer(target) != own
        and RANK[layer(target)] >= RANK[own]
    ]


def strays(source: str, name: str) -> list[str]:
    """Foreign packages outside their home."""
    return [
        f"{name} imports {target}"
        for target in sorted(imports(source, name))
        if (home := HOMES.get(target.split(".")[0])) and not within(name, home)
    ]


def code_loaders(source: str) -> list[str]:
    """Imports and calls that run what they read."""
    found = [target for target in imports(source, "x") if target.split(".")[0] in LOADS_CODE]
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec", "compile", "__import__"):
                found.append(node.func.id)
            found += [
                "allow_pickle"
                for word in node.keywords
                if word.arg == "allow_pickle" and ast.unparse(word.value) != "False"
            ]
    return sorted(found)


def weak_randomness(source: str) -> list[str]:
    found = [target for target in imports(source, "x") if any(within(target, weak) for weak in WEAK_RANDOM)]
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("np.random", "numpy.random"):
            found.append(ast.unparse(node))
    return sorted(found)


def private_imports(source: str, name: str) -> list[str]:
    """Names with an underscore that a module takes from another one of ours."""
    return [
        f"{name} imports {node.module}.{each.name}"
        for node in ast.walk(parsed(source))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("securefed", *BESIDE)
        for each in node.names
        if each.name.startswith("_") and not each.name.endswith("__")
    ]


def named_schemes(source: str, name: str) -> list[str]:
    """Schemes and kinds of keys that code goes by: as a word of its own, or by an import of their package."""
    tree = parsed(source)
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    words = {
        str(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value in (*SCHEMES, *KEY_KINDS) and id(node) not in texts
    }
    homes = tuple(kind.module.removesuffix(".keys") for kind in KEY_KINDS.values())
    return sorted(words | {target for target in imports(source, name) if within(target, homes)})


# One test a rule: what breaks it is in the list that should be empty, by name.


def test_imports_go_downwards() -> None:
    found = [
        line
        for name, source in OURS.items()
        for line in upward_imports(source, name, SOURCES[name].name == "__init__.py")
    ]
    assert found == []


def test_foreign_packages_stay_in_their_home() -> None:
    assert [line for name, source in OF_PACKAGE.items() for line in strays(source, name)] == []


def test_nothing_that_is_read_is_run() -> None:
    """But what a party's own worker processes hand to each other, by memory that nobody else can open."""
    found = {name: loaders for name, source in OF_PACKAGE.items() if (loaders := code_loaders(source))}
    assert set(found) == {"securefed.engine.processes"}


def test_randomness_that_protects_comes_from_the_operating_system() -> None:
    protecting = {name: source for name, source in OF_PACKAGE.items() if layer(name) in PROTECTING}
    assert len(protecting) > 20
    assert {name: found for name, source in protecting.items() if (found := weak_randomness(source))} == {}


def test_names_with_an_underscore_stay_in_their_module() -> None:
    assert [line for name, source in OURS.items() for line in private_imports(source, name)] == []


def test_outside_of_crypto_no_scheme_goes_by_its_name() -> None:
    found = {
        name for name, source in OF_PACKAGE.items() if layer(name) != "crypto" and named_schemes(source, name)
    }
    assert found == set(BY_NAME)


@pytest.mark.slow
def test_each_module_imports_alone_and_has_what_it_declares() -> None:
    """Each in a process that has imported nothing else of ours: a fork of one that has the heavy packages."""
    program = """
import importlib, json, os, sys, traceback
names, foreign = json.load(sys.stdin)
for name in foreign:
    try:
        importlib.import_module(name)
    except ImportError:
        pass  # a function or class, or an extra that is not installed
failed = {}
for name in names:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            module = importlib.import_module(name)
            missing = [word for word in getattr(module, "__all__", []) if not hasattr(module, word)]
            report = f"__all__ names what is not there: {missing}" if missing else ""
        except BaseException:
            report = traceback.format_exc(limit=-3)
        os.write(writing, report.encode()[-4000:])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        report = pipe.read()
    if os.waitpid(child, 0)[1] != 0 or report:
        failed[name] = report or "the process died"
json.dump(failed, sys.stdout)
"""
    command = [sys.executable, "-c", program]
    foreign = {target for name, source in OURS.items() for target in imports(source, name)}
    heavy = sorted(
        name for name in foreign if name.split(".")[0] not in ("securefed", *BESIDE, "torch", "ray")
    )
    asked = json.dumps([list(OURS), heavy])
    done = subprocess.run(command, input=asked, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    failed = json.loads(done.stdout)
    assert not failed, "\n\n".join(f"{name}: {report}" for name, report in failed.items())


def test_a_party_starts_without_the_packages_that_take_seconds_to_load() -> None:
    """The package itself does not need them; the label party loads scikit-learn when it measures quality."""
    program = "import sys, securefed.cli.party, securefed.cli.predict; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert {"sklearn", "scipy", "pandas", "torch"} & set(done.stdout.split()) == set()


def test_every_folder_of_the_package_is_a_layer() -> None:
    folders = {path.name for path in (ROOT / "securefed").iterdir() if (path / "__init__.py").exists()}
    assert folders <= set(RANK), "name the new folder in LAYERS"


# The checks above have to be able to fail.


UPWARD = [
    ("securefed.crypto.fixed", "from securefed.models import linear"),
    ("securefed.crypto.fixed", "import securefed.engine.pool"),
    ("securefed.crypto.fixed", "from securefed import Party"),
    ("securefed.crypto.fixed", "from ..protocols import schedule"),
    ("securefed.crypto.fixed", "def late():\n    import securefed.cli"),
    ("securefed.transport.link", "from securefed import engine"),
    ("securefed.models.local", "from securefed.data.table import load"),
    ("securefed.protocols.schedule", "from securefed.report.clock import Clock"),
    ("securefed.api", "import securefed.cli.main"),
    ("securefed.cli.main", "from bench import crypto"),
    ("securefed.audit.report", "from research.attacks import linear"),
    ("securefed.data.rows", "from research.data import load_mnist"),
    ("research.theory", "from bench import crypto"),
    ("securefed.errors", "from securefed.files import write_json"),
]
DOWNWARD = [
    ("securefed.crypto.fixed", "from securefed.errors import RangeError\nfrom . import wire"),
    ("securefed.errors", "from securefed.errors import SecurefedError"),
    ("securefed.protocols.schedule", "from securefed.transport import local\nimport securefed.crypto"),
    ("bench.crypto", "from securefed import crypto, Party\nfrom bench import timing"),
]


def test_an_upward_import_is_found_and_a_downward_one_passes() -> None:
    assert [case for case in UPWARD if len(upward_imports(case[1], case[0])) != 1] == []
    assert [case for case in DOWNWARD if upward_imports(case[1], case[0])] == []


def test_the_other_checks_find_what_they_look_for() -> None:
    assert strays("from phe import paillier", "securefed.crypto.paillier.keys") != []
    assert strays("import tenseal.sealapi as sealapi", "securefed.crypto.scheme") != []
    assert strays("def f():\n    import gmpy2", "securefed.models.local") != []
    assert strays("import gmpy2", "securefed.crypto.paillier.keys") == []
    assert code_loaders("import pickle\nfrom marshal import loads") == ["marshal.loads", "pickle"]
    assert code_loaders("eval(text)\nnumpy.load(path, allow_pickle=True)") == ["allow_pickle", "eval"]
    assert code_loaders("numpy.load(path, allow_pickle=False)\nre.compile('x')") == []
    assert weak_randomness("import random") == ["random"]
    assert weak_randomness("from numpy.random import default_rng") == ["numpy.random.default_rng"]
    assert weak_randomness("import numpy as np\nnp.random.normal()") == ["np.random"]
    assert weak_randomness("import secrets\nsecrets.randbits(8)") == []
    assert named_schemes('"ckks, in words"\nif scheme != "plain": pass', "m") == ["plain"]
    assert named_schemes("from securefed.crypto.ckks.layout import Rows", "m") != []
    assert private_imports("from securefed.crypto.wire import _pack, pack", "m") != []
    assert private_imports("from securefed import __version__\nfrom numpy import _globals", "m") == []
