"""A certificate authority of the kind that an organisation may have, for tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from securefed.transport.identity import Certificate, Identity


class Authority:
    """`is_authority` None: its certificate does not say so, and its key may sign certificates."""

    def __init__(self, name: str, *, is_authority: bool | None = True) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = self._sign(self._name, self._key.public_key(), authority=is_authority, names=[])

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        *,
        authority: bool | None,
        names: list[str],
    ) -> Certificate:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=30))
        )
        if authority is None:
            usage = x509.KeyUsage(True, False, False, False, False, True, False, False, False)
            builder = builder.add_extension(usage, critical=True)
        else:
            basic = x509.BasicConstraints(ca=authority, path_length=None)
            builder = builder.add_extension(basic, critical=True)
        if names:
            found = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
            builder = builder.add_extension(found, critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        return Certificate(signed.public_bytes(serialization.Encoding.DER))

    def issue(self, name: str, key: ec.EllipticCurvePublicKey) -> Certificate:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        return self._sign(subject, key, authority=False, names=[name])

    def identity(self, name: str) -> Identity:
        key = ec.generate_private_key(ec.SECP256R1())
        return Identity(self.issue(name, key.public_key()), key)
