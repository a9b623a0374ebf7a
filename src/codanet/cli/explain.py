"""`codanet explain`."""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._support.files import check_apart, expanded
from .._support.messages import nearest, plain
from .._support.pictures import picture_paths
from .._support.specs import split_spec
from .._support.threads import torch_threads
from ..models.weight_files import weights_file
from .names import MAPS, METHODS, PALETTES, STYLES
from .parquet import tabulated
from .parser import Parser, positive, threads
from .workers import add_workers

if TYPE_CHECKING:
    from ..models.network import CoDANet
    from ..plot.gallery import Explained

ABOUT = """\
Show which pixels speak for a class and which against it. Pictures are files, folders or patterns. They are fitted to
the model's size: the shorter side is scaled and the centre cut out. A film or animated GIF becomes a film with its
maps."""
EXAMPLES = """\
  codanet explain model.safetensors cat.jpg                          image and map, into why.png
  codanet explain model.safetensors cat.jpg --target dog             why (not) a dog?
  codanet explain model.safetensors cat.jpg --top 3 -o why.svg       the three most probable classes
  codanet explain model.safetensors cat.jpg --compare gradcam,ixg    beside other methods
  codanet explain model.safetensors cat.jpg --layers                 layer by layer
  codanet explain model.safetensors photos/ -o pages --json          a thousand pictures, one page each
  codanet explain model.safetensors clip.gif -o why.gif              every frame beside its map
  codanet explain model.safetensors photos/ --parquet -o maps        a million pictures, into a table
  torchrun --nproc-per-node 8 -m codanet explain model.safetensors photos/ --parquet -o maps"""
ON_ONE_PAGE = 32
LONGEST_STEM = 230  # bytes: file systems take 255, and -2-why.png needs some of them
MADE_UP = "why"  # the name of the output if --output is not given


def parser() -> Parser:
    parser = Parser("explain", ABOUT, EXAMPLES)
    parser.add_argument("model", metavar="MODEL", help="a .safetensors or .onnx file, or the name of a shipped model")
    parser.add_argument("pictures", metavar="PICTURE", nargs="+", help="files, folders, patterns such as 'a/*.jpg'")
    parser.add_argument(
        "-o",
        "--output",
        help=".png, .svg or .pdf for one page, .gif or .mp4 for a film, or a folder; missing folders are made",
    )
    parser.add_argument(
        "--target", action="append", help="class name or number; repeat for several (default: the most probable)"
    )
    parser.add_argument("--top", type=positive(int), default=1, metavar="N", help="the N most probable classes")
    parser.add_argument("--compare", metavar="METHODS", default="", help="other methods: gradcam,ixg,intgrad,rise,…")
    parser.add_argument("--layers", action="store_true", help="also contributions from every layer")
    parser.add_argument(
        "--style",
        choices=STYLES,
        help="map, overlay on the image, or weights in colour (default: map; overlay for photographs on a backbone)",
    )
    parser.add_argument(
        "--palette", choices=PALETTES, help="orange-purple if red and green are hard to tell apart (red-blue)"
    )
    parser.add_argument("--scale", type=positive(float), metavar="V", help="colours from -V to V logits, on every page")
    parser.add_argument("--start", type=float, default=0.0, metavar="SECONDS", help="where in a film to start")
    parser.add_argument("--end", type=float, metavar="SECONDS", help="where in a film to stop")
    parser.add_argument(
        "--parquet", action="store_true", help="a table instead of pictures: Parquet files in the folder of --output"
    )
    parser.add_argument("--maps", choices=MAPS, help="maps in that table: float16 (default), png pictures, or none")
    parser.add_argument("--threads", type=threads, metavar="N", help="CPU threads for each worker")
    add_workers(parser, "with --parquet: ")
    parser.add_argument(
        "--json", action="store_true", help="JSON instead of text: an object per picture, or one in all with --parquet"
    )
    return parser


def main(arguments: list[str]) -> int:
    options = parser().parse(arguments)
    if options.target and options.top != 1:
        raise ValueError("--target and --top were both given: name the classes, or ask for the most probable ones")
    weights_file(options.model)
    paths = picture_paths(options.pictures)
    methods = [name.strip() for name in options.compare.split(",") if name.strip()]
    for name in methods:
        if (plain := split_spec(name)[0]) not in METHODS:
            raise ValueError(f"unknown method {plain!r}{nearest(plain, METHODS)}")
    timed = bool(options.start) or options.end is not None
    if options.parquet:
        if timed or any(value is not None for value in (options.style, options.palette, options.scale)):
            raise ValueError("--parquet makes a table: leave out --style, --palette, --scale, --start and --end")
        return tabulated(options, arguments, paths)
    if options.maps:
        raise ValueError(f"--maps {options.maps} was given without --parquet: it says what a table holds")
    if options.workers > 1:
        raise ValueError(f"--workers {options.workers} was given without --parquet: pages are drawn by one process")
    from ..data.film import WRITTEN, is_moving

    suffix = Path(options.output).suffix.lower() if options.output else ""
    film = suffix in WRITTEN or (not options.output and len(paths) == 1 and is_moving(paths[0]))
    if film and len(paths) > 1:
        raise ValueError(f"{len(paths)} pictures were given for one {suffix} file: give one film or animated GIF")
    if film and (options.layers or options.compare or options.top != 1 or len(options.target or ()) > 1):
        raise ValueError("a film is explained for one class: leave out --layers, --compare, --top and further --target")
    if timed and not film:
        raise ValueError("--start and --end are for a film: give one film, and -o a name that ends in .gif or .mp4")
    output, one_file = _output(options.output, paths, film)
    if one_file and options.layers and (methods or options.style or options.scale):
        raise ValueError("--layers fills a page: leave out --compare, --style and --scale, or give -o a folder")
    if options.layers and (options.top != 1 or len(options.target or ()) > 1):
        raise ValueError("--layers shows where one class comes from: leave out --top and further --target")
    names = None if one_file else _names(paths, output)
    _checked(output, names or {}, [*paths, Path(options.model)])

    from ..export import load
    from ..models.classifier import explaining

    model = explaining(load(options.model), options.model)
    if options.layers and not callable(getattr(model, "trace", None)):
        raise ValueError(
            f"{options.model} holds a {type(model).__name__}, whose layers are not linear maps: leave out --layers"
        )
    with torch_threads(options.threads):
        if film:
            return _film(model, paths[0], output, options)
        return _pictures(model, paths, methods, output, names, options)


def _pictures(
    model: "CoDANet",
    paths: list[Path],
    methods: list[str],
    output: Path,
    names: dict[Path, Path] | None,
    options: argparse.Namespace,
) -> int:
    from .._support.progress import progress_bar
    from ..data.image import size_for
    from ..plot import LARGEST_CELL, save
    from ..plot.gallery import WRITERS, ahead, drawn, explain_files, page, record

    look: dict[str, Any] = {"palette": options.palette or PALETTES[0], "style": options.style, "scale": options.scale}
    kept: list[Explained] = []

    def finished(explained: "Explained") -> "tuple[Explained, Path | None]":
        if explained.error:
            return explained, None
        if names is None:
            return explained, output
        return explained, save(drawn(explained, **look), names[explained.path])

    height, width = size_for(model)
    print(f"pictures are fitted to {height}x{width} pixels, as the model sees them", file=sys.stderr)
    results = explain_files(
        model,
        paths,
        targets=options.target or (),
        top=options.top,
        methods=methods,
        layers=options.layers,
        dots=LARGEST_CELL if names is None and len(paths) > 1 else 2 * LARGEST_CELL,  # alone there is more room
    )
    names_of_classes = model.class_names or [str(number) for number in range(model.num_classes)]
    widths = min(60, max(len(str(path)) for path in paths)), options.top * (max(map(len, names_of_classes)) + 7) - 2
    failed, lines = 0, list[str]()
    say = lines.append if names is None else _printer()  # a page is mentioned only once it is written
    with progress_bar("explaining", len(paths), shown=len(paths) > 1, unit="pictures") as advance:
        for explained, picture in ahead(finished, results, WRITERS, 4 * WRITERS):
            advance(1)
            if explained.error:
                failed += 1
                if len(paths) == 1:
                    raise ValueError(explained.error)
                print(f"codanet: {plain(explained.error)}", file=sys.stderr)
            elif names is None:
                kept.append(explained)
            if options.json:
                say(json.dumps(record(explained, picture, options.top)))
            elif not explained.error:
                say(_line(record(explained, picture, options.top), widths, bool(options.target)))
    if kept:
        save(page(kept, **look), output)
    for line in lines:
        print(line)
    if failed:
        print(f"codanet: {failed} of {len(paths)} pictures could not be read", file=sys.stderr)
    return 1 if failed else 0


def _film(model: "CoDANet", path: Path, output: Path, options: argparse.Namespace) -> int:
    from ..plot.film import explain_video
    from ..plot.gallery import class_number

    target = class_number(options.target[0], model) if options.target else None
    film = explain_video(
        model,
        path,
        output,
        target=target,
        palette=options.palette or PALETTES[0],
        style=options.style,
        scale=options.scale,
        start=options.start,
        end=options.end,
    )
    if options.json:
        facts = {"image": str(path), "class": film.class_name, "number": film.target, "frames": film.frames}
        facts |= {"predicted": film.predicted, "seconds": film.seconds, "scale": film.scale}
        print(json.dumps({**facts, "picture": str(film.path)}))
    else:
        print(plain(f"{path}  {film.class_name}, predicted in {film.predicted} of {film.frames} frames  {film.path}"))
    return 0


def _line(facts: dict[str, Any], widths: tuple[int, int], targeted: bool) -> str:
    classes = ", ".join(f"{each['class']} {each['probability']:.2f}" for each in facts["classes"]).ljust(widths[1])
    if targeted:
        classes += "  for " + ", ".join(f"{each['class']} {each['probability']:.2f}" for each in facts["targets"])
    return plain(f"{facts['image'].ljust(widths[0])}  {classes}  {facts['picture']}")


def _printer() -> Callable[[str], None]:
    """Print lines to stdout: above the progress bar on a terminal; past it, since the bar is on stderr, into a file."""
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

    output = expanded(given)
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
    """why.png, or why-2.png if why.png exists."""
    number, path = 1, Path(stem + suffix)
    while path.exists():
        number += 1
        path = Path(f"{stem}-{number}{suffix}")
    return path


def _checked(output: Path, names: dict[Path, Path], inputs: list[Path]) -> None:
    """Refuse what cannot be written, or would overwrite an input, before any work is done."""
    check_apart([output, *names.values()], inputs, "explained")
    place = output if output.is_dir() else output.parent
    while not place.exists():
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise ValueError(f"{place} cannot be written to ({error.strerror}): give -o another place") from None


def _names(paths: list[Path], folder: Path) -> dict[Path, Path]:
    """cat-why.png for cat.jpg; cat-2-why.png for another cat; a name that would be too long is cut."""
    counts, names, taken = dict[str, int](), dict[Path, Path](), set[str]()
    for path in paths:
        stem = (
            os.fsdecode(os.fsencode(path.stem)[:LONGEST_STEM])
            if len(os.fsencode(path.stem)) > LONGEST_STEM
            else path.stem
        )
        name = ""
        while not name or name in taken:  # there may be a cat-2.jpg as well
            counts[stem] = count = counts.get(stem, 0) + 1
            name = f"{stem}-why.png" if count == 1 else f"{stem}-{count}-why.png"
        taken.add(name)
        names[path] = folder / name
    return names
