"""The live page: on this machine only, under a secret name, to be read only, and what it shows."""

from __future__ import annotations

from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from securefed.cli.watch import Monitor, serve_page
from securefed.settings.party import OwnSettings, PartyFile
from securefed.settings.run import RunSettings
from securefed.transport.network import Waiting
from tests.report.browser import look, needs_browser

SHARED = RunSettings.of(
    {"name": "trial", "parties": ["lab", "shop", "bank"], "key_holder": "notary", "rounds": 10}
)
PARTY = PartyFile(Path("party.toml"), OwnSettings(name="bank"), SHARED, None, {})


def board() -> Monitor:
    """After four of ten rounds, of which two were made in this process, in eight seconds."""
    moments = iter([0.0, 100.0, *([108.0] * 20)])
    made = Monitor(PARTY, now=lambda: next(moments))
    made.on_event("training", {"start": 2, "rows": 345, "rounds": 10})
    for number in (2, 3):
        facts = {"round": number + 1, "rounds": 10, "computation": 1.0 + number, "communication": 0.5}
        facts |= {"sent": 3000 * number, "received": 4000, "metric": 0.8 + number / 100}
        made.on_event("round", facts)
    return made


def ask(
    address: str, path: str | None = None, method: str = "GET", host: str | None = None
) -> tuple[int, str, str]:
    parts = urlsplit(address)
    connection = HTTPConnection("127.0.0.1", parts.port or 0, timeout=20)
    connection.request(method, path or parts.path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text, answer.getheader("Content-Security-Policy") or ""


def test_it_shows_progress_parties_bytes_and_time_left() -> None:
    made = board()
    text = made.page()
    assert "round 4 of 10" in text and "about 24 s left" in text and "notary here" in text
    assert "FedBCD-p" in text and "rounds of 10" in text and "not measured" not in text
    assert "9.0 kB" in text and "345 people whom all of them know" in text and 'http-equiv="refresh"' in text
    made.on_event("waiting", {"waiting": Waiting("shop", 3.0, 57.0, "")})
    assert "shop away" in made.page() and "waiting for shop, 57 s left" in made.page()
    assert "not met yet" in Monitor(PARTY).page()
    made.on_event("training", {"start": 4, "rows": 345, "rounds": 34})  # five folds have rounds of their own
    assert "round 4 of 34" in made.page()


def test_it_is_served_here_alone_under_its_name_and_only_to_be_read() -> None:
    with serve_page(board().page) as address:
        assert address.startswith("http://127.0.0.1:") and len(urlsplit(address).path) > 24
        status, text, policy = ask(address)
        assert status == 200 and "round 4 of 10" in text and "default-src 'none'" in policy
        name = urlsplit(address).path
        assert ask(address, "/")[0] == ask(address, "/guess/")[0] == ask(address, name + "x")[0] == 404
        assert ask(address, host="evil.example")[0] == 404, "another site's name for this machine"
        assert {ask(address, method=method)[0] for method in ("POST", "PUT", "DELETE")} == {501}
    with serve_page(board().page) as other:
        assert urlsplit(other).path != name
    with pytest.raises(OSError, match="refused"):
        ask(address)


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_is_readable_and_fits_on_a_telephone(dark: bool, tmp_path: Path) -> None:
    found = look(board().page(), tmp_path, width=390, dark=dark)
    assert found.texts > 40 and found.dark == dark
    assert not found.poor and not found.wide and not found.console and found.width <= 390
