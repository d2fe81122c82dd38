"""[run]: what all parties have agreed on. It is compared word by word when they meet, and goes into the
recipe that builds everybody's program.

A setting that is left out has the default of its objective, and the defaults are compared as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from securefed.assembly import KITS, ObjectiveKit
from securefed.assembly.recipe import REVEALS, Recipe
from securefed.checks import check_choice, check_integer, check_number
from securefed.crypto import DEFAULT_SCHEME, SCHEMES, key_kind
from securefed.data.ids import ID_FORMS
from securefed.errors import SettingError
from securefed.process.fields import check_keys, check_names
from securefed.protocols.objectives import get_objective
from securefed.protocols.schedules import (
    Constant,
    FedBCD,
    FedSGD,
    InverseSqrt,
    InverseSqrtParties,
    automatic_rounds,
    check_holdout,
)
from securefed.transport.identity import check_party_name

__all__ = ["RunSettings", "defaults_of"]

IN_FILES: dict[str, Any] = {"batch_size": 0, "evaluate_every": 0}
"""What stands in a file where a recipe has None."""
ALONGSIDE: dict[str, Any] = {"decay": "none", "alignment": "psi", "id_form": "exact", "classes": 2}
"""Settings that no recipe has."""
IDENTITY = ("name", "parties", "key_holder", "objective")
"""Who and what; the rest is how."""
OUTSIDE = (
    *("local_steps", "order", "proximal", "decay", "batch_size", "holdout"),
    *("classes", "alignment", "id_form"),
)
"""Settings that a recipe takes in another form or not at all."""


@dataclass(frozen=True)
class RunSettings:
    """The agreed settings, complete."""

    name: str
    parties: tuple[str, ...]
    """In the order of their turns, the label party last."""
    key_holder: str | None
    objective: str
    values: Mapping[str, Any]

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Self:
        for key in ("name", "parties"):
            if key not in table:
                raise SettingError(f"[run]: {key} is missing")
        objective = check_choice("objective", table.get("objective", next(iter(KITS))), KITS)
        defaults = defaults_of(objective, table.get("reveal"), table.get("scheme"))
        check_keys("[run]", table, (*IDENTITY, *defaults))
        values = {**defaults, **{key: value for key, value in table.items() if key in defaults}}
        for key, value in values.items():
            # 1 and 1.0 are the same number, and have to look the same to a peer.
            fraction = isinstance(defaults[key], float) or key in ("target", "learning_rate", "l2")
            if fraction and isinstance(value, int) and not isinstance(value, bool):
                values[key] = float(value)
        parties = check_names("parties", table["parties"])
        if values["rounds"] == "auto":
            if values["learning_rate"] != "auto" or not KITS[objective].accelerates:
                raise SettingError("rounds: 'auto' takes learning_rate = 'auto' and objective = 'linear'")
            values["rounds"] = automatic_rounds(max(1, len(parties)))
        made = cls(check_run_name(table["name"]), parties, table.get("key_holder"), objective, values)
        made._check()
        return made

    def _check(self) -> None:
        for name in self.parties:
            check_party_name(name)
        if len(self.parties) < 2:
            raise SettingError(f"parties: {len(self.parties)} given, at least 2 are needed")
        get_objective(self.objective).check_parties(self.objective, len(self.parties))
        self.kit().check_key_holder(self.key_holder, len(self.parties))
        if self.key_holder is not None:
            check_party_name(self.key_holder)
            if self.key_holder in self.parties:
                raise SettingError(f"key_holder: {self.key_holder} is one of the parties with data")
        check_choice("alignment", self.values["alignment"], ("psi", "rows"))
        check_choice("id_form", self.values["id_form"], ID_FORMS)
        check_choice("decay", self.values["decay"], ("none", "sqrt", "sqrt-parties"))
        check_holdout(self.values["holdout"])
        check_integer("batch_size", self.values["batch_size"], least=0)
        check_integer("evaluate_every", self.values["evaluate_every"], least=0)
        if self.values["alignment"] == "rows" and not self.same_people:
            raise SettingError(f"alignment: 'rows' given, the {self.objective} objective takes 'psi'")
        watched = self.values["target"] is not None or self.values["patience"] is not None
        if watched and not self.values["evaluate_every"]:
            raise SettingError("evaluate_every: 0 given; a target or patience needs evaluations (1 or more)")
        kit, classes = self.kit(), check_integer("classes", self.values["classes"], least=2)
        if classes > 2 and not kit.many_classes:
            raise SettingError(
                f"classes: {classes} given; more than 2 take a loss of classes, reveal = 'nothing', a scheme"
                " that protects, and release = false"
            )

    @property
    def outputs(self) -> int:
        """Scores of a row: one for two classes or numbers, else one a class."""
        classes = int(self.values["classes"])
        return classes if classes > 2 else 1

    @property
    def everybody(self) -> tuple[str, ...]:
        return self.parties if self.key_holder is None else (*self.parties, self.key_holder)

    @property
    def label_party(self) -> str:
        return self.parties[-1]

    @property
    def helper(self) -> str | None:
        """The party without data that holds second shares; None where there is none, or it holds a key."""
        return self.key_holder if self.blind else None

    @property
    def stateful(self) -> tuple[str, ...]:
        """Everybody whose checkpoints a run needs to go on, and who keeps a part of the model."""
        return self.parties if self.helper is None else (*self.parties, self.helper)

    @property
    def lockstep(self) -> bool:
        """Every round needs every party. With a helper only two parties exchange in a round, and others may
        lag behind.
        """
        return self.helper is None

    @property
    def same_people(self) -> bool:
        """Whether the parties have the same people, each with a label."""
        return get_objective(self.objective).same_people

    @property
    def scheme(self) -> str:
        return str(self.values["scheme"])

    @property
    def key_kind(self) -> str | None:
        """The kind of encryption keys that the run takes from files; None: it makes keys of its own."""
        return key_kind(self.scheme, str(self.values.get("reveal", "own-gradient")))

    @property
    def alignment(self) -> str:
        return str(self.values["alignment"])

    @property
    def id_form(self) -> str:
        return str(self.values["id_form"])

    @property
    def holdout(self) -> float:
        return float(self.values["holdout"])

    @property
    def blind(self) -> bool:
        return self.recipe().blind

    @property
    def metric_name(self) -> str:
        return "AUC" if self.recipe().loss_function.binary else "R2"

    def to_dict(self) -> dict[str, Any]:
        """For the peers: everything, defaults included."""
        return {
            "name": self.name,
            "parties": list(self.parties),
            "key_holder": self.key_holder,
            "objective": self.objective,
            **self.values,
        }

    def kit(self) -> ObjectiveKit[Any]:
        """What the run is made of, for its objective."""
        return KITS[self.objective](self.recipe())

    def recipe(self) -> Recipe:
        """The settings as the protocols take them; their checks are made here."""
        settings = {key: value for key, value in self.values.items() if key not in OUTSIDE}
        settings["algorithm"] = self._algorithm()
        settings["learning_rate"] = self._rate()
        settings["batch_size"] = self.values["batch_size"] or None
        listed = {key: tuple(value) for key, value in settings.items() if isinstance(value, list)}
        return KITS[self.objective].recipe_class(**{**settings, **listed})

    def _algorithm(self) -> FedSGD | FedBCD:
        made = FedBCD(self.values["local_steps"], self.values["order"], self.values["proximal"])
        return FedSGD(made.proximal) if (made.local_steps, made.order) == (1, "parallel") else made

    def _rate(self) -> str | Constant | InverseSqrt | InverseSqrtParties:
        given = self.values["learning_rate"]
        if given == "auto":
            if self.values["decay"] != "none":
                raise SettingError(f"decay: {self.values['decay']!r} given, and learning_rate is 'auto'")
            return "auto"
        if isinstance(given, str):
            raise SettingError(f"learning_rate: {given!r} given, 'auto' or a number is allowed")
        eta = check_number("learning_rate", given, above=0.0)
        if self.values["decay"] == "sqrt":
            return InverseSqrt(eta)
        if self.values["decay"] == "sqrt-parties":
            return InverseSqrtParties(eta, len(self.parties))
        return Constant(eta)


def defaults_of(objective: str, reveal: object = None, scheme: object = None) -> dict[str, Any]:
    """Of every setting in [run]: the recipe's own, as a file has them. `reveal` and `scheme` as given; what
    is wrong with them is said where all settings are checked.
    """
    kit = KITS[check_choice("objective", objective, KITS)]
    found = kit.defaults(
        reveal if isinstance(reveal, str) and reveal in REVEALS else None,
        scheme if isinstance(scheme, str) and scheme in SCHEMES else DEFAULT_SCHEME,
    )
    algorithm = found.pop("algorithm")
    return {
        **{key: list(value) if isinstance(value, tuple) else value for key, value in found.items()},
        **{key: getattr(algorithm, key) for key in ("local_steps", "order", "proximal")},
        **IN_FILES,
        **ALONGSIDE,
        "holdout": kit.holdout,
    }


def check_run_name(value: object) -> str:
    """A run's name becomes a folder, so it is one word."""
    if not isinstance(value, str) or not 1 <= len(value) <= 64:
        raise SettingError(f"name: {value!r} given, a word of 1 to 64 characters is allowed")
    if not all(c.isalnum() or c in "-_." for c in value) or value.startswith("."):
        raise SettingError(f"name: {value!r} given, letters, digits and - _ . are allowed in a run's name")
    return value
