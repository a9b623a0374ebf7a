"""Supplement D: at their optimum DAUs solve a low-rank approximation of the data, by angle instead of by distance.

Over the images m_i the output of a bias-free DAU of rank r, Σ g(A B m_i)·m_i, is the angular objective
Σ ‖m_i‖ cos(m_i, m'_i) of the rank-r matrix with columns m'_i = A B m_i. Of the images' projections Pm_i onto a
subspace it is Σ ‖Pm_i‖. SVD maximises Σ ‖Pm_i‖² instead, so its subspace is close to the DAU's, and its angular
objective no larger.

No rank-r matrix can do better than an upper bound that is computed beside them: Σ √(m_iᵀPm_i) is concave in P, so its
tangent at any P lies above it, and the tangent is largest at the leading eigenvectors of its slope.

Ranks start from 2: at rank 1 only the sign of Bx is left of it, which no gradient can learn.

    python experiments/low_rank.py --quick
"""

import sys
from collections.abc import Sequence

import torch
from matplotlib.figure import Figure
from torch import Tensor

import result
from codanet import DAULinear
from eigenvectors import principal_angles
from figure import BLUE, GREY, INK, RED, grey, plain, side_by_side, signed, table
from result import Outcome, Setting, progress_bar

QUICK_RANKS, RANKS = (2, 4, 8, 16), (2, 4, 8, 16, 32)
PICTURED = 8  # the rank whose reconstructions are shown
SHOWN = 6


def maximise(unit: DAULinear, inputs: Tensor, iterations: int) -> float:
    """L-BFGS on the mean output over all inputs; gives the one reached."""
    optimiser = torch.optim.LBFGS(
        unit.parameters(), max_iter=iterations, history_size=20, tolerance_change=1e-13, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = -unit(inputs).mean()
        value.backward()
        return value

    optimiser.step(loss)
    return unit(inputs).mean().item()


def angular_objective(images: Tensor, basis: Tensor) -> float:
    """The mean of ‖m_i‖ cos(m_i, P m_i) = ‖P m_i‖, with P onto the orthonormal rows of `basis` [r, d]."""
    return (images @ basis.T).norm(dim=1).mean().item()


def upper_bound(images: Tensor, basis: Tensor) -> float:
    """No rank-r matrix has a larger angular objective: the maximum of its tangent at P, f(P)/2 + Σ_r λ_r(slope)."""
    norms = (images @ basis.T).norm(dim=1)
    slope = (images.T / norms) @ images / (2 * len(images))  # ∂f/∂P, [d, d]
    return norms.mean().item() / 2 + torch.linalg.eigvalsh(slope)[-len(basis) :].sum().item()


def experiment(setting: Setting) -> Outcome:
    data = setting.images()
    number = min(setting.pick(800 if setting.data == "digits" else 400, 2000), len(data.train))
    images = data.train.__getitems__(range(number))[0].flatten(1).double() / 255  # rows m_i, [n, d]
    directions = torch.linalg.svd(images, full_matrices=False).Vh
    ranks = setting.pick(QUICK_RANKS, RANKS)
    lines, pictures = [], [images, images]
    with progress_bar("ranks", len(ranks), unit="ranks") as advance:
        for rank in ranks:
            unit = DAULinear(images.shape[1], 1, rank, rescale="l2", bias=False).double()
            reached = maximise(unit, images, setting.pick(500, 1500))
            basis = torch.linalg.qr(unit.A[:, 0].detach().T).Q.T
            best = directions[:rank]
            lines.append(
                {
                    "rank": rank,
                    "dau": reached,
                    "svd": angular_objective(images, best),
                    "upper_bound": min(upper_bound(images, basis), upper_bound(images, best)),
                    "shared_subspace": (basis @ best.T).square().sum().item() / rank,
                    "largest_angle_degrees": principal_angles(basis, best).max().item(),
                    "random_subspace": rank / images.shape[1],
                }
            )
            if rank == PICTURED:
                pictures = [rebuilt(images[:SHOWN], rows) for rows in (basis, best)]
            advance(1)
    largest = images.norm(dim=1).mean().item()  # at full rank
    shape = (-1, *data.image_size)
    numbers = {"ranks": lines, "full_rank": largest}
    figure = draw(lines, largest, *(some.view(shape) for some in (images[:SHOWN], *pictures)))
    return Outcome({"images": number}, data.image_size, numbers, figure)


def rebuilt(images: Tensor, basis: Tensor) -> Tensor:
    """The projections, each as long as its image."""
    made = images @ basis.T @ basis
    return made * (images.norm(dim=1) / made.norm(dim=1))[:, None]


def draw(lines: list[dict[str, float]], largest: float, images: Tensor, dau: Tensor, svd: Tensor) -> Figure:
    figure = Figure((9.2, 3.6), layout="constrained")
    left, right = side_by_side(figure, 1, 1.25)
    upper, lower = left.subplots(2, 1, sharex=True)
    ranks = [line["rank"] for line in lines]
    plain(upper, "angular objective, share of that at full rank", "", "")
    upper.plot(
        ranks, [line["upper_bound"] / largest for line in lines], color=GREY, lw=3, alpha=0.5, label="upper bound"
    )
    upper.plot(ranks, [line["svd"] / largest for line in lines], "s--", color=BLUE, ms=4, lw=1, label="SVD")
    upper.plot(ranks, [line["dau"] / largest for line in lines], "o-", color=RED, ms=3, lw=1, label="DAU")
    upper.legend(fontsize=7, frameon=False)
    plain(lower, "distance below the upper bound, same unit", "rank", "")
    for key, colour, mark in (("svd", BLUE, "s--"), ("dau", RED, "o-")):
        gaps = [max(1e-9, (line["upper_bound"] - line[key]) / largest) for line in lines]
        lower.plot(ranks, gaps, mark, color=colour, ms=4, lw=1)
    lower.set_yscale("log")
    lower.set_xscale("log", base=2)
    lower.set_xticks(ranks, [str(rank) for rank in ranks])
    lower.minorticks_off()
    scale = images.abs().max().item()
    rows = [grey(images), signed(dau, scale), signed(svd, scale)]
    table(rows, [""] * SHOWN, ["image", f"DAU,\nrank {PICTURED}", f"SVD,\nrank {PICTURED}"], figure=right)
    right.suptitle(
        f"images from a subspace of {PICTURED} dimensions (red positive, blue negative)", fontsize=9, color=INK
    )
    return figure


def main(arguments: Sequence[str] | None = None) -> int:
    return result.main(__file__, __doc__, experiment, arguments)


if __name__ == "__main__":
    sys.exit(main())
