"""How a run is protected, as a value: `Blind()`, `OwnGradient()` or `Plain()`.

    Blind          no party sees gradients or parameters; linear models
    OwnGradient    each party sees its own aggregated gradients, the paper's way
    Plain          no protection at all

Each has its own settings only, so that combinations without a meaning cannot be written.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from securefed.crypto import DEFAULT_SCHEME, SCHEMES, protects
from securefed.declare import (
    Declared,
    accepted,
    again,
    anything,
    check_choice,
    choice,
    declared,
    flag,
    instance,
    integer,
    number,
    optional,
    setting,
    word_or,
)
from securefed.errors import SettingError
from securefed.models import ACTIVATIONS, HiddenLayer, LocalModel
from securefed.protocols.scoring.blur import MOST_PRECISION, PRECISION
from securefed.protocols.scoring.score_ledger import MODES
from securefed.protocols.steps import get_optimiser

OLD_WORDS = ("scheme", "reveal")
"""What version 0.1 had in place of a protection. They keep working for one version."""


def _batch_size(name: str, value: Any) -> int | None:
    """TOML has no None: 0 stands for it."""
    return None if value == 0 and value is not False else integer(least=1)(name, value)


@dataclass(frozen=True, kw_only=True, repr=False)
class Protection(Declared):
    """The base of the three protections."""

    kind: ClassVar[str]
    """The word in party.toml."""
    reveal: ClassVar[Literal["nothing", "own-gradient"]]
    """What training shows a party."""
    summary: ClassVar[str]
    """The kind in a line."""

    scheme: str = setting(DEFAULT_SCHEME, anything, '"ckks" (lattices, fast) or "paillier" (factoring).')
    score_ledger: str = setting(
        "refuse",
        choice(MODES),
        'When scores would show too much of a person\'s columns: "refuse"; or "off": only count.',
        in_file=False,
    )

    @classmethod
    def fits(cls, scheme: str) -> bool:
        """Whether a scheme can protect in this way."""
        return protects(scheme)

    def check(self) -> None:
        check_choice("scheme", self.scheme, [each for each in SCHEMES if self.fits(each)])

    def as_kind(self, kind: type[Protection], **changes: Any) -> Protection:
        """Another protection with the same settings, as far as it has them."""
        names = declared(kind).keys() & declared(type(self)).keys()
        return kind(**{**{name: getattr(self, name) for name in names}, **changes})


@dataclass(frozen=True, kw_only=True, repr=False)
class Blind(Protection):
    """No party sees gradients, parameters or intermediate results, not even its own.

    The model stays shared between two parties. It is linear, and local steps cost nothing. Scores are shown
    to the label party alone.
    """

    kind = "blind"
    summary = "no party sees gradients or parameters"
    reveal = "nothing"

    release: bool | str = setting(
        False,
        word_or("trusted", flag),
        "At the end, show each party its own parameters, blurred beyond four digits. A party without labels "
        'gets at most 1,000 bits; "trusted" lifts this limit where all parties trust each other.',
        objectives=("linear",),
    )
    score_precision: int = setting(
        PRECISION,
        integer(least=0, most=MOST_PRECISION),
        "Bits after the point that a score shows; the parties that are scored blur the rest.",
    )
    key_bits: int = setting(
        3072, integer(least=2048, most=8192), "Size of the Paillier keys that the run makes."
    )

    @classmethod
    def fits(cls, scheme: str) -> bool:
        return SCHEMES[scheme].blind is not None


def _check_local_model(name: str, value: Any) -> Any:
    for party, model in value.items() if isinstance(value, Mapping) else [(None, value)]:
        where = name if party is None else f"{name} of {party!r}"
        if isinstance(model, str):
            choice(("linear", "network"))(where, model)
        elif party is None or isinstance(model, HiddenLayer) or not isinstance(model, LocalModel):
            raise SettingError(
                f"{where}: {type(model).__name__} given; 'linear', 'network', or in a mapping from parties a "
                "model with one output is allowed"
            )
    return value


@dataclass(frozen=True, kw_only=True, repr=False)
class ByGradient(Protection):
    """What training by opened gradients and training in the clear have in common."""

    local_model: Any = setting(
        "linear",
        lambda name, value: _check_local_model(name, value),
        'Each party\'s model: "linear" or "network". In Python also a mapping from parties to these words '
        "or to models.",
        objectives=("linear",),
    )
    hidden: Any = setting(
        (16,),
        lambda name, value: tuple(value) if isinstance(value, list) else value,
        "Widths of a network's hidden layers.",
        objectives=("linear",),
        example=[16],
    )
    activation: str | None = setting(
        None,
        optional(choice(ACTIVATIONS)),
        'Activation of hidden layers: "sigmoid", "tanh" or "relu". Left out: "tanh" for networks, "sigmoid" '
        "for transfer learning.",
        example="tanh",
    )
    optimiser: Any = setting(
        None,
        optional(accepted(get_optimiser)),
        '"sgd" or "adam". Left out: "sgd" for linear models and networks, "adam" for transfer learning.',
        example="sgd",
    )
    batch_size: int | None = setting(
        None, optional(_batch_size), "Rows of a round's mini-batch. Left out or 0: all rows.", example=512
    )
    fixed_batches: bool = setting(
        False, flag, "Cut the rows into batches once. This gives less of the labels away than new batches."
    )
    exchange: str = setting(
        "star",
        choice(("star", "pairwise")),
        'Who sends to whom: "star" (through the label party) or "pairwise".',
        objectives=("linear",),
    )
    margin_bound: float = setting(
        64.0,
        number(above=0.0),
        "Public bound on a party's part of a score and on labels that are numbers. Past it the run stops.",
        objectives=("linear",),
    )
    activation_bound: float = setting(
        64.0, number(above=0.0), "Public bound on what relu may reach.", objectives=("transfer",)
    )
    allow_determined: bool = setting(
        False, flag, "Open gradients even where the ledger says that they determine another party's secrets."
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class OwnGradient(ByGradient):
    """Each party sees its own aggregated gradients, as in the paper.

    The peers must be trusted not to cheat. A crafted request shows single residuals (Paillier) or the whole
    secret key (CKKS).
    """

    kind = "own-gradient"
    summary = "each party sees its own gradients; needs keys (securefed init NAME --renew ckks)"
    reveal = "own-gradient"

    score_precision: int = again(Blind, "score_precision")
    key_bits: int = again(Blind, "key_bits", doc="Size of the Paillier keys.", in_file=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class Plain(ByGradient):
    """No protection at all: for tests, and to tune settings quickly.

    `Plain()` trains the exact loss. `Plain(like="blind")` trains in the clear what `Blind()` trains under
    encryption: the same Taylor loss, the same weights of rare classes, the same steps. Two things differ with
    few rows: scores have no blur, and three classes or more have a second stage each by itself.
    `Plain(like="own-gradient")` does the same for `OwnGradient()`. Every result says that nothing was
    protected.
    """

    kind = "plain"
    summary = "NO protection"
    reveal = "own-gradient"

    scheme: str = again(Protection, "scheme", default="plain", doc='The scheme without encryption, "plain".')
    like: str | None = setting(
        None,
        optional(choice(("blind", "own-gradient"))),
        'Train in the clear what "blind" or "own-gradient" train under encryption. Left out: the exact loss.',
        example="blind",
    )

    @classmethod
    def fits(cls, scheme: str) -> bool:
        return not protects(scheme)


PROTECTIONS: dict[str, type[Protection]] = {each.kind: each for each in (Blind, OwnGradient, Plain)}
"""Classes by the word in party.toml, the default first."""
DEFAULTS = {name: each.default for kind in PROTECTIONS.values() for name, each in declared(kind).items()}
check_protection = instance(*PROTECTIONS.values())


def protection_from_words(words: Mapping[str, Any], now: Protection) -> Protection:
    """The protection that `scheme` and `reveal` of version 0.1 stand for; other settings are as now."""
    known: dict[str, type[Protection]] = {"nothing": Blind, "own-gradient": OwnGradient}
    usual = "own-gradient" if isinstance(now, OwnGradient) else "nothing"
    kind = known[check_choice("reveal", words.get("reveal", usual), known)]
    scheme = check_choice("scheme", words.get("scheme", now.scheme), SCHEMES)
    return now.as_kind(kind if protects(scheme) else Plain, scheme=scheme)


def warn_of_words(where: str, words: Iterable[str], protection: Protection, *, stacklevel: int) -> None:
    """Say the new form of `scheme` and `reveal`."""
    warnings.warn(
        f"{where}: {', '.join(sorted(words))} will go with the next version; write protection={protection!r}",
        DeprecationWarning,
        stacklevel=stacklevel,
    )
