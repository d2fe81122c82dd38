"""From agreed settings and the party's own data to its program (securefed.assembly builds it).

A network or hidden layer starts at random numbers of this party (`start_seed`), not at ones that follow from
the shared seed, since whoever knows the start and sees gradients knows more than it should.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from securefed.assembly import Trained, assembly_of
from securefed.assembly.base import Model
from securefed.assembly.build import Measured, PartyData
from securefed.assembly.build import build as build_party
from securefed.process.alignment import Alignment
from securefed.process.resumption import ResumeState
from securefed.protocols.agreement import Agreement, Member
from securefed.protocols.loop import PartyContext
from securefed.protocols.schedules import held_out
from securefed.settings.run import RunSettings

__all__ = ["Measured", "agreement_of", "build", "make_model"]


def make_model(shared: RunSettings, name: str, columns: int, seed: int) -> Model:
    """Return the party's part of the model before training; `columns`: prepared ones."""
    assembly, last = assembly_of(shared.settings), name == shared.label_party
    place = shared.parties.index(name)
    return assembly.model(name, assembly.columns(columns), last=last, index=place, seed=seed)


def agreement_of(shared: RunSettings, standings: Mapping[str, ResumeState], common: int) -> Agreement:
    """Return what all parties run by, from what they said of themselves."""
    told = [(name, standings[name]) for name in shared.parties]
    members = tuple(Member(name, each.parameters, each.is_linear) for name, each in told)
    _, held = held_out(common, shared.settings.holdout, shared.settings.seed)
    agreement = assembly_of(shared.settings).agreement(members, common, shared.outputs, holdout=len(held))
    return replace(agreement, key_holder=shared.key_holder)


def build(
    shared: RunSettings,
    agreement: Agreement,
    name: str,
    data: PartyData,
    alignment: Alignment,
    model: Model,
    context: PartyContext,
) -> tuple[Trained, Measured | None]:
    """Return a data party's program, and what the label party measures the model with."""
    assembly, rows, labelled = assembly_of(shared.settings), alignment.rows, alignment.labelled
    division = agreement.batches.division
    if not agreement.batches.holdout_rows:
        division = held_out(len(alignment), shared.settings.holdout, shared.settings.seed)
    return build_party(assembly, agreement, name, data, rows, labelled, division, model, context)
