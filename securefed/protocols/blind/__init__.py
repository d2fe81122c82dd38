"""Blind training on shares: one encrypted pass over the rows, then arithmetic that needs no ciphertext.

precision    fraction bits, and the bound on the probability that a share wraps
cross        the encrypted product between two parties
statistics   shares of X'X and X'y at the two holders
products     prepared products of shared matrices
linear       the programs of linear training
scoring      scores for the label party, releases, the model at rest
"""

__all__: list[str] = []
