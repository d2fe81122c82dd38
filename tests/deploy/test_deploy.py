"""The unit and the container file: what can be known of them without a machine of their own."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from securefed.cli.entry import build_parser
from securefed.cli.watch import serve_metrics
from tests.cli.test_metrics import busy_monitor
from tests.process.parties import free_ports

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = DEPLOY / "securefed-party@.service"
CONTAINER = DEPLOY / "Containerfile"


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(UNIT.read_text())
    return parser


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """As it is, but for a program that is installed here and a user that exists."""
    text = UNIT.read_text().replace("/opt/securefed/bin/securefed", "/bin/true")
    (tmp_path / "securefed-party@.service").write_text(text.replace("=securefed\n", "=root\n"))

    def complaints(name: str) -> list[str]:
        words = [str(shutil.which("systemd-analyze")), "verify", "--man=no", str(tmp_path / name)]
        said = subprocess.run(words, capture_output=True, text=True).stderr
        return [line for line in said.splitlines() if "securefed" in line or "broken" in line]

    assert complaints("securefed-party@bank.service") == []
    (tmp_path / "broken@.service").write_text(text.replace("Restart=on-failure", "Restart=perhaps"))
    assert complaints("broken@bank.service") != []  # it looks


def test_what_the_unit_starts_are_commands_of_ours_and_its_restarts_follow_the_exit_codes() -> None:
    service = unit()["Service"]
    for key in ("ExecStartPre", "ExecStart"):
        program, *words = service[key].removeprefix("-").split()
        assert program == "/opt/securefed/bin/securefed"
        args = build_parser(words[:1]).parse_args(words)
        assert str(args.passphrase_file) == "%d/passphrase"
    assert args.command == "party"
    assert args.resume
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("on-failure", "2")
    assert service["UMask"] == "0077"
    assert service["LimitCORE"] == "0"


def test_the_container_runs_without_root_and_its_command_is_one_of_ours() -> None:
    text = CONTAINER.read_text().replace("\\\n", " ")
    last = text[text.rindex("\nFROM ") :]
    user = re.search(r"^USER (\d+):(\d+)$", last, re.MULTILINE)
    assert user is not None
    assert user.groups() != ("0", "0")
    command = re.search(r"^CMD (\[.*\])$", last, re.MULTILINE)
    assert command is not None
    words = re.findall(r'"([^"]*)"', command.group(1))
    assert build_parser(words[:1]).parse_args(words).resume
    assert "HEALTHCHECK" in last
    assert "STOPSIGNAL SIGTERM" in last
    for source in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE):
        for name in source.split()[:-1]:
            assert (DEPLOY.parent / name).exists(), name


def test_the_container_asks_the_party_for_its_health() -> None:
    """The command of HEALTHCHECK, at the address that the party serves, while it lives and after."""
    text = CONTAINER.read_text()
    check = re.search(r'^    CMD \["python", "-c", "(.*)"\]$', text, re.MULTILINE)
    address = re.search(r'"--metrics", "([^"]+)"\]$', text, re.MULTILINE)
    assert check is not None and address is not None and f"http://{address.group(1)}/health" in check.group(1)
    (port,) = free_ports(1)

    def healthy() -> bool:
        command = check.group(1).replace("9464", str(port))
        return subprocess.run([sys.executable, "-c", command], capture_output=True).returncode == 0

    with serve_metrics(busy_monitor(), str(port)):
        assert healthy()
    assert not healthy()


def test_the_compose_file_starts_two_parties_that_reach_each_other_and_nothing_else() -> None:
    yaml = pytest.importorskip("yaml")
    text = (DEPLOY / "compose.yaml").read_text()
    made = yaml.safe_load(text)
    assert set(made["services"]) == {"bank", "shop"}
    assert all(network["internal"] for network in made["networks"].values())
    user = re.search(r"^USER (\d+:\d+)$", CONTAINER.read_text(), re.MULTILINE)
    assert user is not None
    for name, service in made["services"].items():
        assert service["user"] == user.group(1)
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert (DEPLOY.parent / service["build"]["dockerfile"]).samefile(CONTAINER)
        assert service["volumes"] == [f"./{name}:/party:rw"]
        (secret,) = service["secrets"]
        assert secret["source"] in made["secrets"]
        assert f"/run/secrets/{secret['target']}" in CONTAINER.read_text()
    for words in re.findall(r"^#   (securefed [^#;\n]+?)(?:  |$)", text, re.MULTILINE):
        assert build_parser(words.split()[1:2]).parse_args(words.split()[1:])
