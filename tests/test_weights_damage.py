"""Weights files that were damaged, or claim more than there is."""

import json
import random
import sys
import warnings

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import codanet
from codanet.models.backbones import BACKBONES, cut
from codanet.models.hybrid import HybridNet, head_layers
from codanet.models.weight_files import list_shipped


@pytest.fixture
def path(tmp_path):
    return codanet.save(codanet.create_model("nano_coda", class_names=tuple("abc")), tmp_path / "model.safetensors")


def parts(path):
    with safe_open(path, "pt") as file:
        return file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)


def test_no_flipped_bit_is_loaded(path):
    whole, draw = path.read_bytes(), random.Random(0)
    length = int.from_bytes(whole[:8], "little") + 8
    for number in range(120):  # half of them in the header
        place = draw.randrange(length) if number % 2 else draw.randrange(length, len(whole))
        damaged = bytearray(whole)
        damaged[place] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=str(path)):
            codanet.load(path)
    path.write_bytes(whole)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        codanet.load(path)


def test_older_files_load_with_a_warning(path):
    metadata, tensors = parts(path)
    del metadata["sha256"]
    save_file(tensors, path, metadata)
    with pytest.warns(UserWarning, match="before weights had a digest.*save it again") as warned:
        model = codanet.load(path)
    assert warned[0].filename == __file__
    assert all(torch.equal(value, tensors[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("name", list_shipped())
def test_shipped_weights_have_a_digest(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        codanet.load(name)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda header: header | {"layers": header["layers"] * 25_000}, "100000 layers, of which at most 1000"),
        (lambda header: header | {"image_size": [7000, 7000]}, "numbers in layer 0, of which at most"),
        (lambda header: header | {"image_size": [10**4000, 1]}, "header that makes no model"),
        (lambda header: header | {"image_size": "x" * 10**6}, "header that makes no model"),
        (lambda header: header | {"layers": [{"units": 1e300}]}, "header that makes no model"),
        (lambda header: header | {"layers": [3, 4]}, "header that makes no model"),
        (lambda header: header | {"temperature": "warm"}, "header that makes no model"),
        (lambda header: header | {"name": []}, "they must be a text and a finite number"),
        (lambda header: header | {"logit_bias": float("nan")}, "they must be a text and a finite number"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*before weights had a digest")
def test_claims_are_checked_before_work(path, change, words):
    metadata, tensors = parts(path)
    save_file(tensors, path, {"codanet": json.dumps(change(json.loads(metadata["codanet"])))})
    with pytest.raises(ValueError, match=words) as caught:
        codanet.load(path)
    assert len(str(caught.value)) < 600


@pytest.mark.filterwarnings("ignore:.*before weights had a digest")
def test_a_header_nested_too_deeply(path):
    _, tensors = parts(path)
    save_file(tensors, path, {"codanet": "[" * 200_000 + "]" * 200_000})
    with pytest.raises(ValueError, match="header that cannot be read .it is nested too deeply"):
        codanet.load(path)


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory):
    features = cut(BACKBONES["resnet56"].build(False), "layer2")
    model = HybridNet(features, head_layers(2, (4,), 1), image_size=32, backbone="resnet56", layer="layer2")
    return codanet.save(model, tmp_path_factory.mktemp("hybrid") / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"image_size": [4000, 4000]}, "16000000|4000x4000"),
        ({"image_size": [10**5, 100], "stride": 10**9}, "100000x100, of which at most"),
        ({"backbone": []}, r"stands on \[\], a network of one's own"),
        ({"layer": "\x1b[2J"}, "unknown layer"),
        ({"encoding": [[]]}, "unknown encoding"),
        ({"stride": "x"}, "header that makes no model"),
        ({"stride": 10**9}, "a stride of 1000000000, where layer2 has 2"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*before weights had a digest")
def test_claims_of_hybrids_are_checked_before_work(hybrid, tmp_path, change, words):
    metadata, tensors = parts(hybrid)
    header = json.loads(metadata["codanet"])
    for key, value in change.items():
        (header if key in header else header["hybrid"])[key] = value
    path = tmp_path / "model.safetensors"
    save_file(tensors, path, {"codanet": json.dumps(header)})
    with pytest.raises(ValueError, match=words):
        codanet.load(path)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("claim", [{"kernel_size": 5001}, {"units": 10**5, "rank": 10**4}])
@pytest.mark.filterwarnings("ignore:.*before weights had a digest")
def test_a_hybrid_takes_no_memory_for_layers_that_are_not_in_the_file(hybrid, tmp_path, monkeypatch, number, claim):
    metadata, tensors = parts(hybrid)
    header = json.loads(metadata["codanet"])
    header["image_size"], header["hybrid"]["stride"] = [8, 8], 8
    header["layers"][number].update(claim)
    save_file(tensors, path := tmp_path / "model.safetensors", {"codanet": json.dumps(header)})
    monkeypatch.setattr("codanet.models.hybrid_file.HybridNet", lambda *_, **__: pytest.fail("memory was taken"))
    with pytest.raises(ValueError, match=r"layers\.\d\.\w is said to be \[.*\], the file has"):
        codanet.load(path)


@pytest.mark.skipif(sys.platform == "win32", reason="resource limits")
def test_a_write_that_really_fails_leaves_nothing(tmp_path):
    """Neither a file of ours nor one that safetensors writes beside it."""
    import resource

    model, (soft, hard) = codanet.create_model("nano_coda"), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(ValueError, match="could not be written .*File too large"):
            codanet.save(model, tmp_path / "model.safetensors")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())
