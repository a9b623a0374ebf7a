"""What share of a training epoch its data pipeline takes: `python benchmarks/pipeline.py cifar10-cpu --steps 200`.

The pipeline is everything before the network: drawing the order, gathering the batch, uint8 to float, augmentation. It
is timed over a whole epoch on its own; an eager training step in float32, by Adam, at full size, over `--steps`
batches, pipeline left out, and extrapolated.
"""

import argparse
import json
import platform
import statistics
import time

import torch

from codanet import __version__
from codanet.data import batches, load_data
from codanet.data.augmentation import augmentation
from codanet.models.zoo import create_model
from codanet.training.loss import objective
from codanet.training.recipe import load_recipe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3, help="whole passes of the pipeline")
    options = parser.parse_args()
    settings = load_recipe(options.recipe).settings
    data = load_data(settings.data, size=settings.image_size, source=settings.source)
    model = create_model(settings.model, num_classes=len(data.classes), image_channels=data.channels)
    augment = augmentation(settings.augmentation, data.image_size)
    optimiser = torch.optim.Adam(model.parameters(), settings.learning_rate)
    generator = torch.Generator().manual_seed(0)

    passes = []
    for _ in range(options.repeats):
        start = time.perf_counter()
        for images, _labels in batches(data.train, settings.batch_size, shuffle=True):
            augment(images.float() / 255, generator)
        passes.append(time.perf_counter() - start)

    images, labels = data.train.__getitems__(list(range(settings.batch_size)))
    pictures = augment(images.float() / 255, generator)
    steps = []
    for _ in range(options.steps):
        start = time.perf_counter()
        loss, _ = objective(model, pictures, labels, regularisation=settings.regularisation)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        steps.append(time.perf_counter() - start)
    epoch = statistics.median(steps) * len(data.train) / settings.batch_size
    pipeline = statistics.median(passes)
    facts = {
        "recipe": options.recipe,
        "pipeline_seconds": [round(value, 2) for value in passes],
        "training_seconds": round(epoch, 1),
        "share": round(pipeline / (pipeline + epoch), 4),
        "steps": options.steps,
        "batch_size": settings.batch_size,
        "threads": torch.get_num_threads(),
        "versions": {"codanet": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }
    print(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
