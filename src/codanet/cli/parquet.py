"""`codanet explain --parquet`: many pictures into a table."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from .._support.files import expanded
from .._support.messages import plain
from .names import MAPS
from .workers import together


def tabulated(options: argparse.Namespace, arguments: list[str], paths: list[Path]) -> int:
    """Write the table, and print what is on disk in the end, in a line or as JSON."""
    if options.layers or options.compare:
        raise ValueError("a table holds the model's own maps: leave out --layers and --compare, or --parquet")
    if not options.output:
        raise ValueError("--parquet was given without --output: name a folder for the files, as in -o maps")
    folder = expanded(options.output)
    if folder.is_file() or (folder.suffix and not folder.is_dir()):
        raise ValueError(f"{folder} is not a folder: Parquet files go into one, so give a name without a suffix")
    with together(options, ["explain", *arguments]) as place:
        from ..export import load
        from ..models.classifier import explaining
        from ..plot.shards import explain_into

        manifest = explain_into(
            explaining(load(options.model), options.model),
            paths,
            folder,
            targets=options.target or (),
            top=options.top,
            maps=cast(Any, options.maps or MAPS[0]),
            place=place,
        )
    if place.rank:
        return 0
    if options.json:
        print(json.dumps(asdict(manifest)))
    else:
        print(plain(f"{manifest.pictures} pictures, {manifest.rows} rows in {manifest.shards} files in {folder}"))
    if manifest.failed:
        print(f"codanet: {manifest.failed} of {manifest.pictures} pictures could not be read", file=sys.stderr)
    return 1 if manifest.failed else 0
