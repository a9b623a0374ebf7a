"""What the benchmark measured, as Markdown."""

from __future__ import annotations

from typing import Any

TITLES = {
    "forward": "forward, ms/image",
    "step": "training step, ms/image",
    "explain": "explanation of one class, ms/image",
    "alone": "the same of one picture alone, ms",
    "memory": "peak memory of a step, MiB",
}
TIMED = ("forward", "step", "explain")
MAKERS = {
    "algorithm1": "Algorithm 1",
    "published": "published form",
    "before": "before",
    "codanet": "codanet",
    "compiled": "compiled",
    "onnxruntime": "onnxruntime",
    "products": "products alone",
    "passes": "products and passes",
}
NOTES = """\
Medians, with (best, n) beside them; every measurement in its own process. *Published form*: w(x) made by a 1x1
convolution, then multiplied and summed. *Before*: another version of the package, such as one with another layer.
*Products alone*: the matrix products and convolutions of codanet's eager work, recorded and done again with nothing
between them, which bounds what eager operations beside them could ever gain. *Products and passes*: the same, and what
goes into them is written once and what comes out is read once, the least that operations apart from the products can
do."""


def markdown(result: dict[str, Any]) -> str:
    """The measurements as Markdown tables."""
    settings, machine, versions = result["settings"], result["machine"], result["versions"]
    about = (
        f"Batch {settings['batch']}, {settings['size']}x{settings['size']}, {settings['threads']} threads, "
        f"{machine['cpu']} ({machine['cores']} cores, {machine['ram_gib']} GiB), torch {versions['torch']}, "
        f"Python {versions['python']}, codanet {versions['codanet']}. Load of the machine at the start: "
        f"{machine['load_before']}."
    )
    rows = {(row["model"], row["what"]): row for row in result["results"]}
    lines = [about, NOTES, "", f"`{result['command']}`", "", *_measurements(rows, settings), ""]
    lines += [*_ratios(rows, settings), "", *_relations(rows, result), "", *_compiling(result["compiling"], settings)]
    for name, operations in result["profile"].items():
        lines += ["", f"What an eager training step of {name} spends its time on (self CPU time, one step):", ""]
        cells = [[o["operation"], f"{o['ms']:.1f}", f"{o['percent']:.1f}", o["calls"]] for o in operations]
        lines += table(["operation", "ms", "%", "calls"], cells)
    return "\n".join(lines)


def table(head: list[str], rows: list[list[Any]]) -> list[str]:
    return ["| " + " | ".join(map(str, line)) + " |" for line in [head, ["---"] * len(head), *rows]]


def _measurements(rows: dict[tuple[str, str], Any], settings: dict[str, Any]) -> list[str]:
    makers = [by for by in MAKERS if any(by in row for row in rows.values())]
    lines: list[list[Any]] = []
    for (model, what), row in rows.items():
        if what in TITLES:
            scale = {"memory": 2**-20, "alone": 1e3}.get(what, 1e3 / settings["batch"])
            digits = 0 if what == "memory" else 2
            lines.append([model, TITLES[what], *(_cell(row.get(by), scale, digits) for by in makers)])
    return table(["model", "what", *(MAKERS[by] for by in makers)], lines)


def _cell(summary: dict[str, Any] | None, scale: float, digits: int) -> str:
    if summary is None:
        return ""
    return f"{summary['median'] * scale:.{digits}f} ({summary['min'] * scale:.{digits}f}, n={summary['n']})"


def _ratios(rows: dict[tuple[str, str], Any], settings: dict[str, Any]) -> list[str]:
    """How many times as fast, or as small, eager and compiled are; and how many times the products alone would be."""
    others = [by for by in ("algorithm1", "published", "before") if by != "before" or settings["before"]]
    head = ["model", "what", *(f"{MAKERS[by]} / {mine}" for by in others for mine in ("codanet", "compiled"))]
    lines: list[list[Any]] = []
    for model in settings["models"]:
        for what in TITLES:
            row = rows[model, what]
            ratios = [_ratio(row, by, mine) for by in others for mine in ("codanet", "compiled")]
            bounds = [_ratio(row, by, "products") for by in ("algorithm1", "before") if by in others]
            bounds += [_ratio(row, "before", "passes")] if "before" in others else []
            lines.append([model, TITLES[what].partition(",")[0], *ratios, *bounds])
    head += [f"{MAKERS[by]} / products" for by in ("algorithm1", "before") if by in others]
    head += ["before / products and passes"] if "before" in others else []
    return ["How many times as fast, or as small in memory:", "", *table(head, lines)]


def _ratio(row: dict[str, Any], over: str, under: str, digits: int = 2) -> str:
    return f"{row[over]['median'] / row[under]['median']:.{digits}f}x" if over in row and under in row else ""


def _relations(rows: dict[tuple[str, str], Any], result: dict[str, Any]) -> list[str]:
    """What parts of a network's work cost beside each other, and what its forward pass costs beside a ResNet-56's."""

    def median(model: str, what: str, by: str) -> float:
        return rows[model, what][by]["median"]

    batch, lines = result["settings"]["batch"], []
    for model in result["settings"]["models"]:
        for by in ("codanet", "compiled"):
            forward, explain = median(model, "forward", by), median(model, "explain", by)
            alone = median(model, "alone", by) * batch / explain
            cost = median(model, "lambda_step", by) / median(model, "step", by) if by == "codanet" else None
            beside = (median(model, what, by) / median("resnet56", what, by) for what in ("forward", "step"))
            numbers = [f"{explain / forward:.2f}", f"{alone:.2f}", "" if cost is None else f"{cost:.2f}"]
            numbers += [f"{ratio:.2f}" for ratio in beside]
            lines.append([f"{model}, {by}", *numbers, f"{result['agreement'][model][by]:.1e}"])
    head = ["", "explanation / forward", f"alone / in a batch of {batch}", "λ step / step"]
    head += ["forward / ResNet-56's", "step / ResNet-56's", "rows of W, off Algorithm 1's by"]
    about = (
        "An explanation includes its forward pass. A λ step computes and differentiates two rows of W per image. The "
        "ResNet-56 is compiled where the network is. Differences are relative to the largest entry."
    )
    return [about, "", *table(head, lines)]


def _compiling(compiling: dict[str, Any], settings: dict[str, Any]) -> list[str]:
    lines = [
        [name, f"{cost['first']:.1f}", "" if cost["cached"] is None else f"{cost['cached']:.1f}"]
        for name, cost in compiling.items()
    ]
    about = f"What compiling (`{settings['backend']}`) adds to the first call, in seconds:"
    return [about, "", *table(["", "nothing in torch's cache", "in another process, from the cache"], lines)]
