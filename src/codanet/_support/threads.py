"""PyTorch's threads, for as long as something runs."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def torch_threads(number: int | None) -> Iterator[None]:
    """As many as that, or as many as before; and then as many as before again."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
