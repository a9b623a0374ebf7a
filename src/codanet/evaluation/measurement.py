"""The measurements: every chunk of samples goes to disk as it is made, and what is there is not made again."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor, nn

from .._support.messages import duration
from .._support.progress import note, progress_bar
from ..attribution import Registered, method_title
from ..attribution.task import space_of
from ..data import ImageData
from ..data.pictures import Pictures
from ..data.tiling import Grids, make_grids, possible_grids
from ..metrics import METRICS, Attribute, Metric, Sample, confident_images
from ..metrics.maps import maps_of
from ..metrics.metric import Need
from ..metrics.predictions import ACCURACY
from ..models.classifier import baseline, network_input
from ..models.hybrid import HybridNet
from ..models.network import CoDANet
from .methods import Timed, fits
from .records import Key, Record, Records
from .sanity_maps import keep_sanity_maps

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
        metrics = [METRICS[name] for name in self.plan.metrics]
        wanted = {need: [metric for metric in metrics if metric.needs == need] for need in get_args(Need)}
        predictions = {metric.name: metric for metric in wanted["predictions"]}
        if wanted["grids"]:  # which are made of the images that the model is sure of
            predictions = {ACCURACY.name: ACCURACY, **predictions}
        keys = [self._predictions(label, metric) for metric in predictions.values() for label in self.models]
        grids = {label: self._grids(label, wanted["grids"][0]) for label in self.models} if wanted["grids"] else {}
        for label, model in self.models.items():
            for name, method in self.plan.methods.items() if any(metric.needs_maps for metric in metrics) else ():
                if why := fits(method, model):
                    self.remark(f"{method_title(name)} cannot be used on {label}: {why}.")
                    continue
                if on_maps := wanted["maps"] + wanted["boxes"]:
                    keys += self._on_maps(label, name, method, on_maps)
                if (made := grids.get(label)) is not None:
                    keys += [self._on_grids(label, name, method, metric, made) for metric in wanted["grids"]]
                keys += [self._on_method(label, name, method, metric) for metric in wanted["method"]]
        if not keys:
            raise ValueError("nothing is left to measure: " + " ".join(self.remarks))
        return keys

    def _sample(self, label: str, **given: Any) -> Sample:
        return Sample(self.models[label], self.pictures[label], points=self.plan.points, seed=self.plan.seed, **given)

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

    def _predictions(self, label: str, metric: Metric) -> Key:
        key, pictures = (label, "", metric.name), self.pictures[label]
        title = f"{label}, {'predictions' if metric is ACCURACY else metric.title.lower()}"
        for start, stop in self._chunks(title, len(pictures), PREDICTIONS, lambda s: self.records.has(key, s)):
            began = time.perf_counter()
            scores = metric.run(self._sample(label, indices=range(start, stop)))
            self.records.add([Record(label, "", start, scores, elapsed=time.perf_counter() - began)])
        unreadable = len(pictures) - len(self.records.scores(key))
        if unreadable == len(pictures):
            raise ValueError(f"none of the {unreadable} images can be read: check the data")
        if unreadable:
            self.remark(f"{unreadable} of {len(pictures)} images cannot be read and are left out.")
        return key

    def _grids(self, label: str, metric: Metric) -> Grids | None:
        """As many as asked for; otherwise the paper's number, or as many as this model's confident images fill."""
        confident = confident_images(self.records.scores((label, "", ACCURACY.name)))
        size = self.plan.grid_size or (3 if len(self.data.classes) >= 9 else 2)
        if self.plan.grids is not None:
            return make_grids(confident, self.plan.grids, size, seed=self.plan.seed)
        wanted = metric.usual_number(self.data.name) or 0
        possible = possible_grids([len(images) for images in confident.values()], size * size)
        if possible < wanted:
            self.remark(
                f"{label} classifies {sum(map(len, confident.values()))} images of {len(confident)} classes "
                f"confidently, enough for {possible} grids of {size}x{size} instead of {wanted}."
            )
        if not possible:
            self.remark(f"{metric.title} is left out for {label}.")
            return None
        return make_grids(confident, min(possible, wanted), size, seed=self.plan.seed)

    def _on_grids(self, label: str, name: str, method: Attribute, metric: Metric, grids: Grids) -> Key:
        key = (label, name, metric.name)
        title = f"{label}, {method_title(name)}, grids"
        for start, stop in self._chunks(title, len(grids), GRIDS, lambda s: self.records.has(key, s)):
            began, timed = time.perf_counter(), Timed(method)
            scores = metric.run(self._sample(label, grids=grids.part(start, stop), attribute=timed))
            elapsed = time.perf_counter() - began
            self.records.add([Record(label, name, start, scores, timed.seconds, timed.maps, elapsed)])
        return key

    def _on_maps(self, label: str, name: str, method: Attribute, metrics: list[Metric]) -> list[Key]:
        """All metrics of a chunk share its maps."""
        keys = [(label, name, metric.name) for metric in metrics]
        title = f"{label}, {method_title(name)}, images"

        def done(start: int) -> bool:
            return all(self.records.has(key, start) for key in keys)

        for start, stop in self._chunks(title, len(self.samples), IMAGES, done):
            indices = self.samples[start:stop]
            images, labels, _ = self.pictures[label].read(indices)
            timed, found = Timed(method), list[Record]()
            maps = maps_of(timed, self.models[label], images, labels)
            sample = self._sample(
                label,
                indices=indices,
                images=images,
                labels=labels,
                maps=maps,
                attribute=method,
                empty=self._empty(label, method, images),
            )
            for key, metric in zip(keys, metrics, strict=True):
                if not self.records.has(key, start):
                    began = time.perf_counter()
                    scores = metric.run(sample)
                    elapsed = time.perf_counter() - began + (0 if found else timed.seconds)
                    found.append(Record(label, name, start, scores, timed.seconds, timed.maps, elapsed))
            self.records.add(found)
        return keys

    def _empty(self, label: str, method: Attribute, images: Tensor) -> Tensor | None:
        """Of a method that works on the image itself: a black one, encoded; None for a removed pixel everywhere."""
        model = self.models[label]
        if (
            isinstance(model, CoDANet)
            and isinstance(method, Registered)
            and space_of(method.settings, model) == "image"
        ):
            if isinstance(model, HybridNet):
                return baseline(model, images[:1])
            return network_input(model, torch.zeros_like(images[:1]))
        return None

    def _on_method(self, label: str, name: str, method: Attribute, metric: Metric) -> Key:
        key, few = (label, name, metric.name), self.samples[: metric.n]
        title = f"{label}, {method_title(name)}, {metric.title.lower()}"
        for start, stop in self._chunks(title, len(few), len(few), lambda s: self.records.has(key, s)):
            images, labels, _ = self.pictures[label].read(few[start:stop])
            began, timed = time.perf_counter(), Timed(method)
            keep = partial(keep_sanity_maps, self.records.folder, label, name, images)
            scores = metric.run(
                self._sample(label, indices=few[start:stop], images=images, labels=labels, attribute=timed, keep=keep)
            )
            elapsed = time.perf_counter() - began
            self.records.add([Record(label, name, start, scores, timed.seconds, timed.maps, elapsed)])
        return key
