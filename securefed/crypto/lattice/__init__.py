"""Polynomial rings of both lattice schemes.

`ring` is Z_q[X]/(X**4096 + 1), primes of 21 bits in float64, for blind products. `seal_ring` is
Z_q[X]/(X**8192 + 1), primes of 60 bits in 64-bit words, for CKKS. It alone imports SEAL's binding.
"""
