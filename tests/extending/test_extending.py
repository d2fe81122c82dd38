"""What docs/extending.md says, done from outside of the package: a loss, a scheme and an objective."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone

from securefed import Blind, FedSGD, GeneralisedLinear, Party, Plain
from securefed.api.federated import parameters
from securefed.assembly import assembly_of
from securefed.assembly import register as register_assembly
from securefed.assembly.base import ASSEMBLIES, write_arrays
from securefed.assembly.build import PartyData, build
from securefed.audit import audit
from securefed.crypto import KEY_KINDS, SCHEMES, SchemeEntry, generate, load_key, save_key
from securefed.crypto import register as register_scheme
from securefed.crypto.wire import NUMBERS
from securefed.declare import number, setting
from securefed.errors import BadKey, SettingError
from securefed.plan.planner import RoundsModel, estimates
from securefed.plan.rehearsal import Scenario
from securefed.process.checkpoints import ResumeState
from securefed.process.model_files import read_shard, save_shard
from securefed.process.own_data import agreement_of
from securefed.protocols import losses
from securefed.protocols.agreement import OBJECTIVES
from securefed.protocols.loop import PartyContext
from securefed.protocols.messages import KINDS
from securefed.protocols.own_gradient.sides import LinearScorer
from securefed.protocols.schedules import FedBCD
from securefed.protocols.scoring.score_ledger import ScoreGuard
from securefed.settings import LinearSettings
from securefed.settings.objectives import OBJECTIVE_SETTINGS
from securefed.settings.run import RunSettings
from securefed.transport.link import run_local
from securefed.transport.message import get_network
from tests.data.fitting import fit
from tests.docs.settings_tables import settings_tables
from tests.extending.loading import loaded

Array = NDArray[np.float64]
ROWS = 240


@pytest.fixture
def tempered() -> Iterator[Any]:
    yield loaded("tempered")
    losses._LOSSES.pop("tempered")


@pytest.fixture
def toy() -> Iterator[Any]:
    yield loaded("toy")
    for table in (SCHEMES, KEY_KINDS, NUMBERS):
        table.pop("toy")


@pytest.fixture
def weighted() -> Iterator[Any]:
    yield loaded("weighted")
    for table in (ASSEMBLIES, OBJECTIVES, OBJECTIVE_SETTINGS):
        table.pop("weighted")


def parties() -> tuple[list[Party], Array]:
    rng = np.random.default_rng(3)
    features = rng.normal(size=(ROWS, 4))
    labels = np.where(features @ [1.0, -1.0, 0.5, 0.0] + 0.3 * rng.normal(size=ROWS) > 0, 1.0, -1.0)
    return [Party("shop", features[:, :2]), Party("bank", features[:, 2:], labels=labels)], features


def trained(**settings: object) -> GeneralisedLinear:
    options: dict[str, object] = {"rounds": 3, "holdout": 0.0, "algorithm": FedBCD(4), **settings}
    return GeneralisedLinear(**options).fit(parties()[0])  # type: ignore[arg-type]


def weights(model: GeneralisedLinear) -> Array:
    return np.array([weight for found in model.coef_.values() for weight in found.values()])


def test_a_loss_is_one_entry(tempered: Any) -> None:
    """In the clear with the polynomial, and blind: the weight of its margin is no power of two."""
    clear = trained(loss="tempered", protection=Plain(like="blind"))
    assert not np.allclose(weights(clear), weights(trained(protection=Plain(like="blind"))), atol=1e-3)
    blind = trained(loss="tempered", protection=Blind(release=True))
    np.testing.assert_allclose(weights(blind), weights(clear), atol=2e-3)
    with pytest.raises(SettingError, match="there is one of that name"):
        losses.register(tempered.TEMPERED)


@pytest.mark.usefixtures("toy")
def test_a_scheme_is_a_module_and_one_entry(tmp_path: Path) -> None:
    model = trained(protection=Plain(scheme="toy", like="blind"))
    np.testing.assert_allclose(weights(model), weights(trained(protection=Plain(like="blind"))), atol=1e-6)
    assert not model.result_.protected  # its entry says that it protects nothing, and so do results
    claims = {claim.name: claim for claim in audit(model.result_.transcripts).claims}
    assert not claims["encrypted"].passed
    settings = LinearSettings(protection=Plain(scheme="toy", like="own-gradient"), refit=False)
    assert estimates(Scenario(settings, {"shop": 3, "bank": 2}, ROWS))[0].total_bytes > 0
    holder = generate("toy")
    save_key(tmp_path / "he-toy.skf", holder, "correct horse battery")
    assert load_key(tmp_path / "he-toy.skf", "correct horse battery").public.key_id == holder.public.key_id
    with pytest.raises(BadKey, match="names are new, and each kind has a number from 128 to 255"):
        register_scheme("toy", SchemeEntry(opens="toy"), {}, {})


def test_a_scheme_that_is_not_registered_is_refused() -> None:
    with pytest.raises(SettingError, match="scheme must be one of 'ckks', 'paillier', not 'toy'"):
        trained(protection=Blind(scheme="toy"))


def test_a_scheme_without_an_encrypted_product_does_not_train_blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """And does not fall back to showing gradients either."""
    monkeypatch.setitem(SCHEMES, "half", SchemeEntry(opens="paillier"))
    with pytest.raises(SettingError, match="scheme must be one of 'ckks', 'paillier', not 'half'"):
        trained(protection=Blind(scheme="half"))


@pytest.mark.usefixtures("weighted")
@pytest.mark.filterwarnings("ignore::securefed.protocols.own_gradient.ledger.LedgerWarning")
@pytest.mark.parametrize("scheme", ["plain", "ckks"])
def test_an_objective_is_one_file(scheme: str, tmp_path: Path) -> None:
    """From a run file to shards, as `securefed party` does it, and planned before."""
    (shop, bank), features = parties()
    labels, names = np.asarray(bank.labels), ("shop", "bank")
    shared = RunSettings.of(
        {"name": "run", "parties": list(names), "objective": "weighted", "rounds": 4, "local_steps": 1}
        | {"half_life": 80.0, "protection": {"kind": "plain" if scheme == "plain" else "own-gradient"}}
    )
    own = {"shop": np.asarray(shop.features), "bank": np.asarray(bank.features)}
    assembly = assembly_of(shared.settings)
    models = {name: assembly.party_model(name, names, rows.shape[1], 0) for name, rows in own.items()}
    told = {name: ResumeState(model.size, model.is_linear, ROWS) for name, model in models.items()}
    agreement = agreement_of(shared, told, ROWS)
    everybody = np.arange(ROWS), np.ones(ROWS, dtype=bool)
    trained = {}
    for name, rows in own.items():
        context = PartyContext(generate(scheme), guard=ScoreGuard(party=name, column_bits=1e6))
        data = PartyData(features=rows, ids=None, targets=labels if name == "bank" else None)
        trained[name], _ = build(assembly, agreement, name, data, *everybody, models[name], context)
    done = run_local(
        {name: each.run for name, each in trained.items()},
        run="weighted",
        kinds=KINDS,
        network=get_network("lan"),
    )
    theta, weights = np.zeros(4), 0.5 ** (np.arange(ROWS) / 80.0)
    for _ in range(4):
        theta -= 0.2 * features.T @ (weights * (features @ theta - labels)) / ROWS
    found = []
    for name in names:
        save_shard(tmp_path / name, name, shared, "instance", trained[name])
        write_arrays(tmp_path / "prepared", fit({"a": own[name][:, 0]})[0].to_arrays())
        part = read_shard(tmp_path / name, tmp_path / "prepared", shared).part
        assert isinstance(part, LinearScorer)
        found.append(part.model.parameters)
    np.testing.assert_allclose(np.concatenate(found), theta, atol=1e-9 if scheme == "plain" else 1e-3)
    scenario = Scenario(shared.settings, {name: rows.shape[1] for name, rows in own.items()}, ROWS)
    planned = estimates(scenario, rounds=RoundsModel(4))[0]
    sent = sum(entry.bytes for link in done.links.values() for entry in link.transcript.of("sent"))
    assert planned.total_bytes == sent


def test_its_settings_are_checked_like_others(weighted: Any) -> None:
    table = {"name": "run", "parties": ["a", "b"], "objective": "weighted"}
    assert RunSettings.of(table).settings.half_life == 100.0  # type: ignore[attr-defined]
    with pytest.raises(SettingError, match="half_life"):
        RunSettings.of({**table, "half_life": 0.0})
    with pytest.raises(SettingError, match="there is one of that name"):
        register_assembly(weighted.WeightedAssembly)


@pytest.mark.filterwarnings("ignore::securefed.protocols.own_gradient.ledger.LedgerWarning")
def test_an_estimator_names_its_assembly(tmp_path: Path, weighted: Any) -> None:
    """Its parameters are the declared settings; fit, predict, save and load are the package's."""
    made, features = parties()
    names = inspect.signature(weighted.WeightedLeastSquares).parameters
    assert {"half_life", "protection", "rounds", "standardise"} <= set(names)
    model = weighted.WeightedLeastSquares(
        protection=Plain(), rounds=4, algorithm=FedSGD(), half_life=80.0, standardise=False
    )
    model.fit(made)
    labels, theta, rows = np.asarray(made[1].labels), np.zeros(4), 0.5 ** (np.arange(ROWS) / 80.0)
    for _ in range(4):
        theta -= 0.2 * features.T @ (rows * (features @ theta - labels)) / ROWS
    learnt = np.concatenate([model.shards_[name].parameters for name in model.parties_])
    np.testing.assert_allclose(learnt, theta, atol=1e-9)
    model.save(tmp_path)
    again = weighted.WeightedLeastSquares.load(tmp_path, protection=Plain())
    assert again.half_life == 80.0
    np.testing.assert_array_equal(again.predict(made), model.predict(made))
    assert clone(model).get_params() == model.get_params()


def test_a_setting_is_a_declaration_and_its_use(weighted: Any) -> None:
    """Declared once, it is checked, compared, in party.toml, in the docs and an estimator's parameter."""

    @dataclass(frozen=True, kw_only=True, repr=False)
    class Settings(weighted.WeightedSettings):
        objective = "colder"
        cold: float = setting(3.0, number(above=0.0), "How cold it is.")

    class ColderAssembly(weighted.WeightedAssembly):
        settings_class = Settings

    register_assembly(ColderAssembly, weighted.WEIGHTED)
    try:

        class Colder(weighted.Federated):
            assembly = ColderAssembly

            @parameters(Settings)
            def __init__(self, *first: Any, **named: Any) -> None:
                super().__init__(*first, **named)

        assert Colder(cold=4.0).get_params()["cold"] == 4.0 and "How cold it is." in str(Colder.__doc__)
        with pytest.raises(SettingError, match="cold must be a finite number greater than 0, not -1"):
            Colder(cold=-1).fit(parties()[0])
        run = {"name": "run", "parties": ["a", "b"], "objective": "colder"}
        assert RunSettings.of(run).to_dict()["cold"] == 3.0
        assert RunSettings.of({**run, "cold": 5}).to_dict()["cold"] == 5.0
        with pytest.raises(SettingError, match="unknown key 'cald'; did you mean 'cold'"):
            RunSettings.of({**run, "cald": 5})
        assert "| `cold` | `3.0` | How cold it is. |" in settings_tables()
    finally:
        for table in (ASSEMBLIES, OBJECTIVES, OBJECTIVE_SETTINGS):
            table.pop("colder", None)
