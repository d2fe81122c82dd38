"""An installed securefed, outside the checkout: its commands, an encrypted training, an audit, a saved model.

Run with the Python of the environment that it is installed in; fails if it finds another package.
"""

import subprocess
import sys
import sysconfig
import tempfile
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import securefed
from securefed import FedBCD, GeneralisedLinear, OwnGradient, Party
from securefed.audit import audit


def check(holds: bool, what: str) -> None:
    if not holds:
        sys.exit(f"smoke: {what}")


def main() -> None:
    home = Path(securefed.__file__).parent
    check(home.parent == Path(sysconfig.get_path("purelib")), f"{home} is not what was installed")
    for name in ("bench", "research", "tests"):
        check(find_spec(name) is None, f"{name} is installed, and is part of the checkout only")
    command = Path(sysconfig.get_path("scripts")) / "securefed"
    for words in (["--help"], ["--version"], ["party", "--help"], ["plan", "--help"]):
        said = subprocess.run([command, *words], capture_output=True, text=True, check=True).stdout
        check(bool(said), f"{words} says nothing")

    generator = np.random.default_rng(0)
    columns = generator.normal(size=(80, 4))
    shop = Party("shop", columns[:, :2])
    bank = Party("bank", columns[:, 2:], labels=columns.sum(axis=1) > 0)
    blind = GeneralisedLinear(rounds=3, holdout=0).fit([shop, bank])
    check(audit(blind.result_.transcripts, blind.result_.to_dict()).passed, "blind: a claim fails")
    check(blind.score([shop, bank]) > 0.7, "blind: the model is no good")
    for scheme in ("paillier", "ckks"):
        model = GeneralisedLinear(
            protection=OwnGradient(scheme=scheme, key_bits=2048),
            algorithm=FedBCD(local_steps=2),
            rounds=4,
            holdout=0,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a training this small opens more than it should
            model.fit([shop, bank])
        check(model.score([shop, bank]) > 0.7, f"{scheme}: the model is no good")
        check(audit(model.result_.transcripts, model.result_.to_dict()).passed, f"{scheme}: a claim fails")
        with tempfile.TemporaryDirectory() as folder:
            model.save(folder)
            again = GeneralisedLinear.load(folder)
            check(
                bool(np.all(again.predict([shop, bank]) == model.predict([shop, bank]))),
                f"{scheme}: another model",
            )
    print(f"securefed {securefed.__version__} works, Python {sys.version.split()[0]}")


main()
