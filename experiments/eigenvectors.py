"""Fig. 3, sec. 3.1: what a DAU's matrix AB learns when its output is maximised.

A rank-3 DAU without bias is maximised over 3072 noisy copies of three digits. Its weights w(x) = g(A B x) can be
aligned with all three only if they are eigenvectors of AB (eq. 3), and noise has no direction worth encoding: so the
three eigenvectors are the digits without the noise.

    python experiments/eigenvectors.py --quick
"""

import sys
from collections.abc import Sequence

import torch
from matplotlib.figure import Figure
from torch import Tensor

import result
from codanet import DAULinear
from figure import grey, signed, table
from result import Outcome, Setting, progress_bar

COPIES, RANK, NOISE = 3072, 3, 0.3  # NOISE is the standard deviation; the images lie in [0, 1]
CLASSES = (2, 4, 7)


def maximise(unit: DAULinear, inputs: Tensor, steps: int) -> float:
    """Adam on the mean output over all inputs; gives the one reached."""
    optimiser = torch.optim.Adam(unit.parameters(), lr=0.03)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    with progress_bar("maximising", steps, unit="steps") as advance:
        for _ in range(steps):
            optimiser.zero_grad()
            (-unit(inputs).mean()).backward()
            optimiser.step()
            schedule.step()
            advance(1)
    return unit(inputs).mean().item()


def eigenvectors(unit: DAULinear) -> tuple[Tensor, Tensor]:
    """The r non-zero eigenvalues of AB, largest first, and their unit eigenvectors [r, d]."""
    # w = Σ_r (B x)_r A_r, so AB of the paper is AᵀB here; if BAᵀu = λu then AᵀB(Aᵀu) = λ(Aᵀu)
    A, B = unit.A[:, 0].detach().double(), unit.B.detach().double()  # both [r, d]
    values, small = torch.linalg.eig(B @ A.T)
    order = values.real.argsort(descending=True)
    vectors = (A.T.to(small.dtype) @ small[:, order]).real.T
    return values[order], vectors / vectors.norm(dim=1, keepdim=True)


def principal_angles(one: Tensor, other: Tensor) -> Tensor:
    """Between the spans of two sets of rows, in degrees, smallest first."""
    bases = [torch.linalg.qr(rows.double().T).Q for rows in (one, other)]
    return torch.rad2deg(torch.arccos(torch.linalg.svdvals(bases[0].T @ bases[1]).clamp(max=1)))


def experiment(setting: Setting) -> Outcome:
    data = setting.images()
    images, labels = data.train.__getitems__(range(500))
    digits = torch.stack([images[labels == c][0, 0] for c in CLASSES]).float() / 255  # [3, H, W]
    clean = digits.flatten(1)
    noisy = clean.repeat(COPIES // len(CLASSES), 1)
    noisy = noisy + NOISE * torch.randn(noisy.shape)

    unit = DAULinear(clean.shape[1], 1, RANK, rescale="l2", bias=False)
    before = principal_angles(unit.A[:, 0].detach(), clean)
    output = maximise(unit, noisy, setting.pick(600, 2000))
    values, vectors = eigenvectors(unit)
    angles = principal_angles(vectors, clean)
    components = torch.linalg.svd(noisy.double(), full_matrices=False).Vh[:RANK]  # PCA without a mean

    likeness = vectors @ (clean / clean.norm(dim=1, keepdim=True)).double().T  # cosines [vector, digit]
    order = [int(likeness[:, digit].abs().argmax()) for digit in range(len(CLASSES))]
    found = torch.stack([vectors[row] * likeness[row, digit].sign() for digit, row in enumerate(order)])
    cosines = [abs(likeness[row, digit].item()) for digit, row in enumerate(order)]
    numbers = {
        "angles_degrees": angles.tolist(),
        "angles_before_degrees": before.tolist(),
        "angles_pca_degrees": principal_angles(components, clean).tolist(),
        "cosine_digit_eigenvector": cosines,
        "cosine_digit_noisy": torch.cosine_similarity(noisy, clean.repeat(len(noisy) // 3, 1)).mean().item(),
        "eigenvalues": values.real.tolist(),
        "eigenvalues_imaginary": values.imag.tolist(),
        "mean_output": output,
        "mean_bound": noisy.norm(dim=1).mean().item(),  # ‖x‖ (eq. 3)
        "noise": NOISE,
        "rescale": "l2",
    }
    return Outcome({"noisy copies": COPIES}, data.image_size, numbers, draw(digits, noisy, found, components, numbers))


def draw(digits: Tensor, noisy: Tensor, found: Tensor, components: Tensor, numbers: dict[str, list[float]]) -> Figure:
    shape = digits.shape
    rows = [
        grey(digits),
        grey(noisy[: len(digits)].view(shape)),
        signed(found.view(shape)),
        signed((components * components.sum(1, keepdim=True).sign()).view(shape)),
    ]
    titles = [
        [f"digit {c}" for c in CLASSES],
        [f"noise {NOISE}"] * 3,
        [f"cosine {c:.3f}" for c in numbers["cosine_digit_eigenvector"]],
        [f"component {i + 1}" for i in range(3)],
    ]
    figure = table(
        rows, titles, ["the three\nimages", "a noisy\ncopy of each", "eigenvectors\nof AB", "PCA of the\ncopies"]
    )
    worst = max(numbers["angles_degrees"])
    figure.suptitle(f"A DAU's eigenvectors are the digits\n(largest principal angle {worst:.1f}°)", fontsize=10)
    return figure


def main(arguments: Sequence[str] | None = None) -> int:
    return result.main(__file__, __doc__, experiment, arguments)


if __name__ == "__main__":
    sys.exit(main())
