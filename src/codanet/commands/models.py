"""`codanet models`."""

from .table import no_more, print_table


def main(arguments: list[str]) -> int:
    no_more("models", arguments)
    import torch

    from ..zoo import ARCHITECTURES, create_model

    rows = [("name", "parameters", "layers", "image size", "T")]
    for name, architecture in ARCHITECTURES.items():
        with torch.device("meta"):
            count = sum(p.numel() for p in create_model(name).parameters())
        size = f"{architecture.image_size}x{architecture.image_size}"
        rows.append(
            (name, f"{count / 1e6:.2f} M", str(len(architecture.layers)), size, f"{architecture.temperature:g}")
        )
    print_table(rows)
    return 0
