"""The Paillier scheme: exact sums and products by plain integers, on gmpy2."""
