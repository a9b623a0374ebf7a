"""The command line: `codanet train|models|recipes|bench`, thin over the library's own functions."""

import sys
from importlib import import_module

from . import __version__
from .names import nearest

USAGE = """\
codanet: image classifiers whose every decision is an exact sum of pixel contributions

  codanet train digits                     train on the embedded digits, under a minute
  codanet train path/to/pictures           train on your own: one folder per class
  codanet train cifar10-cpu --epochs 2     a recipe, with a setting of your own
  codanet recipes                          what can be trained, and what the paper says of it
  codanet models                           the networks, with their sizes
  codanet bench --output bench.json        speed and memory against the paper's Algorithm 1

codanet COMMAND --help tells more of each."""


# where each command's main(arguments) is; a module is imported only when its command is given
COMMANDS = {
    "train": ".commands.train",
    "models": ".commands.models",
    "recipes": ".commands.recipes",
    "bench": ".bench",
}


def main(arguments: list[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE)
        return 0
    if arguments[0] in ("--version", "-V"):
        print(f"codanet {__version__}")
        return 0
    command, rest = arguments[0], arguments[1:]
    if command not in COMMANDS:
        print(f"codanet: unknown command {command!r}{nearest(command, COMMANDS)}", file=sys.stderr)
        return 2
    try:
        return import_module(COMMANDS[command], __package__).main(rest) or 0
    except KeyboardInterrupt:
        print("codanet: stopped; the same command goes on from the last complete epoch", file=sys.stderr)
        return 130
    except (ValueError, OSError) as error:
        print(f"codanet: {error}", file=sys.stderr)
        return 2
    except Exception as error:
        if type(error).__name__ == "ArgumentError":  # jsonargparse's own, about a value it cannot take
            print(f"codanet: {error}", file=sys.stderr)
            return 2
        raise


if __name__ == "__main__":
    sys.exit(main())
