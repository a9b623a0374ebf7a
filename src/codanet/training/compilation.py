"""torch.compile for training: where it is worth its minute, said in a line, and the plain network where it fails."""

import os
import shutil
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._support.messages import duration
from ..models.network import CoDANet, compiled

# images times pixels of a run that wins a compilation back: ten minutes or so of a rank-1/8 S-CoDA on two cores
WORTHWHILE = 100_000 * 32 * 32


def has_compiler(device: str = "cpu") -> bool:
    """On a CPU torch.compile needs a C++ compiler; elsewhere it brings its own."""
    return device != "cpu" or any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "clang++"))


class Compiled:
    """A function of a network's encoded pictures, compiled once for every size of picture, with and without gradients.

    Sizes are compiled separately, so that a run taken up in the middle computes with the same code as one that was not;
    a compilation serves any number of pictures.

    Args:
        model: The network, which encodes the pictures.
        function: Of encoded pictures [N, 2C, H, W] and, if it takes more, of further tensors with a row per picture.
        what: What the function computes, for the lines about it: "the network", "the rows of W".
        say: Where a line about every compilation goes.
    """

    def __init__(self, model: CoDANet, function: Callable[..., Any], what: str, say: Callable[[str], None]):
        self.model, self.function, self.what, self.say = model, function, what, say
        self.fast: Callable[..., Any] | None = compiled(function)
        self.compilations: set[tuple[int, int, bool]] = set()  # height, width, with gradients

    def __call__(self, images: Tensor, *more: Tensor) -> Any:
        encoded = self.model.encode(images)
        if self.fast is None:
            return self.function(encoded, *more)
        height, width, gradients = int(encoded.shape[2]), int(encoded.shape[3]), torch.is_grad_enabled()
        if (height, width, gradients) in self.compilations:
            return self._run(encoded, *more)
        started = time.monotonic()
        try:
            made = self._run(encoded, *more)
        except Exception as error:  # whatever a compiler and its compiler may raise
            self.fast = None
            self.say(
                f"could not compile {self.what} ({_reason(error)}): going on without compiling, which is only slower"
            )
            return self.function(encoded, *more)
        self.compilations.add((height, width, gradients))
        kind = f"pictures of {height}x{width}{'' if gradients else ' without gradients'}"
        self.say(f"compiled {self.what} for {kind} in {duration(time.monotonic() - started)}")
        return made

    def _run(self, encoded: Tensor, *more: Tensor) -> Any:
        assert self.fast is not None
        for given in (encoded, *more):
            torch._dynamo.mark_dynamic(given, 0)
        for side in (2, 3):  # or the second size would make the compiler look for code that fits all
            torch._dynamo.mark_static(encoded, side)
        # the backward pass at once, where a failure is caught; a compilation a size, however many they grow through
        with (
            torch._functorch.config.patch(force_non_lazy_backward_lowering=True),
            torch._dynamo.config.patch(recompile_limit=64),
        ):
            return self.fast(encoded, *more)


def _reason(error: Exception) -> str:
    """The first line of what a compiler raised, not of what was raised about it."""
    cause = getattr(error, "inner_exception", error)
    lines = str(cause).strip().splitlines()
    return lines[0][:160] if lines else type(cause).__name__
