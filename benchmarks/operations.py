"""What one layer does in training, operation by operation: floating-point operations, bytes, kernels and memory.

The formulas follow the code as it runs on a GPU, the whole batch in one block. `counts` checks them by real runs.

Symbols, as in `codanet.forms`: P patches of d numbers, n units, R = rank + 1 rows of Â (the last is the bias).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from codanet.norm import _TRIANGLE, _is_direct
from codanet.patches import output_size

from codanet.models.architectures import ARCHITECTURES

WIDE = 4  # bytes of float32


@dataclass(frozen=True)
class Shape:
    """One layer on one batch."""

    patches: int  # P
    size: int  # d
    units: int  # n
    rank: int
    inputs: int  # numbers in the batch of inputs
    padded: int  # the same with padding
    kernel: int
    first: bool  # the images need no gradient

    @property
    def rows(self) -> int:
        return self.rank + 1  # R

    @property
    def columns(self) -> int:
        """M = R·n + r, the columns of the one product that gives U and Bp."""
        return self.rows * self.units + self.rank

    @property
    def direct(self) -> bool:
        """Whether the norms are those of Âz, not of Lᵀz."""
        return _is_direct(2, self.patches, self.rows, self.size, torch.float32)

    @property
    def parameters(self) -> int:
        return self.columns * self.size  # Â and B


def shapes(name: str, classes: int | None, size: int, batch: int) -> list[Shape]:
    *layers, last = ARCHITECTURES[name].layers
    channels, made = 2 * ARCHITECTURES[name].image_channels, []
    for index, layer in enumerate([*layers, replace(last, units=classes or last.units)]):
        padding = (layer.kernel_size - 1) // 2
        after = output_size(size, layer.kernel_size, layer.stride, padding)
        made.append(
            Shape(
                patches=batch * after**2,
                size=channels * layer.kernel_size**2,
                units=layer.units,
                rank=layer.rank,
                inputs=batch * channels * size**2,
                padded=batch * channels * (size + 2 * padding) ** 2,
                kernel=layer.kernel_size,
                first=index == 0,
            )
        )
        channels, size = layer.units, after
    return made


class Operation(NamedTuple):
    name: str
    bytes: float  # read and written
    flops: float = 0
    kind: str = "low"  # of arithmetic: low, wide (float32), double or cholesky; a key of `Method.rates`
    kernels: int = 1


# ---- our layer ------------------------------------------------------------------------------------------------------


def our_forward(s: Shape, low: int) -> list[Operation]:
    """`low` is the size of a number in the products with patches: 4 bytes (float32, TF32), or 2 (bf16 autocast)."""
    P, d, n, r, R, M = s.patches, s.size, s.units, s.rank, s.rows, s.columns
    cast = low != WIDE
    given = WIDE if s.first else low
    ops = []
    if s.kernel > 1:
        ops.append(Operation("unfold", given * (s.inputs + 2 * s.padded + P * d), kernels=2))
    if given != low:
        ops.append(Operation("cast p", P * d * (given + low)))
    ops.append(Operation("Â over B", M * d * (WIDE + low), kernels=2))
    ops += _factor(s)
    ops.append(Operation("U = Âp and Bp", low * (P * d + M * d + P * M), 2 * P * M * d))
    if cast:
        ops.append(Operation("cast Bp", P * r * (low + WIDE)))
    ops.append(Operation("z and its unit", WIDE * (4 * P * r + 5 * P * R + 19.5 * P), kernels=14))
    ops += _norm_forward(s)
    if cast:
        ops.append(Operation("cast U", P * R * n * (low + WIDE)))
    ops.append(Operation("zU", WIDE * (P * R + P * R * n + P * n), 2 * P * R * n, "wide"))
    ops.append(Operation("scale", WIDE * (9 * P * n + 7 * P), kernels=7))
    ops.append(Operation("output", WIDE * 3 * P * n + cast * P * n * (WIDE + low), kernels=1 + cast))
    return ops


def _factor(s: Shape) -> list[Operation]:
    d, n, R = s.size, s.units, s.rows
    if s.direct:
        return [Operation("size of Â", WIDE * 3 * R * n * d, kernels=5)]
    return [
        Operation("Â in float64", R * n * d * (WIDE + 8)),
        Operation("G = ÂᵀÂ", 8 * (R * n * d + n * R * R), 2 * n * R * R * d, "double"),
        Operation("L Lᵀ = G", 16 * n * R * R, n * R**3 / 3, "cholesky"),
        Operation("G and L, elementwise", 112 * n * R * R + 59 * n * R, kernels=18),
    ]


def _norm_forward(s: Shape) -> list[Operation]:
    P, d, n, R = s.patches, s.size, s.units, s.rows
    if s.direct:
        return [
            Operation("u = Âz", WIDE * (P * R + R * n * d + P * n * d), 2 * P * R * n * d, "wide"),
            Operation("‖u‖", WIDE * (3 * P * n * d + 7 * P * n), kernels=5),
        ]
    ops = []
    step = math.ceil(R / max(1, round(R / _TRIANGLE)))
    for start in range(0, R, step):
        m, left = min(step, R - start), R - start
        ops.append(Operation("Lᵀz", WIDE * (P * left + left * m * n + P * m * n), 2 * P * left * m * n, "wide"))
        ops.append(Operation("‖Lᵀz‖²", WIDE * (3 * P * m * n + 4 * P * n), kernels=3))
    return [*ops, Operation("‖u‖", WIDE * 7 * P * n, kernels=4)]


def our_backward(s: Shape, low: int, recompute: bool = False) -> list[Operation]:
    P, d, n, r, R, M = s.patches, s.size, s.units, s.rank, s.rows, s.columns
    cast, U, A = low != WIDE, P * R * n, R * n * d
    ops = [Operation("zero dÂ, dB", WIDE * M * d)]
    if cast:
        ops.append(Operation("cast dout", P * n * (low + WIDE)))
    ops.append(Operation("through the scale", WIDE * 17 * P * n, kernels=6))
    ops += _norm_backward(s)
    if recompute:
        ops.append(Operation("U and Bp again", low * (P * d + M * d + P * M), 2 * P * M * d))
    ops.append(Operation("dz += Ut", low * U + WIDE * (2 * U + P * n + 8 * P * R), kernels=5))  # and += the norm's dz
    ops.append(Operation("z ⊗ t", WIDE * (P * R + P * n + U)))
    ops.append(Operation("dBp", WIDE * (2 * P * r + P)))
    if cast:
        ops.append(Operation("cast z ⊗ t, dBp", P * M * (WIDE + low)))
    if not s.first:
        ops.append(Operation("dp = (z ⊗ t)Â + dBp B", low * (P * M + M * d + P * d), 2 * P * M * d))
    total = 1 if cast else 2  # in float32 it is added to what is there as it is made
    ops.append(Operation("dÂ = (z ⊗ t)ᵀp, dB", low * (P * M + P * d + total * M * d), 2 * P * M * d))
    if cast:
        ops.append(Operation("add dÂ, dB", M * d * (2 * WIDE + low)))
    ops += _weight_gradient(s)
    ops.append(Operation("add dÂ", WIDE * 3 * A))
    if not s.first and s.kernel > 1:
        ops.append(Operation("fold", low * (s.padded + 3 * P * d), kernels=1 + s.kernel**2))
    return ops


def _norm_backward(s: Shape) -> list[Operation]:
    """From the gradient of the norms to dz, and to dÂ, directly or as Σ zzᵀ."""
    P, d, n, R = s.patches, s.size, s.units, s.rows
    A, G, U = R * n * d, R * R * n, P * R * n
    ops = [
        Operation("zero Σ zzᵀ", WIDE * (A if s.direct else G)),
        Operation("∂ / ‖u‖", WIDE * 8.5 * P * n, kernels=4),
    ]
    if s.direct:
        D, flops = P * n * d, 2 * P * R * n * d
        return [
            *ops,
            Operation("u = Âz", WIDE * (P * R + A + D), flops, "wide"),
            Operation("du", WIDE * (4 * D + P * n), kernels=2),
            Operation("dz = Âdu", WIDE * (D + A + P * R), flops, "wide"),
            Operation("copy dz", WIDE * 2 * P * R),
            Operation("dÂ = du zᵀ", WIDE * (P * R + D + 2 * A), flops, "wide"),
        ]
    if n >= R:
        Z, flops = P * R * R, 2 * P * R * R * n
        return [
            *ops,
            Operation("zzᵀ", WIDE * (P * R + Z)),
            Operation("Σ zzᵀ", WIDE * (Z + P * n + 2 * G), flops, "wide"),
            Operation("Σ tG", WIDE * (P * n + G + Z), flops, "wide"),
            Operation("dz = (Σ tG)z", WIDE * (Z + 2 * P * R), 2 * Z, "wide"),
        ]
    return [
        *ops,
        Operation("Gz", WIDE * (P * R + G + U), 2 * P * R * R * n, "wide"),
        Operation("dz = Σ tGz", WIDE * (3 * U + P * n + 3 * P * R), kernels=3),
        Operation("z ⊗ t of the norm", WIDE * (P * R + P * n + U)),
        Operation("Σ zzᵀ", WIDE * (U + P * R + 2 * G), 2 * P * R * R * n, "wide"),
    ]


def _weight_gradient(s: Shape) -> list[Operation]:
    d, n, R = s.size, s.units, s.rows
    if s.direct:
        return []
    return [Operation("dÂ = ÂΣzzᵀ", WIDE * (3 * n * R * R + 2 * R * n * d), 2 * n * R * R * d, "wide", kernels=2)]


def our_kept(s: Shape, low: int, recompute: bool = False) -> float:
    """Bytes kept for the backward pass beside the parameters: p, Â over B, U and Bp, G, z, three maps [P, n]."""
    P, d, n, R, M = s.patches, s.size, s.units, s.rows, s.columns
    maps = WIDE * (P * R + P + 3 * P * n + n)
    gram = 0 if s.direct else WIDE * n * R * R
    return low * (P * d + M * d + (0 if recompute else P * M)) + gram + maps


def our_working(s: Shape, low: int, recompute: bool = False) -> float:
    """Bytes held for a moment: the most of making G, casting U, pulling the norms' gradient back, and the product's."""
    P, d, n, R, M = s.patches, s.size, s.units, s.rows, s.columns
    cast, A, G = low != WIDE, R * n * d, R * R * n
    if s.direct:
        factor, moments, pulled, added = 0, A, P * n * d, 0  # u
    else:  # in float64 Â and four of G; zzᵀ or Gz, and as much again
        factor, moments, pulled, added = 8 * (A + 4 * G), G, 2 * P * R * min(R, n), G + A
    backward = WIDE * (moments + 4 * P * n + 3 * P * R) + (0 if s.first else low * P * d)
    product = WIDE * P * M + low * P * M * (cast + recompute) + max(WIDE * added, cast * low * M * d)
    return max(factor, WIDE * cast * P * R * n, backward + max(WIDE * pulled, product))


# ---- Algorithm 1, everything in one type ----------------------------------------------------------------------------


def first_forward(s: Shape, low: int) -> list[Operation]:
    P, d, n, r, D = s.patches, s.size, s.units, s.rank, s.patches * s.size * s.units
    return [
        Operation("z = Bx", low * (s.inputs + r * d + P * r), 2 * P * r * d),
        Operation("u = Az + b", low * (P * r + (r + 1) * n * d + D), 2 * P * r * n * d),
        Operation("‖u‖", low * (D + P * n)),
        Operation("scale", low * 13 * P * n + 3 * P * n, kernels=6),
        Operation("w = scale · u", low * (2 * D + P * n)),
        Operation("unfold", low * (s.inputs + P * d)),
        Operation("w ⊙ p", low * (2 * D + P * d)),
        Operation("Σ w ⊙ p", low * (D + P * n)),
    ]


def first_backward(s: Shape, low: int) -> list[Operation]:
    P, d, n, r, D = s.patches, s.size, s.units, s.rank, s.patches * s.size * s.units
    made = 1 if s.first else 2  # gradients of the first product: images need none
    ops = [Operation("dw", low * (D + P * n + P * d))]
    if not s.first:
        ops.append(Operation("dp", low * (3 * D + P * n + P * d), kernels=2))
        ops.append(Operation("fold", low * (4 * s.inputs + P * d), kernels=2))
    return [
        *ops,
        Operation("d scale", low * (3 * D + D + P * n), kernels=2),
        Operation("du, through w", low * (2 * D + P * n)),
        Operation("d norm", low * 29 * P * n + 4 * P * n, kernels=12),
        Operation("du, through ‖u‖", low * (6 * D + 2 * P * n) + P * n, kernels=3),
        Operation("add du", low * 3 * D),
        Operation("dz, dA, db", low * (D + 2 * P * r + (2 * r + 1) * n * d), 4 * P * r * n * d),
        Operation("dx, dB", low * (P * r + made * s.inputs + 2 * r * d), 2 * made * P * r * d),
    ]


def first_kept(s: Shape, low: int) -> float:
    """u and w, [P, d, n] each; the input and its patches; z; six small maps [P, n]."""
    P, d, n = s.patches, s.size, s.units
    weights = 1 if s.first else 2  # w gives the gradient of the patches, which images do not need
    inputs = s.inputs if s.first else 0  # later on it is counted as the output of the layer before, among the six
    return low * (weights * P * d * n + P * d + inputs + P * s.rank + 6 * P * n) + P * n


def first_working(s: Shape, low: int) -> float:
    """Bytes held for a moment: three maps [P, d, n] where the two paths to u meet."""
    return low * 3 * s.patches * s.size * s.units
