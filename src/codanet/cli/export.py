"""`codanet export`."""

from .._support.messages import plain
from .names import EXPORT_FORMATS
from .parser import Parser

ABOUT = """\
Write a model and its explanation as one graph that runs without codanet: image and target in, logits and
contributions out. The file is compared with PyTorch before it is kept."""
EXAMPLES = """\
  codanet export cifar10 -o cifar10.onnx             for onnxruntime in any language, and in a browser
  codanet export cifar10 -o small.onnx --half        half the bytes; says what that costs
  codanet export model.safetensors -o model.pt2      for torch.export.load
  codanet export cifar10 -o fixed.onnx --size 32 32  for runtimes that want to know every size"""


def parser() -> Parser:
    made = Parser("export", ABOUT, EXAMPLES)
    made.add_argument("model", metavar="MODEL", help="a .safetensors file, or the name of a shipped model")
    made.add_argument("-o", "--output", metavar="FILE", required=True, help=".onnx or .pt2")
    made.add_argument("--format", choices=EXPORT_FORMATS, help="default: what FILE ends in")
    made.add_argument("--channels", action="store_true", help="also the contributions of every encoded channel")
    made.add_argument("--rows", action="store_true", help="also the row of W")
    made.add_argument("--size", type=int, nargs=2, metavar=("H", "W"), help="the only image size it takes (any)")
    made.add_argument("--half", action="store_true", help="weights in half precision, ONNX only")
    return made


def main(arguments: list[str]) -> int:
    given = parser().parse(arguments)
    from .._support.files import check_apart, expanded
    from ..export import export, load
    from ..models.weight_files import weights_file

    check_apart(expanded(given.output), [weights_file(given.model)], "exported")
    made = export(
        load(given.model),
        given.output,
        format=given.format,
        channels=given.channels,
        rows=given.rows,
        size=tuple(given.size) if given.size else None,
        half=given.half,
    )
    found = made.differences
    print(plain(f"{made.path}  {made.bytes / 1e6:.1f} MB"))
    print(
        f"compared with PyTorch on {found.images} images: logits within {found.logits:.0e}, contributions within "
        f"{found.maps:.0e} of the largest; they add up to the logits within {found.sums:.0e}"
    )
    if made.half:
        lost = made.half
        print(
            f"half precision costs: logits differ by up to {lost.logits:.0e}, contributions by {lost.maps:.0e} of the "
            f"largest; {lost.classes} of {lost.images} images get another class"
        )
    return 0
