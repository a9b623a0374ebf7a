"""The caller's things as they were: modes, hooks and random numbers, also after an exception."""

from __future__ import annotations

import random
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)
LEFT_BY_CAPTUM = ("input", "output")  # DeepLift keeps them on activations, and forgets them if a pass fails


_one_at_a_time = threading.RLock()  # hooks and modes belong to the model, the random numbers to all of Python


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, gradients possible, no module working in place; and everything restored after.

    Another thread waits until it is.
    """
    with _one_at_a_time, _restored(model):
        yield


@contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    modules = list(model.modules())
    training = [module.training for module in modules]
    in_place = [module for module in modules if getattr(module, "inplace", False) is True]
    hooks = [{name: dict(getattr(module, name)) for name in HOOKS} for module in modules]
    attributes = [frozenset(vars(module)) for module in modules]
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 (it is the caller's)
    devices = sorted({tensor.get_device() for tensor in model.parameters() if tensor.is_cuda})
    try:
        with (
            torch.random.fork_rng(devices),
            torch.inference_mode(False),
            torch.enable_grad(),
            warnings.catch_warnings(),
        ):
            warnings.filterwarnings("ignore", "Setting forward, backward hooks")  # they are removed below
            model.eval()
            for module in in_place:  # a map that a later activation overwrites cannot be explained
                module.inplace = False  # type: ignore[assignment]
            yield
    finally:
        for module in in_place:
            module.inplace = True  # type: ignore[assignment]
        for module, mode, kept, before in zip(modules, training, hooks, attributes, strict=True):
            module.training = mode
            for name in LEFT_BY_CAPTUM:
                if name in vars(module) and name not in before:
                    delattr(module, name)
            for name, entries in kept.items():
                now = getattr(module, name)
                if now.keys() != entries.keys():  # changed in place, for handles refer to the dictionary itself
                    now.clear()
                    now.update(entries)
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
