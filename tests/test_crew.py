"""Several processes at one evaluation: the same numbers, whoever is killed, and nothing counted twice."""

import argparse
import errno
import json
import os
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import codanet
from codanet._support import crew
from codanet._support.crew import Place, crew_in
from codanet._support.locks import Busy
from codanet.cli import main
from codanet.cli.workers import together
from codanet.evaluation.records import LINES, Records
from codanet.models.network import CoDANet, Layer
from processes import COMMAND, Forked

SETTINGS = {"models": {"m": "1"}, "seed": 0}
METHODS = ["--methods", "contributions,ixg"]
ASKED = ["--data", "digits", *METHODS, "--metrics", "accuracy,removal,completeness", "--images", "64", "--threads", "1"]


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    torch.manual_seed(0)
    model = CoDANet([Layer(10, 4), Layer(10, 2, stride=2)], image_channels=1, image_size=8, temperature=2)
    return codanet.save(model, tmp_path_factory.mktemp("crew") / "model.safetensors")


def numbers(folder: Path) -> list[dict]:
    """The table, without the times."""
    rows = json.loads((folder / "results.json").read_text())["rows"]
    return [{key: value for key, value in row.items() if key != "seconds_per_map"} for row in rows]


def started(weights, folder, rank, size, *more) -> Forked:
    environment = {"RANK": str(rank), "WORLD_SIZE": str(size)}
    return Forked(COMMAND, "evaluate", weights, *ASKED, "-o", folder, *more, env=environment)


@pytest.fixture(scope="module")
def alone(weights, tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    assert main(["evaluate", str(weights), *ASKED, "-o", str(folder)]) == 0
    return numbers(folder)


def test_two_workers_make_the_table_of_one(weights, alone, tmp_path, capsys):
    assert main(["evaluate", str(weights), *ASKED, "-o", str(tmp_path), "--workers", "2"]) == 0
    assert numbers(tmp_path) == alone
    assert "Completeness error" in capsys.readouterr().out
    lines = [line for path in tmp_path.glob("records*.jsonl") for line in path.read_text().splitlines()]
    chunks = [(line["method"], line["metric"], line["start"]) for line in map(json.loads, lines)]
    assert len(chunks) == len(set(chunks))  # nothing was made twice


def test_torchruns_variables_share_the_work_and_the_first_writes_the_table(weights, alone, tmp_path):
    processes = [started(weights, tmp_path, rank, 2) for rank in (1, 0)]
    (_, error), (table, more) = (process.communicate(timeout=120) for process in processes)
    assert [process.returncode for process in processes] == [0, 0], error + more
    assert "Completeness error" in table
    assert numbers(tmp_path) == alone


def test_a_killed_worker_changes_nothing(weights, alone, tmp_path, monkeypatch):
    """It is killed while it holds a chunk, with half a line on disk; the other does its work."""
    first = started(weights, tmp_path, 1, 2)
    own = tmp_path / "records-1.jsonl"
    while not own.exists() or not own.stat().st_size:
        assert first.poll() is None, first.said()
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    with own.open("ab") as file:
        file.write(b'{"model": "mod')
    last = started(weights, tmp_path, 0, 2)
    _, error = last.communicate(timeout=120)
    assert last.returncode == 0, error
    assert numbers(tmp_path) == alone
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["evaluate", str(weights), *ASKED, "-o", str(tmp_path)]) == 0  # takes its own file up again
    assert own.read_bytes().endswith(b"\n")
    assert numbers(tmp_path) == alone


def test_workers_that_disagree_are_told(weights, tmp_path):
    with crew_in(tmp_path, "the test", Place(0, 2)) as one:
        Records(one, SETTINGS)
        assert not list(tmp_path.glob("records*"))  # nothing measured yet, but somebody is at it
        other = started(weights, tmp_path, 1, 2, "--seed", "3")
        _, error = other.communicate(timeout=120)
    assert other.returncode == 2
    assert "holds an evaluation with" in error
    assert json.loads((tmp_path / "evaluation.json").read_text()) == SETTINGS
    with crew_in(tmp_path, "the test", Place(0, 2)) as one:  # nobody else, and nothing on disk: settings may change
        Records(one, {**SETTINGS, "seed": 3})


def test_a_place_is_taken_once(tmp_path):
    with crew_in(tmp_path, "the evaluation", Place(1, 2)):
        with pytest.raises(Busy, match="process 1 of 2"):
            crew_in(tmp_path, "the evaluation", Place(1, 2)).__enter__()
        with crew_in(tmp_path, "the evaluation", Place(0, 2)):
            pass


def test_a_claim_ends_with_its_process(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from codanet._support.crew import Place, crew_in\n"
        "with crew_in(Path(sys.argv[1]), 'it', Place(1, 2)) as crew, crew.claim(('a', 3)) as mine:\n"
        "    print(mine, flush=True); time.sleep(60)"
    )
    other = Forked(code, tmp_path)
    assert other.first_line() == "True\n"
    with crew_in(tmp_path, "it", Place(0, 2)) as here:
        with here.claim(("a", 3)) as mine:
            assert not mine
        with here.claim(("a", 4)) as mine:
            assert mine
        other.send_signal(signal.SIGKILL)
        other.communicate()
        with here.claim(("a", 3)) as mine:
            assert mine


def test_parts_are_shared_out_by_rank(tmp_path):
    orders = []
    for rank in range(3):
        with crew_in(tmp_path, "it", Place(rank, 3)) as here:
            orders.append(here.in_order(range(7)))
    assert orders == [[0, 3, 6, 1, 4, 2, 5], [1, 4, 2, 5, 0, 3, 6], [2, 5, 0, 3, 6, 1, 4]]


def test_a_full_folder_loses_nothing(tmp_path, monkeypatch):
    scores = codanet.metrics.Scores("accuracy", torch.ones(2).double(), ("", ""))
    record = codanet.evaluation.records.Record("m", "", 0, scores)
    with crew_in(tmp_path, "it", Place()) as here:
        records = Records(here, SETTINGS)
        records.add([record])
        before = (tmp_path / LINES).read_bytes()

        def full(descriptor):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(ValueError, match="No space left on device.*run the same command again"):
            records.add([codanet.evaluation.records.Record("m", "", 2, scores)])
        monkeypatch.undo()
        assert (tmp_path / LINES).read_bytes() == before
        records.add([codanet.evaluation.records.Record("m", "", 2, scores)])
        assert len(Records(here, SETTINGS).scores(("m", "", "accuracy"))) == 4


@pytest.mark.parametrize(("rank", "size"), [("2", "2"), ("-1", "2"), ("one", "2"), ("0", "99999")])
def test_nonsense_in_the_environment_is_told(rank, size, monkeypatch):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", size)
    with pytest.raises(ValueError, match="which of how many"):
        crew.place()


def test_slurms_variables(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_PROCID", "3")
    monkeypatch.setenv("SLURM_NTASKS", "8")
    assert crew.place() == Place(3, 8)


def test_what_follows_two_dashes_stays_behind_the_options_of_a_worker(monkeypatch):
    started = []

    @contextmanager
    def workers(number, arguments):
        started.append(list(arguments))
        yield Place(0, number)

    monkeypatch.setattr("codanet.cli.workers.workers", workers)
    for words in (["explain", "m", "a.png"], ["explain", "m", "--", "-a.png"]):
        with together(argparse.Namespace(workers=2, threads=1), words):
            pass
    assert started[0] == ["explain", "m", "a.png", "--workers", "1", "--threads", "1"]
    assert started[1] == ["explain", "m", "--workers", "1", "--threads", "1", "--", "-a.png"]
