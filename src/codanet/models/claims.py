"""What a classifier says of its images and classes, checked: it may come from a caller or from the header of a file."""

from collections.abc import Sequence


def checked_size(size: tuple[int, int] | int | None, channels: int) -> tuple[int, int] | None:
    """(height, width) of the images, or None for any; `channels` is checked with it."""
    if not isinstance(channels, int) or channels < 1:
        raise ValueError(f"image_channels is {channels!r}: it must be 1 for grey, 3 for RGB, or more")
    if size is None:
        return None
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or not all(isinstance(side, int) and side > 0 for side in pair):
        raise ValueError(f"image_size is {size!r}: it must be the height and width in pixels, or None for any")
    return pair[0], pair[1]


def checked_names(names: Sequence[str] | None, classes: int) -> tuple[str, ...] | None:
    """One for each class, as texts."""
    if names is None:
        return None
    if len(names) != classes:
        raise ValueError(f"{len(names)} class names were given for {classes} classes: give one for each")
    return tuple(str(name) for name in names)
