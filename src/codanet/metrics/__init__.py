"""The paper's measures of explanations, one file each; per-sample values, and `METRICS`, the list of them.

A metric's function takes `attribute(model, images, targets) -> maps [N, H, W]`, or the maps themselves; its entry in
`METRICS` runs on a `Sample`.
"""

from .box import box_share
from .completeness import completeness
from .disconnected import Disconnected, disconnected
from .insertion import deletion, insertion
from .localisation import cell_shares, localisation
from .maps import Attribute, contributions
from .metric import DoesNotFit, Metric, Sample
from .pointing import pointing
from .predictions import Predictions, confident_images, predict
from .quantus import quantus_metric
from .registry import FAMILIES, METRICS, choose_metrics, find_metric, known_metric, register_metric
from .removal import removal
from .road import road
from .sanity import SanityCheck, sanity
from .scores import Scores
from .share import positive_share

__all__ = [
    "FAMILIES",
    "METRICS",
    "Attribute",
    "Disconnected",
    "DoesNotFit",
    "Metric",
    "Predictions",
    "Sample",
    "SanityCheck",
    "Scores",
    "box_share",
    "cell_shares",
    "choose_metrics",
    "completeness",
    "confident_images",
    "contributions",
    "deletion",
    "disconnected",
    "find_metric",
    "insertion",
    "known_metric",
    "localisation",
    "pointing",
    "positive_share",
    "predict",
    "quantus_metric",
    "register_metric",
    "removal",
    "road",
    "sanity",
]
