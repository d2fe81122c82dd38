"""The Paillier scheme: exact sums and products by plain integers, on gmpy2.

primes    primes and n-th residues
keys      the proof of a modulus, public and secret keys
arrays    one value a ciphertext; packing, masks and openings
powers    products of powers
"""
