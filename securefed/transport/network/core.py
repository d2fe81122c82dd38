"""The only module that imports grpc: its setup, and the translation of its errors.

TLS 1.3 only: grpcio has no switch for the least TLS version. GRPC_SSL_CIPHER_SUITES concerns TLS 1.2 and
below; the suites of 1.3 are always on. So it gets a suite that needs a pre-shared key. There is none, so no
handshake below 1.3 can succeed, at either end. grpc reads its environment once, at its first import. The
variables are set for that moment and restored after it, so no other code and no child process sees them. If
grpc was imported before, they come too late. `Endpoint` tries a TLS 1.2 handshake with its own server and
does not start if that succeeds.

grpc's own lines on stderr are off unless GRPC_VERBOSITY asks for them. We log each refused caller once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from securefed.errors import plain_text
from securefed.transport.message import OtherRelease, PeerRefused, TransportError, WrongCertificate
from securefed.transport.network.host import MOST_REFUSAL


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


with _environment(
    GRPC_SSL_CIPHER_SUITES="ECDHE-PSK-AES128-CBC-SHA",
    GRPC_VERBOSITY=os.environ.get("GRPC_VERBOSITY", "NONE"),
):
    import grpc as grpc

SERVICE = "securefed.v1.Party"
GREET = f"/{SERVICE}/Greet"
POST = f"/{SERVICE}/Post"
TUNNEL = f"/{SERVICE}/Tunnel"
ERROR_KEY = "securefed-error"
"""Trailing metadata: the name of our error. It tells our refusal from a failure of the network."""

REASONS = {
    "Connection refused": "nobody listens there",
    "DNS resolution failed": "the host name cannot be resolved",
    "Deadline Exceeded": "no answer",
    "timed out": "no answer",
    "Socket closed": "the connection is closed at once: not ready yet, or our certificate is unknown there",
    "onnection reset": "the connection is closed at once: not ready yet, or our certificate is unknown there",
}
"""What the network library says, and what it means."""
MOST_WORDS = 80

Options = list[tuple[str, int | str]]
DAY_MS = 86_400_000


def common_options(most_bytes: int) -> Options:
    return [
        ("grpc.max_receive_message_length", most_bytes),
        ("grpc.max_send_message_length", most_bytes),
        ("grpc.default_compression_algorithm", 0),  # ciphertexts do not compress
        ("grpc.enable_retries", 0),  # repeating is ours: idempotent by sequence number
        # grpc measures its windows by pings, and closes a connection on which one is not answered within a
        # minute. On a slow line an answer waits that long behind a large message; we know who is alive.
        ("grpc.http2.ping_timeout_ms", DAY_MS),
    ]


def server_options(most_bytes: int) -> Options:
    return [
        *common_options(most_bytes),
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", 4),
        ("grpc.max_metadata_size", 8192),
        ("grpc.server_handshake_timeout_ms", 20_000),
        ("grpc.compression_enabled_algorithms_bitset", 1),  # bit 0: identity only
    ]


def channel_options(most_bytes: int, name: str) -> Options:
    return [
        *common_options(most_bytes),
        ("grpc.ssl_target_name_override", name),
        ("grpc.enable_http_proxy", 0),  # a peer is reached at the address that its operator gave
        ("grpc.use_local_subchannel_pool", 1),  # a new channel is a new connection
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 10_000),  # the time that one attempt to connect may take
        ("grpc.max_reconnect_backoff_ms", 2000),
    ]


def translate(error: grpc.RpcError, peer: str, address: str) -> TransportError | str:
    """Return an error that ends the attempt, or a short text for a problem that a retry may solve."""
    details = plain_text(error.details() or "", MOST_REFUSAL)
    named = dict(error.trailing_metadata() or ()).get(ERROR_KEY)
    if named == OtherRelease.__name__:
        return OtherRelease(f"{peer} refused: {details}")
    if named is not None:
        return PeerRefused(f"{peer} refused: {details}", str(named))
    if "CERTIFICATE_VERIFY_FAILED" in details or "Hostname Verification Check failed" in details:
        place = f"the machine at {address}" if address else f"the machine that connected as {peer}"
        return WrongCertificate(
            f"{place} did not show {peer}'s certificate, or that certificate has expired; "
            f"ask {peer} for its current certificate and compare fingerprints"
        )
    if not address and error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return "it is not connected to this party"
    for reason, word in REASONS.items():
        if reason in details:
            return word
    details = details.rpartition("last error: ")[2]  # grpc begins with what it always says
    return plain_text(f"{error.code().name.lower().replace('_', ' ')}: {details}", MOST_WORDS)
