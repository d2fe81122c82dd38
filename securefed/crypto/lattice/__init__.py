"""Polynomial rings for both lattice schemes: arithmetic, sampling and the bridge to SEAL.

| module | what |
|---|---|
| ring, convolution | Z_q[X]/(X**4096 + 1), primes of 21 bits in float64: products of blind training |
| word_ring | Z_q[X]/(X**8192 + 1), primes of 60 bits in 64-bit words: CKKS |
| seal_bridge | SEAL's objects from residues and back; the only module that imports SEAL's binding |
| sampling | secrets, errors and noise, from the operating system's generator |
"""

from __future__ import annotations

__all__: list[str] = []
