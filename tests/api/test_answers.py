"""What predictions look like: whose rows, in which order, with which ids."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from securefed import GeneralisedLinear, Party, Plain, TransferLearner
from tests.api.cases import columns, plain

BLOCKS, LABELS = columns(2, 30)
NAMES = np.array([f"P-{row:02d}" for row in range(30)])
METHODS = ("predict", "predict_proba", "decision_function")


def fitted(labels: Any = LABELS, **settings: Any) -> GeneralisedLinear:
    model: GeneralisedLinear = plain(rounds=3, **settings)
    return model.fit([Party("shop", BLOCKS[0]), Party("bank", BLOCKS[1], labels=labels)])


def people(shop: Any, bank: Any, ids: Any = NAMES) -> list[Party]:
    """Those rows of the two parties, with ids."""
    return [Party("shop", BLOCKS[0][shop], ids=ids[shop]), Party("bank", BLOCKS[1][bank], ids=ids[bank])]


@pytest.mark.parametrize("method", METHODS)
def test_answers_are_for_the_label_partys_rows_in_its_order(method: str) -> None:
    model = fitted()
    everybody = np.asarray(getattr(model, method)([Party("shop", BLOCKS[0]), Party("bank", BLOCKS[1])]))
    shop, bank = np.arange(29, -1, -1), np.array([7, 3, 11, 0])
    answers = getattr(model, method)(people(shop, bank))
    assert answers.index.tolist() == ["P-07", "P-03", "P-11", "P-00"]
    assert np.allclose(answers.to_numpy(), everybody[bank])


def test_types_and_names_of_answers() -> None:
    model, rows = fitted(np.where(LABELS == 1, "good", "bad")), people(slice(5), slice(5))
    assert isinstance(model.predict(rows), pd.Series) and isinstance(model.decision_function(rows), pd.Series)
    assert [model.predict(rows).name, model.decision_function(rows).name] == ["prediction", "score"]
    likely = model.predict_proba(rows)
    assert list(likely.columns) == ["bad", "good"] and np.allclose(likely.sum(axis=1), 1.0)
    several = fitted(np.array(["a", "b", "c"] * 10))
    assert list(several.decision_function(rows).columns) == ["a", "b", "c"]
    assert several.predict(rows).isin(["a", "b", "c"]).all()


def test_the_index_has_the_name_of_the_id_column() -> None:
    shop = pd.DataFrame(BLOCKS[0]).assign(patient=NAMES)
    bank = pd.DataFrame(BLOCKS[1]).assign(person=NAMES)
    parties = [Party("shop", shop, ids="patient"), Party("bank", bank, labels=LABELS, ids="person")]
    assert plain(rounds=1).fit(parties).predict(parties).index.name == "person"


def test_arrays_without_ids_or_without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fitted()
    for method in METHODS:
        assert (
            type(getattr(model, method)([Party("shop", BLOCKS[0]), Party("bank", BLOCKS[1])])) is np.ndarray
        )
    monkeypatch.setitem(sys.modules, "pandas", None)
    for method in METHODS:
        assert type(getattr(model, method)(people(slice(5), slice(5)))) is np.ndarray


@pytest.mark.parametrize("method", METHODS)
def test_rows_that_another_party_does_not_have_are_counted_and_named(method: str) -> None:
    model = fitted()
    said = r"^bank: 8 of 10 rows get no answer, since not all parties have them: P-00, P-01, .*P-04, \.\.\.$"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        answers = getattr(model, method)(people(slice(8, 30), slice(10)))
    mine = [each for each in caught if "get no answer" in str(each.message)]
    assert len(mine) == 1 and mine[0].filename == __file__
    with pytest.warns(UserWarning, match=said):
        getattr(model, method)(people(slice(8, 30), slice(10)))
    assert answers.index.tolist() == ["P-08", "P-09"]


def transfer(**settings: Any) -> TransferLearner:
    return TransferLearner(3, rounds=2, protection=Plain(allow_determined=True), **settings)


class TestTransfer:
    def parties(self, form: str) -> list[Party]:
        """Twenty people are shared, who are in capitals at one party."""
        return [
            Party("shop", BLOCKS[0][10:], ids=np.char.lower(NAMES[10:]), id_form=form),
            Party("bank", BLOCKS[1], labels=LABELS, ids=NAMES, id_form=form),
        ]

    def test_the_form_of_ids_counts(self) -> None:
        model = transfer().fit(self.parties("caseless"))
        twin = transfer().fit(
            [Party("shop", BLOCKS[0][10:], ids=NAMES[10:]), Party("bank", BLOCKS[1], LABELS, NAMES)]
        )
        shop = Party("shop", BLOCKS[0])
        assert np.array_equal(model.decision_function(shop), twin.decision_function(shop))
        assert 0.0 <= model.score(self.parties("caseless"), "AUC") <= 1.0
        with pytest.raises(ValueError, match="have no id in common"):
            transfer().fit(self.parties("exact"))

    def test_answers_have_the_ids_of_the_party_without_labels(self) -> None:
        model = transfer().fit(self.parties("caseless"))
        answers = model.predict(Party("shop", BLOCKS[0][:3], ids=["x", "y", "z"]))
        assert answers.index.tolist() == ["x", "y", "z"]

    def test_the_metric_that_is_asked_for_is_measured(self) -> None:
        parties = self.parties("caseless")
        model = transfer().fit(parties)
        shared = Party("bank", BLOCKS[1][10:], LABELS[10:], NAMES[10:], id_form="caseless")
        scores = model.decision_function(parties[0])
        assert model.score([parties[0], shared], "AUC") == pytest.approx(roc_auc_score(LABELS[10:], scores))
