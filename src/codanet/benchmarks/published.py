"""The form of the paper's published code: w(x) made by a 1x1 convolution, then multiplied with the patches and summed.

The same function as Algorithm 1, in a friendlier order: the weights are never rescaled one by one; their norm is taken
and the sum w(p)ᵀp is rescaled instead. It still holds all n·d weights at every patch.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from .algorithm1 import ACT_FUNCS, Algorithm1Conv2d, Algorithm1Net

ALPHA: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {  # the norm's order, and α of it
    "sq": (2, lambda norm: norm / (1 + norm * norm)),
    "l2": (2, torch.reciprocal),
    "l1": (1, torch.reciprocal),
}


class PublishedConv2d(Algorithm1Conv2d):
    """Parameters as in Algorithm 1."""

    def _alpha(self) -> tuple[int, Callable[[Tensor], Tensor]]:
        name = next((name for name, function in ACT_FUNCS.items() if function is self.act_func), None)
        if name is None:
            raise ValueError("the published form knows sq, l2 and l1: compare other rescalings with Algorithm 1")
        return ALPHA[name]

    def dynamic_weights(self, in_tensor: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """u(p) = A B p + b [N, patch_dim, units, h, w], and its factor α(‖u‖) [N, units, h, w]."""
        reduced = self.dim_reduction(in_tensor)
        weights = self.weightings(reduced).view(len(reduced), self.patch_dim, self.out_channels, *reduced.shape[2:])
        order, alpha = self._alpha()
        norm = torch.linalg.vector_norm(weights, ord=order, dim=1)
        zero = norm == 0
        return weights, alpha(norm.masked_fill(zero, 1.0)).masked_fill(zero, 0.0)

    def apply_weights(self, in_tensor: Tensor, weights: tuple[Tensor, Tensor]) -> Tensor:  # type: ignore[override]
        """α(‖u‖) u(p)ᵀp: [N, units, h, w]."""
        unscaled, scale = weights
        patches = F.unfold(in_tensor, self.kernel_size, padding=self.padding, stride=self.stride)
        patches = patches.view(len(in_tensor), self.patch_dim, 1, *unscaled.shape[3:])
        return (patches * unscaled).sum(1) * scale


class PublishedNet(Algorithm1Net):
    """A CoDA-Net of them."""

    layer = PublishedConv2d
