"""`codanet export`."""

from .._support.files import check_apart, expanded
from .._support.messages import plain
from ..models.weight_files import weights_file
from .names import EXPORT_FORMATS
from .parser import Parser

ABOUT = """\
Write a model and its explanation as one graph that runs without codanet: image and target in, logits and
contributions out. The file is compared with PyTorch before it is kept."""
EXAMPLES = """\
  codanet export cifar10 -o cifar10.onnx             for onnxruntime in any language, and in a browser
  codanet export cifar10 -o small.onnx --half        half the bytes; prints what that costs
  codanet export model.safetensors -o model.pt2      for torch.export.load
  codanet export cifar10 -o fixed.onnx --size 32 32  for runtimes that need to know every size"""


def parser() -> Parser:
    parser = Parser("export", ABOUT, EXAMPLES)
    parser.add_argument("model", metavar="MODEL", help="a .safetensors or .onnx file, or a shipped model's name")
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help=".onnx or .pt2")
    parser.add_argument("--format", choices=EXPORT_FORMATS, help="default: by the ending of FILE")
    parser.add_argument("--channels", action="store_true", help="also write the contributions of every encoded channel")
    parser.add_argument("--rows", action="store_true", help="also write the row of W")
    parser.add_argument("--size", type=int, nargs=2, metavar=("H", "W"), help="the only image size it takes (any)")
    parser.add_argument("--half", action="store_true", help="weights in half precision, ONNX only")
    return parser


def main(arguments: list[str]) -> int:
    options = parser().parse(arguments)
    check_apart([expanded(options.output)], [weights_file(options.model)], "exported")
    from ..export import export, load

    exported = export(
        load(options.model),
        options.output,
        format=options.format,
        channels=options.channels,
        rows=options.rows,
        size=tuple(options.size) if options.size else None,
        half=options.half,
    )
    close = exported.differences
    print(plain(f"{exported.path}  {exported.bytes / 1e6:.1f} MB"))
    print(
        f"compared with PyTorch on {close.images} images: logits within {close.logits:.0e}, contributions within "
        f"{close.maps:.0e} of the largest; they add up to the logits within {close.sums:.0e}"
    )
    if exported.half:
        lost = exported.half
        print(
            f"half precision costs: logits differ by up to {lost.logits:.0e}, contributions by {lost.maps:.0e} of the "
            f"largest; {lost.classes} of {lost.images} images get another class"
        )
    return 0
