"""The methods of an evaluation: registered ones by name, with settings changed, or functions of one's own."""

import time
from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from ..attribution import METHODS, MethodSpec, Registered
from ..metrics import Attribute

Methods = Mapping[str, Attribute] | Sequence[str]


def choose_methods(given: Methods, seed: int) -> dict[str, Attribute]:
    """Functions by name. 'rise:masks=2000:cells=4' is RISE with settings of one's own."""
    chosen: dict[str, Attribute] = {}
    for name in given:
        chosen[name] = given[name] if isinstance(given, Mapping) else Registered(MethodSpec.parse(name).settings, seed)
    if not chosen:
        raise ValueError(f"no method was named: choose some of {', '.join(METHODS)}")
    return chosen


def fits(method: Attribute, model: nn.Module) -> str:
    """Why a method cannot work on a model, as far as its modules tell; "" if it can."""
    return method.settings.lacks(model) if isinstance(method, Registered) else ""


def says_all(name: str, method: Attribute, seed: int) -> bool:
    """Whether the name of a method stands for its settings; that of one's own function may come to mean another."""
    spec = MethodSpec.find(name)
    if spec is None or not isinstance(method, Registered):
        return False
    return (method.settings, method.seed) == (spec.settings, seed)


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
