"""Of four parties one accepts no connections. It is killed, and resumes with a new certificate."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from securefed.transport.identity import Identity
from tests.process.parties import PASSPHRASE, Fleet, reached

Make = Callable[..., Fleet]


@pytest.mark.slow
def test_a_party_that_accepts_no_connections_trains_and_is_killed_and_resumes(fleet: Make) -> None:
    made = fleet({"shop": 2, "mill": 2, "bank": 2}, rounds=60)
    address = made.address("shop")
    for name in made.everybody:
        path = made.settings(name, {"patience": 20})
        path.write_text(path.read_text().replace(f'"{address}"', '"none"'))
    made.start_all()
    made.until("bank", reached(3))
    made.kill("shop")
    # It comes back with a new certificate, which its peers have pinned beside the old one in the meantime.
    Identity.generate("shop").replace(made.folder / "shop", PASSPHRASE, "old")
    new = (made.folder / "shop" / "certificate.pem").read_bytes()
    for name in made.everybody:
        if name != "shop":
            path = made.folder / name / "party.toml"
            (path.parent / "peers" / "shop-2.pem").write_bytes(new)
            pair = '["peers/shop.pem", "peers/shop-2.pem"]'
            path.write_text(path.read_text().replace('"peers/shop.pem"', pair))
    made.start("shop", "party", "--resume")
    made.all_good()
    assert "shop listens on nothing; meeting" in made.log("shop")
    assert "Traceback" not in "".join(map(made.log, made.everybody))
    results = {name: made.result(name) for name in made.everybody}
    assert len({result["rounds"] for result in results.values()}) == 1
    for name, result in results.items():
        peers = {peer: each["transcripts"] for peer, each in result["peers"].items()}
        assert set(peers.values()) == {"agree"}, (name, peers)
