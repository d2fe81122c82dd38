"""CKKS on SEAL's low-level binding: thousands of values a ciphertext, approximate, opened as exact phases.

layout    parameters, and the places of values in slots and coefficients
form      the public numbers of an array, and its noise
arrays    ciphertexts, masked blocks, openings and masks
keys      public and secret keys
"""
