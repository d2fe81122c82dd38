"""What a party's process does, from its settings file to its run directory.

settings, shared, fields    party.toml, and in it what all parties have agreed on
keys, endpoint              its keys on disk, and its place on the network
rows, preparation, own_data its file, as numbers
party_run, attempts         one run: align, train, go on after an interruption, compare at the end
resumption                  where the parties stand when they meet, and what follows from it
checkpoints, bookkeeping    what is kept after each round, and the sums for the report
transcripts                 what it sent and received, over interruptions
alignment, building         who is in common; from settings and data to the party's program
shards, scoring             its part of the model, and a joint prediction with it
workers                     its own worker processes
"""

from __future__ import annotations

__all__: list[str] = []
