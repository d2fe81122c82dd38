"""Predictions: what a key-holder believes, and the label party's file of scores, figures and hash."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sklearn.metrics import roc_auc_score

from securefed.audit.verify import verify
from securefed.errors import SettingError
from securefed.labels.label_model import LabelModel
from securefed.process.keys import Signatures
from securefed.process.model_files import Shard
from securefed.process.scoring import NewRows, Scored, Scoring, _stability, figures, write_scores
from securefed.protocols.losses import get_loss
from securefed.transport.identity import Identity
from securefed.transport.message import Path as ClockPath
from securefed.transport.transcript import Transcript


@pytest.mark.parametrize("said", [3, None, "7"])
def test_no_more_people_are_in_common_than_any_party_has_rows(said: Any) -> None:
    scoring: Any = object.__new__(Scoring)
    scoring._shared = SimpleNamespace(parties=("shop", "bank"), label_party="bank")
    link: Any = SimpleNamespace(hello={"shop": {"rows": 5}, "bank": {"rows": 9}})
    scoring._check_due(link, 5)
    link.hello["shop"]["rows"] = said
    with pytest.raises(SettingError, match=f"bank says that 5 people are in common, and shop said .* {said}"):
        scoring._check_due(link, 5)


PEOPLE = 200


def prediction(seed: int = 3) -> tuple[NewRows, Scored, Shard]:
    """Scores of people in an order of their own; labels of all but every tenth."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=PEOPLE)
    order = rng.permutation(PEOPLE).astype(np.intp)
    truth = (scores + rng.normal(size=PEOPLE) > 0).astype(float)
    labels = np.full(PEOPLE, np.nan)
    labels[order] = np.where(np.arange(PEOPLE) % 10 == 0, np.nan, truth)
    rows = NewRows([f"p{n}" for n in range(PEOPLE)], PEOPLE, None, id_name="person", labels=labels)
    side = LabelModel(get_loss("logistic"), np.array([0.0, 1.0]))
    shard = Shard(
        "", cast(Any, None), labels=side, training_scores=np.quantile(scores, np.linspace(0, 1, 101))
    )
    return rows, Scored(order, scores, ClockPath(), ClockPath(), Transcript("bank", "trial/predict")), shard


def test_the_figures_are_those_of_the_people_with_labels() -> None:
    rows, scored, shard = prediction()
    assert rows.labels is not None and scored.scores is not None
    facts = figures("bank", rows, scored, shard)
    assert json.loads(json.dumps(facts)) == facts
    truth = rows.labels[scored.rows]
    known = ~np.isnan(truth)
    assert facts["quality"]["rows"] == known.sum() == 180
    assert facts["quality"]["value"] == pytest.approx(roc_auc_score(truth[known], scored.scores[known]))
    low, high = facts["quality"]["interval"]
    assert low < facts["quality"]["value"] < high
    more = facts["quality"]["more"]
    assert more["Gini"] == pytest.approx(2 * facts["quality"]["value"] - 1) and 0 < more["KS"] < 1
    assert facts["gain"][-1]["found"] == 1.0 and len(facts["gain"]) == 10
    assert facts["psi"] < 0.02, "the same people"
    assert figures("bank", rows, replace(scored, scores=scored.scores + 3), shard)["psi"] > 1, "other people"


def test_without_labels_and_training_scores_there_are_no_figures() -> None:
    rows, scored, shard = prediction()
    bare = figures("bank", replace(rows, labels=None), scored, replace(shard, training_scores=None))
    assert bare == {"quality": None, "gain": None, "psi": None}
    unknown = np.full(PEOPLE, np.nan)
    assert figures("bank", replace(rows, labels=unknown), scored, shard)["quality"] is None


def test_the_stability_of_few_people_is_not_taken_for_a_difference() -> None:
    """Alike people, 80 of the training and 150 new ones, a hundred times; and too few to say anything."""
    rng = np.random.default_rng(5)
    for _ in range(100):
        index = _stability(rng.normal(size=80), rng.normal(size=150))
        assert index is not None and index < 0.25
    assert _stability(rng.normal(size=80), rng.normal(1.0, size=150)) > 0.25  # type: ignore[operator]
    assert _stability(rng.normal(size=30), rng.normal(size=30)) is None


def test_the_file_keeps_the_name_of_the_ids_and_its_hash_is_signed(tmp_path: Path) -> None:
    """A changed score is found by `securefed verify`, and so is a changed transcript."""
    rows, scored, shard = prediction()
    path, transcript = tmp_path / "scores.csv", tmp_path / "prediction-bank.jsonl"
    scored.transcript.stream_to(transcript)
    write_scores(path, rows, scored, shard)
    scored.transcript.close()
    keys: Any = SimpleNamespace(identity=Identity.generate("bank"), signing_key=Ed25519PrivateKey.generate())
    signed = Signatures(keys, scored.transcript, "0123456789abcdef").to_file({})
    (tmp_path / "prediction-signatures-bank.json").write_text(json.dumps(signed))
    with path.open() as file:
        lines = list(csv.DictReader(file))
    assert list(lines[0]) == ["person", "score", "probability", "predicted"]
    assert [line["person"] for line in lines] == rows.ids
    (entry,) = scored.transcript.of("scored")
    assert entry.detail == {"file": "scores.csv", "digest": sha256(path.read_bytes()).hexdigest()}

    def verdicts() -> dict[str, str]:
        return {what: verdict for verdict, what, _ in verify(tmp_path)}

    assert set(verdicts().values()) == {"pass"} and "scores of bank" in verdicts()
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"p7,", b"p8,", 1))
    assert verdicts()["scores of bank"] == "FAIL"
    path.unlink()
    assert verdicts()["scores of bank"] == "skip"
    path.write_bytes(whole)
    text = transcript.read_text()
    transcript.write_text(text.replace(entry.detail["digest"], "0" * 64))
    assert verdicts()["chain of prediction-bank.jsonl"] == "FAIL"
    transcript.write_text(text)
    other = Transcript("bank", "trial/predict")
    other.note("scored", "scores", "", 0, 0, "prediction", **{**entry.detail, "digest": "0" * 64})
    other.save(transcript)
    assert verdicts()["signature of bank"] == "FAIL", "a transcript that was made anew is not signed"
