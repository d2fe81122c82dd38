"""Keys, certificates and pins: what is taken, what is refused, and that the key shows nowhere."""

from __future__ import annotations

import base64
import hashlib
import os
import stat
from base64 import encodebytes
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from securefed.crypto.keyfile import HEADER
from securefed.errors import SettingError
from securefed.transport.identity import (
    CERTIFICATE_FILE,
    KEY_FILE,
    SEALED_KEY_FILE,
    Certificate,
    Identity,
    IdentityError,
    Peer,
    check_party_name,
    guessed_cheaply,
    parse_address,
)
from tests.transport.authority import Authority

PBKDF2 = bytes.fromhex("2a864886f70d01050c")
AES_256_CBC = bytes.fromhex("60864801650304012a")
BANK, SHOP = Identity.generate("bank"), Identity.generate("shop")


def test_a_generated_certificate_is_for_its_party_alone() -> None:
    certificate = BANK.certificate
    assert (certificate.name, certificate.names) == ("bank", ("bank",))
    assert not certificate.is_authority
    assert certificate.issued(certificate)
    assert not certificate.issued(SHOP.certificate)
    parsed = x509.load_der_x509_certificate(certificate.der)
    assert parsed.signature_hash_algorithm is not None
    assert parsed.signature_hash_algorithm.name == "sha256"
    key = parsed.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert key.curve.name == "secp256r1"


def test_every_identity_is_another() -> None:
    again = Identity.generate("bank")
    assert again.certificate != BANK.certificate
    assert again.certificate.fingerprint != BANK.certificate.fingerprint


def test_the_fingerprint_is_sha256_as_openssl_prints_it() -> None:
    digest = hashes.Hash(hashes.SHA256())
    digest.update(BANK.certificate.der)
    assert BANK.certificate.fingerprint.replace(":", "") == digest.finalize().hex()
    assert len(BANK.certificate.fingerprint) == 95


@pytest.mark.parametrize("passphrase", [None, "correct horse", b"\x00bytes"])
def test_saved_and_loaded_it_is_the_same(tmp_path: Path, passphrase: str | bytes | None) -> None:
    BANK.save(tmp_path, passphrase)
    loaded = Identity.load(tmp_path, passphrase)
    assert loaded.certificate == BANK.certificate
    assert loaded.key_pem() == BANK.key_pem()
    written = tmp_path / (KEY_FILE if passphrase is None else SEALED_KEY_FILE)
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    assert (b"PRIVATE KEY" in written.read_bytes()) == (passphrase is None)
    assert not guessed_cheaply(tmp_path)
    assert Certificate.read(tmp_path / CERTIFICATE_FILE) == BANK.certificate


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    BANK.save(tmp_path)
    before = (tmp_path / KEY_FILE).read_bytes()
    with pytest.raises(IdentityError, match="exists already and is kept"):
        SHOP.save(tmp_path)
    assert (tmp_path / KEY_FILE).read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == sorted([KEY_FILE, CERTIFICATE_FILE])


@pytest.mark.parametrize(
    ("saved", "given", "text"),
    [
        ("right", "wrong", "the passphrase does not open this key file"),
        ("right", None, "it needs a passphrase"),
        (None, "right", "it is not encrypted, and a passphrase was given"),
    ],
)
def test_the_passphrase_has_to_fit(tmp_path: Path, saved: str | None, given: str | None, text: str) -> None:
    BANK.save(tmp_path, saved)
    with pytest.raises(IdentityError, match=text):
        Identity.load(tmp_path, given)


def older_release(folder: Path, passphrase: bytes) -> None:
    """A folder as it was written before: PKCS#8 by OpenSSL's own derivation."""
    protection = serialization.BestAvailableEncryption(passphrase)
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / KEY_FILE).write_bytes(BANK._key.private_bytes(*form, protection))
    (folder / KEY_FILE).chmod(0o600)
    (folder / CERTIFICATE_FILE).write_bytes(BANK.chain)


def test_a_key_of_an_older_release_is_read_and_told_apart(tmp_path: Path) -> None:
    older_release(tmp_path, b"right")
    assert Identity.load(tmp_path, "right").key_pem() == BANK.key_pem()
    assert guessed_cheaply(tmp_path)
    with pytest.raises(IdentityError, match="the passphrase is wrong or the text is damaged"):
        Identity.load(tmp_path, "wrong")
    (tmp_path / SEALED_KEY_FILE).write_bytes(b"")
    with pytest.raises(IdentityError, match=r"tls-key.skf and tls-key.pem are both there"):
        Identity.load(tmp_path, "right")


def test_guessing_costs_scrypt_now_and_cost_two_thousand_hashes_before(tmp_path: Path) -> None:
    """The attack on the older form needs PBKDF2 with its 2,048 iterations for each guess, and no scrypt."""
    older_release(tmp_path, b"right")
    der = base64.b64decode(b"".join((tmp_path / KEY_FILE).read_bytes().split(b"\n")[1:-2]))
    rest = der.split(PBKDF2)[1][2:]  # a sequence of: salt, iterations, hash
    salt, rest = rest[2 : 2 + rest[1]], rest[2 + rest[1] :]
    iterations = int.from_bytes(rest[2 : 2 + rest[1]], "big")
    rest = der.split(AES_256_CBC)[1][2:]
    nonce, body = rest[:16], rest[16:]
    body = body[len(body) % 16 :]  # without the head of the octets

    def opened(guess: bytes) -> bool:
        key = hashlib.pbkdf2_hmac("sha256", guess, salt, iterations, 32)
        decryptor = Cipher(algorithms.AES(key), modes.CBC(nonce)).decryptor()
        return (decryptor.update(body) + decryptor.finalize()).startswith(b"\x30\x81\x87")

    assert iterations == 2048
    assert [guess for guess in (b"wrong", b"right", b"other") if opened(guess)] == [b"right"]
    (tmp_path / KEY_FILE).unlink()
    (tmp_path / CERTIFICATE_FILE).unlink()
    BANK.save(tmp_path, "right")
    magic, version, kdf, log2_n, r, p, *_ = HEADER.unpack_from((tmp_path / SEALED_KEY_FILE).read_bytes())
    assert (magic, version, kdf, log2_n, r, p) == (b"SFKF", 1, 1, 17, 8, 1)


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    BANK.save(tmp_path)
    (tmp_path / KEY_FILE).chmod(0o640)
    with pytest.raises(IdentityError, match="mode 0640, others can reach it; chmod 600 it"):
        Identity.load(tmp_path)


def test_missing_large_and_odd_files_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(IdentityError, match=r"cannot read .*tls-key\.pem: No such file"):
        Identity.load(tmp_path)
    BANK.save(tmp_path)
    (tmp_path / CERTIFICATE_FILE).write_bytes(b"x" * 70_000)
    with pytest.raises(IdentityError, match="too large"):
        Identity.load(tmp_path)
    with pytest.raises(IdentityError, match="at most 65536"):
        Certificate.read(tmp_path / CERTIFICATE_FILE)
    (tmp_path / KEY_FILE).unlink()
    os.mkfifo(tmp_path / KEY_FILE, 0o600)
    with pytest.raises(IdentityError, match="not a regular file"):
        Identity.load(tmp_path)
    with pytest.raises(IdentityError, match="cannot write"):
        BANK.save(tmp_path / "nowhere")


def test_the_key_has_to_be_the_certificates() -> None:
    with pytest.raises(IdentityError, match="the key is not the one of the certificate of 'bank'"):
        Identity.from_pem(BANK.certificate.pem, SHOP.key_pem())


def test_an_rsa_key_will_do_and_an_ed25519_key_will_not() -> None:
    authority = Authority("guild")
    key = rsa.generate_private_key(65537, 2048)
    identity = Identity.from_pem(authority.issue("bank", key.public_key()).pem, pem_of(key))
    assert identity.name == "bank"
    with pytest.raises(IdentityError, match="neither an ECDSA nor an RSA one"):
        Identity.from_pem(BANK.certificate.pem, pem_of(ed25519.Ed25519PrivateKey.generate()))


def pem_of(key: rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey) -> bytes:
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(*form)


def test_the_key_is_in_no_repr() -> None:
    secret = BANK.key_pem().decode().splitlines()[1]
    for shown in (repr(BANK), str(BANK), repr(BANK.certificate), repr(Peer("a:1", BANK.certificate))):
        assert secret not in shown
        assert "PRIVATE" not in shown
    assert "'bank'" in repr(BANK)


def test_a_private_key_is_not_mistaken_for_a_certificate() -> None:
    with pytest.raises(IdentityError, match="holds a private key"):
        Certificate.from_pem(BANK.certificate.pem + BANK.key_pem())


@given(st.binary(max_size=400))
def test_bytes_that_are_no_certificate_are_refused_by_name(data: bytes) -> None:
    with pytest.raises(IdentityError):
        Certificate.from_pem(data)


@given(st.integers(0, len(BANK.certificate.der) - 1), st.integers(1, 255))
def test_a_damaged_certificate_is_refused_or_is_another_one(place: int, change: int) -> None:
    der = bytearray(BANK.certificate.der)
    der[place] ^= change
    body = serialize(bytes(der))
    try:
        found = Certificate.from_pem(body)
    except IdentityError:
        return
    assert found != BANK.certificate
    assert not Peer("a:1", BANK.certificate).speaks("bank", found)
    # Its signature still fits where only the encoding around what it signs was changed, as the number of
    # unused bits of a signature that ends in 0.
    if BANK.certificate.issued(found):
        assert signed(found) == signed(BANK.certificate)


def signed(certificate: Certificate) -> bytes:
    return x509.load_der_x509_certificate(certificate.der).tbs_certificate_bytes


def serialize(der: bytes) -> bytes:
    return b"-----BEGIN CERTIFICATE-----\n" + encodebytes(der) + b"-----END CERTIFICATE-----\n"


def test_a_pinned_peer_is_its_certificate_and_nothing_else() -> None:
    peer = Peer("shop.example:7001", SHOP.certificate)
    assert peer.speaks("shop", SHOP.certificate)
    assert not peer.speaks("shop", BANK.certificate)
    assert not peer.speaks("shop", Identity.generate("shop").certificate)


def test_an_authoritys_peer_is_any_certificate_it_issued_for_that_name() -> None:
    authority, other = Authority("guild"), Authority("guild")
    peer = Peer("shop.example:7001", authority=authority.certificate)
    assert peer.speaks("shop", authority.identity("shop").certificate)
    assert not peer.speaks("shop", authority.identity("mill").certificate)
    assert not peer.speaks("shop", other.identity("shop").certificate)
    assert not peer.speaks("shop", SHOP.certificate)
    assert not peer.speaks("guild", authority.certificate)


def test_an_authority_is_not_pinned_and_a_party_is_no_authority() -> None:
    authority = Authority("guild")
    with pytest.raises(IdentityError, match="'guild' is a certificate authority"):
        Peer("a:1", authority.certificate)
    with pytest.raises(IdentityError, match="'shop' is not a certificate authority"):
        Peer("a:1", authority=SHOP.certificate)
    for both in ({}, {"certificate": SHOP.certificate, "authority": authority.certificate}):
        with pytest.raises(SettingError, match="exactly one of certificate and authority"):
            Peer("a:1", **both)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("shop.example:7001", ("shop.example", 7001)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:80", ("::1", 80)),
    ],
)
def test_addresses(address: str, expected: tuple[str, int]) -> None:
    assert parse_address(address) == expected


@pytest.mark.parametrize(
    "address",
    ["", "shop", "shop:", ":80", "shop:x", "shop:70000", "::1:80", "http://a:1", "a b:1", 7001, "a:-1"],
)
def test_what_is_not_an_address_is_refused_with_what_is(address: object) -> None:
    with pytest.raises(SettingError, match="HOST:PORT is allowed"):
        parse_address(address)


@pytest.mark.parametrize("host", ["shop..example", "x" * 64, "\u00e9" * 60])
def test_a_host_name_that_no_resolver_takes_is_refused(host: str) -> None:
    with pytest.raises(SettingError, match="cannot be a host's name"):
        parse_address(f"{host}:7001")


def test_a_peer_needs_a_port() -> None:
    with pytest.raises(SettingError, match="a port from 1 to 65535"):
        Peer("shop:0", SHOP.certificate)


@pytest.mark.parametrize("name", ["a", "bank-2", "Key_Holder", "x" * 63])
def test_names(name: str) -> None:
    assert check_party_name(name) == name
    assert Identity.generate(name).certificate.names == (name,)


@pytest.mark.parametrize("name", ["", "-a", "a-", "a b", "bänk", "x" * 64, "a.b", "a\n", 7, None])
def test_names_that_fit_no_certificate_are_refused(name: object) -> None:
    with pytest.raises(SettingError, match="letters, digits, '-' and '_' are allowed"):
        check_party_name(name)


@pytest.mark.parametrize("days", [0, -1, 3651, 1.5])
def test_days_of_a_new_certificate(days: object) -> None:
    with pytest.raises(SettingError, match="days must be an integer from 1 to 3650"):
        Identity.generate("bank", days=days)  # type: ignore[arg-type]
