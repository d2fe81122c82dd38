"""party.toml: what it takes, and one line for everything that is wrong with it."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from securefed import Blind, GeneralisedLinear, OwnGradient, TransferLearner
from securefed.errors import SettingError
from securefed.protocols.schedules import FedBCD, FedSGD
from securefed.settings import LinearSettings, TransferSettings
from securefed.settings.describe import party_toml
from securefed.settings.party import read_party_file, read_what_is_right
from securefed.settings.run import RunSettings, run_settings
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


def pin(folder: Path, *names: str) -> None:
    """Write the certificates of peers."""
    (folder / "peers").mkdir()
    for name in names:
        (folder / "peers" / f"{name}.pem").write_bytes(Identity.generate(name).certificate.pem)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pin(tmp_path, "shop")
    return tmp_path


def read(folder: Path, text: str) -> Any:
    path = folder / "party.toml"
    path.write_text(text)
    return read_party_file(path)


def test_what_is_left_out_has_the_default_of_its_objective(folder: Path) -> None:
    party = read(folder, GOOD)
    assert party.is_label_party and not party.is_key_holder
    assert party.run_folder == folder / "runs" / "first"
    told = party.shared.to_dict()
    assert {key: told[key] for key in ("name", "parties", "key_holder", "objective")} == {
        "name": "first",
        "parties": ["shop", "bank"],
        "key_holder": None,
        "objective": "linear",
    }
    defaults = {name: each.default for name, each in run_settings("linear").items()}
    assert defaults.pop("rounds") == "auto" and told["rounds"] == 24
    assert len(defaults) > 12 and defaults.items() <= told.items()
    assert told["protection"] == "blind" and told["protection.scheme"] == "ckks"
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
    "no label at the label party": ('label = "late"\n', "", "the label party is bank"),
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
    "a run name that is a path": ('name = "first"', 'name = "../first"', "'../first' given"),
    "columns and drop": ('id = "id"', 'id = "id"\ncolumns = ["a"]\ndrop = ["b"]', "exclude each other"),
    "columns as text": ('id = "id"', 'id = "id"\ncolumns = "a"', "list of names"),
    "a role that is none": ('name = "bank"\n', 'name = "bank"\nrole = "judge"\n', "'judge'"),
    "a transfer of three": (
        'parties = ["shop", "bank"]',
        'objective = "transfer"\nparties = ["shop", "mall", "bank"]\nkey_holder = "n"',
        "exactly 2",
    ),
}
# What to add to [run].
ADDED = {
    "a key-holder for two": ('key_holder = "n"', "two need none, and more need a party without data"),
    "unknown objective": ('objective = "best"', "'best'"),
    "unknown scheme": (
        'protection = { kind = "blind", scheme = "rsa" }',
        "scheme must be one of 'ckks', 'paillier', not 'rsa'",
    ),
    "unknown protection": ('protection = { kind = "strong" }', "'strong'"),
    "what another protection has": (
        'protection = { kind = "blind", batch_size = 9 }',
        "[run.protection] of kind 'blind': unknown key 'batch_size'",
    ),
    "what another objective has": (
        'objective = "transfer"\nprotection = { release = true }',
        "unknown key 'release'",
    ),
    "no rounds": ("rounds = 0", "rounds"),
    "Q of text": ('local_steps = "5"', "local_steps"),
    "negative batch": ('protection = { kind = "own-gradient", batch_size = -1 }', "batch_size"),
    "a target without evaluations": ("target = 0.9\nevaluate_every = 0", "evaluate_every"),
    "all held out": ("evaluate_every = 1\nholdout = 1.0", "holdout"),
}
FIRST = 'name = "first"\n'
WRONG |= {case: (FIRST, f"{FIRST}{line}\n", said) for case, (line, said) in ADDED.items()}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_one_line_that_names_the_file(case: str, folder: Path) -> None:
    old, new, said = WRONG[case]
    assert GOOD.count(old) >= 1
    with pytest.raises(SettingError) as caught:
        read(folder, GOOD.replace(old, new, 1))
    text = str(caught.value)
    assert said in text and "\n" not in text
    assert text.startswith(str(folder / "party.toml"))


def test_two_certificates_of_a_peer_may_be_pinned(folder: Path) -> None:
    (folder / "peers" / "next.pem").write_bytes(Identity.generate("shop").certificate.pem)
    pair = GOOD.replace('"peers/shop.pem"', '["peers/shop.pem", "peers/next.pem"]')
    assert len(read(folder, pair).peers["shop"].pins) == 2
    with pytest.raises(SettingError, match="cannot be pinned together"):
        read(folder, pair.replace("next.pem", "shop.pem"))
    with pytest.raises(SettingError, match="certificate: 0 given"):
        read(folder, GOOD.replace('"peers/shop.pem"', "[]"))


def test_two_parties_that_listen_on_nothing_are_one_line(folder: Path) -> None:
    outbound = GOOD.replace('listen = "127.0.0.1:7001"', 'listen = "none"')
    assert read(folder, outbound).own.listen == "none"
    with pytest.raises(SettingError, match="bank and shop both listen on nothing") as caught:
        read(folder, outbound.replace('"shop.example:7001"', '"none"'))
    assert "\n" not in str(caught.value)
    assert read_what_is_right(folder / "party.toml")[1] == [str(caught.value).partition(": ")[2]]


def test_a_missing_file_says_who_makes_one(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="securefed init makes one"):
        read_party_file(tmp_path / "party.toml")


def test_a_folder_stands_for_its_party_toml(folder: Path) -> None:
    made = read(folder, GOOD)
    assert read_party_file(folder) == made
    assert read_what_is_right(folder)[0] == made
    with pytest.raises(SettingError, match=r"peers/party.toml: No such file .*; securefed init makes one"):
        read_party_file(folder / "peers")


def test_numbers_are_compared_as_numbers() -> None:
    """1 and 1.0 are the same setting at two parties."""
    two = {"name": "r", "parties": ["a", "b"]}
    whole = RunSettings.of({**two, "protection": {"kind": "plain", "margin_bound": 64}, "l2": 0})
    broken = RunSettings.of({**two, "protection": {"kind": "plain", "margin_bound": 64.0}, "l2": 0.0})
    assert whole.to_dict() == broken.to_dict()
    assert repr(whole.to_dict()["l2"]) == "0.0"


def test_a_table_becomes_settings() -> None:
    base = {"name": "r", "parties": ["a", "b", "c"], "key_holder": "k"}
    settings = RunSettings.of({**base, "local_steps": 1, "learning_rate": 1}).settings
    assert isinstance(settings, LinearSettings) and settings.blind
    assert settings.algorithm == FedSGD() and settings.learning_rate == 1.0
    open_ = {"kind": "own-gradient", "scheme": "paillier", "batch_size": 9}
    settings = RunSettings.of({**base, "order": "sequential", "protection": open_}).settings
    assert settings.algorithm == FedBCD(20, "sequential")
    assert settings.protection == OwnGradient(scheme="paillier", batch_size=9)
    settings = RunSettings.of({"name": "r", "parties": ["b", "a"], "objective": "transfer"}).settings
    assert isinstance(settings, TransferSettings) and settings.protection == Blind()
    assert (settings.hidden, settings.rounds) == (1, 24)


def test_keys_of_version_0_1_keep_working_and_say_the_new_form() -> None:
    old = {"name": "r", "parties": ["a", "b"], "scheme": "paillier", "reveal": "own-gradient"}
    with pytest.warns(DeprecationWarning, match=r"write protection=OwnGradient\(scheme='paillier'\)"):
        found = RunSettings.of(old)
    table = {"kind": "own-gradient", "scheme": "paillier"}
    assert found == RunSettings.of({"name": "r", "parties": ["a", "b"], "protection": table})
    with pytest.raises(SettingError, match=r"reveal and the table \[run.protection\] exclude"):
        RunSettings.of({"name": "r", "parties": ["a", "b"], "reveal": "nothing", "protection": table})
    with pytest.raises(SettingError, match="unknown key 'batch_size'"):
        RunSettings.of({"name": "r", "parties": ["a", "b"], "batch_size": 9})


def test_who_needs_which_keys_and_whose_checkpoints_count() -> None:
    two, three = {"name": "r", "parties": ["a", "b"]}, {"name": "r", "parties": ["a", "b", "c"]}
    paillier = {"kind": "blind", "scheme": "paillier", "key_bits": 2048}
    blind = RunSettings.of({**three, "key_holder": "k", "protection": paillier})
    assert blind.key_kind is None and blind.helper == "k" and blind.stateful == ("a", "b", "c", "k")
    assert not blind.lockstep and blind.to_dict()["protection.key_bits"] == 2048
    assert RunSettings.of({**three, "key_holder": "k"}).to_dict()["protection.key_bits"] == 3072
    shown = RunSettings.of({**three, "key_holder": "k", "protection": {"kind": "own-gradient"}})
    assert shown.key_kind == "ckks" and shown.helper is None and shown.stateful == ("a", "b", "c")
    assert shown.lockstep and RunSettings.of(two).lockstep
    for released in (False, True, "trusted"):
        run = RunSettings.of({**two, "protection": {"release": released}})
        assert run.settings.option("release") == released
    for gone in ("check_every", "feature_bound", "parameter_bound"):
        with pytest.raises(SettingError, match=gone):
            RunSettings.of({**two, gone: 32})


@pytest.mark.parametrize("holder", [False, True])
def test_the_template_is_read_as_it_is_once_the_certificates_are_there(tmp_path: Path, holder: bool) -> None:
    name = "notary" if holder else "clinic"
    pin(tmp_path, "shop", "insurer", "bank")
    text = party_toml(name, key_holder=holder, listen="127.0.0.1:7001")
    party = read(tmp_path, text)
    assert party.own.name == name and party.is_key_holder == holder


@pytest.mark.parametrize("parties", [("shop", "bank"), ("shop", "insurer", "bank")])
def test_templates_of_the_same_parties_agree(tmp_path: Path, parties: tuple[str, ...]) -> None:
    """What each operator gets for the same --parties is one run, without an edit of [run]."""
    everybody = [*parties, *(["notary"] if len(parties) > 2 else [])]
    pin(tmp_path, *everybody)
    made = [
        read(tmp_path, party_toml(name, key_holder=name == "notary", listen="h:7001", parties=parties))
        for name in everybody
    ]
    assert all(party.shared.to_dict() == made[0].shared.to_dict() for party in made)
    assert [party.own.name for party in made if party.data and party.data.label] == ["bank"]


def test_lines_of_the_template_are_short_and_every_setting_is_explained() -> None:
    for name in ("b", "a-rather-long-name"):
        lines = party_toml(name, key_holder=False, listen="0.0.0.0:7001").splitlines()
        assert max(map(len, lines)) <= 110
        settings = [place for place, line in enumerate(lines) if re.match(r"#?[a-z_0-9]+ = ", line)]
        unexplained = [lines[place] for place in settings if not lines[place - 1].startswith("# ")]
        allowed = ("address", "certificate", "name", "kind")
        assert [line for line in unexplained if not line.startswith(allowed)] == []


def test_every_line_of_the_template_that_is_commented_out_is_a_setting(tmp_path: Path) -> None:
    """Uncommented one by one, each is known; so the template does not drift away from the code."""
    pin(tmp_path, "bank")
    text = party_toml("clinic", key_holder=False, listen="127.0.0.1:7001")
    commented = [line for line in text.splitlines() if re.match(r"#[a-z_0-9]+ = ", line)]
    assert len(commented) > 40
    for line in commented:
        try:
            read(tmp_path, text.replace(line, line[1:], 1))
        except SettingError as error:
            assert "unknown key" not in str(error), line


@pytest.mark.parametrize(
    ("objective", "estimator"), [("linear", GeneralisedLinear), ("transfer", TransferLearner)]
)
def test_a_run_file_and_an_estimator_have_the_same_defaults(objective: str, estimator: type) -> None:
    made = estimator()
    run = RunSettings.of({"name": "r", "parties": ["a", "b"], "objective": objective})
    assert made._settings() == run.settings


def test_a_constructor_has_at_most_16_parameters() -> None:
    assert len(inspect.signature(GeneralisedLinear).parameters) <= 16
    assert len(inspect.signature(TransferLearner).parameters) <= 16


def test_the_template_shows_the_defaults() -> None:
    text = party_toml("shop", key_holder=False, listen="0.0.0.0:7001")
    run = re.sub(r"^#(?=[a-z_0-9]+ = )", "", text[text.index("[run]") :], flags=re.MULTILINE)
    shown = tomllib.loads(run)["run"]
    settings = {name: each for name, each in run_settings("linear").items() if each.default is not None}
    assert len(settings) > 12
    assert {name: shown[name] for name in settings} == {name: e.default for name, e in settings.items()}
