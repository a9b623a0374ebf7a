"""Every attribution method behind one contract: attribute(model, images, target) -> [N, H, W] (sec. 4.2, C.3).

`METHODS` is the single list. A method is called by its name there, which stands for the paper's settings, or by
settings of your own: `Occlusion(window=7, stride=4)`. The maps keep their signs: positive speaks for the class.

On a CoDA-Net every method works on the encoded input [x, 1-x], so that the maps can be compared with its own
contributions, and a removed pixel is zero in all encoded channels. The paper's published figures are of the other
choice, `space="image"` (`task.InputSettings`; docs/evaluation.md has both). On any other classifier they work on the
images as given; `codanet.models.classifier.baseline` says what a removed pixel is there.
"""

from .gradcam import GradCam
from .gradients import DeepLift, Grad, InputTimesGradient, IntegratedGradients
from .lime import Lime
from .maps import NotFinite, Registered, attribute
from .occlusion import Occlusion
from .plain import Contributions, Random
from .registry import METHODS, Method, list_methods, settings_of
from .rise import Rise
from .spec import MethodSpec, has_sign, method_title
from .task import MethodSettings

__all__ = [
    "METHODS",
    "Contributions",
    "DeepLift",
    "Grad",
    "GradCam",
    "InputTimesGradient",
    "IntegratedGradients",
    "Lime",
    "Method",
    "MethodSettings",
    "MethodSpec",
    "NotFinite",
    "Occlusion",
    "Random",
    "Registered",
    "Rise",
    "attribute",
    "has_sign",
    "list_methods",
    "method_title",
    "settings_of",
]
