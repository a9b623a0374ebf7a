"""The measurements: every chunk of samples goes to disk as it is made, and what is there is not made again."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .._support.messages import duration
from .._support.progress import note, progress_bar
from ..attribution.task import space_of
from ..data import ImageData
from ..data.pictures import Pictures
from ..data.tiling import Grids, make_grids, possible_grids
from ..metrics import (
    METRICS,
    Attribute,
    Scores,
    box_share,
    completeness,
    confident_images,
    deletion,
    insertion,
    localisation,
    predict,
    removal,
    sanity,
    usual_number,
)
from ..metrics.maps import maps_of
from ..models.classifier import network_input
from ..models.network import CoDANet
from .methods import Registered, Timed, fits
from .records import Key, Record, Records
from .results import method_title
from .sanity_maps import keep_sanity_maps

ON_IMAGES = ("removal-least", "removal-most", "insertion", "deletion", "box", "completeness")
PREDICTIONS, IMAGES, GRIDS = 1000, 16, 4  # per chunk, that is per line on disk


@dataclass(frozen=True)
class Plan:
    """What to measure. Numbers that are None are the paper's, or as many as there are."""

    methods: Mapping[str, Attribute]
    metrics: tuple[str, ...]
    train: bool  # the training part of the data
    grids: int | None
    grid_size: int | None
    images: int | None
    points: int
    seed: int


class Measurement:
    """Of every method of a plan on every model, into the records."""

    def __init__(
        self,
        plan: Plan,
        data: ImageData,
        models: Mapping[str, nn.Module],
        pictures: Mapping[str, Pictures],
        samples: list[int],
        records: Records,
        quiet: bool,
    ):
        self.plan, self.data, self.models, self.pictures = plan, data, models, pictures
        self.samples, self.records, self.quiet = samples, records, quiet
        self.remarks: list[str] = []

    def remark(self, words: str) -> None:
        """What the reader of the table must know."""
        if words not in self.remarks:
            self.remarks.append(words)
            if not self.quiet:
                note(words)

    def make(self) -> list[Key]:
        """Cheap things that may show a mistake first: predictions of all models, then their grids, then maps."""
        metrics, keys = self.plan.metrics, []
        if "accuracy" in metrics or "localisation" in metrics:
            keys += [self._predictions(label) for label in self.models]
        grids = {label: self._grids(label) for label in self.models} if "localisation" in metrics else {}
        on_images = [metric for metric in metrics if metric in ON_IMAGES]
        for label, model in self.models.items():
            for name, method in self.plan.methods.items():
                if not any(METRICS[metric].needs_maps for metric in metrics):
                    continue
                if why := fits(name, method, model):
                    self.remark(f"{method_title(name)} cannot be used on {label}: {why}.")
                    continue
                if on_images:
                    keys += self._on_images(label, name, method, on_images)
                if (made := grids.get(label)) is not None:
                    keys.append(self._localisation(label, name, method, made))
                if "sanity" in metrics:
                    keys.append(self._sanity(label, name, method))
        if not keys:
            raise ValueError("nothing is left to measure: " + " ".join(self.remarks))
        return keys

    def _chunks(self, title: str, total: int, size: int, done: Callable[[int], bool]) -> Iterator[tuple[int, int]]:
        """(start, stop) of what is not on disk yet, with a bar on a terminal and a line when all are."""
        started, missing = time.monotonic(), 0
        with progress_bar(title, total, shown=not self.quiet, unit="samples") as advance:
            for start in range(0, total, size):
                stop = min(start + size, total)
                if not done(start):
                    missing += stop - start
                    yield start, stop
                advance(stop - start)
        if missing and not self.quiet:
            note(f"{title}: {missing} of {total} in {duration(time.monotonic() - started)}")

    def _predictions(self, label: str) -> Key:
        key, pictures = (label, "", "accuracy"), self.pictures[label]
        todo = self._chunks(f"{label}, predictions", len(pictures), PREDICTIONS, lambda s: self.records.has(key, s))
        for start, stop in todo:
            began = time.perf_counter()
            scores = predict(self.models[label], pictures, start, stop).scores()
            self.records.add([Record(label, "", start, scores, elapsed=time.perf_counter() - began)])
        unreadable = len(pictures) - len(self.records.scores(key))
        if unreadable == len(pictures):
            raise ValueError(f"none of the {unreadable} images can be read: check the data")
        if unreadable:
            self.remark(f"{unreadable} of {len(pictures)} images cannot be read and are left out.")
        return key

    def _grids(self, label: str) -> Grids | None:
        """As many as asked for; otherwise the paper's number, or as many as this model's confident images fill."""
        confident = confident_images(self.records.scores((label, "", "accuracy")))
        size = self.plan.grid_size or (3 if len(self.data.classes) >= 9 else 2)
        if self.plan.grids is not None:
            return make_grids(confident, self.plan.grids, size, seed=self.plan.seed)
        wanted = usual_number("localisation", self.data.name) or 0
        possible = possible_grids([len(images) for images in confident.values()], size * size)
        if possible < wanted:
            self.remark(
                f"{label} classifies {sum(map(len, confident.values()))} images of {len(confident)} classes "
                f"confidently, enough for {possible} grids of {size}x{size} instead of {wanted}."
            )
        if not possible:
            self.remark(f"Localisation is left out for {label}.")
            return None
        return make_grids(confident, min(possible, wanted), size, seed=self.plan.seed)

    def _localisation(self, label: str, name: str, method: Attribute, grids: Grids) -> Key:
        key = (label, name, "localisation")
        title = f"{label}, {method_title(name)}, grids"
        for start, stop in self._chunks(title, len(grids), GRIDS, lambda s: self.records.has(key, s)):
            began, timed = time.perf_counter(), Timed(method)
            scores = localisation(self.models[label], self.pictures[label], grids.part(start, stop), timed)
            elapsed = time.perf_counter() - began
            self.records.add([Record(label, name, start, scores, timed.seconds, timed.maps, elapsed)])
        return key

    def _on_images(self, label: str, name: str, method: Attribute, metrics: list[str]) -> list[Key]:
        """All metrics of a chunk share its maps."""
        keys = [(label, name, metric) for metric in metrics]
        title = f"{label}, {method_title(name)}, images"

        def done(start: int) -> bool:
            return all(self.records.has(key, start) for key in keys)

        for start, stop in self._chunks(title, len(self.samples), IMAGES, done):
            indices = self.samples[start:stop]
            images, labels, _ = self.pictures[label].read(indices)
            timed, found = Timed(method), list[Record]()
            maps = maps_of(timed, self.models[label], images, labels)
            for key in keys:
                if not self.records.has(key, start):
                    began = time.perf_counter()
                    scores = self._score(key[2], label, method, images, labels, maps, indices)
                    elapsed = time.perf_counter() - began + (0 if found else timed.seconds)
                    found.append(Record(label, name, start, scores, timed.seconds, timed.maps, elapsed))
            self.records.add(found)
        return keys

    def _score(
        self,
        metric: str,
        label: str,
        method: Attribute,
        images: Tensor,
        labels: Tensor,
        maps: Tensor,
        indices: list[int],
    ) -> Scores:
        model, seed, points = self.models[label], self.plan.seed, self.plan.points
        if metric == "removal-least":
            return removal(model, images, labels, maps, first="least", points=points, seed=seed)
        if metric == "removal-most":
            return removal(model, images, labels, maps, first="most", points=points, seed=seed)
        if metric == "insertion":
            return insertion(model, images, labels, maps, seed=seed)
        if metric == "deletion":
            return deletion(model, images, labels, maps, seed=seed)
        if metric == "box":
            return box_share(model, images, labels, maps, self.pictures[label].boxes(indices))
        black = isinstance(model, CoDANet) and isinstance(method, Registered) and space_of(method.settings) == "image"
        empty = network_input(model, torch.zeros_like(images[:1])) if black else None
        return completeness(model, images, labels, maps, empty=empty)

    def _sanity(self, label: str, name: str, method: Attribute) -> Key:
        key, few = (label, name, "sanity"), self.samples[: METRICS["sanity"].n]
        title = f"{label}, {method_title(name)}, sanity check"
        for start, stop in self._chunks(title, len(few), len(few), lambda s: self.records.has(key, s)):
            images, labels, _ = self.pictures[label].read(few[start:stop])
            began, timed = time.perf_counter(), Timed(method)
            check = sanity(self.models[label], images, labels, timed, seed=self.plan.seed)
            keep_sanity_maps(self.records.folder, label, name, images, check)
            elapsed = time.perf_counter() - began
            self.records.add([Record(label, name, start, check.scores, timed.seconds, timed.maps, elapsed)])
        return key
