"""Scores of a blind model: the label party learns them, blurred; nobody learns anything else.

Every row has the score z phi with z = x P^(1/2). The label party L and the second holder (the other party of
two, or the helper S) share phi. Once a model, the parties get ready (`seal`). Rows are scored in chunks.
docs/protocols.md ("Scores") has the messages.

L has the blurred score modulo 2**(f + m): at most p + m bits a row, whatever it sent. The blur is a keyed
function of the row, of its place and of everything that the score follows from (`_context`). So is the
randomness of replies. So the same question has the same bytes in return, and another one, by however little,
has another blur. Each party that is scored adds its own blur and books p + m bits for every person in its
score ledger. A helper that adds nothing changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import blake2b, sha256, shake_256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import shares
from securefed.crypto.blind.interface import NONCE_BYTES, CrossScheme, Product
from securefed.crypto.randomness import SEED_BYTES
from securefed.crypto.scheme import Mapper
from securefed.crypto.shares import LIMBS, Share
from securefed.errors import DataError, FormatError, SettingError
from securefed.protocols.agreement import Agreement
from securefed.protocols.blind.cross import At, CrossTools, Encryptor, Multiplier, operand_of
from securefed.protocols.blind.statistics import (
    MODEL_BITS,
    RANGE_BITS,
    ROW_BITS,
    SCORE_BITS,
    VALUE_BITS,
    Array,
    Parties,
)
from securefed.protocols.channel import note_agreement
from securefed.protocols.scoring.score_ledger import ScoreGuard
from securefed.transport.link import Link, Program

CHUNK = 1024
"""Rows that are scored together."""
SEALED_ROWS = 128
"""Rows for which a kept [[phi_k^L]] serves at once."""
ROW_SIZE_BITS = ROW_BITS + 8
KEY_STEP, SEAL_STEP, SCORE_STEP = 0, 1, 2
SECRET_BYTES = 32


@dataclass(frozen=True)
class ScorePlan(Parties):
    """What is public about scores."""

    precision: int
    """p: bits after the point that a score shows."""

    @classmethod
    def of(cls, agreement: Agreement, sizes: tuple[int, ...]) -> ScorePlan:
        names, helper, outputs = agreement.names, agreement.key_holder, agreement.outputs
        return cls(names, sizes, helper, outputs, agreement.score_precision)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "names": list(self.names), "sizes": list(self.sizes)}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> ScorePlan:
        """What `to_dict` gave, from a file; DataError for anything else."""
        try:
            names, sizes = tuple(map(str, facts["names"])), tuple(map(int, facts["sizes"]))
            helper = None if facts["helper"] is None else str(facts["helper"])
            plan = cls(names, sizes, helper, int(facts["outputs"]), int(facts["precision"]))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"model shard damaged ({error}); restore it") from None
        if len(names) < 2 or len(names) != len(sizes) or min(sizes) < 1 or plan.outputs < 1:
            raise DataError("model shard damaged: party list and sizes disagree; restore it")
        return plan

    def multipliers(self) -> list[str]:
        """Everybody who multiplies what the label party encrypts."""
        return [*self.names[:-1], *([] if self.helper is None else [self.helper])]

    def rows_product(self, rows: int) -> Product:
        """z_L phi_L^S of a chunk: (rows, outputs)."""
        size, bits = self.size(self.label_party), MODEL_BITS
        return Product(size, rows, self.outputs, ROW_SIZE_BITS, bits, digit_bits=bits + 1)

    def sealed_product(self, name: str) -> Product:
        """phi_k^L' z_k' of some rows: (outputs, rows)."""
        size, bits = self.size(name), ROW_SIZE_BITS
        return Product(size, self.outputs, SEALED_ROWS, MODEL_BITS, bits, digit_bits=bits + 1)


@dataclass
class ModelPart:
    """A party's part of a blind model: shares that are uniform by themselves, and what scoring takes."""

    plan: ScorePlan
    blocks: dict[str, Share] = field(default_factory=dict)
    """Shares of phi by the party whose parameters they are of: all at the label party, its own at a party
    with data, the label party's at the second holder."""
    sealed: list[bytes] = field(default_factory=list)
    """[[phi_k^L]] as it arrived."""
    key: bytes = b""
    """The secret scoring key, at the label party; elsewhere its public half as it arrived."""
    nonce: bytes = b""
    secret: bytes = b""
    """A helper's: the hashes of questions that it sends follow from it, so that they confirm no guess."""
    root: Array | None = None
    """P^(1/2), at a party with data: z = x root."""

    def rows(self, features: Array) -> Array:
        """z of these rows; DataError for another number of columns."""
        if self.root is None:
            raise DataError("this part of the model scores no rows")
        if features.shape[1] != len(self.root):
            raise DataError(f"{features.shape[1]} columns given, the model has {len(self.root)}")
        return features @ self.root

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        """For a file: 14 bytes a number."""
        arrays: dict[str, NDArray[np.generic]] = {
            f"phi.{name}": np.frombuffer(shares.to_bytes(block), np.uint8)
            for name, block in self.blocks.items()
        }
        arrays |= {f"sealed.{i}": np.frombuffer(block, np.uint8) for i, block in enumerate(self.sealed)}
        for name in ("key", "nonce", "secret"):
            arrays[name] = np.frombuffer(getattr(self, name), np.uint8)
        if self.root is not None:
            arrays["root"] = self.root
        return arrays

    @classmethod
    def from_arrays(cls, plan: ScorePlan, arrays: Mapping[str, NDArray[np.generic]]) -> ModelPart:
        """What `to_arrays` gave; DataError for anything else."""
        try:
            part = cls(plan)
            for name in ("key", "nonce", "secret"):
                setattr(part, name, arrays[name].tobytes())
            if "root" in arrays:
                part.root = np.asarray(arrays["root"], dtype=np.float64)
            for name in plan.names:
                if f"phi.{name}" in arrays:
                    shape = (LIMBS, plan.size(name), plan.outputs)
                    part.blocks[name] = shares.from_bytes(arrays[f"phi.{name}"].tobytes(), shape)
            while f"sealed.{len(part.sealed)}" in arrays:
                part.sealed.append(arrays[f"sealed.{len(part.sealed)}"].tobytes())
        except (KeyError, FormatError) as error:
            raise DataError(f"does not hold a part of a blind model ({error})") from None
        return part


def chunks_of(rows: int) -> int:
    """Return in how many chunks so many rows are scored."""
    return -(-rows // CHUNK)


def cut(share: Share, *, first: bool) -> Share:
    """A share of a finished model, with fewer bits (securefed.protocols.blind.statistics)."""
    return shares.reduce_bits(share, MODEL_BITS, first=first)


async def introduce(tools: CrossTools, plan: ScorePlan, secret: bytes, t: int) -> Encryptor | Multiplier:
    """Send the label party's scoring key to everybody who multiplies. `secret`: from `score_secret`."""
    at = At(KEY_STEP, t)
    if tools.link.name == plan.label_party:
        return await tools.encryptor(plan.multipliers(), at=at, secret=secret)
    return await tools.multiplier(plan.label_party, at=at, nonce=secret[:NONCE_BYTES])


def score_secret(link: Link, plan: ScorePlan, scheme: CrossScheme) -> bytes:
    """Draw what a party's questions follow from: the label party's key, or a nonce and a helper's secret."""
    if link.name == plan.label_party:
        with link.activity("keys"):
            return scheme.generate().to_bytes()
    return os.urandom(NONCE_BYTES + SECRET_BYTES)


async def seal(
    link: Link,
    plan: ScorePlan,
    keys: Encryptor | Multiplier,
    blocks: Mapping[str, Share],
    secret: bytes,
    t: int,
) -> ModelPart:
    """Bring everybody to where rows can be scored. `blocks`: a holder's shares of phi, cut, by party.

    The label party encrypts its share of every other party's parameters; the helper hands each party the
    other share of its own.
    """
    part, at = ModelPart(plan), At(SEAL_STEP, t)
    label_party, helper, others = plan.label_party, plan.helper, plan.names[:-1]
    # An evaluation that is repeated after an interruption is the same question. A finished model is
    # encrypted afresh.
    question = link.phase == "evaluation"
    if isinstance(keys, Encryptor):
        part.blocks, part.key = dict(blocks), keys.key.to_bytes()
        for name in others:
            operand = operand_of(blocks[name])
            await keys.send(name, plan.sealed_product(name), operand, at=at, repeatable=question)
        for name in others if question and helper is not None else ():
            await link.receive("received", name, round=t, step=SEAL_STEP)
        return part
    part.key, part.nonce = keys.key_bytes, keys.nonce
    if link.name == helper:
        for name in others:
            link.send(name, "model-share", shares.to_bytes(blocks[name]), round=t, step=SEAL_STEP)
        part.blocks, part.secret = {label_party: blocks[label_party]}, secret[NONCE_BYTES:]
        return part
    if helper is None:
        part.blocks = {name: blocks[name] for name in plan.names}
    else:
        shape = (LIMBS, plan.size(link.name), plan.outputs)
        message = await link.receive("model-share", helper, round=t, step=SEAL_STEP)
        part.blocks = {link.name: shares.from_bytes(message, shape)}
    part.sealed = await keys.take(plan.sealed_product(link.name), at=at)
    if question and helper is not None:
        link.send(label_party, "received", b"\1", round=t, step=SEAL_STEP)
    return part


def open_keys(link: Link, part: ModelPart, scheme: CrossScheme, mapper: Mapper) -> Encryptor | Multiplier:
    """Return the keys of a model at rest."""
    if link.name == part.plan.label_party:
        return Encryptor(link, scheme.load_key(part.key), mapper)
    return Multiplier(link, scheme, mapper, part.plan.label_party, part.key, part.nonce)


def blind_program(
    agreement: Agreement,
    part: ModelPart,
    features: Array | None,
    count: int,
    scheme: CrossScheme,
    mapper: Mapper,
    guard: ScoreGuard | None = None,
) -> Program:
    """Return one party's program that scores `count` rows by a model at rest. A helper has no `features`."""

    async def program(link: Link) -> Array | None:
        note_agreement(link, agreement)
        keys = open_keys(link, part, scheme, mapper)
        link.phase = "prediction"
        return await score_rows(link, part, keys, features, count, guard or ScoreGuard(), 0)

    return program


async def score_rows(
    link: Link,
    part: ModelPart,
    keys: Encryptor | Multiplier,
    rows: Array | None,
    count: int,
    guard: ScoreGuard,
    t: int,
    scoring: bytes | None = None,
    first_chunk: int = 0,
) -> Array | None:
    """Take one party's part in scoring `count` rows. The label party gets the scores: (count,), or (count,
    outputs) if there are several.

    `rows`: this party's columns of the rows, None at a helper. `scoring`: what the questions belong to (None:
    these alone), for a scored party's ledger. `first_chunk`: chunks that other models scored in this round.
    """
    scoring = os.urandom(SECRET_BYTES) if scoring is None else scoring
    if rows is None and link.name != part.plan.helper:
        raise DataError(f"{link.name}: no rows to score")
    own = np.zeros((count, 0)) if rows is None else rows
    if len(own) != count:
        raise SettingError(f"scores: {link.name} has {len(own)} rows to score, {count} were agreed")
    scores = []
    for chunk, start in enumerate(range(0, count, CHUNK)):
        some, at = own[start : start + CHUNK], At(SCORE_STEP + first_chunk + chunk, t)
        if isinstance(keys, Encryptor):
            scores.append(await _ask(link, part, keys, some, at))
        elif rows is None:
            await _help(link, part, keys, len(some), at)
        else:
            await _answer(link, part, keys, some, guard, at, scoring)
    if not scores:
        return None
    whole = np.concatenate(scores)
    return whole[:, 0] if whole.shape[1] == 1 else whole


async def _ask(link: Link, part: ModelPart, keys: Encryptor, rows: Array, at: At) -> Array:
    """Take the label party's part of a chunk."""
    plan, size = part.plan, len(rows)
    own = shares.from_floats(part.rows(rows), ROW_BITS)
    product = plan.rows_product(size)
    # Asking again about the same rows is the same question, and costs the ledger nothing.
    await keys.send(plan.second, product, operand_of(own.transpose(0, 2, 1)), at=at, repeatable=True)
    total = shares.matmul(own, part.blocks[plan.label_party])
    for name in plan.names[:-1]:
        for first in range(0, size, SEALED_ROWS):
            share = await keys.read(name, plan.sealed_product(name), at=at)
            last = min(first + SEALED_ROWS, size)
            total[:, first:last] += share.transpose(0, 2, 1)[:, : last - first]
    total = shares.add(total, await keys.read(plan.second, product, at=at))
    rest = await link.receive("score", plan.second, round=at.round, step=at.step)
    return opened(shares.add(total, shares.from_bytes(rest, total.shape)))


def opened(total: Share) -> Array:
    """Return a blurred score from its sum modulo 2**(f + m): the representative nearest to 0."""
    spare = shares.WIDTH - SCORE_BITS - RANGE_BITS
    return shares.to_floats(shares.shift_left(total, spare), SCORE_BITS + spare)


async def _answer(
    link: Link, part: ModelPart, keys: Multiplier, rows: Array, guard: ScoreGuard, at: At, scoring: bytes
) -> None:
    """Take the part of a party that is scored. Its ledger knows people by these rows."""
    plan, size = part.plan, len(rows)
    own = shares.from_floats(part.rows(rows), ROW_BITS)
    product, blocks = plan.rows_product(size), list[bytes]()
    if plan.helper is None:
        blocks = await keys.take(product, at=at)
        question = _hash(blocks)
    else:
        question = await link.receive("question", plan.helper, round=at.round, step=at.step)
        if len(question) != sha256().digest_size:
            raise FormatError(f"question: {len(question)} bytes given, {sha256().digest_size} are due")
    context = _context(question, keys, part, own)
    noises, facts = guard.noises(
        rows,
        context,
        plan.outputs,
        precision_bits=plan.precision,
        fraction_bits=SCORE_BITS,
        placed=True,
        scoring=scoring,
        place=at.round.to_bytes(8, "little") + at.step.to_bytes(8, "little"),
    )
    total = shares.add(shares.matmul(own, part.blocks[link.name]), _noise_limbs(noises))
    for first in range(0, size, SEALED_ROWS):
        last, sealed = min(first + SEALED_ROWS, size), plan.sealed_product(link.name)
        operand, seed = operand_of(_padded(own[:, first:last])), _reply_seed(guard.key, context, first)
        share = keys.multiply_kept(sealed, part.sealed, operand, seed, at=at)
        total[:, first:last] += share.transpose(0, 2, 1)[:, : last - first]
    total = shares.carry(total)
    if plan.helper is not None:
        _tell(link, plan.helper, "score-share", total, at, facts)
        return
    operand, seed = operand_of(part.blocks[plan.label_party]), _reply_seed(guard.key, context, size)
    share = keys.multiply_kept(product, blocks, operand, seed, at=at)
    _tell(link, plan.label_party, "score", shares.add(total, share), at, facts)


async def _help(link: Link, part: ModelPart, keys: Multiplier, size: int, at: At) -> None:
    """Take the helper's part of a chunk."""
    plan = part.plan
    product, block = plan.rows_product(size), part.blocks[plan.label_party]
    blocks = await keys.take(product, at=at)
    question = _hash([part.secret, keys.key_bytes, keys.nonce, *blocks, shares.to_bytes(block)])
    for name in plan.names[:-1]:
        link.send(name, "question", question, round=at.round, step=at.step)
    seed = _reply_seed(part.secret, question, size)
    total = keys.multiply_kept(product, blocks, operand_of(block), seed, at=at)
    for name in plan.names[:-1]:
        message = await link.receive("score-share", name, round=at.round, step=at.step)
        total = shares.add(total, shares.from_bytes(message, total.shape))
    _tell(link, plan.label_party, "score", total, at, {})


def _tell(link: Link, peer: str, kind: str, total: Share, at: At, facts: dict[str, Any]) -> None:
    """Send what the label party lacks of its scores, and no bit more."""
    link.send(peer, kind, shares.to_bytes(_cut_score(total)), round=at.round, step=at.step, facts=facts)


def _cut_score(total: Share) -> Share:
    """Keep only the bits that the ledger counts. A helper gets no more either: it may collude."""
    return shares.reduce_bits(total, SCORE_BITS + RANGE_BITS)


def _padded(rows: Share) -> Share:
    """(5, rows, columns) -> (5, columns, SEALED_ROWS)."""
    operand = shares.zeros(rows.shape[2], SEALED_ROWS)
    operand[:, :, : rows.shape[1]] = rows.transpose(0, 2, 1)
    return operand


def _noise_limbs(noises: list[list[int]]) -> Share:
    """Blurs by output and row, as (5, rows, outputs)."""
    columns = [np.stack([shares.from_integer(noise) for noise in column], axis=1) for column in noises]
    return np.stack(columns, axis=2)


def _context(question: bytes, keys: Multiplier, part: ModelPart, own: Share) -> bytes:
    """Everything that scores of a chunk and replies about it follow from. `own`: z of all its rows."""
    blocks = map(shares.to_bytes, part.blocks.values())
    return _hash([question, keys.key_bytes, keys.nonce, *part.sealed, *blocks, shares.to_bytes(own)])


def _reply_seed(secret: bytes, context: bytes, place: int) -> bytes:
    """What the randomness of one reply follows from. Fresh randomness would let a label party that repeats
    a question see exact differences under one blur.
    """
    message = context + place.to_bytes(4, "little")
    return blake2b(message, key=secret, person=b"score reply", digest_size=SEED_BYTES).digest()


def _hash(pieces: list[bytes]) -> bytes:
    digest = sha256()
    for piece in pieces:
        digest.update(len(piece).to_bytes(8, "little") + piece)
    return digest.digest()


# Parameters in the clear, to their own party, if all agreed

RELEASE_RANGE = 10
"""A released parameter lies within 2**(RELEASE_RANGE - 1) of 0."""
RELEASE_PRECISION = 14
RELEASE_LIMIT = 1000
"""Bits that may be released to a party without the key, over all its parameters: what they could carry of the
label party's key stays small (docs/security.md)."""


def release_bits(size: int, outputs: int) -> int:
    """What a release of so many parameters shows at most."""
    return size * outputs * (RELEASE_PRECISION + RELEASE_RANGE)


def blurred_share(share: Share, guard: ScoreGuard, receiver: str, limit: int | None) -> Share:
    """A holder's share of parameters, blurred below the precision and cut to what a release shows.

    The same share has the same blur. The ledger counts releases over all attempts and runs: ScoreRefusal
    beyond `limit` bits.
    """
    bits, width = release_bits(share.shape[1], share.shape[2]), VALUE_BITS - RELEASE_PRECISION
    seed = guard.release_stream(receiver, shares.to_bytes(share), bits, limit)
    drawn = shares.uniform_from(shake_256(seed).digest, *share.shape[1:])
    noise = shares.shift_right(drawn, shares.WIDTH - width)
    return shares.reduce_bits(shares.add(share, noise), VALUE_BITS + RELEASE_RANGE)


def released(own: Share, other: Share) -> Array:
    """The parameters, from a share and the other holder's blurred one."""
    spare = shares.WIDTH - VALUE_BITS - RELEASE_RANGE
    values = shares.to_floats(shares.shift_left(shares.add(own, other), spare), VALUE_BITS + spare)
    return values - 2.0 ** -(RELEASE_PRECISION + 1)
