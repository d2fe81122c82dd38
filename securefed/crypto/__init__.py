"""Homomorphic encryption of arrays, with the key-holder as a role of its own.

    holder = generate("paillier")                            # the key-holder; nobody else has the secret key
    public = load_public_key(holder.public.to_bytes())       # what everybody else has
    encrypted = holder.encrypt(values, FixedPoint(bound=1))
    masked, mask = (matrix @ encrypted).mask()               # by a party without the secret key
    opened = holder.open(masked)                             # uniform to the key-holder
    result = mask.remove(opened)                             # matrix @ values, to the requester alone

Schemes: "ckks" (lattices, thousands of values a ciphertext), "paillier" (factoring, one value a ciphertext or
packed) and "plain" (no protection; for experiments and as the oracle). Blind training encrypts one product
between two parties instead (securefed.crypto.blind, `cross_scheme`), under keys that it makes itself.

`SCHEMES` and `KEY_KINDS` have every fact that other code needs: no code outside this package compares a
scheme's name. docs/extending.md adds a scheme.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from os import PathLike
from typing import TYPE_CHECKING, Any

from securefed.crypto.fixed import FixedPoint
from securefed.crypto.keyfile import read_key_file, write_key_file
from securefed.crypto.keyholder import KeyHolder
from securefed.crypto.scheme import Encrypted, Mapper, Mask, Masked, Opened, PublicKey, Serial
from securefed.crypto.wire import NUMBERS, Frame, Kind
from securefed.errors import BadKey

if TYPE_CHECKING:
    from securefed.crypto.blind.interface import CrossScheme, Lengths

__all__ = [
    "DEFAULT_SCHEME",
    "KEY_KINDS",
    "SCHEMES",
    "Encrypted",
    "FixedPoint",
    "KeyHolder",
    "KeyKind",
    "Mapper",
    "Mask",
    "Masked",
    "Opened",
    "PublicKey",
    "SchemeEntry",
    "Serial",
    "cross_lengths",
    "cross_scheme",
    "find_kind",
    "generate",
    "key_kind",
    "load_key",
    "load_public_key",
    "protects",
    "register",
    "save_key",
]


def generate(kind: str, *, key_bits: int = 3072, allow_small: bool = False) -> KeyHolder:
    """Return a key-holder with a new key. Only Paillier uses `key_bits` and `allow_small` (for tests)."""
    entry = find_kind(kind)
    make = entry.load("generate_secret_key")
    return KeyHolder(make(key_bits, allow_small=allow_small) if entry.sized else make())


def load_public_key(blob: bytes, *, allow_small: bool = False) -> PublicKey:
    """Parse a public key that arrived. Raises BadKey or FormatError if it is malformed, too small or weak."""
    key: PublicKey = _parsed(blob, Kind.PUBLIC_KEY, allow_small)
    return key


def _parsed(blob: bytes, kind: Kind, allow_small: bool) -> Any:
    frame = Frame.from_bytes(blob, kind)
    entry = find_kind(frame.scheme)
    parser = entry.load(entry.public if kind is Kind.PUBLIC_KEY else entry.secret).from_frame
    return parser(frame, allow_small=allow_small) if entry.sized else parser(frame)


def save_key(
    path: str | PathLike[str],
    holder: KeyHolder,
    passphrase: str | bytes,
    *,
    overwrite: bool = False,
    beside: str | PathLike[str] | None = None,
) -> None:
    """Write the key-holder's secret key to a file, encrypted under the passphrase (`write_key_file`)."""
    label, secret = f"{holder.public.scheme} {holder.public.key_id.hex()}", holder._secret.to_bytes()
    write_key_file(path, secret, passphrase, label=label, overwrite=overwrite, beside=beside)


def load_key(path: str | PathLike[str], passphrase: str | bytes, *, allow_small: bool = False) -> KeyHolder:
    """Return the key-holder from a file that `save_key` wrote."""
    return KeyHolder(_parsed(read_key_file(path, passphrase).secret, Kind.SECRET_KEY, allow_small))


@dataclass(frozen=True)
class KeyKind:
    """A kind of keys. Its module is loaded on demand. Besides the two classes the module has

    generate_secret_key()   a fresh secret key; (bits, *, allow_small) where keys come in sizes
    strong_parameters()     descriptions of parameter sets of documented strength, by fingerprint
    most_bytes(shape, sums), MOST_PUBLIC_BYTES    the largest frames of an array and of a public key
    """

    module: str
    public: str
    """The class of its public keys."""
    secret: str
    protects: bool = True
    sized: bool = False
    """Keys come in sizes, and in tests in small ones."""
    counts: bool = False
    """A key file must store how many openings its key has answered."""
    proof: str = ""
    """The statement that an arriving public key proves. The audit looks for it."""
    mask_each: bool = False
    """Every ciphertext of a masked block has its own mask."""
    random_bytes: int = 8
    """Random-looking bytes among every 8 bytes of a ciphertext."""

    def load(self, name: str) -> Any:
        return getattr(import_module(self.module), name)

    @property
    def checks(self) -> tuple[str, ...]:
        """The checks of an arriving public key, for the audit."""
        return ("key form and size", self.proof) if self.proof else ("key form and size",)


@dataclass(frozen=True)
class SchemeEntry:
    """A scheme that users choose."""

    opens: str
    """The kind of keys where own gradients are opened."""
    blind: str | None = None
    """The module of the encrypted product for reveal='nothing', with `cross_scheme` and `cross_lengths`."""
    costly: bool = False
    """A round takes seconds instead of tenths, so demonstrations make fewer rounds."""
    trust: str = ""
    """One line on the trust that opening own gradients needs beyond following the protocol."""

    @property
    def protects(self) -> bool:
        return KEY_KINDS[self.opens].protects


KEY_KINDS: dict[str, KeyKind] = {
    "paillier": KeyKind(
        "securefed.crypto.paillier.keys",
        "PaillierPublicKey",
        "PaillierSecretKey",
        sized=True,
        proof="gcd(n, phi(n)) = 1",
        mask_each=True,
    ),
    "ckks": KeyKind(
        "securefed.crypto.ckks.keys",
        "CkksPublicKey",
        "CkksSecretKey",
        counts=True,
        random_bytes=7,  # three residues of 21 bits leave a bit
    ),
    "plain": KeyKind("securefed.crypto.plain", "PlainPublicKey", "PlainSecretKey", protects=False),
}

DEFAULT_SCHEME = "ckks"
SCHEMES: dict[str, SchemeEntry] = {
    "ckks": SchemeEntry(
        opens="ckks",
        blind="securefed.crypto.blind.rlwe",
        trust="ckks with own gradients: the peers must be trusted not to cheat, since one crafted request "
        "shows a peer the whole secret key (docs/threat-model.md); neither protection=Blind() "
        "nor scheme='paillier' shows a key",
    ),
    "paillier": SchemeEntry(opens="paillier", blind="securefed.crypto.blind.paillier", costly=True),
    "plain": SchemeEntry(opens="plain"),
}
"""The schemes that users choose from. The default is first."""


def register(name: str, entry: SchemeEntry, kinds: dict[str, KeyKind], numbers: dict[str, int]) -> None:
    """Add a scheme with its key kinds and their wire numbers. Numbers below 128 belong to the package."""
    taken = [each for each in (name, *kinds) if each in SCHEMES or each in KEY_KINDS]
    free = set(range(128, 256)) - set(NUMBERS.values())
    if taken or len(free.intersection(numbers.get(kind, 0) for kind in kinds)) < len(kinds):
        raise BadKey(
            f"scheme: {name!r} given; names are new, and each kind has a number from 128 to 255 of its own"
        )
    if entry.opens not in {**KEY_KINDS, **kinds}:
        raise BadKey(f"scheme: {name!r} given, and its keys of kind {entry.opens} are not registered")
    NUMBERS.update({kind: numbers[kind] for kind in kinds})
    KEY_KINDS.update(kinds)
    SCHEMES[name] = entry


def key_kind(scheme: str, reveal: str) -> str | None:
    """Return the key kind of a run. None where nothing is revealed: such a run makes its own keys."""
    entry = SCHEMES.get(scheme)
    if entry is None:
        return scheme
    return None if reveal == "nothing" and entry.blind is not None else entry.opens


def cross_scheme(scheme: str, *, key_bits: int = 3072) -> CrossScheme:
    """Return the encrypted product of blind runs. Only Paillier uses `key_bits`."""
    product: CrossScheme = _product_module(scheme).cross_scheme(key_bits)
    return product


def cross_lengths(scheme: str, key_bits: int) -> Lengths:
    lengths: Lengths = _product_module(scheme).cross_lengths(key_bits)
    return lengths


def _product_module(scheme: str) -> Any:
    entry = SCHEMES.get(scheme)
    if entry is None or entry.blind is None:
        raise BadKey(f"scheme: {scheme!r} given, it has no encrypted product for protection=Blind()")
    return import_module(entry.blind)


def find_kind(name: str) -> KeyKind:
    entry = KEY_KINDS.get(name)
    if entry is None:
        raise BadKey(f"scheme: {name!r} given, one of {', '.join(KEY_KINDS)} is allowed")
    return entry


def protects(name: str) -> bool:
    """Return whether the scheme, or the kind of keys, with this name encrypts; False for an unknown one."""
    entry = SCHEMES.get(name) or KEY_KINDS.get(name)
    return entry is not None and entry.protects
