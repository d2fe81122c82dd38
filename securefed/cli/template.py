"""The commented party.toml that `securefed init` writes."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["party_toml"]

HEAD = """\
# securefed: the settings of {name}. Edit, then:  securefed party party.toml
# Paths are relative to this file. securefed check party.toml lists everything that is still wrong.

[party]
name = "{name}"  # as in the certificate; the peers know this party by it
role = "{role}"
listen = "{listen}"  # where this party waits for the others; one TCP port, mutual TLS
folder = "runs"                # run directories: runs/<run name>/
# engine = "processes"         # one a core, which is the default; "serial", a number, or "ray"
# wait = 600                   # seconds that a missing peer is waited for
# patience = 120               # seconds without an answer until a peer counts as missing
# score_ledger = "refuse"      # when scores of a person would show too much of its columns: "warn", or "off"
"""

DATA = """
[data]                         # never leaves this machine
file = "{name}.csv"  # or .parquet
id = "id"                      # the column that says who a row is about; aligned privately with the peers
{label}label = "label"  # at the label party only: the column that is to be predicted
# columns = ["age", "income"]  # features; default: all but id and label
# drop = ["comment"]           # or: all but these
# one_hot = ["region"]         # categories; default: every column that holds words
# standardise = true           # mean 0 and variance 1 on this party's rows
# threshold = "half"           # label party: where classes part; "accuracy", "f1", "balanced", or a number
# weight = "weight"            # label party: a column that says how much a row counts
# offset = "log_exposure"      # label party: a column that is added to what the other columns say
# class_weight = "auto"        # label party: rare classes count more; "balanced", or a weight for each class
# family = "poisson"           # label party, loss = "linear": counts; "gamma", or a power from 1 to 2
# base = "own"                 # label party: train around a fit of its own columns, with all rows alike
# transform = "auto"           # splines for numbers, rare categories together, what is missing is marked
# impute = "indicator"         # gaps: "median", "most-frequent", "indicator" (marked too); default: refused
# dates = {{ born = "age" }}     # years before the newest date; or "parts": year, month, weekday
# missing = ["NA", "unknown"]  # words that mean that a value is not known
# rare = 10                    # categories of fewer rows are put together
# unknown = "ignore"           # categories that training did not have: counted and told, or "refuse"
# separator = ";"              # between the fields of a text file; default: recognised
# decimal = ","                # before the decimals; default: recognised where only one reading fits
# dayfirst = true              # 03/01/2024 is in January; default: recognised where only one reading fits
# peer_ids = 100000            # ids that a peer may put in; default: ten times this party's, 100000 at least
"""

PEERS = """
# One table for each other party: its address, and the certificate that its operator handed over.
# Compare fingerprints by telephone: `securefed init {name} --show` prints this party's.
# Organisations that share an authority may name its certificate (`authority`) instead of each other's.
"""

PEER = """\
[peers.{peer}]
address = "{peer}.example:7001"
certificate = "peers/{peer}.pem"
"""

RUN = """
# The same at all parties: they compare every value when they meet, and name what differs.
[run]
name = "first-run"
parties = {parties}  # in the order of their turns; the last one has the labels
{key_holder}
objective = "{objective}"  # "linear": all have the same people; "transfer": two parties share some
scheme = "ckks"                # "ckks" (lattices, fast), "paillier" (factoring), "plain" (NO protection)
reveal = "nothing"             # "nothing": no party sees gradients or parameters (linear models);
                               # "own-gradient": each party sees its own gradients; needs encryption keys
                               # (securefed init NAME --renew ckks)
rounds = {rounds}  # exchanges, or "auto"; the last third learns from held-out rows too (refit)
local_steps = {steps}  # Q: local updates between two exchanges; `securefed plan` says which is fast
learning_rate = "auto"         # every party's own, from its own columns: cannot diverge; or a number
{penalty}l2 = "auto"  # weight of the penalty: 1/rows; or a number (transfer: a number)
batch_size = 0                 # 0: all rows in every round, the surest; or rows a round
seed = 0                       # of the batches; no secret
# id_form = "exact"            # "caseless": Ann is ann; "loose": also without spaces, signs, leading zeros
# fixed_batches = false        # cut the rows into batches once: repeats give less away than new mixtures
# loss = "logistic"            # "logistic", "linear", "squared_hinge"
# classes = 2                  # of the labels; more than two: each against the rest, in one blind run
# order = "parallel"           # FedBCD-p; "sequential" is FedBCD-s
# proximal = 0.0               # weight of the pull back to the round's start
# decay = "none"               # of the learning rate: "none", "sqrt", "sqrt-parties"
# evaluate_every = 0           # the label party sees scores of the held-out rows every so many rounds
# score_precision = 10         # bits after the point that a score shows; the scored parties blur the rest
# holdout = 0.2                # part of the common rows set aside: at the end, once, the label party sees
                               # their scores and says how good the model is; 0: quality is not measured
# target = 0.9                 # stop when the metric is there; needs evaluate_every
# release = false              # reveal = "nothing": at the end show each party its own parameters, blurred;
                               # "trusted" lifts the limit on how many, where all trust each other
# key_bits = 3072              # of Paillier keys that a run makes itself (reveal = "nothing")
# dp_noise = 0.0               # noise on opened gradients: differential privacy of labels (own-gradient)
# allow_determined = false     # open even what determines another party's secrets (see the ledger)
"""


COMMENTS_AT = 31


def party_toml(name: str, *, key_holder: bool, listen: str, parties: Sequence[str] = ()) -> str:
    """A file to edit; every key that can be set is in it. `parties` with data, the label party last; examples
    where none are given.
    """
    if not parties:
        others = ("shop", "insurer", "bank") if key_holder else ("shop", "bank")
        parties = others if key_holder or name in others else (name, "bank")
    holder = name if key_holder else "notary"
    listed = "[" + ", ".join(f'"{each}"' for each in parties) + "]"
    needed = f'key_holder = "{holder}"  # the helper: a party without data'
    role = "key-holder" if key_holder else "data"
    parts = [HEAD.format(name=name, role=role, listen=listen)]
    if not key_holder:
        parts.append(DATA.format(name=name, label="" if name == parties[-1] else "# "))
    parts.append(PEERS.format(name=name))
    held, pair = len(parties) > 2 or key_holder, len(parties) == 2
    everybody = [*parties, holder] if held else parties
    parts += [PEER.format(peer=peer) for peer in everybody if peer != name]
    parts.append(
        RUN.format(
            parties=listed,
            key_holder=needed if held else f"# {needed}; with three parties or more (transfer: two)",
            objective="transfer" if held and pair else "linear",
            penalty="# " if held and pair else "",
            rounds=10 if held and pair else 24,
            steps=5 if held and pair else 20,
        )
    )
    return "\n".join(map(_aligned, "".join(parts).split("\n")))


def _aligned(line: str) -> str:
    """Comments below each other, however long a name is."""
    code, found, comment = line.partition("  # ")
    return f"{code.rstrip():<{COMMENTS_AT - 2}}{found}{comment.lstrip()}" if found and code.strip() else line
