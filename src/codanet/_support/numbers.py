"""Numbers that a user gives, checked before they are used, and numbers that a file can hold."""

import math
from typing import Any

from .limits import LARGEST, shown


def check_whole(least: int, *, most: int = LARGEST, **numbers: int) -> None:
    """Refuse what is no whole number from `least` to `most`; each is named as the user knows it."""
    for name, value in numbers.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} is {shown(value)}: it must be a whole number, {least} or more")
        if value > most:
            raise ValueError(f"{name} is {shown(value)}: it must be a whole number, at most {most}")


def for_json(value: Any) -> Any:
    """Mappings, lists and numbers with None for what JSON has no word for: NaN and the infinities."""
    if isinstance(value, dict):
        return {key: for_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [for_json(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
