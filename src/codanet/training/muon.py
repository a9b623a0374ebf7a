"""Muon (Jordan et al. 2024): momentum whose every update is brought to a matrix with equal singular values.

torch.optim.Muon refuses A, which has three dimensions, and always iterates in bfloat16, which changes updates of B by
about 1%; here that is for training in bfloat16 alone.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

# The quintic that drives singular values in (0, 1] towards 1: its coefficients, and how often it is applied.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
RMS = 0.2  # root mean square of an update at a learning rate of 1, as Adam's: its learning rates carry over


def orthogonalised(matrix: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """About U Vᵀ of the matrix U S Vᵀ, by Newton and Schulz's iteration: singular values within 0.7 to 1.2.

    dtype: Of the iteration; the matrix's own if not given.
    """
    a, b, c = COEFFICIENTS
    flipped = matrix.shape[0] > matrix.shape[1]
    x = matrix.t() if flipped else matrix
    x = (x / x.norm().clamp(min=torch.finfo(x.dtype).tiny)).to(dtype or x.dtype)
    for _ in range(ITERATIONS):
        square = x @ x.t()
        x = a * x + (b * square + c * square @ square) @ x
    return (x.t() if flipped else x).to(matrix.dtype)


BETAS, EPSILON = (0.9, 0.999), 1e-8  # Adam's


class Muon(Optimizer):
    """For parameters that are filters: B [r, d], and A [R, n, d] taken as the R·n filters of one convolution.

    A group with "adam": True is updated as Adam does: norms, biases and the filters of a backbone.

    dtype: Of the iteration, if it is another than the parameters'. In float32 it takes a third of a step of 128 images
        of 16x16 on one core that multiplies in bfloat16 (AMX).
    """

    def __init__(
        self,
        parameters: Iterable[Tensor] | Iterable[dict[str, Any]],
        learning_rate: float,
        momentum: float = 0.95,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(parameters, {"lr": learning_rate, "momentum": momentum, "adam": False})
        self.dtype = dtype

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("adam", False)  # checkpoints from before there was Adam

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if group["adam"]:
                    _adam(parameter, parameter.grad, state, group["lr"])
                    continue
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(parameter)
                state["momentum"].mul_(group["momentum"]).add_(parameter.grad)
                ahead = parameter.grad.add(state["momentum"], alpha=group["momentum"])  # Nesterov's
                matrix = ahead.reshape(-1, ahead.shape[-1])
                size = group["lr"] * RMS * math.sqrt(max(matrix.shape))
                parameter.add_(orthogonalised(matrix, self.dtype).view_as(parameter), alpha=-size)
        return loss


def _adam(parameter: Tensor, gradient: Tensor, state: dict[str, Any], learning_rate: float) -> None:
    if not state:
        state.update(step=0, mean=torch.zeros_like(parameter), square=torch.zeros_like(parameter))
    state["step"] += 1
    state["mean"].lerp_(gradient, 1 - BETAS[0])
    state["square"].lerp_(gradient.square(), 1 - BETAS[1])
    mean, square = (
        state[name] / (1 - beta ** state["step"]) for name, beta in zip(("mean", "square"), BETAS, strict=True)
    )
    parameter.addcdiv_(mean, square.sqrt_().add_(EPSILON), value=-learning_rate)
