"""The fast layer against Algorithm 1, and the unit's own theorems."""

import copy
import itertools
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode

from codanet import DAUConv2d, DAULinear
from codanet.benchmarks.algorithm1 import Algorithm1Conv2d

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


def relative(a: torch.Tensor, b: torch.Tensor, least: float = 1e-30) -> float:
    return ((a - b).norm() / b.norm().clamp(min=least)).item()


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


@pytest.mark.parametrize("rescale", ["sq", "l2", "l1"])
def test_gradcheck(rescale):
    layer = DAUConv2d(2, 3, 2, 3, 2, rescale=rescale).double()
    x = torch.rand(2, 2, 5, 4, dtype=torch.float64, requires_grad=True)

    assert torch.autograd.gradcheck(lambda x, A, B: call(layer, x, A, B), (x, layer.A, layer.B))


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
    """|DAU(p)| <= ‖p‖ at every patch (eq. 3), whatever the parameters and the input."""
    torch.manual_seed(seed)
    layer = DAUConv2d(channels, units, rank, kernel, stride, rescale=rescale)
    layer.A.data *= scale
    x = torch.randn(2, channels, height, width)
    out = layer(x)
    assert out.shape == (2, units, *layer.output_size(height, width))
    assert out.isfinite().all()
    energy = torch.nn.functional.conv2d(
        x.square().sum(1, keepdim=True), torch.ones(1, 1, kernel, kernel), stride=stride, padding=layer.padding
    )
    assert (out.abs() <= energy.sqrt() * (1 + 1e-4) + 1e-30).all()


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


def test_no_pictures_are_pulled_through():
    for layer, x in ((DAUConv2d(3, 4, 2, 3), torch.rand(0, 3, 8, 8)), (DAULinear(6, 4, 2), torch.rand(0, 6))):
        out, weights = layer.align(x)
        assert layer.pull(out.unsqueeze(1), weights).shape == (0, 1, *x.shape[1:])


def test_a_factor_kept_in_inference_mode_serves_outside_of_it():
    layer, x = DAUConv2d(3, 4, 2, 3), torch.rand(1, 3, 8, 8)
    with torch.inference_mode():
        expected = layer(x)
    with torch.no_grad():
        factor = layer.norm_factor()
    out = layer(x, factor)
    out.sum().backward()
    assert torch.equal(out, expected)


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
