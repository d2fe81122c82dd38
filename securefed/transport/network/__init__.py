"""Messages between parties on a network: one process for each party, mutual TLS 1.3, peers pinned by
certificate.

    peers = {"shop": Peer("shop.example:7001", Certificate.read("shop.pem"))}
    with Endpoint(Identity.load("bank"), listen="0.0.0.0:7001", peers=peers) as endpoint:
        result = endpoint.run(program, run="r1", kinds=KINDS, settings=agreement.to_dict())
"""

from __future__ import annotations

from securefed.transport.identity import Certificate, Identity, IdentityError, Peer
from securefed.transport.message import (
    AddressError,
    LimitExceeded,
    Malformed,
    OtherAttempt,
    PeerGone,
    PeerLeft,
    PeerLost,
    PeerRefused,
    PeerRestarted,
    Repeated,
    SettingsDiffer,
    WrongCertificate,
)
from securefed.transport.network.endpoint import Endpoint
from securefed.transport.network.host import Limits, Timeouts
from securefed.transport.network.run import NetworkLink, NetworkRun, Waiting

__all__ = [
    "AddressError",
    "Certificate",
    "Endpoint",
    "Identity",
    "IdentityError",
    "LimitExceeded",
    "Limits",
    "Malformed",
    "NetworkLink",
    "NetworkRun",
    "OtherAttempt",
    "Peer",
    "PeerGone",
    "PeerLeft",
    "PeerLost",
    "PeerRefused",
    "PeerRestarted",
    "Repeated",
    "SettingsDiffer",
    "Timeouts",
    "Waiting",
    "WrongCertificate",
]
