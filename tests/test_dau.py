"""The fast layer against Algorithm 1, and the unit's own theorems."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codanet import DAUConv2d, DAULinear
from codanet.benchmarks.algorithm1 import Algorithm1Conv2d
from nearness import relative

RESCALINGS = ["sq", "l2", "l1", lambda norm: 1 / (1 + norm)]


# in_channels, out_channels, rank, kernel_size, stride, padding, height, width
SHAPES = [
    (6, 4, 3, 3, 1, 1, 7, 7),
    (2, 5, 1, 3, 2, 1, 8, 5),
    (4, 7, 6, 1, 1, 0, 4, 3),
    (3, 3, 40, 3, 1, 1, 6, 6),  # rank above the patch's own size
    (3, 6, 4, 7, 3, 3, 12, 9),
    (2, 2, 2, 2, 1, 0, 4, 4),
    (1, 1, 1, 3, 2, 0, 5, 5),
]


def compare(layer: DAUConv2d, x: torch.Tensor, tolerance: float) -> None:
    """Values and all gradients of the layer and of Algorithm 1."""
    slow = Algorithm1Conv2d.from_model(layer)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    out, expected = layer(ours), slow(theirs)
    assert relative(out, expected) < tolerance
    seed = torch.randn_like(expected)
    layer.zero_grad()
    out.backward(seed)
    expected.backward(seed)
    assert relative(ours.grad, theirs.grad) < tolerance
    for mine, other in zip((layer.B.grad, layer.A.grad), slow.factor_gradients(), strict=True):
        # at rank 1 without a bias, L2's gradient for B is zero but for rounding
        assert relative(mine, other, least=1e-2) < tolerance


@pytest.mark.parametrize("rescale", RESCALINGS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bias", [True, False])
def test_layer_equals_algorithm_1(shape, rescale, bias):
    channels, units, rank, kernel, stride, padding, height, width = shape
    layer = DAUConv2d(channels, units, rank, kernel, stride, padding, rescale=rescale, bias=bias).double()
    compare(layer, torch.rand(2, channels, height, width, dtype=torch.float64), 1e-10)


@pytest.mark.parametrize("rescale", ["sq", "l2", "l1"])
def test_recompute_changes_nothing_but_what_is_kept(rescale):
    layer = DAUConv2d(6, 8, 5, 3, rescale=rescale, recompute=True).double()
    x = torch.rand(3, 6, 9, 9, dtype=torch.float64)
    compare(layer, x, 1e-10)

    def numbers_kept(recompute):
        layer.recompute, sizes = recompute, []

        def pack(tensor):
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            layer(x)
        return sum(sizes)

    assert numbers_kept(True) < numbers_kept(False) / 2


@pytest.mark.parametrize("rescale", ["sq", "l2", "l1"])
def test_float32(rescale):
    layer = DAUConv2d(16, 16, 32, 3, rescale=rescale)
    compare(layer, torch.rand(2, 16, 12, 12), 1e-5)


@pytest.mark.parametrize("rescale", ["sq", "l2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", ["zero", "repeated", "tiny"])
def test_dependent_rows_of_A(rescale, dtype, rows):
    """They leave nothing for Cholesky to divide by; values and gradients are those of Algorithm 1 all the same."""
    layer = DAUConv2d(4, 4, 6, 3, rescale=rescale)
    with torch.no_grad():
        layer.A[3:6] = {"zero": 0, "repeated": layer.A[0], "tiny": 1e-9 * layer.A[3:6]}[rows]
        layer.B[3:6] *= 1e9 if rows == "tiny" else 1
    compare(layer.to(dtype), torch.rand(2, 4, 6, 6, dtype=dtype), 1e-4 if dtype == torch.float32 else 1e-10)


@settings(max_examples=40, deadline=None)
@given(
    channels=st.integers(1, 5),
    units=st.integers(1, 6),
    rank=st.integers(1, 9),
    kernel=st.sampled_from([1, 2, 3, 5]),
    stride=st.integers(1, 3),
    height=st.integers(5, 9),
    width=st.integers(5, 9),
    rescale=st.sampled_from(["sq", "l2", "l1"]),
    scale=st.sampled_from([1e-12, 1e-3, 1.0, 1e3, 1e12]),
    seed=st.integers(0, 999),
)
def test_shapes_and_bound(channels, units, rank, kernel, stride, height, width, rescale, scale, seed):
    """|DAU(p)| <= ‖p‖ at every patch (eq. 3), whatever the parameters and the input.

    In float64: where the ranks' shares of a short w nearly cancel, ‖w‖ has fewer digits than its format, and a patch of
    one value gets there by chance.
    """
    torch.manual_seed(seed)
    layer = DAUConv2d(channels, units, rank, kernel, stride, rescale=rescale)
    layer.A.data *= scale
    x = torch.randn(2, channels, height, width)
    assert layer(x).isfinite().all()
    x, out = x.double(), layer.double()(x.double())
    assert out.shape == (2, units, *layer.output_size(height, width))
    energy = torch.nn.functional.conv2d(
        x.square().sum(1, keepdim=True), torch.ones(1, 1, kernel, kernel).double(), stride=stride, padding=layer.padding
    )
    assert (out.abs() <= energy.sqrt() * (1 + 1e-8)).all()


def test_no_pictures_are_pulled_through():
    for layer, x in ((DAUConv2d(3, 4, 2, 3), torch.rand(0, 3, 8, 8)), (DAULinear(6, 4, 2), torch.rand(0, 6))):
        out, weights = layer.align(x)
        assert layer.pull(out.unsqueeze(1), weights).shape == (0, 1, *x.shape[1:])


def test_linear_equals_one_by_one_convolution():
    linear, conv = DAULinear(7, 4, 3).double(), DAUConv2d(7, 4, 3, 1).double()
    conv.load_state_dict(linear.state_dict())
    x = torch.randn(5, 7, dtype=torch.float64)
    assert torch.allclose(linear(x), conv(x[:, :, None, None])[:, :, 0, 0], rtol=1e-12)
    out, weights = linear.align(x.view(5, 1, 7))
    rows = linear.pull(torch.eye(4, dtype=torch.float64).expand(5, 1, 4, 4), weights)  # [5, 1, 4, 7]
    assert torch.allclose((rows * x.view(5, 1, 1, 7)).sum(-1), out, rtol=1e-12)


def test_dense_matrix():
    layer = DAUConv2d(2, 3, 4, 3, 2).double()
    x = torch.rand(2, 2, 5, 5, dtype=torch.float64)
    out, weights = layer.align(x)
    entries = out[0].numel()
    rows = torch.eye(entries, dtype=torch.float64).view(1, entries, *out.shape[1:]).expand(2, -1, -1, -1, -1)
    expected = Algorithm1Conv2d.from_model(layer).dynamic_matrix(x)
    assert torch.allclose(layer.pull(rows, weights).flatten(2), expected, atol=1e-13)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((3, 4, 0, 3), "rank is 0"),
        ((3, 4, 2, 0), "kernel_size is 0"),
        ((0, 4, 2, 3), "in_channels is 0"),
        ((3, 4, 2, 3, 0), "stride is 0"),
        ((3, 4, 2, 3, 1, -1), "padding is -1"),
        ((3, 4, 1.5, 3), "rank is 1.5"),
        ((3, 4, 2, "3"), "kernel_size is '3'"),
    ],
)
def test_bad_sizes(arguments, words):
    with pytest.raises(ValueError, match=words):
        DAUConv2d(*arguments)


def test_bad_rescale_and_shapes():
    with pytest.raises(ValueError, match="did you mean 'l2'"):
        DAUConv2d(3, 4, 2, 3, rescale="l22")
    with pytest.raises(ValueError, match="one factor"):
        DAUConv2d(3, 4, 2, 3, rescale=lambda norm: 3)
    with pytest.raises(ValueError, match=r"must be \[N, 3, H, W\]"):
        DAUConv2d(3, 4, 2, 3)(torch.rand(2, 4, 5, 5))
    with pytest.raises(ValueError, match="too small"):
        DAUConv2d(3, 4, 2, 7, padding=0)(torch.rand(2, 3, 5, 5))
    with pytest.raises(ValueError, match="last dimension must be 3"):
        DAULinear(3, 4, 2)(torch.rand(2, 4))
