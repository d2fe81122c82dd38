"""Every scheme and every kind of keys, one entry each: all that the rest of the package asks about them.

Users choose a scheme; a run takes keys of the kind that the scheme uses for what is revealed (`key_kind`).
Nothing outside this package goes by a scheme's name: it asks its entry. docs/extending.md adds one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from securefed.crypto.errors import BadKey
from securefed.crypto.wire import Scheme

if TYPE_CHECKING:
    from securefed.crypto.blind.interface import CrossScheme, Lengths

__all__ = [
    "DEFAULT_SCHEME",
    "KEY_KINDS",
    "SCHEMES",
    "KeyKind",
    "SchemeEntry",
    "cross_lengths",
    "cross_scheme",
    "find_kind",
    "key_kind",
    "kind_protects",
    "protects",
    "register",
    "schemes_that",
]


@dataclass(frozen=True)
class KeyKind:
    """A kind of keys. Its module is loaded when it is needed, and has besides the two classes

    generate_secret_key()   a fresh secret key; (bits, *, allow_small) where keys come in sizes
    strong_parameters()     fingerprints of parameter sets of documented strength, each with its words
    """

    module: str
    public: str
    """The class of its public keys."""
    secret: str
    protects: bool = True
    sized: bool = False
    """Its keys come in sizes (and, in tests, in small ones)."""
    counts: bool = False
    """A key file has to remember how many openings its key has answered."""
    proof: str = ""
    """What a public key proves of itself where it arrives; the audit looks for it."""
    mask_each: bool = False
    """Every ciphertext of a masked block is under a mask of its own."""
    random_bytes: int = 8
    """Of every 8 bytes of a ciphertext, how many look random."""

    def load(self, name: str) -> Any:
        return getattr(import_module(self.module), name)

    @property
    def checks(self) -> tuple[str, ...]:
        """What reading a public key looked at, for the audit."""
        return ("key form and size", self.proof) if self.proof else ("key form and size",)


@dataclass(frozen=True)
class SchemeEntry:
    """What users choose."""

    opens: str
    """The kind of keys where own gradients are opened."""
    blind: str | None = None
    """The module of the encrypted product where nothing is revealed; None: there is none. It has a function
    cross_scheme(key_bits) that gives a securefed.crypto.blind.interface.CrossScheme, and a function
    cross_lengths(key_bits) that gives the lengths of its messages."""
    parallel: bool = False
    """Several processes are faster than one, as a rule."""
    costly: bool = False
    """A round takes seconds where others take tenths: demonstrations make fewer of them."""
    noise: bool = False
    """Sums that it opens can carry noise for differential privacy."""
    trust: str = ""
    """What opening own gradients asks of the peers beyond following the protocol, in a line."""

    @property
    def protects(self) -> bool:
        return KEY_KINDS[self.opens].protects


KEY_KINDS: dict[str, KeyKind] = {
    "paillier": KeyKind(
        "securefed.crypto.paillier",
        "PaillierPublicKey",
        "PaillierSecretKey",
        sized=True,
        proof="gcd(n, phi(n)) = 1",
        mask_each=True,
    ),
    "ckks": KeyKind(
        "securefed.crypto.ckks",
        "CkksPublicKey",
        "CkksSecretKey",
        counts=True,
        random_bytes=7,  # residues have 60 bits
    ),
    "plain": KeyKind("securefed.crypto.plain", "PlainPublicKey", "PlainSecretKey", protects=False),
}

DEFAULT_SCHEME = "ckks"
SCHEMES: dict[str, SchemeEntry] = {
    "ckks": SchemeEntry(
        opens="ckks",
        blind="securefed.crypto.blind.rlwe",
        parallel=True,
        trust="ckks with own gradients: the peers must be trusted not to cheat, since one crafted request "
        "shows a peer the whole secret key (docs/threat-model.md); neither protection=Blind() "
        "nor scheme='paillier' shows a key",
    ),
    "paillier": SchemeEntry(
        opens="paillier", blind="securefed.crypto.blind.paillier", parallel=True, costly=True, noise=True
    ),
    "plain": SchemeEntry(opens="plain", noise=True),
}
"""What users choose from, the default first."""


def register(name: str, entry: SchemeEntry, kinds: dict[str, KeyKind], numbers: dict[str, int]) -> None:
    """Add a scheme with its kinds of keys and their numbers on the wire (below 128 are the package's)."""
    taken = [each for each in (name, *kinds) if each in SCHEMES or each in KEY_KINDS]
    if taken or any(not 128 <= numbers.get(kind, 0) < 256 for kind in kinds):
        raise BadKey(f"scheme: {name!r} given; names are new, and each kind has a number from 128 to 255")
    for kind, entry_ in kinds.items():
        Scheme.register(numbers[kind], kind)
        KEY_KINDS[kind] = entry_
    if entry.opens not in KEY_KINDS:
        raise BadKey(f"scheme: {name!r} given, and its keys of kind {entry.opens} are not registered")
    SCHEMES[name] = entry


def key_kind(scheme: str, reveal: str) -> str | None:
    """The kind of keys that a run takes; None where nothing is revealed: such a run makes keys of its own."""
    entry = SCHEMES.get(scheme)
    if entry is None:
        return scheme
    return None if reveal == "nothing" and entry.blind is not None else entry.opens


def cross_scheme(scheme: str, *, key_bits: int = 3072) -> CrossScheme:
    """The encrypted product of blind runs. `key_bits` concerns Paillier alone."""
    made: CrossScheme = import_module(_product_module(scheme)).cross_scheme(key_bits)
    return made


def cross_lengths(scheme: str, key_bits: int) -> Lengths:
    """Return the lengths of its messages. `key_bits` concerns Paillier alone."""
    made: Lengths = import_module(_product_module(scheme)).cross_lengths(key_bits)
    return made


def _product_module(scheme: str) -> str:
    entry = SCHEMES.get(scheme)
    if entry is None or entry.blind is None:
        raise BadKey(f"scheme: {scheme!r} given, it has no encrypted product for protection=Blind()")
    return entry.blind


def find_kind(name: str) -> KeyKind:
    entry = KEY_KINDS.get(name)
    if entry is None:
        raise BadKey(f"scheme: {name!r} given, one of {', '.join(KEY_KINDS)} is allowed")
    return entry


def protects(scheme: str) -> bool:
    """Whether runs under this scheme are encrypted; those of no known one are not."""
    return scheme in SCHEMES and SCHEMES[scheme].protects


def schemes_that(holds: Callable[[SchemeEntry], object]) -> str:
    """Their names, for a line that says what is allowed."""
    return " or ".join(repr(name) for name, entry in SCHEMES.items() if holds(entry))


def kind_protects(kind: str) -> bool:
    """The same for a kind of keys."""
    return kind in KEY_KINDS and KEY_KINDS[kind].protects
