"""The models that come with the package give the logits, and the accuracy, that they were shipped with."""

import json
import os
from pathlib import Path

import pytest
import torch

import codanet
from codanet._support.download import cache_root
from codanet.data import load_data
from codanet.models.weight_files import list_shipped
from ship import FINGERPRINTS, generated_inputs

SLICE = 500  # images


def test_something_is_shipped():
    assert "cifar10" in list_shipped()


@pytest.mark.parametrize("name", list_shipped())
def test_fingerprint(name):
    model = codanet.load(name)
    expected = torch.tensor(json.loads((FINGERPRINTS / f"{name}.json").read_text())["logits"])
    with torch.no_grad():
        logits = model(generated_inputs(model))
    assert torch.allclose(logits, expected, atol=2e-3, rtol=1e-3)
    why = model.explain(generated_inputs(model), target="all")
    assert why.completeness_error().max() < 1e-3


@pytest.mark.parametrize("name", list_shipped())
def test_provenance(name):
    told = codanet.load(name).provenance
    assert {"recipe", "seed", "epochs", "hours", "val_accuracy", "val_images", "versions"} <= told.keys()
    assert (Path(codanet.__file__).parent / "models" / "shipped" / f"{name}.safetensors").stat().st_size < 8 << 20


@pytest.mark.parametrize("name", list_shipped())
def test_accuracy_on_a_slice_of_the_test_set(name):
    model = codanet.load(name)
    data = model.provenance["data"]
    if not (cache_root() / f"{data}.safetensors").is_file():
        pytest.skip(f"{data} is not in the cache {os.environ.get('CODANET_DATA', '')}: it was not fetched here")
    if (known := load_data(data)).classes != model.class_names:
        pytest.skip(f"the {data} in the cache has other classes than the model")
    images, labels = known.val.__getitems__(list(range(SLICE)))
    with torch.no_grad():
        right = (model(images.float() / 255).argmax(1) == labels).float().mean().item()
    told = model.provenance.get("test_accuracy", model.provenance["val_accuracy"])
    assert abs(right - told) < 4 * (told * (1 - told) / 1000) ** 0.5
