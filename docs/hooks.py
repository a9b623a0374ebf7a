"""What the pages take from the package itself: `{{ models }}`, `{{ methods }}` and the like become tables."""

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files

log = get_plugin_logger("codanet")
PAGE = "why.html"  # `codanet page`, made with the site and kept nowhere else


def table(head: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def models() -> str:
    import torch

    import codanet

    with torch.device("meta"):
        untrained = [codanet.create_model(name) for name in codanet.list_models()]
    rows = []
    for model in untrained:
        parameters = sum(each.numel() for each in model.parameters())
        size = "x".join(map(str, model.image_size or ("any",)))
        rows.append((f"`{model.name}`", f"{parameters / 1e6:.2f} M", len(model.layers), size, f"{model.temperature:g}"))
    return table(("name", "parameters", "layers", "images", "T"), rows)


def pretrained() -> str:
    import codanet

    rows = []
    for name in codanet.list_models(pretrained=True):
        model = codanet.load(name)
        rows.append((f"`{name}`", f"`{model.name}`", ", ".join(model.class_names or ())))
    return table(("name", "architecture", "classes"), rows)


def methods() -> str:
    from codanet.attribution import METHODS

    return table(("name", "in figures", "what it is"), ((f"`{m.name}`", m.title, m.about) for m in METHODS.values()))


def metrics() -> str:
    from codanet.metrics import METRICS

    rows = ((f"`{m.name}`", m.about, "higher" if m.higher_is_better else "lower") for m in METRICS.values())
    return table(("name", "what it measures", "better"), rows)


def data_sets() -> str:
    from codanet.data import list_data

    return ", ".join(f"`{name}`" for name in list_data())


def recipes() -> str:
    from codanet.training.recipe import list_recipes, load_recipe

    return table(("recipe", "what it is"), ((f"`{name}`", load_recipe(name).about) for name in list_recipes()))


def settings() -> str:
    import dataclasses

    from codanet.cli.train import setting_help
    from codanet.training.settings import Settings

    about = setting_help()
    rows = ((f"`{f.name}`", f"`{f.default}`", about.get(f.name, "")) for f in dataclasses.fields(Settings))
    return table(("setting", "default", "what it is"), rows)


def commands() -> str:
    """The help of every command, as it is printed."""
    from codanet.cli import COMMANDS

    parts = []
    for command in COMMANDS:
        arguments = [sys.executable, "-m", "codanet", command, "--help"]
        done = subprocess.run(arguments, capture_output=True, text=True, check=True)
        parts.append(f"## codanet {command}\n\n```text\n{done.stdout.rstrip()}\n```")
    return "\n\n".join(parts)


def page() -> str:
    """The page in which the shipped models explain pictures, or why it is not there."""
    if not has_page:
        return "*The page was left out when this site was made: its engine could not be fetched.*"
    picture = "![The page: a picture under its contribution map, and the classes beside it](images/page.png)"
    return f"[Open the page]({PAGE}){{ .md-button .md-button--primary }}\n\n[{picture}]({PAGE})"


TABLES: dict[str, Callable[[], str]] = {
    part.__name__: part for part in (models, pretrained, methods, metrics, data_sets, recipes, settings, commands, page)
}
has_page = False


def on_files(files: Files, config: Any) -> Files:
    """Add the page; without its engine the site is whole but for it."""
    global has_page
    import codanet
    from codanet.data import DataError
    from codanet.export.page import page as write

    models = {name: codanet.load(name) for name in codanet.list_models(pretrained=True)}
    with tempfile.TemporaryDirectory() as scratch:
        try:
            content = write(models, Path(scratch) / PAGE).path.read_bytes()
        except DataError as error:
            log.info(f"without {PAGE}: {error}")
            has_page = False
            return files
    files.append(File.generated(config, PAGE, content=content))
    has_page = True
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    return re.sub(r"\{\{ (\w+) \}\}", lambda match: TABLES[match[1]](), markdown)
