"""Blind training on shares: one encrypted pass over the rows, then arithmetic that needs no ciphertext.

precision           fraction bits, and the bound on the probability that a share wraps
cross               the encrypted product between two parties
statistics          who takes part; the pass: shares of X'X and X'y at the two holders
correlations        prepared products of shared matrices
loop                what the programs of all objectives have in common
linear, rebase      linear training, and its warm start
transfer            transfer learning; transfer_algebra and transfer_round have its steps
scoring             scores for the label party, releases, the model at rest
"""

__all__: list[str] = []
