"""The table of messages: every kind, its purpose, its protection and what its receiver learns.

A link refuses kinds that are not in this table. securefed.audit checks recorded runs against it.
docs/protocols.md shows the table and gives the order of the messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from securefed.crypto.shares import WIDTH
from securefed.protocols.blind.precision import MODEL_BITS, RANGE_BITS, SCORE_BITS, VALUE_BITS

__all__ = ["KINDS", "SCORING", "TRAFFIC", "MessageKind", "fixed_sizes"]

SCORING = ("evaluation", "prediction")
"""Phases that compute scores for the label party."""
BLIND = ("setup", "evaluation", "release")
"""Phases in which blind runs encrypt."""

TRAFFIC = ("setup", "exchange", "opening", "score", "control")
"""Purposes of messages: keys, training, openings by a key-holder, scores and models, progress."""

HOLDS = {"ciphertext": ("encrypted",), "masked": ("masked",), "opened": ("opened",), "share": ("opened",)}


@dataclass(frozen=True)
class MessageKind:
    """One kind of message.

    `traffic` is its purpose, one of TRAFFIC. Tables of bytes add up messages by it.

    | protection | meaning |
    |---|---|
    | public | nothing to protect |
    | ciphertext | encrypted under a key that the receiver lacks |
    | masked | a re-randomised ciphertext of value + mask, for its key-holder |
    | opened | value + mask in the clear, for the party with the mask |
    | share | value + mask in the clear, for a party without the mask; two parties share the value |
    | result | a value for the party that may learn it |

    `sender` and `receiver` are "any", "data party", "label party" or "key-holder" (the party with the secret
    key of these ciphertexts). `phases` lists when the kind may be sent; empty means always.

    `holds` lists the frames. "bytes:n" stands for n bytes outside of frames, and "bytes" for as many as the
    agreement says. None means the frames that `protection` implies. `looks` describes bytes outside of
    frames: "ciphertext", or "numbers:n" for shares whose lowest n bits are uniform
    (securefed.transport.contents).
    """

    name: str
    traffic: str
    carries: str
    protection: str
    reveals: str
    sender: str = "any"
    receiver: str = "any"
    phases: tuple[str, ...] = ()
    holds: tuple[str, ...] | None = None
    looks: str = ""

    @property
    def contents(self) -> tuple[str, ...] | None:
        """The frames of a message of this kind. None: the table does not say."""
        return self.holds if self.holds is not None else HOLDS.get(self.protection)

    @property
    def scoring(self) -> bool:
        """Whether it belongs to the computation of scores."""
        return any(phase in SCORING for phase in self.phases)


_TABLE = (
    MessageKind(
        "public-key",
        "setup",
        "a public key",
        "public",
        "nothing",
        sender="key-holder",
        phases=("setup",),
        holds=("public-key",),
    ),
    MessageKind(
        "contribution",
        "exchange",
        "the sender's part of H for the batch",
        "ciphertext",
        "nothing without the key, but for its size",
        sender="data party",
        receiver="data party",
        phases=("training",),
    ),
    MessageKind(
        "residual",
        "exchange",
        "the sum of all parts, from the label party",
        "ciphertext",
        "nothing without the key, but for its size",
        sender="label party",
        receiver="data party",
        phases=("training",),
    ),
    MessageKind(
        "opening-request",
        "opening",
        "a parameter gradient under a mask",
        "masked",
        "nothing: uniform to the key-holder, but for its size",
        sender="data party",
        receiver="key-holder",
        phases=("training", "release"),
    ),
    MessageKind(
        "opening",
        "opening",
        "the gradient, still masked",
        "opened",
        "the requester's own aggregated parameter gradient (its parameters, in the phase release)",
        sender="key-holder",
        receiver="data party",
        phases=("training", "release"),
    ),
    MessageKind(
        "nonce",
        "setup",
        "a random number that a public key is made for",
        "public",
        "nothing: random",
        phases=BLIND,
        holds=("bytes:32",),
    ),
    MessageKind(
        "cross-key",
        "setup",
        "a public key for one purpose of one run",
        "public",
        "nothing",
        phases=BLIND,
    ),
    MessageKind(
        "operand",
        "exchange",
        "numbers of the sender, encrypted under its own key",
        "ciphertext",
        "nothing without the key, but for its size",
        phases=(*BLIND, "prediction"),
        holds=("bytes",),
        looks="ciphertext",
    ),
    MessageKind(
        "received",
        "control",
        "some blocks of an operand have come",
        "public",
        "nothing",
        phases=BLIND,
        holds=("bytes:1",),
    ),
    MessageKind(
        "reply",
        "exchange",
        "the operand times numbers of the sender, under a mask that is uniform modulo 2**105",
        "masked",
        "nothing: independent of the sender's numbers, whatever the operand was",
        phases=(*BLIND, "prediction"),
        holds=("bytes",),
        looks="ciphertext",
    ),
    MessageKind(
        "part",
        "exchange",
        "a random part of a share, for one of the two holders",
        "share",
        "nothing: uniform without the other holder's part",
        sender="data party",
        phases=("setup",),
        holds=("bytes",),
        looks=f"numbers:{WIDTH}",
    ),
    MessageKind(
        "difference",
        "exchange",
        "a share less random numbers that serve once",
        "share",
        "nothing: uniform",
        phases=("training", "evaluation", "release"),
        holds=("bytes",),
        looks=f"numbers:{WIDTH}",
    ),
    MessageKind(
        "progress",
        "control",
        "a round is over",
        "public",
        "nothing",
        sender="label party",
        phases=("training",),
        holds=("bytes:1",),
    ),
    MessageKind(
        "row-count",
        "score",
        "how many rows are scored, for a helper of transfer learning",
        "public",
        "that number",
        sender="label party",
        phases=("evaluation",),
        holds=("bytes:4",),
    ),
    MessageKind(
        "model-share",
        "score",
        "a share of the receiver's own parameters",
        "share",
        "nothing: uniform without the label party's share",
        receiver="data party",
        phases=("evaluation", "release"),
        holds=("bytes",),
        looks=f"numbers:{MODEL_BITS}",
    ),
    MessageKind(
        "question",
        "score",
        "a hash of the encrypted rows that are scored",
        "public",
        "nothing: a hash of ciphertexts",
        receiver="data party",
        phases=SCORING,
        holds=("bytes:32",),
    ),
    MessageKind(
        "score-share",
        "score",
        "the sender's share of its part of the scores, blurred",
        "share",
        "nothing: uniform without the label party's share",
        sender="data party",
        phases=SCORING,
        holds=("bytes",),
        looks=f"numbers:{WIDTH}",
    ),
    MessageKind(
        "score",
        "score",
        "what the label party lacks of the scores, modulo 2**(f + m)",
        "result",
        "the blurred scores, to the label party",
        receiver="label party",
        phases=SCORING,
        holds=("bytes",),
        looks=f"numbers:{SCORE_BITS + RANGE_BITS}",
    ),
    MessageKind(
        "released",
        "score",
        "a blurred share of the receiver's own parameters",
        "result",
        "the receiver's own parameters, blurred, if all agreed to a release",
        receiver="data party",
        phases=("release",),
        holds=("bytes",),
        looks=f"numbers:{VALUE_BITS}",
    ),
    MessageKind(
        "verdict",
        "control",
        "go on or stop",
        "public",
        "whether the label party saw its target or no progress",
        sender="label party",
        phases=("training",),
        holds=("bytes:1",),
    ),
    MessageKind(
        "score-part",
        "score",
        "the sender's part of the scores",
        "ciphertext",
        "nothing without the key, but for its size",
        sender="data party",
        receiver="label party",
        phases=SCORING,
    ),
    MessageKind(
        "score-request",
        "score",
        "scores under a mask",
        "masked",
        "nothing: uniform to the key-holder; how many scores",
        sender="label party",
        receiver="key-holder",
        phases=SCORING,
    ),
    MessageKind(
        "score-opening",
        "score",
        "the scores, still masked",
        "opened",
        "the scores, to the label party",
        sender="key-holder",
        receiver="label party",
        phases=SCORING,
    ),
    MessageKind(
        "score-model",
        "score",
        "the label party's part of the model",
        "ciphertext",
        "nothing without the key, but for its size",
        sender="label party",
        receiver="data party",
        phases=SCORING,
    ),
    MessageKind(
        "scores",
        "score",
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


def fixed_sizes() -> dict[str, int]:
    """Return the size in bytes of each kind of message that has a fixed size."""
    sizes = {}
    for name, kind in KINDS.items():
        counts = [part.partition(":")[2] for part in kind.holds or () if part.startswith("bytes:")]
        if counts and len(counts) == len(kind.holds or ()):
            sizes[name] = sum(map(int, counts))
    return sizes
