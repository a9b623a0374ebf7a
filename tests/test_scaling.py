"""The formulas of the scaling page agree with counts of real runs, and the page with the formulas."""

from pathlib import Path

import pytest
import torch
from torch import nn

import costs
import scaling
from codanet import forms
from codanet.benchmarks.algorithm1 import Algorithm1Net
from codanet.dau import DAUConv2d
from codanet.models.architectures import ARCHITECTURES
from codanet.models.zoo import create_model
from costs import METHODS, Method, all_reduce_seconds, largest_batch, memory, run, seconds
from counts import Counter, Counts, check, measure, one_block
from operations import Operation, Shape, our_backward, our_forward, our_kept, our_working, shapes
from scaling import fill

pytestmark = pytest.mark.usefixtures("one_thread")

PAGE = Path(__file__).parents[1] / "docs" / "scaling.md"
TF32, BF16, BF16_FULL, AGAIN, FIRST_TF32, FIRST_BF16 = METHODS


@pytest.mark.parametrize(
    ("name", "size", "batch", "method"),
    [
        *(("s_coda", 32, 1, method) for method in (TF32, FIRST_TF32)),
        *(("l_coda", 48, 2, method) for method in (TF32, FIRST_TF32)),  # norms by Gram matrix and directly
        *(("s_coda_r1_4", 16, 2, method) for method in (BF16, AGAIN, FIRST_BF16)),
    ],
    ids=lambda value: value.label if isinstance(value, Method) else str(value),
)
def test_formulas_agree_with_counts(name, size, batch, method):
    formula, counted = check(name, size, batch, method)
    assert formula.flops == pytest.approx(counted.flops, rel=0.001)
    assert formula.forward_flops == pytest.approx(counted.forward_flops, rel=0.001)
    assert formula.bytes == pytest.approx(counted.bytes, rel=0.02)
    assert formula.forward_bytes == pytest.approx(counted.forward_bytes, rel=0.02)
    assert formula.kept == pytest.approx(counted.kept, rel=0.02)
    assert formula.kernels == pytest.approx(counted.kernels, rel=0.06)


LAYERS = {  # channels, image size, units, rank of a 3x3 layer, by how its norms are made and differentiated
    "directly": (5, 4, 7, 9),
    "by G": (20, 12, 8, 18),
    "by G, in parts": (20, 18, 8, 80),
    "by zzᵀ": (20, 12, 40, 18),
}


@pytest.fixture(params=LAYERS)
def layer(request) -> tuple[Shape, list[int]]:
    channels, size, units, rank = LAYERS[request.param]
    shape = Shape(size**2, channels * 9, units, rank, channels * size**2, channels * (size + 2) ** 2, 3, False)
    assert shape.direct == (request.param == "directly")
    assert (shape.rows <= units) == (request.param == "by zzᵀ")
    return shape, [channels, size, units, rank]


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("low", [4, 2])
def test_formulas_of_one_layer(layer, low, recompute):
    shape, (channels, size, units, rank) = layer
    module = DAUConv2d(channels, units, rank, 3, recompute=recompute)
    dtype = torch.float32 if low == 4 else torch.bfloat16
    x = torch.rand(1, size, size, channels, dtype=dtype, requires_grad=True)
    forward, backward, held = Counter(), Counter(), {}

    def pack(tensor):
        held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with one_block(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        with forward, torch.autocast("cpu", torch.bfloat16, enabled=low == 2):
            out = module(x.permute(0, 3, 1, 2))
        grad = torch.ones(1, size, size, units, dtype=dtype)
        with backward:
            torch.autograd.grad(out.permute(0, 2, 3, 1), [x, *module.parameters()], grad)
    held.pop(module.A.untyped_storage().data_ptr())
    assert our_kept(shape, low, recompute) == sum(held.values())
    for formula, counted in (our_forward(shape, low), forward), (our_backward(shape, low, recompute), backward):
        assert sum(operation.flops for operation in formula) == pytest.approx(counted.flops, rel=1e-12)
        assert sum(operation.kernels for operation in formula) == counted.kernels
        assert sum(operation.bytes for operation in formula) == pytest.approx(counted.bytes, rel=0.002)


def test_counts_of_a_plain_layer_are_known_by_construction():
    class Linear(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(5, 3))

        def forward(self, x):
            return torch.mm(x, self.weight.t())

    counts = measure(Linear(), torch.ones(4, 3), 5)
    assert counts.forward_flops == 2 * 4 * 3 * 5
    assert counts.forward_bytes == 4 * (4 * 3 + 3 * 5 + 4 * 5)
    assert counts.flops == 2 * counts.forward_flops  # the weight's gradient; the input needs none
    assert counts.kept == 4 * 4 * 3  # the input, not the weight


def test_in_place_products_are_counted():
    counter = Counter()
    with counter:
        torch.zeros(3, 5).addmm_(torch.ones(3, 4), torch.ones(4, 5))
    assert counter.flops == 2 * 3 * 4 * 5


def test_a_copy_onto_itself_is_no_kernel():
    x, counter = torch.zeros(4, 3), Counter()
    with counter:
        x[1:] += 1
        assert (counter.kernels, counter.bytes) == (1, 4 * 2 * 9)
        x[1:] = x[:3].clone()
    assert counter.kernels == 3


def test_counting_leaves_the_block_size_as_it_was():
    before = forms.BLOCK_BYTES, forms.LOOP_NUMBERS
    with pytest.raises(ValueError, match="images are"):
        measure(create_model("nano_coda"), torch.ones(1, 1, 8, 8), 10)
    assert before == (forms.BLOCK_BYTES, forms.LOOP_NUMBERS)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_shapes_have_the_parameters_of_the_model(name):
    parameters = sum(parameter.numel() for parameter in create_model(name).parameters())
    assert sum(layer.parameters for layer in shapes(name, None, ARCHITECTURES[name].image_size, 1)) == parameters


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """In one block, and with no workspace that outlives an operation."""
    monkeypatch.setattr(forms.Workspace, "__init__", lambda self, *args, **kwargs: setattr(self, "buffer", None))
    with one_block():
        yield


def peak_bytes(step):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


@pytest.mark.parametrize("method", [TF32, FIRST_TF32], ids=lambda method: method.label)
def test_memory_bounds_the_peak(method, as_on_a_gpu):
    model: nn.Module = create_model("s_coda_r1_2")
    if method is FIRST_TF32:
        model = Algorithm1Net.from_model(model)
    images = torch.rand(2, 3, 32, 32)
    peak = peak_bytes(lambda: model(images).sum().backward())
    layers = shapes("s_coda_r1_2", None, 32, 2)
    resident = 3 * 4 * sum(layer.parameters for layer in layers)  # parameters and Adam's moments are not in the profile
    assert 0.7 * (memory(method, layers) - resident) < peak <= memory(method, layers) - resident


@pytest.mark.parametrize("recompute", [False, True])
def test_memory_of_one_layer_bounds_its_peak(layer, recompute, as_on_a_gpu):
    shape, (channels, size, units, rank) = layer
    module = DAUConv2d(channels, units, rank, 3, recompute=recompute)
    x = torch.rand(1, size, size, channels, requires_grad=True)
    peak = peak_bytes(lambda: module(x.permute(0, 3, 1, 2)).sum().backward())
    most = our_kept(shape, 4, recompute) + our_working(shape, 4, recompute) + 4 * shape.parameters  # and their gradient
    assert 0.8 * most < peak <= most


def test_roofline_takes_the_slowest_of_three():
    rates = {"low": 1e12}
    per_byte, per_flop = 1 / (costs.BANDWIDTH_SHARE * costs.HBM), 1 / (costs.COMPUTE_SHARE * 1e12)
    assert seconds(Operation("traffic", 1e12, 1), rates) == pytest.approx(1e12 * per_byte)
    assert seconds(Operation("arithmetic", 1, 1e12), rates) == pytest.approx(1e12 * per_flop)
    assert seconds(Operation("launch", 1, 1, kernels=3), rates) == 3 * costs.KERNEL_SECONDS


def test_all_reduce():
    assert all_reduce_seconds(1e9, 1) == 0
    node = all_reduce_seconds(1e9, 8)
    assert node == pytest.approx(2 * 7 / 8 * 1e9 / (costs.BANDWIDTH_SHARE * costs.NVLINK))
    assert all_reduce_seconds(1e9, 64) > node


def test_the_global_batch_is_divided_and_accumulated():
    one = run(BF16, 8, 64, largest=8)
    assert (one.micro_batch, one.accumulate) == (8, 1)
    parts = run(BF16, 8, 64, largest=3)
    assert (parts.micro_batch, parts.accumulate) == (3, 3)
    assert parts.hours > one.hours > one.bound_hours
    assert one.images_per_second == pytest.approx(64 / one.step)


def test_largest_batch_is_the_largest():
    arguments = (costs.MODEL, costs.CLASSES, costs.SIZE)
    for method in METHODS:
        batch = largest_batch(method, *arguments)
        sizes = [memory(method, shapes(*arguments, number)) for number in (batch, batch + 1)]
        assert sizes[0] <= costs.MEMORY_SHARE * costs.CAPACITY < sizes[1]


def test_the_page_is_up_to_date():
    page = PAGE.read_text()
    assert fill(page, scaling.tables()) == page, "run: python benchmarks/scaling.py --markdown docs/scaling.md"
    assert "<!-- check -->\nCounted" in page


def test_a_page_without_a_place_is_refused():
    with pytest.raises(ValueError, match="no place for 'times'"):
        fill("# nothing here\n", {"times": "1"})


def test_main_prints_the_tables_and_writes_a_page(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(scaling, "check", lambda *args: (Counts(1, 1, 1, 1, 1, 1), Counts(1, 1, 1, 1, 1, 1)))
    scaling.main([])
    assert "Global batch 64" in capsys.readouterr().out
    page = tmp_path / "page.md"
    names = [*scaling.tables(), "check"]
    page.write_text("\n".join(f"<!-- {name} -->\n<!-- /{name} -->" for name in names))
    scaling.main(["--markdown", str(page)])
    assert all(words in page.read_text() for words in ("Computed, not timed", "Global batch 1024", "Counted"))
