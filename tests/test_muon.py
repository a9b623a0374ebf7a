"""Muon's updates have equal singular values, and it trains."""

import copy

import pytest
import torch

from codanet import CoDANet
from codanet.models.network import Layer
from codanet.training.muon import RMS, Muon, orthogonalised


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("shape", [(5, 40), (40, 5), (12, 12)])
def test_orthogonalised(shape, dtype):
    torch.manual_seed(0)
    matrix = torch.randn(shape)
    made = orthogonalised(matrix, dtype)
    assert made.dtype == matrix.dtype
    values = torch.linalg.svdvals(made)
    assert values.min() > 0.6
    assert values.max() < 1.3
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    assert (made * (u @ v)).sum() / made.norm() / (u @ v).norm() > 0.97  # and points where U Vᵀ does
    assert torch.equal(orthogonalised(torch.zeros(3, 4), dtype), torch.zeros(3, 4))


def test_size_of_an_update():
    parameter = torch.nn.Parameter(torch.zeros(3, 8, 20))  # R, n, d: 24 filters of 20
    parameter.grad = torch.randn(3, 8, 20)
    Muon([parameter], 0.5).step()
    rms = parameter.detach().square().mean().sqrt().item()
    assert rms == pytest.approx(0.5 * RMS, rel=0.2)


def test_trains_and_resumes():
    torch.manual_seed(0)
    model = CoDANet([Layer(8, 2), Layer(3, 2, stride=2)], image_size=8)
    images, wanted = torch.rand(24, 3, 8, 8), torch.eye(3).repeat(8, 1)
    images[wanted[:, 0] > 0, 0] *= 0.2
    images[wanted[:, 1] > 0, 1] *= 0.2

    def step(optimiser):
        def closure():
            optimiser.zero_grad()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(model(images), wanted)
            loss.backward()
            return loss

        return optimiser.step(closure).item()

    optimiser = Muon(model.parameters(), 0.05)
    first = step(optimiser)
    for _ in range(30):
        last = step(optimiser)
    assert last < 0.5 * first
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    state = copy.deepcopy(optimiser.state_dict())
    step(optimiser)
    after = model.layers[0].A.detach().clone()
    model.load_state_dict(weights)
    again = Muon(model.parameters(), 0.05)
    again.load_state_dict(state)
    step(again)
    assert torch.equal(model.layers[0].A.detach(), after)


def test_a_state_from_before_there_was_adam_goes_on():
    parameter, other = (torch.nn.Parameter(torch.ones(2, 3)) for _ in range(2))
    optimisers = Muon([parameter], 0.1), Muon([other], 0.1)
    older = optimisers[0].state_dict()
    del older["param_groups"][0]["adam"]
    optimisers[1].load_state_dict(older)
    for one, optimiser in zip((parameter, other), optimisers, strict=True):
        one.grad = torch.arange(6.0).view(2, 3)
        optimiser.step()
    assert torch.equal(parameter, other)
