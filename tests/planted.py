"""Explanations whose contributions are known, and how to look at the figures made of them."""

import numpy as np
import torch

from codanet.models.explanation import Explanation

RED, BLUE = (178, 24, 43), (33, 102, 172)
ORANGE, PURPLE = (179, 88, 6), (84, 39, 136)
WHITE = (255, 255, 255)
ENDS = {"red-blue": (BLUE, RED), "orange-purple": (PURPLE, ORANGE)}


def planted(pixels, targets, images=None, names=None, logits=None):
    """An explanation whose contributions per pixel are exactly `pixels` [N, (K,) H, W]: W = pixels, x = 1, in grey."""
    number, (height, width) = len(pixels), pixels.shape[-2:]
    if images is None:
        images = torch.ones(number, 1, height, width)
    inputs = torch.cat([images, 1 - images], 1)  # x + (1 - x) = 1, so equal rows for both add up to the pixels
    rows = pixels.unsqueeze(-3).expand(*pixels.shape[:-2], inputs.shape[1], height, width)
    rows = rows / (inputs.shape[1] // 2)
    if logits is None:
        logits = torch.zeros(number, 4)
        logits[torch.arange(number), torch.as_tensor(targets).view(number, -1)[:, 0]] = 3.0
    return Explanation(logits, torch.as_tensor(targets), rows, inputs, 0.0, names)


def panels(figure):
    """The axes that hold pictures, in drawing order, without the colour bar."""
    return [axes for axes in figure.axes if axes.images]


def bars(figure):
    return [axes for axes in figure.axes if not axes.images]


def shown(axes):
    return np.asarray(axes.images[0].get_array())


def titles(figure):
    return [axes.get_title() for axes in panels(figure)]


def box(axes):
    """left, top, right, bottom of the axes in dots of the saved picture."""
    figure = axes.figure
    width, height = figure.get_size_inches() * figure.dpi
    place = axes.get_position()
    return place.x0 * width, (1 - place.y1) * height, place.x1 * width, (1 - place.y0) * height
