"""The layer among torch's tools: derivatives of any order, vmap, export, compile, copies, and what is kept."""

import copy
import pickle

import pytest
import torch
from torch._subclasses import FakeTensorMode

from codanet import DAUConv2d, DAULinear
from codanet.benchmarks.algorithm1 import Algorithm1Conv2d
from nearness import relative


def test_a_factor_kept_in_inference_mode_serves_outside_of_it():
    layer, x = DAUConv2d(3, 4, 2, 3), torch.rand(1, 3, 8, 8)
    with torch.inference_mode():
        expected = layer(x)
    with torch.no_grad():
        factor = layer.norm_factor()
    out = layer(x, factor)
    out.sum().backward()
    assert torch.equal(out, expected)


def test_gradcheck_of_the_transposed_layer():
    layer = DAUConv2d(2, 3, 2, 3, 2).double()
    x = torch.rand(2, 2, 5, 4, dtype=torch.float64, requires_grad=True)
    rows = torch.randn(2, 2, 3, 3, 2, dtype=torch.float64, requires_grad=True)

    def pulled(x, rows, A, B):
        old = layer.A.data, layer.B.data
        del layer._parameters["A"], layer._parameters["B"]
        layer.A, layer.B = A, B
        try:
            return layer.pull(rows, layer.align(x)[1])
        finally:
            del layer.A, layer.B
            layer.A, layer.B = torch.nn.Parameter(old[0]), torch.nn.Parameter(old[1])

    A, B = (p.detach().clone().requires_grad_() for p in (layer.A, layer.B))
    assert torch.autograd.gradcheck(pulled, (x, rows, A, B))


@pytest.mark.parametrize("rescale", ["sq", "l2", "l1"])
def test_gradcheck(rescale):
    layer = DAUConv2d(2, 3, 2, 3, 2, rescale=rescale).double()
    x = torch.rand(2, 2, 5, 4, dtype=torch.float64, requires_grad=True)

    assert torch.autograd.gradcheck(lambda x, A, B: call(layer, x, A, B), (x, layer.A, layer.B))


@pytest.mark.parametrize("rescale", ["sq", "l2"])
def test_second_derivatives(rescale):
    layer = DAUConv2d(2, 2, 2, 2, rescale=rescale).double()
    x = torch.rand(1, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x, A, B: call(layer, x, A, B), (x, layer.A, layer.B))


def call(layer, x, A, B):
    return torch.func.functional_call(layer, {"A": A, "B": B}, (x,))


def test_torch_func():
    layer = DAUConv2d(2, 3, 2, 3).double()
    images = torch.rand(4, 2, 5, 5, dtype=torch.float64)
    parameters = {key: value.detach() for key, value in layer.named_parameters()}

    def output(parameters, image):
        return torch.func.functional_call(layer, parameters, (image[None],))[0]

    assert torch.allclose(torch.vmap(output, (None, 0))(parameters, images), layer(images), rtol=1e-12)
    gradients = torch.vmap(torch.func.grad(lambda p, x: output(p, x).square().sum()), (None, 0))(parameters, images)
    for i, image in enumerate(images):
        layer.zero_grad()
        layer(image[None]).square().sum().backward()
        assert torch.allclose(gradients["A"][i], layer.A.grad, rtol=1e-10)
        assert torch.allclose(gradients["B"][i], layer.B.grad, rtol=1e-10)
    jacobian = torch.func.jacrev(output, 1)(parameters, images[0])
    expected = torch.autograd.functional.jacobian(lambda x: layer(x[None])[0], images[0])
    assert torch.allclose(jacobian, expected, atol=1e-12)
    assert torch.allclose(torch.func.jacfwd(output, 1)(parameters, images[0]), expected, atol=1e-12)


@torch.no_grad()
def test_an_ensemble_under_vmap_without_gradients():
    """Several layers' parameters at once: what a layer keeps of its own is neither used nor replaced."""
    layer, x = DAUConv2d(2, 3, 2, 3), torch.rand(1, 2, 5, 5)
    layers = [DAUConv2d(2, 3, 2, 3) for _ in range(2)]
    stacked = {key: torch.stack([one.get_parameter(key) for one in layers]) for key in ("A", "B")}
    before = layer(x)
    together = torch.vmap(lambda parameters: torch.func.functional_call(layer, parameters, (x,)))(stacked)
    assert torch.allclose(together, torch.stack([one(x) for one in layers]), atol=1e-6)
    assert torch.equal(layer(x), before)


def test_torch_export_with_any_batch():
    layer = DAUConv2d(3, 4, 2, 3, 2).eval()
    program = torch.export.export(
        layer, (torch.rand(2, 3, 8, 8),), dynamic_shapes={"x": {0: torch.export.Dim("images", min=1)}}
    )
    x = torch.rand(5, 3, 8, 8)
    assert relative(program.module()(x), layer(x)) < 1e-6


@pytest.mark.parametrize("rescale", ["sq", "l2", "l1"])
def test_compiles_as_one_graph(rescale):
    layer, x = DAUConv2d(3, 4, 2, 3, 2, rescale=rescale), torch.rand(2, 3, 8, 8)

    def both(x):
        out, weights = layer.align(x)
        return out, layer.pull(torch.ones_like(out).unsqueeze(1), weights)

    compiled = torch.compile(both, backend="aot_eager", fullgraph=True)
    for mine, expected in zip(compiled(x), both(x), strict=True):
        assert relative(mine, expected) < 1e-5
    seed = torch.randn_like(layer(x))
    gradients = []
    for output in (compiled, both):
        layer.zero_grad()
        (output(x)[0] * seed).sum().backward()
        gradients.append([p.grad for p in layer.parameters()])
    for mine, expected in zip(*gradients, strict=True):
        assert relative(mine, expected) < 1e-4


def half(norm):
    return 0.5 / norm


def test_pickle_and_copy():
    layer = DAULinear(3, 4, 2, rescale=half)
    x = torch.rand(2, 3)
    for again in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(again(x), layer(x))


def optimiser_step(layer: DAUConv2d) -> None:
    layer(torch.rand(1, 3, 6, 6)).sum().backward()
    torch.optim.SGD(layer.parameters(), lr=0.3).step()


def other_weights(layer: DAUConv2d) -> None:
    layer.load_state_dict(DAUConv2d(3, 4, 2, 3).state_dict())


def one_number_behind_autograds_back(layer: DAUConv2d) -> None:
    layer.A.data[0, 2, 5] += 0.25


def numpy_view(layer: DAUConv2d) -> None:
    layer.B.detach().numpy()[1, 7] -= 0.5


CHANGES = [optimiser_step, other_weights, one_number_behind_autograds_back, numpy_view, DAUConv2d.reset_parameters]


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_kept_of_the_parameters_never_outlives_them(change):
    layer, x = DAUConv2d(3, 4, 2, 3), torch.rand(2, 3, 6, 6)
    with torch.no_grad():
        before = layer(x)
        assert layer.norm_factor() is layer.norm_factor()
        assert torch.equal(layer(x), before)
    change(layer)
    with torch.no_grad():
        after = layer(x)
        assert torch.equal(after, copy.deepcopy(layer)(x))
        assert relative(after, Algorithm1Conv2d.from_model(layer)(x)) < 1e-5
        assert relative(after, before) > 1e-4


@torch.no_grad()
def test_nothing_is_kept_of_what_is_only_traced():
    layer, x = DAUConv2d(3, 4, 2, 3), torch.rand(2, 3, 6, 6)
    expected = copy.deepcopy(layer)(x)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert layer(mode.from_tensor(x)).shape == expected.shape
    assert torch.equal(layer(x), expected)


def test_what_is_kept_is_no_part_of_the_layer():
    layer, x = DAUConv2d(3, 4, 2, 3), torch.rand(2, 3, 6, 6)
    names = set(layer.state_dict())
    with torch.inference_mode():
        inference = layer(x)
    assert set(layer.state_dict()) == names
    size = len(pickle.dumps(layer))
    assert size == len(pickle.dumps(pickle.loads(pickle.dumps(layer))))
    out = layer(x)  # gradients do not go through what inference has kept
    out.sum().backward()
    assert relative(out, inference) < 1e-6
    layer.double()
    with torch.no_grad():
        assert relative(layer(x.double()), Algorithm1Conv2d.from_model(layer)(x.double())) < 1e-10
