"""Every notebook runs as it is, from top to bottom."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(notebook, tmp_path, monkeypatch):
    import nbclient
    import nbformat

    # Jupyter keeps its connection files and its history in the user's home otherwise.
    for variable in ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    folder = tmp_path / "notebooks"
    shutil.copytree(notebook.parent, folder)
    # The kernel, which runs in that copy, imports this checkout even where another keras_turbo is installed.
    paths = [str(ROOT), os.environ.get("PYTHONPATH")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))

    content = nbformat.read(folder / notebook.name, as_version=nbformat.NO_CONVERT)
    assert content.nbformat == 4
    nbclient.NotebookClient(content, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()
    assert any(cell.cell_type == "code" and cell.source for cell in content.cells)
