"""CKKS on the ring of blind training: thousands of values a ciphertext, approximate, opened as phases."""
