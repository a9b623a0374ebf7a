"""The methods of an evaluation: registered ones by name, with settings changed, or functions of one's own."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from ..attribution import METHODS, MethodSettings, attribute, list_methods, settings_of
from ..metrics import Attribute

Methods = Mapping[str, Attribute] | Sequence[str]


def choose_methods(given: Methods, seed: int) -> dict[str, Attribute]:
    """Functions by name. 'rise:masks=2000:cells=4' is RISE with settings of one's own."""
    chosen: dict[str, Attribute] = {}
    for name in given:
        chosen[name] = given[name] if isinstance(given, Mapping) else Registered(method_settings(name), seed)
    if not chosen:
        raise ValueError(f"no method was named: choose some of {', '.join(METHODS)}")
    return chosen


def method_settings(name: str) -> MethodSettings:
    """What a name of an evaluation stands for; a ValueError if it stands for nothing."""
    plain, *changes = name.split(":")
    values: dict[str, Any] = {}
    for change in changes:
        key, sign, value = change.partition("=")
        if not sign:
            raise ValueError(f"{change!r} in {name!r} is no setting: write it as {plain}:name=value")
        try:
            values[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ValueError(f"{change!r} in {name!r} is no setting: {value!r} is no value") from None
    try:
        return settings_of(plain, values)
    except TypeError as error:
        raise ValueError(f"{name!r} is no method: {error}") from None


class Registered:
    """A registered method as a function; maps that are not finite come out as NaN, to be counted one by one."""

    several_targets = True

    def __init__(self, settings: MethodSettings, seed: int):
        self.settings, self.seed = settings, seed

    def __call__(self, model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
        try:
            return attribute(model, images, targets, self.settings, seed=self.seed)
        except ValueError as error:
            if "not finite" not in str(error):
                raise
        if targets.numel() == 1:
            return images.new_full((*targets.shape, *images.shape[2:]), torch.nan)
        if len(images) > 1:
            return torch.cat([self(model, images[i : i + 1], targets[i : i + 1]) for i in range(len(images))])
        return torch.cat([self(model, images, target) for target in targets.split(1, 1)], 1)


def fits(name: str, method: Attribute, model: nn.Module) -> str:
    """Why a method cannot work on a model, as far as its modules tell; "" if it can."""
    if not isinstance(method, Registered):
        return ""
    plain = name.partition(":")[0]
    if plain not in list_methods(model):
        return "it is no CoDA-Net" if METHODS[plain].needs == "coda" else "it has no layer that makes a map"
    return ""


class Timed:
    """A method on the clock."""

    def __init__(self, method: Attribute):
        self.method, self.seconds, self.maps = method, 0.0, 0
        self.several_targets = getattr(method, "several_targets", False)

    def __call__(self, model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
        started = time.perf_counter()
        maps = self.method(model, images, targets)
        self.seconds += time.perf_counter() - started
        self.maps += targets.numel()
        return maps
