"""`cross`: additive shares of U'V, for a private matrix U at one party and a private V at another.

docs/protocols.md has the messages (the encrypted product). The encryptor has the only key and reads its share
from the reply. The multiplier's share is minus the mask. The reply is independent of V whatever the encryptor
sent. Nobody decrypts anything for the multiplier.

Entries are whole numbers modulo 2**105. `Product` says publicly how many there are and how large.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from securefed.crypto.scheme import SERIAL, Mapper
from securefed.crypto.shares import WIDTH, Floats, Share, from_floats, to_floats
from securefed.crypto.wire import check_length
from securefed.declare import check_integer
from securefed.errors import BadKey, FormatError, RangeError, ShapeError, WrongKey

NONCE_BYTES = 32
DIGIT_BITS = 36
"""Right factors of more bits go in digits, unless a product can bear more noise."""
FLOAT_BITS = 51
"""Floats are at most 2**51, so that their residues are exact."""

FactorRows = Floats | Share
"""Floats (rows, columns) are rounded to whole numbers. Limbs (5, rows, columns) are numbers modulo 2**105."""
Operand = Callable[[int, int], FactorRows]
"""(first, last) -> those inner rows of a factor."""


@dataclass(frozen=True)
class Product:
    """The public shape of U'V: U is (inner, left), V is (inner, right).

    `left_bits`, `right_bits`: entries are at most 2**bits in magnitude, or uniform modulo 2**105 (105). A
    larger entry ends the run, so that both are generous.
    `digit_bits`: the right factor is cut into digits of at most so many bits, and the left one is encrypted
    once for each. Noise grows with the digits.
    """

    inner: int
    left: int
    right: int
    left_bits: int = WIDTH
    right_bits: int = WIDTH
    digit_bits: int = DIGIT_BITS

    def __post_init__(self) -> None:
        for name in ("inner", "left", "right"):
            check_integer(name, getattr(self, name), least=1)
        for name, least in (("left_bits", 1), ("right_bits", 1), ("digit_bits", 2)):
            check_integer(name, getattr(self, name), least=least, most=WIDTH)

    @property
    def digits(self) -> int:
        """Pieces of the right factor."""
        return 1 if self.right_bits < self.digit_bits else -(-self._span // self.digit_bits)

    @property
    def digit_size(self) -> int:
        """Bits of a piece."""
        return min(WIDTH, self.right_bits + 1) if self.digits == 1 else -(-self._span // self.digits)

    @property
    def _span(self) -> int:
        """Bits that centred digits need: one for the sign, and one because they reach less far up."""
        return min(WIDTH, self.right_bits + 2)


def rows_of(operand: Operand, first: int, last: int, columns: int, bits: int, side: str) -> FactorRows:
    """Take rows of this party's own factor, and check their shape and their size, at most 2**bits."""
    rows = operand(first, last)
    exact = rows.dtype == np.int64
    if rows.shape[-2:] != (last - first, columns) or rows.ndim != (3 if exact else 2):
        raise ShapeError(
            f"{side} factor: rows {first} to {last} have shape {rows.shape}, {columns} columns are due"
        )
    if not exact or bits < WIDTH:
        largest = float(np.abs(to_floats(cast(Share, rows), 0) if exact else rows).max())
        most = bits if exact else min(bits, FLOAT_BITS)
        if not largest <= 2.0**most:
            raise RangeError(f"{side} factor: a number of {largest:.3g} given, 2**{most} is allowed")
    return rows


def limbs_of(rows: FactorRows) -> Share:
    """Return rows of a factor as limbs, whatever form they have."""
    return cast(Share, rows) if rows.dtype == np.int64 else from_floats(cast(Floats, rows), 0)


@dataclass(frozen=True)
class Lengths:
    """Lengths of messages in bytes under keys of one size. They follow from public shapes alone."""

    public: int
    blocks: Callable[[Product], list[tuple[int, int]]]
    """The inner rows (first, last) of each block of ciphertexts."""
    block: Callable[[Product, int], int]
    """The length of a block of so many rows."""
    reply: Callable[[Product], int]


class CrossKey(ABC):
    """The encryptor's side. One key serves one purpose of one run; `erase` ends it."""

    lengths: Lengths

    def __init__(self, secret: Any) -> None:
        self._kept = secret

    @property
    def _secret(self) -> Any:
        if self._kept is None:
            raise BadKey("the secret key was erased: it reads and encrypts nothing any more")
        return self._kept

    def erase(self) -> None:
        """Drop the secret key. Anything that needs it raises afterwards."""
        self._kept = None

    def public(self, nonce: bytes) -> bytes:
        """Return the public key for the multiplier that sent this nonce."""
        check_length("nonce", nonce, NONCE_BYTES, BadKey)
        return self._public(nonce)

    @abstractmethod
    def _public(self, nonce: bytes) -> bytes: ...

    def encrypt(
        self,
        product: Product,
        blocks: Sequence[int],
        operand: Operand,
        mapper: Mapper = SERIAL,
        *,
        repeatable: bool = False,
    ) -> list[bytes]:
        """Encrypt these blocks of U, each a message. The work runs on `mapper.local`: it takes the key.

        `repeatable`: the randomness follows from the key, the product, the number of the block and its rows,
        so that the same rows give the same bytes. Raises RangeError as `Evaluation.add` does.
        """
        return self._encrypt(product, blocks, operand, mapper.local, repeatable)

    def read(self, product: Product, reply: bytes) -> Share:
        """Return this party's share of U'V: (5, left, right)."""
        check_length("reply", reply, self.lengths.reply(product))
        return self._read(product, reply)

    def _rows(self, product: Product, block: int, operand: Operand, bits: int = WIDTH) -> FactorRows:
        return rows_of(operand, *self.lengths.blocks(product)[block], product.left, bits, "left")

    @abstractmethod
    def _encrypt(
        self, product: Product, blocks: Sequence[int], operand: Operand, mapper: Mapper, repeatable: bool
    ) -> list[bytes]: ...

    @abstractmethod
    def _read(self, product: Product, reply: bytes) -> Share: ...

    @abstractmethod
    def to_bytes(self) -> bytes:
        """Return the secret key, to keep with a model. `CrossScheme.load_key` reads it."""


class CrossPublic(ABC):
    """The multiplier's side: somebody else's public key."""

    lengths: Lengths

    @abstractmethod
    def evaluate(self, product: Product, seed: bytes | None = None) -> Evaluation:
        """Begin one product.

        `seed`: secret bytes from which all randomness of the reply follows. It has to depend on both factors
        and on the key. Without one the operating system draws.
        """


class Evaluation(ABC):
    """The multiplier's work on one product."""

    def __init__(self, product: Product, lengths: Lengths) -> None:
        self._product, self._lengths, self._finished = product, lengths, False
        self._due = dict(enumerate(lengths.blocks(product)))

    def add(self, blocks: Mapping[int, bytes], operand: Operand, mapper: Mapper = SERIAL) -> None:
        """Multiply blocks, by number, by the same inner rows of V. The sums do not depend on the mapper.

        Raises FormatError for other bytes than are due. Raises RangeError for a number of V that is not
        finite or above the declared size. That depends on private numbers, and the peer sees that the run
        ends. The message names the largest number: a transport must not pass it on.
        """
        product, pieces = self._product, []
        for block, message in blocks.items():
            if block not in self._due:
                raise FormatError(f"block {block} is not due: it came before, or there is no such block")
            first, last = self._due[block]
            check_length(f"block {block}", message, self._lengths.block(product, last - first))
            rows = rows_of(operand, first, last, product.right, product.right_bits, "right")
            pieces.append((message, rows))
        self._multiply(pieces, mapper)
        for block in blocks:
            del self._due[block]

    def finish(self) -> tuple[bytes, Share]:
        """Return the reply, and this party's share of U'V: (5, left, right). Once; needs every block."""
        if self._finished:
            raise FormatError("the product was answered before: a mask serves once")
        if self._due:
            raise FormatError(f"{len(self._due)} blocks of the product have not come")
        self._finished = True
        return self._reply()

    @abstractmethod
    def _multiply(self, pieces: Sequence[tuple[bytes, FactorRows]], mapper: Mapper) -> None:
        """Multiply blocks by their rows of V."""

    @abstractmethod
    def _reply(self) -> tuple[bytes, Share]: ...


@dataclass(frozen=True)
class CrossScheme:
    """An implementation: how to make a key, and how to read somebody else's public key."""

    name: str
    generate: Callable[[], CrossKey]
    read_public: Callable[[bytes, bytes], CrossPublic]
    load_key: Callable[[bytes], CrossKey]
    """What `CrossKey.to_bytes` gave."""

    def load_public(self, data: bytes, nonce: bytes) -> CrossPublic:
        """Check a public key that was made for the nonce, or raise BadKey."""
        check_length("nonce", nonce, NONCE_BYTES, BadKey)
        try:
            return self.read_public(data, nonce)
        except (FormatError, WrongKey) as error:
            raise BadKey(f"public key: {error}") from None
