"""The commented party.toml that `securefed init` writes."""

from __future__ import annotations

__all__ = ["party_toml"]

HEAD = """\
# securefed: the settings of {name}. Edit, then:  securefed party party.toml
# Paths are relative to this file. docs/deploy.md goes through all of it.

[party]
name = "{name}"                  # as in the certificate; the peers know this party by it
role = "{role}"
listen = "{listen}"        # where this party waits for the others; one TCP port, mutual TLS
folder = "runs"                # run directories: runs/<run name>/
# engine = "serial"            # "serial", "processes", "ray", or a number of processes; default: all cores
# wait = 600                   # seconds that a missing peer is waited for
# patience = 120               # seconds without an answer until a peer counts as missing
"""

DATA = """
[data]                         # never leaves this machine
file = "{name}.csv"            # or .parquet
id = "id"                      # the column that says who a row is about; aligned privately with the peers
# label = "label"              # at the label party only: what is to be predicted
# columns = ["age", "income"]  # features; default: all but id and label
# drop = ["comment"]           # or: all but these
# one_hot = ["region"]         # categories; default: every column that holds words
# standardise = true           # mean 0 and variance 1 on this party's rows
"""

PEERS = """
# One table for each other party: its address, and the certificate that its operator handed over.
# Compare fingerprints by telephone: `securefed init {name} --show` prints this party's.
[peers.{peer}]
address = "{peer}.example:7001"
certificate = "peers/{peer}.pem"
# authority = "peers/ca.pem"   # instead of certificate, where the organisations share an authority
"""

RUN = """
# The same at all parties: they compare every value when they meet, and name what differs.
[run]
name = "first-run"
parties = {parties}   # in the order of their turns; the last one has the labels
{key_holder}
objective = "linear"           # "linear": all have the same people; "transfer": two parties share some
scheme = "paillier"            # "paillier" (exact), "ckks" (approximate, faster), "plain" (NO protection)
reveal = "nothing"             # "nothing": parameters stay encrypted throughout (paillier, linear models);
                               # "own-gradient": each party sees its own aggregated gradients
rounds = 20
local_steps = 5                # Q: local updates between two exchanges; `securefed plan` says which is fast
learning_rate = 0.5
l2 = 0.001
batch_size = 256               # 0: all rows in every round
seed = 0                       # of the batches; no secret
# loss = "logistic"            # "logistic", "linear", "squared_hinge"
# order = "parallel"           # FedBCD-p; "sequential" is FedBCD-s
# proximal = 0.0               # weight of the pull back to the round's start
# decay = "none"               # of the learning rate: "none", "sqrt", "sqrt-parties"
# evaluate_every = 0           # the label party sees scores of the held-out rows every so many rounds
# holdout = 0.2                # part of the common rows kept for that
# target = 0.9                 # stop when the metric is there; needs evaluate_every
# release = false              # after a blind training, open each party's own parameters to it
# allow_determined = false     # open even what determines another party's secrets (see the ledger)
"""


def party_toml(name: str, *, key_holder: bool, listen: str) -> str:
    """A file to edit; every key that can be set is in it."""
    peers = ["shop", "bank"] if key_holder else ["bank" if name != "bank" else "shop"]
    parties = [*peers, "third"] if key_holder else [name, *peers]
    listed = "[" + ", ".join(f'"{each}"' for each in parties) + "]"
    holder = (
        f'key_holder = "{name}"'
        if key_holder
        else '# key_holder = "notary"       # with three parties or more: who holds the key, and no data'
    )
    role = "key-holder" if key_holder else "data"
    parts = [HEAD.format(name=name, role=role, listen=listen)]
    if not key_holder:
        parts.append(DATA.format(name=name))
    parts += [PEERS.format(peer=peer, name=name) for peer in parties if peer != name]
    parts.append(RUN.format(parties=listed, key_holder=holder))
    return "".join(parts)
