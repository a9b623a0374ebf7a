"""The same module for `torch.export`: what the layers compute, with everything that needs no image made beforehand."""

from __future__ import annotations

import json
import warnings
from io import BytesIO
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim

from ..models.hybrid import HybridNet
from ..models.network import CoDANet


class ExplainedNet(nn.Module):
    """`image` [N, C, H, W] and `target` [N], -1 for the predicted class, to logits, contributions and what is asked."""

    def __init__(self, model: CoDANet, channels: bool = False, rows: bool = False):
        super().__init__()
        self.model, self.channels, self.rows = model, channels, rows
        for number, factor in enumerate(model.norm_factors()):
            self.register_buffer(f"factor{number}", factor)

    def forward(self, image: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        factors = [getattr(self, f"factor{number}") for number in range(len(self.model.dau_layers))]
        hybrid = isinstance(self.model, HybridNet)
        encoded = self.model.encode(image) if hybrid else torch.cat([image, 1 - image], 1)
        logits, linear_map = self.model.align(encoded, factors)
        target = torch.where(target < 0, logits.argmax(1), target)
        chosen = (target[:, None] == torch.arange(logits.shape[1], device=target.device)).to(logits.dtype)
        rows = linear_map.pull(chosen[:, None], linear_map.depth)[:, 0]
        parts = rows * encoded
        return (logits, parts.sum(1), *([parts] if self.channels else []), *([rows] if self.rows else []))


def write(
    model: CoDANet,
    path: Path,
    metadata: dict[str, str],
    *,
    channels: bool = False,
    rows: bool = False,
    size: tuple[int, int] | None = None,
) -> None:
    """The exported program at `path`, with the metadata as its extra file codanet.json."""
    sides = size or model.image_size or (32, 32)
    inputs = torch.full((2, model.image_channels, *sides), 0.5), torch.tensor([-1, 0])
    free = {0: Dim.DYNAMIC} if size else {0: Dim.DYNAMIC, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.export warns about itself
        program = torch.export.export(
            ExplainedNet(model, channels, rows).eval(), inputs, dynamic_shapes=(free, {0: Dim.DYNAMIC})
        )
        content = BytesIO()  # PyTorch takes no path that is not UTF-8, and warns of one that does not end in .pt2
        torch.export.save(program, content, extra_files={"codanet.json": json.dumps(metadata)})
    path.write_bytes(content.getbuffer())
