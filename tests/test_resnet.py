"""ResNet for CIFAR: the published weights load strictly, and foreign files are refused."""

import hashlib
import urllib.error
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from codanet.models.resnet import ADDRESS, MEAN, OFFICIAL, STD, ResNet, resnet20, resnet32, resnet44, resnet56

WEIGHTS = Path(__file__).parents[2] / "shared" / "weights" / "resnet56-cifar10.safetensors"
published = pytest.mark.skipif(not WEIGHTS.is_file(), reason="the published ResNet-56 weights are not here")


def parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def save(model: ResNet, path: Path, metadata: dict[str, str] | None = None, **changes: torch.Tensor | None) -> Path:
    """The model's state with some entries changed, or left out (None); '__' in a name stands for a dot."""
    state = {key: value.clone() for key, value in model.state_dict().items()}
    for name, value in changes.items():
        key = name.replace("__", ".")
        if value is None:
            del state[key]
        else:
            state[key] = value
    save_file(state, path, metadata)
    return path


# Table 6 of He et al. 2016, in millions
@pytest.mark.parametrize(("make", "millions"), [(resnet20, 0.27), (resnet32, 0.46), (resnet44, 0.66), (resnet56, 0.85)])
def test_has_the_published_size(make, millions):
    model = make().eval()
    assert round(parameters(model) / 1e6, 2) == millions
    with torch.no_grad():
        logits = model(torch.rand(2, 3, 32, 32))
    assert logits.shape == (2, 10)
    assert logits.isfinite().all()


def test_any_number_of_classes_and_any_size():
    with torch.no_grad():
        model = resnet20(num_classes=7).eval()
        assert model(torch.rand(1, 3, 40, 24)).shape == (1, 7)
        assert model.features(torch.rand(1, 3, 40, 24)).shape == (1, 64, 10, 6)


def test_normalises_inside():
    model = resnet20().eval()
    with torch.no_grad():
        mean = torch.tensor(MEAN).view(1, 3, 1, 1).expand(1, 3, 32, 32)
        images = torch.rand(1, 3, 32, 32)
        # with the mean at zero and the deviation at one, images normalised by hand give the same
        plain = ResNet(3, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)).eval()
        plain.load_state_dict(model.state_dict())
        torch.testing.assert_close(model(images), plain((images - mean) / torch.tensor(STD).view(1, 3, 1, 1)))


def test_shortcut_pads_new_planes_with_zeros():
    block = resnet20().layer2[0]
    x = torch.rand(1, 16, 8, 8)
    shortcut = block.shortcut(x)
    assert shortcut.shape == (1, 32, 4, 4)
    torch.testing.assert_close(shortcut[:, 8:24], x[:, :, ::2, ::2])
    assert (shortcut[:, :8] == 0).all()
    assert (shortcut[:, 24:] == 0).all()


@published
def test_published_weights_load_strictly():
    model = resnet56(weights=WEIGHTS).eval()
    with torch.no_grad():
        logits = model(torch.rand(4, 3, 32, 32))
    assert logits.isfinite().all()
    assert (logits.std(1) > 0.1).all()
    torch.testing.assert_close(model.mean.flatten(), torch.tensor(MEAN))
    torch.testing.assert_close(model.std.flatten(), torch.tensor(STD))


def test_round_trip_and_normalisation_of_the_file(tmp_path):
    model = resnet20()
    path = save(model, tmp_path / "r.safetensors", {"input": "RGB in [0,1], mean 0.5,0.25,0, std 1,0.5, 0.125"})
    loaded = resnet20(weights=path)
    assert loaded.mean.flatten().tolist() == [0.5, 0.25, 0.0]
    assert loaded.std.flatten().tolist() == [1.0, 0.5, 0.125]
    for key, value in model.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[key], value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"linear__bias": None}, "lacks 'linear.bias'"),
        ({"fc__bias": torch.zeros(10)}, "extra 'fc.bias'"),
        ({"linear__weight": torch.zeros(5, 64)}, r"'linear.weight' has shape \[5, 64\] instead of \[10, 64\]"),
        ({"bn1__weight": torch.full((16,), float("nan"))}, "'bn1.weight' has values that are not finite"),
    ],
)
def test_wrong_tensors_are_refused(tmp_path, changes, says):
    path = save(resnet20(), tmp_path / "r.safetensors", **changes)
    with pytest.raises(ValueError, match=says):
        resnet20(weights=path)


def test_another_depth_is_refused(tmp_path):
    path = save(resnet20(), tmp_path / "r.safetensors")
    with pytest.raises(ValueError, match="is not a ResNet-56 with 10 classes: it lacks"):
        resnet56(weights=path)


@pytest.mark.parametrize("content", [b"", b"not a weights file", b"\xff" * 64])
def test_foreign_files_are_refused(tmp_path, content):
    path = tmp_path / "r.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="not a readable safetensors file"):
        resnet56(weights=path)


def test_truncated_and_missing_files_are_refused(tmp_path):
    path = save(resnet20(), tmp_path / "r.safetensors")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="not a readable safetensors file"):
        resnet20(weights=path)
    with pytest.raises(ValueError, match="there is no weights file"):
        resnet20(weights=tmp_path / "missing.safetensors")


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 6, 32, 32)])
def test_wrong_images_are_refused(shape):
    with pytest.raises(ValueError, match=r"must be \[N, 3, H, W\]"):
        resnet20()(torch.rand(shape))


@pytest.mark.parametrize("zipped", [True, False])
def test_published_checkpoints_are_read_without_running_anything(tmp_path, zipped):
    model = resnet20()
    state = {f"module.{key}": value for key, value in model.state_dict().items() if "num_batches" not in key}
    path = tmp_path / "resnet20.th"
    torch.save({"state_dict": state, "best_prec1": 91.7}, path, _use_new_zipfile_serialization=zipped)
    loaded = resnet20(weights=path)
    images = torch.rand(1, 3, 16, 16)
    torch.testing.assert_close(loaded.eval()(images), model.eval()(images))
    torch.testing.assert_close(loaded.mean.flatten(), torch.tensor(MEAN))
    torch.save({"state_dict": Path("x")}, path)
    with pytest.raises(ValueError, match="cannot be read as plain tensors"):
        resnet20(weights=path)
    torch.save([1, 2], path)
    with pytest.raises(ValueError, match="holds no state dict"):
        resnet20(weights=path)


def test_official_weights_are_fetched_once_and_checked(tmp_path, monkeypatch):
    monkeypatch.setenv("CODANET_DATA", str(tmp_path))
    model = resnet20()
    torch.save({"state_dict": model.state_dict()}, tmp_path / "source.th")
    digest = hashlib.sha256((tmp_path / "source.th").read_bytes()).hexdigest()
    asked = []

    def fetch(url, path, *, sha256):
        asked.append((url, sha256))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((tmp_path / "source.th").read_bytes())
        return path

    monkeypatch.setattr("codanet.models.resnet.fetch", fetch)
    monkeypatch.setitem(OFFICIAL, 20, f"resnet20-{digest[:8]}")
    for _ in range(2):
        loaded = resnet20(weights="official")
    torch.testing.assert_close(loaded.linear.weight, model.linear.weight)
    assert asked == [(ADDRESS.format(f"resnet20-{digest[:8]}"), digest[:8])]
    (tmp_path / "weights" / f"resnet20-{digest[:8]}.th").write_bytes(b"damaged")
    resnet20(weights="official")
    assert len(asked) == 2


def test_official_weights_without_a_network(tmp_path, monkeypatch):
    monkeypatch.setenv("CODANET_DATA", str(tmp_path))
    monkeypatch.setattr("urllib.request.urlopen", lambda *a, **k: (_ for _ in ()).throw(urllib.error.URLError("none")))
    with pytest.raises(ValueError, match="ResNet-56 could not be fetched: download https://.*4bfd9763.th elsewhere"):
        resnet56(weights="official")
    assert not list(tmp_path.rglob("*.th"))


def test_every_activation_is_a_module_used_once():
    calls = []
    model = resnet20()
    for module in model.modules():
        if isinstance(module, torch.nn.ReLU):
            module.register_forward_hook(lambda module, inputs, output: calls.append(module))
    model(torch.rand(1, 3, 8, 8))
    assert len(calls) == len(set(calls)) == 19
