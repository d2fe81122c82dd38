"""Saved models: one file a party with its own parameters only, no pickle, and damage is named."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securefed import DataError, GeneralisedLinear, OwnGradient, Party, Plain, SettingError, TransferLearner
from securefed.files import release
from securefed.models import LinearModel, NetworkModel
from tests.api.cases import columns, parties, plain


def shard(folder: Path, party: str) -> dict[str, Any]:
    with np.load(folder / f"shard-{party}.npz", allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def transfer() -> TransferLearner:
    return TransferLearner(3, rounds=2, protection=Plain(allow_determined=True)).fit(parties())


# There and back.


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("loss", ["logistic", "linear", "squared_hinge"])
@pytest.mark.parametrize("local", ["linear", "network"])
def test_a_loaded_model_predicts_the_same(count: int, loss: str, local: str, tmp_path: Path) -> None:
    model = plain(
        loss=loss, learning_rate=0.05, allow_unstable=True, protection=Plain(local_model=local, hidden=(3,))
    ).fit(parties(count))
    model.save(tmp_path / "model")
    again = GeneralisedLinear.load(tmp_path / "model", protection=Plain())
    new = parties(count, 9, seed=4, labels=False)
    assert again.parties_ == model.parties_
    assert np.array_equal(again.decision_function(new), model.decision_function(new))
    assert np.array_equal(again.predict(new), model.predict(new))
    scored = parties(count, 9, seed=4)
    assert again.score(scored) == model.score(scored)


@pytest.mark.parametrize("activation", ["sigmoid", "tanh", "relu"])
def test_a_loaded_transfer_model_predicts_the_same(activation: str, tmp_path: Path) -> None:
    model = TransferLearner(
        3, rounds=2, protection=Plain(activation=activation, activation_bound=40.0, allow_determined=True)
    ).fit(parties())
    model.save(tmp_path)
    again = TransferLearner.load(tmp_path, protection=Plain())
    rows = Party("p0", columns(seed=4)[0][0])
    assert np.array_equal(again.decision_function(rows), model.decision_function(rows))
    assert np.array_equal(again.predict(rows), model.predict(rows))
    assert again.hidden == 3
    assert (again.protection.activation, again.protection.activation_bound) == (activation, 40.0)


@pytest.mark.parametrize("scheme", ["paillier", "ckks"])
def test_a_model_trained_in_plain_can_be_scored_under_encryption(scheme: str, tmp_path: Path) -> None:
    model = plain().fit(parties())
    model.save(tmp_path)
    again = GeneralisedLinear.load(tmp_path, protection=OwnGradient(scheme=scheme, key_bits=2048))
    assert again.holders_ == {}
    new = parties(2, 5, seed=4, labels=False)
    assert np.abs(again.decision_function(new) - model.decision_function(new)).max() < 2.0**-11 + 1e-4


@pytest.mark.parametrize("labels", [["no", "yes"], [False, True], [1.5, 2.0]])
def test_classes_survive(labels: list[Any], tmp_path: Path) -> None:
    blocks, found = columns()
    made = [Party("a", blocks[0]), Party("b", blocks[1], labels=np.array(labels)[found])]
    model = plain().fit(made)
    model.save(tmp_path)
    again = GeneralisedLinear.load(tmp_path, protection=Plain())
    assert again.classes_.tolist() == labels
    assert again.predict(made).tolist() == model.predict(made).tolist()


def test_how_columns_are_prepared_is_saved(tmp_path: Path) -> None:
    blocks, labels = columns()
    made = [Party("a", 50 * blocks[0], transform="auto"), Party("b", blocks[1], labels=labels)]
    model = plain(standardise=True).fit(made)
    model.save(tmp_path)
    again = GeneralisedLinear.load(tmp_path, protection=Plain())
    new = [Party("a", 50 * blocks[0][:4]), Party("b", blocks[1][:4])]
    assert np.array_equal(again.decision_function(new), model.decision_function(new))


def test_another_model_is_replaced_only_if_told(tmp_path: Path) -> None:
    plain(rounds=1).fit(parties(3)).save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    model = plain(rounds=5).fit(parties())
    with pytest.raises(SettingError, match=r"has another model \(shard-p0.npz, .*overwrite=True"):
        model.save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    model.save(tmp_path, overwrite=True)
    model.save(tmp_path)  # the same model again
    GeneralisedLinear.load(tmp_path, protection=Plain()).save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shard-p0.npz", "shard-p1.npz"]
    new = parties(labels=False)
    loaded = GeneralisedLinear.load(tmp_path, protection=Plain())
    assert np.array_equal(loaded.decision_function(new), model.decision_function(new))


def test_a_mixture_of_models_is_named(tmp_path: Path) -> None:
    for name, rounds in (("a", 1), ("b", 5)):
        plain(rounds=rounds).fit(parties()).save(tmp_path / name)
    (tmp_path / "b" / "shard-p1.npz").replace(tmp_path / "a" / "shard-p1.npz")
    said = "different models: shard-p1.npz and shard-p0.npz differ in training; load needs"
    with pytest.raises(DataError, match=said):
        GeneralisedLinear.load(tmp_path / "a", protection=Plain())
    with pytest.raises(DataError, match="a model of p0, p1 with shards of p0"):
        GeneralisedLinear.load(tmp_path / "b", protection=Plain())


# What is in the files.


@pytest.mark.parametrize("local", ["linear", "network"])
def test_a_shard_has_its_partys_parameters_and_nobody_elses(local: str, tmp_path: Path) -> None:
    model = plain(protection=Plain(local_model=local, hidden=(3,))).fit(parties(3))
    model.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"shard-p{k}.npz" for k in range(3)]
    for name in model.parties_:
        own = model.shards_[name]
        arrays = shard(tmp_path, name)
        scored = {"score_key", "score_ledger", "score_bits"} if name != model.parties_[-1] else set()
        fitted = {each for each in arrays if each.startswith(("fitted.", "label."))}
        assert any(each.startswith("label.") for each in fitted) == (name == model.parties_[-1])
        assert set(arrays) - fitted == {*own.to_arrays(), "public", *scored}
        kind = LinearModel if local == "linear" else NetworkModel
        assert np.array_equal(kind.from_arrays(arrays).parameters, own.parameters)
        everything = (tmp_path / f"shard-{name}.npz").read_bytes()
        for other in model.parties_:
            for number in model.shards_[other].parameters:
                if number != 0.0:
                    assert (np.float64(number).tobytes() in everything) == (other == name)


def test_what_all_know_is_the_same_in_every_shard_and_no_parameter(tmp_path: Path) -> None:
    plain().fit(parties(3)).save(tmp_path)
    notes = [json.loads(str(shard(tmp_path, f"p{k}")["public"])) for k in range(3)]
    assert notes[0] == notes[1] == notes[2]
    assert len(notes[0].pop("training")) == 16  # random, and different in every fit
    assert notes[0].pop("release") == release()
    assert notes[0] == {
        "format": 2,
        "estimator": "generalised-linear",
        "parties": ["p0", "p1", "p2"],
        "loss": "logistic",
        "margin_bound": 64.0,
        "fit_intercept": True,
        "classes": [0, 1],
        "key_holder": "key-holder",
    }


def test_phi_is_in_the_label_partys_shard_alone(tmp_path: Path) -> None:
    model = transfer()
    model.save(tmp_path)
    assert "phi" not in shard(tmp_path, "p0")
    assert shard(tmp_path, "p1")["phi"].shape == (3,)
    for name in model.parties_:
        assert np.array_equal(shard(tmp_path, name)["parameters"], model.shards_[name].parameters)


def test_no_array_needs_pickle(tmp_path: Path) -> None:
    plain().fit(parties()).save(tmp_path / "a")
    transfer().save(tmp_path / "b")
    for path in tmp_path.rglob("*.npz"):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                assert not archive.read(name).startswith(b"\x80")  # how a pickle begins
        with np.load(path, allow_pickle=False) as arrays:
            assert not any(arrays[name].dtype.hasobject for name in arrays.files)


# Damage.


class Bomb:
    """Would run when unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return (Path("/tmp/securefed-was-here").touch, ())


def write(folder: Path, party: str, **arrays: Any) -> None:
    with (folder / f"shard-{party}.npz").open("wb") as stream:
        np.savez(stream, **arrays)


def replace_public(folder: Path, **changes: Any) -> None:
    for party in ("p0", "p1"):
        arrays = shard(folder, party)
        note = {**json.loads(str(arrays.pop("public"))), **changes}
        write(
            folder, party, **arrays, public=np.array(json.dumps({k: v for k, v in note.items() if v != "-"}))
        )


DAMAGE: dict[str, Any] = {
    "empty": lambda f: (f / "shard-p0.npz").write_bytes(b""),
    "cut": lambda f: (f / "shard-p0.npz").write_bytes((f / "shard-p0.npz").read_bytes()[:-30]),
    "cut short": lambda f: (f / "shard-p0.npz").write_bytes((f / "shard-p0.npz").read_bytes()[:50]),
    "words": lambda f: (f / "shard-p0.npz").write_text("hello"),
    "a pickle": lambda f: (f / "shard-p0.npz").write_bytes(pickle.dumps(Bomb())),
    "a pickle inside": lambda f: write(f, "p0", model=np.array([Bomb()], dtype=object)),
    "an npy file": lambda f: (np.save(f / "x.npy", np.zeros(3)), (f / "x.npy").rename(f / "shard-p0.npz")),
    "missing": lambda f: (f / "shard-p0.npz").unlink(),
    "all missing": lambda f: [p.unlink() for p in f.iterdir()],
    "one too many": lambda f: (f / "shard-p9.npz").write_bytes((f / "shard-p0.npz").read_bytes()),
    "no note": lambda f: write(f, "p0", **{k: v for k, v in shard(f, "p0").items() if k != "public"}),
    "note of words": lambda f: write(f, "p0", **{**shard(f, "p0"), "public": np.array("hello")}),
    "note of numbers": lambda f: write(f, "p0", **{**shard(f, "p0"), "public": np.array("[1, 2]")}),
    "two models": lambda f: write(
        f, "p0", **{**shard(f, "p0"), "public": np.array(str(shard(f, "p0")["public"]).replace("1]", "2]"))}
    ),
    "no parties": lambda f: replace_public(f, parties="-"),
    "no classes": lambda f: replace_public(f, classes="-"),
    "no parameters": lambda f: write(f, "p0", public=shard(f, "p0")["public"]),
    "NaN": lambda f: write(f, "p0", **{**shard(f, "p0"), "parameters": np.full(3, np.nan)}),
    "another shape": lambda f: write(f, "p0", **{**shard(f, "p0"), "parameters": np.zeros((2, 2, 2))}),
    "another kind": lambda f: write(f, "p0", **{**shard(f, "p0"), "model": np.array("tree")}),
}


@pytest.mark.parametrize("what", DAMAGE)
@pytest.mark.parametrize("estimator", ["generalised linear", "transfer"])
def test_damage_is_named_in_one_line(what: str, estimator: str, tmp_path: Path) -> None:
    model: Any = plain(rounds=1).fit(parties()) if estimator == "generalised linear" else transfer()
    model.save(tmp_path)
    DAMAGE[what](tmp_path)
    with pytest.raises(DataError) as caught:
        type(model).load(tmp_path, protection=Plain())
    assert "\n" not in str(caught.value)
    assert not Path("/tmp/securefed-was-here").exists()


def test_a_model_of_the_other_estimator_is_refused(tmp_path: Path) -> None:
    plain(rounds=1).fit(parties()).save(tmp_path / "linear")
    transfer().save(tmp_path / "transfer")
    with pytest.raises(DataError, match="a shard of a generalised-linear model, which this estimator"):
        TransferLearner.load(tmp_path / "linear")
    with pytest.raises(DataError, match="a shard of a transfer model, which this estimator"):
        GeneralisedLinear.load(tmp_path / "transfer")
    with pytest.raises(DataError, match="no model shards there"):
        GeneralisedLinear.load(tmp_path / "nowhere")


def test_what_a_model_was_trained_with_cannot_be_given_again(tmp_path: Path) -> None:
    plain(protection=Plain(margin_bound=30.0)).fit(parties(2)).save(tmp_path / "linear")
    with pytest.raises(SettingError, match=r"margin_bound: 5.0 given, the saved model's 30.0 stands"):
        GeneralisedLinear.load(tmp_path / "linear", protection=Plain(margin_bound=5))
    transfer().save(tmp_path / "transfer")
    with pytest.raises(SettingError, match="hidden: 4 given, the saved model's 3 stands"):
        TransferLearner.load(tmp_path / "transfer", hidden=4)
