"""How far two tensors are from each other."""

import torch


def relative(a: torch.Tensor, b: torch.Tensor, least: float = 1e-30) -> float:
    return ((a - b).norm() / b.norm().clamp(min=least)).item()
