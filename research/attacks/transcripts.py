"""Attacks on the ciphertexts of a recorded run, by the key-holder that they were made for.

The key-holder sent [[E]] under its own key and got back a masked block that the requester computed from it
with its private multipliers. A mask hides the values. What else is in the block says how it was computed,
unless it was re-randomised: the randomness of Paillier (c mod n is r^n, whatever the mask), c1 of CKKS. So
the key-holder does the computation itself for each data set that it thinks possible and compares.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from securefed.crypto import KeyHolder, Masked
from securefed.crypto.ckks.arrays import CkksEncrypted, CkksMasked
from securefed.crypto.ckks.keys import CkksPublicKey
from securefed.crypto.lattice.ring import DEGREE, PRIMES
from securefed.crypto.paillier.arrays import PackedLayout, PaillierEncrypted, PaillierMasked, pack_ciphertexts
from securefed.crypto.paillier.keys import PaillierPublicKey
from securefed.crypto.plain import PlainBlock, PlainEncrypted
from securefed.crypto.scheme import Encrypted
from securefed.protocols.own_gradient.openings import levelled
from securefed.transport.message import Message

Array = NDArray[np.float64]


def matching_data_sets(
    holder: KeyHolder, sent: Message, returned: Message, candidates: Sequence[Array]
) -> list[int]:
    """Which of the candidate multipliers (each columns x outputs x rows) fit what the requester returned."""
    encrypted = holder.public.load(sent.payload)
    masked = holder.public.load_masked(returned.payload)
    levels = [levelled(guess)[0] for guess in candidates]
    return [place for place, level in enumerate(levels) if _fits(encrypted.contract(level), masked)]


def _fits(computed: Encrypted, masked: Masked) -> bool:
    if isinstance(computed, PlainEncrypted) and isinstance(masked, PlainBlock):
        return bool(np.allclose(computed.values, masked.values))
    if isinstance(computed, PaillierEncrypted) and isinstance(masked, PaillierMasked):
        layout = PackedLayout.of(computed.public.bits, computed.shape, computed.extent)
        packed = pack_ciphertexts(computed.public, computed.integers, layout)
        n = computed.public.n
        return [c % n for c in packed] == [mpz(c) % n for c in masked.integers]
    if isinstance(computed, CkksEncrypted) and isinstance(masked, CkksMasked):
        return bool((computed.merged()[:, 1] == masked.c1).all())
    return False


@contextmanager
def without_rerandomisation() -> Iterator[None]:
    """The deliberately naive variant: masks as ours, fresh randomness left off."""
    with (
        patch.object(PaillierPublicKey, "draw", lambda self, count: [mpz(1)] * count),
        patch.object(CkksPublicKey, "zeros", lambda self, count: np.zeros((len(PRIMES), 2, count, DEGREE))),
    ):
        yield
