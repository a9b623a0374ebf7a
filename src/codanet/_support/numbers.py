"""Numbers that a user gives, checked before they are used."""

from .limits import LARGEST, shown


def check_whole(least: int, *, most: int = LARGEST, **numbers: int) -> None:
    """Refuse what is no whole number from `least` to `most`; each is named as the user knows it."""
    for name, value in numbers.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} is {shown(value)}: it must be a whole number, {least} or more")
        if value > most:
            raise ValueError(f"{name} is {shown(value)}: it must be a whole number, at most {most}")
