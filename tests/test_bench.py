"""The benchmark runs and its result is complete; how fast anything is, is for the benchmark itself to say."""

import inspect
import json
import math
import sys
import types
from pathlib import Path

import pytest
import torch
from torch import nn

from codanet.benchmarks import algorithm1
from codanet.benchmarks import bench as module
from codanet.benchmarks.bench import bench, in_own_process, in_turns
from codanet.benchmarks.measurement import build, measure, runner
from codanet.benchmarks.products import record, replay
from codanet.benchmarks.published import PublishedConv2d, PublishedNet
from codanet.cli.bench import main
from codanet.dau import DAUConv2d

TINY = {"models": ("nano_coda",), "batch": 2, "size": 8, "threads": 1}
JOB = {"model": "nano_coda", "batch": 4, "size": 16, "threads": 1, "repeats": 1, "backend": "eager"}
MAKERS = {"codanet", "compiled", "products", "algorithm1", "published"}


@pytest.fixture
def one_process(monkeypatch):
    """Measure here: a new interpreter each takes seconds, and one test below starts a real one."""
    threads = torch.get_num_threads()
    monkeypatch.setattr(module, "in_turns", lambda jobs, environment, before: [measure(job) for job in jobs])
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)  # tracing a ResNet-56 takes long
    monkeypatch.setattr(module, "can_export", lambda: False)
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
    makers = {(row["model"], row["what"]): row.keys() - {"model", "what"} for row in result["results"]}
    assert makers == {
        **{("resnet56", what): {"codanet", "compiled"} for what in ("forward", "step")},
        **{("nano_coda", what): MAKERS | {"passes"} for what in ("forward", "step")},
        ("nano_coda", "explain"): MAKERS,
        ("nano_coda", "memory"): MAKERS - {"products"},
        ("nano_coda", "alone"): {"codanet", "compiled", "products"},
        ("nano_coda", "lambda_step"): {"codanet"},
    }
    for row in result["results"]:
        for summary in (row[by] for by in row.keys() - {"model", "what"}):
            assert summary["n"] == len(summary["values"]) == 1
            assert 0 < summary["min"] <= summary["median"] <= summary["max"]
    assert max(result["agreement"]["nano_coda"].values()) < 1e-4
    assert result["compiling"]["nano_coda step"]["first"] >= 0
    assert {"cpu", "cores", "ram_gib"} <= result["machine"].keys()
    assert {"codanet", "torch", "python"} <= result["versions"].keys()
    operations = result["profile"]["nano_coda"]
    assert operations
    assert sum(operation["percent"] for operation in operations) <= 100.1

    printed = capsys.readouterr()
    table = output.with_suffix(".md").read_text()
    assert table == printed.out
    assert result["command"] in table
    for words in ("forward", "training step", "alone", "peak memory", "ResNet-56", "compiling", "spends its time on"):
        assert words in table
    assert "before" not in table.replace("before it", "")
    assert "round 1/1" in printed.err


def pretend(monkeypatch, seconds, calls=None):
    """Measurements that take what they are told to."""
    monkeypatch.setattr(module, "can_export", lambda: True)

    def answer(job, before):
        if calls is not None:
            calls.append((job["model"], job["what"], job["by"], job["batch"], before))
        value = seconds.get((job["what"], job["by"]), 1.0)
        return {"operations": [], "values": [value] * job["repeats"], "first": 31.0 if job["by"] == "compiled" else 1.0}

    monkeypatch.setattr(module, "in_turns", lambda jobs, environment, before: [answer(job, before) for job in jobs])


@pytest.fixture
def older(tmp_path):
    """A folder with another version of the package, which says so."""
    package = tmp_path / "older" / "codanet"
    package.mkdir(parents=True)
    source = (
        "import torch\n\ndef create_model(name, num_classes):\n    return torch.nn.Linear(0, 0) if name else None\n"
    )
    (package / "__init__.py").write_text(
        source.replace("torch.nn.Linear(0, 0)", "Model()")
        + "\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return x\n"
    )
    return package.parent


def test_rounds_and_repeats_add_up(monkeypatch, capsys, older):
    calls = []
    pretend(monkeypatch, {}, calls)
    result = bench(**TINY, rounds=2, repeats=4, before=older)
    counts = {(row["what"], by): row[by]["n"] for row in result["results"] for by in row.keys() - {"model", "what"}}
    assert counts["step", "codanet"] == counts["step", "compiled"] == counts["step", "before"] == 8
    assert counts["step", "algorithm1"] == counts["step", "published"] == 4
    assert counts["step", "products"] == counts["explain", "onnxruntime"] == 8
    assert counts["memory", "codanet"] == 4  # in the first round alone
    assert {batch for _, what, _, batch, _ in calls if what == "alone"} == {1}
    assert {before for _, _, by, _, before in calls if by == "before"} == {older}
    both = [call for call in calls[:-3] if call[1] != "memory"]  # agreement and profile come once, after the rounds
    assert both[: len(both) // 2] == both[len(both) // 2 :][::-1]


def test_ratios_are_between_medians(monkeypatch, capsys, older):
    seconds = {
        ("forward", "compiled"): 2.0,
        ("explain", "compiled"): 3.0,
        ("alone", "compiled"): 2.25,
        ("step", "codanet"): 4.0,
        ("step", "compiled"): 3.0,
        ("step", "before"): 4.5,
        ("step", "algorithm1"): 36.0,
        ("step", "products"): 2.4,
        ("step", "passes"): 2.5,
    }
    pretend(monkeypatch, seconds)
    bench(**TINY, rounds=2, repeats=1, before=older)
    lines = capsys.readouterr().out.splitlines()
    step = next(line for line in lines if line.startswith("| nano_coda | training step | "))
    assert (
        step
        == "| nano_coda | training step | 9.00x | 12.00x | 0.25x | 0.33x | 1.12x | 1.50x | 15.00x | 1.88x | 1.80x |"
    )
    assert any(line.startswith("| nano_coda, compiled | 1.50 | 1.50 | ") for line in lines)
    assert "| nano_coda step | 28.0 | 28.0 |" in lines


class TestProducts:
    def test_passes_are_those_of_a_layer_by_hand(self):
        """a b, times two, times c: the factor 2 a b is written between the products; a, b and c are there before."""
        a, b, c = torch.rand(4, 6), torch.rand(6, 5), torch.rand(5, 3)
        first, second = products = record(lambda: (a @ b * 2).t().t() @ c)
        assert first.written == ()
        assert second.written == (second.args[0],)  # once, however it was viewed
        seen = []

        class Watch(torch.utils._python_dispatch.TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                seen.append(func.overloadpacket.__name__)
                return func(*args, **kwargs or {})

        alone, with_passes = replay(products), replay(products, passes=True)
        with Watch():
            alone()
            with_passes()
        assert seen == ["mm", "mm", "mm", "sum", "fill_", "mm", "sum"]

    def test_what_two_products_use_is_written_once(self):
        a, b = torch.rand(4, 4), torch.rand(4, 4)

        def run():
            doubled = a * 2
            return doubled @ b, b @ doubled

        assert [len(product.written) for product in record(run)] == [1, 0]

    def flops(self, products):
        """Of the two factors, [..., m, k] and [..., k, n]."""
        pairs = [product.args[-2:] for product in products]
        return sum(2 * math.prod(left.shape) * right.shape[-1] for left, right in pairs)

    def test_a_linear_layer_by_hand(self):
        layer, inputs = nn.Linear(6, 5), torch.rand(4, 6)
        products = record(lambda: layer(inputs).sum().backward())
        assert [str(product.function) for product in products] == ["aten.addmm.out", "aten.mm.out"]
        assert self.flops(products) == 2 * (2 * 4 * 6 * 5)  # Wx + b, and the gradient of W

    def test_the_products_of_a_step_are_recorded(self):
        """Of each layer two convolutions and what they give back, the norms' product and its two, the Gram matrix's."""
        model = build("nano_coda", "codanet")
        products = record(runner(model, "step", torch.rand(4, 3, 8, 8)))
        names = [product.function.overloadpacket.__name__ for product in products]
        depth = len(model.layers)
        assert (names.count("convolution"), names.count("convolution_backward")) == (2 * depth, 2 * depth)
        assert names.count("mm") == 3 * depth
        assert names.count("bmm") >= 2 * depth
        replay(products)()

    def test_a_convolution_is_done_again_in_the_memory_format_it_had(self):
        layer, x = nn.Conv2d(4, 8, 3, padding=1), torch.rand(2, 4, 6, 6).contiguous(memory_format=torch.channels_last)
        (product,) = record(lambda: layer(x))
        assert product.args[0].stride == x.stride()
        seen = []

        class Watch(torch.utils._python_dispatch.TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                seen.append(func(*args, **kwargs or {}))
                return seen[-1]

        again = replay([product])
        with Watch():
            again()
        assert seen[0].shape == layer(x).shape
        assert seen[0].is_contiguous(memory_format=torch.channels_last)

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
    monkeypatch.setattr("codanet.benchmarks.bench.bench", lambda **options: calls.append(options))
    main([])
    main(["--models", "s_coda_r1_8", "m_coda", "--batch", "2", "--before", "old", "--quick"])
    assert calls[0] == {name: parameter.default for name, parameter in inspect.signature(bench).parameters.items()}
    assert calls[1] == calls[0] | {
        "models": ("s_coda_r1_8", "m_coda"),
        "batch": 2,
        "before": Path("old"),
        "quick": True,
    }


def test_a_measurement_runs_in_a_process_of_its_own():
    (peak,) = in_own_process(JOB | {"what": "memory", "by": "algorithm1"})["values"]
    layers = build("nano_coda", "codanet").layers
    # its first layer alone makes 4 images · 16² positions · d weights for each unit, of 4 bytes
    assert peak > 4 * 16**2 * layers[0].A[0].numel() * 4


def test_measurements_take_turns(older):
    """One process by this version and one by another, which are timed alternately."""
    jobs = [JOB | {"what": "forward", "by": by, "repeats": 3} for by in ("codanet", "before")]
    ours, others = in_turns(jobs, None, older)
    assert len(ours["values"]) == len(others["values"]) == 3
    assert min(ours["values"]) > max(others["values"])  # whose model hands its input on
    turns = sorted([(at, "ours") for at in ours["at"]] + [(at, "theirs") for at in others["at"]])
    assert [who for _, who in turns] == ["ours", "theirs"] * 3


def test_another_version_is_measured_where_it_is(older):
    answer = in_own_process(JOB | {"what": "forward", "by": "before"}, None, older)
    assert answer["values"][0] > 0  # by a model that only the other version has
    with pytest.raises(RuntimeError, match="measuring explain of nano_coda by before failed: .*explain"):
        in_own_process(JOB | {"what": "explain", "by": "before"}, None, older)


def test_a_failed_measurement_says_why():
    with pytest.raises(RuntimeError, match=r"measuring step of nothing by codanet failed: .*nothing"):
        in_own_process(JOB | {"model": "nothing", "what": "step", "by": "codanet"})


def test_an_exported_network_is_measured(monkeypatch, tmp_path):
    """With stand-ins for the export and for onnxruntime: what is handed from one to the other."""
    runs = []

    class Session:
        def __init__(self, model, options, providers):
            assert (model, options.intra_op_num_threads) == (b"nano_coda", 1)

        def run(self, outputs, inputs):
            runs.append({name: value.shape for name, value in inputs.items()})

    runtime = types.ModuleType("onnxruntime")
    runtime.SessionOptions, runtime.InferenceSession = types.SimpleNamespace, Session
    room = types.ModuleType("codanet.export")
    room.export = lambda model, path: path.write_bytes(model.name.encode())
    monkeypatch.setitem(sys.modules, "onnxruntime", runtime)
    monkeypatch.setitem(sys.modules, "codanet.export", room)
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    answer = measure(JOB | {"what": "explain", "by": "onnxruntime"})
    assert len(answer["values"]) == 1
    assert runs == [{"image": (4, 3, 16, 16), "target": (4,)}] * 3  # first, to warm up, and timed


@pytest.mark.parametrize("what", ["step", "alone"])
def test_a_compiled_network_is_measured(monkeypatch, what):
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    traced = []
    torch.compiler.reset()

    def backend(graph, inputs):
        traced.append(graph)
        return graph

    answer = measure(JOB | {"what": what, "by": "compiled", "backend": backend})
    assert traced
    assert answer["first"] > answer["values"][0] > 0


def test_a_network_is_compiled_by_the_backend_asked_for(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "compile", lambda function, **options: asked.append(options["backend"]) or function)
    build("nano_coda", "compiled", "inductor")
    assert set(asked) == {"inductor"}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"models": ("s_codda",)}, "s_coda"),
        ({"models": ()}, "no model to measure"),
        ({"batch": 0}, "batch must be at least 1, not 0"),
        ({"threads": -1}, "threads must be at least 1"),
        ({"before": Path("nowhere")}, "before must be a folder with a package codanet in it, not nowhere"),
    ],
)
def test_wrong_settings_are_refused_before_any_work(monkeypatch, wrong, says):
    monkeypatch.setattr(module, "in_turns", lambda *jobs: pytest.fail("measured"))
    with pytest.raises(ValueError, match=says):
        bench(**TINY | wrong)


def test_wrong_outputs_are_refused_before_any_work(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "in_turns", lambda *jobs: pytest.fail("measured"))
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


class TestPublished:
    """The published form is the same function as Algorithm 1, gradients included."""

    @pytest.mark.parametrize("name", ["sq", "l2", "l1"])
    @pytest.mark.parametrize("bias", [True, False])
    def test_values_and_gradients_equal_algorithm_1(self, name, bias):
        layer = DAUConv2d(4, 5, 3, 3, stride=2, rescale=name, bias=bias).double()
        plain, published = (form.from_model(layer) for form in (algorithm1.Algorithm1Conv2d, PublishedConv2d))
        x = torch.randn(2, 4, 7, 6, dtype=torch.float64)
        x[0] = 0
        answers = []
        for form in (plain, published):
            given = x.clone().requires_grad_()
            out = form(given)
            out.sin().sum().backward()
            answers.append([out, given.grad, *form.factor_gradients()])
        for expected, found in zip(*answers, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)

    def test_explanation_equals_algorithm_1(self):
        model = build("nano_coda", "codanet").double()
        images = torch.rand(2, 3, 8, 8, dtype=torch.float64)
        expected, found = (net.from_model(model).explain(images) for net in (algorithm1.Algorithm1Net, PublishedNet))
        assert torch.equal(found.targets, expected.targets)
        torch.testing.assert_close(found.contributions, expected.contributions, rtol=1e-10, atol=1e-14)

    def test_other_rescalings_are_refused(self):
        layer = PublishedConv2d.from_model(DAUConv2d(4, 5, 3, 3, rescale=lambda norm: 1 / (1 + norm)))
        with pytest.raises(ValueError, match="sq, l2 and l1"):
            layer(torch.rand(1, 4, 5, 5))
