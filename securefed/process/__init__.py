"""What a party's process does, from its settings file to its run directory.

keys            its keys on disk, and its signatures
own_data        its file as numbers, the people whom all have, and its program
party_run       one run: align, train, go on after an interruption
attempts        meeting after meeting until a run is over, and the comparison at the end
checkpoints     what is kept after each round, and what all parties conclude from it
recording       its transcript, events and totals while a run goes on
message_sizes   the most bytes of each kind of message
model_files     its part of the model, and the ledger of what scores have shown
scoring         a joint prediction
"""
