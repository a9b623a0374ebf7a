"""The dynamic linear map of a trace: a_l2 = W_{l1→l2}(a_l1) a_l1 for any two layers (eq. 6, 7).

Layer 0 is the encoded image, layer l the output of the l-th DAU layer, and the last one, `depth`, the logits less b0.
A row of W is pulled back layer by layer through the transposed layers; no autograd is needed.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..dau import DAUConv2d, DynamicWeights

DENSE_NUMBERS = 1 << 28  # the largest dense matrix made: 1 GiB in float32
MATRIX_ROWS = 64  # pulled back at a time


@dataclass(frozen=True)
class LinearMap:
    """The matrices between any two layers, for the images of one pass; `CoDANet.trace` makes it.

    Layer 0 is the encoded image, layer l the output of the l-th DAU layer, and the last one, `depth`, the logits less
    b0.

    Attributes:
        layers: The network's DAU layers.
        activations: Of layers 0 to depth - 1, [N, C, H, W] each.
        weights: What each layer made of its input, factored.
        temperature: T.
        bias: b0.
        logits: [N, classes].
        differentiable: Whether gradients flow through the rows, as a loss on W needs.

    Examples:
        >>> import codanet, torch
        >>> trace = codanet.create_model("nano_coda").trace(torch.rand(1, 3, 8, 8))
        >>> trace.contributions(layer=2, unit=3, position=(4, 4)).shape  # what every input adds to that unit
        torch.Size([1, 6, 8, 8])
    """

    layers: tuple[DAUConv2d, ...]
    activations: tuple[Tensor, ...]  # layers 0 to depth - 1, [N, C, H, W]
    weights: tuple[DynamicWeights, ...]
    temperature: float
    bias: float  # b0
    logits: Tensor  # [N, classes]
    differentiable: bool = False  # whether gradients flow through the rows, as the training objective needs

    @property
    def depth(self) -> int:
        return len(self.layers) + 1

    def shape(self, layer: int) -> tuple[int, ...]:
        """(C, H, W) of a layer, (classes,) of the last one."""
        shape = self._checked(layer).shape[1:]
        return tuple(shape) if layer < self.depth else (self.logits.shape[1],)

    def _checked(self, layer: int) -> Tensor:
        if not isinstance(layer, int) or not 0 <= layer <= self.depth:
            raise ValueError(f"layer is {layer!r}: layers run from 0, the encoded image, to {self.depth}, the logits")
        return self.activations[min(layer, self.depth - 1)]

    def pull(self, rows: Tensor, layer: int, source: int = 0) -> Tensor:
        """Rows [N, K, *shape(layer)] over one layer as rows [N, K, *shape(source)] over an earlier one, `source`."""
        for either in (source, layer):
            self._checked(either)
        if source > layer:
            raise ValueError(
                f"source {source} lies behind layer {layer}: the map runs from the earlier layer to the later"
            )
        expected = (self.logits.shape[0], *self.shape(layer))
        if rows.ndim != len(expected) + 1 or (rows.shape[0], *rows.shape[2:]) != expected:
            sizes = ", ".join(map(str, expected[1:]))
            raise ValueError(f"rows have shape {list(rows.shape)}: they must be [{expected[0]}, K, {sizes}]")
        with torch.set_grad_enabled(self.differentiable and torch.is_grad_enabled()):
            return self._pull(rows, layer, source)

    def _pull(self, rows: Tensor, layer: int, source: int) -> Tensor:
        if layer == self.depth and layer > source:  # the pooling's transpose: every position gets the row, over T
            positions = self.activations[-1].shape[2:]
            rows = (rows / self.temperature)[..., None, None].expand(*rows.shape, *positions)
            layer -= 1
        while layer > source:
            layer -= 1
            rows = self.layers[layer].pull(rows, self.weights[layer])
        return rows

    def class_rows(self, targets: Tensor, source: int = 0) -> Tensor:
        """[W]_c / T for the classes [N, K], as [N, K, *shape(source)]."""
        one_hot = torch.nn.functional.one_hot(targets, self.logits.shape[1]).to(self.weights[0].scale.dtype)
        return self.pull(one_hot, self.depth, source)

    def unit_row(self, layer: int, unit: int, position: tuple[int, int] | None = None, source: int = 0) -> Tensor:
        """The row of one unit at one position (none for the logits), the same for every image: [N, *shape(source)]."""
        shape = self.shape(layer)
        index: tuple[int, ...] = (unit,) if position is None else (unit, *position)
        if len(index) != len(shape) or any(not 0 <= i < size for i, size in zip(index, shape, strict=False)):
            wanted = "(unit, row, column)" if len(shape) == 3 else "(class)"
            raise ValueError(f"there is no unit {index} in layer {layer}: {wanted} must lie within {shape}")
        row = torch.zeros(len(self.logits), 1, *shape, dtype=self.weights[0].scale.dtype, device=self.logits.device)
        entry = (slice(None), 0) + index  # noqa: RUF005 (Python 3.10 has no star in an index)
        row[entry] = 1
        return self.pull(row, layer, source)[:, 0]

    def contributions(self, layer: int, unit: int, position: tuple[int, int] | None = None, source: int = 0) -> Tensor:
        """How much every entry of layer `source` adds to that unit (eq. 8), [N, *shape(source)]."""
        row = self.unit_row(layer, unit, position, source)
        values = self.activations[source] if source < self.depth else self.logits - self.bias
        return row * values

    def matrix(self, layer: int, source: int = 0) -> Tensor:
        """The dense W [N, entries of the layer, entries of source]; for small nets."""
        shape, before = self.shape(layer), self.shape(source)
        entries, columns = (int(torch.tensor(size).prod()) for size in (shape, before))
        if len(self.logits) * entries * columns > DENSE_NUMBERS:
            raise ValueError(
                f"the dense matrix would have {len(self.logits)} x {entries} x {columns} entries: take fewer images, a "
                "smaller net, or single rows with pull()"
            )
        rows = torch.eye(entries, dtype=self.weights[0].scale.dtype, device=self.logits.device)
        rows = rows.view(1, entries, *shape).expand(len(self.logits), entries, *shape)
        parts = [self.pull(some, layer, source).flatten(2) for some in rows.split(MATRIX_ROWS, 1)]
        return torch.cat(parts, 1).reshape(len(self.logits), entries, columns)
