"""What may be said of a model to anyone: where it comes from, without the paths of the machine that trained it."""

from pathlib import PurePath
from typing import Any

from .network import CoDANet

ACCURACY = ("val_accuracy", "val_images", "test_accuracy", "test_images")
FACTS = ("recipe", "data", "seed", "epochs", "hours", *ACCURACY, "data_checksum", "versions")


def facts(model: CoDANet) -> dict[str, Any]:
    """Of the model's provenance what any visitor may know."""
    known = {key: model.provenance[key] for key in FACTS if key in model.provenance}
    if isinstance(known.get("data"), str):
        known["data"] = PurePath(known["data"]).name
    return known


def named_classes(model: CoDANet) -> tuple[str, ...]:
    """The names of the classes, or "class 0", "class 1" and so on."""
    return model.class_names or tuple(f"class {number}" for number in range(model.num_classes))
