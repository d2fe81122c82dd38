"""The table of messages: every kind, its purpose, its protection and what its receiver learns.

A link refuses kinds that are not in this table. securefed.audit checks recorded runs against it.
docs/protocols.md shows the table, says what the protections mean and gives the order of the messages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from securefed.crypto.shares import LIMB_BITS, WIDTH
from securefed.protocols.blind.statistics import RANGE_BITS, SCORE_BITS, VALUE_BITS

PHASES = {"S": "setup", "T": "training", "E": "evaluation", "R": "release", "P": "prediction"}
SCORING = ("evaluation", "prediction")
"""Phases that compute scores for the label party."""
TRAFFIC = ("setup", "exchange", "opening", "score", "control")
"""Purposes of messages: keys, training, openings by a key-holder, scores and models, progress."""
FRAMES = {"ciphertext": ("encrypted",), "masked": ("masked",), "opened": ("opened",)}
"""What `protection` implies about frames where a kind does not say."""


@dataclass(frozen=True)
class MessageKind:
    name: str
    traffic: str
    """Its purpose, one of TRAFFIC. Tables of bytes add up messages by it."""
    carries: str
    protection: str
    reveals: str
    sender: str
    """"any", "data party", "label party" or "key-holder" (the party with the secret key of these
    ciphertexts); likewise `receiver`."""
    receiver: str
    phases: tuple[str, ...]
    contents: tuple[str, ...] | None
    """The frames. "bytes:n" stands for n bytes outside of frames, and "bytes" for as many as the agreement
    says. None: the table does not say."""
    looks: str
    """What bytes outside of frames look like: "ciphertext", or "numbers:n" for shares whose lowest n bits are
    uniform (securefed.transport.transcript)."""

    @property
    def scoring(self) -> bool:
        """Whether it belongs to the computation of scores."""
        return any(phase in SCORING for phase in self.phases)


_TABLE = """
kind             traffic   protection  from         to           ph.   frames
public-key       setup     public      key-holder   any          S     public-key
contribution     exchange  ciphertext  data-party   data-party   T     -
residual         exchange  ciphertext  label-party  data-party   T     -
opening-request  opening   masked      data-party   key-holder   TR    -
opening          opening   opened      key-holder   data-party   TR    -
nonce            setup     public      any          any          SER   bytes:32
cross-key        setup     public      any          any          SER   -
operand          exchange  ciphertext  any          any          SERP  bytes
received         control   public      any          any          SER   bytes:1
reply            exchange  masked      any          any          SERP  bytes
part             exchange  share       data-party   any          S     bytes
difference       exchange  share       any          any          TER   bytes
progress         control   public      label-party  any          T     bytes:1
model-share      score     share       any          data-party   ER    bytes
question         score     public      any          data-party   EP    bytes:32
score-share      score     share       data-party   any          EP    bytes
score            score     result      any          label-party  EP    bytes
released         score     result      any          data-party   R     bytes
verdict          control   public      label-party  any          T     bytes:1
score-part       score     ciphertext  data-party   label-party  EP    -
score-request    score     masked      label-party  key-holder   EP    -
score-opening    score     opened      key-holder   label-party  EP    -
score-model      score     ciphertext  label-party  data-party   EP    -
scores           score     result      data-party   label-party  EP    bytes:8+masked+disclosure
"""
HIDDEN = "nothing without the key, but for its size"
_CONTENTS = """
public-key: a public key | nothing
contribution: the sender's part of H for the batch | HIDDEN
residual: the sum of all parts, from the label party | HIDDEN
opening-request: a parameter gradient under a mask | nothing: uniform to the key-holder, but for its size
opening: the gradient, still masked
    | the requester's own aggregated parameter gradient (its parameters, in the phase release)
nonce: a random number that a public key is made for | nothing: random
cross-key: a public key for one purpose of one run | nothing
operand: numbers of the sender, encrypted under its own key | HIDDEN
received: some blocks of an operand have come, or what is needed for scores is stored | nothing
reply: the operand times numbers of the sender, under a mask that is uniform modulo 2**105
    | nothing: independent of the sender's numbers, whatever the operand was
part: a random part of a share, for one of the two holders | nothing: uniform without the other holder's part
difference: a share less random numbers that serve once | nothing: uniform
progress: a round is over | nothing
model-share: a share of the receiver's own parameters | nothing: uniform without the label party's share
question: a hash of the encrypted rows that are scored | nothing: a hash of ciphertexts
score-share: the sender's share of its part of the scores, blurred
    | nothing: uniform without the label party's share
score: what the label party lacks of the scores, modulo 2**(f + m) | the blurred scores, to the label party
released: a blurred share of the receiver's own parameters
    | the receiver's own parameters, blurred, if all agreed to a release
verdict: go on or stop | whether the label party saw its target or no progress
score-part: the sender's part of the scores | HIDDEN
score-request: scores under a mask | nothing: uniform to the key-holder; how many scores
score-opening: the scores, still masked | the scores, to the label party
score-model: the label party's part of the model | HIDDEN
scores: scores and the mask they are under | the scores, to the label party
"""
"""What a message carries, and what it reveals to its receiver."""
MODEL_LIMBS = 3
"""Limbs of a model's share that are uniform. A product is truncated last, so the bits above 70 are not."""
LOOKS = {
    "operand": "ciphertext",
    "reply": "ciphertext",
    "part": f"numbers:{WIDTH}",
    "difference": f"numbers:{WIDTH}",
    "model-share": f"numbers:{MODEL_LIMBS * LIMB_BITS}",
    "score-share": f"numbers:{SCORE_BITS + RANGE_BITS}",
    "score": f"numbers:{SCORE_BITS + RANGE_BITS}",
    "released": f"numbers:{VALUE_BITS}",
}


CONTENTS = dict(re.findall(r"^([\w-]+): (.*(?:\n .*)?)", _CONTENTS, re.MULTILINE))


def _kind(line: str) -> MessageKind:
    name, traffic, protection, sender, receiver, phases, frames = line.split()
    carries, reveals = (part.strip().replace("HIDDEN", HIDDEN) for part in CONTENTS[name].split("|"))
    return MessageKind(
        name,
        traffic,
        carries,
        protection,
        reveals,
        sender.replace("-party", " party"),
        receiver.replace("-party", " party"),
        tuple(PHASES[letter] for letter in phases),
        FRAMES.get(protection) if frames == "-" else tuple(frames.split("+")),
        LOOKS.get(name, ""),
    )


KINDS: Mapping[str, MessageKind] = MappingProxyType(
    {kind.name: kind for kind in map(_kind, _TABLE.strip().splitlines()[1:])}
)


def fixed_sizes() -> dict[str, int]:
    """Return the size in bytes of each kind of message that has a fixed size."""
    return {
        name: int(kind.contents[0].removeprefix("bytes:"))
        for name, kind in KINDS.items()
        if kind.contents is not None and len(kind.contents) == 1 and kind.contents[0].startswith("bytes:")
    }
