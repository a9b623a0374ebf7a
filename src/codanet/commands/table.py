"""What the commands print."""

from collections.abc import Sequence


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def no_more(command: str, arguments: list[str]) -> None:
    if arguments and arguments[0] in ("-h", "--help"):
        from ..cli import USAGE

        print(USAGE)
        raise SystemExit(0)
    if arguments:
        raise ValueError(f"codanet {command} takes no arguments, but was given {' '.join(arguments)}: leave them out")
