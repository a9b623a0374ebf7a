"""The peers: sizes as published, a known answer of each, and the way through training, files and metrics."""

import json
import threading
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import codanet
from codanet.attribution import GradCam, Registered, attribute, settings_of
from codanet.cli import main
from codanet.data import ImageData
from codanet.data.pictures import Pictures
from codanet.data.split import MemorySplit
from codanet.data.tiling import Grids
from codanet.evaluation import evaluate
from codanet.evaluation.models import split_seeds
from codanet.metrics import disconnected
from codanet.metrics.disconnected import Disconnected
from codanet.models.classifier import baseline, probabilities
from codanet.models.digest import model_digest
from codanet.models.network import LOGIT_BIAS
from codanet.models.peers import PEERS, BcosResNet, bcos, create_peer
from codanet.models.peers.bcos import BcosConv2d, Scaling
from codanet.models.resnet import MEAN
from codanet.training import Classification, train
from codanet.training.recipe import Recipe
from codanet.training.settings import Settings

pytestmark = pytest.mark.usefixtures("one_thread")
# ResNets as of He et al., table 6 (0.27 M, 0.85 M), WRN-28-2 as of Oliver et al. 2018 (1.5 M), VGG-19 with one linear
# layer; SENN and B-cos by hand: 9 Σ in·out of the convolutions, 2 or 1 per channel of a norm
COUNTS = {
    "resnet20": 269_722,
    "resnet56": 853_018,
    "wrn_28_2": 1_467_610,
    "vgg19_bn": 20_040_522,
    "senn": 411_888,
    "bcos_resnet20": 269_466,
}


@pytest.mark.parametrize("name", PEERS)
def test_sizes_and_shapes(name):
    model = create_peer(name).eval()
    assert sum(parameter.numel() for parameter in model.parameters()) == COUNTS[name]
    for side in (16, 32):
        logits = model(torch.rand(2, 3, side, side))
        assert logits.shape == (2, 10)
        assert logits.isfinite().all()
    assert torch.equal(probabilities(model, logits), logits.sigmoid())  # trained one-vs-all


def test_counts_by_hand():
    def convolutions(*planes):
        return sum(9 * before * after for before, after in pairwise(planes))

    concepts = convolutions(3, 32, 32, 64, 64, 64) + 2 * (32 + 32 + 64 * 3) + 64 * 16 + 16
    relevances = convolutions(3, 32, 32, 64, 64, 128, 128) + 2 * (64 + 128 + 256) + 128 * 160 + 160
    assert concepts + relevances == COUNTS["senn"]
    layers = [6, 16, *(16,) * 6, *(32,) * 6, *(64,) * 6]
    assert convolutions(*layers) + sum(layers[1:]) + 64 * 10 + 10 == COUNTS["bcos_resnet20"]


def test_a_b_cos_unit_by_hand():
    """|cos|^(B-1) ŵᵀx of a patch at a time; at most the patch's norm, which is reached where it is aligned."""
    torch.manual_seed(0)
    layer, x = BcosConv2d(4, 3, 3, exponent=2.5).double(), torch.randn(2, 4, 6, 6).double()
    patches = F.unfold(x, 3, padding=1)  # [N, 36, 36]
    weights = layer.weight.flatten(1)
    linear = torch.einsum("ud,ndp->nup", weights / weights.norm(dim=1, keepdim=True), patches)
    cosine = (linear / patches.norm(dim=1, keepdim=True)).abs()
    expected = (cosine**1.5 * linear).view(2, 3, 6, 6)
    assert torch.allclose(layer(x), expected, atol=1e-9)
    assert (layer(x).flatten(2).abs() <= patches.norm(dim=1, keepdim=True) + 1e-9).all()
    aligned = layer.weight[:1].detach() * 7
    assert layer(aligned)[0, 0, 1, 1].item() == pytest.approx(7 * layer.weight[0].norm().item(), rel=1e-6)


def trained_bcos() -> BcosResNet:
    torch.manual_seed(0)
    model = create_peer("bcos_resnet20", num_classes=4)
    assert isinstance(model, BcosResNet)
    for _ in range(20):
        model(torch.rand(16, 3, 16, 16))  # which settles the scalings
    return model.double().eval()


def test_a_b_cos_network_is_known_by_its_exponent():
    torch.manual_seed(0)
    square, flat = BcosResNet("square", 1, exponent=2.0), BcosResNet("flat", 1, exponent=1.5)
    flat.load_state_dict(square.state_dict())
    assert "exponent=1.5" in repr(flat)
    assert model_digest(square) != model_digest(flat)


def test_b_cos_contributions_are_exact():
    model, images = trained_bcos(), torch.rand(3, 3, 16, 16).double()
    why = model.explain(images, "all")
    assert why.contributions.shape == (3, 4, 6, 16, 16)
    assert why.completeness_error().max() < 1e-10
    assert torch.allclose(why.logits, model(images))
    assert model.explain(images).bias == LOGIT_BIAS
    maps = attribute(model, images, [0, 1, 2], "contributions")
    assert torch.allclose(maps, why.pixels[torch.arange(3), torch.arange(3)])
    assert not bcos._frozen.get()
    shown = attribute(model, images, 1, GradCam(interpolation="nearest"))  # of the class's own map, whose mean it is
    assert torch.allclose(shown[:, ::4, ::4], model.features(model.encode(images))[:, 1].clamp(min=0) / 16)
    black = model(torch.zeros(1, 6, 16, 16).double())  # all pixels removed
    assert torch.allclose(black, torch.full_like(black, LOGIT_BIAS), atol=1e-6)


def test_b_cos_explanations_in_every_mode_and_precision():
    model, images = trained_bcos().float(), torch.rand(2, 3, 16, 16)
    rows = model.explain(images, "all").rows
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode():
            assert torch.allclose(model.explain(images, "all").rows, rows)
    assert torch.allclose(model.explain(images.double(), "all").rows, rows)
    with torch.inference_mode():
        loaned = images.clone()
    assert torch.allclose(model.explain(loaned, "all").rows, rows)


@pytest.mark.parametrize("images", [torch.zeros(2, 3, 16, 16, dtype=torch.uint8), torch.zeros(0, 3, 16, 16)])
def test_what_a_b_cos_network_cannot_be_shown(images):
    with pytest.raises(ValueError, match="must be floating point in .0, 1., at least one"):
        trained_bcos().explain(images)


def test_b_cos_explanations_in_two_threads_keep_apart(monkeypatch):
    """On the page several visitors ask at once: one who has finished must not thaw the cosines of another."""
    model, images = trained_bcos(), torch.rand(1, 3, 16, 16).double()
    features, rows = model.features, model.explain(images, "all").rows

    def meanwhile(encoded):
        def finish():
            with model.frozen():
                pass

        other = threading.Thread(target=finish)
        other.start()
        other.join()
        return features(encoded)

    monkeypatch.setattr(model, "features", meanwhile)
    assert torch.allclose(model.explain(images, "all").rows, rows)


def test_scaling_is_linear_after_training():
    scaling = Scaling(2).double()
    x = torch.randn(8, 2, 4, 4).double() * torch.tensor([3.0, 0.1])[:, None, None]
    assert torch.allclose((scaling(x) ** 2).mean((0, 2, 3)), torch.ones(2).double(), atol=1e-3)
    scaling.eval()
    assert torch.allclose(scaling(x) + scaling(2 * x), scaling(3 * x))


def test_senns_own_maps_add_up_and_show_the_place():
    """With relevances of one for every concept of a class, a place adds the sum of its concepts."""
    model = create_peer("senn", num_classes=2).double().eval()
    last = model.relevances[-1]
    torch.nn.init.zeros_(last.weight)
    last.bias.data = torch.cat([torch.ones(16), torch.zeros(16)]).double()
    images = torch.rand(2, 3, 16, 16).double()
    concepts = model.concepts(2 * images - 1).sum(1)  # [N, 4, 4]
    assert torch.allclose(model(images)[:, 0] - LOGIT_BIAS, concepts.mean((1, 2)))
    assert torch.allclose(model(images)[:, 1], torch.full((2,), LOGIT_BIAS).double())
    maps = attribute(model, images, [[0, 1], [0, 1]], "contributions")
    assert torch.allclose(maps.sum((2, 3)) + LOGIT_BIAS, model(images))
    assert torch.allclose(maps[:, 0, ::4, ::4] * 256, concepts)
    odd = torch.rand(2, 3, 14, 18).double()  # places stand for three or four pixels a side
    maps = attribute(model, odd, 0, "contributions")
    assert maps.shape == (2, 14, 18)
    assert torch.allclose(maps.sum((1, 2)) + LOGIT_BIAS, model(odd)[:, 0])


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("name", [name for name in PEERS if name != "bcos_resnet20"])
def test_a_removed_pixel_is_zero_where_the_network_computes(name, cut):
    model, images = create_peer(name).eval(), torch.rand(1, 3, 8, 8)
    colour = baseline(Disconnected(model, 2) if cut else model, images)
    assert torch.allclose(colour.flatten(), torch.tensor(MEAN) if name.startswith("resnet") else torch.full((3,), 0.5))


def test_difull_of_a_senn_is_exact_and_adds_up():
    """Its places are as large as its convolutions see, and those of other cells are not seen at all."""
    torch.manual_seed(0)
    model = create_peer("senn", num_classes=4).double().eval()
    images = torch.rand(2, 3, 16, 16).double()
    heads = torch.tensor([[1, 6], [15, 8]])  # of cells 0, 1, 3 and 2
    for part in (False, True):
        cut = Disconnected(model, 2, part=part).eval()
        maps = cut.own_maps(images, heads)
        logits = cut(images).gather(1, heads)
        assert torch.allclose(maps.sum((2, 3)) + LOGIT_BIAS, logits)
    odd = torch.rand(2, 3, 12, 20).double()  # cells of 6x10 pixels
    cut = Disconnected(model, 2).eval()
    assert torch.allclose(cut.own_maps(odd, heads).sum((2, 3)) + LOGIT_BIAS, cut(odd).gather(1, heads))
    maps = Disconnected(model, 2).own_maps(images, heads)
    assert maps[0, 0, 8:].abs().max() == maps[0, 0, :, 8:].abs().max() == 0


def test_a_senns_own_maps_are_complete_by_the_metric(tmp_path):
    """Against b0: a grey image has concepts, too, and another logit."""
    torch.manual_seed(0)
    model = create_peer("senn").eval()
    torch.nn.init.normal_(model.relevances[-1].bias)  # as training moves it: untrained, grey is zero
    assert (model(torch.full((1, 3, 16, 16), 0.5)) - LOGIT_BIAS).abs().max() > 0.01
    images = torch.randint(0, 256, (6, 3, 16, 16), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    split = MemorySplit(images, torch.arange(6))
    data = ImageData("six", tuple("abcdefghij"), split, split, (16, 16), 3, "0" * 64)
    results = evaluate(
        {"senn": model}, data, ["contributions", "ixg"], ["completeness"], tmp_path, images=6, quiet=True
    )
    assert results.row("senn", "contributions", "completeness").mean < 1e-5
    assert results.row("senn", "ixg", "completeness").mean > 0.01


def test_of_a_peer_without_explanations_a_sentence_is_said(tmp_path, capsys):
    path = codanet.save(create_peer("resnet20", image_size=(8, 8)).eval(), tmp_path / "peer.safetensors")
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    for more in ([], ["--parquet", "-o", str(tmp_path / "table")]):
        assert main(["explain", str(path), str(tmp_path / "a.png"), *more]) == 2
        assert "which has no explanations of its own" in capsys.readouterr().err
    assert main(["demo", str(path)]) == 2
    assert "which has no explanations of its own" in capsys.readouterr().err


def test_a_peer_is_shown_the_pictures_that_it_was_not_trained_on():
    assert split_seeds({"peer": create_peer("resnet20", provenance={"settings": {"seed": 3}})}) == [3]
    for seed in (-1, 2**63, 10**30, "x"):  # which no generator takes
        assert split_seeds({"peer": create_peer("resnet20", provenance={"settings": {"seed": seed}})}) == [0]


def test_a_wide_block_without_its_branch_is_the_identity():
    model = create_peer("wrn_28_2").eval()
    block, x = model.layers[2], torch.randn(1, 32, 8, 8)
    torch.nn.init.zeros_(block.conv2.weight)
    assert torch.equal(block(x), x)
    assert model.layers[1].shortcut.weight.shape == (32, 16, 1, 1)


def test_vgg_pools_five_times():
    model = create_peer("vgg19_bn").eval()
    assert model.features(torch.rand(1, 3, 96, 96)).shape == (1, 512, 3, 3)
    assert sum(isinstance(layer, torch.nn.Conv2d) for layer in model.layers) == 16


def test_a_senn_in_training_is_asked_as_it_will_be_used():
    """And learns nothing from it: its batch norms keep what they have."""
    torch.manual_seed(0)
    model, images, targets = create_peer("senn", num_classes=3), torch.rand(2, 3, 16, 16), torch.tensor([0, 2])
    expected = model.eval().own_maps(images, targets)
    state = {key: value.clone() for key, value in model.train().state_dict().items()}
    assert torch.equal(model.own_maps(images, targets), expected)
    assert model.training
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", PEERS)
def test_files_bring_a_peer_back(name, tmp_path):
    torch.manual_seed(0)
    names = ("ant", "bee", "cat")
    model = create_peer(name, num_classes=3, class_names=names, image_size=(16, 16)).eval()
    again = codanet.load(codanet.save(model, tmp_path / "peer.safetensors", {"seed": 3}))
    assert type(again) is type(model)
    assert (again.name, again.class_names, again.image_size) == (name, names, (16, 16))
    assert again.provenance["seed"] == 3
    x = torch.rand(1, 3, 16, 16)
    assert torch.equal(again(x), model(x))
    codanet.save(model.double(), tmp_path / "peer.safetensors")
    state = torch.get_rng_state()
    again = codanet.load(tmp_path / "peer.safetensors")
    assert torch.equal(torch.get_rng_state(), state)
    assert {buffer.dtype for buffer in again.buffers()} <= {torch.float64, torch.int64}
    assert torch.equal(again(x.double()), model(x.double()))
    again(x.double()).sum().backward()


def test_no_peer_is_made_of_what_a_header_only_claims(tmp_path):
    path = codanet.save(create_peer("senn", num_classes=3), tmp_path / "peer.safetensors")
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        header = json.loads(file.metadata()["codanet"])
    save_file(tensors, path, {"codanet": json.dumps(header | {"num_classes": 2**40})})  # 9 PB of weights
    with pytest.raises(ValueError, match="of shape .*: the model needs"):
        codanet.load(path)


@pytest.mark.parametrize("claim", [{"image_size": ["a", "b"]}, {"image_size": [32]}, {"class_names": ["a"]}])
def test_what_a_peers_header_claims_is_checked(tmp_path, claim):
    path = codanet.save(create_peer("senn", num_classes=3), tmp_path / "peer.safetensors")
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        header = json.loads(file.metadata()["codanet"])
    save_file(tensors, path, {"codanet": json.dumps(header | claim)})
    with pytest.raises(ValueError, match="has a header that makes no peer"):
        codanet.load(path)


@pytest.mark.parametrize("name", ["resnet20", "bcos_resnet20"])
def test_recipes_train_a_peer_and_metrics_judge_it(name, tmp_path):
    """A few steps on coloured noise, which is enough to see every part meet."""
    generator = torch.Generator().manual_seed(0)
    for label, channel in (("blue", 2), ("red", 0)):
        (tmp_path / "data" / label).mkdir(parents=True)
        for number in range(12):
            pixels = torch.randint(0, 90, (16, 16, 3), generator=generator)
            pixels[..., channel] += 150
            path = tmp_path / "data" / label / f"{number}.png"
            Image.fromarray(pixels.to(torch.uint8).numpy()).save(path)
    result = train(
        "cifar10-cpu", tmp_path / "run", quiet=True, data=str(tmp_path / "data"), holdout=0, model=name, epochs=6,
        batch_size=8, learning_rate=0.01, augmentation="none", grow_from=8, image_size=16, workers=0, threads=1,
    )  # fmt: skip
    assert (result.settings.optimiser, result.settings.temperature, result.settings.wrong_evidence) == ("adam", None, 0)
    assert result.accuracy > 0.7
    results = codanet.evaluation.evaluate(
        [str(result.weights)], str(tmp_path / "data"), ["contributions", "ixg"], ["accuracy", "removal"],
        tmp_path / "out", images=4, points=3, quiet=True, split="train",
    )  # fmt: skip
    methods = {row.method for row in results.rows}
    assert methods == ({"", "ixg", "contributions"} if name == "bcos_resnet20" else {"", "ixg"})


def test_an_erased_pixel_is_zero_where_the_network_computes():
    """Grey for a peer that computes on 2x - 1, as in the metrics that remove pixels; black would be a colour."""
    split = MemorySplit(torch.full((4, 3, 8, 8), 255, dtype=torch.uint8), torch.arange(4) % 2)
    data = ImageData("white", ("a", "b"), split, split, (8, 8), 3, "0" * 64)
    for name, values in (("wrn_28_2", {0.5, 1.0}), ("bcos_resnet20", {0.0, 1.0})):
        model = create_peer(name, num_classes=2, image_size=(8, 8))
        module = Classification(model, data, Settings(model=name, erase=1.0))
        module.trainer = SimpleNamespace(global_step=0, estimated_stepping_batches=1)
        seen, _, _ = module._pictures(split.images, split.labels, torch.Generator().manual_seed(0))
        assert set(seen[:, :3].unique().tolist()) == values


def test_what_a_peer_cannot_be_told(tmp_path):
    with pytest.raises(ValueError, match="has no temperature"):
        train(Recipe("peer", Settings(model="resnet20", temperature=10)), tmp_path, quiet=True)
    with pytest.raises(ValueError, match="has no recompute"):
        train(Recipe("peer", Settings(model="resnet20", recompute=True)), tmp_path, quiet=True)
    with pytest.raises(ValueError, match="compile is 'on', but only CoDA-Nets are compiled"):
        train(Recipe("peer", Settings(model="resnet20", compile="on")), tmp_path, quiet=True)
    with pytest.raises(ValueError, match="muon is for the filters of CoDA-Nets"):
        train(Recipe("peer", Settings(model="resnet20", optimiser="muon")), tmp_path, quiet=True)
    with pytest.raises(ValueError, match="unknown peer 'resnet21': did you mean 'resnet20'"):
        create_peer("resnet21")
    with pytest.raises(ValueError, match="3 channels"):
        create_peer("resnet20", image_channels=1)


def test_difull_of_a_b_cos_network_is_exact():
    model = trained_bcos()
    images = torch.randint(0, 256, (4, 3, 16, 16), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    pictures = Pictures(MemorySplit(images, torch.arange(4)))
    grids = Grids(torch.tensor([[0, 1, 2, 3]]), torch.tensor([[0, 1, 2, 3]]), 2)
    own = disconnected(model, pictures, grids, Registered(settings_of("contributions")))
    assert own.extras["outside"].max() == 0
