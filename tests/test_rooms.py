"""The package as a house: rooms that open on first use."""

from pathlib import Path

import pytest

import codanet
import processes

ROOMS = sorted(path.parent.name for path in Path(codanet.__file__).parent.glob("[!_]*/__init__.py"))


CLOSED = """
import sys
for name in [name for name in sys.modules if name.split(".")[0] == "codanet"]:
    del sys.modules[name]
"""


def fresh(code):
    """In a process of its own, where no room is open yet."""
    done = processes.run(CLOSED + code)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_every_room_is_listed_and_opens_on_first_use():
    assert set(ROOMS) <= set(dir(codanet))
    code = f"import codanet\nfor room in {ROOMS}: print(getattr(codanet, room).__name__)"
    assert fresh(code).split() == [f"codanet.{room}" for room in ROOMS]


def test_a_room_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'atribution'"):
        _ = codanet.atribution
    with pytest.raises(AttributeError, match="no attribute 'trane'"):
        _ = codanet.training.trane


def test_training_names_are_the_functions():
    """Not the modules of the room, in whatever order they are asked for."""
    code = "from codanet.training import Result, train_all, train; print(train.__name__, Result.__name__)"
    assert fresh(code) == "train Result"
    assert {"train", "train_all", "Result", "MODEL"} <= set(dir(codanet.training))


def test_modules_that_are_called_are_their_functions():
    code = """
import codanet
for call in (codanet.export, codanet.export.page):
    try:
        call({}, "why.html")
    except ValueError as error:
        print(error)
"""
    said = fresh(code).splitlines()
    assert [line.partition(":")[0] for line in said] == ["unknown format 'html' for why.html", "no model was given"]
