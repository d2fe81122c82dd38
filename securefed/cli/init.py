"""`securefed init NAME`: a party's folder, ready to be edited."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

from securefed.cli.terminal import NEW_VARIABLE, Terminal, add_passphrase, read_passphrase
from securefed.crypto import SCHEMES, generate, protects, save_key
from securefed.declare import check_names
from securefed.errors import SettingError
from securefed.files import make_folder, write_atomically
from securefed.process.keys import (
    CHECKPOINT_KEY,
    SIGNING_KEY,
    change_passphrase,
    he_file,
    kept_kinds,
    make_key,
)
from securefed.settings.describe import party_toml
from securefed.transport.identity import (
    CERTIFICATE_FILE,
    KEY_FILE,
    NOT_LISTENING,
    Certificate,
    Identity,
    check_listen,
    check_party_name,
    parse_address,
)

DESCRIPTION = """\
Make the folder of one party: a TLS key and certificate, a key for checkpoints (both under one passphrase),
and a commented party.toml to edit. Prints what to send to the other organisations, and what never to send to
anybody. Runs make their encryption keys themselves; only protection "own-gradient" needs --scheme."""

EPILOGUE = """\
examples:
  securefed init bank                        folder ./bank
  securefed init bank --parties shop,bank    with a party.toml for these two; the last one has the labels
  securefed init notary --helper             the party without data that three or more others need
  securefed init bank --scheme paillier      with a Paillier key, for runs with protection "own-gradient"
  securefed init bank --renew tls            a new certificate; the old one is kept beside it
  securefed init bank --renew passphrase     the same keys under another passphrase
  securefed init bank --show                 the certificate's fingerprint, to compare by telephone"""

PARTY_FILE = "party.toml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="of the party: letters, digits, - and _")
    parser.add_argument("--folder", type=Path, help="where; default ./NAME")
    parser.add_argument(
        "--helper",
        "--key-holder",
        dest="key_holder",
        action="store_true",
        help="a party without data: a helper, or the holder of the key where own gradients are revealed",
    )
    parser.add_argument(
        "--parties",
        metavar="NAME,...",
        help="that have data, the one with the labels last; written into party.toml",
    )
    parser.add_argument(
        "--scheme",
        choices=(*filter(protects, SCHEMES), "both"),
        help='also make an encryption key, for runs with protection "own-gradient"; default: none',
    )
    parser.add_argument(
        "--key-bits", type=int, default=3072, help="of that key, if Paillier; default %(default)s"
    )
    parser.add_argument(
        "--listen", default="0.0.0.0:7001", help='HOST:PORT to wait at, or "none"; default %(default)s'
    )
    parser.add_argument("--days", type=int, default=825, help="that the certificate is valid; default 825")
    parser.add_argument(
        "--renew", choices=("tls", *kept_kinds(), "passphrase"), help="replace this in an existing folder"
    )
    parser.add_argument("--show", action="store_true", help="show the certificate of an existing folder")
    add_passphrase(parser)
    parser.add_argument(
        "--new-passphrase-file",
        type=Path,
        metavar="FILE",
        help=f"with --renew passphrase: the new one; else ${NEW_VARIABLE}, else a prompt",
    )


def run(args: argparse.Namespace, terminal: Terminal) -> int:
    name = check_party_name(args.name)
    folder = args.folder or Path(name)
    if args.show:
        return _show(folder, terminal)
    parties = _parties(args.parties, name, key_holder=args.key_holder)
    passphrase = read_passphrase(args.passphrase_file, new=args.renew is None)
    if args.renew == "passphrase":
        _check_party(folder, name)
        new = read_passphrase(args.new_passphrase_file, new=True, replaces=True)
        changed = change_passphrase(folder, passphrase, new)
        terminal.say(f"{folder}: {len(changed)} keys are under the new passphrase: {', '.join(changed)}")
        return 0
    if args.renew:
        _renew(folder, name, args.renew, args.key_bits, args.days, passphrase)
        terminal.say(f"{folder}: a new {args.renew} key; the old one is kept beside it")
        return _show(folder, terminal) if args.renew == "tls" else 0
    kinds = kept_kinds() if args.scheme == "both" else (SCHEMES[args.scheme].opens,) if args.scheme else ()
    make_party_folder(
        folder,
        name,
        passphrase,
        key_holder=args.key_holder,
        schemes=kinds,
        key_bits=args.key_bits,
        listen=args.listen,
        days=args.days,
        parties=parties,
    )
    _tell(folder, args.listen, terminal)
    return 0


def _parties(text: str | None, name: str, *, key_holder: bool) -> tuple[str, ...]:
    if text is None:
        return ()
    parties = check_names("parties", [word.strip() for word in text.split(",")])
    for each in parties:
        check_party_name(each)
    if key_holder == (name in parties):
        role = "a helper has no data and is none" if key_holder else "this party is not one"
        raise SettingError(f"parties: {', '.join(parties)} given; {role} of them ({name})")
    if len(parties) < (least := 3 if key_holder else 2):
        raise SettingError(f"parties: {len(parties)} given, at least {least} are needed")
    return parties


def make_party_folder(
    folder: Path,
    name: str,
    passphrase: str,
    *,
    key_holder: bool = False,
    schemes: tuple[str, ...] = (),
    key_bits: int = 3072,
    listen: str = "0.0.0.0:7001",  # mutual TLS decides who gets in
    days: int = 825,
    parties: tuple[str, ...] = (),
) -> None:
    """Make the folder with everything in it; an existing party is never overwritten.

    party.toml is written last. Without it, an earlier `init` was interrupted, and this one goes on.

    `schemes`: kinds of encryption keys to make, for runs that reveal own gradients.
    """
    check_listen(listen)
    if (folder / PARTY_FILE).exists():
        raise SettingError(f"{folder} holds a party already ({PARTY_FILE}); --renew replaces single keys")
    make_folder(folder, private=True)
    make_folder(folder / "peers")
    if (folder / KEY_FILE).exists():  # of an interrupted `init`
        identity = Identity.load(folder, passphrase)
        if identity.name != name:
            raise SettingError(f"name: {name!r} given, {folder} is the party {identity.name!r}")
    else:
        identity = Identity.generate(name, days=days)
        identity.save(folder, passphrase)
    for key in (CHECKPOINT_KEY, SIGNING_KEY):
        make_key(folder, key, passphrase)
    for scheme in schemes:
        if not (path := folder / he_file(scheme)).exists():
            save_key(path, generate(scheme, key_bits=key_bits), passphrase)
    text = party_toml(name, key_holder=key_holder, listen=listen, parties=parties)
    write_atomically(folder / PARTY_FILE, text.encode(), mode=0o644)  # the last file: the party is whole


def _check_party(folder: Path, name: str) -> None:
    if not (folder / PARTY_FILE).exists():
        raise SettingError(f"{folder} holds no party; `securefed init {name}` makes one")
    for file in (KEY_FILE, CERTIFICATE_FILE):
        if not (folder / file).exists():
            raise SettingError(
                f"{folder}: {file} is missing; put it back from a backup, or move {PARTY_FILE} away and "
                f"let `securefed init {name} --folder {folder}` go on"
            )
    known = Certificate.read(folder / CERTIFICATE_FILE).name
    if known != name:
        raise SettingError(f"name: {name!r} given, {folder} is the party {known!r}")


def _renew(folder: Path, name: str, what: str, key_bits: int, days: int, passphrase: str) -> None:
    """Write the new key before the old one is moved: a kill in between leaves one of them in place."""
    _check_party(folder, name)
    Identity.load(folder, passphrase)  # the passphrase has to be the old one's
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    if what == "tls":
        Identity.generate(name, days=days).replace(folder, passphrase, stamp)
        return
    path = folder / he_file(what)
    if path.exists():
        write_atomically(path.with_name(f"{path.name}.old-{stamp}"), path.read_bytes())
    save_key(path, generate(what, key_bits=key_bits), passphrase, overwrite=True)


def _certificate(folder: Path, terminal: Terminal) -> Certificate:
    """Return the certificate of the folder, with its facts as the command's result."""
    certificate = Certificate.read(folder / CERTIFICATE_FILE)
    terminal.facts = {
        "name": certificate.name,
        "folder": str(folder),
        "certificate": str(folder / CERTIFICATE_FILE),
        "fingerprint": certificate.fingerprint,
        "ends": f"{certificate.ends:%Y-%m-%d}",
    }
    return certificate


def _show(folder: Path, terminal: Terminal) -> int:
    certificate = _certificate(folder, terminal)
    terminal.result(f"{certificate.name}: certificate until {certificate.ends:%Y-%m-%d}")
    terminal.result(f"SHA-256 {certificate.fingerprint}")
    return 0


def _tell(folder: Path, listen: str, terminal: Terminal) -> None:
    certificate, out = _certificate(folder, terminal), terminal.result
    name = certificate.name
    address = 'that their address of this party is "none": it connects to them'
    if listen != NOT_LISTENING:
        address = f"the address where they reach this machine, HOST:{parse_address(listen)[1]}"
    out(f"{folder} is the party {name}.\n")
    out("Send to the other organisations:", colour="green")
    out(f"  {folder / CERTIFICATE_FILE}    they save it as peers/{name}.pem")
    out(f"  {address}")
    out("  by telephone, to compare, the certificate's fingerprint:")
    out(f"  SHA-256 {certificate.fingerprint}\n")
    out("Never send to anybody:", colour="red")
    out(f"  {folder / '*.skf'}, the passphrase, your data file\n")
    out(f"Next: put the others' certificates into {folder / 'peers'}, edit {folder / 'party.toml'},")
    out(f"then: securefed check {folder}, and securefed party {folder}")
