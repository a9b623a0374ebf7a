"""Supplement E: a classical capsule that routes once is SQ(Vx); a DAU with AB = V and b = 0 is that capsule times x.

The capsule layer is Sabour et al.'s, as they write it: votes W_ij u_i of every input capsule, coupling coefficients
from a softmax over logits that start at zero and are raised by agreement, squashed sums. The images' patches are the
input capsules. With one routing iteration the layer equals SQ(Vx) to the last digits (eq. E.7); each further iteration
leads away from it. The DAU that has those matrices gives, for every capsule, CAP(x)ᵀx.

    python experiments/capsules.py --quick
"""

import sys
from collections.abc import Sequence

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import unfold

import result
from codanet import DAULinear
from figure import BLUE, GREY, RED, plain
from result import Outcome, Setting, progress_bar

CAPSULES, RANK, PATCH = 10, 8, 4
ITERATIONS = (1, 2, 3, 4, 5)


def squash(vectors: Tensor) -> Tensor:
    """SQ(u) = u/‖u‖ · ‖u‖² / (1 + ‖u‖²) over the last dimension."""
    norm = vectors.norm(dim=-1, keepdim=True)
    return vectors / norm * (norm.square() / (1 + norm.square()))


def capsule_layer(inputs: Tensor, weight: Tensor, iterations: int) -> Tensor:
    """Input capsules u [N, I, c], W [J, I, D, c], to output capsules [N, J, D], routed by agreement."""
    votes = torch.einsum("jidc,nic->njid", weight, inputs)  # û_j|i = W_ij u_i
    logits = torch.zeros(votes.shape[:3], dtype=votes.dtype)  # b_ij, [N, J, I]
    for iteration in range(iterations):
        coupling = logits.softmax(1)  # every input capsule shares itself out over the output capsules
        out = squash(torch.einsum("nji,njid->njd", coupling, votes))
        if iteration + 1 < iterations:
            logits = logits + torch.einsum("njid,njd->nji", votes, out)
    return out


def joined(weight: Tensor) -> Tensor:
    """V [J, D, I·c] of a layer that routes once: the columns are the votes of single neurons, times c_ij = 1/J."""
    return weight.permute(0, 2, 1, 3).flatten(2) / len(weight)


def aligned(A: Tensor, B: Tensor) -> DAULinear:
    """The DAUs with V_j = A_j B: A [J, d, r], B [r, d], b = 0."""
    units, size, rank = A.shape
    layer = DAULinear(size, units, rank, rescale="sq", bias=False).to(A.dtype)
    with torch.no_grad():
        layer.A.copy_(A.permute(2, 0, 1))
        layer.B.copy_(B)
    return layer


def experiment(setting: Setting) -> Outcome:
    data = setting.images(size=8)
    number = setting.pick(200, 2000)
    images = data.val.__getitems__(range(min(number, len(data.val))))[0].double() / 255
    inputs = unfold(images, PATCH, stride=PATCH).transpose(1, 2).contiguous()  # [N, I, c], a patch each
    x = inputs.flatten(1)  # all neurons of all capsules, [N, d]
    size = x.shape[1]

    # V_j = A_j B / J of rank 8, and with it the matrices W_ij of the capsules, [J, I, D, c]
    A, B = torch.randn(CAPSULES, size, RANK).double() / 3, torch.randn(RANK, size).double() / 3
    weight = (CAPSULES * A @ B).view(CAPSULES, size, len(inputs[0]), -1).transpose(1, 2).contiguous()
    V = joined(weight)
    linear = squash(torch.einsum("jdu,nu->njd", V, x))  # SQ(Vx)
    drift = []
    with progress_bar("routing", len(ITERATIONS), unit="iterations") as advance:
        for iterations in ITERATIONS:
            capsules = capsule_layer(inputs, weight, iterations)
            drift.append(((capsules - linear).norm(dim=2) / linear.norm(dim=2)).mean().item())
            advance(1)
    once = capsule_layer(inputs, weight, 1)
    dots = torch.einsum("njd,nd->nj", once, x)
    outputs = aligned(A, B)(x).detach()
    numbers = {
        "capsule_error": (once - linear).abs().max().item(),
        "dau_error": (outputs - dots).abs().max().item(),
        "rank_of_V": int(torch.linalg.matrix_rank(V[0])),
        "mean_relative_difference_by_iterations": dict(zip(map(str, ITERATIONS), drift, strict=True)),
        "precision": "float64",
    }
    return Outcome(
        {"images": len(images), "capsules": CAPSULES}, data.image_size, numbers, draw(outputs, dots, drift, numbers)
    )


def draw(outputs: Tensor, dots: Tensor, drift: list[float], numbers: dict[str, float]) -> Figure:
    figure = Figure((7.6, 3.3), layout="constrained")
    left, right = figure.subplots(1, 2)
    plain(left, "one routing iteration: DAU(x) = CAP(x)ᵀx", "capsule times its input", "output of the DAU")
    ends = [dots.min().item(), dots.max().item()]
    left.plot(ends, ends, color=GREY, lw=0.8)
    left.scatter(dots.flatten()[:2000], outputs.flatten()[:2000], s=3, color=RED, linewidths=0)
    left.annotate(f"largest difference {numbers['dau_error']:.0e}", (0.05, 0.92), xycoords="axes fraction", fontsize=7)
    plain(right, "more iterations leave SQ(Vx)", "routing iterations", "mean ‖CAP(x) - SQ(Vx)‖ / ‖SQ(Vx)‖")
    bars = right.bar([str(count) for count in ITERATIONS], drift, color=BLUE, width=0.6)
    right.bar_label(bars, [f"{value:.0e}" if value < 1e-3 else f"{value:.2f}" for value in drift], fontsize=7)
    right.margins(y=0.12)
    return figure


def main(arguments: Sequence[str] | None = None) -> int:
    return result.main(__file__, __doc__, experiment, arguments)


if __name__ == "__main__":
    sys.exit(main())
