"""What the package exports, name by name: a change here is a change for users (docs/reference.md)."""

from __future__ import annotations

from importlib import import_module

import pytest

PUBLIC = {
    "securefed": """
        Adam Blind Constant DataError FedBCD FedSGD GeneralisedLinear InverseSqrt InverseSqrtParties Labels
        MissingExtra Monitoring MultiClass OwnGradient Party Plain RunResult SGD SecurefedError SettingError
        Simulation TransferLearner
        VerticalClassifier VerticalRegressor __version__
    """,
    "securefed.api": """
        GeneralisedLinear MultiClass TransferLearner VerticalClassifier VerticalRegressor
    """,
    "securefed.crypto": """
        DEFAULT_SCHEME Encrypted FixedPoint KEY_KINDS KeyHolder KeyKind Mapper Mask Masked Opened
        PublicKey SCHEMES SchemeEntry Serial
        cross_lengths cross_scheme find_kind generate key_kind load_key load_public_key protects register
        save_key
    """,
    "securefed.audit": """
        AuditReport CLAIMS Claim Receipt Recorded Seen audit read_run receipts write_transcripts
    """,
    "securefed.cli": "main",
}


@pytest.mark.parametrize("name", PUBLIC)
def test_what_is_public_is_this(name: str) -> None:
    module = import_module(name)
    assert sorted(module.__all__) == sorted(PUBLIC[name].split())
    assert all(hasattr(module, word) for word in module.__all__)


def test_what_the_package_exports_is_listed_and_no_more() -> None:
    package = import_module("securefed")
    assert dir(package) == sorted(package.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Paty'"):
        _ = package.Paty
