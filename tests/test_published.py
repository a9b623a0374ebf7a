"""Published figures beside those that were measured."""

import json

import numpy as np
import pytest
from torch import nn

from codanet.evaluation.published import Published
from codanet.models.hybrid import HybridNet, head_layers
from codanet.models.network import CoDANet, Layer

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    "changes",
    [{"mean": "high"}, {"mean": None}, {"q75": "0.6"}, {"q25": [0.1, 0.2]}, {"median": float("nan")}, {"curve": 0.5}],
)
def test_published_figures_that_cannot_be_drawn_are_refused_before_any_work(changes, tmp_path):
    path, entry = tmp_path / "published.json", {"mean": 0.5, "q25": 0.4, "median": 0.5, "q75": 0.6, "curve": [1, 0.9]}
    for given in (entry, {**entry, **changes}):
        path.write_text(json.dumps({kind: {"T=4": {"CoDA": given}} for kind in ("localisation", "pixel_removal")}))
        if given is entry:
            assert Published.read(path).figures["localisation"]["T=4"]["CoDA"] == entry
    with pytest.raises(ValueError, match="published.json is not a file of published figures"):
        Published.read(path)


def test_published_figures_stand_beside_the_methods_that_they_are_of():
    entry = {"mean": 0.5, "q25": 0.4, "median": 0.5, "q75": 0.6}
    published = Published(
        {"localisation": {"T=4": {"Occ5": entry, "Occ9": {**entry, "mean": 0.75}, "GCam": entry}}, "pixel_removal": {}}
    )
    model = CoDANet([Layer(3, 2)], image_size=8, temperature=4)
    means = {
        name: published.mean("localisation", model, name)
        for name in ("occlusion5:window=4:space=image", "occlusion9:window=8", "occlusion5", "occlusion9:space=image")
    }
    assert list(means.values())[:2] == [0.5, 0.75]
    hybrid = HybridNet(nn.Conv2d(3, 8, 3, stride=2, padding=1), head_layers(3, (4,), 2), image_size=16, temperature=4)
    assert np.isnan(published.mean("localisation", hybrid, "occlusion9:window=8"))  # which was not published
    assert all(np.isnan(list(means.values())[2:]))
    for name, mean in (("gradcam", 0.5), ("gradcam:interpolation=nearest", 0.5), ("gradcam:layer=layers.0", np.nan)):
        assert published.mean("localisation", model, name) == pytest.approx(mean, nan_ok=True)
