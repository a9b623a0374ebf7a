"""What is installed: declared dependencies, optional parts, and the wheel in an environment that has nothing else."""

import ast
import json
import os
import re
import subprocess
import sys
import zipfile
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from PIL import Image

from codanet._support.extras import EXTRAS, MissingPackage, missing, optional

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src" / "codanet"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BASE = {"torch", "numpy", "pillow", "safetensors", "matplotlib", "rich"}
BASE_ROOMS = ("_support", "models", "data", "attribution", "metrics", "plot", "cli")


def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(lines):
    """The distributions that these requirements name, with the package's own extras followed."""
    found = set()
    for line in lines:
        requirement = Requirement(line)
        if requirement.name == "codanet":
            found |= declared(each for extra in requirement.extras for each in PROJECT["optional-dependencies"][extra])
        else:
            found.add(plain(requirement.name))
    return found


def imports(path, nested=True):
    """Third-party packages that a file imports, by name or by import_module("literal"); at its top, or anywhere."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = ast.walk(tree) if nested else iter(tree.body)
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "import_module":
            names |= {each.value for each in node.args[:1] if isinstance(each, ast.Constant)}
    tops = {name.partition(".")[0] for name in names if not name.startswith(".")}
    return tops - set(sys.stdlib_module_names) - {"codanet", "__future__"}


ALL_IMPORTS = {name for path in SOURCES.rglob("*.py") for name in imports(path)}


@pytest.fixture(scope="session")
def distributions():
    owners = packages_distributions()
    return lambda module: {plain(name) for name in owners.get(module, [module])}


def test_the_base_install_is_what_explaining_needs():
    assert declared(PROJECT["dependencies"]) == BASE


@pytest.mark.parametrize("module", sorted(ALL_IMPORTS))
def test_every_direct_import_is_declared(module, distributions):
    extras = PROJECT["optional-dependencies"]
    if distributions(module) & BASE:
        assert module not in EXTRAS
    else:
        assert module in EXTRAS, f"{module} is imported, but no extra brings it"
        assert distributions(module) & declared(extras[EXTRAS[module]])


@pytest.mark.parametrize("extra", sorted(set(EXTRAS.values())))
def test_every_extra_is_part_of_all(extra):
    assert extra in PROJECT["optional-dependencies"]
    assert declared(PROJECT["optional-dependencies"][extra]) <= declared(["codanet[all]"]) <= declared(["codanet[dev]"])


def test_base_rooms_import_optional_packages_only_inside_functions():
    for room in BASE_ROOMS:
        for path in (SOURCES / room).rglob("*.py"):
            assert not imports(path, nested=False) & set(EXTRAS), path


def test_a_missing_package_is_said_with_the_pip_command():
    words = r"this needs captum, .*: pip install 'codanet\[evaluate\]'"
    with pytest.raises(MissingPackage, match=words) as caught, optional():
        raise ModuleNotFoundError("No module named 'captum.attr'", name="captum.attr")
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value, ValueError)
    assert missing("av") == "needs av, which is not installed: pip install 'codanet[video]'"
    with pytest.raises(ModuleNotFoundError, match="codanette"), optional():
        import codanette  # noqa: F401 (nobody's)


def run(*command):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


def test_wheel_and_source_can_be_published(built):
    files = sorted(built.iterdir())
    assert [file.suffix for file in files] == [".whl", ".gz"]
    run(sys.executable, "-m", "twine", "check", "--strict", *files)
    names = zipfile.ZipFile(files[0]).namelist()
    assert {"codanet/py.typed", "codanet/models/shipped/cifar10.safetensors"} <= set(names)
    assert {name.partition("/")[0] for name in names} == {"codanet", files[0].name.partition("-py3")[0] + ".dist-info"}


def closure(names):
    """The installed distributions that these need, themselves included; optional parts of theirs are left out."""
    found, queue = {}, list(names)
    while queue:
        name = plain(queue.pop())
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue  # for another platform
        for line in found[name].requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                queue.append(requirement.name)
    return found.values()


@pytest.fixture(scope="module")
def environment(built, tmp_path_factory):
    """A virtual environment with the wheel, and links to its base dependencies alone."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    wheel = next(built.glob("*.whl"))
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    place = folder / "base"
    place.mkdir()
    for each in closure(BASE):
        for top in {file.parts[0] for file in each.files or () if file.parts[0] not in ("..", "__pycache__")}:
            source = Path(each.locate_file(top))
            if source.exists() and not (place / top).exists():
                (place / top).symlink_to(source)
    site = next((folder / "lib").glob("python3.*/site-packages"))
    (site / "base.pth").write_text(str(place), encoding="utf-8")
    return folder


def inside(environment, *command, expected=0, cwd=None):
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        [str(environment / "bin" / command[0]), *command[1:]], capture_output=True, text=True, env=clean, cwd=cwd
    )
    assert done.returncode == expected, done.stdout + done.stderr
    return done


def test_the_wheel_explains_a_picture_where_nothing_else_is(environment, tmp_path):
    picture = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    Image.fromarray(picture).save(tmp_path / "cat.png")
    inside(environment, "codanet", "explain", "cifar10", "cat.png", "-o", "why.png", cwd=tmp_path)
    assert Image.open(tmp_path / "why.png").width > 100
    code = """
import sys, codanet
model = codanet.load("cifar10")
why = model.explain(codanet.read_image("cat.png", model)[None])
why.save("again.svg")
print(float(why.completeness_error().max()) < 1e-4, codanet.__file__)
print([name for name in ("lightning", "captum", "skimage", "yaml", "pytest") if name in sys.modules])
"""
    out = inside(environment, "python", "-c", code, cwd=tmp_path).stdout.splitlines()
    assert out[0] == f"True {next(environment.glob('lib/*/site-packages'))}/codanet/__init__.py"
    assert out[1] == "[]"
    assert (tmp_path / "again.svg").stat().st_size > 1000


NEEDED = {
    "train digits": ("yaml", "train"),
    "explain cifar10 cat.png --compare gradcam -o why.png": ("captum", "evaluate"),
    "demo --port 7999": ("gradio", "demo"),
}


@pytest.fixture(scope="module")
def answers(environment, tmp_path_factory):
    """The exit code of each command there, and its last words; one interpreter runs them all."""
    folder = tmp_path_factory.mktemp("missing")
    Image.new("RGB", (40, 40)).save(folder / "cat.png")
    code = """
import contextlib, io, json, sys
from codanet.cli import main
answers = {}
for words in sys.argv[1:]:
    with contextlib.redirect_stderr(io.StringIO()) as said:
        code = main(words.split())
    answers[words] = code, said.getvalue().splitlines()[-1]
print(json.dumps(answers))
"""
    return json.loads(inside(environment, "python", "-c", code, *NEEDED, cwd=folder).stdout.splitlines()[-1])


@pytest.mark.parametrize("words", NEEDED)
def test_what_is_missing_is_said_in_one_sentence(answers, words):
    package, extra = NEEDED[words]
    sentence = f"codanet: this needs {package}, which is not installed: pip install 'codanet[{extra}]'"
    assert answers[words] == [2, sentence]
