"""Blind training on shares: one encrypted pass over the rows, then arithmetic that needs no ciphertext.

cross               the encrypted product between two parties
statistics          who takes part, fraction bits; the pass: shares of X'X and X'y at the two holders
correlations        prepared products of shared matrices
linear              a party's program, of linear training and of transfer learning
scoring             scores for the label party, releases, the model at rest
"""

__all__: list[str] = []
