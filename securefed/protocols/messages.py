"""Every kind of message that a protocol sends, what protects it and what its receiver can learn from it.

Nothing else is ever sent: a link refuses kinds that are not in this table. docs/protocols.md says in which
order they go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["KINDS", "MessageKind"]


@dataclass(frozen=True)
class MessageKind:
    """One kind of message.

    `protection`: public (nothing to protect), ciphertext (under a key that the receiver lacks), masked (a
    re-randomised ciphertext of value + uniform mask, for its key-holder), opened (value + mask in the
    clear, for whoever has the mask), or result (for the one who may learn it).
    """

    name: str
    carries: str
    protection: str
    reveals: str


_TABLE = (
    MessageKind("public-key", "a public key", "public", "nothing"),
    MessageKind(
        "contribution",
        "the sender's part of H for the batch",
        "ciphertext",
        "nothing without the key; shapes",
    ),
    MessageKind(
        "residual",
        "the sum of all parts, from the label party",
        "ciphertext",
        "nothing without the key; shapes",
    ),
    MessageKind(
        "opening-request",
        "a parameter gradient under a mask",
        "masked",
        "nothing: uniform to the key-holder; shapes",
    ),
    MessageKind(
        "opening", "the gradient, still masked", "opened", "the requester's own aggregated parameter gradient"
    ),
    MessageKind("margin", "the sender's H, packed", "ciphertext", "nothing without the key; shapes"),
    MessageKind(
        "masked-margin",
        "the sender's H, every slot under a mask",
        "masked",
        "nothing, up to 2**-40: masked slots; shapes",
    ),
    MessageKind(
        "converted",
        "the receiver's H under the sender's key, with masks and labels",
        "ciphertext",
        "nothing without the key; shapes",
    ),
    MessageKind(
        "refresh-request",
        "residuals or parameters, every slot under a mask",
        "masked",
        "nothing, up to 2**-40: masked slots; shapes",
    ),
    MessageKind(
        "refreshed",
        "the same, encrypted again at a smaller scale",
        "ciphertext",
        "nothing without the key; shapes",
    ),
    MessageKind(
        "verdict", "go on or stop", "public", "whether the label party saw its target or no progress"
    ),
    MessageKind(
        "score-part", "the sender's part of the scores", "ciphertext", "nothing without the key; shapes"
    ),
    MessageKind(
        "score-request",
        "scores under a mask",
        "masked",
        "nothing: uniform to the key-holder; how many scores",
    ),
    MessageKind("score-opening", "the scores, still masked", "opened", "the scores, to the label party"),
    MessageKind(
        "score-model", "the label party's part of the model", "ciphertext", "nothing without the key; shapes"
    ),
    MessageKind("scores", "scores and the mask they are under", "result", "the scores, to the label party"),
)

KINDS: Mapping[str, MessageKind] = MappingProxyType({kind.name: kind for kind in _TABLE})
