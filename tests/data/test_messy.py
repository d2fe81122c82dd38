"""Tables as people have them: gaps, dates, slips, categories, and ids that another program wrote."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securefed import GeneralisedLinear, Party, Plain
from securefed.api.party import align
from securefed.data.column_types import column_type, parse_date, parse_digits
from securefed.data.columns import FittedColumns, decided, prepared
from securefed.data.ids import ID_FORMS, normalise_id, normalise_ids
from securefed.data.readings import Policy, read_column
from securefed.data.rows import read_rows
from securefed.errors import DataError, SettingError
from securefed.process.own_data import prepare_columns
from securefed.settings.party import DataSettings
from tests.data.fitting import apply, fit

FILE = """\
id,born,joined,income,region,grade,late
746.0,1980-02-29,01.03.2020,100,north,a,0
747.0,1990-06-30,02.03.2020,NA,south,b,1
748.0,2000-12-31,04.07.2021,300,,a,0
749.0,,05.07.2021,500,north,c,1
"""


def table(folder: Path, text: str = FILE) -> Any:
    (folder / "data.csv").write_text(text)
    return read_rows(folder / "data.csv")


def prepare(rows: Any, way: DataSettings) -> Any:
    return prepare_columns(replace(rows, policy=way.policy), way)


def settings(**more: Any) -> DataSettings:
    return DataSettings(**{"file": "data.csv", "id": "id", "label": "late", "standardise": False, **more})


DATES = {"born": "age", "joined": "parts"}


def test_a_messy_file_becomes_numbers_that_other_rows_get_by_the_same_measure(tmp_path: Path) -> None:
    way = settings(dates=DATES, impute={"born": "median", "income": "indicator", "region": "most-frequent"})
    columns, numbers = prepare(table(tmp_path), way)
    found = dict(zip(columns.names, numbers.T.tolist(), strict=True))
    assert found["born.age"] == pytest.approx([20.838, 10.505, 0.0, 10.505], abs=1e-3)
    assert found["joined.year"] == [2020, 2020, 2021, 2021] and found["joined.month=07"] == [0, 0, 1, 1]
    assert found["joined.weekday=7"] == [1, 0, 1, 0], "1 March 2020 and 4 July 2021 were Sundays"
    assert found["income"] == [100, 300, 300, 500] and found["income?"] == [0, 1, 0, 0]
    assert found["region=north"] == [1, 0, 1, 1] and "region=" not in found
    kept = FittedColumns.from_arrays(columns.to_arrays())
    new = table(tmp_path, "id,born,joined,income,region,grade\n9,,2020-03-01,?,south,a\n")
    numbers, unknown = prepared(kept, new)
    found = dict(zip(kept.names, numbers[0].tolist(), strict=True))
    assert not unknown and found["born.age"] == pytest.approx(10.505, abs=1e-3)
    assert (found["income"], found["income?"], found["joined.weekday=7"]) == (300, 1, 1)
    told = " ".join(decided(columns, table(tmp_path)))
    assert "born: dates, taken as age, in years before 2000-12-31" in told
    assert "income: 1 of 4 values are missing, marked as missing" in told


def test_everything_that_is_wrong_is_one_list(tmp_path: Path) -> None:
    many = FILE.replace(",500,", ",50O,") + "750.0,1999-01-01,01.01.2020,7,west,a,0\n" * 4
    with pytest.raises(DataError) as caught:
        prepare(table(tmp_path, many), settings(one_hot=["gradf"], drop=["nothing"]))
    assert len(caught.value.problems) == 1, "what to take is not known before what to leave is"
    with pytest.raises(DataError) as caught:
        prepare(table(tmp_path, many), settings())
    said = caught.value.problems
    assert [
        word for word in ("born", "joined", "income", "region") for line in said if f"'{word}'" in line
    ] == [
        "born",
        "joined",
        "income",
        "region",
    ]
    assert "dates = { born = 'age' }" in str(caught.value) and "'50O' in row 4" in str(caught.value)


@pytest.mark.parametrize("impute", ["median", "most-frequent"])
def test_what_is_filled_comes_from_the_training_rows_alone(impute: str) -> None:
    trained = {"x": np.array([1.0, 1.0, 2.0, 9.0, np.nan]), "w": np.array(["a", "a", "b", "", "a"])}
    columns, _ = fit(trained, standardise=False, policy=Policy(impute=impute))
    numbers, unknown = apply(columns, {"x": np.array([np.nan, 100.0]), "w": np.array(["", "b"])})
    assert numbers.tolist() == [[1.5 if impute == "median" else 1.0, 1, 0], [100.0, 0, 1]] and not unknown


def test_a_gap_that_training_did_not_have_is_filled_and_told_where_gaps_are_marked() -> None:
    columns, _ = fit({"x": np.array([1.0, 2.0, 6.0])}, policy=Policy(impute="indicator"), standardise=False)
    assert apply(columns, {"x": np.array([np.nan])})[0].tolist() == [[2.0]]
    assert apply(columns, {"x": np.array([np.nan])})[1] == {"x": 1}
    with pytest.raises(DataError, match="column 'x' has no values at all"):
        apply(fit({"x": np.array([1.0])})[0], {"x": np.array([np.nan])})


def test_rare_categories_and_unknown_ones() -> None:
    words = {"w": np.array(["a"] * 5 + ["b"] * 5 + ["c", "d"])}
    columns, numbers = fit(words, policy=Policy(rare=2, unknown="refuse"), standardise=False)
    assert columns.names == ["w=a", "w=b", "w=(rare)"] and numbers[-1].tolist() == [0, 0, 1]
    again = FittedColumns.from_arrays(columns.to_arrays())
    assert apply(again, {"w": np.array(["c"])})[0].tolist() == [[0, 0, 1]]
    with pytest.raises(DataError, match="column 'w' has 'e', which training did not have"):
        apply(again, {"w": np.array(["a", "e"])})


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        (["1", " 2.5 ", "", "NA"], "number"),
        ([1, None, True, np.float32(2)], "number"),
        (["2024-01-31", "2024/02/01", "", "31.12.2024 23:59"], "date"),
        (["2024-02-30", "2024-01-01"], "words"),
        (["20240131", "20240201"], "number"),
        (["a", "1", ""], "words"),
        (["none", "yes"], "words"),
    ],
)
def test_what_a_column_is(fields: list[object], kind: str) -> None:
    assert column_type(read_column(fields, "x", "shop").values).name == kind


@pytest.mark.parametrize(
    ("fields", "kind", "said"),
    [
        ([*(f"{n}.5" for n in range(9)), "12,5"], None, "('12,5' in row 10); write numbers as 12.5"),
        ([*(f"{n}.234" for n in range(9)), "12,5"], None, "('12,5' in row 10)"),
        (
            ["1,234", "2,345"],
            None,
            "'1,234' in row 1 may be 1.234 or 1234; say decimal = ',' or decimal = '.'",
        ),
        ([*map(str, range(9)), "lots"], None, "say missing = ['lots']"),
        (["03/01/2024", "04/01/2024"], None, "may be 2024-01-03 or 2024-03-01; say dayfirst = true or"),
        (["31/12/2024", "12/31/2024"], None, "write dates as 2024-12-31"),
        (["2024-01-01", "soon"], "date", "holds dates, but 1 field is not ('soon' in row 2)"),
        (["1", "x", "y"], "number", "holds numbers, but 2 fields are not ('x' in row 2)"),
        (["2024-01-01"] * 9 + ["unknown"], None, "say missing = ['unknown']"),
    ],
)
def test_slips_are_named_with_their_row(fields: list[object], kind: str | None, said: str) -> None:
    with pytest.raises(DataError, match="shop: column 'x'") as caught:
        read_column(fields, "x", "shop", kind=kind)
    assert said in str(caught.value)
    assert column_type(read_column(fields, "x", "shop", kind="words").values).name == "words"


def test_eight_digits_are_a_date_where_the_settings_say_so() -> None:
    assert parse_date("20240229") is None and str(parse_digits("20240229")) == "2024-02-29"
    assert parse_digits("20240230") is None
    for fields in (["20240229", "2024-03-01"], np.array([20240229, 20240301])):
        read = read_column(fields, "x", "shop", kind="date")
        assert read.values.astype(str).tolist() == ["2024-02-29", "2024-03-01"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"impute": "mean"}, "impute"),
        ({"impute": {"x": "mean"}}, "impute of x"),
        ({"dates": {"x": "week"}}, "dates: x"),
        ({"missing": "NA"}, "a list of"),
        ({"rare": 0}, "rare must be"),
        ({"unknown": "guess"}, "unknown"),
        ({"id_form": "soundex"}, "id_form"),
    ],
)
def test_decisions_that_are_none_are_refused_in_python_and_in_the_file(
    given: dict[str, Any], said: str
) -> None:
    with pytest.raises(SettingError, match=said):
        Party("shop", [[1.0]], **given)
    if "id_form" not in given:
        with pytest.raises(SettingError, match=said):
            settings(**given)


def test_python_and_the_file_make_the_same_numbers(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    way: dict[str, Any] = {"dates": DATES, "impute": "indicator", "missing": ["NA"]}
    _, numbers = prepare(table(tmp_path), settings(**way))
    frame = pandas.read_csv(tmp_path / "data.csv", parse_dates=["born"]).drop(columns=["id", "late"])
    ready, _ = Party("shop", frame, **way).fitted(standardise=False)
    assert np.array_equal(ready.features, numbers)
    with pytest.raises(DataError) as caught:
        Party("shop", frame).fitted()
    assert len(caught.value.problems) == 4, "born, joined, income and region"


def test_ids_meet_however_a_program_wrote_them() -> None:
    features = np.arange(3.0)
    one = Party("a", features, ids=[746, 747, 748])
    other = Party("b", features, ids=[" 748 ", "746.0", "9"])
    assert [party.rows for party in align([one, other], "a")] == [2, 2]
    forms = {form: normalise_id(" AB-007 c", form) for form in ID_FORMS}
    assert forms == {"exact": "AB-007 c", "caseless": "ab-007 c", "loose": "ab7c"}
    assert normalise_id("0", "loose") == "0" and normalise_id("1001", "loose") == "1001"
    with pytest.raises(DataError, match="more than once"):
        normalise_ids(["Ann", "ann"], "shop", "caseless")
    with pytest.raises(SettingError, match="all parties take the same"):
        align([one, Party("b", features, ids=[1, 2, 3], id_form="loose")], "a")


def test_all_are_told_that_ids_do_not_meet() -> None:
    with pytest.raises(DataError, match=r"have no id in common: .*id_form = 'caseless'") as caught:
        align([Party("a", [1.0], ids=[746]), Party("b", [1.0], ids=["Secret Name"])], "a")
    assert "Secret" not in str(caught.value) and "746" not in str(caught.value)


def test_labels_say_what_they_may_be() -> None:
    features, ids = np.arange(40.0), np.arange(40)
    for labels, said in (
        (np.arange(40.0), "for numbers use loss='linear'"),
        (np.ones(40), "nothing to learn"),
    ):
        parties = [Party("a", features, ids=ids), Party("b", features, labels, ids)]
        with pytest.raises(DataError, match=said):
            GeneralisedLinear(protection=Plain()).fit(parties)
