"""The README's pictures of the shipped CIFAR-10 model: sure and right, sure and wrong, a multi-image.

The multi-image also beside the maps of post-hoc methods, the strongest first. With the data of the 64x64 model, for
each of its classes the validation picture that it is surest of, right or wrong. With TrashNet, twelve of the
photographs that the training of `waste` held out, drawn at random.

python experiments/gallery.py docs/images
python experiments/gallery.py docs/images --tiny-imagenet tiny-imagenet-20.zip
python experiments/gallery.py docs/images --waste trashnet
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

import codanet
from codanet import plot
from codanet.attribution import METHODS, attribute
from codanet.data import load_data
from codanet.data.photographs import load_photographs

IMAGES = 4000  # the first of the test set
OTHERS = ("occlusion9", "gradcam", "occlusion5", "grad", "intgrad")  # as they localise (docs/evaluation.md)
CELLS = ("cat", "airplane", "horse", "truck")


def logits_of(model: codanet.CoDANet, images: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([model(some.float() / 255) for some in images.split(250)])


def tiny_imagenet(root: Path, output: Path) -> None:
    model, data = codanet.load("tiny-imagenet-20"), load_data("tiny-imagenet", root=root)
    images, labels = data.val.__getitems__(list(range(len(data.val))))
    logits = logits_of(model, images)
    surest = logits.argmax(0)
    titles = [
        name if labels[place] == number else f"{data.classes[labels[place]]} taken for {name}"
        for number, (name, place) in enumerate(zip(data.classes, surest.tolist(), strict=True))
    ]
    why = model.explain(images[surest].float() / 255, torch.arange(model.num_classes))
    plot.save(plot.contribution_maps(why, columns=10, titles=titles), output / "tiny-imagenet.png")


def waste(root: Path, output: Path, number: int = 12) -> None:
    model = codanet.load("waste")
    data = load_photographs(root, size=model.image_size, seed=model.provenance["seed"])
    drawn = torch.randperm(len(data.val), generator=torch.Generator().manual_seed(0))[:number]
    images, labels = data.val.__getitems__(drawn.tolist())
    why = model.explain(images.float() / 255)
    sure, said = why.probabilities.max(1)
    titles = [
        f"is {data.classes[label]}\n{data.classes[number]} p={probability:.2f}"
        for label, number, probability in zip(labels.tolist(), said.tolist(), sure.tolist(), strict=True)
    ]
    plot.save(plot.contribution_maps(why, columns=6, titles=titles), output / "waste.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--tiny-imagenet", type=Path, help="data of the 64x64 model: draw it alone")
    parser.add_argument("--waste", type=Path, help="folder of TrashNet: draw the model of photographs alone")
    options = parser.parse_args()
    output = options.output
    if options.tiny_imagenet:
        tiny_imagenet(options.tiny_imagenet, output)
        return
    if options.waste:
        waste(options.waste, output)
        return
    model, data = codanet.load("cifar10"), load_data("cifar10")
    images, labels = data.val.__getitems__(list(range(IMAGES)))
    logits = logits_of(model, images)
    predicted = logits.argmax(1)

    right = predicted == labels
    surest = [int(logits[:, c].masked_fill(~right | (labels != c), -1e9).argmax()) for c in range(model.num_classes)]
    why = model.explain(images[surest].float() / 255)
    plot.save(plot.contribution_maps(why, columns=10), output / "cifar10.png")

    wrong = logits.amax(1).masked_fill(right, -1e9).argsort(descending=True)[:4]
    both = torch.stack([predicted[wrong], labels[wrong]], 1)
    titles = [f"{data.classes[true]} taken for {data.classes[taken]}" for taken, true in both.tolist()]
    why = model.explain(images[wrong].float() / 255, both)
    plot.save(plot.contribution_maps(why, columns=4, titles=titles), output / "mistakes.png")

    classes = [data.classes.index(name) for name in CELLS]
    a, b, c, d = (images[surest[label]].float() / 255 for label in classes)
    grid = torch.cat([torch.cat([a, b], 2), torch.cat([c, d], 2)], 1)
    why = model.explain(grid[None], torch.tensor([classes]))
    plot.save(plot.multi_image(why, 2), output / "multi-image.png")
    others = {METHODS[name].title: attribute(model, grid[None], [classes], name) for name in OTHERS}
    plot.save(plot.comparison(why, others), output / "methods.png")


if __name__ == "__main__":
    main()
