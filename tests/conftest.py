"""Every test starts from the same seed, in two threads."""

import pytest
import torch

torch.set_num_threads(2)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
