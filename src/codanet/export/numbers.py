"""Tensors as the numbers that a file holds."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def numbers(tensor: Any) -> NDArray[np.float32]:
    array: NDArray[np.float32] = tensor.detach().cpu().float().contiguous().numpy()
    return array
