"""What has been measured, on disk as soon as it is: one line of JSON per chunk of samples.

Every process writes a file of its own, records.jsonl the first, records-1.jsonl the second, and reads those of all. A
line is there whole or not at all: what a killed process left of its last one counts for nothing, and is cut off when
the file is taken up again.
"""

import json
import math
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._support.crew import Crew
from .._support.limits import parse_json
from .._support.messages import reason
from .._support.settled import settle
from ..metrics import Scores

SETTINGS = "evaluation.json"  # what was asked for
LINES, RESULTS = "records.jsonl", "results.json"  # as the work goes on, and in the end

Key = tuple[str, str, str]  # model, method, metric


@dataclass(frozen=True)
class Record:
    """Samples start, start + 1, … of a metric; how long their maps took, and all of the work."""

    model: str
    method: str
    start: int
    scores: Scores
    seconds: float = 0.0
    maps: int = 0
    elapsed: float = 0.0

    @property
    def key(self) -> Key:
        return self.model, self.method, self.scores.metric


class Records:
    """The measurements in a folder, all made with the same settings."""

    def __init__(self, crew: Crew, settings: dict[str, Any]):
        self.folder, self.found = crew.folder, dict[Key, dict[int, Record]]()
        self._own = self.folder / (LINES if crew.rank == 0 else LINES.replace(".", f"-{crew.rank}."))
        self._read: dict[Path, int] = {}  # how much of each file
        try:
            with crew.settling() as only:
                done = next((path.name for path in self._files()), "")
                settle(self.folder, SETTINGS, settings, "an evaluation", done=done, others=not only, joined="models")
                self.refresh()
                if self._own.is_file():
                    os.truncate(self._own, self._read[self._own])
        except OSError as error:
            raise ValueError(f"{self.folder} cannot be used ({reason(error)}): choose another --output") from None

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob(LINES.replace(".", "*.")))

    def refresh(self) -> None:
        """Take in what other processes have written since."""
        for path in self._files():
            before = self._read.get(path, 0)
            with path.open("rb") as file:
                file.seek(before)
                content = file.read()
            whole = content.rfind(b"\n") + 1
            for number, line in enumerate(content[:whole].splitlines(), 1):
                try:
                    self._keep(_decoded(parse_json(line)))
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    after = f" after byte {before}" if before else ""
                    raise ValueError(
                        f"line {number}{after} of {path} is damaged ({type(error).__name__}): choose another --output"
                    ) from None
            self._read[path] = before + whole

    def _keep(self, record: Record) -> None:
        self.found.setdefault(record.key, {}).setdefault(record.start, record)

    def has(self, key: Key, start: int) -> bool:
        return start in self.found.get(key, {})

    def add(self, records: Iterable[Record]) -> None:
        """On disk, then here; as it is read back, so that a resumed run has the same numbers."""
        lines = [json.dumps(_encoded(record), allow_nan=False) for record in records]
        if not lines:
            return
        before = self._read.get(self._own, 0)
        try:
            with self._own.open("ab") as file:
                file.write("".join(line + "\n" for line in lines).encode())
                file.flush()
                os.fsync(file.fileno())
                self._read[self._own] = file.tell()
        except OSError as error:
            with suppress(OSError):
                os.truncate(self._own, before)
            raise ValueError(
                f"{self.folder} cannot be written to ({reason(error)}): make room and run the same command again, "
                "which goes on where it stopped"
            ) from None
        for line in lines:
            self._keep(_decoded(json.loads(line)))

    def scores(self, key: Key) -> Scores:
        records = self.found[key]
        return Scores.join([records[start].scores for start in sorted(records)])

    def hours(self, keys: Iterable[Key]) -> float:
        """Of all the work, over all the times that the run was taken up."""
        return sum(record.elapsed for key in keys for record in self.found[key].values()) / 3600

    def seconds_per_map(self, key: Key) -> float:
        """NaN for what needs no maps."""
        records = self.found[key].values()
        maps = sum(record.maps for record in records)
        return sum(record.seconds for record in records) / maps if maps else math.nan


def _encoded(record: Record) -> dict[str, Any]:
    scores = record.scores
    return {
        "model": record.model,
        "method": record.method,
        "metric": scores.metric,
        "start": record.start,
        "values": _numbers(scores.values),
        "notes": {str(place): note for place, note in enumerate(scores.notes) if note},
        "unit": scores.unit,
        "points": None if scores.points is None else _numbers(scores.points),
        "extras": {name: _numbers(values) for name, values in scores.extras.items()},
        "seconds": round(record.seconds, 6),
        "maps": record.maps,
        "elapsed": round(record.elapsed, 6),
    }


def _decoded(line: dict[str, Any]) -> Record:
    values = _tensor(line["values"]).double()
    scores = Scores(
        line["metric"],
        values,
        tuple(line["notes"].get(str(place), "") for place in range(len(values))),
        {name: _tensor(numbers) for name, numbers in line["extras"].items()},
        None if line["points"] is None else _tensor(line["points"]).double(),
        line["unit"],
    )
    times = line["seconds"], line["maps"], line["elapsed"]
    return Record(line["model"], line["method"], line["start"], scores, *times)


def _numbers(values: Tensor) -> Any:
    """Nested lists, to the last bit; JSON has no NaN, so it becomes null."""

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(each) for each in value]
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        return value

    return plain(values.tolist())


def _tensor(numbers: Any) -> Tensor:
    def floats(value: Any) -> Any:
        return [floats(each) for each in value] if isinstance(value, list) else math.nan if value is None else value

    return torch.from_numpy(np.array(floats(numbers)))  # float64, or int64 of whole numbers
