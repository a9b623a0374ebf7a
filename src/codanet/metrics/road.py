"""ROAD (Rong et al. 2022): pixels are removed so that the hole does not give away what was there.

A removed pixel becomes the weighted mean of its neighbours, 1/6 for those beside it and 1/12 for those across, removed
ones among them: a linear system for each image and step, solved exactly; plus a little noise. There the share of images
that stay classified correctly is counted; here it is the probability of the class, which every image has a score by.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from .._support.extras import optional
from ..models.classifier import logits_of, network_input, probabilities
from .curves import places
from .maps import Attribute, checked_targets, maps_of, oddities
from .metric import Metric
from .scores import Scores

SHARES = tuple(step / 10 for step in range(1, 10))  # how much of the picture is removed
NOISE = 0.01
NEIGHBOURS = {(0, 1): 1 / 6, (1, 0): 1 / 6, (1, 1): 1 / 12, (1, -1): 1 / 12}  # and their opposites


def imputed(image: Tensor, removed: Tensor, noise: Tensor | None = None) -> Tensor:
    """The image [C, H, W] with its removed pixels [H, W] filled in from their neighbours, in float64."""
    with optional():
        from scipy.sparse import coo_array, diags_array
        from scipy.sparse.linalg import spsolve

    height, width = removed.shape
    pixels = image.double().flatten(1)
    if not removed.any() or removed.all():  # nothing to fill in, or nothing to fill it in from: a grey image
        return torch.where(removed, 0.5, image.double())
    number = np.arange(height * width).reshape(height, width)
    rows, columns, weights = [], [], []
    for (down, across), weight in NEIGHBOURS.items():
        here = number[: height - down, max(0, -across) : width - max(0, across)].ravel()
        there = number[down:, max(0, across) : width + min(0, across)].ravel()
        rows += [here, there]
        columns += [there, here]
        weights += [np.full(2 * len(here), weight)]
    entries = (np.concatenate(weights), (np.concatenate(rows), np.concatenate(columns)))
    graph = coo_array(entries, shape=(height * width,) * 2).tocsr()
    gone = np.flatnonzero(removed.flatten().numpy())
    kept = np.flatnonzero(~removed.flatten().numpy())
    # Σ_q w_pq x_p - Σ_{q removed} w_pq x_q = Σ_{q kept} w_pq x_q
    system = diags_array(graph[gone].sum(1)) - graph[gone][:, gone]
    filled = pixels.clone()
    filled[:, gone] = torch.from_numpy(
        np.atleast_2d(
            spsolve(system.tocsc(), graph[gone][:, kept] @ pixels[:, kept].numpy().T).T.reshape(len(pixels), -1)
        )
    )
    if noise is not None:
        filled[:, gone] += noise.flatten(1)[:, gone]
    return filled.clamp(0, 1).view_as(image)


def road(
    model: nn.Module,
    images: Tensor,
    targets: Tensor,
    attribute: Attribute | Tensor,
    *,
    seed: int = 0,
    batch_size: int | None = None,
) -> Scores:
    """The class's mean probability while its most important pixels are filled in from neighbours: lower is better.

    Args:
        model: Any classifier.
        images: [N, C, H, W] in [0, 1].
        targets: The class of each image, [N].
        attribute: (model, images, targets) -> maps [N, H, W], or the maps themselves.
        seed: Of the noise, and between pixels of the same value.
        batch_size: Images in the model at a time; by default it follows from their size.

    Returns:
        Per image the mean over 10%, 20%, … 90% of the pixels; the curves are in `extras`, over the shares in `points`.

    Examples:
        >>> road(model, images, labels, contributions).mean  # doctest: +SKIP
    """
    chosen = checked_targets(images, targets)
    if not (images.min() >= 0 and images.max() <= 1):
        raise ValueError(
            f"images run from {float(images.min()):.3g} to {float(images.max()):.3g}: ROAD fills in pixels in [0, 1], "
            "so take the normalisation into the model"
        )
    maps = maps_of(attribute, model, images, targets)
    finite, notes = oddities(maps)
    order = places(maps.nan_to_num(), largest_first=True, seed=seed)  # [N, H·W]
    generator = torch.Generator().manual_seed(seed)
    noise = NOISE * torch.randn(images.shape[1:], generator=generator, dtype=torch.float64)
    curves = torch.empty(len(images), len(SHARES), dtype=torch.float64)
    for step, share in enumerate(SHARES):
        removed = (order < round(share * order.shape[1])).view(-1, *images.shape[2:])
        filled = torch.stack([imputed(*pair, noise) for pair in zip(images.cpu(), removed, strict=True)])
        logits = logits_of(model, network_input(model, filled.to(images.dtype)), batch_size)
        curves[:, step] = probabilities(model, logits).gather(1, chosen[:, None])[:, 0]
    curves = curves.masked_fill(~finite[:, None], torch.nan)
    return Scores("road", curves.mean(1), notes, {"curve": curves}, torch.tensor(SHARES, dtype=torch.float64))


ROAD = Metric(
    "road",
    "ROAD",
    False,
    "mean probability of the true class while 10% to 90% of the pixels, the most important first, are filled in from "
    "their neighbours (Rong et al. 2022)",
    "maps",
    lambda sample: road(sample.model, sample.images, sample.labels, sample.maps, seed=sample.seed),
)
