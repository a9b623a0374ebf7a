"""A digest of what a weights file says: its header, and every tensor bit for bit."""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


def content_digest(header: str, tensors: Mapping[str, Tensor]) -> str:
    """sha256 over the header's words and the names, types, shapes and bytes of the tensors."""
    digest = hashlib.sha256(header.encode())
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        digest.update(f"\0{name}\0{value.dtype}\0{list(value.shape)}\0".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
