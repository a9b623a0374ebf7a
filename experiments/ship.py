"""Make a trained model one of the package's own: measure it, copy its weights, write what the tests will check.

python experiments/ship.py runs/cifar10-cpu cifar10
python experiments/ship.py runs/photos waste --data trashnet
python experiments/ship.py runs/tiny-imagenet-cpu tiny-imagenet-20 --root tiny-imagenet-20.zip
"""

import argparse
import json
from pathlib import Path

import torch

import codanet
from codanet.data import batches
from codanet.evaluation.models import read_data
from codanet.models.hybrid import HybridNet
from codanet.models.weight_files import SHIPPED
from codanet.training.run_files import MODEL

FINGERPRINTS = Path(__file__).resolve().parent.parent / "tests" / "fingerprints"


def accuracy(model: codanet.CoDANet, data: str, root: Path | None) -> tuple[float, int]:
    """On all of the data set's test images, or on those of a folder that the training held out."""
    right = number = 0
    with torch.no_grad():
        for images, labels in batches(read_data({"model": model}, data, root, None, "auto").val, 64):
            right += int((model(images.float() / 255).argmax(1) == labels).sum())
            number += len(labels)
    return right / number, number


def generated_inputs(model: codanet.CoDANet) -> torch.Tensor:
    """Waves of colour, dots, black, and white: the same on every machine."""
    height, width = model.image_size or (32, 32)
    y, x = torch.meshgrid(torch.linspace(0, 1, height), torch.linspace(0, 1, width), indexing="ij")
    waves = [torch.stack([0.5 + 0.5 * torch.sin(6.283 * (f * x + (c + 1) * y)) for c in range(3)]) for f in range(4)]
    dots = [0.5 + 0.5 * torch.sin(70 * x + c) * torch.sin(90 * y - c) for c in range(3)]
    plain = torch.zeros(3, height, width)
    return torch.stack([*waves, torch.stack(dots), plain, plain + 1])


def fingerprint(name: str) -> dict[str, list[list[float]]]:
    model = codanet.load(name)
    with torch.no_grad():
        return {"logits": [[round(v, 6) for v in row] for row in model(generated_inputs(model)).tolist()]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a finished run")
    parser.add_argument("name", help="what codanet.load will know it by")
    parser.add_argument("--data", help="the folder of pictures it was trained on, if it was one")
    parser.add_argument("--root", type=Path, help="folder or archive of the data set, if it was not fetched")
    arguments = parser.parse_args()
    model = codanet.load(arguments.run / MODEL)
    hybrid = isinstance(model, HybridNet)
    if hybrid:  # with the backbone's filters as the file will hold them
        codanet.save(model, SHIPPED / f"{arguments.name}.safetensors", half_backbone=True)
        model = codanet.load(arguments.name)
    share, number = accuracy(model, arguments.data or model.provenance["data"], arguments.root)
    settings = model.provenance["settings"]
    looked_at = "test" if settings.get("holdout") else "val"  # the choices were made on other images, or on these
    provenance = model.provenance | {f"{looked_at}_accuracy": share, f"{looked_at}_images": number}
    for stage in [*provenance.get("stages", []), {"settings": settings}]:  # where things were is nobody's business
        stage["settings"]["root"] = None
        if stage["settings"].get("start") is not None:
            stage["settings"]["start"] = "an earlier stage"
    settings["data"] = provenance["data"]
    SHIPPED.mkdir(exist_ok=True)
    codanet.save(model, SHIPPED / f"{arguments.name}.safetensors", provenance=provenance, half_backbone=hybrid)
    FINGERPRINTS.mkdir(exist_ok=True)
    (FINGERPRINTS / f"{arguments.name}.json").write_text(json.dumps(fingerprint(arguments.name)) + "\n")
    kind = {"test": "test", "val": "validation"}[looked_at]
    print(f"{arguments.name}: {share:.2%} of {number} {kind} images, {provenance['epochs']} epochs")


if __name__ == "__main__":
    main()
