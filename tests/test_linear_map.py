"""W between any two layers composes, and equals what dense matrices say."""

import itertools

import pytest
import torch

from codanet import CoDANet, list_models
from codanet.benchmarks.algorithm1 import Algorithm1Conv2d
from codanet.models.architectures import ARCHITECTURES
from codanet.models.network import Layer
from networks import of_kind


@pytest.fixture
def model() -> CoDANet:
    layers = [Layer(3, 2), Layer(4, 3, 3, 2), Layer(3, 5), Layer(2, 2, 1)]
    return CoDANet(layers, temperature=3.0, image_channels=1).double()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.rand(2, 1, 5, 4, dtype=torch.float64)


def values(linear_map, layer: int) -> torch.Tensor:
    """a_l as [N, entries]."""
    if layer == linear_map.depth:
        return linear_map.logits - linear_map.bias
    return linear_map.activations[layer].flatten(1)


def test_any_two_layers(model, x):
    """a_l2 = W_{l1→l2} a_l1 (eq. 7), and W_{l1→l3} = W_{l2→l3} W_{l1→l2} (eq. 8)."""
    trace = model.trace(x)
    assert trace.depth == 5
    matrices = {}
    for source, target in itertools.combinations_with_replacement(range(trace.depth + 1), 2):
        matrices[source, target] = trace.matrix(target, source)
        product = torch.bmm(matrices[source, target], values(trace, source).unsqueeze(2)).squeeze(2)
        assert torch.allclose(product, values(trace, target), rtol=1e-10, atol=1e-13)
    for a, b, c in itertools.combinations(range(trace.depth + 1), 3):
        assert torch.allclose(matrices[b, c] @ matrices[a, b], matrices[a, c], rtol=1e-10, atol=1e-13)


def test_layers_against_algorithm_1(model, x):
    trace = model.trace(x)
    for index, layer in enumerate(model.layers):
        expected = Algorithm1Conv2d.from_model(layer).dynamic_matrix(trace.activations[index])
        assert torch.allclose(trace.matrix(index + 1, index), expected, atol=1e-13)


@pytest.mark.parametrize("name", list_models())
def test_registered_networks_compose(name):
    """Rows pulled in one go equal rows pulled in two, and reproduce the unit, for the real architectures."""
    model = of_kind(name).double()
    size = min(ARCHITECTURES[name].image_size, 16)
    trace = model.trace(torch.rand(1, 3, size, size, dtype=torch.float64))
    middle, layer = len(model.layers) // 2, len(model.layers) - 1
    row = trace.unit_row(layer, 1, (0, 0), middle)
    direct = trace.unit_row(layer, 1, (0, 0))
    assert torch.allclose(trace.pull(row.unsqueeze(1), middle)[:, 0], direct, rtol=1e-10, atol=1e-14)
    value = trace.activations[layer][0, 1, 0, 0]
    for source in (0, middle):
        total = trace.contributions(layer, 1, (0, 0), source).sum()
        assert abs(total - value) <= 1e-10 * abs(value)


def test_contributions_of_the_logits(model, x):
    trace = model.trace(x)
    for source in range(trace.depth):
        total = trace.contributions(trace.depth, 1, source=source).flatten(1).sum(1)
        assert torch.allclose(total, trace.logits[:, 1] - model.logit_bias, rtol=1e-10)
    assert torch.allclose(trace.contributions(trace.depth, 1), model.explain(x, 1).contributions, atol=1e-14)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda t: t.matrix(9), "layers run from 0, the encoded image, to 5, the logits"),
        (lambda t: t.matrix(1, 2), "source 2 lies behind layer 1"),
        (lambda t: t.unit_row(1, 7, (0, 0)), "no unit"),
        (lambda t: t.unit_row(1, 0), "no unit"),
        (lambda t: t.unit_row(1, 0, (0, 9)), "no unit"),
        (lambda t: t.unit_row(5, 0, (0, 0)), "no unit"),
        (lambda t: t.pull(torch.rand(2, 1, 3), 5), r"must be \[2, K, 2\]"),
    ],
)
def test_bad_requests(model, x, call, words):
    with pytest.raises(ValueError, match=words):
        call(model.trace(x))


def test_dense_matrices_are_bounded(model, monkeypatch):
    monkeypatch.setattr("codanet.models.linear_map.DENSE_NUMBERS", 1000)
    with pytest.raises(ValueError, match=r"pull\(\)"):
        model.trace(torch.rand(2, 1, 8, 8, dtype=torch.float64)).matrix(1)


def test_traces_use_no_autograd(model, x):
    with torch.inference_mode():
        made = model.trace(x)
    for trace in (model.trace(x), made):  # gradients are enabled here, and still none are recorded
        for values in (trace.contributions(2, 0, (0, 0)), trace.matrix(2), trace.unit_row(5, 1)):
            assert not values.requires_grad
            values.numpy()
    _, differentiable = model.align(x)
    assert differentiable.class_rows(torch.zeros(2, 1, dtype=torch.long)).requires_grad
