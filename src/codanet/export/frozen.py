"""A frozen backbone in onnxruntime, which makes its maps in half the time that PyTorch takes.

EfficientNet-Lite0 as far as blocks.10, photographs of 224 x 288, two threads of an AMD EPYC at one photograph each:
7 ms a photograph instead of 14 (medians of 5 times 20, in turn; 8.5 if the size is left open). Maps differ by 3e-5.
"""

from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from .._support.progress import note
from .features import known


def in_onnxruntime(part: nn.Module, size: tuple[int, int]) -> Callable[[Tensor], Tensor] | None:
    """An RGB image [1, 3, H, W] of that size, in [0, 1], to the map of `part`, on one thread for each caller.

    None where onnxruntime is not installed or does not work, or the part is not known in ONNX or not in float32 on the
    CPU.
    """
    here = all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in part.parameters())
    if not (here and known(part) and find_spec("onnx") and find_spec("onnxruntime")):
        return None
    try:
        from .graph import build_backbone
        from .session import answers, opened

        session = opened(build_backbone(part, size).SerializeToString(), threads=1)
        answers(session, ["maps"], {"image": torch.zeros(1, 3, *size).numpy()})
    except Exception as error:  # whatever a broken installation may raise: there is PyTorch
        note(f"onnxruntime does not work here ({error}), so features are made by PyTorch, which is slower")
        return None

    def maps(image: Tensor) -> Tensor:
        return torch.from_numpy(answers(session, ["maps"], {"image": image.contiguous().numpy()})[0])

    return maps
