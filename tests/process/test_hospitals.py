"""A new user's session on the command line: three hospitals with messy files, from init to verify."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from bench.ports import free_ports
from tests.process.parties import PASSPHRASE, PATIENT, ROOT

PARTIES, HELPER = ("lab", "gp", "clinic"), "notary"
EVERYBODY = (*PARTIES, HELPER)
EDITS = {
    "lab": {"file": '"lab.csv"', "id": '"PatientNr"', "impute": '"indicator"'},
    "gp": {"file": '"gp.csv"', "id": '"patient"', "impute": '"median"', "missing": '["n/a"]'},
    "clinic": {"file": '"clinic.csv"', "id": '"case"', "label": '"readmitted"', "impute": '"median"'},
}
"""What each operator changes in the party.toml that `init` wrote, besides addresses."""


class Hospitals:
    """Folders of all parties, and commands in them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = dict(zip(EVERYBODY, free_ports(len(EVERYBODY)), strict=True))

    def begin(self, *words: str) -> subprocess.Popen[str]:
        environment = os.environ | {"SECUREFED_PASSPHRASE": PASSPHRASE, "PYTHONPATH": str(ROOT)}
        environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "securefed", *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        return subprocess.Popen(command, cwd=self.folder, env=environment, text=True, **pipes)  # type: ignore[call-overload,no-any-return]

    def run(self, *words: str) -> str:
        """One command, which has to succeed; what it printed."""
        return self.together([words])[0]

    def together(self, commands: list[tuple[str, ...]]) -> list[str]:
        processes = [self.begin(*words) for words in commands]
        try:
            printed = [process.communicate(timeout=PATIENT)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
        codes = [process.returncode for process in processes]
        assert set(codes) == {0}, "\n".join(
            f"{words}\n{text}" for words, text in zip(commands, printed, strict=True)
        )
        assert "Traceback" not in "".join(printed)
        return printed

    def edit(self, name: str) -> None:
        path = self.folder / name / "party.toml"
        text = path.read_text()
        for peer in EVERYBODY:
            text = text.replace(f'"{peer}.example:7001"', f'"127.0.0.1:{self.ports[peer]}"')
        for key, value in {**EDITS.get(name, {}), "id_form": '"loose"', "wait": "120"}.items():
            text, count = re.subn(rf"^#?{key} = .*$", f"{key} = {value}", text, count=1, flags=re.MULTILINE)
            assert count == 1, key
        path.write_text(text)


def write_files(folder: Path, people: range, *, labels: bool, seed: int) -> dict[str, int]:
    """Write the three messy files; the labels by the number of a person."""
    rng = np.random.default_rng(seed)
    count = len(people)
    table = rng.normal(size=(count, 5))
    wards = rng.choice(["cardio", "surgery", "general"], size=count)
    chance = table @ [1.2, -0.9, 0.7, 0.5, -0.6] + (wards == "cardio") + 0.6 * rng.normal(size=count)
    truth = dict(zip(people, (chance > 0.3).astype(int).tolist(), strict=True))

    def comma(number: float, digits: int) -> str:
        return f"{number:.{digits}f}".replace(".", ",")

    lab = ["PatientNr;crp;albumin;method"]
    gp = ["patient,bmi,smoker,visits"]
    clinic = ["case\tage\tward" + ("\treadmitted" if labels else "")]
    for place, person in enumerate(people):
        crp = "" if rng.random() < 0.06 else comma(20 + 5 * table[place, 0], 1)
        method = ["ELISA", "PCR"][place % 2]
        lab.append(f"P-{person:05d};{crp};{comma(40 + 3 * table[place, 1], 2)};{method}")
        bmi = "n/a" if rng.random() < 0.05 else f"{25 + 4 * table[place, 2]:.1f}"
        gp.append(f"p{person},{bmi},{'yes' if table[place, 3] > 0 else 'no'},{place % 7}")
        age = "" if rng.random() < 0.04 else str(round(60 + 10 * table[place, 4]))
        word = "\tyes" if truth[person] else "\tno"
        clinic.append(f"P {person}\t{age}\t{wards[place]}" + (word if labels else ""))
    for name, lines in (("lab", lab), ("gp", gp), ("clinic", clinic)):
        rest = lines[1:]
        kept = [rest[row] for row in rng.permutation(len(rest))[: int(0.95 * len(rest))]]
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.csv").write_text("\n".join([lines[0], *kept]) + "\n")
    return truth


@pytest.mark.slow
def test_three_hospitals_from_init_to_a_verified_prediction(tmp_path: Path) -> None:
    hospitals = Hospitals(tmp_path)
    write_files(tmp_path / "old", range(1, 501), labels=True, seed=1)
    truth = write_files(tmp_path / "new", range(601, 801), labels=False, seed=2)
    for name in EVERYBODY:
        role = ["--helper"] if name == HELPER else []
        listen = f"127.0.0.1:{hospitals.ports[name]}"
        hospitals.run("init", name, "--parties", ",".join(PARTIES), "--listen", listen, *role)
    for name in EVERYBODY:
        for peer in EVERYBODY:
            if peer != name:
                shutil.copy(tmp_path / peer / "certificate.pem", tmp_path / name / "peers" / f"{peer}.pem")
        hospitals.edit(name)
    for name in PARTIES:
        shutil.copy(tmp_path / "old" / f"{name}.csv", tmp_path / name)
    for name in EVERYBODY:
        assert "no problems in" in hospitals.run("check", name)
    printed = hospitals.together([("party", name) for name in EVERYBODY])
    assert "quality     AUC" in printed[PARTIES.index("clinic")]
    assert all("transcripts agree" in text for text in printed)

    commands = [("predict", name, "--rows", f"new/{name}.csv", "--json", f"{name}.json") for name in PARTIES]
    printed = hospitals.together([*commands, ("predict", HELPER)])
    folder = tmp_path / "clinic" / "runs" / "first-run"
    with (folder / "scores.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert list(lines[0]) == ["case", "score", "probability", "predicted"]
    labels = [truth[int(line["case"].removeprefix("P "))] for line in lines]
    assert len(lines) > 150 and roc_auc_score(labels, [float(line["score"]) for line in lines]) > 0.85
    words = ["yes" if label else "no" for label in labels]
    assert np.mean([line["predicted"] == word for line, word in zip(lines, words, strict=True)]) > 0.75
    facts = json.loads((tmp_path / "clinic.json").read_text())
    assert facts["psi"] < 0.25 and "these people" in printed[2]

    together = tmp_path / "together"
    together.mkdir()
    for name in EVERYBODY:
        for path in (tmp_path / name / "runs" / "first-run").iterdir():
            if re.match(r"(transcript|signatures|prediction|scores)", path.name):
                shutil.copy(path, together)
    assert " 0 failed" in hospitals.run("audit", "together", "--html", "audit.html")
    assert " 0 failed, 0 skipped" in hospitals.run("verify", "together")
