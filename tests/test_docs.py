"""The pages of the documentation: what they say is run, and they name every public name."""

import doctest
import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

import codanet

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
REFERENCE = {
    name for path in (DOCS / "reference").glob("*.md") for name in re.findall(r"^::: (\S+)$", path.read_text(), re.M)
}
HOW_TO = sorted((DOCS / "how-to").glob("*.md"))


@pytest.mark.parametrize("name", codanet.__all__)
def test_every_public_name_is_in_the_reference(name):
    assert f"codanet.{name}" in REFERENCE


@pytest.mark.parametrize("name", sorted(REFERENCE))
def test_what_the_reference_names_is_there_and_says_what_it_is(name):
    """And every parameter, with a line of example; what a dataclass writes of itself does not count."""
    thing = codanet
    for part in name.split(".")[1:]:
        thing = getattr(thing, part)
    words = inspect.getdoc(thing)
    assert len(words) > 20
    assert not words.startswith(f"{getattr(thing, '__name__', '')}(")
    known = inspect.signature(thing).parameters.values()
    assert not [each.name for each in known if not re.search(rf"^ +\**{each.name}: ", words, re.M)]
    assert "Examples:" in words or not known


@pytest.mark.parametrize("path", HOW_TO, ids=lambda path: path.stem)
def test_how_to_pages_run(path, tmp_path, monkeypatch):
    """All the programs of a page, one after the other."""
    from codanet.metrics import METRICS
    from codanet.models.architectures import ARCHITECTURES

    monkeypatch.chdir(tmp_path)
    for registry in (METRICS, ARCHITECTURES):
        for key in registry:
            monkeypatch.setitem(registry, key, registry[key])
    before = dict(METRICS), dict(ARCHITECTURES)
    scope = {"__name__": "page"}
    try:
        for program in re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL):
            exec(compile(program, str(path), "exec"), scope)
    finally:
        for registry, entries in zip((METRICS, ARCHITECTURES), before, strict=True):
            registry.clear()
            registry.update(entries)


def test_pages_that_are_written_are_reached():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for path in [*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb")]:
        if ".ipynb_checkpoints" not in path.parts:
            assert str(path.relative_to(DOCS)) in navigation, path


def test_nothing_is_fetched_to_read_them():
    assert "font: false" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    sources = [*DOCS.rglob("*.md"), *DOCS.rglob("*.css"), ROOT / "CHANGELOG.md", ROOT / "benchmarks" / "bench.md"]
    for path in sources:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"""!\[[^\]]*\]\(https?:|src=["']https?:|url\(["']?https?:|@import""", text), path
    site = ROOT / "site"
    for page in site.rglob("*.html"):  # where it has been built
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"""<(?:script|img|iframe)[^>]*\bsrc=["']?(?:https?:)?//""", text), page
        assert not re.search(r"""<link[^>]*\bhref=["']?(?:https?:)?//""", text), page


def test_the_citation_has_the_version():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {codanet.__version__}\n" in citation


@pytest.mark.parametrize("name", sorted(REFERENCE))
def test_examples_of_the_reference_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, *parts = name.split(".")
    thing = codanet
    for part in parts:
        thing = getattr(thing, part)
    home = import_module(thing.__module__)
    tests = doctest.DocTestFinder(recurse=False).find(thing, name, globs=vars(home).copy())
    runner = doctest.DocTestRunner(verbose=False)
    for test in tests:
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0
