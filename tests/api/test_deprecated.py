"""`scheme` and `reveal` of version 0.1 keep working for one version, and say the new form."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.base import clone

from securefed import Blind, FedSGD, GeneralisedLinear, MultiClass, OwnGradient, Plain, SettingError
from tests.api.cases import parties

OLD: list[tuple[dict[str, Any], Any]] = [
    ({"scheme": "paillier"}, Blind(scheme="paillier")),
    ({"reveal": "own-gradient"}, OwnGradient()),
    ({"reveal": "own-gradient", "scheme": "paillier"}, OwnGradient(scheme="paillier")),
    ({"scheme": "plain"}, Plain()),
    ({"scheme": "plain", "reveal": "own-gradient"}, Plain()),
]


@pytest.mark.parametrize(("old", "new"), OLD)
def test_scheme_and_reveal_become_a_protection(old: dict[str, Any], new: Any) -> None:
    with pytest.warns(DeprecationWarning, match="will go with the next version; write ") as warned:
        model = GeneralisedLinear(**old)
    assert model.get_params() == GeneralisedLinear(protection=new).get_params()
    assert f"protection={new!r}" in str(warned[0].message)
    assert warned[0].filename == __file__
    with pytest.warns(DeprecationWarning, match="will go") as warned:
        later = GeneralisedLinear().set_params(**old)
    assert warned[0].filename == __file__
    assert later.get_params() == model.get_params() and clone(later).get_params() == model.get_params()


def test_set_params_keeps_the_other_settings_of_a_protection() -> None:
    model = GeneralisedLinear(protection=OwnGradient(batch_size=9))
    with pytest.warns(DeprecationWarning, match="scheme"):
        model.set_params(scheme="paillier")
    assert model.protection == OwnGradient(scheme="paillier", batch_size=9)


def test_what_is_no_parameter_is_refused_by_name() -> None:
    with pytest.raises(SettingError, match="reveal must be one of 'nothing', 'own-gradient', not 'all'"):
        GeneralisedLinear(reveal="all")  # type: ignore[call-arg]
    with pytest.raises(SettingError, match="GeneralisedLinear: unknown key 'roundz'; did you mean 'rounds'"):
        GeneralisedLinear(roundz=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="too many positional arguments"):
        GeneralisedLinear("linear", FedSGD())  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="batch_size"):
        Blind(batch_size=9)  # type: ignore[call-arg]


def test_multi_class_is_its_estimator() -> None:
    with pytest.warns(DeprecationWarning, match="take three classes and more by themselves"):
        model = MultiClass(GeneralisedLinear(rounds=2, protection=Plain(like="blind")))
    assert isinstance(model, GeneralisedLinear) and model.fit(parties()).predict(parties()).shape == (30,)
