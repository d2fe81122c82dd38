"""The Paillier scheme: exact sums and products by plain integers, on gmpy2.

primes    primes and n-th residues
keys      the proof of a modulus, public and secret keys
arrays    one value a ciphertext
powers    products of powers
masking   packing, masks and openings
"""
