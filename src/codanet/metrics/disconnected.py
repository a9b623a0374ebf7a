"""DiFull and DiPart (Rao, Böhle and Schiele 2022): grids whose cells have a classification head each.

A head sees the features of its own cell and no other. DiFull makes the features cell by cell, so that nothing outside
of a cell can influence its logits, and whatever a method attributes to the outside is wrong. DiPart makes them of the
whole grid, where neighbours reach in as far as a layer sees. Scores are those of `localisation`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..data.pictures import Pictures
from ..data.tiling import Grids, tiled
from ..models.classifier import evaluating, like
from ..models.feature_explanation import spread
from ..models.hybrid import HybridNet
from ..models.network import CoDANet, bare
from ..models.peers import SENN, BcosResNet
from ..models.self_explaining import SelfExplaining, encodes, one_vs_all
from .localisation import cell_shares, maps_of_cells
from .maps import Attribute
from .metric import DoesNotFit, Metric, Sample
from .scores import Scores
from .share import cell_masks


class Disconnected(SelfExplaining):
    """A classifier of grids: the logits of every cell's head, [N, size² · classes], cell by cell.

    Args:
        model: A classifier with `features`, to the last map, and `classify`, from there to the logits.
        size: Images on a side of a grid.
        part: Whether the heads alone are separate (DiPart), or all layers (DiFull).
    """

    def __init__(self, model: nn.Module, size: int, part: bool = False):
        super().__init__()
        if isinstance(model, HybridNet):
            raise DoesNotFit("the backbone of a hybrid sees the whole grid, so that its cells cannot be cut apart")
        if not callable(getattr(model, "features", None)) or not callable(getattr(model, "classify", None)):
            raise DoesNotFit(
                f"{type(model).__name__} has no features() and classify(), so that its head cannot be cut off"
            )
        self.model, self.size, self.part = model, size, part
        self.one_vs_all, self.separate_heads = one_vs_all(model), size**2
        self.joined = nn.Identity()  # the last map of all cells, where GradCAM looks for one
        self.encodes = encodes(model)
        for module in (model, *model.children()):  # `baseline` asks a model or its direct child what is removed
            mean, std = getattr(module, "mean", None), getattr(module, "std", None)
            if isinstance(mean, Tensor) and isinstance(std, Tensor):
                self.register_buffer("mean", mean, persistent=False)
                self.register_buffer("std", std, persistent=False)
                break

    def _cells(self, maps: Tensor) -> Tensor:
        """[N, C, size·h, size·w] to [N · size², C, h, w], row by row: what `tiled` puts together."""
        number, channels, height, width = maps.shape
        if height % self.size or width % self.size:
            raise DoesNotFit(f"maps of {height}x{width} cannot be cut into {self.size}x{self.size} cells")
        height, width = height // self.size, width // self.size
        cells = maps.view(number, channels, self.size, height, self.size, width)
        return cells.permute(0, 2, 4, 1, 3, 5).reshape(-1, channels, height, width)

    def encode(self, images: Tensor) -> Tensor:
        return self.model.encode(images) if isinstance(self.model, SelfExplaining) else images

    def forward(self, inputs: Tensor) -> Tensor:
        encoded = self.encode(inputs)
        features: Any = self.model.features
        maps = features(encoded) if self.part else tiled(features(self._cells(encoded)), self.size)
        classify: Any = self.model.classify
        return classify(self._cells(self.joined(maps))).reshape(len(inputs), -1)

    def _by_gradient(self, model: BcosResNet, inputs: Tensor, targets: Tensor) -> Tensor:
        """Of a B-cos network: the gradient of a head's logit with its cosines as constants, times the input."""
        with torch.enable_grad(), model.frozen():
            encoded = model.encode(inputs).detach().clone().requires_grad_()
            logits = self(encoded)
            maps = [
                torch.autograd.grad(logits.gather(1, each[:, None]).sum(), encoded, retain_graph=True)[0] * encoded
                for each in targets.view(len(inputs), -1).unbind(1)
            ]
        stacked = torch.stack([each.detach().sum(1) for each in maps], 1)
        return stacked.view(*targets.shape, *stacked.shape[2:])

    def _by_places(self, model: SENN, inputs: Tensor, targets: Tensor) -> Tensor:
        """Of a SENN: what the places of a head's own cell add."""
        several = targets.view(len(inputs), -1)  # [N, K]
        cell, label = several // model.num_classes, several % model.num_classes
        places = model.features(inputs) if self.part else tiled(model.features(self._cells(inputs)), self.size)
        own = cell_masks(self.size, places.shape[2], places.shape[3]).to(places)[cell]  # [N, K, h, w]
        chosen = places.gather(1, label[..., None, None].expand(-1, -1, *places.shape[2:])) * own
        shares = chosen * self.size**2 / (places.shape[2] * places.shape[3])
        pixels = spread(shares, inputs.shape[2], inputs.shape[3])
        return pixels.view(*targets.shape, *inputs.shape[2:])

    @torch.no_grad()
    def own_maps(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Contributions of a CoDA-Net: rows of ones and zeros over the heads, pulled back through every cell's layers.

        No cell is left out of the way back: that the others get nothing is a result of it.
        """
        model = self.model
        if isinstance(model, BcosResNet):
            return self._by_gradient(model, inputs, targets)
        if isinstance(model, SENN):
            return self._by_places(model, inputs, targets)
        if not isinstance(model, CoDANet):
            raise DoesNotFit(f"{type(model).__name__} does not pull single cells back")
        several = targets.view(len(inputs), -1)  # [N, K]
        cell, label = several // model.num_classes, several % model.num_classes
        encoded = model.encode(inputs)
        if self.part:
            linear_map = model.align(encoded)[1]
            last = linear_map.activations[-1]  # [N, classes, h, w]
            own = cell_masks(self.size, last.shape[2], last.shape[3]).to(last)[cell]  # [N, K, h, w]
            classes = nn.functional.one_hot(label, model.num_classes).to(last)
            rows = classes[..., None, None] * own[:, :, None] / model.temperature  # back through the pooling
            rows = linear_map.pull(rows, linear_map.depth - 1)
            maps = (rows * encoded[:, None]).sum(2)
        else:
            cells = self._cells(encoded)
            linear_map = model.align(cells)[1]
            number = self.size**2
            wanted = several.new_zeros(*several.shape, number * model.num_classes).to(cells.dtype)
            wanted.scatter_(2, several[..., None], 1)  # [N, K, size² · classes]
            rows = wanted.unflatten(2, (number, -1)).transpose(1, 2).flatten(0, 1)  # [N · size², K, classes]
            maps = (linear_map.pull(rows, linear_map.depth) * cells[:, None]).sum(2)
            maps = tiled(maps, self.size)  # [N, K, size·H, size·W]
        return maps.view(*targets.shape, *maps.shape[2:])


def disconnected(
    model: nn.Module, pictures: Pictures, grids: Grids, attribute: Attribute | Tensor, *, part: bool = False
) -> Scores:
    """How much of the positive attribution for a cell's head lies on that cell: 1 if none is where it cannot belong.

    Args:
        model: A classifier with `features` and `classify`, such as a CoDA-Net or a ResNet.
        pictures: The images that the grids are made of.
        grids: Which of them stand where.
        attribute: (model, images, targets) -> maps, or the maps themselves, [G, size², size·H, size·W]. It is called
            with the model cut into cells, whose outputs are the logits of all heads, [N, size² · classes].
        part: DiPart instead of DiFull: the features are those of the whole grid.

    Returns:
        A score for every cell. `extras["outside"]` is the largest |attribution| outside of the cell over the largest
        anywhere: 0 for DiFull if the method keeps to what can influence the logit.

    Examples:
        >>> disconnected(model, pictures, grids, contributions).extras["outside"].max()  # doctest: +SKIP
    """
    if isinstance(attribute, Tensor):
        maps = attribute.detach().cpu()
    else:
        cut = Disconnected(bare(model), grids.size, part)
        images = like(model, grids.images(pictures))
        with evaluating(cut):
            classes = cut(images[:1]).shape[1] // grids.size**2
        heads = grids.classes + classes * torch.arange(grids.size**2)  # [G, size²]
        maps = maps_of_cells(cut, images, heads, attribute)
    scores = cell_shares(maps, grids.size)
    own = cell_masks(grids.size, maps.shape[2], maps.shape[3])
    size = maps.abs().double().flatten(2)
    outside = size.masked_fill(own.flatten(1), 0).amax(2) / size.amax(2).clamp(min=torch.finfo(torch.float64).tiny)
    extras = {**scores.extras, "outside": outside.flatten()}
    return replace(scores, metric="dipart" if part else "difull", extras=extras)


def _run(sample: Sample, part: bool) -> Scores:
    assert sample.grids is not None
    return disconnected(sample.model, sample.pictures, sample.grids, sample.attribute, part=part)


DIFULL = Metric(
    "difull",
    "DiFull",
    True,
    "localisation on grids whose cells go through the network one by one, so that nothing outside of a cell can "
    "influence its logit (Rao et al. 2022): 1 unless a method attributes what has no influence",
    "grids",
    partial(_run, part=False),
    unit="grids",
    n=50,
    n_elsewhere=50,
)
DIPART = replace(
    DIFULL,
    name="dipart",
    title="DiPart",
    about="localisation on grids whose cells share the features of the whole grid and have a head each "
    "(Rao et al. 2022)",
    run=partial(_run, part=True),
)
