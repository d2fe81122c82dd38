"""A run that only predicts: keys, then scores (securefed.protocols.prediction)."""

from __future__ import annotations

from collections.abc import Mapping

from securefed.crypto import KeyHolder, Mapper
from securefed.crypto.scheme import Floats
from securefed.protocols.agreement import Agreement
from securefed.protocols.keyring import distribute_keys
from securefed.protocols.prediction import scores, serve_scores
from securefed.protocols.scorers import Scorer
from securefed.transport import Link, Program

__all__ = ["predict_programs"]


def predict_programs(
    agreement: Agreement,
    scorers: Mapping[str, Scorer],
    features: Mapping[str, Floats],
    holders: Mapping[str, KeyHolder],
    mapper: Mapper,
) -> dict[str, Program]:
    """A program for each party; the label party's outcome is the scores, the others' None."""

    def data_party(name: str) -> Program:
        async def program(link: Link) -> Floats | None:
            keys = await distribute_keys(link, agreement, holders.get(name), mapper)
            link.phase = "prediction"
            return await scores(link, agreement, keys, scorers[name], features.get(name), 0)

        return program

    async def key_holder(link: Link) -> None:
        holder = holders[str(agreement.key_holder)]
        await distribute_keys(link, agreement, holder, mapper)
        link.phase = "prediction"
        await serve_scores(link, holder, agreement.label_party, None, 0)

    programs: dict[str, Program] = {name: data_party(name) for name in agreement.names}
    if agreement.key_holder is not None:
        programs[agreement.key_holder] = key_holder
    return programs
