"""Digests of what a weights file says, and of what a model computes with: every tensor bit for bit."""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from .network import CoDANet


def content_digest(header: str, tensors: Mapping[str, Tensor]) -> str:
    """sha256 over the header's words and the names, types, shapes and bytes of the tensors."""
    digest = hashlib.sha256(header.encode())
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        digest.update(f"\0{name}\0{value.dtype}\0{list(value.shape)}\0".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def model_digest(model: nn.Module) -> str:
    """sha256 of what the model computes with: its structure and every number in it."""
    digest = hashlib.sha256(repr(model).encode())
    if isinstance(model, CoDANet):
        digest.update(f"{model.architecture} {model.temperature} {model.logit_bias} {model.rescale}".encode())
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
