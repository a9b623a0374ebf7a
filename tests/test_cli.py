"""The command line: what it prints, what it returns, one sentence for a mistake, and every example it gives."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import codanet
from codanet import CoDANet, list_models
from codanet.cli import COMMANDS, USAGE, main
from codanet.cli.evaluate import _print
from codanet.evaluation import Results, Row
from codanet.models.network import Layer
from codanet.training.recipe import list_recipes


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_help(arguments, capsys):
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert all(f"codanet {command}" in out for command in COMMANDS)


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("codanet ")


def test_models_and_recipes(capsys):
    assert main(["models"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in list_models())
    assert "7.78 M" in out
    assert main(["recipes"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in list_recipes())
    assert main(["models", "--json"]) == 0
    facts = {each["name"]: each for each in map(json.loads, capsys.readouterr().out.splitlines())}
    assert facts["s_coda"]["parameters"] == sum(p.numel() for p in codanet.create_model("s_coda").parameters())
    assert set(list_models()) <= set(facts)
    assert main(["recipes", "--json"]) == 0
    assert [json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()] == list_recipes()


def help_of(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    return capsys.readouterr().out


def examples(text):
    """The command lines in a help text: what stands after two blanks is a remark, after > a file of the shell's."""
    lines = re.findall(r"^ +(codanet .*)$", text, re.MULTILINE)
    return [shlex.split(re.split(r" {2,}| >", line)[0])[1:] for line in lines]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_commands(command, capsys):
    out = help_of(command, capsys)
    assert out.startswith(f"usage: codanet {command}")
    found = examples(out)
    assert found
    assert all(words[0] == command for words in found)
    assert max(map(len, out.splitlines())) <= 120


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder with what the examples speak of; the long work they ask for is noted instead of done."""
    monkeypatch.chdir(tmp_path)
    names = ("cat", "dog", "frog")
    codanet.save(CoDANet([Layer(4, 2), Layer(3, 2)], image_size=8, class_names=names), "model.safetensors")
    stills = [Image.fromarray(np.random.default_rng(i).integers(0, 256, (12, 12, 3), np.uint8)) for i in range(3)]
    stills[0].save("cat.jpg")
    stills[0].save("clip.gif", save_all=True, append_images=stills[1:])
    for folder in ("photos", "pictures/cat", "pictures/dog"):
        (tmp_path / folder).mkdir(parents=True)
        for index, still in enumerate(stills):
            still.save(tmp_path / folder / f"{index}.png")
    (tmp_path / "mine.yaml").write_text("base: digits\nepochs: 2\n")
    for folder in ("runs/digits", "runs/folder", "evaluations/cifar10"):
        (tmp_path / folder).mkdir(parents=True)
    for copy in ("mine.safetensors", "runs/digits/model.safetensors"):
        shutil.copy("model.safetensors", copy)
    asked = []

    def note(result):
        def called(*arguments, **options):
            asked.append((arguments, options))
            return result

        return called

    page = SimpleNamespace(share_url=None, local_url="here", is_running=False, close=lambda verbose: None)
    monkeypatch.setattr("codanet.training.train_all", note([]))
    monkeypatch.setattr("codanet.benchmarks.bench.bench", note(None))
    monkeypatch.setattr("codanet.evaluation.evaluate", note(SimpleNamespace(as_json=dict)))
    monkeypatch.setattr("codanet.cli.evaluate._print", lambda results: None)
    monkeypatch.setattr("codanet.report.report", note(tmp_path / "report.html"))
    monkeypatch.setattr("codanet.app.start", note(page))
    same = SimpleNamespace(images=8, logits=0.0, maps=0.0, sums=0.0, classes=0)
    made = {"path": tmp_path / "made", "bytes": 0, "half": None}
    monkeypatch.setattr("codanet.export.export", note(SimpleNamespace(**made, differences=same)))
    monkeypatch.setattr("codanet.export.page.page", note(SimpleNamespace(**made, differences={"one": same})))
    monkeypatch.setattr("codanet.data.load_data", lambda name: None)
    load = codanet.load
    monkeypatch.setattr("codanet.export.load", lambda name: load("model.safetensors"))
    return asked


INSTANT = ("explain", "models", "recipes", "completion")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_example_in_the_help_runs(command, capsys, workplace):
    found = examples(help_of(command, capsys))
    for words in found:
        assert main(words) == 0, words
    assert len(workplace) == (0 if command in INSTANT else len(found))  # each reached the library


def test_every_example_in_the_usage_runs(capsys, workplace):
    found = [" ".join(words) for words in examples(USAGE)]
    assert {words.split()[0] for words in found} == set(COMMANDS)
    for words in found:
        given = words.replace("MODEL", "model.safetensors").replace("path/to/pictures", "pictures")
        assert main(given.split()) == 0, words


def test_training_by_its_example(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = next(words for words in examples(USAGE) if words[:2] == ["train", "digits"])
    assert main([*words, "--epochs", "1", "--maps-every", "9", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["accuracy"] > 0.2
    rows = Image.fromarray(np.zeros((8, 8), np.uint8))
    rows.save("zero.png")
    assert main(["explain", result["weights"], "zero.png", "-o", "why.svg"]) == 0  # what it trained can be explained


def complete(script, *words):
    """What bash offers for the last of the words."""
    line = " ".join(shlex.quote(word) for word in words)
    code = f'{script}\nCOMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _codanet; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_the_tab_key(capsys):
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert complete(script, "codanet", "") == [*COMMANDS, "--help", "--version"]
    assert complete(script, "codanet", "tr") == ["train"]
    assert complete(script, "codanet", "train", "digi") == ["digits"]
    assert complete(script, "codanet", "train", "digits", "--ep") == ["--epochs"]
    assert complete(script, "codanet", "train", "digits", "--model", "nano") == ["nano_coda"]
    assert complete(script, "codanet", "explain", "m", "a.png", "--pal") == ["--palette"]
    assert complete(script, "codanet", "explain", "m", "a.png", "--style", "") == ["map", "overlay", "weights"]
    assert complete(script, "codanet", "explain", "m", "a.png", "--compare", "gradc") == ["gradcam"]
    assert complete(script, "codanet", "explain", "mod") == []  # so that bash offers files
    assert complete(script, "codanet", "evaluate", "m", "--da") == ["--data"]
    assert complete(script, "codanet", "completion", "z") == ["zsh"]


def test_other_shells(capsys):
    for shell in ("zsh", "fish"):
        assert main(["completion", shell]) == 0
        script = capsys.readouterr().out
        assert all(command in script for command in COMMANDS)
        assert "nano_coda" in script
        if shutil.which(shell):
            subprocess.run([shell, "-n"], input=script, text=True, check=True)
    assert main(["completion", "cmd"]) == 2
    assert "bash" in capsys.readouterr().err


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["recipes"], [], ["--version"], ["recipes", "--help"]])
def test_a_reader_that_has_had_enough(words, unbuffered):
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-m", "codanet", *words]
    program = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    program.stdout.close()
    assert program.stderr.read() == b""
    program.stderr.close()
    assert program.wait() == 0


def test_signs_that_the_terminal_lacks():
    """The help has an ellipsis, as class names may have anything."""
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    words = [sys.executable, "-m", "codanet", "explain", "--help"]
    done = subprocess.run(words, capture_output=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"rise,\u2026" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trian"], "unknown command 'trian': did you mean 'train'?"),
        (["train", "digitz"], "did you mean 'digits'?"),
        (["train", "digits", "--epoch", "3"], "did you mean 'epochs'?"),
        (["train", "digits", "--epochs", "three"], "epochs"),
        (["train", "digits", "--epochs", "0"], "epochs is 0: it must be 1 or more"),
        (["train", "digits", "--config", "none.yaml"], "none.yaml is not a file"),
        (["train", "digits", "--model", "s_codda"], "did you mean 's_coda'?"),
        (["train", "digits", "--augmentation", "flipcrop"], "flip-crop"),
        (["train"], "required: RECIPE"),
        (["models", "--all"], "unknown option '--all'"),
        (["models", "s_coda"], "was given 's_coda', which it does not take"),
        (["completion"], "required: shell; codanet completion --help shows how it is used"),
    ],
)
def test_mistakes(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert words in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        (["--data", "digits"], "inside/evaluations/digits"),
        (["--data", "."], "inside/evaluations/inside"),
        (["--data", ".."], "inside/evaluations/pictures"),
        (["--data", "digits", "--output=~/mine"], "mine"),
    ],
)
def test_where_an_evaluation_goes(words, folder, tmp_path, monkeypatch, capsys):
    place = tmp_path / "pictures"
    (place / "inside").mkdir(parents=True)
    monkeypatch.chdir(place / "inside")
    monkeypatch.setenv("HOME", str(place))
    asked = []
    monkeypatch.setattr("codanet.evaluation.evaluate", lambda *given, **options: asked.append(given[4]))
    monkeypatch.setattr("codanet.cli.evaluate._print", lambda results: None)
    assert main(["evaluate", "cifar10", *words]) == 0
    assert [path.resolve() for path in asked] == [(place / folder).resolve()]


def test_config_files(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "more.yaml").write_text("about: mine\nepochs: 0\n")
    assert main(["train", "digits", "--config", "more.yaml"]) == 2
    assert "epochs is 0" in capsys.readouterr().err  # the file was read, its remark passed over
    (tmp_path / "more.yaml").write_text("base: digits\n")
    assert main(["train", "digits", "--config", "more.yaml"]) == 2
    assert "which only a recipe can" in capsys.readouterr().err


def test_a_table_in_a_file_is_not_cut(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    method = "occlusion9:window=64:stride=64:space=image"
    numbers = {"mean": 0.5, "low": 0.4, "high": 0.6, "n": 4500, "units": 500, "seconds_per_map": 0.025}
    rows = tuple(Row("localisation", f"a model with quite a long name {i}", method, **numbers) for i in (1, 2))
    _print(Results(tmp_path, rows, {}, {}))
    out = capsys.readouterr().out
    assert "…" not in out
    assert out.count("0.400 – 0.600") == out.count("4500 in 500 grids") == 2
