"""Fig. A7: a ReLU network is linear in pieces, y = M(x) x + b(x), but its contributions M(x) ⊙ x show little.

Input times gradient is to a ReLU network what its contributions are to a CoDA-Net, and it leaves out b(x). Both
networks learn the same images; measured are accuracy, localisation, and the share of the logit that the contributions
leave out.

    python experiments/piecewise_linear.py --quick
    python experiments/piecewise_linear.py --data cifar10 --model model.safetensors --resnet resnet56.safetensors
"""

import sys
from collections.abc import Sequence

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import ablation
import codanet
import result
from codanet import CoDANet
from codanet.data import ImageData, batches
from codanet.data.pictures import Pictures
from codanet.metrics import Scores, contributions, predict
from codanet.models.resnet import resnet56
from codanet.plot import colour_scale
from codanet.training.settings import Settings
from figure import BLUE, GREY, RED, grey, plain, side_by_side, signed, table
from result import Outcome, Setting, progress_bar

SHOWN = 5


class ReLUNet(nn.Sequential):
    """As many layers and about as many features as nano_coda, and mean-pooling."""

    def __init__(self, channels: int, classes: int):
        super().__init__(
            *(nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()),
            *(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(32, classes, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        )


def relu_network(settings: Settings, data: ImageData) -> nn.Module:
    """A ReLU network trained on the same images with Adam, for three times as many epochs: it learns more slowly."""
    torch.manual_seed(settings.seed)
    model = ReLUNet(data.channels, len(data.classes))
    loader = batches(data.train, settings.batch_size, shuffle=True, seed=settings.seed)
    epochs = 3 * settings.epochs
    steps = epochs * len(loader)
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.01, total_steps=steps, pct_start=0.2)
    with progress_bar("ReLU network", steps, unit="steps") as advance:
        for _ in range(epochs):
            for images, labels in loader:
                optimiser.zero_grad()
                cross_entropy(model(images.float() / 255), labels).backward()
                optimiser.step()
                schedule.step()
                advance(1)
    return model.eval()


def input_times_gradient(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    """M(x) ⊙ x of a piece-wise linear network: its gradient is the row of M, [N, H, W]."""
    with torch.enable_grad():
        inputs = images.detach().clone().requires_grad_()
        logit = model(inputs).gather(1, targets[:, None]).sum()
        (gradient,) = torch.autograd.grad(logit, inputs)
    return (gradient * images).sum(1)


def left_out(model: nn.Module, images: Tensor, maps: Tensor, targets: Tensor) -> float:
    """The mean of |logit - Σ contributions| / |logit|; a CoDA-Net's b0, the same for all, is no part of its logit."""
    with torch.no_grad():
        logits = model(images).gather(1, targets[:, None])[:, 0].double()
    logits = logits - (model.logit_bias if isinstance(model, CoDANet) else 0.0)
    return ((logits - maps.double().sum((1, 2))).abs() / logits.abs()).mean().item()


def experiment(setting: Setting) -> Outcome:
    start = ablation.base(setting)
    data = setting.images(size=start.image_size)
    coda = codanet.load(setting.files["model"]) if "model" in setting.files else ablation.trained(setting, start)
    if "resnet" in setting.files:
        relu: nn.Module = resnet56(weights=setting.files["resnet"]).eval()
    else:
        relu = relu_network(start, data)
    name = "ResNet-56" if "resnet" in setting.files else "ReLU network"
    pictures, numbers, scores, rows = Pictures(data.val), {}, {}, []
    for title, model, attribute in (("CoDA-Net", coda, contributions), (name, relu, input_times_gradient)):
        found = predict(model, pictures).scores()
        grids = setting.pick(*ablation.GRIDS[setting.data])
        scores[title] = ablation.localise(model, pictures, found, grids, setting.seed, attribute)
        images, labels, _ = pictures.read(first_of_each(data))
        maps = attribute(model, images, labels)
        rows.append((title, maps[:SHOWN]))
        numbers[title] = {
            "accuracy": found.mean,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            **described(scores[title]),
            "share_of_logit_left_out": left_out(model, images, maps, labels),
        }
    images, labels, _ = pictures.read(first_of_each(data))
    figure = draw(images[:SHOWN], labels[:SHOWN], rows, scores, data)
    return Outcome({"test images": len(data.val)}, data.image_size, numbers, figure)


def first_of_each(data: ImageData) -> list[int]:
    """The first test image of every class."""
    return [int((data.val.labels == label).nonzero()[0, 0]) for label in range(len(data.classes))]


def described(scores: Scores | None) -> dict[str, object]:
    if scores is None:
        return {"localisation": None}
    return {
        "localisation": scores.mean,
        "localisation_interval_95": scores.interval(),
        "grids": len(scores) // scores.unit,
    }


def draw(
    images: Tensor,
    labels: Tensor,
    rows: Sequence[tuple[str, Tensor]],
    scores: dict[str, Scores | None],
    data: ImageData,
) -> Figure:
    figure = Figure((8.6, 3.6), layout="constrained")
    left, right = side_by_side(figure, 1.6, 1)
    shown = [grey(images), *(signed(maps, colour_scale(maps)) for _, maps in rows)]
    names = ["image", "contributions\nof the CoDA-Net", f"input x gradient\nof the {rows[1][0]}"]
    table(shown, [data.classes[label] for label in labels.tolist()], names, figure=left)
    axes = plain(right.subplots(), "localisation (95% interval)", "", "")
    for place, values in enumerate(scores.values()):
        if values is not None:
            low, high = values.interval()
            axes.bar(place, values.mean, width=0.5, color=(RED, BLUE)[place])
            axes.plot([place, place], [low, high], color="#1a1a1a", lw=1)
            axes.annotate(
                f"{values.mean:.2f}", (place, high), (0, 3), textcoords="offset points", ha="center", fontsize=8
            )
    axes.axhline(ablation.CHANCE, color=GREY, lw=0.8, ls=":")
    axes.set_xticks(range(len(scores)), list(scores), fontsize=8)
    axes.set_ylim(0, 1)
    figure.suptitle("Linear for every image, both: but only one has learnt to align", fontsize=10)
    return figure


def main(arguments: Sequence[str] | None = None) -> int:
    return result.main(
        __file__,
        __doc__,
        experiment,
        arguments,
        data=("digits", "mnist", "cifar10"),
        quick_data="digits",
        files={
            "model": "a trained CoDA-Net (safetensors); without it one is trained",
            "resnet": "weights of a ResNet-56 for CIFAR-10 (safetensors); without it a small ReLU network is trained",
        },
    )


if __name__ == "__main__":
    sys.exit(main())
