"""`codanet completion`: scripts that let the Tab key complete commands, options and known names."""

import re
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO

from ..models.architectures import ARCHITECTURES, PEER_NAMES
from ..training.recipe import list_recipes
from .names import DATA_SETS, METHODS, PALETTES, STYLES
from .parser import Parser

ABOUT = "Print a script that lets the Tab key complete commands, options and names. The shell reads it when it starts."
EXAMPLES = """\
  codanet completion bash >> ~/.bashrc
  codanet completion zsh >> ~/.zshrc
  codanet completion fish > ~/.config/fish/completions/codanet.fish"""


def parser() -> Parser:
    parser = Parser("completion", ABOUT, EXAMPLES)
    parser.add_argument("shell", choices=SHELLS, help="which shell to print the script for")
    return parser


def main(arguments: list[str]) -> int:
    options = parser().parse(arguments)
    print(SHELLS[options.shell](_options(), _words()))
    return 0


def _options() -> dict[str, list[str]]:
    """The options of every command, taken from its own help."""
    from . import COMMANDS

    offered = {}
    for command, module in COMMANDS.items():
        text = StringIO()
        try:
            with redirect_stdout(text):
                import_module(module, __package__).main(["--help"])
        except (SystemExit, ImportError):  # if its extra is not installed, a command has no options to offer
            pass
        options = re.findall(r"(?:^ {2,4}|, )(--[a-z][a-z0-9_.-]*)", text.getvalue(), re.MULTILINE)
        offered[command] = sorted({option.replace("_", "-") for option in options})
    return offered


def _words() -> dict[str, list[str]]:
    """What may follow a command, or one of its options: {"train": recipes, "explain --style": styles, …}."""
    return {
        "train": list_recipes(),
        "train --model": [*ARCHITECTURES, *PEER_NAMES],
        "explain --compare": list(METHODS),
        "explain --palette": list(PALETTES),
        "explain --style": list(STYLES),
        "evaluate --data": list(DATA_SETS),
        "evaluate --methods": list(METHODS),
        "completion": list(SHELLS),
    }


def _bash(options: dict[str, list[str]], words: dict[str, list[str]]) -> str:
    cases = [f'        "{key}") names="{" ".join(known)}" ;;' for key, known in words.items() if " " in key]
    first = [f'        {key}) names="{" ".join(known)}" ;;' for key, known in words.items() if " " not in key]
    flags = [f'        {command}) flags="{" ".join(known)}" ;;' for command, known in options.items()]
    return "\n".join(
        [
            "_codanet() {",
            "    local flags names before",
            '    local word="${COMP_WORDS[COMP_CWORD]}" command="${COMP_WORDS[1]}"',
            "    if [ $COMP_CWORD -eq 1 ]; then",
            f'        COMPREPLY=($(compgen -W "{" ".join(options)} --help --version" -- "$word"))',
            "        return",
            "    fi",
            '    before="${COMP_WORDS[COMP_CWORD-1]}"',
            '    case "$command $before" in',
            *cases,
            "    esac",
            '    if [ -z "$names" ] && [ "${before#-}" = "$before" ]; then',
            '        case "$command" in',
            *(f"    {line}" for line in first),
            "        esac",
            "    fi",
            '    case "$command" in',
            *flags,
            "    esac",
            '    if [ "${word#-}" != "$word" ]; then names="$flags"; fi',
            '    COMPREPLY=($(compgen -W "$names" -- "$word"))',
            "}",
            "complete -o default -F _codanet codanet",  # files where no name fits
        ]
    )


def _zsh(options: dict[str, list[str]], words: dict[str, list[str]]) -> str:
    start = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"
    return start + _bash(options, words)


def _fish(options: dict[str, list[str]], words: dict[str, list[str]]) -> str:
    lines = [f"complete -c codanet -n __fish_use_subcommand -f -a '{' '.join(options)}'"]
    for command, known in options.items():
        chosen = f"complete -c codanet -n '__fish_seen_subcommand_from {command}'"
        lines += [f"{chosen} -l {option.removeprefix('--')}" for option in known if f"{command} {option}" not in words]
        if command in words:
            lines.append(f"{chosen} -a '{' '.join(words[command])}'")
        for key, names in words.items():
            if key.startswith(f"{command} --"):
                lines.append(f"{chosen} -l {key.partition(' --')[2]} -x -a '{' '.join(names)}'")
    return "\n".join(lines)


SHELLS: dict[str, Callable[[dict[str, list[str]], dict[str, list[str]]], str]] = {
    "bash": _bash,
    "zsh": _zsh,
    "fish": _fish,
}
