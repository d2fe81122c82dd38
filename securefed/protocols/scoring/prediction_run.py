"""A run that only predicts: the label party gets the scores of some rows."""

from __future__ import annotations

from collections.abc import Mapping

from securefed.crypto import KeyHolder, Mapper
from securefed.crypto.scheme import Floats
from securefed.protocols.agreement import Agreement
from securefed.protocols.channel import distribute_keys, note_agreement
from securefed.protocols.own_gradient.prediction import scores, serve_scores
from securefed.protocols.scoring.blur import ScoreGuard
from securefed.protocols.scoring.scorers import Scorer
from securefed.transport import Link, Program

__all__ = ["predict_programs"]


def predict_programs(
    agreement: Agreement,
    parts: Mapping[str, Scorer],
    features: Mapping[str, Floats],
    holders: Mapping[str, KeyHolder],
    mapper: Mapper,
    guards: Mapping[str, ScoreGuard] | None = None,
    rows: int | None = None,
) -> dict[str, Program]:
    """Return a program for each party of a model whose owners know their parameters.

    The label party's program returns the scores, the others' None. `guards` are those of the scored parties;
    a missing one is made new. A key-holder party opens scores of `rows` rows, by default as many as
    `features` has.
    """
    kept = guards or {}
    if rows is None and features:
        rows = len(next(iter(features.values())))

    def data_party(name: str) -> Program:
        async def program(link: Link) -> Floats | None:
            note_agreement(link, agreement)
            keys = await distribute_keys(link, agreement, holders.get(name), mapper)
            link.phase = "prediction"
            guard = kept.get(name) or ScoreGuard()
            return await scores(link, agreement, keys, parts[name], features.get(name), 0, guard)

        return program

    async def key_holder(link: Link) -> None:
        note_agreement(link, agreement)
        holder = holders[str(agreement.key_holder)]
        await distribute_keys(link, agreement, holder, mapper)
        link.phase = "prediction"
        await serve_scores(link, agreement, holder, rows, 0)

    programs: dict[str, Program] = {name: data_party(name) for name in agreement.names}
    if agreement.key_holder is not None:
        programs[agreement.key_holder] = key_holder
    return programs
