"""The notebooks run from top to bottom, and are kept with their outputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    monkeypatch.setenv("PYTHONPATH", str(path.parents[2]))
    for name in ("JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path))
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    streams = [each for cell in notebook.cells for each in cell.get("outputs", [])]
    assert not any(each.get("name") == "stderr" for each in streams), "a warning"
    assert all(
        cell.get("outputs") or "import" in cell.source for cell in notebook.cells if cell.cell_type == "code"
    )


def test_notebooks_are_kept_with_outputs_and_without_warnings() -> None:
    assert len(NOTEBOOKS) == 2
    for path in NOTEBOOKS:
        cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
        assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1)), path.name
        outputs = [output for cell in cells for output in cell["outputs"]]
        assert len(outputs) >= len(cells) - 1
        assert not any(output["output_type"] == "error" for output in outputs)
        assert not any(output.get("name") == "stderr" for output in outputs), path.name
    first = (NOTEBOOKS[0]).read_text()
    assert "image/png" in first
