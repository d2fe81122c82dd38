"""What each observer of our own scheme has: wire bytes, and for the key-holder its secret key.

An attack may read everything that its observer holds, hence the private attributes. The ciphertexts of
others are taken from bytes, as they travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import KeyHolder, Masked
from securefed.crypto.ckks.arrays import CkksMasked
from securefed.crypto.ckks.keys import CkksSecretKey
from securefed.crypto.lattice.ring import PRIMES
from securefed.crypto.paillier.keys import PaillierPublicKey, PaillierSecretKey
from securefed.crypto.wire import Frame, Kind
from tests.audit.ring import Residues


def paillier_factors(holder: KeyHolder) -> tuple[int, int]:
    """p and q, for an observer who is the key-holder."""
    secret = holder._secret
    assert isinstance(secret, PaillierSecretKey)
    return int(secret._primes.p.p), int(secret._primes.q.p)


def paillier_public(holder: KeyHolder) -> PaillierPublicKey:
    public = holder.public
    assert isinstance(public, PaillierPublicKey)
    return public


def paillier_wire(holder: KeyHolder, blob: bytes, kind: Kind) -> list[int]:
    """The ciphertexts, masked ciphertexts or opened integers in a frame."""
    width = paillier_public(holder).ciphertext_bytes // (2 if kind is Kind.OPENED else 1)
    payload = Frame.from_bytes(blob, kind).payload
    return [int.from_bytes(payload[i : i + width], "big") for i in range(0, len(payload), width)]


def with_ciphertexts(holder: KeyHolder, blob: bytes, kind: Kind, ciphertexts: Sequence[int]) -> bytes:
    """The frame with other integers in it, and everything else (checksum, lengths) as it should be."""
    width = paillier_public(holder).ciphertext_bytes
    payload = b"".join(c.to_bytes(width, "big") for c in ciphertexts)
    return replace(Frame.from_bytes(blob, kind), payload=payload).to_bytes()


def ckks_secret(holder: KeyHolder) -> CkksSecretKey:
    secret = holder._secret
    assert isinstance(secret, CkksSecretKey)
    return secret


def masked_phase(holder: KeyHolder, masked: Masked) -> Residues:
    """c0 + c1 s at the coefficients that were sent: all that a key-holder has of a block."""
    assert isinstance(masked, CkksMasked)
    return canonical(ckks_secret(holder)._phase(masked))


def canonical(residues: NDArray[np.float64]) -> Residues:
    """Centred residues, (5, ...), as Python integers from 0."""
    primes = np.array(PRIMES, dtype=np.int64).reshape(-1, *(1 for _ in residues.shape[1:]))
    return np.asarray((residues.astype(np.int64) % primes).astype(object))
