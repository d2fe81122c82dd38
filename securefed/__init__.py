"""Vertical federated learning under homomorphic encryption.

Organisations that hold different columns about the same people train and use one model together; what each
of them sees is its own data and what the protocol reveals to it by design.

    from securefed import FedBCD, GeneralisedLinear, Party

    shop = Party("shop", shop_columns)
    bank = Party("bank", bank_columns, labels=defaulted)
    model = GeneralisedLinear(algorithm=FedBCD(local_steps=20)).fit([shop, bank])
    print(model.result_)

`GeneralisedLinear` takes two or more parties, `TransferLearner` two that share only some people.
`securefed.crypto` is the layer below everything and is usable by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from securefed.errors import DataError, MissingExtra, SecurefedError, SettingError

if TYPE_CHECKING:
    from securefed.api import (
        GeneralisedLinear,
        MultiClass,
        TransferLearner,
        VerticalClassifier,
        VerticalRegressor,
    )
    from securefed.api.party import Party
    from securefed.api.result import RunResult
    from securefed.protocols import SGD, Adam, Constant, FedBCD, FedSGD, InverseSqrt, InverseSqrtParties
    from securefed.settings import Blind, Labels, Monitoring, OwnGradient, Plain, Simulation

__all__ = [
    "SGD",
    "Adam",
    "Blind",
    "Constant",
    "DataError",
    "FedBCD",
    "FedSGD",
    "GeneralisedLinear",
    "InverseSqrt",
    "InverseSqrtParties",
    "Labels",
    "MissingExtra",
    "Monitoring",
    "MultiClass",
    "OwnGradient",
    "Party",
    "Plain",
    "RunResult",
    "SecurefedError",
    "SettingError",
    "Simulation",
    "TransferLearner",
    "VerticalClassifier",
    "VerticalRegressor",
    "__version__",
]

__version__ = "0.1.0"

# Loaded when first used, so that `import securefed.crypto` does not load everything above it.
_HOMES = ("protocols", "settings", "api", "api.party", "api.result")


def __getattr__(name: str) -> Any:
    from importlib import import_module

    for home in _HOMES if name in __all__ else ():
        if hasattr(module := import_module(f"securefed.{home}"), name):
            return getattr(module, name)
    raise AttributeError(f"module 'securefed' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
