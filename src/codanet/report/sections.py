"""The parts of the page, as HTML: everything that comes from a file goes through `text`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from .._support.html import data_uri, picture_uri, text
from ..evaluation import table as of_results
from ..plot import heatmap, overlay, pictures
from .findings import Case, Findings

MATRIX_CLASSES = 25  # more are listed by what is confused most
PAIRS = 20
MOST_BYTES = 16 * 2**20  # of a picture that is taken into the page
PNG = b"\x89PNG\r\n\x1a\n"


def section(title: str, body: str, about: str = "") -> str:
    if not body:
        return ""
    head = f"<p class='about'>{about}</p>" if about else ""
    return f"<section><h2>{text(title)}</h2>{head}{body}</section>"


def figures(items: Sequence[tuple[str, str]]) -> str:
    """(value, label) in large letters."""
    cells = "".join(f"<div><b>{text(value)}</b><span>{text(label)}</span></div>" for value, label in items)
    return f"<div class='figures'>{cells}</div>"


def table(heads: Sequence[str], rows: Sequence[Sequence[object]], words: int = 1) -> str:
    """The first `words` columns are words, the others numbers."""
    head = "".join(
        f"<th scope='col' class='{_kind(place, words)}'>{text(each)}</th>" for place, each in enumerate(heads)
    )
    body = "".join(
        "<tr>" + "".join(f"<td class='{_kind(i, words)}'>{text(cell)}</td>" for i, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f"<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _kind(place: int, words: int) -> str:
    return "word" if place < words else "number"


def facts(entries: Mapping[str, Any]) -> str:
    """Names and values, nested ones in one line each."""
    rows = (f"<div><dt>{text(key)}</dt><dd>{text(value)}</dd></div>" for key, value in flat(entries))
    return f"<dl>{''.join(rows)}</dl>"


def flat(entries: Mapping[str, Any], before: str = "") -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = []
    for key, value in entries.items():
        name = f"{before}{key}"
        if isinstance(value, Mapping):
            rows += flat(value, f"{name} · ")
        elif isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
            for number, each in enumerate(value, 1):  # the stages of a training
                rows += flat(each, f"{name} {number} · ")
        elif isinstance(value, list):
            rows.append((name, ", ".join(map(str, value))))
        elif value is not None and value != "":
            rows.append((name, value))
    return rows


def plot_file(path: Path, title: str) -> str:
    """A picture from a folder, if it is not too large for the page."""
    if path.stat().st_size > MOST_BYTES:
        return f"<p class='missing'>{text(path.name)} is larger than {MOST_BYTES // 2**20} MiB and is left out.</p>"
    return plot(title, path.read_bytes())


def plot(title: str, content: bytes) -> str:
    """A PNG that was there already, at the size it was drawn for."""
    if not content.startswith(PNG):
        return f"<p class='missing'>{text(title)} is no PNG and is left out.</p>"
    width = int.from_bytes(content[16:20], "big") // 2  # figures have 200 dots to the inch, a page about 100
    image = f"<img src='{data_uri(content, 'image/png')}' width='{width}' alt='{text(title)}'>"
    return f"<figure class='plot'>{image}<figcaption>{text(title)}</figcaption></figure>"


def confusion(findings: Findings) -> str:
    """Rows are the true classes: how many images of each were called what."""
    if len(findings.classes) > MATRIX_CLASSES:
        return _confused_pairs(findings)
    counts, names = findings.confusion, findings.classes
    heads = "".join(f"<th scope='col'><span>{text(name)}</span></th>" for name in names)
    rows = []
    for row, name in enumerate(names):
        total = int(counts[row].sum())
        cells = "".join(_cell(int(count), total, row == column) for column, count in enumerate(counts[row]))
        recall = f"{int(counts[row, row]) / total:.0%}" if total else "–"
        rows.append(f"<tr><th scope='row'>{text(name)}</th>{cells}<td class='sum'>{recall}</td></tr>")
    precision = []
    for column in range(len(names)):
        total = int(counts[:, column].sum())
        precision.append(f"<td class='sum'>{int(counts[column, column]) / total:.0%}</td>" if total else "<td>–</td>")
    return (
        f"<div class='wide'><table class='matrix'><thead><tr><td></td>{heads}<th scope='col'><span>found</span></th>"
        f"</tr></thead><tbody>{''.join(rows)}</tbody><tfoot><tr><th scope='row'>true</th>{''.join(precision)}</tr>"
        "</tfoot></table></div>"
    )


def _cell(count: int, total: int, right: bool) -> str:
    share = count / total if total else 0.0
    kind = "right" if right else "wrong"
    shade = f"--share:{min(1.0, share if right else 3 * share):.3f}"
    return f"<td class='{kind}' style='{shade}' title='{share:.1%}'>{count or ''}</td>"


def _confused_pairs(findings: Findings) -> str:
    counts = findings.confusion.clone()
    counts.fill_diagonal_(0)
    order = counts.flatten().argsort(descending=True, stable=True)[:PAIRS].tolist()
    rows = []
    for place in order:
        row, column = divmod(place, len(findings.classes))
        if count := int(counts[row, column]):
            total = int(findings.confusion[row].sum())
            rows.append((findings.classes[row], findings.classes[column], count, f"{count / total:.1%}"))
    return table(("true class", "called", "images", "of that class"), rows, words=2)


def right_cases(findings: Findings) -> str:
    cells = []
    for case in findings.right:
        own = _map_uri(findings, case.image, case.said_map)
        panels = (("", image_uri(case.image)), (f"for {findings.classes[case.said]}", own))
        cells.append(side_by_side(panels, f"{_said(findings, case)} <small>image {case.index}</small>"))
    return f"<div class='cases'>{''.join(cells)}</div>" if cells else ""


def wrong_cases(findings: Findings) -> str:
    cells = []
    for case in findings.wrong:
        truth = findings.classes[case.label]
        panels = (
            ("", image_uri(case.image)),
            (f"for {findings.classes[case.said]}", _map_uri(findings, case.image, case.said_map)),
            (f"for {truth}", _map_uri(findings, case.image, case.label_map)),
        )
        words = (
            f"{_said(findings, case)}, is {text(truth)} {case.label_probability:.1%} <small>image {case.index}</small>"
        )
        cells.append(side_by_side(panels, words))
    return f"<div class='cases three'>{''.join(cells)}</div>" if cells else ""


def _map_uri(findings: Findings, image: Tensor, values: Tensor) -> str:
    """Of features, over the photograph."""
    return picture_uri(overlay(image[None], values[None])[0]) if findings.exact_for else colours(values)


def _said(findings: Findings, case: Case) -> str:
    return f"<b>{text(findings.classes[case.said])}</b> {case.probability:.1%}"


def side_by_side(panels: Sequence[tuple[str, str]], words: str) -> str:
    """Pictures as (title, address) with words under them, HTML already."""
    images = "".join(
        f"<span><img src='{uri}' alt='{text(title or 'the image')}'>{text(title)}</span>" for title, uri in panels
    )
    return f"<figure><div>{images}</div><figcaption>{words}</figcaption></figure>"


def image_uri(image: Tensor) -> str:
    return picture_uri(pictures(image[None])[0])


def colours(values: Tensor) -> str:
    return picture_uri(heatmap(values)[0])


def measurements(rows: Sequence[of_results.Row]) -> str:
    """The table of an evaluation; the best method of each metric and model is marked."""
    return table(of_results.heads(rows), of_results.cells(rows, star="★"), words=3)


def metric_words(rows: Sequence[of_results.Row], remarks: Sequence[object]) -> str:
    """What the metrics are, what was odd, what was left out."""
    told = dict.fromkeys([*of_results.words(rows), *map(str, remarks)])
    return "<ul>" + "".join(f"<li>{text(each)}</li>" for each in told) + "</ul>" if told else ""
