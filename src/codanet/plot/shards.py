"""Explanations of many pictures as Parquet: a row for every picture and class, a file for every so many pictures.

Shards are independent, and there whole or not at all: a run that was stopped goes on with those that are missing, and
several processes share them out (`_support.crew`). Memory is that of a shard. Needs the extra `parquet`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, get_args

from PIL import Image

from .._support.crew import WAIT_SECONDS, Crew, Place, crew_in
from .._support.crew import place as own_place
from .._support.extras import optional
from .._support.files import replacing
from .._support.messages import encodable, nearest, reason
from .._support.numbers import check_whole
from .._support.progress import progress_bar
from .._support.settled import settle
from .._support.version import __version__
from ..data.image import size_for
from ..models.digest import model_digest
from ..models.network import CoDANet
from . import heatmap
from .gallery import Explained, class_number, explain_files

Maps = Literal["float16", "png", "none"]
MANIFEST, SETTINGS = "_manifest.json", "_settings.json"  # names that readers of a folder of Parquet files leave out
PICTURES, MAP_BYTES = 1000, 64 << 20  # a shard has no more than these


@dataclass(frozen=True)
class Manifest:
    """What is in a folder of shards; _manifest.json holds the same, and the settings."""

    folder: str
    shards: int
    pictures: int
    rows: int
    failed: int  # pictures that could not be read; their rows say why
    complete: bool


def explain_into(
    model: CoDANet,
    paths: Sequence[Path],
    folder: Path,
    *,
    targets: Sequence[int | str] = (),
    top: int = 1,
    maps: Maps = "float16",
    shard: int | None = None,
    place: Place | None = None,
    quiet: bool = False,
) -> Manifest:
    """Explain pictures into Parquet files of a folder, with a manifest. `pandas.read_parquet` reads the whole folder.

    Started again with the same settings, a stopped run goes on with the shards that are missing. Started by torchrun
    or SLURM, processes on several machines with a shared folder share them out.

    Args:
        model: A CoDANet.
        paths: Pictures, in the order of their rows.
        folder: For maps-00000.parquet and so on, made if it is missing.
        targets: Classes to explain, by number or name; without any, the `top` most probable of each picture.
        top: How many of them.
        maps: "float16", contributions per pixel in logits, which add up to the logit less b0 but for rounding to 11
            bits; "png", as pictures in red and blue, each scaled by itself; or "none".
        shard: Pictures in a file; by default 1000, or fewer large ones.
        place: Which of how many processes this is; by default what torchrun or SLURM say.
        quiet: Show no progress.

    Returns:
        What there is in the folder.

    Raises:
        ValueError: If a setting makes no sense, the folder holds others, or cannot be written to.
    """
    with optional():
        import pyarrow.parquet  # noqa: F401
    if maps not in get_args(Maps):
        raise ValueError(f"unknown maps {maps!r}{nearest(maps, get_args(Maps))}")
    check_whole(1, most=model.num_classes, top=top)
    for target in targets:
        class_number(target, model)  # refuses an unknown one
    height, width = size_for(model)
    count = len(targets) or top
    size = max(1, min(PICTURES, MAP_BYTES // (2 * height * width * count))) if shard is None else shard
    check_whole(1, shard=size)
    place = own_place() if place is None else place
    names = [str(path) for path in paths]
    settings: dict[str, Any] = {
        "codanet": __version__,
        "model": model_digest(model),
        "pictures": len(names),
        "paths": sha256("\0".join(names).encode("utf-8", "surrogateescape")).hexdigest(),
        "targets": [str(target) for target in targets],
        "top": top,
        "maps": maps,
        "size": [height, width],
        "shard": size,
    }
    with crew_in(folder, "the explanations", place) as crew:
        with crew.settling() as only:
            done = next((path.name for path in folder.glob("maps-*.parquet")), "")
            settle(folder, SETTINGS, settings, "explanations", done=done, others=not only)
        try:
            _fill(model, paths, crew, settings, targets, quiet)
            return _manifest(folder, settings, names, write=place.rank == 0)
        except OSError as error:
            raise ValueError(
                f"{folder} cannot be written to ({reason(error)}): make room and run the same command again, which "
                "goes on where it stopped"
            ) from None


def shard_path(folder: Path, number: int) -> Path:
    return folder / f"maps-{number:05d}.parquet"


def _fill(
    model: CoDANet,
    paths: Sequence[Path],
    crew: Crew,
    settings: dict[str, Any],
    targets: Sequence[int | str],
    quiet: bool,
) -> None:
    size = settings["shard"]
    missing = [n for n in range(-(-len(paths) // size)) if not shard_path(crew.folder, n).is_file()]
    left, shown = crew.in_order(missing), not quiet and crew.rank == 0
    with progress_bar("explaining", len(paths), shown=shown, unit="pictures", lines=True) as advance:
        done = 0

        def count() -> None:
            """Whatever is there, by this process or another."""
            nonlocal done, missing
            missing = [n for n in missing if not shard_path(crew.folder, n).is_file()]
            before, done = done, len(paths) - sum(len(paths[n * size : (n + 1) * size]) for n in missing)
            advance(done - before)

        count()
        while left:
            busy = []
            for number in left:
                path = shard_path(crew.folder, number)
                with crew.claim(number) as mine:
                    if mine and not path.is_file():
                        some = paths[number * size : (number + 1) * size]
                        _write(path, model, some, number * size, settings, targets)
                    if not mine and not path.is_file():
                        busy.append(number)
                if shown:
                    count()
            if len(busy) == len(left):
                time.sleep(WAIT_SECONDS)
            left = busy


def _write(
    path: Path,
    model: CoDANet,
    paths: Sequence[Path],
    first: int,
    settings: dict[str, Any],
    targets: Sequence[int | str],
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows: dict[str, list[Any]] = {name: [] for name in _schema(settings, model).names}
    files = explain_files(model, paths, targets=targets, top=settings["top"])
    for number, explained in enumerate(files, first):
        for row in _rows(number, explained, settings["maps"]):
            for name, values in rows.items():
                values.append(row.get(name))
    table = pa.table(rows, schema=_schema(settings, model))
    with replacing(path) as part:
        pq.write_table(table, part, compression="zstd")


def _rows(number: int, explained: Explained, maps: Maps) -> list[dict[str, Any]]:
    start = {"picture": number, "path": encodable(explained.path)}
    why = explained.explanation
    if why is None:
        return [{**start, "error": encodable(explained.error)}]
    several = why.targets.view(-1)
    pixels = why.pixels.reshape(len(several), -1)
    rows = []
    for place, target in enumerate(several.tolist()):
        row = {
            **start,
            "number": target,
            "class": encodable(why.class_name(target)),
            "probability": float(why.probabilities[0, target]),
            "logit": float(why.logits[0, target]),
        }
        if maps == "float16":
            row["map"] = pixels[place].half().numpy()
        elif maps == "png":
            data = BytesIO()
            Image.fromarray(heatmap(pixels[place].view(1, *why.pixels.shape[-2:]))[0]).save(data, "PNG")
            row["map"] = data.getvalue()
        rows.append(row)
    return rows


def _schema(settings: dict[str, Any], model: CoDANet) -> Any:
    import pyarrow as pa

    height, width = settings["size"]
    kinds: dict[str, Any] = {"float16": pa.list_(pa.float16(), height * width), "png": pa.binary()}
    fields = [
        pa.field("picture", pa.int64()),  # its place in the list
        pa.field("path", pa.string()),
        pa.field("number", pa.int32()),  # the class's place among the outputs
        pa.field("class", pa.string()),
        pa.field("probability", pa.float32()),
        pa.field("logit", pa.float32()),
        pa.field("error", pa.string()),
    ]
    if settings["maps"] in kinds:
        fields.append(pa.field("map", kinds[settings["maps"]]))
    facts = {"height": height, "width": width, "bias": model.logit_bias, "settings": json.dumps(settings)}
    return pa.schema(fields, metadata={key: str(value) for key, value in facts.items()})


def _manifest(folder: Path, settings: dict[str, Any], names: Sequence[str], *, write: bool) -> Manifest:
    """Of what is on disk, each shard looked at: a row for every picture, or as many as it has classes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = failed = 0
    files = []
    for number in range(-(-len(names) // settings["shard"])):
        path = shard_path(folder, number)
        try:
            column = pq.read_table(path, columns=["error"])["error"]
        except (pa.ArrowInvalid, KeyError, OSError) as error:
            raise ValueError(
                f"{path} is damaged or gone ({reason(error)}): delete it and run the same command again"
            ) from None
        rows, failed = rows + len(column), failed + len(column) - column.null_count
        files.append({"file": path.name, "rows": len(column), "bytes": path.stat().st_size})
    manifest = Manifest(str(folder), len(files), len(names), rows, failed, complete=True)
    if write:
        with replacing(folder / MANIFEST) as part:
            part.write_text(
                json.dumps({**asdict(manifest), "settings": settings, "files": files}, indent=1), encoding="utf-8"
            )
    return manifest
