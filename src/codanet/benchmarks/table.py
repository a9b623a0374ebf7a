"""What the benchmark measured, as Markdown."""

from __future__ import annotations

from typing import Any

TIMED = {"forward": "forward", "step": "training step", "explain": "explanation of one class"}


def markdown(result: dict[str, Any]) -> str:
    """The measurements as Markdown tables: medians, with (min..max, n)."""
    settings, machine, versions = result["settings"], result["machine"], result["versions"]
    per_image = 1000 / settings["batch"]

    def cell(summary: dict[str, Any], factor: float, digits: int) -> str:
        middle, low, high = (f"{summary[key] * factor:.{digits}f}" for key in ("median", "min", "max"))
        return f"{middle} ({low}..{high}, n={summary['n']})"

    about = (
        f"Batch {settings['batch']}, {settings['size']}x{settings['size']}, {settings['threads']} threads, "
        f"{machine['cpu']} ({machine['cores']} cores, {machine['ram_gib']} GiB), torch {versions['torch']}, "
        f"Python {versions['python']}, codanet {versions['codanet']}. Medians, with (min..max, n) beside them; "
        "every measurement in its own process."
    )
    lines = [about, "", f"`{result['command']}`", ""]
    lines += [
        "| model | what | Algorithm 1 | codanet | ratio |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in result["results"]:
        memory = row["what"] == "memory"
        name = "peak memory of a step, MiB" if memory else f"{TIMED[row['what']]}, ms/image"
        scale, digits = (2**-20, 0) if memory else (per_image, 2)
        theirs, ours = cell(row["algorithm1"], scale, digits), cell(row["codanet"], scale, digits)
        lines.append(f"| {row['model']} | {name} | {theirs} | {ours} | {row['ratio']:.1f}x |")

    resnet = result["resnet56"]
    lines += [
        "",
        f"ResNet-56 forward: {cell(resnet, per_image, 2)} ms/image.",
        "",
        "The explanation's forward pass is part of it; in brackets its matrix products alone, over the forward pass. "
        "A λ step computes and differentiates two rows of W per image.",
        "",
        "| model | forward / ResNet-56's | explanation / forward | λ step / step | last map, off Algorithm 1's by |",
        "| --- | --- | --- | --- | --- |",
    ]
    medians = {(row["model"], row["what"]): row["codanet"]["median"] for row in result["results"]}
    for name in settings["models"]:
        forward, products = medians[name, "forward"], result["products"][name]["explain"]["median"]
        ratios = f"{forward / resnet['median']:.2f} | {medians[name, 'explain'] / forward:.2f} "
        ratios += f"({products / forward:.2f}) | {result['lambda_step'][name]['median'] / medians[name, 'step']:.2f}"
        lines.append(f"| {name} | {ratios} | {result['agreement'][name]:.1e} relative |")

    lines += [
        "",
        "What bounds it: the matrix products of codanet's work, recorded and done again with nothing between them, on "
        "memory laid out and shared as there. Algorithm 1 / products is the most that a ratio could be, however little "
        "everything else cost.",
        "",
        "| model | what | matrix products alone, ms/image | of codanet's time | Algorithm 1 / products |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in result["results"]:
        if row["what"] in TIMED:
            products = result["products"][row["model"]][row["what"]]
            ours, theirs = (row[by]["median"] / products["median"] for by in ("codanet", "algorithm1"))
            cells = f"{cell(products, per_image, 2)} | {100 / ours:.0f} % | {theirs:.1f}x"
            lines.append(f"| {row['model']} | {TIMED[row['what']]} | {cells} |")

    for name, operations in result["profile"].items():
        lines += ["", f"What a training step of {name} spends its time on (self CPU time, one step):", ""]
        lines += ["| operation | ms | % | calls |", "| --- | --- | --- | --- |"]
        lines += [f"| {o['operation']} | {o['ms']:.1f} | {o['percent']:.1f} | {o['calls']} |" for o in operations]
    return "\n".join(lines)
