"""What the parsers of all commands share: short help with examples, and one sentence for a mistake."""

import argparse
import sys
from typing import Any, NoReturn

from .._support.limits import LARGEST, check_threads, shown
from .._support.messages import nearest


class Parser(argparse.ArgumentParser):
    def __init__(self, command: str, about: str, examples: str):
        super().__init__(
            prog=f"codanet {command}",
            description=about,
            epilog=f"examples:\n{examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def parse(self, arguments: list[str]) -> argparse.Namespace:
        """Options may stand anywhere among the files; for an unknown one the error suggests the nearest."""
        parsed, unknown = self.parse_known_intermixed_args(arguments)
        if unknown:
            word = unknown[0].partition("=")[0]
            if not word.startswith("-"):
                raise ValueError(f"{self.prog} was given {word!r}, which it does not take: leave it out")
            known = [option for action in self._actions for option in action.option_strings if option[:2] == "--"]
            raise ValueError(f"unknown option {word!r}{nearest(word, known)}")
        return parsed

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        sys.stdout.flush()  # a reader that has gone is met here, and not when Python ends
        super().exit(status, message)

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; {self.prog} --help shows how it is used")


def positive(kind: type) -> Any:
    """A number above 0, for argparse."""

    def number(word: str) -> Any:
        try:
            value = kind(word)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{shown(word)} is not a {'whole ' * (kind is int)}number") from None
        if not 0 < value <= LARGEST:
            raise argparse.ArgumentTypeError(
                f"{shown(word)} is too large" if value > 0 else f"{shown(word)} is not above 0"
            )
        return value

    number.__name__ = "number"
    return number


def whole(least: int, most: int) -> Any:
    """A whole number within bounds, for argparse."""

    def number(word: str) -> int:
        try:
            value = int(word)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{shown(word)} is not a whole number") from None
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{shown(word)} is not from {least} to {most}")
        return value

    number.__name__ = "number"
    return number


def threads(word: str) -> int | None:
    """As many threads as can be started, for argparse."""
    number = positive(int)(word)
    try:
        return check_threads(number)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
