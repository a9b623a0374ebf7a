"""Files that come back as they were, and files that are refused whole."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import codanet
from codanet import create_model
from codanet.benchmarks.algorithm1 import Algorithm1Net
from codanet.models.architectures import PEER_NAMES, Architecture, Layer
from codanet.models.peers import PEERS, create_peer


@pytest.fixture
def model():
    return create_model(
        "nano_coda",
        num_classes=3,
        rescale="l2",
        temperature=7.5,
        class_names=("ant", "bee", "cat"),
        image_size=(12, 10),
    )


def test_round_trip(model, tmp_path):
    path = codanet.save(model, tmp_path / "deep" / "model.safetensors", provenance={"recipe": "none", "seed": 4})
    again = codanet.load(path)
    assert not again.training
    for name in ("name", "architecture", "temperature", "logit_bias", "rescale", "class_names", "image_size"):
        assert getattr(again, name) == getattr(model, name)
    assert again.provenance == {"recipe": "none", "seed": 4}
    x = torch.rand(2, 3, 12, 10)
    assert torch.equal(again(x), model(x))
    again(x).sum().backward()  # loaded weights can be trained on
    codanet.save(again, path)  # and what is known of them goes along
    assert codanet.load(path).provenance["seed"] == 4
    with safe_open(path, "pt") as file:
        assert json.loads(file.metadata()["codanet"])["class_names"] == ["ant", "bee", "cat"]
    assert [p.name for p in path.parent.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize("damage", ["missing", "folder", "empty", "cut", "text", "foreign", "format", "header"])
def test_bad_files(model, tmp_path, damage):
    path = codanet.save(model, tmp_path / "model.safetensors")
    if damage == "missing":
        path.unlink()
    elif damage == "folder":
        path = tmp_path
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "text":
        path.write_text("not weights at all " * 50)
    elif damage == "foreign":
        save_file({"weight": torch.zeros(3)}, path)
    else:
        header = {"format": 99} if damage == "format" else {"format": 1, "layers": 3}
        save_file(model.state_dict(), path, metadata={"codanet": json.dumps(header)})
    with pytest.raises(ValueError, match=str(path)):
        codanet.load(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("layers.1.A"), r"missing \['layers.1.A'\]"),
        (lambda t: t.update(extra=torch.zeros(2)), r"unexpected \['extra'\]"),
        (lambda t: t.update({"layers.0.B": torch.zeros(2, 2)}), "layers.0.B of shape"),
        (lambda t: t["layers.0.B"].fill_(float("nan")), "not finite"),
        (lambda t: t.update({"layers.0.B": t["layers.0.B"].to(torch.float8_e4m3fn)}), "not finite floats"),
        (lambda t: t.update({"layers.0.B": t["layers.0.B"].to(torch.int8)}), "not finite floats"),
    ],
)
def test_tensors_that_do_not_fit(model, tmp_path, change, words):
    path = codanet.save(model, tmp_path / "model.safetensors")
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    change(tensors)
    save_file(tensors, path, metadata=metadata)
    with pytest.raises(ValueError, match=words):
        codanet.load(path)


def test_saving_is_all_or_nothing(model, tmp_path, monkeypatch):
    path = codanet.save(model, tmp_path / "model.safetensors")
    before = path.read_bytes()

    def fails(tensors, name, metadata):
        with open(name, "wb") as file:
            file.write(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr("codanet.models.weights.save_file", fails)
    with pytest.raises(ValueError, match="could not be written .*no space"):
        codanet.save(model, path)
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(ValueError, match="is a folder"):
        codanet.save(model, tmp_path)
    with pytest.raises(ValueError, match="rescales with a function"):
        codanet.save(create_model("nano_coda", rescale=lambda n: 1 / (1 + n)), path)


def published(model) -> dict[str, torch.Tensor]:
    """The model's parameters as the paper's published code lays them out."""
    state = {}
    for index, layer in enumerate(Algorithm1Net.from_model(model).layers):
        state[f"network.{index}.weighting_f.0.weight"] = layer.dim_reduction.weight.detach()
        state[f"network.{index}.weighting_f.1.weight"] = layer.weightings.weight.detach()
        if layer.weightings.bias is not None:
            state[f"network.{index}.weighting_f.1.bias"] = layer.weightings.bias.detach()
    return state


@pytest.mark.parametrize("name", ["s_coda", "s_coda_r1_8", "nano_coda"])
@pytest.mark.parametrize("bias", [True, False])
def test_import_of_the_published_layout(name, bias, tmp_path):
    model = create_model(name, num_classes=5, bias=bias)
    state = published(model)
    torch.save({"epoch": 3, "state_dict": state, "optimizer": {"state": {}}}, tmp_path / "model.pt")
    x = torch.rand(2, 3, 8, 8)
    for source in (state, tmp_path / "model.pt"):
        again = codanet.import_state_dict(source)
        assert again.name == name
        assert torch.equal(again(x), model(x))


def test_import_keeps_float64_and_places_layers_by_their_names(tmp_path):
    """Eleven layers, so that 10 comes after 9, listed backwards, named as the published code and DataParallel do."""
    layers = (*(Layer(6, 2) for _ in range(10)), Layer(3, 2, 1))
    with codanet.register_model("eleven", Architecture(layers, image_size=8, temperature=2)):
        model = create_model("eleven").double()
        state = published(model)
        named = {key.replace("network.", "module.").replace("wei", "weight_mod.wei", 1): state[key] for key in state}
        torch.save(dict(reversed(named.items())), tmp_path / "model_epoch_200.pkl")
        x = torch.rand(2, 3, 8, 8, dtype=torch.float64)
        for source in (dict(reversed(named.items())), tmp_path / "model_epoch_200.pkl"):
            again = codanet.import_state_dict(source, "eleven")
            assert again.dtype == torch.float64
            assert torch.equal(again(x), model(x))
        halves = codanet.import_state_dict({key: value.half() for key, value in named.items()}, "eleven")
        assert halves.dtype == torch.float32


def test_import_refuses_what_it_does_not_know(tmp_path):
    state = published(create_model("nano_coda"))
    with pytest.raises(ValueError, match="no registered model"):
        codanet.import_state_dict(dict(list(state.items())[:3]))
    with pytest.raises(ValueError, match="unexpected entry 'fc.weight'"):
        codanet.import_state_dict({**state, "fc.weight": torch.zeros(1)})
    with pytest.raises(ValueError, match="lacks"):
        codanet.import_state_dict({k: v for k, v in state.items() if k != "network.1.weighting_f.1.weight"})
    with pytest.raises(ValueError, match="not in the published code's layout"):
        codanet.import_state_dict({"weight": torch.zeros(2)})
    with pytest.raises(ValueError, match="holds 2 networks: give the state dict of one"):
        codanet.import_state_dict({"state_dict": state, "average": state})
    with pytest.raises(ValueError, match="is not a file"):
        codanet.import_state_dict(tmp_path / "none.pt")
    with pytest.raises(ValueError, match="does not fit the model: missing"):
        codanet.import_state_dict(state, "s_coda")
    with pytest.raises(ValueError, match="layers.0.B of shape"):
        codanet.import_state_dict(published(create_model("s_coda_r1_8")), "s_coda")

    class Evil:
        def __reduce__(self):
            return print, ("executed",)

    torch.save({"model": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(ValueError, match="refused"):
        codanet.import_state_dict(tmp_path / "evil.pt")


@pytest.mark.parametrize("header", ["[]", "null", '{"format": 1, "layers": [{"units": 1e30}]}'])
def test_headers_that_make_no_model(model, tmp_path, header):
    path = tmp_path / "model.safetensors"
    save_file(model.state_dict(), path, metadata={"codanet": header})
    with pytest.raises(ValueError, match=str(path)):
        codanet.load(path)


def test_files_can_be_read_by_others(model, tmp_path):
    path = codanet.save(model, tmp_path / "model.safetensors")
    plain = tmp_path / "plain"
    plain.write_text("x")
    assert path.stat().st_mode == plain.stat().st_mode


@pytest.mark.parametrize(("key", "rows"), [("1.weight", 7), ("1.bias", 3)])
def test_import_refuses_tensors_that_do_not_fit_each_other(key, rows):
    state = published(create_model("nano_coda"))
    name = f"network.1.weighting_f.{key}"
    with pytest.raises(ValueError, match="do not fit each other"):
        codanet.import_state_dict({**state, name: state[name][:-rows]})


@pytest.mark.parametrize("sides", [(0, 6, 3, 3), (8, 0, 3, 3), (8, 6, 0, 0), (8, 6, 1, 3), (8, 6, 3, 1)])
def test_import_refuses_filters_that_are_none(sides):
    state, name = published(create_model("nano_coda")), "network.0.weighting_f.0.weight"
    with pytest.raises(ValueError, match=f"{re.escape(str(list(sides)))}: it must be .r, C, k, k"):
        codanet.import_state_dict({**state, name: torch.zeros(sides)})


def test_import_leaves_alone_what_is_not_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    state = published(create_model("nano_coda"))
    torch.save(state, tmp_path / "model.pt")
    random = torch.get_rng_state()
    assert codanet.import_state_dict("~/model.pt").name == "nano_coda"
    assert torch.equal(torch.get_rng_state(), random)
    for options in ({"num_classes": 10}, {"pretrained": True}):
        with pytest.raises(ValueError, match="are the state dict's own: leave it out"):
            codanet.import_state_dict(state, **options)


def test_provenance_that_is_no_json_is_told(tmp_path):
    with pytest.raises(ValueError, match="provenance cannot be written as JSON"):
        codanet.save(codanet.create_model("nano_coda"), tmp_path / "model.safetensors", {"by": object()})
    assert not list(tmp_path.iterdir())


def test_a_model_loaded_under_inference_mode_can_be_trained(model, tmp_path):
    for each in (model, create_peer("senn", num_classes=3)):
        path = codanet.save(each, tmp_path / "model.safetensors")
        with torch.inference_mode():
            again = codanet.load(path)
            expected = again(torch.ones(1, 3, 12, 10))
        logits = again(torch.ones(1, 3, 12, 10))
        assert torch.allclose(logits, expected, atol=1e-6)
        logits.sum().backward()


def test_a_file_in_the_home_of_a_user(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    codanet.save(codanet.create_model("nano_coda"), tmp_path / "mine.safetensors")
    assert codanet.load("~/mine.safetensors").name == "nano_coda"
    assert codanet.save(codanet.create_model("nano_coda"), "~/yours.safetensors") == tmp_path / "yours.safetensors"
    assert codanet.load("~/yours.safetensors").name == "nano_coda"


def test_a_model_in_a_compilers_wrapper_is_kept_without_it(model, tmp_path):
    for inner in (model, create_peer("senn", num_classes=3)):
        path = codanet.save(torch.compile(inner), tmp_path / "model.safetensors")
        again = codanet.load(path)
        assert type(again) is type(inner)
        assert all(torch.equal(value, inner.state_dict()[key]) for key, value in again.state_dict().items())


def test_a_network_of_another_kind_is_not_kept(tmp_path):
    with pytest.raises(ValueError, match="a Linear was given: only a CoDANet, a hybrid or a peer is kept"):
        codanet.save(torch.nn.Linear(2, 2), tmp_path / "model.safetensors")
    assert not list(tmp_path.iterdir())


def test_peers_are_kept_and_refused_as_other_models_are(tmp_path):
    peer, path = create_peer("senn", num_classes=3, image_size=(32, 32)), tmp_path / "peer.safetensors"
    with pytest.raises(ValueError, match="half_backbone is for hybrids"):
        codanet.save(peer, path, half_backbone=True)
    with pytest.raises(ValueError, match="provenance cannot be written as JSON"):
        codanet.save(peer, path, {"by": object()})
    with pytest.raises(ValueError, match="is a folder"):
        codanet.save(peer, tmp_path)
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="could not be written"):
        codanet.save(peer, tmp_path / "file" / "peer.safetensors")
    codanet.save(peer, path, {"seed": 4})
    again = codanet.load(path)
    assert (again.name, again.image_size, again.provenance) == ("senn", (32, 32), {"seed": 4})
    assert all(torch.equal(value, peer.state_dict()[key]) for key, value in again.state_dict().items())
    with pytest.raises(ValueError, match="stands on no backbone: leave backbone out"):
        codanet.load(path, backbone=torch.nn.Identity())
    with pytest.raises(ValueError, match="only CoDA-Nets are compiled here: leave compile out"):
        codanet.load(path, compile=True)
    with pytest.raises(ValueError, match=r"holds a peer, 'senn', which is no CoDA-Net: use codanet\.load"):
        codanet.create_model("s_coda", path)


def test_the_names_of_peers_and_of_trained_weights_are_taken():
    mine = codanet.Architecture((codanet.Layer(4, 2), codanet.Layer(10, 2, kernel_size=1)), 8, temperature=2)
    assert tuple(PEERS) == PEER_NAMES
    for name in PEER_NAMES:
        with pytest.raises(ValueError, match=f"'{name}' is the name of a peer"):
            codanet.register_model(name, mine)
    for name in codanet.list_models(pretrained=True):
        with pytest.raises(ValueError, match=f"'{name}' is the name of trained weights"):
            codanet.register_model(name, mine)


@pytest.mark.parametrize("size", [(-3, 0), 0, (8,), (8.0, 8), "88"])
def test_impossible_image_sizes_are_refused(size):
    with pytest.raises(ValueError, match="image_size is"):
        codanet.CoDANet([codanet.models.network.Layer(2, 1)], image_size=size)


def test_models_as_timm_users_expect():
    assert codanet.list_models(pretrained=True) == ["cifar10", "tiny-imagenet-20", "waste"]
    assert "s_coda" in codanet.list_models()
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    expected = codanet.load("cifar10")(images)
    path = Path(codanet.models.weight_files.SHIPPED / "cifar10.safetensors")
    for name, pretrained in (("cifar10", True), ("s_coda_r1_4", True), ("s_coda_r1_4", path), ("cifar10", str(path))):
        model = codanet.create_model(name, pretrained=pretrained)
        assert not model.training
        assert torch.equal(model(images), expected)
        assert model.class_names[3] == "cat"
        assert model.provenance == codanet.load("cifar10").provenance


def test_trained_weights_keep_their_precision_and_draw_nothing(model, tmp_path):
    path = codanet.save(model.double(), tmp_path / "model.safetensors")
    random = torch.get_rng_state()
    again = codanet.create_model("nano_coda", pretrained=path)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in again.state_dict().items())
    assert codanet.create_model("nano_coda", pretrained=path, num_classes=5).dtype == torch.float64


def test_trained_weights_with_other_classes_keep_all_but_the_last_layer():
    trained = codanet.load("cifar10")
    model = codanet.create_model("s_coda_r1_4", pretrained=True, num_classes=3)
    assert model(torch.rand(1, 3, 32, 32)).shape == (1, 3)
    assert model.class_names is None
    assert model.temperature == trained.temperature
    for index, (layer, known) in enumerate(zip(model.layers, trained.layers, strict=True)):
        assert torch.equal(layer.B, known.B) == (index < len(trained.layers) - 1)
    named = codanet.create_model("cifar10", pretrained=True, class_names=("cat", "dog"), temperature=10)
    assert (named.num_classes, named.class_names, named.temperature) == (2, ("cat", "dog"), 10)


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        (("cifar10",), {}, "names trained weights: pass pretrained=True, or use codanet.load"),
        (("m_coda", True), {}, "no trained weights of 'm_coda' come with the package: there are cifar10"),
        (("s_codda", True), {}, "did you mean 's_coda'?"),
        (("s_coda", "cifar10"), {}, "have other layers than 's_coda': create 's_coda_r1_4' instead"),
        (("s_coda", "none.safetensors"), {}, "none.safetensors does not exist"),
        (("s_coda", 10), {}, "pretrained is 10: give True, False or the path of a file; classes are num_classes="),
        (("s_coda",), {"num_classes": True}, "num_classes is True"),
        (("cifar10", True), {"rescale": "l2"}, "rescale is 'l2', but the trained weights were made with 'sq'"),
        (("cifar10", True), {"image_channels": 1}, "image_channels is 1, but the trained weights were made with 3"),
    ],
)
def test_models_that_cannot_be_created(arguments, options, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        codanet.create_model(*arguments, **options)


def test_a_registered_architecture_is_known_until_it_is_removed(tmp_path):
    mine = codanet.Architecture((codanet.Layer(4, 2), codanet.Layer(10, 2, kernel_size=1)), 8, temperature=2)
    before = codanet.list_models()
    with codanet.register_model("mine", mine):
        assert codanet.list_models() == [*before, "mine"]
        model = codanet.create_model("mine", num_classes=3)
        assert (model.name, model.num_classes, model.temperature, model.image_size) == ("mine", 3, 2, (8, 8))
        with pytest.raises(ValueError, match="a model named 'mine' is registered already"):
            codanet.register_model("mine", mine)
        path = codanet.save(model, tmp_path / "mine.safetensors")
        again = codanet.create_model("mine", pretrained=path)
        assert torch.equal(again.layers[0].A, model.layers[0].A)
    assert codanet.list_models() == before
    with pytest.raises(ValueError, match="unknown model 'mine'"):
        codanet.create_model("mine")
    for name, wrong in (("", mine), ("mine", None), ("mine", codanet.Architecture((), 8, 1))):
        with pytest.raises(ValueError, match="registered as"):
            codanet.register_model(name, wrong)
    handle = codanet.register_model("mine", mine)
    handle.remove()
    handle.remove()
    assert codanet.list_models() == before


def test_a_model_can_be_loaded_compiled(monkeypatch):
    asked = []
    monkeypatch.setattr(codanet.CoDANet, "compile", lambda self, **options: asked.append(options))
    codanet.load("cifar10")
    assert asked == []
    assert not codanet.load("cifar10", compile=True).training
    assert asked == [{}]
