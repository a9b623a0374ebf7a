"""What must not wait for PyTorch: help, completion, and the answer to a mistake; and rooms that bring little along."""

import json
import resource
import subprocess
import sys

import pytest

from codanet.cli import COMMANDS, names

HEAVY = ("torch", "numpy", "PIL", "matplotlib", "lightning", "yaml", "rich")
CODE = """
import sys
from codanet.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as stop:
    code = stop.code
print(code, *(name for name in {heavy!r} if name in sys.modules), file=sys.stderr)
"""


def run(arguments, heavy=HEAVY, cwd=None):
    """The words on stderr; the last line has the exit code and the heavy modules that were imported."""
    command = [sys.executable, "-c", CODE.format(heavy=heavy), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=cwd)
    return done.stderr.splitlines()


@pytest.mark.parametrize("command", [[], *([command] for command in COMMANDS)], ids=str)
def test_help_imports_nothing_heavy(command):
    assert run([*command, "--help"]) == ["0"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_imports_nothing_heavy(shell):
    assert run(["completion", shell]) == ["0"]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("explian", "did you mean 'explain'?"),
        ("explain cifar10 . --stile map", "unknown option '--stile': did you mean '--style'?"),
        ("explain cifar11 cat.jpg", "no model 'cifar11' comes with the package: did you mean 'cifar10'?"),
        ("explain mine.safetensors cat.jpg", "mine.safetensors does not exist"),
        ("explain cifar10 cat.jpg", "'cat.jpg' does not exist"),
        ("evaluate cifar10", "required: --data"),
        ("evaluate cifar10 --data digits --methods gradcan", "unknown method 'gradcan': did you mean 'gradcam'?"),
        ("evaluate cifar10 --data digits --metrics boxes", "unknown metric 'boxes': did you mean 'box'?"),
        ("evaluate cifar10 --data cifar11", "unknown data set 'cifar11', and no such folder: did you mean 'cifar10'?"),
        ("evaluate cifar10 --data digits --split tset", "unknown split 'tset': did you mean 'test'?"),
        ("demo cifar11", "no model 'cifar11' comes with the package: did you mean 'cifar10'?"),
        ("page cifar11", "no model 'cifar11' comes with the package: did you mean 'cifar10'?"),
        ("export cifar11 -o a.onnx", "no model 'cifar11' comes with the package: did you mean 'cifar10'?"),
        ("report cifar11", "cifar11 does not exist: did you mean 'cifar10'?"),
        ("bench --models s_codda", "unknown model 's_codda': did you mean 's_coda'?"),
        ("bench --batch 0", "argument --batch: '0' is not above 0"),
        ("train digits --epoch 3", "unknown setting '--epoch': did you mean 'epochs'?"),
        ("train digitz", "unknown recipe 'digitz': did you mean 'digits'?"),
        ("train digits --epochs three", "epochs is 'three': it must be"),
        ("train digits --temperature 0", "temperature is 0.0: it must be a positive number"),
        ("train digits --model s_codda", "unknown model 's_codda': did you mean 's_coda'?"),
        ("train digits --model resnet21", "unknown model 'resnet21': did you mean 'resnet20'?"),
    ],
)
def test_mistakes_are_answered_without_torch(words, answer, tmp_path):
    *lines, last = run(words.split(), ("torch", "numpy", "matplotlib"), tmp_path)
    assert answer in lines[-1]
    assert last == "2"


@pytest.mark.parametrize("words", ["--help", "completion bash", "explain --help", "explain --stile", "train --epoch 3"])
def test_they_take_less_than_three_tenths_of_a_second(words):
    """Of processor time, one of five at least, so that what else the machine does matters little."""

    def seconds():
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "codanet", *words.split()], capture_output=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert any(seconds() < 0.3 for _ in range(5))


def test_the_names_of_the_help_are_those_of_the_registries():
    from codanet.attribution import METHODS
    from codanet.benchmarks.bench import MODELS
    from codanet.data import list_data
    from codanet.evaluation import METHODS_OF_THE_PAPER, METRICS_OF_THE_PAPER
    from codanet.evaluation.run import SPLITS
    from codanet.export import FORMATS
    from codanet.metrics import FAMILIES, METRICS
    from codanet.metrics.metric import POINTS
    from codanet.plot import PALETTES, STYLES
    from codanet.report.sources import SPLITS as REPORT_SPLITS

    assert tuple(METHODS) == names.METHODS
    assert tuple(METHODS_OF_THE_PAPER) == names.METHODS_OF_THE_PAPER
    assert tuple(METRICS) == names.METRICS
    assert tuple(FAMILIES) == names.FAMILIES
    assert tuple(METRICS_OF_THE_PAPER) == names.METRICS_OF_THE_PAPER
    assert names.POINTS == POINTS
    assert tuple(list_data()) == names.DATA_SETS
    assert tuple(SPLITS) == names.SPLITS
    assert names.REPORT_SPLITS == REPORT_SPLITS
    assert tuple(PALETTES) == names.PALETTES
    assert tuple(STYLES) == names.STYLES
    assert tuple(MODELS) == names.BENCH_MODELS
    assert tuple(FORMATS) == names.EXPORT_FORMATS


# in turn, in one interpreter
STEPS = {
    "bare": "import codanet",
    "core": "import torch; before = set(sys.modules); codanet.load, codanet.create_model, codanet.read_image",
    "data": "import codanet.data",
    "settings": "import codanet.training.recipe, codanet.training.run_files",
    "drawing": "import codanet.plot; codanet.plot.contribution_maps",
}


@pytest.fixture(scope="module")
def imported():
    """The modules that are there after each of the steps; those of PyTorch's own import are left out from it on."""
    code = "import json, sys; before = set()\n" + "\n".join(
        f"{step}\nprint(json.dumps([{name!r}, sorted(set(sys.modules) - before)]))" for name, step in STEPS.items()
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name: set(modules) for name, modules in map(json.loads, done.stdout.splitlines())}


def test_import_codanet_is_light(imported):
    assert not {"torch", "numpy", "PIL"} & imported["bare"]


def test_the_core_is_lean(imported):
    """It loads torch, numpy, pillow and safetensors, and nothing else that has to be installed."""
    names = {module.split(".")[0] for module in imported["core"]}
    foreign = {name for name in names if name not in sys.stdlib_module_names and not name.startswith("_")}
    assert "codanet" in foreign
    foreign.discard("defusedxml")  # pillow's, where it is installed
    assert foreign <= {"codanet", "torch", "numpy", "PIL", "safetensors"}


def test_data_bring_little_along(imported):
    assert not {"sklearn", "kornia", "rich", "lightning"} & imported["data"]


def test_settings_and_run_files_do_not_bring_lightning_along(imported):
    assert "lightning" not in imported["settings"]


def test_pyplot_is_never_imported(imported):
    assert "matplotlib" in imported["drawing"]
    assert "matplotlib.pyplot" not in imported["drawing"]
