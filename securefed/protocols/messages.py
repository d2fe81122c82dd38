"""Every kind of message that a protocol sends, what protects it and what its receiver can learn from it.

Nothing else is ever sent: a link refuses kinds that are not in this table. The audit's claims are checked
against it (securefed.audit), and docs/threat-model.md shows it. docs/protocols.md says in what order they go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["KINDS", "SCORING", "MessageKind"]

SCORING = ("evaluation", "prediction")
"""Phases in which scores are computed for the label party."""

HOLDS = {"ciphertext": ("encrypted",), "masked": ("masked",), "opened": ("opened",), "share": ("opened",)}


@dataclass(frozen=True)
class MessageKind:
    """One kind of message.

    `protection`: public (nothing to protect), ciphertext (under a key that the receiver lacks), masked (a
    re-randomised ciphertext of value + mask, for its key-holder), opened (value + mask in the clear, for
    whoever has the mask), share (value + mask in the clear, for somebody else than the one who has the mask:
    together they have the value), or result (for the one who may learn it).

    `sender`, `receiver`: "any", "data party", "label party", or "key-holder" (whoever has the secret key of
    the ciphertexts at hand). `phases`: when it may be sent; empty for always. `holds`: the frames that it
    consists of, "bytes:n" for n bytes outside of frames; what `protection` says if None.
    """

    name: str
    carries: str
    protection: str
    reveals: str
    sender: str = "any"
    receiver: str = "any"
    phases: tuple[str, ...] = ()
    holds: tuple[str, ...] | None = None

    @property
    def contents(self) -> tuple[str, ...] | None:
        """The frames that a message of this kind consists of; None where the table does not say."""
        return self.holds if self.holds is not None else HOLDS.get(self.protection)

    @property
    def scoring(self) -> bool:
        """It belongs to the computation of scores."""
        return any(phase in SCORING for phase in self.phases)


_TABLE = (
    MessageKind(
        "public-key",
        "a public key",
        "public",
        "nothing",
        sender="key-holder",
        phases=("setup",),
        holds=("public-key",),
    ),
    MessageKind(
        "switching-keys",
        "public keys for merging hidden results of the agreed sizes",
        "public",
        "nothing",
        sender="key-holder",
        phases=("setup",),
        holds=("switching",),
    ),
    MessageKind(
        "key-check",
        "encryptions of zero through all switching keys, under a mask",
        "masked",
        "nothing: uniform to the key-holder",
        sender="data party",
        receiver="key-holder",
        phases=("setup",),
    ),
    MessageKind(
        "columns",
        "how many columns the sender has, before a prediction",
        "public",
        "that number, which all know from the training",
        sender="data party",
        phases=("setup",),
        holds=("bytes:4",),
    ),
    MessageKind(
        "contribution",
        "the sender's part of H for the batch",
        "ciphertext",
        "nothing without the key, but for its size",
        sender="data party",
        receiver="data party",
        phases=("training",),
    ),
    MessageKind(
        "residual",
        "the sum of all parts, from the label party",
        "ciphertext",
        "nothing without the key, but for its size",
        sender="label party",
        receiver="data party",
        phases=("training",),
    ),
    MessageKind(
        "opening-request",
        "a parameter gradient under a mask",
        "masked",
        "nothing: uniform to the key-holder, but for its size",
        sender="data party",
        receiver="key-holder",
        phases=("training", "release"),
    ),
    MessageKind(
        "opening",
        "the gradient, still masked",
        "opened",
        "the requester's own aggregated parameter gradient (its parameters, in the phase release)",
        sender="key-holder",
        receiver="data party",
        phases=("training", "release"),
    ),
    MessageKind(
        "margin",
        "the sender's H, packed",
        "ciphertext",
        "nothing without the key, but for its size",
        sender="data party",
        receiver="label party",
        phases=("training", *SCORING),
    ),
    MessageKind(
        "masked-margin",
        "the sender's H, every entry under a mask",
        "masked",
        "nothing, up to 2**-40 in all runs: masked entries, but for its size",
        sender="data party",
        receiver="key-holder",
        phases=("training", *SCORING),
    ),
    MessageKind(
        "converted",
        "the receiver's H under the sender's key, with masks and labels",
        "ciphertext",
        "nothing without the key, but for its size",
        sender="data party",
        receiver="data party",
        phases=("training",),
    ),
    MessageKind(
        "refresh-request",
        "residuals or parameters, every entry under a mask",
        "masked",
        "nothing, up to 2**-40 in all runs: masked entries, but for its size",
        sender="data party",
        receiver="key-holder",
        phases=("training", "release", *SCORING),
    ),
    MessageKind(
        "refreshed",
        "the same, hidden afresh at another scale",
        "ciphertext",
        "nothing without the key, but for its size",
        sender="key-holder",
        receiver="data party",
        phases=("training", "release", *SCORING),
    ),
    MessageKind(
        "share",
        "the sender's share of hidden numbers, for the receiver to multiply",
        "ciphertext",
        "nothing without the key, but for its size",
        sender="data party",
        receiver="data party",
        phases=("setup", "training", "release", *SCORING),
    ),
    MessageKind(
        "share-product",
        "the product of a share with the sender's numbers, every entry under a mask",
        "masked",
        "nothing: uniform to the key-holder (Paillier: up to 2**-40 in all runs), but for its size",
        sender="data party",
        receiver="key-holder",
        phases=("setup", "training", "release", *SCORING),
    ),
    MessageKind(
        "product-share",
        "the receiver's share of such a product, as a key-holder party read it: under its sender's mask",
        "share",
        "nothing: uniform without the mask of the party that multiplied, but for its size",
        sender="key-holder",
        receiver="data party",
        phases=("setup", "training", "release", *SCORING),
    ),
    MessageKind(
        "range-choice",
        "whether the array that came back is checked",
        "public",
        "nothing: drawn at random",
        sender="data party",
        phases=("training",),
        holds=("bytes:1",),
    ),
    MessageKind(
        "range-check",
        "random sums of what the key-holder hid, under a mask",
        "masked",
        "nothing: uniform to the key-holder, but for its size",
        sender="data party",
        receiver="key-holder",
        phases=("training",),
    ),
    MessageKind(
        "range-commitment",
        "a hash of the answer to a check",
        "public",
        "nothing before the answer",
        receiver="data party",
        phases=("setup", "training"),
        holds=("bytes:32",),
    ),
    MessageKind(
        "range-reveal",
        "which entries a check takes, and its mask",
        "public",
        "nothing: sums of numbers that the key-holder hid itself",
        sender="data party",
        phases=("setup", "training"),
    ),
    MessageKind(
        "range-opening",
        "the sums of a check, flooded, still masked",
        "opened",
        "that what came back is in its range; the sums under a flood of 96 bits",
        sender="key-holder",
        receiver="data party",
        phases=("setup", "training"),
    ),
    MessageKind(
        "range-report",
        "whether values left their declared range",
        "public",
        "that the run diverged, if it did; at its end",
        receiver="data party",
        phases=("release",),
        holds=("bytes:1",),
    ),
    MessageKind(
        "verdict",
        "go on or stop",
        "public",
        "whether the label party saw its target or no progress",
        sender="label party",
        phases=("training",),
        holds=("bytes:1",),
    ),
    MessageKind(
        "score-part",
        "the sender's part of the scores",
        "ciphertext",
        "nothing without the key, but for its size",
        sender="data party",
        receiver="label party",
        phases=SCORING,
    ),
    MessageKind(
        "score-request",
        "scores under a mask",
        "masked",
        "nothing: uniform to the key-holder; how many scores",
        sender="label party",
        receiver="key-holder",
        phases=SCORING,
    ),
    MessageKind(
        "score-opening",
        "the scores, still masked",
        "opened",
        "the scores, to the label party",
        sender="key-holder",
        receiver="label party",
        phases=SCORING,
    ),
    MessageKind(
        "score-model",
        "the label party's part of the model",
        "ciphertext",
        "nothing without the key, but for its size",
        sender="label party",
        receiver="data party",
        phases=SCORING,
    ),
    MessageKind(
        "scores",
        "scores and the mask they are under",
        "result",
        "the scores, to the label party",
        sender="data party",
        receiver="label party",
        phases=SCORING,
        holds=("bytes:8", "masked", "disclosure"),
    ),
)

KINDS: Mapping[str, MessageKind] = MappingProxyType({kind.name: kind for kind in _TABLE})
