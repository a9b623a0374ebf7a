"""The maps of any method for any classifier: what every method is called through."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from codanet._support.extras import optional
from codanet._support.numbers import check_whole
from codanet._support.progress import progress_bar
from codanet.models.explanation import Target
from codanet.models.feature_explanation import spread
from codanet.models.hybrid import HybridNet
from codanet.models.network import bare

from .registry import Method, list_methods, settings_of
from .task import MethodSettings, prepare, space_of
from .untouched import untouched


class NotFinite(ValueError):
    """Some maps hold NaN or infinite values. `maps` has all of them, those NaN throughout."""

    def __init__(self, title: str, maps: Tensor):
        whole = maps.isfinite().all(-1).all(-1)  # [N] or [N, K]
        self.maps = torch.where(whole[..., None, None], maps, torch.nan)
        broken = int((~whole.view(len(maps), -1).all(1)).sum())
        super().__init__(
            f"{title} gives values that are not finite for {broken} of {len(maps)} images: the model overflows on them"
        )


def attribute(
    model: nn.Module,
    images: Tensor,
    target: Target = None,
    method: str | Method | MethodSettings = "contributions",
    *,
    seed: int = 0,
    progress: bool = False,
    batch_size: int | None = None,
) -> Tensor:
    """How much every pixel speaks for the class, [N, H, W], in the model's precision.

    An image gets the same map alone and in a batch. The model, its modes, hooks and gradients, the images and the
    global random numbers are left as they were.

    Args:
        model: A classifier that makes [N, classes]: a CoDANet or any other torch.nn.Module.
        images: [N, C, H, W]; for a CoDA-Net RGB in [0, 1] or encoded, for others as they take them.
        target: None for the predicted class; a class; one per image [N]; or several per image [N, K], for maps
            [N, K, H, W], which contributions, occlusion and RISE make from the same passes through the model.
        method: One of `METHODS`, which stands for the paper's settings, or settings of your own, such as
            Occlusion(window=7, stride=4). On a CoDA-Net it sees the encoded input, or the image with space="image".
        seed: Of the methods that draw at random.
        progress: Show a bar.
        batch_size: How many images, perturbed ones included, are in the model at a time; by default it follows from
            their size.

    Raises:
        ValueError: If the method is unknown or cannot work on the model, or images or targets make no sense.
        NotFinite: A ValueError, if the model overflows; it holds the maps.
        MissingPackage: If the method needs a package that is not installed.

    Examples:
        >>> import codanet, torch
        >>> attribute(codanet.load("cifar10"), torch.rand(2, 3, 32, 32), "cat", "ixg").shape
        torch.Size([2, 32, 32])
    """
    settings = settings_of(method)
    if not isinstance(model, nn.Module):
        raise ValueError(f"the model is a {type(model).__name__}: give a torch.nn.Module that makes [N, classes]")
    check_whole(0, most=2**63 - 1, seed=seed)
    if batch_size is not None:
        check_whole(1, batch_size=batch_size)
    model = bare(model)
    if settings.needs == "own maps" and settings.lacks(model):
        raise ValueError(
            f"contributions are made by a CoDANet, and {type(model).__name__} is not one: choose one of "
            f"{', '.join(list_methods(model))}"
        )
    settings.check(model)
    title, number = type(settings).__name__, len(images) if isinstance(images, Tensor) and images.ndim else 0
    with optional(), untouched(model), progress_bar(title, number, shown=progress, unit="images") as advance:
        task = prepare(model, images, target, seed, batch_size, advance, space_of(settings, model))
        alone = task.targets.ndim == 2 and not settings.several_targets
        maps = settings.maps(task.spread() if alone else task).detach().view(*task.targets.shape, *task.size)
    maps = maps.to(task.inputs.dtype)
    if isinstance(model, HybridNet) and images.shape[1] == model.image_channels:
        maps = spread(maps, images.shape[2], images.shape[3])  # what features were given, evenly over their pixels
    if not maps.isfinite().all():
        raise NotFinite(title, maps)
    return maps


class Registered:
    """A method of the registry as a function of model, images and targets, as metrics call it.

    A map that is not finite comes out as NaN, so that it can be counted, alone; a model that is damaged is refused.
    """

    several_targets = True

    def __init__(self, settings: MethodSettings, seed: int = 0):
        self.settings, self.seed = settings, seed

    def __call__(self, model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
        try:
            return attribute(model, images, targets, self.settings, seed=self.seed)
        except NotFinite as error:
            return error.maps
