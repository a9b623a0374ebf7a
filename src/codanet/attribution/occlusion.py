"""Occlusion-K: how much the logit falls when a K x K window is covered (Zeiler and Fergus 2014; sec. C.3)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .local import Boxes, Local, local_network
from .task import InputSettings, Task
from .windows import Windows, check_windows


@dataclass(frozen=True)
class Occlusion(InputSettings):
    """Mean over the windows that cover a pixel of logit(x) - logit(x with the window at the baseline).

    The paper uses stride 2 on CIFAR-10 and 4 on Tiny-ImageNet. Equal to captum's Occlusion, windows cut at the border
    included; but captum runs the model once for every class, and a grid of n x n images asks for n² of them.
    """

    several_targets = True

    window: int = 5
    stride: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_windows(self.window, self.stride)

    def maps(self, task: Task) -> Tensor:
        windows = Windows.over(task.size, self.window, self.stride).to(task.inputs.device)
        rows, columns = windows.rows, windows.columns
        targets = task.targets.view(len(task.inputs), -1)  # [N, K]
        network = local_network(task.model, task.inputs)
        if network is None:
            drops = self._drops(task, targets, rows, columns)
        else:
            drops = self._local_drops(task, network, targets, rows, columns)
        drops = drops.transpose(1, 2).unflatten(2, (len(rows), len(columns)))  # [N, K, R, S]
        return windows.means(drops).view(*task.targets.shape, *task.size)

    @staticmethod
    def _drops(task: Task, targets: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """[N, R·S, K] for targets [N, K], by one pass through the model for every window."""
        logits = task.logits(task.inputs).gather(1, targets)
        drops = logits.new_zeros(len(logits), len(rows) * len(columns), targets.shape[1])
        for windows, images in task.blocks(drops.shape[1]):
            number = torch.arange(windows.start, windows.stop, device=rows.device)
            covered = rows[number // len(columns), :, None] & columns[number % len(columns), None, :]  # [m, H, W]
            originals = task.inputs[images]
            hidden = torch.where(covered[None, :, None], task.baseline[:, None], originals[:, None])  # [n, m, C, H, W]
            left = task.logits(hidden.flatten(0, 1)).view(len(originals), len(number), -1)
            left = left.gather(2, targets[images, None].expand(-1, len(number), -1))  # [n, m, K]
            drops[images, windows] = logits[images, None] - left
        return drops

    @torch.no_grad()
    def _local_drops(self, task: Task, network: Local, targets: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """The same, by what a window changes alone."""
        drops = []
        for image, classes in zip(task.inputs, targets, strict=True):
            maps, parts = network.maps(image), []
            for number in torch.arange(len(rows) * len(columns), device=rows.device).split(task.forward_batch):
                boxes = self._boxes(image, task.baseline, rows[number // len(columns)], columns[number % len(columns)])
                parts.append(-network.change(maps, boxes)[:, classes])
                task.advance(len(number) / (len(rows) * len(columns)))
            drops.append(torch.cat(parts))
        return torch.stack(drops)

    def _boxes(self, image: Tensor, baseline: Tensor, rows: Tensor, columns: Tensor) -> Boxes:
        """The windows of covered rows [m, H] and columns [m, W]; one cut at the border moves back into the image."""
        top = rows.int().argmax(1).clamp(max=rows.shape[1] - self.window)
        left = columns.int().argmax(1).clamp(max=columns.shape[1] - self.window)
        place = torch.arange(self.window, device=rows.device)
        row, column = top[:, None] + place, left[:, None] + place  # [m, K]
        covered = rows.gather(1, row)[:, :, None] & columns.gather(1, column)[:, None]
        uncovered = image.permute(1, 2, 0)[row[:, :, None], column[:, None]]  # [m, K, K, C]
        return Boxes(torch.where(covered[..., None], baseline.flatten(), uncovered), top, left)
