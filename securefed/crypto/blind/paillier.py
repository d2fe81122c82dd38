"""`cross` under Paillier: ciphertexts hold several columns of a row of U. For some thousand rows.

    encryptor     a row's entries U[r, i] side by side in slots, by the owner's fast encryption
    multiplier    S[i, j] = sum over r of U[r, i] V[r, j], for all i of a ciphertext at once, as products of
                  powers of U's ciphertexts; results of several j in one ciphertext by Horner's rule, if there
                  is room; times r**n; times 1 + n m, m uniform mod n

docs/proofs.md has the slots, and why each ciphertext of the reply is exactly uniform among the units mod
n**2, whatever the encryptor sent. The number of multiplications follows from public sizes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b, sha512
from itertools import islice

import numpy as np
from gmpy2 import mpz

from securefed.crypto import shares
from securefed.crypto.blind.interface import (
    CrossKey,
    CrossPublic,
    CrossScheme,
    Evaluation,
    FactorRows,
    Lengths,
    Operand,
    Product,
    limbs_of,
)
from securefed.crypto.paillier.arrays import horner, join_integers
from securefed.crypto.paillier.keys import (
    PaillierPublicKey,
    PaillierSecretKey,
    check_size,
    generate_secret_key,
    roots_needed,
)
from securefed.crypto.paillier.powers import column_powers, cut_column
from securefed.crypto.randomness import SEED_BYTES, ByteSource, below_from, key_stream
from securefed.crypto.scheme import Mapper
from securefed.crypto.shares import LIMBS, WIDTH, Share
from securefed.crypto.wire import HEADER, Frame, Kind
from securefed.errors import CapacityError

KEY_BITS = 3072
BLOCK_BYTES = 1 << 22
SPARE_BITS = 40


@dataclass
class Slots:
    """How columns of U lie in ciphertexts and entries of U'V in the reply: from public sizes."""

    left: int
    right: int
    offset_bits: int
    """b: every entry of U'V is below 2**b in magnitude."""
    width: int
    """W: bits from one slot to the next."""
    room: int
    """Slots in a ciphertext."""

    def __post_init__(self) -> None:
        self.groups = -(-self.left // self.room)
        """Ciphertexts of a row of U."""
        self.columns = -(-self.left // self.groups)
        """Columns of U in a ciphertext. The last group may have fewer; its other slots hold 0."""
        self.outputs = self.room // self.columns
        """Columns of V in a ciphertext of the reply."""
        self.chunks = -(-self.right // self.outputs)
        """Ciphertexts of the reply for each group."""
        self.replies = self.groups * self.chunks

    @classmethod
    def of(cls, product: Product, modulus_bits: int) -> Slots:
        """Return the layout for a key of that size, or raise CapacityError when one entry does not fit."""
        # Left entries of 105 bits are at most 2**104 from 0, digits make right ones less than 2**105.
        left = min(product.left_bits, WIDTH - 1)
        right = product.right_bits if product.right_bits < WIDTH - 2 else WIDTH
        offset_bits = (product.inner << (left + right)).bit_length()
        width = max(WIDTH, offset_bits + 1)
        room = (modulus_bits - 1 - SPARE_BITS) // width
        if room < 1:
            raise CapacityError(
                f"a key of {modulus_bits} bits given, at least {width + 1 + SPARE_BITS} are needed"
            )
        return cls(product.left, product.right, offset_bits, width, room)

    def pack(self, numbers: Sequence[int]) -> mpz:
        """Return the sum of numbers[j] * 2**(W j), signed."""
        return sum((mpz(number) << (self.width * j) for j, number in enumerate(numbers)), mpz(0))

    def pack_row(self, row: Sequence[int]) -> list[mpz]:
        """Return the plaintexts of a row of U."""
        starts = range(0, self.left, self.columns)
        return [self.pack(row[start : start + self.columns]) for start in starts]

    @property
    def offset(self) -> mpz:
        """2**b in every slot that a reply may use."""
        return self.pack([1 << self.offset_bits] * (self.columns * self.outputs))

    def cut(self, integers: Sequence[mpz]) -> list[int]:
        """Return floor(integer / 2**(W slot)) modulo 2**105 for every entry (i, j) of U'V, row by row.

        From the opened plaintexts of a reply, these are the encryptor's shares.
        """
        whole, pieces = [int(integer) for integer in integers], []
        for i in range(self.left):
            group, column = divmod(i, self.columns)
            for j in range(self.right):
                chunk, output = divmod(j, self.outputs)
                slot = output * self.columns + column
                pieces.append((whole[group * self.chunks + chunk] >> (self.width * slot)) % (1 << WIDTH))
        return pieces

    def multiplier_share(self, masks: Sequence[mpz]) -> list[int]:
        return [(-piece - (1 << self.offset_bits)) % (1 << WIDTH) for piece in self.cut(masks)]


def cross_lengths(bits: int) -> Lengths:
    size = -(-bits // 8)

    def block(product: Product, rows: int) -> int:
        return rows * Slots.of(product, bits).groups * 2 * size

    def blocks(product: Product) -> list[tuple[int, int]]:
        step, inner = max(1, BLOCK_BYTES // block(product, 1)), product.inner
        return [(start, min(start + step, inner)) for start in range(0, inner, step)]

    public = HEADER.size + (1 + roots_needed(bits)) * size
    return Lengths(public, blocks, block, lambda product: Slots.of(product, bits).replies * 2 * size)


def _share(numbers: Sequence[int], product: Product) -> Share:
    limbs = np.stack([shares.from_integer(number) for number in numbers], axis=1)
    return limbs.reshape(LIMBS, product.left, product.right)


class PaillierCrossKey(CrossKey):
    """The primes, until they are erased."""

    def __init__(self, secret: PaillierSecretKey) -> None:
        super().__init__(secret)
        self._side = secret.public
        self.lengths = cross_lengths(self._side.bits)

    def _public(self, nonce: bytes) -> bytes:
        """Return n and its proof, whose challenges are hashed from n and the nonce."""
        secret: PaillierSecretKey = self._secret
        return secret.proven(nonce)

    def _encrypt(
        self, product: Product, blocks: Sequence[int], operand: Operand, mapper: Mapper, repeatable: bool
    ) -> list[bytes]:
        slots, half = Slots.of(product, self._side.bits), 1 << (WIDTH - 1)
        plaintexts: list[list[mpz]] = []
        residues: list[mpz] = []
        for block in blocks:
            integers = shares.to_integers(limbs_of(self._rows(product, block, operand, product.left_bits)))
            signed = [m - 2 * half if m >= half else m for m in integers]
            starts = range(0, len(signed), product.left)
            packed = [m for start in starts for m in slots.pack_row(signed[start : start + product.left])]
            plaintexts.append(packed)
            if repeatable:
                residues += self._again(product, block, packed)
        if not repeatable:
            # Other processes build their own tables and keep nothing: `erase` is true.
            residues = self._secret.draw(sum(map(len, plaintexts)), mapper, keep=False)
        drawn, size = iter(residues), self._side.ciphertext_bytes
        return [
            join_integers(self._side.combine(each, islice(drawn, len(each))), size) for each in plaintexts
        ]

    def _again(self, product: Product, block: int, plaintexts: list[mpz]) -> list[mpz]:
        """Draw n-th residues that follow from the key and from all that a block has."""
        content = f"{product} {block} {[int(each) for each in plaintexts]}".encode()
        key = sha512(f"{self._secret._primes.p.p}".encode()).digest()
        seed = blake2b(content, key=key, person=b"repeatable", digest_size=SEED_BYTES).digest()
        owner = self._secret._owner
        residues: list[mpz] = owner.draw_from(key_stream(seed), len(plaintexts), owner.powers)
        return residues

    def _read(self, product: Product, reply: bytes) -> Share:
        secret, slots = self._secret, Slots.of(product, self._side.bits)
        ciphertexts = self._side.read_ciphertexts(reply, slots.replies)
        return _share(slots.cut(secret._owner.decrypt(ciphertexts)), product)

    def to_bytes(self) -> bytes:
        """Return the primes in the form of a Paillier key file."""
        secret: PaillierSecretKey = self._secret
        return secret.to_bytes()


class PaillierCrossPublic(CrossPublic):
    """Somebody else's modulus, with its proof checked."""

    def __init__(self, public: PaillierPublicKey) -> None:
        self._public, self.lengths = public, cross_lengths(public.bits)

    def evaluate(self, product: Product, seed: bytes | None = None) -> Evaluation:
        return PaillierEvaluation(self._public, product, os.urandom if seed is None else key_stream(seed))


class PaillierEvaluation(Evaluation):
    """Products of powers for each group of columns of U and each column of V, then packed."""

    def __init__(self, public: PaillierPublicKey, product: Product, source: ByteSource) -> None:
        super().__init__(product, cross_lengths(public.bits))
        self._public, self._slots, self._source = public, Slots.of(product, public.bits), source
        self._ciphertexts = [mpz(1)] * (self._slots.groups * product.right)
        """The products so far. Once all blocks are in: packed and re-randomised."""

    def _multiply(self, pieces: Sequence[tuple[bytes, FactorRows]], mapper: Mapper) -> None:
        if not pieces:
            return
        columns: list[list[mpz]] = [[] for _ in range(self._slots.groups)]
        for data, rows in pieces:
            ciphertexts = self._public.read_ciphertexts(data, rows.shape[-2] * len(columns))
            for i, column in enumerate(columns):
                column += ciphertexts[i :: len(columns)]
        factors = np.concatenate([limbs_of(rows) for _, rows in pieces], axis=1)
        square, products = self._public.square, self._powers(columns, factors, mapper)
        self._ciphertexts = [a * b % square for a, b in zip(self._ciphertexts, products, strict=True)]
        if len(pieces) == len(self._due):
            self._pack(mapper)

    def _powers(self, columns: list[list[mpz]], factors: Share, mapper: Mapper) -> list[mpz]:
        """Return each group's product for each column of V. Groups are cut up only if workers would idle."""
        slices = min(self._product.right, -(-mapper.workers // len(columns)))
        # Without their signs exponents have a bit less.
        exponents, bits = factors.transpose(0, 2, 1), min(WIDTH - 1, self._product.right_bits)
        pieces = [
            piece
            for column in columns
            for piece in cut_column(self._public.n, column, exponents, bits, slices)
        ]
        return [power for piece in mapper.map(column_powers, pieces) for power in piece]

    def _pack(self, mapper: Mapper) -> None:
        """Pack by Horner's rule and multiply by r**n, while there is a mapper for it."""
        square, slots, right = self._public.square, self._slots, self._product.right
        chunks = [
            self._ciphertexts[group * right + start : group * right + min(start + slots.outputs, right)]
            for group in range(slots.groups)
            for start in range(0, right, slots.outputs)
        ]
        shift = slots.width * slots.columns
        packed = mapper.map(horner, [(square, shift, chunk) for chunk in chunks])
        residues = self._public.draw(len(packed), self._source, mapper)
        self._ciphertexts = [c * residue % square for c, residue in zip(packed, residues, strict=True)]

    def _reply(self) -> tuple[bytes, Share]:
        n, offset = self._public.n, self._slots.offset
        masks = [below_from(self._source, n) for _ in self._ciphertexts]
        replied = self._public.combine([(mask + offset) % n for mask in masks], self._ciphertexts)
        self._ciphertexts = []
        reply = join_integers(replied, self._public.ciphertext_bytes)
        return reply, _share(self._slots.multiplier_share(masks), self._product)


def paillier_scheme(key_bits: int = KEY_BITS, allow_small: bool = False) -> CrossScheme:
    """Return `cross` under Paillier with keys of another size, or raise BadKey for one that is not allowed.

    `load_public` takes any size from 2048 to 8192. `allow_small` makes and accepts keys below 2048 bits, for
    tests: such keys protect nothing.
    """
    check_size(key_bits, allow_small)

    def generate() -> CrossKey:
        return PaillierCrossKey(generate_secret_key(key_bits, allow_small=allow_small))

    def read_public(data: bytes, nonce: bytes) -> CrossPublic:
        frame = Frame.from_bytes(data, Kind.PUBLIC_KEY)
        return PaillierCrossPublic(
            PaillierPublicKey.from_frame(frame, allow_small=allow_small, context=nonce)
        )

    def load_key(data: bytes) -> CrossKey:
        frame = Frame.from_bytes(data, Kind.SECRET_KEY)
        return PaillierCrossKey(PaillierSecretKey.from_frame(frame, allow_small=allow_small))

    return CrossScheme("paillier", generate, read_public, load_key)


PAILLIER = paillier_scheme()
cross_scheme = paillier_scheme  # for the registry of schemes
