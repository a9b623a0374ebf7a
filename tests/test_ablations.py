"""docs/ablations.md has the figures of the experiments' own files, and the orders that it says they have."""

import json
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "ablations.md").read_text(encoding="utf-8")
FILES = sorted(re.findall(r"\(evaluation/(\w+)\.json\)", PAGE))

# runs from the lowest to the highest figure, as the page says that they are
ORDERS = {
    ("temperature", "localisation"): ["T = 10", "T = 100", "T = 1000", "T = 5000"],
    ("temperature", "accuracy"): ["T = 10", "T = 5000", "T = 1000", "T = 100"],
    ("regularisation", "localisation"): ["λ = 0", "λ = 0.01", "λ = 0.05", "λ = 0.1"],
    ("regularisation", "accuracy"): ["λ = 0.1", "λ = 0.05", "λ = 0", "λ = 0.01"],  # the last two are level
    ("rank", "localisation"): ["x 1/8", "x 1/4", "x 1/2"],
    ("rank", "accuracy"): ["x 1/8", "x 1/2", "x 1/4"],  # the last two are level
    ("rescaling", "localisation"): ["SQ (T)", "L2 (T)", "SQ (λ)", "L2 (λ)"],
    ("rescaling", "accuracy"): ["SQ (λ)", "L2 (T)", "SQ (T)", "L2 (λ)"],
}


def measured(name: str) -> dict:
    return json.loads((DOCS / "evaluation" / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", FILES)
def test_the_page_has_the_figures_of_the_file(name):
    found = measured(name)
    assert found["command"] in PAGE
    assert found["n"] == {"test images": 10000, "grids of 3x3": 50}
    for run in found["numbers"]["runs"]:
        low, high = run["localisation_interval_95"]
        cells = f"| {run['label']} | {run['accuracy']:.1%} | {run['localisation']:.3f} ({low:.3f} to {high:.3f}) |"
        assert cells in PAGE


@pytest.mark.parametrize(("name", "measure"), ORDERS)
def test_the_orders_are_as_the_page_says(name, measure):
    assert measured(name)["numbers"]["orders"][measure] == ORDERS[name, measure]


def test_every_file_has_an_order():
    assert {name for name, _ in ORDERS} == set(FILES) != set()
