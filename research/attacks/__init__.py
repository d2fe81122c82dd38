"""Attacks on recorded runs, and the statistics that say whether one succeeds.

views            what one party of a run received and opened, with its own data
linear           labels and features from opened gradients of the generalised linear objective
transfer         the same of federated transfer learning
first_exchange   labels from the first exchange, by lattice reduction
transcripts      the key-holder's attack on the randomness of what it gets back
theorem1         other data with the same messages: the paper's Theorem 1, built
battery          statistical tests of masks
scores           how well an attack does, with its interval
"""

from __future__ import annotations

__all__: list[str] = []
