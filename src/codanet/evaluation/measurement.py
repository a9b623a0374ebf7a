"""The measurements: every chunk of samples goes to disk as it is made, and what is there is not made again.

Chunks are independent, so that several processes share them out (`_support.crew`): each sees what the others have put
on disk, and does what nobody else is working on.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor, nn

from .._support.crew import WAIT_SECONDS, Crew
from .._support.messages import duration
from .._support.progress import note, progress_bar
from ..attribution import Registered, method_title
from ..attribution.plain import Contributions
from ..attribution.task import space_of
from ..data import ImageData
from ..data.pictures import Pictures
from ..data.tiling import Grids, make_grids, possible_grids
from ..metrics import Attribute, DoesNotFit, Metric, Sample, confident_images, find_metric
from ..metrics.maps import maps_of
from ..metrics.metric import Need
from ..metrics.predictions import ACCURACY
from ..metrics.scores import Scores
from ..models.classifier import baseline, network_input
from ..models.hybrid import HybridNet
from ..models.network import bare
from ..models.self_explaining import SelfExplaining, encodes
from .methods import Timed, fits, says_all
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


@dataclass(frozen=True)
class Stage:
    """Samples of some measurements that are made together, a chunk at a time."""

    title: str
    keys: tuple[Key, ...]
    total: int
    size: int  # samples in a chunk
    run: Callable[[int, int], list[Record]]  # measures samples start to stop


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
        crew: Crew,
        quiet: bool,
    ):
        self.plan, self.data, self.models, self.pictures = plan, data, models, pictures
        self.samples, self.records, self.crew, self.quiet = samples, records, crew, quiet
        self.remarks: list[str] = []
        self.refused: set[Key] = set()  # what cannot be measured

    def remark(self, words: str) -> None:
        """What the reader of the table must know."""
        if words not in self.remarks:
            self.remarks.append(words)
            if not self.quiet:
                note(words)

    def make(self) -> list[Key]:
        """Cheap things that may show a mistake first: predictions of all models, then their grids, then maps."""
        metrics, before = [find_metric(name) for name in self.plan.metrics], set(self.records.found)
        wanted = {need: [metric for metric in metrics if metric.needs == need] for need in get_args(Need)}
        predictions = {metric.name: metric for metric in wanted["predictions"]}
        if wanted["grids"]:  # which are made of the images that the model is sure of
            predictions = {ACCURACY.name: ACCURACY, **predictions}
        stages = [self._predictions(label, metric) for metric in predictions.values() for label in self.models]
        for stage in stages:
            self._do(stage, wait=True)
            self._check_readable(stage)
        grids = {
            (label, metric.name): self._grids(label, metric) for label in self.models for metric in wanted["grids"]
        }
        for label, model in self.models.items():
            for name, method in self.plan.methods.items() if any(metric.needs_maps for metric in metrics) else ():
                if why := fits(method, model):
                    self.remark(f"{method_title(name)} cannot be used on {label}: {why}.")
                    continue
                if on_maps := wanted["maps"] + wanted["boxes"]:
                    stages.append(self._on_maps(label, name, method, on_maps))
                stages += [
                    self._on_grids(label, name, method, metric, own)
                    for metric in wanted["grids"]
                    if (own := grids[label, metric.name]) is not None
                ]
                stages += [self._on_method(label, name, method, metric) for metric in wanted["method"]]
        for name, method in self.plan.methods.items():
            measured = {key for stage in stages for key in stage.keys if key[1] == name}
            if measured & before and not says_all(name, method, self.plan.seed):
                self.remark(
                    f"{name} is known by its name alone: what was measured under it before stands, so choose another "
                    "folder if it has changed since."
                )
        for wait in (False, True):  # first all that nobody is at, then what others have left
            for stage in stages:
                self._do(stage, wait=wait)
        keys = [key for stage in stages for key in stage.keys if key not in self.refused]
        if not keys:
            raise ValueError("nothing is left to measure: " + " ".join(self.remarks))
        return keys

    def _done(self, stage: Stage, start: int) -> bool:
        return all(key in self.refused or self.records.has(key, start) for key in stage.keys)

    def _do(self, stage: Stage, *, wait: bool) -> None:
        """What is not on disk yet, with a bar over all processes on a terminal and a line when all is there.

        Chunks that another process is at are left to it; with `wait`, until they are on disk, or it is gone.
        """
        starts, made, began = range(0, stage.total, stage.size), 0, time.monotonic()
        left = self.crew.in_order([start for start in starts if not self._done(stage, start)])
        shown = bool(left) and not self.quiet
        with progress_bar(stage.title, stage.total, shown=shown, unit="samples") as advance:
            counted = 0

            def count() -> None:
                """Whatever is on disk, by this process or another."""
                nonlocal counted
                there = sum(min(stage.size, stage.total - start) for start in starts if self._done(stage, start))
                advance(there - counted)
                counted = there

            count()
            while left:
                busy = []
                for start in left:
                    stop = min(start + stage.size, stage.total)
                    with self.crew.claim((stage.keys, start)) as mine:
                        self.records.refresh()
                        if mine and not self._done(stage, start):
                            self.records.add(stage.run(start, stop))
                            made += stop - start
                        if not mine and not self._done(stage, start):
                            busy.append(start)
                    if shown:
                        count()
                if busy and not wait:
                    break
                if len(busy) == len(left):
                    time.sleep(WAIT_SECONDS)
                left = busy
        if made and not self.quiet:
            note(f"{stage.title}: {made} of {stage.total} in {duration(time.monotonic() - began)}")

    def _measured(self, key: Key, metric: Metric, sample: Sample) -> list[Scores]:
        """The scores; none if the metric cannot be measured, which is said once."""
        if key in self.refused:
            return []
        try:
            return [replace(metric.run(sample), metric=metric.name)]  # whatever a metric of one's own calls itself
        except DoesNotFit as error:
            self.refused.add(key)
            self.remark(f"{metric.title} of {method_title(key[1])} is left out for {key[0]}: {error}.")
            return []

    def _sample(self, label: str, **given: Any) -> Sample:
        return Sample(self.models[label], self.pictures[label], points=self.plan.points, seed=self.plan.seed, **given)

    def _predictions(self, label: str, metric: Metric) -> Stage:
        title = f"{label}, {'predictions' if metric is ACCURACY else metric.title.lower()}"

        def run(start: int, stop: int) -> list[Record]:
            began = time.perf_counter()
            scores = replace(metric.run(self._sample(label, indices=range(start, stop))), metric=metric.name)
            return [Record(label, "", start, scores, elapsed=time.perf_counter() - began)]

        return Stage(title, ((label, "", metric.name),), len(self.pictures[label]), PREDICTIONS, run)

    def _check_readable(self, stage: Stage) -> None:
        unreadable = stage.total - len(self.records.scores(stage.keys[0]))
        if unreadable == stage.total:
            raise ValueError(f"none of the {unreadable} images can be read: check the data")
        if unreadable:
            self.remark(f"{unreadable} of {stage.total} images cannot be read and are left out.")

    def _grids(self, label: str, metric: Metric) -> Grids | None:
        """As many as asked for; otherwise the paper's number, or as many as this model's confident images fill."""
        confident = confident_images(self.records.scores((label, "", ACCURACY.name)))
        size = self.plan.grid_size or (3 if len(self.data.classes) >= 9 else 2)
        if self.plan.grids is not None:
            return make_grids(confident, self.plan.grids, size, seed=self.plan.seed)
        possible = possible_grids([len(images) for images in confident.values()], size * size)
        usual = metric.usual_number(self.data.name)
        wanted = possible if usual is None else usual
        if possible < wanted:
            self.remark(
                f"{label} classifies {sum(map(len, confident.values()))} images of {len(confident)} classes "
                f"confidently, enough for {possible} grids of {size}x{size} instead of {wanted}."
            )
        if not possible:
            self.remark(f"{metric.title} is left out for {label}.")
            return None
        return make_grids(confident, min(possible, wanted), size, seed=self.plan.seed)

    def _on_grids(self, label: str, name: str, method: Attribute, metric: Metric, grids: Grids) -> Stage:
        key = (label, name, metric.name)

        def run(start: int, stop: int) -> list[Record]:
            began, timed = time.perf_counter(), Timed(method)
            sample = self._sample(label, grids=grids.part(start, stop), attribute=timed)
            return [
                Record(label, name, start, scores, timed.seconds, timed.maps, time.perf_counter() - began)
                for scores in self._measured(key, metric, sample)
            ]

        return Stage(f"{label}, {method_title(name)}, {metric.title.lower()}", (key,), len(grids), GRIDS, run)

    def _on_maps(self, label: str, name: str, method: Attribute, metrics: list[Metric]) -> Stage:
        """All metrics of a chunk share its maps."""
        keys = tuple((label, name, metric.name) for metric in metrics)

        def run(start: int, stop: int) -> list[Record]:
            indices = self.samples[start:stop]
            images, labels, _ = self.pictures[label].read(indices)
            timed, found = Timed(method), list[Record]()
            try:
                maps = maps_of(timed, self.models[label], images, labels)
            except DoesNotFit as error:
                self.refused |= set(keys)
                self.remark(f"{method_title(name)} cannot be used on {label}: {error}.")
                return []
            sample = self._sample(
                label,
                indices=indices,
                images=images,
                labels=labels,
                maps=maps,
                attribute=method,
                empty=self._empty(label, method, images),
                bias=self._bias(label, method),
            )
            for key, metric in zip(keys, metrics, strict=True):
                if not self.records.has(key, start):
                    began = time.perf_counter()
                    for scores in self._measured(key, metric, sample):
                        elapsed = time.perf_counter() - began + (0 if found else timed.seconds)
                        found.append(Record(label, name, start, scores, timed.seconds, timed.maps, elapsed))
            return found

        return Stage(f"{label}, {method_title(name)}, images", keys, len(self.samples), IMAGES, run)

    def _empty(self, label: str, method: Attribute, images: Tensor) -> Tensor | None:
        """Of a method that works on the image itself: a black one, encoded; None for a removed pixel everywhere."""
        model = self.models[label]
        on_image = isinstance(method, Registered) and space_of(method.settings, model) == "image"
        if on_image and isinstance(model, HybridNet):
            return baseline(model, images[:1])
        if on_image and encodes(model):
            return network_input(model, torch.zeros_like(images[:1]))
        return None

    def _bias(self, label: str, method: Attribute) -> float | None:
        model = bare(self.models[label])
        own = isinstance(method, Registered) and isinstance(method.settings, Contributions)
        return model.logit_bias if own and isinstance(model, SelfExplaining) else None

    def _on_method(self, label: str, name: str, method: Attribute, metric: Metric) -> Stage:
        key, few = (label, name, metric.name), self.samples[: metric.n]

        def run(start: int, stop: int) -> list[Record]:
            images, labels, _ = self.pictures[label].read(few[start:stop])
            began, timed = time.perf_counter(), Timed(method)
            keep = partial(keep_sanity_maps, self.records.folder, label, name, images)
            sample = self._sample(
                label, indices=few[start:stop], images=images, labels=labels, attribute=timed, keep=keep
            )
            return [
                Record(label, name, start, scores, timed.seconds, timed.maps, time.perf_counter() - began)
                for scores in self._measured(key, metric, sample)
            ]

        return Stage(f"{label}, {method_title(name)}, {metric.title.lower()}", (key,), len(few), len(few), run)
