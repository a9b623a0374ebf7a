"""Numbers that a user gives, checked before they are used."""


def check_whole(least: int, **numbers: int) -> None:
    """Refuse what is no whole number of at least `least`; each is named as the user knows it."""
    for name, value in numbers.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} is {value!r}: it must be a whole number, {least} or more")
