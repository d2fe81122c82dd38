"""A run that only predicts: keys, then scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import KeyHolder, Mapper
from securefed.crypto.scheme import Floats
from securefed.errors import DataError
from securefed.protocols.agreement import Agreement
from securefed.protocols.blind_algebra import BlindPlan
from securefed.protocols.blind_scores import BlindScorer, blind_scores, serve_blind_scores
from securefed.protocols.blur import ScoreGuard
from securefed.protocols.keyring import Keyring, ask_switching, distribute_keys
from securefed.protocols.prediction import scores, serve_scores
from securefed.protocols.refresh import hiding
from securefed.protocols.scorers import Scorer
from securefed.transport import Link, Program

__all__ = ["BlindShard", "predict_programs"]


@dataclass(frozen=True)
class BlindShard:
    """A party's part of a blind model: ciphertexts under a key that it lacks. Safe to keep on disk."""

    plan: BlindPlan
    theta: bytes
    size: int
    model: bytes = b""
    """As in BlindScorer."""

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        return {
            "theta": np.frombuffer(self.theta, np.uint8),
            "size": np.array(self.size),
            "model": np.frombuffer(self.model, np.uint8),
        }

    @classmethod
    def from_arrays(cls, plan: BlindPlan, arrays: Mapping[str, NDArray[np.generic]]) -> BlindShard:
        if arrays.keys() != {"theta", "size", "model"} or arrays["theta"].dtype != np.uint8:
            raise DataError("does not hold an encrypted model")
        return cls(plan, arrays["theta"].tobytes(), int(arrays["size"]), arrays["model"].tobytes())

    def scorer(self, keys: Keyring) -> BlindScorer:
        """With the key-holder's public key; WrongKey if the model is under another."""
        key = hiding(keys)
        shape = (self.size, self.plan.outputs)
        theta = key.load_array(self.theta, shape, self.plan.lifted(key))
        return BlindScorer(self.plan, theta, self.model)


def predict_programs(
    agreement: Agreement,
    parts: Mapping[str, Scorer | BlindShard],
    features: Mapping[str, Floats],
    holders: Mapping[str, KeyHolder],
    mapper: Mapper,
    guards: Mapping[str, ScoreGuard] | None = None,
) -> dict[str, Program]:
    """A program for each party; the label party's outcome is the scores, the others' None. `guards`: of the
    parties that are scored; fresh ones where none are given.
    """
    kept = guards or {}

    def data_party(name: str) -> Program:
        async def program(link: Link) -> Floats | None:
            keys = await distribute_keys(link, agreement, holders.get(name), mapper)
            part, guard = parts[name], kept.get(name) or ScoreGuard()
            if isinstance(part, BlindShard):
                await ask_switching(link, agreement, keys, part.size)
            link.phase = "prediction"
            if not isinstance(part, BlindShard):
                return await scores(link, agreement, keys, part, features.get(name), 0, guard)
            if name not in features:
                raise DataError(f"{name}: no rows to score")
            part.plan.check_features(features[name], name)
            return await blind_scores(link, agreement, keys, part.scorer(keys), features[name], 0, guard)

        return program

    async def key_holder(link: Link) -> None:
        holder = holders[str(agreement.key_holder)]
        keys = await distribute_keys(link, agreement, holder, mapper)
        blind = agreement.reveal == "nothing"
        if blind:
            await ask_switching(link, agreement, keys, None)
        link.phase = "prediction"
        if blind:
            await serve_blind_scores(link, agreement, holder, 0)
        else:
            await serve_scores(link, agreement, holder, None, 0)

    programs: dict[str, Program] = {name: data_party(name) for name in agreement.names}
    if agreement.key_holder is not None:
        programs[agreement.key_holder] = key_holder
    return programs
