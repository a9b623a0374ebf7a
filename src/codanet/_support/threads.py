"""PyTorch's threads, for as long as something runs."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def torch_threads(number: int | None) -> Iterator[None]:
    """Set the number inside the block (None: unchanged) and restore it afterwards."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
