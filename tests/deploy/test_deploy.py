"""The unit and the container file: what can be known of them without a machine of their own."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bench.ports import free_ports
from securefed import __version__
from securefed.cli.entry import build_parser
from securefed.cli.metrics import serve
from tests.cli.test_metrics import busy_monitor

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
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

    with serve(busy_monitor().answer, str(port)):
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


# What is installed, and from where.


def test_the_container_takes_its_image_by_digest_and_its_packages_by_hash() -> None:
    text = CONTAINER.read_text()
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"${PYTHON_IMAGE}"}
    assert re.search(r"^ARG PYTHON_IMAGE$", text, re.MULTILINE), "no default"
    installs = re.findall(r"pip install (.*)$", text, re.MULTILINE)
    assert len(installs) == 2
    assert "--require-hashes" in installs[0] and "--only-binary :all:" in installs[0]
    assert "--no-index" in installs[1] and "--no-deps" in installs[1]
    refused = subprocess.run(
        [shutil.which("make") or "/usr/bin/make", "container", "PYTHON_IMAGE=python:3.11-slim"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert refused.returncode != 0 and "name the image by its digest" in refused.stderr


def requirements() -> dict[str, str]:
    lines = (DEPLOY / "requirements.txt").read_text().splitlines()
    pattern = re.compile(r"([\w.-]+)==(\S+) --hash=sha256:[0-9a-f]{64}")
    matches = [pattern.fullmatch(line) for line in lines if not line.startswith("#")]
    assert all(matches), "every line has a version and a hash"
    return {canonicalize_name(match[1]): match[2] for match in matches if match}


def test_hashes_are_of_the_pinned_versions_of_everything_that_the_package_needs() -> None:
    found = requirements()
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    pins = {canonicalize_name(name): version for name, version in pins.items()}
    assert {name: pins.get(name) for name in found} == found
    waiting, needed = ["securefed"], set[str]()
    while waiting:
        for text in metadata.requires(waiting.pop()) or ():
            need = Requirement(text)
            name = canonicalize_name(need.name)
            if (need.marker is None or need.marker.evaluate({"extra": ""})) and name not in needed:
                needed.add(name)
                waiting.append(name)
    assert needed <= set(found)
    assert not re.search(r"https?://|file:", (DEPLOY / "requirements.txt").read_text())


def test_a_report_without_a_hash_is_refused(tmp_path: Path) -> None:
    def written(archive: dict[str, object]) -> subprocess.CompletedProcess[str]:
        item = {"metadata": {"name": "Numpy", "version": "2.4"}, "download_info": {"archive_info": archive}}
        own = {"metadata": {"name": "securefed", "version": "1"}, "download_info": {"dir_info": {}}}
        (tmp_path / "report.json").write_text(json.dumps({"install": [item, own]}))
        words = [sys.executable, str(DEPLOY / "hashes.py"), "report.json", "requirements.txt"]
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)

    assert "no hash of Numpy 2.4" in written({}).stderr
    assert written({"hashes": {"sha256": "ab" * 32}}).returncode == 0
    lines = (tmp_path / "requirements.txt").read_text().splitlines()
    assert lines[-1] == f"Numpy==2.4 --hash=sha256:{'ab' * 32}" and lines[-2].startswith("#")


@pytest.mark.slow
def test_the_list_of_components_is_valid_and_complete(tmp_path: Path) -> None:
    pytest.importorskip("cyclonedx_py", reason="the extra 'release' is not installed")
    path = tmp_path / "sbom.json"
    words = [
        "environment",
        "--pyproject",
        str(ROOT / "pyproject.toml"),
        "--output-file",
        str(path),
        "--validate",
    ]
    done = subprocess.run([sys.executable, "-m", "cyclonedx_py", *words, sys.executable], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    made = json.loads(path.read_text())
    assert (made["bomFormat"], made["metadata"]["component"]["name"]) == ("CycloneDX", "securefed")
    listed = {canonicalize_name(each["name"]): each["version"] for each in made["components"]}
    listed["securefed"] = __version__
    installed = {canonicalize_name(d.metadata["Name"]): d.version for d in metadata.distributions()}
    assert listed == installed
