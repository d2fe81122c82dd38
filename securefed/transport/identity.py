"""A party's identity on the network: its TLS key, its certificate, and the certificates of its peers.

A party makes its own key and a self-signed certificate (ECDSA on P-256, SHA-256). Its operator gives the
certificate to the other operators over a trusted channel, and each of them pins it. No other certificate
speaks for that party. Parties with a certificate authority can name it for a peer instead. Then every
certificate that it issued directly for the peer's name is accepted.

    TransportError
    `-- IdentityError        a key or certificate cannot be used

No repr and no error message contains the private key, and its file has mode 0600. With a passphrase it is a
key file like the others (tls-key.skf, scrypt: securefed.crypto.keyfile). Without one it is a PEM text
(tls-key.pem). A PEM text under a passphrase, from an older release or an authority's tools, is read too.
OpenSSL's derivation makes guessing its passphrase a thousand times cheaper; `guessed_cheaply` detects that.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from securefed.crypto.keyfile import read_key_file, write_key_file
from securefed.declare import check_integer
from securefed.errors import KeyFileError, SettingError
from securefed.files import StorageError, read_bounded, storage_error, write_atomically
from securefed.transport.message import TransportError

KEY_FILE = "tls-key.pem"
SEALED_KEY_FILE = "tls-key.skf"
CERTIFICATE_FILE = "certificate.pem"
NOT_LISTENING = "none"
"""The address of a party that opens all connections itself, for example behind a firewall."""
MOST_PEM = 1 << 16
MOST_PINS = 2
SOON = timedelta(days=30)
"""Before its end, a certificate is mentioned."""
# It is the name in the certificate and is compared as a host name is.
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9])?")
# What the X.509 parser raises for bytes that are not a certificate, or not one that it knows.
UNREADABLE = (
    ValueError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
PEM_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


class IdentityError(TransportError):
    """A key or a certificate cannot be used as given."""


def check_party_name(name: object) -> str:
    """Return a name that fits into a certificate: letters, digits, - and _, at most 63."""
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        raise SettingError(
            f"name: {name!r} given, 1 to 63 letters, digits, '-' and '_' are allowed, "
            "with a letter or digit at both ends"
        )
    return name


def parse_address(address: object) -> tuple[str, int]:
    """Parse HOST:PORT, with an IPv6 address in brackets. A listener takes a free port for port 0."""
    host, colon, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    bracketed = host.startswith("[") and host.endswith("]")
    plain = bool(host) and not set(host) & set("[]/:% ")
    if not colon or not (bracketed or plain) or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise SettingError(f"address: {address!r} given, HOST:PORT is allowed (an IPv6 host in brackets)")
    host = host[1:-1] if bracketed else host
    try:
        host.encode("idna")
    except UnicodeError:
        raise SettingError(f"address: {address!r} given, {host!r} cannot be a host's name") from None
    return host, int(port)


def check_listen(address: object) -> str:
    """Return where a party waits for others: HOST:PORT, or "none"."""
    if address != NOT_LISTENING:
        parse_address(address)
    return str(address)


@dataclass(frozen=True, repr=False)
class Certificate:
    """A public certificate. Two are equal if they are the same bytes."""

    der: bytes

    @classmethod
    def from_pem(cls, pem: bytes | str) -> Certificate:
        """Parse the first certificate of a PEM text, which is the holder's."""
        data = pem.encode() if isinstance(pem, str) else pem
        if len(data) > MOST_PEM:
            raise IdentityError(f"certificate: {len(data)} bytes given, at most {MOST_PEM} are allowed")
        if b"PRIVATE KEY" in data:
            raise IdentityError("certificate: this text holds a private key; hand over the certificate only")
        block = PEM_BLOCK.search(data)
        if block is None:
            raise IdentityError("certificate: no PEM certificate in what was given")
        try:
            parsed = x509.load_pem_x509_certificate(block.group())
            certificate = cls(parsed.public_bytes(serialization.Encoding.DER))
            _ = (
                certificate.name,
                certificate.names,
                certificate.is_authority,
                certificate.ends,
            )  # all of it readable, or refused here
        except UNREADABLE:
            raise IdentityError("certificate: what was given is not a readable X.509 certificate") from None
        return certificate

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Certificate:
        try:
            with open(path, "rb") as file:
                return cls.from_pem(file.read(MOST_PEM + 1))
        except OSError as error:
            raise IdentityError(f"cannot read {path}: {error.strerror}") from None

    @property
    def _x509(self) -> x509.Certificate:
        return x509.load_der_x509_certificate(self.der)

    @property
    def pem(self) -> bytes:
        return self._x509.public_bytes(serialization.Encoding.PEM)

    @property
    def name(self) -> str:
        """The common name."""
        names = self._x509.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return str(names[0].value) if names else ""

    @property
    def subject(self) -> bytes:
        return self._x509.subject.public_bytes()

    @property
    def names(self) -> tuple[str, ...]:
        """The DNS names that it is valid for."""
        try:
            extension = self._x509.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        except x509.ExtensionNotFound:
            return ()
        return tuple(extension.value.get_values_for_type(x509.DNSName))

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the DER form, for operators to compare by telephone."""
        digest = self._x509.fingerprint(hashes.SHA256()).hex()
        return ":".join(digest[i : i + 2] for i in range(0, len(digest), 2))

    @property
    def begins(self) -> datetime:
        return self._x509.not_valid_before_utc

    @property
    def ends(self) -> datetime:
        return self._x509.not_valid_after_utc

    @property
    def is_authority(self) -> bool:
        try:
            extension = self._x509.extensions.get_extension_for_class(x509.BasicConstraints)
        except x509.ExtensionNotFound:
            return False
        return bool(extension.value.ca)

    def issued(self, other: Certificate) -> bool:
        """Return whether this certificate's key signed the other, directly."""
        try:
            other._x509.verify_directly_issued_by(self._x509)
        except (*UNREADABLE, TypeError, InvalidSignature):
            return False
        return True

    def __repr__(self) -> str:
        short = self.fingerprint[:23]
        return f"<certificate of {self.name!r} until {self.ends:%Y-%m-%d}, SHA-256 {short}...>"


@dataclass(frozen=True)
class Peer:
    """Another party: its address, and its certificates or the authority for its name.

    The address is "none" if that party listens on nothing and connects to this one. Two certificates may be
    pinned, so that the party can change from one to the other at any moment.
    """

    address: str
    certificate: Certificate | tuple[Certificate, ...] | None = None
    authority: Certificate | None = None

    def __post_init__(self) -> None:
        if self.listens and parse_address(self.address)[1] == 0:
            raise SettingError(f"address: {self.address!r} given, a peer needs a port from 1 to 65535")
        if (self.certificate is None) == (self.authority is None):
            raise SettingError("peer: exactly one of certificate and authority has to be given")
        for certificate in self.pins:
            if certificate.is_authority:
                # Whoever holds an authority's key can make certificates, so pinning one pins nothing.
                raise IdentityError(
                    f"certificate: {certificate.name!r} is a certificate authority; name it as the "
                    "peer's authority, or pin the party's own certificate"
                )
        self._check_pair()
        if self.authority is not None and not self.authority.is_authority:
            raise IdentityError(
                f"authority: {self.authority.name!r} is not a certificate authority; pin it as the "
                "peer's certificate"
            )

    @property
    def listens(self) -> bool:
        """Whether it accepts connections."""
        return self.address != NOT_LISTENING

    def _check_pair(self) -> None:
        """TLS looks trusted certificates up by their subject, and finds one of two with the same."""
        pins = self.pins
        if self.certificate is not None and not 1 <= len(pins) <= MOST_PINS:
            raise SettingError(f"certificate: {len(pins)} given, one or {MOST_PINS} are allowed")
        if len(pins) == len({pin.subject for pin in pins}) and len({pin.names for pin in pins}) <= 1:
            return
        raise SettingError(
            f"certificate: the two of {pins[0].name!r} cannot be pinned together: they are the same, for "
            "different names, or both of an older release"
        )

    @property
    def pins(self) -> tuple[Certificate, ...]:
        """The pinned certificates; none if an authority is named."""
        if self.certificate is None:
            return ()
        return self.certificate if isinstance(self.certificate, tuple) else (self.certificate,)

    @property
    def anchors(self) -> bytes:
        """TLS's trust anchors for this peer as PEM: the pinned certificates, or the authority."""
        trusted = self.pins if self.authority is None else (self.authority,)
        return b"".join(each.pem for each in trusted)

    def speaks(self, name: str, shown: Certificate) -> bool:
        """Return whether this certificate belongs to the peer of that name."""
        if self.authority is None:
            return shown in self.pins
        return self.authority.issued(shown) and not shown.is_authority and name in shown.names


def check_reachable(name: str, listen: str, peers: Mapping[str, Peer]) -> None:
    """Refuse two parties of which neither accepts connections."""
    silent = [peer for peer, each in peers.items() if not each.listens]
    if listen == NOT_LISTENING and silent:
        raise SettingError(
            f"listen: {name} and {silent[0]} both listen on nothing, so neither can reach the other; "
            f"one of the two needs an address"
        )


@dataclass(frozen=True)
class CertificateFinding:
    """What is to be said about a certificate: it is "ended", not valid "yet", or ends "soon"."""

    holder: str
    verdict: str
    text: str


def check_validity(
    name: str, own: Certificate | None, peers: Mapping[str, Peer], now: datetime
) -> Iterator[CertificateFinding]:
    """Yield what is to be said about the days of this party's certificate and of pinned ones.

    An ended one beside another that is valid is no obstacle: it ends "soon".
    """
    known = {peer: each.pins for peer, each in peers.items()}
    for holder, certificates in {**known, **({} if own is None else {name: (own,)})}.items():
        remedy = f"securefed init {holder} --renew tls"
        remedy = f"{remedy} makes a new one" if holder == name else f"ask {holder} for a new one ({remedy})"
        valid = [each for each in certificates if each.begins <= now < each.ends]
        for certificate in certificates:
            end = f"{certificate.ends:%Y-%m-%d %H:%M} UTC"
            if now >= certificate.ends and valid:
                text = f"an old certificate of {holder} ended on {end}; delete it from party.toml"
                yield CertificateFinding(holder, "soon", text)
            elif now >= certificate.ends:
                text = f"the certificate of {holder} ended on {end}; {remedy}"
                yield CertificateFinding(holder, "ended", text)
            elif now < certificate.begins and not valid:
                text = f"the certificate of {holder} begins on {certificate.begins:%Y-%m-%d %H:%M} UTC; "
                yield CertificateFinding(holder, "yet", f"{text}is this machine's clock right?")
            elif certificate.ends - now < SOON and all(each.ends - now < SOON for each in valid):
                text = f"the certificate of {holder} ends on {certificate.ends:%Y-%m-%d}; {remedy}"
                yield CertificateFinding(holder, "soon", text)


class Identity:
    """A party's own key and certificate."""

    def __init__(self, certificate: Certificate, key: PrivateKey, chain: bytes = b"") -> None:
        self.certificate = certificate
        self.name = check_party_name(certificate.name)
        self.chain = chain or certificate.pem
        """The PEM text to show: the certificate, and its issuers' if an authority made it."""
        self._key = key
        public = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        try:
            of_certificate = certificate._x509.public_key().public_bytes(*public)
        except (*UNREADABLE, TypeError):
            raise IdentityError(
                f"the certificate of {self.name!r} is damaged: its key is unreadable"
            ) from None
        if key.public_key().public_bytes(*public) != of_certificate:
            raise IdentityError(f"the key is not the one of the certificate of {self.name!r}")

    @classmethod
    def generate(cls, name: str, *, days: int = 825, now: datetime | None = None) -> Identity:
        """Make a new key and a self-signed certificate, valid for `days` days from yesterday on."""
        check_party_name(name)
        check_integer("days", days, least=1, most=3650)
        key = ec.generate_private_key(ec.SECP256R1())
        # Two certificates of one party have different subjects, so that both can be trusted at a time.
        own = [(NameOID.COMMON_NAME, name), (NameOID.SERIAL_NUMBER, secrets.token_hex(8))]
        subject = x509.Name([x509.NameAttribute(*each) for each in own])
        moment = now or datetime.now(UTC)
        usage = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            # A day of grace for a peer whose clock is behind.
            .not_valid_before(moment - timedelta(days=1))
            .not_valid_after(moment + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(Certificate(certificate.public_bytes(serialization.Encoding.DER)), key)

    @classmethod
    def from_pem(
        cls, certificate: bytes | str, key: bytes, passphrase: str | bytes | None = None
    ) -> Identity:
        """Load a certificate that an authority issued, from PEM texts. The key may be ECDSA or RSA."""
        chain = certificate.encode() if isinstance(certificate, str) else certificate
        loaded = _open_key(key, passphrase)
        return cls(Certificate.from_pem(chain), loaded, chain)

    def sign(self, data: bytes) -> bytes:
        """Sign with the TLS key: ECDSA, or RSA with PKCS #1 v1.5; SHA-256."""
        if isinstance(self._key, ec.EllipticCurvePrivateKey):
            return self._key.sign(data, ec.ECDSA(hashes.SHA256()))
        return self._key.sign(data, padding.PKCS1v15(), hashes.SHA256())

    def key_pem(self, password: str = "") -> bytes:
        """Return the private key as PKCS#8, unencrypted without a password. Never send it."""
        return _private_bytes(self._key, serialization.Encoding.PEM, password)

    def save(self, folder: str | os.PathLike[str], passphrase: str | bytes | None = None) -> None:
        """Write the key and the certificate into a folder. Existing files stay unchanged."""
        directory = Path(folder)
        if passphrase:
            secret = _private_bytes(self._key, serialization.Encoding.DER)
            try:
                write_key_file(directory / SEALED_KEY_FILE, secret, passphrase, label=_label(self.name))
            except KeyFileError as error:
                raise IdentityError(str(error)) from None
        else:
            _write_new(directory / KEY_FILE, self.key_pem(), 0o600)
        _write_new(directory / CERTIFICATE_FILE, self.chain, 0o644)

    def replace(self, folder: str | os.PathLike[str], passphrase: str, stamp: str) -> None:
        """Replace the identity in `folder`, which stays beside it as *.old-STAMP.

        Both new files are on disk before the first old one is touched. A kill or a full disk leaves the old
        identity, or a new one that `load` finishes putting into place.
        """
        directory = Path(folder)
        key, certificate = directory / SEALED_KEY_FILE, directory / CERTIFICATE_FILE
        secret = _private_bytes(self._key, serialization.Encoding.DER)
        try:
            write_key_file(_next(key), secret, passphrase, label=_label(self.name), overwrite=True)
        except KeyFileError as error:
            raise IdentityError(str(error)) from None
        for old in (key, certificate):
            if old.exists():
                write_atomically(old.with_name(f"{old.name}.old-{stamp}"), old.read_bytes())
        write_atomically(_next(certificate), self.chain, mode=0o644)
        try:
            bare = directory / KEY_FILE
            if bare.exists():
                bare.rename(bare.with_name(f"{bare.name}.old-{stamp}"))
            _next(key).replace(key)
            _next(certificate).replace(certificate)
        except OSError as error:
            raise storage_error(key, error) from None

    @classmethod
    def load(cls, folder: str | os.PathLike[str], passphrase: str | bytes | None = None) -> Identity:
        """Read an identity that this or an older release saved."""
        directory = Path(folder)
        finish_renewal(directory)
        sealed, bare = directory / SEALED_KEY_FILE, directory / KEY_FILE
        if sealed.exists() and bare.exists():
            raise IdentityError(
                f"{sealed} and {bare.name} are both there: a change of passphrase that was interrupted "
                "(--renew passphrase finishes it), or one of them is not the certificate's and has to go"
            )
        if not sealed.exists():
            key = _read_bounded(bare, private=True)
            return cls.from_pem(_read_bounded(directory / CERTIFICATE_FILE, private=False), key, passphrase)
        if not passphrase:
            raise IdentityError("the TLS key cannot be read: it needs a passphrase")
        try:
            private = _parsed(serialization.load_der_private_key, read_key_file(sealed, passphrase).secret)
        except KeyFileError as error:
            raise IdentityError(f"the TLS key cannot be read: {error}") from None
        chain = _read_bounded(directory / CERTIFICATE_FILE, private=False)
        return cls(Certificate.from_pem(chain), private, chain)

    def __repr__(self) -> str:
        return f"<identity of {self.name!r}: {self.certificate!r}>"


def finish_renewal(folder: Path) -> None:
    """Finish a renewal that was interrupted while `Identity.replace` moved files into place."""
    sealed, certificate = folder / SEALED_KEY_FILE, folder / CERTIFICATE_FILE
    if not _next(certificate).exists():
        return
    old_is_whole = _next(sealed).exists() and (sealed.exists() or (folder / KEY_FILE).exists())
    if old_is_whole:
        return
    try:
        if _next(sealed).exists():
            _next(sealed).replace(sealed)
        _next(certificate).replace(certificate)
    except OSError as error:
        raise storage_error(certificate, error) from None


def _next(path: Path) -> Path:
    return path.with_name(f"{path.name}.next")


def guessed_cheaply(folder: str | os.PathLike[str]) -> bool:
    """Return whether a TLS key there is encrypted by OpenSSL's derivation instead of scrypt."""
    path = Path(folder) / KEY_FILE
    return path.exists() and b"ENCRYPTED" in _read_bounded(path, private=True)


def sealed_private_key(path: Path, passphrase: str | bytes) -> bytes:
    """Return the private key of an encrypted PEM text, as the secret of a key file."""
    key = _open_key(_read_bounded(path, private=True), passphrase)
    return _private_bytes(key, serialization.Encoding.DER)


def _label(name: str) -> str:
    return f"tls {name}"


def _private_bytes(key: PrivateKey, encoding: serialization.Encoding, password: str = "") -> bytes:
    hidden = serialization.BestAvailableEncryption(password.encode()) if password else None
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, form, hidden or serialization.NoEncryption())


def _open_key(pem: bytes, passphrase: str | bytes | None) -> PrivateKey:
    return _parsed(serialization.load_pem_private_key, pem, passphrase)


def _parsed(
    load: Callable[[bytes, bytes | None], object], data: bytes, passphrase: str | bytes | None = None
) -> PrivateKey:
    secret = passphrase.encode() if isinstance(passphrase, str) else passphrase
    try:
        loaded = load(data, secret or None)
    except TypeError:
        reason = "it is not encrypted, and a passphrase was given" if secret else "it needs a passphrase"
        raise IdentityError(f"the TLS key cannot be read: {reason}") from None
    except UNREADABLE:
        word = "the passphrase is wrong or the text is damaged" if secret else "the text is damaged"
        raise IdentityError(f"the TLS key cannot be read: {word}") from None
    if not isinstance(loaded, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise IdentityError("the TLS key is neither an ECDSA nor an RSA one")
    return loaded


def _write_new(path: Path, data: bytes, mode: int) -> None:
    """Write a new file. Raises if it exists."""
    try:
        write_atomically(path, data, mode=mode, overwrite=False)
    except FileExistsError:
        raise IdentityError(f"{path} exists already and is kept") from None
    except StorageError as error:
        raise IdentityError(str(error)) from None


def _read_bounded(path: Path, *, private: bool) -> bytes:
    try:
        return read_bounded(path, MOST_PEM, private=private)
    except StorageError as error:
        raise IdentityError(str(error)) from None
