"""What people type, and what it answers: help, exit codes, one line for a mistake and never a traceback."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from securefed import __version__
from securefed.cli import main
from securefed.cli.entry import COMMANDS
from securefed.cli.init import make_party_folder
from securefed.cli.terminal import VARIABLE
from securefed.crypto.keyfile import read_key_file
from securefed.errors import SettingError, WrongPassphrase
from securefed.process.keys import check_certificates
from securefed.settings.party import read_party_file
from securefed.transport.identity import Identity, IdentityError
from tests.process.parties import PASSPHRASE, ROOT, Fleet

Make = Callable[..., Fleet]
OPEN = {"scheme": "plain", "reveal": "own-gradient", "rounds": 2}


@pytest.fixture(autouse=True)
def _passphrase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECUREFED_PASSPHRASE", PASSPHRASE)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line on stderr of a command that the user got wrong."""
    capsys.readouterr()
    assert main(list(words)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.strip().split("\n")
    assert line.startswith(f"securefed {words[0]}: ")
    assert "Traceback" not in line
    return line


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "examples:" in text and f"securefed {command}" in text
    assert "--json" in text and "--quiet" in text and "--verbose" in text


def test_without_a_command_the_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    text = capsys.readouterr().out
    assert all(command in text for command in COMMANDS)


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    first, *rest = capsys.readouterr().out.strip().split("\n")
    assert first == f"securefed {__version__}" and [line.split()[0] for line in rest][:2] == [
        "python",
        "numpy",
    ]


def test_help_answers_without_the_heavy_packages() -> None:
    program = (
        "import sys\nfrom securefed.cli import main\nmain([])\n"
        "print([n for n in ('sklearn', 'tenseal', 'gmpy2') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip().endswith("[]")


def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "securefed", "--version"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    assert done.stdout.startswith(f"securefed {__version__}\n")


def test_what_argparse_refuses_has_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["train"], ["demo", "--scheme", "rsa"], ["party"], ["demo", "--parties", "two"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 2
    capsys.readouterr()


def test_mistakes_in_demo(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "at least 2" in refused(capsys, "demo", "--parties", "1")
    assert "exactly 2" in refused(capsys, "demo", "--parties", "3", "--objective", "transfer")
    assert "rounds" in refused(capsys, "demo", "--rounds", "0")
    assert "at most 27" in refused(capsys, "demo", "--parties", "40")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert "is not empty" in refused(capsys, "demo", "--folder", str(tmp_path / "full"))


def test_mistakes_in_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert "columns: missing" in refused(capsys, "plan")
    assert "rows: missing" in refused(capsys, "plan", "--columns", "shop=2,bank=2")
    assert "'shop' given" in refused(capsys, "plan", "--columns", "shop")
    assert "network" in refused(capsys, "plan", "--rows", "9", "--columns", "a=2,b=2", "--network", "mars")


def test_mistakes_in_audit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "no such run directory" in refused(capsys, "audit", str(tmp_path / "none"))
    assert "no transcript" in refused(capsys, "audit", str(tmp_path))


def test_mistakes_with_passphrases(
    fleet: Make, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = str(fleet({"shop": 2, "bank": 2}, **OPEN).folder / "bank" / "party.toml")
    monkeypatch.setenv("SECUREFED_PASSPHRASE", "wrong word")
    line = refused(capsys, "party", file)
    assert "passphrase" in line and "wrong word" not in line
    monkeypatch.delenv("SECUREFED_PASSPHRASE")
    with (tmp_path / "nothing").open("w+") as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        assert "SECUREFED_PASSPHRASE" in refused(capsys, "party", file)
    assert "cannot read" in refused(capsys, "party", file, "--passphrase-file", str(tmp_path / "none"))
    (tmp_path / "empty").touch()
    assert "is empty" in refused(capsys, "party", file, "--passphrase-file", str(tmp_path / "empty"))


def test_mistakes_in_party(fleet: Make, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    made = fleet({"shop": 2, "bank": 2}, **OPEN)
    bank = made.folder / "bank"
    file = str(bank / "party.toml")
    assert "securefed init makes one" in refused(capsys, "party", str(tmp_path / "none.toml"))
    text = (bank / "data.csv").read_text()
    (bank / "data.csv").unlink()
    assert "no such file" in refused(capsys, "party", file)
    (bank / "data.csv").write_text(text.replace("label", "late"))
    assert "no column 'label'" in refused(capsys, "party", file)
    first = text.split("\n")[1].split(",")[0]
    (bank / "data.csv").write_text(text + text.split("\n")[1] + "\n")
    assert f"occur more than once ('{first}')" in refused(capsys, "party", file)
    (bank / "data.csv").write_text(text)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", made.ports["bank"]))
        taken.listen()
        assert str(made.ports["bank"]) in refused(capsys, "party", file, "-q")
    made.settings("bank", scheme="paillier", reveal="own-gradient")
    line = refused(capsys, "party", file)
    assert "needs a paillier key" in line
    assert f"`securefed init bank --folder {bank} --renew paillier` makes one" in line
    (bank / "tls-key.skf").chmod(0o644)
    assert "others can reach it" in refused(capsys, "party", file)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "random", "another"])
def test_a_damaged_copy_of_its_own_certificate_is_written_again(
    damage: str, fleet: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    made = fleet({"shop": 2, "bank": 2}, **OPEN)
    own = made.folder / "bank" / "certificate.pem"
    whole = own.read_bytes()
    middle = len(whole) // 2
    flipped = bytes([whole[middle] ^ 3])
    own.write_bytes(
        {
            "cut": whole[:middle],
            "flipped": whole[:middle] + flipped + whole[middle + 1 :],
            "empty": b"",
            "random": bytes(range(256)) * 4,
            "another": Identity.generate("bank").certificate.pem,
        }[damage]
    )
    main(["check", str(made.folder / "bank" / "party.toml")])
    assert own.read_bytes() == whole
    assert "Traceback" not in capsys.readouterr().err


def test_certificates_that_end_are_mentioned_before_and_refused_after(
    fleet: Make, caplog: pytest.LogCaptureFixture
) -> None:
    made = fleet({"shop": 2, "bank": 2}, **OPEN)
    party = read_party_file(made.folder / "bank" / "party.toml")
    own = Identity.generate("bank", days=500).certificate
    today = datetime.now(UTC)
    check_certificates(party, own, today)
    assert not caplog.records
    check_certificates(party, own, own.ends - timedelta(days=29))
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"the certificate of bank ends on {own.ends:%Y-%m-%d}; ")
    assert line.endswith("securefed init bank --renew tls makes a new one")
    with pytest.raises(SettingError, match="the certificate of bank ended on"):
        check_certificates(party, own, own.ends)
    fresh = Identity.generate("bank", days=3000).certificate
    with pytest.raises(SettingError, match=r"certificate of shop ended .* ask shop for a new one"):
        check_certificates(party, fresh, today + timedelta(days=900))


def test_mistakes_in_predict(fleet: Make, capsys: pytest.CaptureFixture[str]) -> None:
    made = fleet({"shop": 2, "bank": 2}, **OPEN)
    file = str(made.folder / "bank" / "party.toml")
    assert "train first" in refused(capsys, "predict", file, "--rows", str(made.folder / "bank" / "data.csv"))


def test_nobody_there_is_a_failed_run_that_says_how_to_go_on(
    fleet: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    made = fleet({"shop": 2, "bank": 2}, **OPEN)
    made.settings("bank", {"wait": 1.5})
    file = str(made.folder / "bank" / "party.toml")
    assert main(["party", file]) == 1
    last = capsys.readouterr().err.strip().split("\n")[-1]
    assert (
        "(nobody listens there) could not be reached" in last
        and "(nobody listens there)" in last
        and f"securefed party {file}" in last
    )


@pytest.mark.slow
def test_init_makes_a_party_and_says_what_to_send(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "clinic"
    words = [
        "init",
        "clinic",
        "--folder",
        str(folder),
        "--key-bits",
        "2048",
        "--json",
        str(tmp_path / "out.json"),
    ]
    assert main(words) == 0
    text = capsys.readouterr().out
    fingerprint = json.loads((tmp_path / "out.json").read_text())["fingerprint"]
    assert fingerprint in text and "Never send to anybody" in text and "certificate.pem" in text
    names = ["checkpoint-key.skf", "signing-key.skf", "tls-key.skf"]
    assert sorted(path.name for path in folder.glob("*.skf")) == names
    for secret in folder.glob("*.skf"):
        assert secret.stat().st_mode & 0o777 == 0o600
        assert b"BEGIN PRIVATE KEY" not in (folder / secret).read_bytes(), "under the passphrase"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert "holds a party already" in refused(capsys, "init", "clinic", "--folder", str(folder))
    before = (folder / "certificate.pem").read_bytes()
    assert main(["init", "clinic", "--folder", str(folder), "--renew", "tls"]) == 0
    assert (folder / "certificate.pem").read_bytes() != before
    assert len(list(folder.glob("certificate.pem.old-*"))) == 1
    assert main(["init", "clinic", "--folder", str(folder), "--show"]) == 0
    assert fingerprint not in capsys.readouterr().out.split("SHA-256")[-1]
    assert "is the party 'clinic'" in refused(
        capsys, "init", "bank", "--folder", str(folder), "--renew", "tls"
    )
    assert "holds no party" in refused(
        capsys, "init", "bank", "--folder", str(tmp_path / "no"), "--renew", "tls"
    )


@pytest.mark.slow
def test_the_passphrase_can_be_changed_and_a_change_can_be_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, new = tmp_path / "clinic", "another passphrase"
    old = PASSPHRASE
    make_party_folder(folder, "clinic", old, schemes=("ckks",))
    where = ("init", "clinic", "--folder", str(folder), "--renew")
    assert main([*where, "tls"]) == 0  # so that there are old files
    keys = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    secrets_of = {name: read_key_file(folder / name, old) for name in keys if name.endswith(".skf")}

    said = refused(capsys, *where, "passphrase")
    assert "none given; set SECUREFED_NEW_PASSPHRASE, give --new-passphrase-file, or" in said
    monkeypatch.setenv("SECUREFED_NEW_PASSPHRASE", "short")
    assert "at least 8 are needed" in refused(capsys, *where, "passphrase")
    monkeypatch.setenv("SECUREFED_NEW_PASSPHRASE", new)
    monkeypatch.setenv(VARIABLE, "not the one")
    assert main([*where, "passphrase"]) != 0
    assert {name: (folder / name).read_bytes() for name in keys} == keys, "nothing was written"
    assert "is the party 'clinic'" in refused(
        capsys, "init", "bank", "--folder", str(folder), "--renew", "passphrase"
    )

    monkeypatch.setenv(VARIABLE, old)
    assert main([*where, "passphrase"]) == 0
    assert "tls-key.skf.old-" in capsys.readouterr().err
    # As if it had been interrupted while it wrote this one.
    (folder / "he-ckks.skf").write_bytes(keys["he-ckks.skf"])
    (folder / ".he-ckks.skf.0123456789abcdef").write_bytes(keys["he-ckks.skf"][:50])
    assert main([*where, "passphrase"]) == 0
    for name, known in secrets_of.items():
        assert read_key_file(folder / name, new) == known
        with pytest.raises(WrongPassphrase):
            read_key_file(folder / name, old)
        assert (folder / name).stat().st_mode & 0o777 == 0o600
    assert Identity.load(folder, new).name == "clinic"
    assert (folder / "certificate.pem").read_bytes() == keys["certificate.pem"]
    with pytest.raises(IdentityError):
        Identity.load(folder, old)


def test_mistakes_in_init(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ("--folder", str(tmp_path / "new"))
    assert "letters, digits" in refused(capsys, "init", "the bank", *where)
    assert "HOST:PORT" in refused(capsys, "init", "bank", "--listen", "nowhere", *where)
    assert "this party is not one of them (mill)" in refused(
        capsys, "init", "mill", "--parties", "shop,bank", *where
    )
    assert "a helper has no data" in refused(
        capsys, "init", "mill", "--helper", "--parties", "shop,mill,bank", *where
    )
    assert "at least 3" in refused(capsys, "init", "mill", "--key-holder", "--parties", "bank", *where)
    assert "names something twice" in refused(capsys, "init", "bank", "--parties", "bank,bank", *where)
    assert "letters, digits" in refused(capsys, "init", "bank", "--parties", "bank,the shop", *where)
    monkeypatch.setenv("SECUREFED_PASSPHRASE", "short")
    assert "at least 8" in refused(capsys, "init", "bank", *where)
    (tmp_path / "file").touch()
    monkeypatch.setenv("SECUREFED_PASSPHRASE", PASSPHRASE)
    assert main(["init", "bank", "--folder", str(tmp_path / "file" / "x")]) == 1, "the disk's fault"
    assert capsys.readouterr().err.count("\n") == 1
