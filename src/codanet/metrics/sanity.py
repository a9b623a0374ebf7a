"""The sanity check (Adebayo et al. 2018; supplement A): a map must change when the network's parameters do.

The layers of a copy are re-initialised one after another, from the output to the input, each staying so (cascading);
after each step the maps are made again and compared with those of the trained network.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
import torch
from torch import Tensor, nn

from .._support.extras import optional
from ..models.classifier import like
from ..models.hybrid import HybridNet
from .maps import Attribute, maps_of
from .metric import DoesNotFit, Metric, Sample
from .scores import NOT_FINITE, Scores

MOST_STEPS = 12  # a deeper network is reset in that many groups of neighbouring layers


@dataclass(frozen=True)
class SanityCheck:
    """`scores.values` is the mean rank correlation over the steps; `extras` have every step's, per image [n, steps]:
    "spearman" of the maps, "spearman_abs" of their magnitudes, "ssim" their structural similarity."""

    scores: Scores
    steps: tuple[str, ...]  # what was re-initialised, on top of all before it
    maps: Tensor  # [n, 1 + steps, H, W], those of the trained network first


def layer_groups(model: nn.Module, most: int = MOST_STEPS) -> list[list[tuple[str, nn.Module]]]:
    """The modules that hold parameters, from the output, in at most `most` groups; all must know reset_parameters().

    A normalisation belongs to the layer before it.
    """
    if most < 1:
        raise ValueError(f"{most} steps are asked for: ask for at least 1")
    modules = list(model.named_modules())
    if isinstance(model, HybridNet):  # whose backbone is registered after the layers that stand on it
        modules.sort(key=lambda each: not each[0].startswith("backbone."))
    layers: list[list[tuple[str, nn.Module]]] = []
    for name, module in modules:
        if not list(module.parameters(recurse=False)):
            continue
        if not callable(getattr(module, "reset_parameters", None)):
            raise DoesNotFit(
                f"the sanity check re-initialises every layer, and {name or 'the whole'} of this "
                f"{type(model).__name__} has parameters but no reset_parameters(), so give it one"
            )
        if layers and all(parameter.ndim == 1 for parameter in module.parameters(recurse=False)):
            layers[-1].append((name, module))
        else:
            layers.append([(name, module)])
    if not layers:
        raise DoesNotFit(f"no layer of this {type(model).__name__} can be re-initialised, for none has parameters")
    layers.reverse()
    ends = np.linspace(0, len(layers), min(most, len(layers)) + 1).round().astype(int)
    return [list(chain.from_iterable(layers[start:stop])) for start, stop in pairwise(ends)]


def sanity(
    model: nn.Module,
    images: Tensor,
    targets: Tensor,
    attribute: Attribute,
    *,
    seed: int = 0,
    most_steps: int = MOST_STEPS,
) -> SanityCheck:
    """Whether the maps follow the parameters: layers are re-initialised from the output on, and the maps compared.

    It works on a copy of the model; the model, and the global random state, stay as they are.

    Args:
        model: Any classifier.
        images: [N, C, H, W], as the model takes them.
        targets: The class of each image, [N].
        attribute: (model, images, targets) -> maps [N, H, W].
        seed: Of the new parameters.
        most_steps: The largest number of steps in which all layers are re-initialised.

    Returns:
        The likeness of each map with the one of the trained model, after every step.

    Raises:
        DoesNotFit: A ValueError, if a module holds parameters that it cannot re-initialise: they would stay trained.

    Examples:
        >>> sanity(model, images, labels, contributions).scores.mean  # doctest: +SKIP
    """
    images = like(model, images)
    broken = copy.deepcopy(model)
    groups = layer_groups(broken, most_steps)
    maps = [maps_of(attribute, broken, images, targets)]
    names = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for group in groups:
            for _, module in group:
                module.reset_parameters()  # type: ignore[operator]
            names.append(group[0][0] if len({name for name, _ in group}) == 1 else f"{group[0][0]} … {group[-1][0]}")
            state = torch.get_rng_state()  # so that what a method draws does not change what a layer gets
            maps.append(maps_of(attribute, broken, images, targets))
            torch.set_rng_state(state)
    everything = torch.stack(maps, 1)
    extras = {
        "spearman": _each(everything, rank_correlation),
        "spearman_abs": _each(everything.abs(), rank_correlation),
        "ssim": _each(everything, similarity),
    }
    finite = everything.flatten(1).isfinite().all(1)
    notes = tuple("" if good else NOT_FINITE for good in finite.tolist())
    scores = Scores("sanity", extras["spearman"].mean(1), notes, extras)
    return SanityCheck(scores, tuple(names), everything)


def _each(maps: Tensor, compare: Callable[[np.ndarray, np.ndarray], float]) -> Tensor:
    """The first map of every image with each of the others, [n, steps]; NaN where one is not finite."""
    finite = maps.flatten(2).isfinite().all(2)
    result = torch.full((len(maps), maps.shape[1] - 1), torch.nan, dtype=torch.float64)
    for image in range(len(maps)):
        for step in range(1, maps.shape[1]):
            if finite[image, 0] and finite[image, step]:
                result[image, step - 1] = compare(maps[image, 0].numpy(), maps[image, step].numpy())
    return result


def rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Spearman's. A flat map is like itself, 1, and like nothing else, 0."""
    with optional():
        from scipy.stats import rankdata

    ranks = [rankdata(values) - (values.size + 1) / 2 for values in (one, other)]
    norm = float(np.sqrt((ranks[0] @ ranks[0]) * (ranks[1] @ ranks[1])))
    return float(ranks[0] @ ranks[1]) / norm if norm else float(np.array_equal(one, other))


def similarity(one: np.ndarray, other: np.ndarray) -> float:
    """SSIM of the maps, each scaled by its largest magnitude into [0, 1] with its zero at 0.5: on signed values a
    negative mean times a negative covariance would count as likeness. NaN for maps of less than 3x3 pixels."""
    with optional():
        from skimage.metrics import structural_similarity

    window = min(7, *(side - (side + 1) % 2 for side in one.shape))
    if window < 3:
        return float("nan")
    scaled = [0.5 + values / (2 * np.abs(values).max() or 1.0) for values in (one, other)]
    return float(structural_similarity(*scaled, data_range=1.0, win_size=window))


def _run(sample: Sample) -> Scores:
    check = sanity(sample.model, sample.images, sample.labels, sample.attribute, seed=sample.seed)
    sample.keep(check)
    return check.scores


SANITY = Metric(
    "sanity",
    "Sanity check",
    False,
    "rank correlation of the maps with those of the same network, its layers re-initialised one after another from the "
    "output, mean over the steps; about 0 passes, 1 fails",
    "method",
    _run,
    n=16,
    ranked=False,
)
