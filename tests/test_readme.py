"""What the README says is run."""

import re
import shlex
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from codanet.cli import COMMANDS, main
from codanet.training.recipe import list_recipes
from codanet.training.settings import FIELDS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
COMMAND_LINES = re.findall(r"(?:^|`)(codanet [a-z][^`\n]*)", README, re.MULTILINE)


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_python(program, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "README.md", "exec"), {"__name__": "readme"})


@pytest.mark.parametrize("line", sorted(set(COMMAND_LINES)))
def test_commands_exist_as_they_are_written(line):
    _, command, *words = shlex.split(line, comments=True)
    assert command in COMMANDS
    options = [word.removeprefix("--").replace("-", "_") for word in words if word.startswith("--")]
    module = import_module(COMMANDS[command], "codanet.cli")
    if hasattr(module, "parser"):
        module.parser().parse(words)  # says what is wrong, if anything
    else:
        assert set(options) <= {*FIELDS, "output"}
    if command == "train":
        assert words[0] in (*list_recipes(), "pictures", "mine.yaml")


@pytest.mark.parametrize("line", sorted({line for line in COMMAND_LINES if line.startswith("codanet explain ")}))
def test_explanations_are_made_as_they_are_written(line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    pictures = [Image.fromarray(np.random.default_rng(i).integers(0, 255, (40, 50, 3), np.uint8)) for i in range(3)]
    for path in ("cat.jpg", "photos/a.jpg", "photos/b.jpg"):
        pictures[0].save(path)
    pictures[0].save("clip.gif", save_all=True, append_images=pictures[1:], duration=100)
    before = set(tmp_path.rglob("*"))
    assert main(shlex.split(line, comments=True)[1:]) == 0
    assert set(tmp_path.rglob("*")) > before


def test_links_and_targets():
    for link in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / link).exists(), link
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"make ([a-z-]+)", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE) or target in ("and", "help"), target


def test_recipes_are_listed_in_the_package():
    assert {"digits", "folder", "cifar10-cpu", "imagenet100-l"} <= set(list_recipes())
