"""[run] of party.toml: what all parties have agreed on. They compare every value when they meet.

A setting that is left out has the default of its objective, and defaults are compared as well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from securefed.crypto import key_kind
from securefed.data.ids import ID_FORMS
from securefed.declare import (
    Declared,
    Setting,
    check_choice,
    check_keys,
    check_names,
    choice,
    declared,
    in_file,
    integer,
    setting,
)
from securefed.errors import SettingError
from securefed.protocols.agreement import check_key_holder, get_objective
from securefed.protocols.schedules import FedBCD, algorithm
from securefed.settings.objectives import OBJECTIVE_SETTINGS, Monitoring, ObjectiveSettings
from securefed.settings.protection import (
    OLD_WORDS,
    PROTECTIONS,
    Protection,
    protection_from_words,
    warn_of_words,
)
from securefed.transport.identity import check_party_name

IDENTITY = ("name", "parties", "key_holder", "objective")
"""Who and what; the rest is how."""


@dataclass(frozen=True, kw_only=True)
class RunSettings(Declared):
    """The agreed settings of a run, complete and checked."""

    alignment: str = setting(
        "psi",
        choice(("psi", "rows")),
        '"psi": by private intersection of ids. "rows": the files have the same people in the same order.',
    )
    id_form: str = setting(
        "exact",
        choice(ID_FORMS),
        '"exact"; "caseless": Ann is ann; "loose": also without spaces, signs and leading zeros.',
    )
    classes: int = setting(
        2, integer(least=2), "Classes of the labels. More than two are trained in one blind run."
    )
    name: str
    parties: tuple[str, ...]
    """In the order of their turns, the label party last."""
    key_holder: str | None
    settings: ObjectiveSettings

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Self:
        for key in ("name", "parties"):
            if key not in table:
                raise SettingError(f"[run]: {key} is missing")
        objective = check_choice(
            "objective", table.get("objective", next(iter(OBJECTIVE_SETTINGS))), OBJECTIVE_SETTINGS
        )
        kind, known = OBJECTIVE_SETTINGS[objective], run_settings(objective)
        values = {key: value for key, value in table.items() if key not in IDENTITY}
        words = {word: values.pop(word) for word in OLD_WORDS if word in values}
        check_keys("[run]", values, (*IDENTITY, "protection", *known))
        if words and "protection" in values:
            raise SettingError(f"[run]: {min(words)} and the table [run.protection] exclude each other")

        def taken(group: type[Declared]) -> dict[str, Any]:
            return {name: values.pop(name) for name in declared(group) if name in values}

        parties = check_names("parties", table["parties"])
        steps, own = replace(FedBCD(kind().algorithm.local_steps), **taken(FedBCD)), taken(cls)
        values["algorithm"] = algorithm(steps.local_steps, steps.order, steps.proximal)
        values["monitoring"] = Monitoring(**taken(Monitoring))
        values["protection"] = _protection(values.get("protection", {}), objective)
        if words:
            values["protection"] = protection_from_words(words, values["protection"])
            warn_of_words("[run] of party.toml", words, values["protection"], stacklevel=3)
        rate = values.get("learning_rate")
        if isinstance(rate, int) and not isinstance(rate, bool):
            values["learning_rate"] = float(rate)  # 1 and 1.0 are the same to a peer
        return cls(
            name=check_run_name(table["name"]),
            parties=parties,
            key_holder=table.get("key_holder"),
            settings=kind(**values).for_parties(len(parties)),
            **own,
        )

    def check(self) -> None:
        for name in self.everybody:
            check_party_name(name)
        if len(self.parties) < 2:
            raise SettingError(f"parties: {len(self.parties)} given, at least 2 are needed")
        get_objective(self.objective).check_parties(self.objective, len(self.parties))
        check_key_holder(self.key_holder, len(self.parties))
        if self.key_holder in self.parties:
            raise SettingError(f"key_holder: {self.key_holder} is one of the parties with data")
        if self.alignment == "rows" and not self.same_people:
            raise SettingError(f"alignment: 'rows' given, the {self.objective} objective takes 'psi'")
        if self.outputs > 1 and not self.settings.many_classes:
            raise SettingError(
                f"classes: {self.outputs} given; more than 2 take a loss of classes, and the protection"
                " 'blind' without a release"
            )

    @property
    def objective(self) -> str:
        return self.settings.objective

    @property
    def outputs(self) -> int:
        """Scores of a row: one for two classes or numbers, else one a class."""
        return self.classes if self.classes > 2 else 1

    @property
    def everybody(self) -> tuple[str, ...]:
        return self.parties if self.key_holder is None else (*self.parties, self.key_holder)

    @property
    def label_party(self) -> str:
        return self.parties[-1]

    @property
    def helper(self) -> str | None:
        """The party without data that holds second shares; None where there is none, or it holds a key."""
        return self.key_holder if self.settings.blind else None

    @property
    def stateful(self) -> tuple[str, ...]:
        """Everybody whose checkpoints a run needs to go on, and who keeps a part of the model."""
        return self.parties if self.helper is None else (*self.parties, self.helper)

    @property
    def lockstep(self) -> bool:
        """Whether every round needs every party. With a helper only two parties exchange in a round, and
        others may lag behind.
        """
        return self.helper is None

    @property
    def same_people(self) -> bool:
        """Whether the parties have the same people, each with a label."""
        return get_objective(self.objective).same_people

    @property
    def scheme(self) -> str:
        return self.settings.scheme

    @property
    def reveal(self) -> str:
        return self.settings.protection.reveal

    @property
    def key_kind(self) -> str | None:
        """The kind of encryption keys that the run takes from files; None: it makes keys of its own."""
        return key_kind(self.scheme, self.reveal)

    def to_dict(self) -> dict[str, Any]:
        """Everything by name, defaults included, for the peers to compare."""
        settings, objective = self.settings, self.objective
        protection, table = settings.protection, settings.to_table(objective)
        del table["protection"], table["monitoring"]
        return {
            "name": self.name,
            "parties": list(self.parties),
            "key_holder": self.key_holder,
            "objective": objective,
            **table,
            **{name: getattr(settings.algorithm, name) for name in declared(FedBCD)},
            **settings.monitoring.to_table(objective),
            **self.to_table(objective),
            "protection": protection.kind,
            **{f"protection.{name}": value for name, value in protection.to_table(objective).items()},
        }


def run_settings(objective: str) -> dict[str, Setting]:
    """The settings of [run] itself, by name."""
    kind = OBJECTIVE_SETTINGS[objective]
    groups: tuple[type[Declared], ...] = (kind, FedBCD, Monitoring, RunSettings)
    steps = {name: getattr(kind().algorithm, name) for name in ("local_steps", "order", "proximal")}
    return {
        name: replace(each, default=steps.get(name, each.default))
        for group in groups
        for name, each in in_file(group, objective).items()
        if name not in ("protection", "monitoring")
    }


def _protection(table: Any, objective: str) -> Protection:
    if not isinstance(table, dict):
        raise SettingError(f"[run]: protection: {table!r} given, a table with a kind is allowed")
    kind = PROTECTIONS[check_choice("kind", table.get("kind", next(iter(PROTECTIONS))), PROTECTIONS)]
    known = sorted(in_file(kind, objective))
    check_keys(f"[run.protection] of kind {kind.kind!r}", table, ("kind", *known))
    return kind(**{key: value for key, value in table.items() if key != "kind"})


def check_run_name(value: object) -> str:
    """A run's name becomes a folder, so it is one word."""
    if not isinstance(value, str) or not re.fullmatch(r"[\w-][\w.-]{0,63}", value):
        raise SettingError(
            f"name: {value!r} given, a run's name has 1 to 64 letters, digits and - _ . (no . at the start)"
        )
    return value
