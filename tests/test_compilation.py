"""Compiled training: a compilation for every size of picture and no more, and a plain network where it fails."""

import functools

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd

from codanet.models.architectures import Layer
from codanet.models.network import CoDANet
from codanet.training.compilation import Compiled, has_compiler
from codanet.training.loss import Passes, objective, weight_rows

compile_ = torch.compile


@pytest.fixture
def model() -> CoDANet:
    return CoDANet([Layer(4, rank=2), Layer(3, rank=2, kernel_size=1)], image_size=8)


@pytest.fixture
def compiled_shapes(monkeypatch) -> list[tuple]:
    """Shapes of the encoded pictures, one for each graph that was handed to the compiler."""
    shapes: list[tuple] = []

    def backend(graph, inputs, options):
        values = [node.meta["example_value"] for node in graph.graph.nodes if node.op == "placeholder"]
        shapes.extend(each.shape for each in values if isinstance(each, torch.Tensor) and each.ndim == 4)
        return graph.forward

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    torch._dynamo.reset()
    return shapes


def test_growing_pictures_are_compiled_size_by_size_and_batches_share(model, compiled_shapes):
    said: list[str] = []
    network = Compiled(model, model.features, "the network", said.append)
    for side in (6, 8, 10):
        for number in (4, 3, 5):  # the last batch of an epoch is smaller
            pictures = torch.rand(number, 3, side, side)
            torch.testing.assert_close(network(pictures), model.features(model.encode(pictures)))
    assert [shape[2:] for shape in compiled_shapes] == [(side, side) for side in (6, 8, 10)]
    for batch, _, *sides in compiled_shapes:
        assert not isinstance(batch, int)  # a symbol: any number of pictures
        assert all(isinstance(side, int) for side in sides)  # a number: symbols here break the compiler's code
    assert [line.split(" in ")[0] for line in said] == [
        f"compiled the network for pictures of {side}x{side}" for side in (6, 8, 10)
    ]


def test_passes_with_gradients_and_without_are_compiled_for_what_removal_does(model, compiled_shapes):
    images, labels, said = torch.rand(8, 3, 8, 8), torch.tensor([0, 1, 2, 1, 0, 0, 2, 1]), []
    maps = Compiled(model, model.features, "the network", said.append)
    rows = Compiled(model, weight_rows(model), "the rows of W", said.append)
    gradients = []
    for passes in (None, Passes(maps, rows)):
        generator = torch.Generator().manual_seed(0)
        loss, _ = objective(model, images, labels, removal_error=0.5, generator=generator, passes=passes)
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
    for plain, fast in zip(*gradients, strict=True):
        torch.testing.assert_close(fast, plain)
    assert [line.split(" in ")[0] for line in said] == [
        "compiled the network for pictures of 8x8 without gradients",  # to find the likeliest wrong classes
        "compiled the rows of W for pictures of 8x8",
        "compiled the network for pictures of 8x8",  # the other pictures, and those without pixels
    ]


def test_the_rows_of_lambda_are_compiled_as_well_with_the_same_gradient(model, compiled_shapes):
    images, labels = torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 2, 1])
    network = Compiled(model, weight_rows(model), "the rows of W", lambda line: None)
    gradients = []
    for passes in (None, Passes(model.features, network)):
        generator = torch.Generator().manual_seed(0)
        loss, _ = objective(model, images, labels, regularisation=0.5, generator=generator, passes=passes)
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
    for plain, fast in zip(*gradients, strict=True):
        torch.testing.assert_close(fast, plain)
    assert len(compiled_shapes) == 1
    assert not isinstance(compiled_shapes[0][0], int)


def test_a_network_that_cannot_be_compiled_goes_on_in_words(model, monkeypatch):
    def backend(graph, inputs, options):
        raise RuntimeError("no compiler\nis here")

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    torch._dynamo.reset()
    said: list[str] = []
    network, pictures = Compiled(model, model.features, "the network", said.append), torch.rand(2, 3, 8, 8)
    for _ in range(2):
        assert torch.equal(network(pictures), model.features(model.encode(pictures)))
    (line,) = said
    assert line == "could not compile the network (no compiler): going on without compiling, which is only slower"


@pytest.mark.parametrize("looked_at_before", [False, True], ids=["at once", "after a pass without gradients"])
def test_a_backward_pass_that_cannot_be_compiled_goes_on_as_well(model, monkeypatch, looked_at_before):
    def no_backward(graph, inputs):
        raise RuntimeError("no room for it")

    backend = aot_autograd(fw_compiler=lambda graph, inputs: graph.forward, bw_compiler=no_backward)
    monkeypatch.setattr(torch, "compile", lambda function, **options: compile_(function, backend=backend))
    torch._dynamo.reset()
    said: list[str] = []
    network, pictures = Compiled(model, model.features, "the network", said.append), torch.rand(2, 3, 8, 8)
    if looked_at_before:
        with torch.no_grad():
            network(pictures)
    network(pictures).sum().backward()
    *_, line = said
    assert len(said) == 1 + looked_at_before
    assert line == "could not compile the network (no room for it): going on without compiling, which is only slower"


def test_a_compiler_is_looked_for(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert not has_compiler()
    assert has_compiler("cuda")
