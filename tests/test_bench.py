"""The benchmark runs and its result is complete; how fast anything is, is for the benchmark itself to say."""

import inspect
import json
import math

import pytest
import torch
from torch import nn

from codanet.benchmarks import algorithm1
from codanet.benchmarks import bench as module
from codanet.benchmarks.bench import bench, in_own_process, measure
from codanet.benchmarks.products import record, replay
from codanet.cli.bench import main
from counts import one_block
from operations import WIDE, our_backward, our_forward, shapes

TINY = {"models": ("s_coda_r1_8",), "batch": 2, "size": 8, "threads": 1}
JOB = {"model": "s_coda_r1_8", "batch": 4, "size": 16, "threads": 1, "repeats": 1}


@pytest.fixture
def one_process(monkeypatch):
    """Measure here: a new interpreter each takes seconds, and one test below starts a real one."""
    threads = torch.get_num_threads()
    monkeypatch.setattr(module, "in_own_process", measure)
    with torch.random.fork_rng():
        yield
    torch.set_num_threads(threads)


def test_quick_gives_a_table_and_json(one_process, tmp_path, capsys):
    output = tmp_path / "bench.json"
    returned = bench(**TINY, output=output, quick=True)

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    result = json.loads(output.read_text(), parse_constant=refuse)
    assert result == returned
    assert {(row["model"], row["what"]) for row in result["results"]} == {
        ("s_coda_r1_8", what) for what in ("forward", "step", "explain", "memory")
    }
    for row in result["results"]:
        for by in ("codanet", "algorithm1"):
            summary = row[by]
            assert summary["n"] == len(summary["values"]) == 1
            assert 0 < summary["min"] <= summary["median"] <= summary["max"]
        assert row["ratio"] == row["algorithm1"]["median"] / row["codanet"]["median"]
    assert result["agreement"]["s_coda_r1_8"] < 1e-4
    assert result["resnet56"]["n"] == 1
    for what in ("forward", "step", "explain"):
        assert result["products"]["s_coda_r1_8"][what]["n"] == 1
        assert result["products"]["s_coda_r1_8"][what]["min"] > 0
    assert {"cpu", "cores", "ram_gib"} <= result["machine"].keys()
    assert {"codanet", "torch", "python"} <= result["versions"].keys()
    operations = result["profile"]["s_coda_r1_8"]
    assert operations
    assert sum(operation["percent"] for operation in operations) <= 100.1

    printed = capsys.readouterr()
    table = output.with_suffix(".md").read_text()
    assert table == printed.out
    assert result["command"] in table
    for words in ("forward", "training step", "explanation", "peak memory", "ResNet-56", "spends its time on"):
        assert words in table
    assert "round 1/1" in printed.err


def test_rounds_and_repeats_add_up(one_process, monkeypatch, capsys):
    order = []

    def pretend(job):
        order.append((job["model"], job["what"], job["by"]))
        if job["what"] == "profile":
            return {"operations": []}
        return {"values": [float(len(order))] * (1 if job["what"] == "memory" else job["repeats"])}

    monkeypatch.setattr(module, "in_own_process", pretend)
    result = bench(**TINY, rounds=2, repeats=4)
    counts = {(row["what"], by): row[by]["n"] for row in result["results"] for by in ("codanet", "algorithm1")}
    assert counts["step", "codanet"] == 8
    assert counts["step", "algorithm1"] == 4
    assert result["products"]["s_coda_r1_8"]["step"]["n"] == 8
    assert counts["memory", "codanet"] == counts["memory", "algorithm1"] == 2
    turns = len(order) - 2  # agreement and profile come once, after the rounds
    assert order[: turns // 2] == order[turns // 2 : turns][::-1]


def test_the_products_bound_the_ratios(one_process, monkeypatch, capsys):
    seconds = {
        ("forward", "codanet"): 2.0,
        ("explain", "codanet"): 3.0,
        ("explain_products", "codanet"): 2.5,
        ("step", "codanet"): 3.0,
        ("step", "algorithm1"): 36.0,
        ("step_products", "codanet"): 2.4,
    }

    def pretend(job):
        return {"operations": [], "values": [seconds.get((job["what"], job["by"]), 1.0)]}

    monkeypatch.setattr(module, "in_own_process", pretend)
    bench(**TINY, quick=True)
    lines = capsys.readouterr().out.splitlines()
    assert "| s_coda_r1_8 | training step | 1200.00 (1200.00..1200.00, n=1) | 80 % | 15.0x |" in lines
    assert any(line.startswith("| s_coda_r1_8 | 2.00 | 1.50 (1.25) | 0.33 |") for line in lines)


class TestProducts:
    def flops(self, products):
        """Of the two factors, [..., m, k] and [..., k, n]."""
        pairs = [product.args[-2:] for product in products]
        return sum(2 * math.prod(left.shape) * right.shape[-1] for left, right in pairs)

    def test_a_linear_layer_by_hand(self):
        layer, inputs = nn.Linear(6, 5), torch.rand(4, 6)
        products = record(lambda: layer(inputs).sum().backward())
        assert [str(product.function) for product in products] == ["aten.addmm.out", "aten.mm.out"]
        assert self.flops(products) == 2 * (2 * 4 * 6 * 5)  # Wx + b, and the gradient of W

    @pytest.mark.parametrize(("name", "batch", "size"), [("nano_coda", 4, 8), ("nano_coda", 8, 16), ("s_coda", 1, 8)])
    def test_a_step_has_the_operations_that_are_expected(self, name, batch, size):
        model = module._build(name, "codanet")
        step = module._runner(model, "step", torch.rand(batch, 3, size, size))
        layers = shapes(name, module.CLASSES, size, batch)
        operations = [op for layer in layers for op in our_forward(layer, WIDE) + our_backward(layer, WIDE)]
        expected = sum(op.flops for op in operations if op.kind != "cholesky")
        with one_block():  # small sums as products too, as on a GPU
            products = record(step)
        assert self.flops(products) == expected
        replay(products)()

    def test_memory_is_laid_out_and_shared_as_it_was(self):
        left, right, total = torch.rand(4, 6)[:, 1:4], torch.rand(2, 3).t(), torch.rand(4, 2, dtype=torch.float64)

        def run():
            total.addmm_(left.double(), right.double(), beta=0.5)
            torch.mm(torch.mm(left, right), right.t(), out=torch.empty(4, 3))

        added, first, second = products = record(run)
        assert added.kwargs == {"beta": 0.5}
        assert added.args[0].dtype == torch.float64
        assert first.args[0].stride == (6, 1)
        assert first.args[0].offset == 1
        assert first.args[1].stride == (1, 3)
        assert second.args[1].address == first.args[1].address
        assert second.args[0] == first.kwargs["out"]
        before = total.clone(), left.clone()
        replay(products)()
        assert torch.equal(total, before[0])
        assert torch.equal(left, before[1])

    def test_a_replay_does_the_products(self, monkeypatch):
        """On memory full of ones: 3 for the sum of three, then 1 + 3 · 3."""
        monkeypatch.setattr(torch, "rand", lambda *size, **kind: torch.full(size, 0.5, **kind))
        left, right, total = torch.zeros(4, 3), torch.zeros(3, 3), torch.zeros(4, 3)

        def run():
            total.addmm_(torch.mm(left, right), right)

        again, seen = replay(record(run)), []

        class Watch(torch.utils._python_dispatch.TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                seen.append(func(*args, **kwargs or {}))
                return seen[-1]

        with Watch():
            again()
        assert seen[0].unique().tolist() == [3]
        assert seen[1].unique().tolist() == [1 + 3 * 3]


def test_main_is_the_same_function(monkeypatch):
    calls = []
    monkeypatch.setattr("codanet.cli.bench.bench", lambda **options: calls.append(options))
    main([])
    main(["--models", "s_coda_r1_8", "m_coda", "--batch", "2", "--quick"])
    assert calls[0] == {name: parameter.default for name, parameter in inspect.signature(bench).parameters.items()}
    assert calls[1] == calls[0] | {"models": ("s_coda_r1_8", "m_coda"), "batch": 2, "quick": True}


def test_a_measurement_runs_in_a_process_of_its_own():
    (peak,) = in_own_process(JOB | {"what": "memory", "by": "algorithm1"})["values"]
    # layers 1 and 2 alone make 4 images · 16² positions · 16 units · 9·(6 + 16) weights of 4 bytes
    assert peak > 4 * 16**2 * 16 * 9 * (6 + 16) * 4


def test_a_failed_measurement_says_why():
    with pytest.raises(RuntimeError, match=r"measuring step of nothing by codanet failed: .*nothing"):
        in_own_process(JOB | {"model": "nothing", "what": "step", "by": "codanet"})


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"models": ("s_codda",)}, "s_coda"),
        ({"models": ()}, "no model to measure"),
        ({"batch": 0}, "batch must be at least 1, not 0"),
        ({"threads": -1}, "threads must be at least 1"),
    ],
)
def test_wrong_settings_are_refused_before_any_work(monkeypatch, wrong, says):
    monkeypatch.setattr(module, "in_own_process", lambda job: pytest.fail("measured"))
    with pytest.raises(ValueError, match=says):
        bench(**TINY | wrong)


def test_wrong_outputs_are_refused_before_any_work(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "in_own_process", lambda job: pytest.fail("measured"))
    for output in (tmp_path / "missing" / "bench.json", tmp_path / "bench.txt", tmp_path):
        with pytest.raises(ValueError, match=r"must be a \.json file in an existing directory"):
            bench(**TINY, output=output)


class TestAlgorithm1:
    """The opponent is sound by itself: its dense matrices, its explanation and its forward pass agree."""

    def net(self, act_func):
        torch.manual_seed(0)
        layer = algorithm1.Algorithm1Conv2d
        layers = [layer(6, 4, 3, 3, 1, 1, act_func), layer(4, 5, 2, 3, 2, 1, act_func, bias=False)]
        return algorithm1.Algorithm1Net(layers, 10.0, -2.0).double()

    @pytest.mark.parametrize("name", ["sq", "l2", "l1"])
    def test_explanation_is_the_product_of_dense_matrices(self, name):
        net = self.net(algorithm1.ACT_FUNCS[name])
        images = torch.rand(2, 3, 6, 7, dtype=torch.float64)
        encoded = net.encode(images)
        first, second = net.layers
        matrix = second.dynamic_matrix(first(encoded)) @ first.dynamic_matrix(encoded)
        matrix = matrix.view(2, 5, -1, encoded[0].numel()).sum(2) / 10.0  # [N, classes, C·H·W]
        logits = torch.einsum("ncd,nd->nc", matrix, encoded.flatten(1)) - 2.0
        torch.testing.assert_close(logits, net(images))
        why = net.explain(images, torch.tensor([4, 1]))
        torch.testing.assert_close(why.rows.flatten(1), torch.stack([matrix[0, 4], matrix[1, 1]]))
        torch.testing.assert_close(why.contributions.sum((1, 2, 3)), torch.stack([logits[0, 4], logits[1, 1]]) + 2.0)
        assert torch.equal(net.explain(images).targets, logits.argmax(1))

    @pytest.mark.parametrize("name", ["sq", "l2", "l1"])
    def test_zero_weights_give_zero_and_finite_gradients(self, name):
        weights = torch.zeros(1, 4, 2, dtype=torch.float64, requires_grad=True)
        out = algorithm1.ACT_FUNCS[name](weights, 1)
        out.sum().backward()
        assert (out == 0).all()
        assert weights.grad.isfinite().all()
