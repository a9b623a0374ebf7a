"""`codanet explain`."""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .parser import Parser, positive

if TYPE_CHECKING:
    from ..models.network import CoDANet
    from ..plot.gallery import Explained

ABOUT = """\
Show which pixels speak for a class and which against it. Pictures are files, folders or patterns; they are fitted to
the model's size: the shorter side is scaled, the centre cut out. A film or animated GIF becomes one with its maps."""
EXAMPLES = """\
  codanet explain model.safetensors cat.jpg                          image and map, into why.png
  codanet explain model.safetensors cat.jpg --target dog             why (not) a dog?
  codanet explain model.safetensors cat.jpg --top 3 -o why.svg       the three most probable classes
  codanet explain model.safetensors cat.jpg --compare gradcam,ixg    beside other methods
  codanet explain model.safetensors cat.jpg --layers                 layer by layer
  codanet explain model.safetensors photos/ -o pages --json          a thousand pictures, one page each
  codanet explain model.safetensors clip.gif -o why.gif              every frame beside its map"""
ON_ONE_PAGE = 32
MADE_UP = "why"  # the name of what is written without --output


def parser() -> Parser:
    from ..plot import PALETTES, STYLES

    made = Parser("explain", ABOUT, EXAMPLES)
    made.add_argument("model", metavar="MODEL", help="a .safetensors file, or the name of a shipped model")
    made.add_argument("pictures", metavar="PICTURE", nargs="+", help="files, folders, patterns such as 'a/*.jpg'")
    made.add_argument("-o", "--output", help=".png, .svg or .pdf for one page, .gif or .mp4 for a film, else a folder")
    made.add_argument("--target", action="append", help="class by name or number, again for several (default: the top)")
    made.add_argument("--top", type=positive(int), default=1, metavar="N", help="the N most probable classes")
    made.add_argument("--compare", metavar="METHODS", default="", help="other methods: gradcam,ixg,intgrad,rise,…")
    made.add_argument("--layers", action="store_true", help="contributions from every layer, too")
    made.add_argument("--style", choices=STYLES, default="map", help="map, overlay on the image, or weights in colour")
    made.add_argument(
        "--palette", choices=PALETTES, default="red-blue", help="orange-purple if red and green are hard to tell"
    )
    made.add_argument("--scale", type=positive(float), metavar="V", help="colours from -V to V logits, on every page")
    made.add_argument("--start", type=float, default=0.0, metavar="SECONDS", help="of a film")
    made.add_argument("--end", type=float, metavar="SECONDS", help="of a film")
    made.add_argument("--json", action="store_true", help="one JSON object per picture, instead of a table")
    return made


def main(arguments: list[str]) -> int:
    given = parser().parse(arguments)
    if given.target and given.top != 1:
        raise ValueError("--target and --top were both given: name the classes, or ask for the most probable ones")
    from ..data.film import WRITTEN, is_moving
    from ..plot.gallery import picture_paths

    paths = picture_paths(given.pictures)
    suffix = Path(given.output).suffix.lower() if given.output else ""
    film = suffix in WRITTEN or (not given.output and len(paths) == 1 and is_moving(paths[0]))
    if film and len(paths) > 1:
        raise ValueError(f"{len(paths)} pictures were given for one {suffix} file: give one film or animated GIF")
    if film and (given.layers or given.compare or given.top != 1 or len(given.target or ()) > 1):
        raise ValueError("a film is explained for one class: leave out --layers, --compare, --top and further --target")
    output, one_file = _output(given.output, paths, film)
    _checked(output, [*paths, Path(given.model)])

    from ..models.weights import load

    model = load(given.model)
    if film:
        return _film(model, paths[0], output, given)
    return _pictures(model, paths, output, one_file, given)


def _pictures(model: "CoDANet", paths: list[Path], output: Path, one_file: bool, given: argparse.Namespace) -> int:
    from .._support.progress import progress_bar
    from ..data.image import size_for
    from ..plot import save
    from ..plot.gallery import WRITERS, ahead, drawn, explain_files, page, record

    look: dict[str, Any] = {"palette": given.palette, "style": given.style, "scale": given.scale}
    names = _names(paths, output)
    kept: list[Explained] = []

    def finished(explained: "Explained") -> "tuple[Explained, Path | None]":
        if explained.error:
            return explained, None
        if one_file:
            return explained, output
        return explained, save(drawn(explained, **look), names[explained.path])

    height, width = size_for(model)
    print(f"pictures are fitted to {height}x{width} pixels, as the model sees them", file=sys.stderr)
    results = explain_files(
        model,
        paths,
        targets=given.target or (),
        top=given.top,
        methods=[name.strip() for name in given.compare.split(",") if name.strip()],
        layers=given.layers,
    )
    names_of_classes = model.class_names or [str(number) for number in range(model.num_classes)]
    widths = min(60, max(len(str(path)) for path in paths)), given.top * (max(map(len, names_of_classes)) + 7) - 2
    failed = 0
    say = _printer()
    with progress_bar("explaining", len(paths), shown=len(paths) > 1, unit="pictures") as advance:
        for explained, picture in ahead(finished, results, WRITERS, 4 * WRITERS):
            advance(1)
            if explained.error:
                failed += 1
                if len(paths) == 1:
                    raise ValueError(explained.error)
                print(f"codanet: {explained.error}", file=sys.stderr)
            elif one_file:
                kept.append(explained)
            if given.json:
                say(json.dumps(record(explained, picture, given.top)))
            elif not explained.error:
                say(_line(record(explained, picture, given.top), widths, bool(given.target)))
    if kept:
        save(page(kept, **look), output)
    if failed:
        print(f"codanet: {failed} of {len(paths)} pictures could not be read", file=sys.stderr)
    return 1 if failed else 0


def _film(model: "CoDANet", path: Path, output: Path, given: argparse.Namespace) -> int:
    from ..plot.film import explain_video
    from ..plot.gallery import class_number

    target = class_number(given.target[0], model) if given.target else None
    made = explain_video(
        model,
        path,
        output,
        target=target,
        palette=given.palette,
        style=given.style,
        scale=given.scale,
        start=given.start,
        end=given.end,
    )
    if given.json:
        facts = {"image": str(path), "class": made.class_name, "number": made.target, "frames": made.frames}
        facts |= {"predicted": made.predicted, "seconds": made.seconds, "scale": made.scale}
        print(json.dumps({**facts, "picture": str(made.path)}))
    else:
        print(f"{path}  {made.class_name}, predicted in {made.predicted} of {made.frames} frames  {made.path}")
    return 0


def _line(facts: dict[str, Any], widths: tuple[int, int], targeted: bool) -> str:
    classes = ", ".join(f"{each['class']} {each['probability']:.2f}" for each in facts["classes"]).ljust(widths[1])
    if targeted:
        classes += "  for " + ", ".join(f"{each['class']} {each['probability']:.2f}" for each in facts["targets"])
    return f"{facts['image'].ljust(widths[0])}  {classes}  {facts['picture']}"


def _printer() -> Callable[[str], None]:
    """Prints lines to stdout: above a progress bar on a terminal, past it (the bar is on stderr) into a file."""
    out = sys.stdout
    return lambda line: print(line, file=None if out.isatty() else out, flush=True)


def _output(given: str | None, paths: list[Path], film: bool) -> tuple[Path, bool]:
    """Where to write, and whether that is one file."""
    if not given:
        if film:
            return _free(MADE_UP, ".gif" if paths[0].suffix.lower() == ".gif" else ".mp4"), True
        one_file = len(paths) <= ON_ONE_PAGE
        return _free(MADE_UP, ".png" if one_file else ""), one_file
    from ..plot import FORMATS

    output = Path(given).expanduser()
    if output.is_dir() or given.endswith(("/", os.sep)) or not output.suffix:
        if output.is_file():
            raise ValueError(f"{output} is a file, and a folder's name has no suffix: give another name")
        return output, False
    if not film and output.suffix.lower() not in FORMATS:
        known = ", ".join((*FORMATS, ".gif", ".mp4"))
        raise ValueError(f"{output} ends in {output.suffix!r}: write one of {known}, or a folder")
    if not film and len(paths) > ON_ONE_PAGE:
        raise ValueError(
            f"{len(paths)} pictures do not fit on one page, which holds {ON_ONE_PAGE}: give a folder, as in -o "
            f"{output.with_suffix('')}"
        )
    return output, True


def _free(stem: str, suffix: str) -> Path:
    """why.png, or why-2.png if that is there already."""
    number, path = 1, Path(stem + suffix)
    while path.exists():
        number += 1
        path = Path(f"{stem}-{number}{suffix}")
    return path


def _checked(output: Path, inputs: list[Path]) -> None:
    """Refuse what cannot be written, or would overwrite an input, before any work is done."""
    if any(output.exists() and path.exists() and output.samefile(path) for path in inputs):
        raise ValueError(f"{output} is what is to be explained: give -o another name")
    place = output if output.is_dir() else output.parent
    while not place.exists():
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise ValueError(f"{place} cannot be written to ({error.strerror}): give -o another place") from None


def _names(paths: list[Path], folder: Path) -> dict[Path, Path]:
    """cat-why.png for cat.jpg; cat-2-why.png for another cat."""
    taken: dict[str, int] = {}
    names = {}
    for path in paths:
        taken[path.stem] = count = taken.get(path.stem, 0) + 1
        names[path] = folder / (f"{path.stem}-why.png" if count == 1 else f"{path.stem}-{count}-why.png")
    return names
