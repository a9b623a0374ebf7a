"""The tutorials of the documentation are run as they are."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

TUTORIALS = sorted((Path(__file__).parents[1] / "docs" / "tutorials").glob("*.ipynb"))


@pytest.fixture(scope="module")
def kernel():
    """One for all of them, so that what they import is imported once."""
    client = NotebookClient(nbformat.v4.new_notebook(), timeout=300)
    with client.setup_kernel():
        yield client.km


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs_and_shows_something(path, kernel, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "clear the outputs: the site makes its own"
    fresh = f"%reset -f\nimport os\nos.chdir({str(tmp_path)!r})\ndel os"  # no name of the one before is left
    notebook.cells.insert(0, nbformat.v4.new_code_cell(fresh))
    client = NotebookClient(notebook, km=kernel, timeout=300)
    client.execute()
    client.kc.stop_channels()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not any(output.get("name") == "stderr" for output in outputs), "a warning is not for a tutorial"


def test_there_are_three():
    assert [path.stem for path in TUTORIALS] == ["compare", "explain", "train"]
