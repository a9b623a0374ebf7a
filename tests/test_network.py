"""Every registered network: its size, and that its explanations are its computation."""

import copy

import pytest
import torch

from codanet import CoDANet, create_model, list_models
from codanet.benchmarks.algorithm1 import Algorithm1Net
from codanet.models.explanation import Explanation
from codanet.models.network import Layer
from nearness import relative
from networks import of_kind

# paper, C.1 and B: in millions
PARAMETERS = {
    "s_coda": 7.78,
    "m_coda": 27.52,
    "l_coda": 47.52,
    "xl_coda": 67.56,
    "s_coda_r1_8": 1.08,
    "s_coda_r1_4": 2.03,
    "s_coda_r1_2": 3.95,
    "s_coda_r9_2": 34.6,
}


def small(**options) -> CoDANet:
    layers = [Layer(5, 3), Layer(4, 6, 3, 2), Layer(3, 2, 1)]
    return CoDANet(layers, temperature=2.0, **options).double().eval()


@pytest.fixture(scope="module", params=list_models())
def pair(request) -> tuple[CoDANet, CoDANet, Explanation, Explanation]:
    """A network and its twin in float64, and what both say of the same two pictures."""
    torch.manual_seed(0)
    # a small T, as an untrained network's logits over a large one are too small to survive the adding of b0
    model = of_kind(request.param, temperature=0.01).eval()
    exact = copy.deepcopy(model).double()
    # enough positions for every stride, and an odd number of them before one
    x = torch.rand(2, model.image_channels, *[24 if model.architecture[0].stride == 3 else 12] * 2)
    expected = exact.explain(x.double())
    return model, exact, model.explain(x, expected.targets), expected


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_counts(name):
    with torch.device("meta"):
        model = create_model(name)
    count = sum(p.numel() for p in model.parameters()) / 1e6
    assert count == pytest.approx(PARAMETERS[name], abs=0.051 if name == "s_coda_r9_2" else 0.0051)
    assert len(model.layers) == 9


def test_contributions_add_up_in_float64(pair):
    _, exact, _, why = pair
    logits = exact(why.images)
    assert torch.equal(why.targets, logits.argmax(1))
    assert torch.allclose(why.logits, logits, rtol=1e-12)
    given = why.target_logits - exact.logit_bias
    # W(x) x equals the forward pass, row by row and summed
    for total in (why.contributions.sum((1, 2, 3)), why.pixels.sum((1, 2)), (why.rows * why.inputs).sum((1, 2, 3))):
        assert ((total - given).abs() / given.abs()).max() < 1e-10
    assert why.completeness_error().max() < 1e-10


def test_contributions_add_up_in_float32(pair):
    model, _, why, expected = pair
    total = why.contributions.double().sum((1, 2, 3))
    given = (why.target_logits - model.logit_bias).double()
    # relative to what is added up: an untrained network's contributions nearly cancel
    size = why.contributions.double().abs().sum((1, 2, 3))
    assert ((total - given).abs() / size).max() < 1e-4
    assert relative(why.rows, expected.rows) < 1e-4
    assert relative(why.logits, expected.logits) < 1e-4


@pytest.mark.parametrize("rescale", ["sq", "l2", "l1"])
def test_network_equals_algorithm_1(rescale):
    model = create_model("s_coda_r1_4", rescale=rescale).double()
    slow = Algorithm1Net.from_model(model)
    x = torch.rand(2, 3, 12, 12, dtype=torch.float64)
    assert torch.allclose(model(x), slow(x), rtol=1e-12)
    ours, theirs = model.explain(x, 3), slow.explain(x, 3)
    assert relative(ours.rows, theirs.rows) < 1e-10
    loss = torch.nn.functional.binary_cross_entropy_with_logits
    target = torch.rand(2, 10, dtype=torch.float64)
    loss(model(x), target).backward()
    loss(slow(x), target).backward()
    for layer, other in zip(model.layers, slow.layers, strict=True):
        for mine, expected in zip((layer.B.grad, layer.A.grad), other.factor_gradients(), strict=True):
            assert relative(mine, expected) < 1e-9


def test_batch_equals_its_images_and_all_equals_class_by_class():
    model = create_model("s_coda_r1_8", num_classes=7).double().eval()
    x = torch.rand(3, 3, 16, 16, dtype=torch.float64)
    together = model.explain(x, "all")
    assert together.rows.shape == (3, 7, 6, 16, 16)
    assert together.contributions.shape == together.rows.shape
    assert together.pixels.shape == (3, 7, 16, 16)
    assert together.target_logits.shape == (3, 7)
    for n in range(3):
        assert torch.allclose(model.explain(x[n : n + 1], "all").rows, together.rows[n : n + 1], atol=1e-14)
    for c in range(7):
        assert torch.allclose(model.explain(x, c).rows, together.rows[:, c], atol=1e-14)
    assert (together.completeness_error() < 1e-10).all()


def test_targets():
    model = small(class_names=("ant", "bee", "cat"))
    x = torch.rand(4, 3, 6, 6, dtype=torch.float64)
    whole = model.explain(x, "all")
    assert torch.equal(model.explain(x, "bee").rows, model.explain(x, 1).rows)
    mixed = model.explain(x, [0, 2, 1, 1])
    assert torch.allclose(mixed.rows, whole.rows[torch.arange(4), [0, 2, 1, 1]], atol=1e-15)
    assert torch.equal(model.explain(x, ["ant", "cat", "bee", "bee"]).targets, mixed.targets)
    pairs = model.explain(x, torch.tensor([[0, 2]] * 4))
    assert torch.allclose(pairs.rows, whole.rows[:, [0, 2]], atol=1e-15)
    assert mixed.class_name(2) == "cat"


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (3, "target 3 is out of range: the classes are 0 to 2"),
        (-1, "target -1 is out of range"),
        ([0, 1], r"shape \[2\] for 4 images"),
        ([[0, 1]] * 3, r"shape \[3, 2\] for 4 images"),
        ("dog", "unknown class 'dog'"),
        ("be", "did you mean 'bee'"),
        (1.5, "class numbers"),
        (torch.zeros(4), "class numbers"),
        (torch.zeros(4, 0, dtype=torch.long), "shape"),
        ([[0], [1, 2], [1], [1]], "give a class"),
    ],
)
def test_bad_targets(target, words):
    model = small(class_names=("ant", "bee", "cat"))
    with pytest.raises(ValueError, match=words):
        model.explain(torch.rand(4, 3, 6, 6, dtype=torch.float64), target)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.rand(3, 6, 6), r"shape \[3, 6, 6\]: they must be \[N, 3, H, W\]"),
        (torch.rand(2, 4, 6, 6), r"\[2, 4, 6, 6\]"),
        (torch.randint(0, 255, (2, 3, 6, 6), dtype=torch.uint8), "divide 8-bit ones by 255"),
        (torch.rand(2, 3, 6, 6) * 255, "0..255"),
        (torch.full((2, 3, 6, 6), float("nan")), "from nan to nan"),
        (torch.full((2, 3, 6, 6), float("inf")), "inf"),
        (torch.rand(0, 3, 6, 6), "nothing in them"),
        (torch.rand(1, 3, 0, 6), "nothing in them"),
        ("cat.png", "images are str"),
    ],
)
@pytest.mark.parametrize("call", ["forward", "explain", "trace"])
def test_bad_images(x, words, call):
    model = small().float()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=words):
        getattr(model, call)(x)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_encoded_and_grey_images():
    model = small()
    x = torch.rand(2, 3, 7, 5, dtype=torch.float64)
    assert torch.equal(model(x), model(torch.cat([x, 1 - x], 1)))
    assert torch.equal(model.explain(x).images, x)
    grey = create_model("nano_coda", num_classes=4, image_channels=1).double()
    why = grey.explain(torch.rand(2, 1, 8, 8, dtype=torch.float64), "all")
    assert why.rows.shape == (2, 4, 2, 8, 8)
    assert why.completeness_error().max() < 1e-10


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (5, 40)])
def test_any_image_size(size):
    model = create_model("s_coda_r1_8", temperature=1e-4).double()  # or b0 would swallow what few pixels contribute
    why = model.explain(torch.rand(1, 3, *size, dtype=torch.float64))
    assert why.completeness_error().max() < 1e-10


def test_explanation_leaves_the_caller_alone():
    model = create_model("nano_coda", image_channels=3)
    x = torch.rand(2, 3, 8, 8, requires_grad=True)
    model.train()
    model(x).sum().backward()
    grads = [p.grad.clone() for p in model.parameters()]
    state = torch.get_rng_state()
    why = model.explain(x)
    model.trace(x)
    assert model.training
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(g, p.grad) for g, p in zip(grads, model.parameters(), strict=True))
    assert all(p.requires_grad for p in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())
    assert not why.rows.requires_grad
    with pytest.raises(ValueError, match="out of range"):
        model.explain(x, 99)
    assert model.training
    assert torch.is_grad_enabled()


def test_explanation_in_every_mode():
    model = create_model("nano_coda").eval()
    x = torch.rand(3, 3, 8, 8)
    expected = model.explain(x, "all")
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode():
            assert torch.allclose(model.explain(x, "all").rows, expected.rows)
            assert torch.allclose(model.explain(x, 2).rows, expected.rows[:, 2], atol=1e-7)
    with torch.inference_mode():
        model(x)
    model(x).sum().backward()  # nothing made under inference mode is left behind


def test_chunks_change_nothing(monkeypatch):
    model = create_model("s_coda_r1_8").double()
    x = torch.rand(5, 3, 8, 8, dtype=torch.float64)
    whole, one = model.explain(x, "all"), model.explain(x)
    monkeypatch.setattr("codanet.models.network.CHUNK_NUMBERS", 3 * 64 * 144)
    monkeypatch.setattr("codanet.dau.CHUNK_NUMBERS", 2 * 64 * 144)  # a layer bounds what it is given as well
    parts = model.explain(x, "all")
    assert torch.allclose(parts.rows, whole.rows, atol=1e-15)
    assert torch.equal(parts.logits, whole.logits)
    assert torch.allclose(model.explain(x).rows, one.rows, atol=1e-15)


@pytest.mark.filterwarnings("ignore")
def test_compiled():
    model = CoDANet([Layer(5, 3), Layer(3, 2, stride=2)], temperature=1.0)
    x = torch.rand(4, 3, 8, 8)
    compiled = torch.compile(model, backend="aot_eager")
    assert torch.allclose(compiled(x), model(x), atol=1e-5)
    model.zero_grad()
    compiled(x).sum().backward()
    mine = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x).sum().backward()
    for a, p in zip(mine, model.parameters(), strict=True):
        assert torch.allclose(a, p.grad, rtol=1e-3, atol=1e-5)
    explain = torch.compile(lambda x: model.explain(x, 1).contributions, backend="aot_eager")
    assert torch.allclose(explain(x), model.explain(x, 1).contributions, atol=1e-5)


def test_autocast():
    model = create_model("nano_coda", temperature=1.0).eval()
    x = torch.rand(4, 3, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(x)
        why = model.explain(x)
    assert logits.dtype == torch.float32
    assert (logits - model(x)).abs().max() < 0.05
    assert why.completeness_error().max() < 0.02


def test_bad_networks():
    with pytest.raises(ValueError, match="did you mean 's_coda'"):
        create_model("s_codda")
    with pytest.raises(ValueError, match="num_classes is 0"):
        create_model("s_coda", num_classes=0)
    with pytest.raises(ValueError, match="temperature is -1"):
        create_model("s_coda_r1_8", temperature=-1)
    with pytest.raises(ValueError, match="temperature is 0"):
        create_model("s_coda_r1_8", temperature=0)
    with pytest.raises(ValueError, match="2 class names were given for 10 classes"):
        create_model("s_coda_r1_8", num_classes=10, class_names=("a", "b"))
    with pytest.raises(ValueError, match="no layers"):
        CoDANet([])


def test_several_targets_under_autocast():
    model = create_model("nano_coda", temperature=1.0).eval()
    x = torch.rand(2, 3, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        why = model.explain(x, "all")
    assert why.completeness_error().max() < 0.02


def test_explaining_encoded_images_that_require_gradients():
    why = create_model("nano_coda").explain(torch.rand(1, 6, 8, 8, requires_grad=True))
    assert not why.contributions.requires_grad


def test_a_default_device_elsewhere_leaves_no_trace():
    model, x = create_model("nano_coda"), torch.rand(1, 3, 8, 8)
    expected = model(x)
    with torch.device("meta"):
        assert torch.equal(model(x), expected)
    assert torch.equal(model(x), expected)


def test_image_sizes_and_channels():
    assert create_model("nano_coda", image_size=12).image_size == (12, 12)
    with pytest.raises(ValueError, match="image_channels is 0"):
        create_model("nano_coda", image_channels=0)
    with pytest.raises(ValueError, match="temperature is 'a'"):
        create_model("nano_coda", temperature="a")
