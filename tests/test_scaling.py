"""The counts of the scaling page are those of real runs, and the page is what is computed from them."""

from pathlib import Path

import pytest
import torch
from torch import nn

import costs
import scaling
from codanet.benchmarks.algorithm1 import Algorithm1Net
from codanet.models.zoo import create_model
from costs import METHODS, Method, all_reduce_seconds, largest_batch, memory, run
from counts import Counter, Operation, count, count_fake
from scaling import fill

pytestmark = pytest.mark.usefixtures("one_thread")

PAGE = Path(__file__).parents[1] / "docs" / "scaling.md"
FORMS = [("plain", torch.float32), ("plain", torch.bfloat16), ("recompute", torch.bfloat16)]
FORMS += [("algorithm1", torch.float32), ("algorithm1", torch.bfloat16)]
FIELDS = ("flops", "bytes", "alive")


@pytest.mark.parametrize("form", ["plain", "recompute", "algorithm1"])
def test_fake_tensors_count_as_real_ones(form):
    fake = count_fake("nano_coda", None, 12, 2, form)
    model: nn.Module = create_model("nano_coda", recompute=form == "recompute").train()
    counted = count(Algorithm1Net.from_model(model) if form == "algorithm1" else model, torch.rand(2, 6, 12, 12))
    assert [operation.name for operation in fake.operations] == [operation.name for operation in counted.operations]
    for field in ("flops", "bytes"):
        assert fake.total(field) == counted.total(field)
    assert fake.kept == counted.kept
    assert fake.peak == counted.peak


@pytest.mark.parametrize(("form", "low"), FORMS)
def test_two_batches_give_all_others(form, low):
    two, three, seven = (count_fake("nano_coda", None, 12, batch, form, low) for batch in (2, 3, 7))
    made = two.at(three, (2, 3), 7)
    for mine, theirs in zip(made.operations, seven.operations, strict=True):
        assert [getattr(mine, field) for field in FIELDS] == pytest.approx([getattr(theirs, field) for field in FIELDS])
    assert (made.kept, made.peak) == (seven.kept, seven.peak)


def test_counts_of_a_plain_layer_are_known_by_construction():
    weight, x = nn.Parameter(torch.ones(5, 3)), torch.ones(4, 3)
    with Counter() as counter:
        out = torch.mm(x, weight.t())
        (forward,) = counter.operations
        assert (forward.name, forward.dtype) == ("mm", torch.float32)
        assert forward.flops == 2 * 4 * 3 * 5
        assert forward.bytes == 4 * (4 * 3 + 3 * 5 + 4 * 5)
        assert forward.alive == counter.alive == 4 * 4 * 5
        out.sum().backward()
    assert sum(operation.flops for operation in counter.operations) == 2 * forward.flops  # the input needs no gradient
    del out
    assert counter.alive == 4 * 5 * 3  # the gradient


def test_arithmetic_that_pytorch_leaves_out():
    with Counter() as counter:
        factor = torch.linalg.cholesky_ex(torch.eye(6).expand(2, 6, 6) * 2)[0]
        torch.linalg.solve_triangular(factor, torch.ones(2, 6, 4), upper=False)
    flops = {operation.name: operation.flops for operation in counter.operations if operation.flops}
    assert flops == {"linalg_cholesky_ex": 2 * 6**3 / 3, "linalg_solve_triangular": 2 * 6**2 * 4}


@pytest.mark.parametrize("form", ["plain", "recompute", "algorithm1"])
def test_the_peak_is_what_the_profiler_sees(form):
    model: nn.Module = create_model("nano_coda", recompute=form == "recompute").train()
    if form == "algorithm1":
        model = Algorithm1Net.from_model(model)
    images = torch.rand(8, 3, 32, 32)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        model(images).sum().backward()
    now = peak = 0
    for event in sorted(profile.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    # inside an operation there is memory that is not seen as it is dispatched
    assert 0.8 * peak <= count_fake("nano_coda", None, 32, 8, form).peak <= 1.02 * peak


def test_recompute_keeps_less_for_more_arithmetic():
    plain, again = (count_fake("nano_coda", None, 16, 4, form) for form in ("plain", "recompute"))
    assert again.kept < 0.5 * plain.kept
    assert 1.2 * plain.total("flops") < again.total("flops") < 1.5 * plain.total("flops")


def test_roofline_takes_the_slowest_of_three():
    method = Method("any", "plain", torch.float32, 1e12)
    per_byte, per_flop = 1 / (costs.BANDWIDTH_SHARE * costs.HBM), 1 / (costs.COMPUTE_SHARE * 1e12)

    def seconds(name, flops, moved):
        return method.seconds(Operation(name, torch.float32, flops, moved, 0))

    assert seconds("mul", 0, 1e12) == pytest.approx(1e12 * per_byte)
    assert seconds("mm", 1e12, 1) == pytest.approx(1e12 * per_flop)
    assert seconds("mul", 0, 1) == costs.KERNEL_SECONDS
    assert seconds("linalg_cholesky_ex", 1e12, 1) == pytest.approx(1e12 / costs.CHOLESKY)


def test_all_reduce():
    assert all_reduce_seconds(1e9, 1) == 0
    node = all_reduce_seconds(1e9, 8)
    assert node == pytest.approx(2 * 7 / 8 * 1e9 / (costs.BANDWIDTH_SHARE * costs.NVLINK))
    assert all_reduce_seconds(1e9, 64) > node


def test_the_global_batch_is_divided_and_accumulated():
    one = run(costs.OURS, 8, 64, largest=8)
    assert (one.micro_batch, one.accumulate) == (8, 1)
    parts = run(costs.OURS, 8, 64, largest=3)
    assert (parts.micro_batch, parts.accumulate) == (3, 3)
    assert parts.hours > one.hours > one.bound_hours
    assert one.images_per_second == pytest.approx(64 / one.step)


def test_largest_batch_is_the_largest():
    for method in METHODS:
        batch = largest_batch(method)
        sizes = [memory(method.step(number)) for number in (batch, batch + 1)]
        assert sizes[0] <= costs.MEMORY_SHARE * costs.CAPACITY < sizes[1]


def test_the_page_is_up_to_date():
    page = PAGE.read_text()
    assert fill(page, scaling.tables()) == page, "run: python benchmarks/scaling.py --markdown docs/scaling.md"


def test_a_page_without_a_place_is_refused():
    with pytest.raises(ValueError, match="no place for 'times'"):
        fill("# nothing here\n", {"times": "1"})


def test_main_prints_the_tables_and_writes_a_page(tmp_path, capsys):
    scaling.main([])
    assert "Global batch 64" in capsys.readouterr().out
    page = tmp_path / "page.md"
    page.write_text("\n".join(f"<!-- {name} -->\n<!-- /{name} -->" for name in scaling.tables()))
    scaling.main(["--markdown", str(page)])
    assert all(words in page.read_text() for words in ("Computed, not timed", "Global batch 1024"))
