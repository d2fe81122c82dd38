"""Blind training on shares: one encrypted pass over the rows, then arithmetic that needs no ciphertext.

cross               the encrypted product between two parties
statistics          who takes part, fraction bits; the pass: shares of X'X and X'y at the two holders
correlations        prepared products of shared matrices
loop                what the programs of all objectives have in common
linear              linear training
transfer            transfer learning; transfer_algebra and transfer_round have its steps
scoring             scores for the label party, releases, the model at rest
"""

__all__: list[str] = []
