"""What changes in the course of a run: the learning rate, T, and the side of the pictures."""

from .settings import Settings


def learning_rate_factor(settings: Settings, epoch: int, progress: float) -> float:
    """The learning rate over `settings.learning_rate`, at an epoch and at a share of the whole run."""
    if settings.schedule == "constant":
        return 1.0
    if settings.schedule == "decay":
        return 1 - progress
    if settings.schedule == "one-cycle":
        rise = 0.2
        return progress / rise if progress < rise else max(0.0, (1 - progress) / (1 - rise))
    if epoch < settings.warmup_epochs:
        start = settings.warmup_from / settings.learning_rate
        return start + (1 - start) * epoch / settings.warmup_epochs
    return 0.5 ** (epoch // settings.halve_every)


RISE = 0.8  # the share of a run over which T rises
STEP = 8  # pixels by which growing pictures grow


def temperature_at(settings: Settings, temperature: float, progress: float) -> float:
    """T at a share of the whole run: rising by equal factors in equal times, then constant."""
    if settings.temperature_from is None:
        return temperature
    return settings.temperature_from * (temperature / settings.temperature_from) ** min(1.0, progress / RISE)


def side_at(settings: Settings, size: int, progress: float) -> int:
    """The side of the pictures at a share of the whole run: growing in equal times, in steps of 8 pixels."""
    if settings.grow_from is None or progress >= settings.grow_until or settings.grow_from >= size:
        return size
    sides = range(settings.grow_from, size, STEP)
    return sides[int(progress / settings.grow_until * len(sides))]
