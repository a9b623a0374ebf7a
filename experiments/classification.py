"""Fig. 2, sec. 3.2: DAUs as classifiers weight what tells the classes apart, and not the noise.

A single layer of DAUs, one per class, and a CoDA-Net of five layers are trained on noisy digits. Every output is
w(x)·x: the weights w follow each single image, and the noise, which says nothing about the class, is left out of them.
Measured as the cosine of w with the image before the noise, and with the noise alone, of images not seen in training.

    python experiments/classification.py --quick
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure
from torch import Generator, Tensor, nn
from torch.nn.functional import cosine_similarity, one_hot

import result
from codanet import CoDANet, DAULinear
from codanet.models.network import LOGIT_BIAS, Layer
from codanet.training.loss import classification_loss
from figure import grey, signed, table
from result import Outcome, Setting, progress_bar

NOISE, BATCH = 0.3, 32
WIDEST = 0.5  # noise beyond it is cut off on both sides, so that it has no mean


class SingleLayer(nn.Module):
    """Grey images [N, 1, H, W] to one DAU per class plus b0, without input encoding and temperature."""

    def __init__(self, pixels: int, classes: int, rank: int):
        super().__init__()
        self.units = DAULinear(pixels, classes, rank)

    def forward(self, images: Tensor) -> Tensor:
        return self.units(images.flatten(1)) + LOGIT_BIAS

    @torch.no_grad()
    def rows(self, images: Tensor, targets: Tensor) -> Tensor:
        """w of the targets [N, K], as [N, K, 1, H, W]."""
        logits, weights = self.units.align(images.flatten(1))
        chosen = one_hot(targets, logits.shape[1]).to(logits.dtype)
        return self.units.pull(chosen, weights).view(*targets.shape, *images.shape[1:])


class FiveLayers(CoDANet):
    def __init__(self, classes: int, size: tuple[int, int]):
        stride = 2 if size[0] > 8 else 1
        layers = [Layer(8, 8), Layer(16, 8, stride=stride), Layer(16, 8), Layer(32, 8, stride=2), Layer(classes, 16, 1)]
        super().__init__(layers, image_channels=1, image_size=size, temperature=16)

    def rows(self, images: Tensor, targets: Tensor) -> Tensor:
        """Rows of W / T over the encoded image [x, 1-x], [N, K, 2, H, W]."""
        return self.explain(images, targets).rows


def noise_like(images: Tensor, generator: Generator) -> Tensor:
    return (NOISE * torch.randn(images.shape, generator=generator)).clamp(-WIDEST, WIDEST)


def train(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    epochs: int,
    learning_rate: float,
    generator: Generator,
    title: str,
) -> None:
    """Adam on the one-vs-all cross-entropy, new noise in every epoch."""
    steps = epochs * (len(images) // BATCH)
    optimiser = torch.optim.Adam(model.parameters(), learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, learning_rate, total_steps=steps, pct_start=0.2)
    with progress_bar(title, steps, unit="steps") as advance:
        for _ in range(epochs):
            for chosen in torch.randperm(len(images), generator=generator).split(BATCH)[: steps // epochs]:
                clean = images[chosen]
                loss = classification_loss(model(clean + noise_like(clean, generator)), labels[chosen])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
                advance(1)


@dataclass(frozen=True)
class Case:
    """A test image, its label l and the strongest class z besides: weights and contributions of both, [H, W]."""

    noisy: Tensor
    label: int
    other: int
    right: bool
    weights: Tensor  # [2, H, W]
    contributions: Tensor  # [2, H, W]


def cases(model: SingleLayer | FiveLayers, noisy: Tensor, labels: Tensor) -> list[Case]:
    """Two images that are classified correctly and one that is not, of the class that is mistaken most often."""
    with torch.no_grad():
        logits = model(noisy)
    wrong = logits.argmax(1) != labels
    label = int(labels[wrong].bincount(minlength=logits.shape[1]).argmax()) if wrong.any() else int(labels[0])
    others = logits.scatter(1, labels[:, None], -torch.inf).argmax(1)
    mine = labels == label
    found = [*(mine & ~wrong).nonzero()[:2, 0].tolist(), *(mine & wrong).nonzero()[:1, 0].tolist()]
    pictured = []
    for index in found:
        image, targets = noisy[index : index + 1], torch.tensor([[label, int(others[index])]])
        rows = model.rows(image, targets)[0]  # [2, C, H, W]
        encoded = image[0] if rows.shape[1] == 1 else torch.cat([image[0], 1 - image[0]])
        # what a brighter pixel adds: w of x, less w of 1 - x where that is an input too
        weights = rows[:, 0] if rows.shape[1] == 1 else rows[:, 0] - rows[:, 1]
        right = not bool(wrong[index])
        pictured.append(Case(image[0, 0], label, int(others[index]), right, weights, (rows * encoded).sum(1)))
    return pictured


def alignment(model: SingleLayer | FiveLayers, clean: Tensor, noise: Tensor, labels: Tensor) -> dict[str, float]:
    """Mean cosines over the test images, in the space that the weights live in: x, or [x, 1-x]."""
    noisy = clean + noise
    with torch.no_grad():
        accuracy = (model(noisy).argmax(1) == labels).double().mean().item()
    rows = model.rows(noisy, labels[:, None])[:, 0].flatten(1)
    if rows.shape[1] == clean[0].numel():
        image, dirt = clean.flatten(1), noise.flatten(1)
    else:
        image, dirt = torch.cat([clean, 1 - clean], 1).flatten(1), torch.cat([noise, -noise], 1).flatten(1)
    cosines = {
        "cosine_weights_image": cosine_similarity(rows, image),
        "cosine_weights_noise": cosine_similarity(rows, dirt),
        "cosine_input_image": cosine_similarity(image + dirt, image),
        "cosine_input_noise": cosine_similarity(image + dirt, dirt),
    }
    spread = {f"{name}_std": values.std().item() for name, values in cosines.items()}
    return {"accuracy": accuracy, **{name: values.mean().item() for name, values in cosines.items()}, **spread}


def experiment(setting: Setting) -> Outcome:
    small = setting.quick or setting.data == "digits"
    data = setting.images(size=14 if setting.data == "mnist" and setting.quick else None)
    number, tested = min(setting.pick(4000, 60000), len(data.train)), min(setting.pick(360, 2000), len(data.val))
    images, labels = data.train.__getitems__(range(number))
    clean, truth = data.val.__getitems__(range(tested))
    generator = Generator().manual_seed(setting.seed)
    clean = clean.float() / 255
    noise = noise_like(clean, generator)

    models: dict[str, SingleLayer | FiveLayers] = {
        "single layer": SingleLayer(clean[0].numel(), len(data.classes), 16 if small else 64),
        "five layers": FiveLayers(len(data.classes), data.image_size),
    }
    epochs = {"single layer": setting.pick(10, 20), "five layers": setting.pick(5, 20)}
    if setting.data == "mnist":
        epochs = {"single layer": setting.pick(6, 4), "five layers": 2}
    rates = {"single layer": 0.01 if setting.data == "digits" else 0.003, "five layers": 0.01}
    numbers: dict[str, dict[str, float]] = {}
    examples = []
    for name, model in models.items():
        train(model, images.float() / 255, labels, epochs[name], rates[name], generator, name)
        numbers[name] = alignment(model, clean, noise, truth)
        examples.append((name, cases(model, clean + noise, truth)))
    counts = {"training images": number, "test images": tested}
    return Outcome(counts, data.image_size, {"noise": NOISE, **numbers}, draw(examples, data.classes))


def draw(examples: Sequence[tuple[str, list[Case]]], classes: Sequence[str]) -> Figure:
    rows, titles, names = [], [], []
    for model, some in examples:
        for case in some:
            pair = torch.stack([case.weights, case.contributions])
            weights, contributions = (signed(maps, scale=maps.abs().quantile(0.995).item()) for maps in pair)
            rows.append([*grey(case.noisy[None]), weights[0], contributions[0], weights[1], contributions[1]])
            for_class = [f"{what} of {classes[c]}" for c in (case.label, case.other) for what in ("w", "s")]
            titles.append([f"a {classes[case.label]}", *(words for words in for_class)])
            outcome = "right" if case.right else f"taken for {classes[case.other]}"
            names.append(f"{model}\n{outcome}")
    figure = table(rows, titles, names, left=1.6)
    figure.suptitle(
        "Weights w and contributions s = w ⊙ x,\nof the label and of the strongest other class", fontsize=10
    )
    return figure


def main(arguments: Sequence[str] | None = None) -> int:
    return result.main(__file__, __doc__, experiment, arguments)


if __name__ == "__main__":
    sys.exit(main())
