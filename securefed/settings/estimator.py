"""Settings of runs in one process: what estimators have besides the settings that parties share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from securefed.errors import SettingError
from securefed.labels.base_model import LabelOptions, check_class_weight, check_family
from securefed.labels.calibration import check_threshold
from securefed.settings.declare import Declared, anything, choice, flag, optional, setting
from securefed.transport import get_network

__all__ = ["Labels", "Local", "LocalLinear", "Simulation"]


def _class_weight(name: str, value: Any) -> Any:
    check_class_weight(value)
    return value


def _family(name: str, value: Any) -> Any:
    check_family(value)
    return value


def _threshold(name: str, value: Any) -> Any:
    return check_threshold(value)


def _network(name: str, value: Any) -> Any:
    get_network(value)
    return value


@dataclass(frozen=True, kw_only=True, repr=False)
class Labels(Declared):
    """What the label party wants of its rows and answers. Nobody else learns of it."""

    class_weight: Any = setting(
        "auto",
        _class_weight,
        'How much classes count: "balanced", a weight for each class, or None. "auto": half way to balanced '
        "where one of two classes has less than a tenth of the rows and the run is blind.",
        example="auto",
    )
    family: Any = setting(
        None,
        _family,
        'Counts and amounts by their logarithm, with loss "linear": "poisson", "gamma", or a power of the '
        "variance from 1 to 2 (Tweedie). The offset is the logarithm of the exposure.",
        example="poisson",
    )
    base: str = setting(
        "zero",
        choice(("zero", "own")),
        '"own": the label party fits its own columns first, and the joint training fits what is left.',
    )
    threshold: Any = setting(
        "half",
        _threshold,
        'Where `predict` draws the line: "half", a probability, or the best on held-out rows by "accuracy", '
        '"f1" or "balanced".',
    )

    def options(self, *, weighted: bool, offset: bool) -> LabelOptions:
        """What training has to know of it."""
        family = check_family(self.family)
        return LabelOptions(self.base == "own", self.class_weight, family, weighted, offset)


@dataclass(frozen=True, kw_only=True, repr=False)
class Simulation(Declared):
    """How all parties run in this process."""

    network: Any = setting(
        "lan", _network, "Network profile of the clock, see securefed.transport.get_network."
    )
    engine: Any = setting(
        None, anything, 'Parallel work inside a party: "serial", "processes", a number, or "ray".'
    )
    progress: bool | None = setting(None, optional(flag), "Show a progress bar; None shows it at a terminal.")


def _instance(kind: type[Declared]) -> Any:
    def check(name: str, value: Any) -> Any:
        if not isinstance(value, kind):
            raise SettingError(f"{name}: {value!r} given, {kind.__name__}(...) is allowed")
        return value

    return check


@dataclass(frozen=True, kw_only=True, repr=False)
class Local(Declared):
    """What every estimator has besides the settings of its objective."""

    standardise: bool = setting(
        True,
        flag,
        "Whether every party gives its columns mean 0 and variance 1 by its own rows, cut at 16 from 0.",
    )
    simulation: Simulation = setting(
        Simulation(), _instance(Simulation), "Simulation(network, engine, progress): the run in this process."
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class LocalLinear(Local):
    """Besides, what the generalised linear estimator has."""

    labels: Labels = setting(
        Labels(),
        _instance(Labels),
        "Labels(class_weight, family, base, threshold): what the label party wants of its rows and answers.",
    )
    warm_start: bool = setting(
        False,
        flag,
        "A further `fit` begins where the last one ended: blind, or in the clear. Columns are prepared as "
        "they were then, and nothing is learnt from held-out rows.",
    )
