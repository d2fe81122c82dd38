"""CKKS on the ring of blind training: thousands of values a ciphertext, approximate, opened as phases.

layout    parameters, and the places of values in slots and coefficients
form      the public numbers of an array, and its noise
arrays    ciphertexts, masked blocks, openings and masks
keys      public and secret keys
"""
