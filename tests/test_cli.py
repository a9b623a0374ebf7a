"""The command line: what it prints, what it returns, and one sentence for a mistake."""

import pytest

from codanet import list_models
from codanet.cli import COMMANDS, main
from codanet.settings import list_recipes


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


@pytest.mark.parametrize("command", ["train", "bench"])
def test_help_of_commands(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert "usage" in capsys.readouterr().out


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
        (["train"], "recipe"),
        (["models", "--all"], "takes no arguments"),
    ],
)
def test_mistakes(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert words in err
    assert "Traceback" not in err


def test_config_files(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "more.yaml").write_text("about: mine\nepochs: 0\n")
    assert main(["train", "digits", "--config", "more.yaml"]) == 2
    assert "epochs is 0" in capsys.readouterr().err  # the file was read, its remark passed over
    (tmp_path / "more.yaml").write_text("base: digits\n")
    assert main(["train", "digits", "--config", "more.yaml"]) == 2
    assert "which only a recipe can" in capsys.readouterr().err
