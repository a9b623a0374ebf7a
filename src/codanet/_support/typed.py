"""The values of settings as the types that a dataclass declares for them."""

import os
from contextlib import suppress
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from .limits import shown

WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def field_types(settings: type) -> dict[str, tuple[type, ...]]:
    """What each field of a dataclass may hold: `int | None` is (int, NoneType), a Literal the type of its values."""
    return {name: _kinds(hint) for name, hint in get_type_hints(settings).items()}


def _kinds(hint: Any) -> tuple[type, ...]:
    if get_origin(hint) is Literal:
        return tuple(dict.fromkeys(type(value) for value in get_args(hint)))
    return get_args(hint) or (hint,)


def typed(name: str, value: Any, kinds: tuple[type, ...]) -> Any:
    """The value as the first of the kinds that it is; numbers may be written as text, as YAML does with 1e-3."""
    for kind in kinds:
        try:
            return _converted(value, kind)
        except (TypeError, ValueError, OverflowError):
            continue
    allowed = " or ".join(WORDS.get(kind, kind.__name__) for kind in kinds if kind is not NoneType)
    raise ValueError(f"{name} is {shown(value)}: it must be {allowed}")


def _converted(value: Any, kind: type) -> Any:
    if kind is NoneType and value is None:
        return None
    if kind is bool and isinstance(value, bool):
        return value
    if kind in (int, float) and not isinstance(value, bool):
        return _whole(value) if kind is int else float(value)
    if kind is str and isinstance(value, str | os.PathLike):
        return os.fspath(value)
    raise TypeError


def _whole(value: Any) -> int:
    """By way of float only where it must be, as in 1e3: beyond 2**53 that one leaves numbers out."""
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        with suppress(ValueError):
            return int(value)
    number = float(value)
    if number != int(number):
        raise ValueError
    return int(number)
