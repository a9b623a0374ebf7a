"""The layer where floating point is hard: cancelling weights, tiny and huge inputs, short formats."""

import copy
import itertools

import pytest
import torch

from codanet import DAUConv2d, DAULinear
from codanet.benchmarks.algorithm1 import Algorithm1Conv2d
from nearness import relative


def hard_cases():
    """Layers and inputs in float64 whose weights nearly cancel, or are tiny or huge."""
    torch.manual_seed(3)
    for delta, rescale in itertools.product([1e-1, 1e-2, 3e-3], ["sq", "l2"]):
        layer = DAUConv2d(8, 6, 12, 3, rescale=rescale).double()
        x = torch.rand(2, 8, 10, 10, dtype=torch.float64)
        patch = torch.nn.functional.unfold(x[:1], 3)[0, :, 17].view(8, 9).t().flatten()
        with torch.no_grad():  # b = -(1 + δ) A z at one patch
            layer.A[-1] = -(1 + delta) * torch.einsum("r,rjd->jd", layer.B @ patch, layer.A[:-1])
        yield f"cancelling {delta} {rescale}", layer, x, patch
    for size, rescale in itertools.product([1e-18, 1e-9, 1e9, 1e18], ["sq", "l2"]):
        layer = DAUConv2d(8, 6, 12, 3, rescale=rescale).double()
        with torch.no_grad():
            layer.A *= size
        x = torch.rand(2, 8, 10, 10, dtype=torch.float64)
        yield f"size {size} {rescale}", layer, x, None


@pytest.mark.parametrize(
    ("name", "layer", "x", "patch"), list(hard_cases()), ids=lambda v: v if isinstance(v, str) else ""
)
def test_hard_cases_in_float32(name, layer, x, patch):
    """float32 against a float64 oracle with the same, rounded, parameters: within 1e-4."""
    fast = DAUConv2d(8, 6, 12, 3, rescale=layer.rescale)
    fast.load_state_dict({k: v.float() for k, v in layer.state_dict().items()})
    oracle = Algorithm1Conv2d.from_model(fast).double()
    x = x.float()
    expected = oracle(x.double())
    out = fast(x)
    assert relative(out.double(), expected) < 1e-4
    assert ((out - expected).abs().max() / expected.abs().max()) < 1e-4
    seed = torch.randn_like(out)
    out.backward(seed)
    expected.backward(seed.double())
    for mine, other in zip((fast.B.grad, fast.A.grad), oracle.factor_gradients(), strict=True):
        assert mine.isfinite().all()
        assert relative(mine.double(), other) < 1e-4


@pytest.mark.parametrize("rescale", ["sq", "l2", "l1"])
@pytest.mark.parametrize("bias", ["none", "zero", "some"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_patches(rescale, bias, dtype):
    layer = DAUConv2d(3, 4, 5, 3, rescale=rescale, bias=bias != "none").to(dtype)
    if bias == "zero":
        layer.A.data[-1] = 0
    x = torch.rand(2, 3, 9, 9, dtype=dtype)
    x[:, :, :6] = 0  # whole patches of zeros
    x.requires_grad_()
    out = layer(x)
    assert (out[:, :, :5] == 0).all()
    out.sum().backward()
    assert all(g.isfinite().all() for g in (x.grad, layer.A.grad, layer.B.grad))
    layer.A.data.zero_()  # weights that are zero everywhere
    out = layer(x)
    assert (out == 0).all()
    out.sum().backward()
    assert all(g.isfinite().all() for g in (x.grad, layer.A.grad, layer.B.grad))


@pytest.mark.parametrize("size", [1e-25, 1e-10, 1e10, 1e18])
@pytest.mark.parametrize("rescale", ["sq", "l2", "l1"])
def test_tiny_and_huge_inputs(size, rescale):
    layer = DAUConv2d(3, 4, 5, 3, rescale=rescale, bias=False)
    x = (torch.rand(2, 3, 6, 6) * size).requires_grad_()
    expected = Algorithm1Conv2d.from_model(layer).double()(x.double())
    out = layer(x)
    assert relative(out.double() / size, expected / size) < 1e-4 or expected.abs().max() < 1e-38
    (out.sum() / size).backward()
    assert all(g.isfinite().all() for g in (x.grad, layer.A.grad, layer.B.grad))


@pytest.mark.parametrize("zero", [-1, 0, slice(0, 6, 5)], ids=["bias", "first", "both"])
@pytest.mark.parametrize("rescale", ["sq", "l2"])
def test_a_zero_column_adds_nothing_to_the_norm_of_small_inputs(rescale, zero):
    """The bias's z is 1: what a zero bias is given to keep Cholesky going must vanish beside weights of 1e-10."""
    layer = DAULinear(27, 4, 5, rescale=rescale)
    layer.A.data[zero] = 0
    exact = copy.deepcopy(layer).double()
    for size in (1.0, 1e-5, 1e-8, 1e-10):
        x, t = torch.randn(3, 27) * size, torch.randn(3, 4)
        u = torch.einsum("ijd,pi->pjd", exact.A, torch.cat([x.double() @ exact.B.T, torch.ones(3, 1).double()], 1))
        norm = u.norm(dim=2, keepdim=True)
        w = u / norm if rescale == "l2" else u * norm / (1 + norm**2)
        expected = (w * x.double()[:, None]).sum(2)
        out = layer(x)
        assert relative(out.double(), expected) < 1e-5
        wanted = torch.autograd.grad((expected * t).sum(), (exact.A, exact.B), retain_graph=True)
        for ours, right in zip(torch.autograd.grad((out * t).sum(), (layer.A, layer.B)), wanted, strict=True):
            assert relative(ours.double(), right) < 1e-4


def test_autocast_keeps_norms_in_float32():
    layer = DAUConv2d(16, 16, 8, 3)
    x = torch.rand(2, 16, 8, 8, requires_grad=True)
    expected = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        out, weights = layer.align(x)
    assert out.dtype == torch.bfloat16
    assert weights.scale.dtype == torch.float32
    assert relative(out.float(), expected) < 0.02
    out.float().sum().backward()
    assert layer.A.grad.dtype == torch.float32
    assert x.grad.isfinite().all()
    pure = layer.to(torch.bfloat16)(x.bfloat16())
    assert relative(pure.float(), expected) < 0.03


@pytest.mark.parametrize("half", [True, False])
def test_float16_is_computed_in_float32(half):
    """Sums of aligned numbers pass 65504, where float16 ends."""
    layer, x = DAUConv2d(16, 8, 4, 3), 6e4 * torch.rand(2, 16, 8, 8)
    assert layer(x).abs().max() > 65504
    if half:
        expected = copy.deepcopy(layer).half().float()(x.half().float())
        out = layer.half()(x.half())
    else:
        expected = layer(x)
        with torch.autocast("cpu", torch.float16):
            out = layer(x)
    assert relative(out, expected) < 1e-5


def test_integers_are_refused_and_other_floats_converted():
    for layer, x in ((DAUConv2d(3, 4, 2, 3), torch.ones(1, 3, 5, 5)), (DAULinear(3, 4, 2), torch.ones(2, 3))):
        with pytest.raises(ValueError, match="input is torch.uint8"):
            layer(x.byte())
        assert layer(x.double()).dtype == torch.float32
