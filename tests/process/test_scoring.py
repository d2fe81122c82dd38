"""What a key-holder party believes of a prediction: the label party's word on how many people there are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from securefed.errors import SettingError
from securefed.process.scoring import Scoring


@pytest.mark.parametrize("said", [3, None, "7"])
def test_no_more_people_are_in_common_than_any_party_has_rows(said: Any) -> None:
    scoring: Any = object.__new__(Scoring)
    scoring._shared = SimpleNamespace(parties=("shop", "bank"), label_party="bank")
    link: Any = SimpleNamespace(hello={"shop": {"rows": 5}, "bank": {"rows": 9}})
    scoring._check_due(link, 5)
    link.hello["shop"]["rows"] = said
    with pytest.raises(SettingError, match=f"bank says that 5 people are in common, and shop said .* {said}"):
        scoring._check_due(link, 5)
