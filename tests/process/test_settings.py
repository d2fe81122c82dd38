"""party.toml: what it takes, and one line for everything that is wrong with it."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from securefed import GeneralisedLinear, TransferLearner
from securefed.assembly.recipe import LinearRecipe
from securefed.assembly.transfer_recipe import TransferRecipe
from securefed.cli.template import party_toml
from securefed.errors import SettingError
from securefed.process.run_settings import RunSettings, defaults_of
from securefed.process.settings import read_party_file
from securefed.protocols.schedules import FedBCD, FedSGD, InverseSqrtParties
from securefed.transport.identity import Identity

GOOD = """
[party]
name = "bank"
listen = "127.0.0.1:7001"
[data]
file = "bank.csv"
id = "id"
label = "late"
[peers.shop]
address = "shop.example:7001"
certificate = "peers/shop.pem"
[run]
name = "first"
parties = ["shop", "bank"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "peers").mkdir()
    (tmp_path / "peers" / "shop.pem").write_bytes(Identity.generate("shop").chain)
    return tmp_path


def read(folder: Path, text: str) -> Any:
    path = folder / "party.toml"
    path.write_text(text)
    return read_party_file(path)


def test_what_is_left_out_has_the_default_of_its_objective(folder: Path) -> None:
    party = read(folder, GOOD)
    assert party.is_label_party and not party.is_key_holder
    assert party.run_folder == folder / "runs" / "first"
    assert party.shared.to_dict() == {
        "name": "first",
        "parties": ["shop", "bank"],
        "key_holder": None,
        "objective": "linear",
        **defaults_of("linear"),
    }
    assert party.peers["shop"].address == "shop.example:7001"
    assert party.data.standardise and party.data.columns is None


# What to replace in the good file, and what the one line has to say.
WRONG = {
    "not TOML": ("[party]", "[party", "not TOML"),
    "unknown table": ("[run]", "[extra]\n[run]", "unknown key 'extra'"),
    "misspelt key": ('parties = ["shop"', 'rouds = 3\nparties = ["shop"', "did you mean 'rounds'?"),
    "no name": ('name = "bank"\n', "", "name is missing"),
    "bad name": ('name = "bank"\n', 'name = "the bank"\n', "'the bank' given"),
    "no data": ('[data]\nfile = "bank.csv"\nid = "id"\nlabel = "late"\n', "", "data: missing"),
    "no file": ('file = "bank.csv"\n', "", "file is missing"),
    "no label at the label party": ('label = "late"\n', "", "bank is the label party"),
    "no id": ('id = "id"\n', "", 'alignment "psi" needs the column'),
    "no peers": (
        '[peers.shop]\naddress = "shop.example:7001"\ncertificate = "peers/shop.pem"\n',
        "",
        "none given",
    ),
    "a peer that is not in the run": ("[peers.shop]", "[peers.mall]", "mall given, shop"),
    "no certificate file": ("peers/shop.pem", "peers/none.pem", "cannot read"),
    "no address": ('address = "shop.example:7001"\n', "", "address is missing"),
    "bad address": ("shop.example:7001", "shop.example", "HOST:PORT"),
    "bad listen": ("127.0.0.1:7001", "7001", "HOST:PORT"),
    "one party": ('["shop", "bank"]', '["bank"]', "at least 2"),
    "another party's file": ('["shop", "bank"]', '["shop", "mall"]', "shop, mall"),
    "twice the same": ('["shop", "bank"]', '["bank", "bank"]', "twice"),
    "a key-holder for two": (
        'name = "first"',
        'name = "first"\nkey_holder = "n"',
        "two need none, and more need a party without data",
    ),
    "a run name that is a path": ('name = "first"', 'name = "../first"', "'../first' given"),
    "unknown objective": ('name = "first"', 'name = "first"\nobjective = "best"', "'best'"),
    "unknown scheme": ('name = "first"', 'name = "first"\nscheme = "rsa"', "'rsa'"),
    "no rounds": ('name = "first"', 'name = "first"\nrounds = 0', "rounds"),
    "Q of text": ('name = "first"', 'name = "first"\nlocal_steps = "5"', "local_steps"),
    "negative batch": ('name = "first"', 'name = "first"\nbatch_size = -1', "batch_size"),
    "a target without evaluations": ('name = "first"', 'name = "first"\ntarget = 0.9', "evaluate_every"),
    "all held out": ('name = "first"', 'name = "first"\nevaluate_every = 1\nholdout = 1.0', "holdout"),
    "columns and drop": ('id = "id"', 'id = "id"\ncolumns = ["a"]\ndrop = ["b"]', "exclude each other"),
    "columns as text": ('id = "id"', 'id = "id"\ncolumns = "a"', "list of names"),
    "a role that is none": ('name = "bank"\n', 'name = "bank"\nrole = "judge"\n', "'judge'"),
    "a transfer of three": (
        'parties = ["shop", "bank"]',
        'objective = "transfer"\nparties = ["shop", "mall", "bank"]\nkey_holder = "n"',
        "exactly 2",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_one_line_that_names_the_file(case: str, folder: Path) -> None:
    old, new, said = WRONG[case]
    assert GOOD.count(old) >= 1
    with pytest.raises(SettingError) as caught:
        read(folder, GOOD.replace(old, new, 1))
    text = str(caught.value)
    assert said in text and "\n" not in text
    assert text.startswith(str(folder / "party.toml"))


def test_a_missing_file_says_who_makes_one(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="securefed init makes one"):
        read_party_file(tmp_path / "party.toml")


def test_numbers_are_compared_as_numbers() -> None:
    """1 and 1.0 are the same setting at two parties."""
    whole = RunSettings.of({"name": "r", "parties": ["a", "b"], "margin_bound": 64, "l2": 0})
    broken = RunSettings.of({"name": "r", "parties": ["a", "b"], "margin_bound": 64.0, "l2": 0.0})
    assert whole.to_dict() == broken.to_dict()
    assert repr(whole.to_dict()["l2"]) == "0.0"


def test_settings_become_recipes() -> None:
    base = {"name": "r", "parties": ["a", "b", "c"], "key_holder": "k"}
    recipe = RunSettings.of(
        {**base, "local_steps": 1, "learning_rate": 0.5, "decay": "sqrt-parties"}
    ).recipe()
    assert isinstance(recipe, LinearRecipe) and recipe.blind
    assert recipe.algorithm == FedSGD() and recipe.learning_rate == InverseSqrtParties(0.5, 3)
    open_ = {**base, "reveal": "own-gradient", "scheme": "paillier"}
    recipe = RunSettings.of({**open_, "order": "sequential", "batch_size": 9}).recipe()
    assert recipe.algorithm == FedBCD(20, "sequential") and recipe.batch_size == 9
    recipe = RunSettings.of({"name": "r", "parties": ["b", "a"], "objective": "transfer"}).recipe()
    assert isinstance(recipe, TransferRecipe) and recipe.scheme == "ckks" and recipe.blind


def test_who_needs_which_keys_and_whose_checkpoints_count() -> None:
    two, three = {"name": "r", "parties": ["a", "b"]}, {"name": "r", "parties": ["a", "b", "c"]}
    blind = RunSettings.of({**three, "key_holder": "k", "scheme": "paillier", "key_bits": 2048})
    assert blind.key_kind is None and blind.helper == "k" and blind.stateful == ("a", "b", "c", "k")
    assert not blind.lockstep and blind.to_dict()["key_bits"] == 2048
    assert RunSettings.of({**three, "key_holder": "k"}).to_dict()["key_bits"] == 3072
    shown = RunSettings.of({**three, "key_holder": "k", "reveal": "own-gradient"})
    assert shown.key_kind == "ckks" and shown.helper is None and shown.stateful == ("a", "b", "c")
    assert shown.lockstep and RunSettings.of(two).lockstep
    for released in (False, True, "trusted"):
        assert RunSettings.of({**two, "release": released}).recipe().release == released  # type: ignore[attr-defined]
    for gone in ("check_every", "feature_bound", "parameter_bound"):
        with pytest.raises(SettingError, match=gone):
            RunSettings.of({**two, gone: 32})


@pytest.mark.parametrize("holder", [False, True])
def test_the_template_is_read_as_it_is_once_the_certificates_are_there(tmp_path: Path, holder: bool) -> None:
    name = "notary" if holder else "clinic"
    (tmp_path / "peers").mkdir()
    for peer in ("shop", "insurer", "bank"):
        (tmp_path / "peers" / f"{peer}.pem").write_bytes(Identity.generate(peer).chain)
    text = party_toml(name, key_holder=holder, listen="127.0.0.1:7001")
    party = read(tmp_path, text)
    assert party.own.name == name and party.is_key_holder == holder


def test_the_template_of_a_key_holder_for_two_is_a_transfer_run(tmp_path: Path) -> None:
    (tmp_path / "peers").mkdir()
    for peer in ("shop", "bank"):
        (tmp_path / "peers" / f"{peer}.pem").write_bytes(Identity.generate(peer).chain)
    text = party_toml("notary", key_holder=True, listen="h:7001", parties=("shop", "bank"))
    party = read(tmp_path, text)
    assert (party.shared.objective, party.shared.key_holder) == ("transfer", "notary")
    with pytest.raises(SettingError, match="key_holder: 'notary' given; transfer learning has one where"):
        read(tmp_path, text.replace('reveal = "nothing"', 'reveal = "own-gradient"'))


@pytest.mark.parametrize("parties", [("shop", "bank"), ("shop", "insurer", "bank")])
def test_templates_of_the_same_parties_agree(tmp_path: Path, parties: tuple[str, ...]) -> None:
    """What each operator gets for the same --parties is one run, without an edit of [run]."""
    everybody = [*parties, *(["notary"] if len(parties) > 2 else [])]
    (tmp_path / "peers").mkdir()
    for peer in everybody:
        (tmp_path / "peers" / f"{peer}.pem").write_bytes(Identity.generate(peer).chain)
    made = [
        read(tmp_path, party_toml(name, key_holder=name == "notary", listen="h:7001", parties=parties))
        for name in everybody
    ]
    assert all(party.shared.to_dict() == made[0].shared.to_dict() for party in made)
    assert [party.own.name for party in made if party.data and party.data.label] == ["bank"]


def test_comments_of_the_template_stand_below_each_other() -> None:
    for name in ("b", "a-rather-long-name"):
        text = party_toml(name, key_holder=False, listen="0.0.0.0:7001")
        places = [line.index("  # ") for line in text.splitlines() if "  # " in line]
        assert places.count(29) >= len(places) - 2
        assert max(map(len, text.splitlines())) <= 110


def test_every_line_of_the_template_that_is_commented_out_is_a_setting(tmp_path: Path) -> None:
    """Uncommented one by one, each is known; so the template does not drift away from the code."""
    (tmp_path / "peers").mkdir()
    (tmp_path / "peers" / "bank.pem").write_bytes(Identity.generate("bank").chain)
    text = party_toml("clinic", key_holder=False, listen="127.0.0.1:7001")
    commented = [line for line in text.splitlines() if line.startswith("# ") and " = " in line.split("#")[1]]
    assert len(commented) > 15
    for line in commented:
        changed = text.replace(line, line[2:])
        try:
            read(tmp_path, changed)
        except SettingError as error:
            assert "unknown key" not in str(error), line


@pytest.mark.parametrize(
    ("objective", "estimator"), [("linear", GeneralisedLinear), ("transfer", TransferLearner)]
)
def test_a_run_file_and_an_estimator_have_the_same_defaults(objective: str, estimator: type) -> None:
    signature = {name: word.default for name, word in inspect.signature(estimator).parameters.items()}
    algorithm = signature["algorithm"]
    signature |= {name: getattr(algorithm, name) for name in ("local_steps", "order", "proximal")}
    signature |= {name: signature[name] or 0 for name in ("batch_size", "evaluate_every")}
    if objective == "transfer":  # an estimator's None is what suits `reveal`
        made = TransferRecipe(scheme="ckks", reveal="nothing")
        shown = TransferRecipe(scheme="ckks", reveal="own-gradient")
        said = {"rounds": "rounds", "l2": "l2", "hidden": "width", "gamma": "pull"}
        signature |= {name: getattr(made, word) for name, word in said.items()}
        opened = defaults_of("transfer", "own-gradient")
        assert {name: getattr(shown, word) for name, word in said.items()} == {n: opened[n] for n in said}
        assert defaults_of("transfer", scheme="plain")["hidden"] == opened["hidden"] == 32
    defaults = defaults_of(objective)
    shared = defaults.keys() & signature.keys()
    assert len(shared) > 15
    differ = {
        name: (defaults[name], signature[name])
        for name in shared
        if defaults[name] != (list(h) if isinstance(h := signature[name], tuple) else h)
    }
    assert differ == {}


def test_the_template_shows_the_defaults() -> None:
    text = party_toml("shop", key_holder=False, listen="0.0.0.0:7001")
    run = text[text.index("[run]") :]
    commented = re.sub(r"^# (?=[a-z_0-9]+ = )", "", run, flags=re.MULTILINE)
    shown = tomllib.loads(commented.replace('key_holder = "notary"', 'key_holder = ""'))["run"]
    examples = {"target"}  # has no default: an example of what to write
    defaults = {key: value for key, value in defaults_of("linear").items() if key in shown.keys() - examples}
    assert len(defaults) > 15
    assert {key: shown[key] for key in defaults} == defaults
