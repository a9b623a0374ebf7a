"""Numbers, nestings and names from strangers: refused in a sentence, before any work."""

import os
import subprocess
import sys
import time

import pytest
from PIL import Image

import codanet
from codanet._support.limits import MOST_THREADS, parse_json, parse_yaml, shown
from codanet._support.messages import plain
from codanet.attribution import settings_of
from codanet.cli import main
from codanet.training.recipe import load_recipe
from codanet.training.settings import Settings
from colours import colour_model

HUGE = "9" * 4000


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    codanet.save(colour_model(), "model.safetensors")
    Image.new("RGB", (20, 20), "red").save("red.png")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("train digits --threads 99999", f"threads is 99999: it must be from 1 to {MOST_THREADS}"),
        ("evaluate model.safetensors --data digits --threads 99999", f"from 1 to {MOST_THREADS}"),
        ("bench --threads 99999", f"from 1 to {MOST_THREADS}"),
        ("train digits --devices 99999 --batch-size 99999", f"at most {MOST_THREADS} are started here"),
        (f"train digits --epochs {HUGE}", "numbers up to 2147483647 can be used"),
        ("train digits --epochs 99999999999", "numbers up to 2147483647"),
        ("train digits --learning-rate inf", "it must be a finite number"),
        ("evaluate model.safetensors --data digits --methods rise:masks=99999999999", "at most 1000000"),
        ("evaluate model.safetensors --data digits --methods rise:cells=9999", "at most 32"),
        (f"evaluate model.safetensors --data digits --grids {HUGE}", "is too large"),
        (f"evaluate model.safetensors --data digits --seed {HUGE}", "is not from 0 to"),
        ("explain model.safetensors red.png --target 99999999999999999999", "is out of range: the classes are 0 to 2"),
        (f"explain model.safetensors red.png --target {HUGE}", "is out of range"),
        (f"explain model.safetensors red.png --top {HUGE}", "is too large"),
        ("explain model.safetensors ~nosuchuser/x.png", "home of a user who is not known here"),
        ("explain model.safetensors red.png -o ~nosuchuser/x.png", "home of a user who is not known here"),
        ("train ~nosuchuser", "home of a user who is not known here"),
        ("evaluate model.safetensors --data ~nosuchuser", "home of a user who is not known here"),
        (
            "evaluate model.safetensors --data digits --reference /dev/zero -o evaluations",
            "not a file of published figures",
        ),
        ("export model.safetensors -o x.onnx --size 99999999999 99999999999", "of which at most"),
        ("export model.safetensors -o ~nosuchuser/x.onnx", "home of a user who is not known here"),
        ("export model.safetensors -o model.safetensors --format onnx", "is what is to be exported"),
        ("page model.safetensors -o ~nosuchuser/x.html", "home of a user who is not known here"),
        ("page model.safetensors -o model.safetensors", "is what is to be shown"),
        ("report ~nosuchuser", "home of a user who is not known here"),
        (f"train digits --head {HUGE}/8/3", "give units/rank/kernel"),
    ],
)
def test_mistakes_are_said_in_a_sentence(arguments, words, workplace, capsys):
    started = time.monotonic()
    assert main(arguments.split()) == 2
    told = capsys.readouterr().err
    assert words in told
    assert len(told) < 800
    assert time.monotonic() - started < 20
    assert sorted(path.name for path in workplace.iterdir()) in (
        ["model.safetensors", "red.png"],
        ["evaluations", "model.safetensors", "red.png"],
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[" * 100_000, "nested too deeply"),
        ("a: " * 3 + "{" * 100_000, "not YAML of settings"),
        ("x: &a [1, 1]\ny: [*a, *a]", "has an alias"),
        ("# " + "x" * 2**21, "larger than 1 MiB"),
        (f"epochs: {HUGE}", "epochs is 99"),
        (f"epochs: {'9' * 5000}", "not YAML of settings"),
        ("model: [[[[[[1]]]]]]", "model is"),
        ("sweep: {seed: []}", "has 0 values of seed"),
        ("sweep: {seed: [1, 1]}", "would have one name"),
        ("? [1, 2]\n: 3", "not YAML of settings|unknown setting"),
    ],
)
def test_recipes(content, words, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(content)
    started = time.monotonic()
    with pytest.raises(ValueError, match=words) as caught:
        load_recipe(path).runs()
    assert len(str(caught.value)) < 800
    assert time.monotonic() - started < 5


def test_an_anchor_bomb_is_not_expanded():
    lines = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    with pytest.raises(ValueError, match="alias"):
        parse_yaml("\n".join(lines))


def test_the_folders_of_a_sweep_lie_inside(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("sweep: {start: [../../outside, /etc, a/b]}")
    folders = [folder for folder, _ in load_recipe(path).runs()]
    assert folders == ["start=.._.._outside", "start=_etc", "start=a_b"]
    path.write_text("sweep: {temperature: [16, 64.5]}")
    assert [folder for folder, _ in load_recipe(path).runs()] == ["temperature=16", "temperature=64.5"]


def test_a_sweep_with_a_mistake_does_nothing(workplace, capsys):
    with open("recipe.yaml", "w") as file:
        file.write("base: digits\nepochs: 1\nsweep: {model: [nano_coda, ../../x]}")
    assert main(["train", "recipe.yaml", "--output", "sweep"]) == 2
    assert "unknown model '../../x'" in capsys.readouterr().err
    assert not os.path.exists("sweep")


def test_json_and_long_values():
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json("[" * 200_000 + "]" * 200_000)
    nested: list = []
    for _ in range(30):
        nested = [nested] * 9
    assert len(shown(nested)) < 2000
    assert len(shown(10**4000)) < 100
    with pytest.raises(ValueError, match="at most 1000000"):
        settings_of("lime", {"samples": 10**12})
    with pytest.raises(ValueError, match="at most 1000000"):
        settings_of("intgrad", {"steps": 10**12})
    with pytest.raises(ValueError, match="threads"):
        Settings(threads=10**6)


def test_escape_sequences_do_not_reach_the_terminal(workplace, capsys):
    assert plain("a\x1b[31m\u202eb\x07 é\n") == "a\\x1b[31m\\u202eb\\x07 é\n"
    model = colour_model()
    named = codanet.CoDANet(
        model.architecture, image_size=model.image_size, class_names=[f"\x1b]0;x\x07{name}" for name in "abc"]
    )
    codanet.save(named.eval(), "named.safetensors")
    os.rename("red.png", "re\x1b[2Jd.png")
    assert main(["export", "named.safetensors", "-o", "a\x1b[2J.onnx"]) == 0
    assert "a\\x1b[2J.onnx" in capsys.readouterr().out
    assert main(["explain", "named.safetensors", "re\x1b[2Jd.png", "-o", "why.png"]) == 0
    assert main(["explain", "named.safetensors", "no\x1b[2J.png"]) == 2
    out, err = capsys.readouterr()
    assert "\\x1b[2J" in out
    assert "\x1b" not in out + err


def test_nothing_is_said_before_it_is_written(workplace, capsys, monkeypatch):
    def full(*arguments, **options):
        raise ValueError("why.png cannot be written (No space left on device)")

    monkeypatch.setattr("codanet.plot.save", full)
    assert main(["explain", "model.safetensors", "red.png", "-o", "why.png"]) == 2
    assert capsys.readouterr().out == ""


def test_long_names_do_not_end_a_batch(workplace, capsys):
    for letter in "ab":
        Image.new("RGB", (20, 20), "red").save("x" * 240 + letter + ".png")
    Image.new("RGB", (20, 20), "blue").save("é" * 120 + ".png")
    assert main(["explain", "model.safetensors", ".", "-o", "pages"]) == 0
    assert len(os.listdir("pages")) == 4


def test_outputs_that_are_no_files(workplace, capsys):
    os.mkfifo("why.png")
    assert main(["explain", "model.safetensors", "red.png", "-o", "why.png"]) == 2
    assert "is a pipe" in capsys.readouterr().err
    assert "why.png" in os.listdir()
    os.symlink("/dev/null", "null.png")
    assert main(["explain", "model.safetensors", "red.png", "-o", "null.png"]) == 0
    assert os.path.islink("null.png")


def test_missing_folders_are_made_and_the_help_says_so(workplace, capsys):
    assert main(["explain", "model.safetensors", "red.png", "-o", "new/folder/why.png"]) == 0
    assert os.path.isfile("new/folder/why.png")
    with pytest.raises(SystemExit):
        main(["explain", "--help"])
    assert "missing folders are made" in " ".join(capsys.readouterr().out.split())


def test_fewer_images_than_processes(tmp_path):
    for name in "ab":
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(2):
            Image.new("RGB", (8, 8), (number * 90, 0, 0)).save(tmp_path / "pictures" / name / f"{number}.png")
    from codanet.training import train

    with pytest.raises(ValueError, match="training images for 3 processes, and each needs one"):
        train(tmp_path / "pictures", tmp_path / "run", devices=3, batch_size=3, image_size=8, quiet=True)


@pytest.mark.parametrize("moment", ["numpy", "torch.nn", "matplotlib"])
def test_ctrl_c_during_imports(moment, workplace):
    """As a library would that makes another error of it."""
    script = f"""
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {moment!r}:
            sys.meta_path.remove(self)
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                raise {"KeyboardInterrupt" if moment == "torch.nn" else "ImportError('cannot load a module')"} from None
sys.meta_path.insert(0, Finder())
from codanet.cli import main
sys.exit(main(["explain", "model.safetensors", "red.png", "-o", "why.png"]))
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stderr.strip()) == (130, "codanet: stopped")


def test_ctrl_c_in_code_that_was_given_as_text(workplace):
    """As dataclasses and named tuples are made, of which imports are full: 130 all the same, no death by the signal."""
    script = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy":
            sys.meta_path.remove(self)
            exec("os.kill(os.getpid(), signal.SIGINT)")
sys.meta_path.insert(0, Finder())
from codanet.cli import main
sys.exit(main(["explain", "model.safetensors", "red.png", "-o", "why.png"]))
"""
    (workplace / "stopped.py").write_text(script)
    run = subprocess.run([sys.executable, "-m", "stopped"], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stderr.strip()) == (130, "codanet: stopped")
