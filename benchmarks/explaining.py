"""What a data set costs to explain: processor seconds per picture of every method, measured on a few of its passes.

    python benchmarks/explaining.py --model l_coda --pictures 50000

Methods that do the same thing many times (windows, masks, steps, samples) are measured on some of them and multiplied:
their cost is proportional to the number. Seconds are of one thread's processor time, so that other work on the machine
does not count.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any

import torch

import codanet
from codanet.attribution import METHODS, IntegratedGradients, Lime, MethodSettings, Occlusion, Rise, attribute

SOME = 4  # windows on a side, masks, samples


@dataclass(frozen=True)
class Cost:
    method: str
    seconds: float  # per picture
    measured: str  # on what part of the work


def reduced(name: str, side: int) -> tuple[MethodSettings, float, str]:
    """Settings with less to do, by how much less, and in words."""
    settings = METHODS[name].settings
    if isinstance(settings, Occlusion):
        stride = max(1, min(settings.window, side // SOME))
        windows, all_windows = ((ceil((side - settings.window) / each) + 1) ** 2 for each in (stride, settings.stride))
        return Occlusion(settings.window, stride), all_windows / windows, f"{windows} of {all_windows} windows"
    if isinstance(settings, Rise):
        return Rise(masks=SOME), settings.masks / SOME, f"{SOME} of {settings.masks} masks"
    if isinstance(settings, Lime):
        return Lime(samples=SOME), settings.samples / SOME, f"{SOME} of {settings.samples} samples"
    if isinstance(settings, IntegratedGradients):
        return IntegratedGradients(steps=2), settings.steps / 2, f"2 of {settings.steps} steps"
    return settings, 1.0, "all"


def processor_seconds(call: Callable[[], Any]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="l_coda")
    parser.add_argument("--side", type=int, help="of the pictures; default: the model's")
    parser.add_argument("--pictures", type=int, default=50_000)
    parser.add_argument("--methods", default=",".join(name for name in METHODS if name != "random"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = codanet.create_model(options.model).eval()
    side = options.side or (model.image_size or (240, 240))[0]
    image = torch.rand(1, 3, side, side)
    costs = []
    for name in options.methods.split(","):
        settings, factor, words = reduced(name, side)
        attribute(model, image[:, :, :24, :24], 0, settings)  # imports and first calls are not the method's
        seconds = factor * processor_seconds(partial(attribute, model, image, 0, settings))
        if isinstance(settings, Lime):  # segments are made once for all samples
            once = processor_seconds(partial(attribute, model, image, 0, Lime(samples=1)))
            each = (seconds / factor - once) / (SOME - 1)
            seconds = once + each * (METHODS[name].settings.samples - 1)  # type: ignore[attr-defined]
        cost = Cost(name, seconds, words)
        days = options.pictures * cost.seconds / 86400
        costs.append(cost)
        print(f"| {METHODS[name].title} | {cost.seconds:.3g} | {days:.3g} | {words} |", flush=True)
    found = {cost.method: cost.seconds for cost in costs}
    print(json.dumps({"model": options.model, "side": side, "torch": torch.__version__, "seconds": found}))


if __name__ == "__main__":
    main()
