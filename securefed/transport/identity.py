"""A party's identity on the network: its TLS key, its certificate, and the certificates of its peers.

A party makes its own key and a self-signed certificate (ECDSA on P-256, SHA-256). Its operator gives the
certificate to the other operators over a trusted channel, and each of them pins it. No other certificate
speaks for that party.

    TransportError
    `-- IdentityError        a key or certificate cannot be used

tls-key.skf holds the key and the certificate under a passphrase (securefed.crypto.keyfile). So a renewal
replaces both at once. certificate.pem is a copy for the other operators. No repr and no error message
contains the private key.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from securefed.crypto.keyfile import read_key_file, write_key_file
from securefed.declare import check_integer
from securefed.errors import KeyFileError, SettingError
from securefed.files import write_atomically
from securefed.transport.message import TransportError

KEY_FILE = "tls-key.skf"
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
PKCS8 = serialization.PrivateFormat.PKCS8


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
        try:
            parsed = x509.load_pem_x509_certificate(data)
            certificate = cls(parsed.public_bytes(serialization.Encoding.DER))
            _ = certificate.name, certificate.ends  # readable, or refused here
        except UNREADABLE:
            raise IdentityError("certificate: no readable X.509 certificate in what was given") from None
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
    def fingerprint(self) -> str:
        """SHA-256 over the DER form, for operators to compare by telephone."""
        return self._x509.fingerprint(hashes.SHA256()).hex(":")

    @property
    def begins(self) -> datetime:
        return self._x509.not_valid_before_utc

    @property
    def ends(self) -> datetime:
        return self._x509.not_valid_after_utc

    def __repr__(self) -> str:
        short = self.fingerprint[:23]
        return f"<certificate of {self.name!r} until {self.ends:%Y-%m-%d}, SHA-256 {short}...>"


@dataclass(frozen=True)
class Peer:
    """Another party: its address, and its certificate, or two of them while it changes to a new one.

    The address is "none" if that party listens on nothing and connects to this one.
    """

    address: str
    certificate: Certificate | tuple[Certificate, ...]

    def __post_init__(self) -> None:
        if self.listens and parse_address(self.address)[1] == 0:
            raise SettingError(f"address: {self.address!r} given, a peer needs a port from 1 to 65535")
        pins = self.pins
        if not 1 <= len(pins) <= MOST_PINS:
            raise SettingError(f"certificate: {len(pins)} given, one or {MOST_PINS} are allowed")
        # TLS looks trusted certificates up by their subject, and finds one of two with the same.
        if len({pin.subject for pin in pins}) < len(pins) or len({pin.name for pin in pins}) > 1:
            raise SettingError(
                f"certificate: the two of {pins[0].name!r} cannot be pinned together: they are the same, for "
                "different names, or both of an older release"
            )

    @property
    def listens(self) -> bool:
        """Whether it accepts connections."""
        return self.address != NOT_LISTENING

    @property
    def pins(self) -> tuple[Certificate, ...]:
        """The pinned certificates."""
        return self.certificate if isinstance(self.certificate, tuple) else (self.certificate,)

    @property
    def anchors(self) -> bytes:
        """TLS's trust anchors for this peer, as PEM."""
        return b"".join(pin.pem for pin in self.pins)

    def speaks(self, shown: Certificate) -> bool:
        """Return whether this certificate belongs to the peer."""
        return shown in self.pins


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
        for each in certificates:
            end = f"{each.ends:%Y-%m-%d %H:%M} UTC"
            if now >= each.ends and valid:
                verdict, text = (
                    "soon",
                    f"an old certificate of {holder} ended on {end}; delete it from party.toml",
                )
            elif now >= each.ends:
                verdict, text = "ended", f"the certificate of {holder} ended on {end}; {remedy}"
            elif now < each.begins and not valid:
                begin = f"the certificate of {holder} begins on {each.begins:%Y-%m-%d %H:%M} UTC"
                verdict, text = "yet", f"{begin}; is this machine's clock right?"
            elif all(one.ends - now < SOON for one in (each, *valid)):
                verdict, text = "soon", f"the certificate of {holder} ends on {each.ends:%Y-%m-%d}; {remedy}"
            else:
                continue
            yield CertificateFinding(holder, verdict, text)


class Identity:
    """A party's own key and certificate."""

    def __init__(self, certificate: Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self.certificate = certificate
        self.name = check_party_name(certificate.name)
        self._key = key
        try:
            of_certificate = certificate._x509.public_key()
        except (*UNREADABLE, TypeError):
            raise IdentityError(
                f"the certificate of {self.name!r} is damaged: its key is unreadable"
            ) from None
        if key.public_key() != of_certificate:
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

    def sign(self, data: bytes) -> bytes:
        """Sign with the TLS key: ECDSA with SHA-256."""
        return self._key.sign(data, ec.ECDSA(hashes.SHA256()))

    def key_pem(self, password: str) -> bytes:
        """Return the private key as PKCS#8, encrypted. Never send it."""
        hidden = serialization.BestAvailableEncryption(password.encode())
        return self._key.private_bytes(serialization.Encoding.PEM, PKCS8, hidden)

    def replace(self, folder: str | os.PathLike[str], passphrase: str | bytes, stamp: str) -> None:
        """Replace the identity in `folder`, which stays beside it as *.old-STAMP.

        A kill or a full disk leaves the old identity or the new one.
        """
        for old in (Path(folder) / KEY_FILE, Path(folder) / CERTIFICATE_FILE):
            if old.exists():
                write_atomically(old.with_name(f"{old.name}.old-{stamp}"), old.read_bytes())
        self.save(folder, passphrase, overwrite=True)

    def save(
        self, folder: str | os.PathLike[str], passphrase: str | bytes, *, overwrite: bool = False
    ) -> None:
        """Write the key and the certificate into a folder. An existing key stays, without `overwrite`."""
        key = self._key.private_bytes(serialization.Encoding.DER, PKCS8, serialization.NoEncryption())
        secret, label = key + self.certificate.pem, f"tls {self.name}"
        try:
            write_key_file(Path(folder) / KEY_FILE, secret, passphrase, label=label, overwrite=overwrite)
        except KeyFileError as error:
            raise IdentityError(str(error)) from None
        write_atomically(Path(folder) / CERTIFICATE_FILE, self.certificate.pem, mode=0o644)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], passphrase: str | bytes) -> Identity:
        """Read an identity. The copy of its certificate is written again where it is another."""
        path, copy = Path(folder) / KEY_FILE, Path(folder) / CERTIFICATE_FILE
        try:
            key, mark, pem = read_key_file(path, passphrase).secret.partition(b"-----BEGIN CERTIFICATE")
            private = serialization.load_der_private_key(key, None)
        except (KeyFileError, *UNREADABLE) as error:
            raise IdentityError(f"the TLS key cannot be read: {error}") from None
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise IdentityError("the TLS key is no ECDSA key; make a new one: --renew tls")
        identity = cls(Certificate.from_pem(mark + pem) if mark else Certificate.read(copy), private)
        if mark and (not copy.exists() or copy.read_bytes() != identity.certificate.pem):
            write_atomically(copy, identity.certificate.pem, mode=0o644)
        return identity

    def __repr__(self) -> str:
        return f"<identity of {self.name!r}: {self.certificate!r}>"
